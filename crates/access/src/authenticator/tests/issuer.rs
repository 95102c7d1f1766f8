//! A real issuer on loopback: serves metadata, keys and introspection over HTTP, and signs with real keys.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bridgehead_config::Algorithm;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header};
use parking_lot::Mutex;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A signing key and its public part.
#[derive(Clone)]
pub(super) struct Signer {
    pub(super) algorithm: jsonwebtoken::Algorithm,
    pub(super) key: EncodingKey,
    pub(super) public: Value,
}

impl Signer {
    pub(super) fn new(kid: &str, algorithm: Algorithm) -> Self {
        let name = crate::tokens::library_name(algorithm);
        let pair = |kind| KeyPair::generate_for(kind).unwrap();
        let (key, mut public) = match algorithm {
            Algorithm::RS256 | Algorithm::PS256 => described(EncodingKey::from_rsa_der(&rsa(kid)), name),
            Algorithm::ES256 => {
                described(EncodingKey::from_ec_der(&pair(&PKCS_ECDSA_P256_SHA256).serialize_der()), name)
            }
            Algorithm::EdDSA => {
                let pair = pair(&PKCS_ED25519);
                let x = URL_SAFE_NO_PAD.encode(pair.public_key_raw());
                let public = json!({"kty": "OKP", "crv": "Ed25519", "x": x});
                (EncodingKey::from_ed_der(&pair.serialize_der()), public)
            }
        };
        public["kid"] = json!(kid);
        public["use"] = json!("sig");
        Self { algorithm: name, key, public }
    }

    pub(super) fn header(&self) -> Header {
        let mut header = Header::new(self.algorithm);
        header.kid = self.public["kid"].as_str().map(str::to_owned);
        header
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        jsonwebtoken::encode(&self.header(), claims, &self.key).unwrap()
    }
}

fn described(key: EncodingKey, algorithm: jsonwebtoken::Algorithm) -> (EncodingKey, Value) {
    let public = serde_json::to_value(Jwk::from_encoding_key(&key, algorithm).unwrap()).unwrap();
    (key, public)
}

/// An RSA key, one per key id: making one takes a while.
fn rsa(kid: &str) -> Vec<u8> {
    static MADE: OnceLock<Mutex<HashMap<String, Vec<u8>>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock();
    let make = || {
        let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        // The library reads the key inside the PKCS#8 envelope, whose head has 26 bytes.
        pair.serialize_der()[26..].to_vec()
    };
    made.entry(kid.to_owned()).or_insert_with(make).clone()
}

/// An answer of the issuer: status, media type, further headers, body.
pub(super) type Page = (u16, &'static str, &'static str, String);

/// The issuer.
pub(super) struct TestIssuer {
    pub(super) url: String,
    state: Arc<State>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    pages: Mutex<HashMap<String, Page>>,
    /// All requests: path and body.
    asked: Mutex<Vec<(String, String)>>,
    /// What introspection says, by token.
    active: Mutex<HashMap<String, Value>>,
}

impl TestIssuer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let issuer = Self { url, state, serving: Mutex::default() };
        issuer.serve_on(listener);
        issuer.page(
            "/.well-known/openid-configuration",
            &json!({
                "issuer": issuer.url,
                "jwks_uri": format!("{}/jwks", issuer.url),
                "introspection_endpoint": format!("{}/introspect", issuer.url),
            }),
        );
        issuer
    }

    fn serve_on(&self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        let serving = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(serve(tcp, Arc::clone(&state)));
            }
        });
        *self.serving.lock() = Some(serving);
    }

    /// Stops listening.
    pub(super) async fn stop(&self) {
        let serving = self.serving.lock().take().unwrap();
        serving.abort();
        let _ = serving.await;
    }

    /// Listens again, at the same address.
    pub(super) async fn start_again(&self) {
        self.serve_on(TcpListener::bind(self.url.strip_prefix("http://").unwrap()).await.unwrap());
    }

    pub(super) fn page(&self, path: &str, body: &Value) {
        self.raw_page(path, (200, "application/json", "", body.to_string()));
    }

    pub(super) fn raw_page(&self, path: &str, page: Page) {
        self.state.pages.lock().insert(path.to_owned(), page);
    }

    pub(super) fn publish(&self, signers: &[&Signer]) {
        let keys: Vec<&Value> = signers.iter().map(|signer| &signer.public).collect();
        self.page("/jwks", &json!({ "keys": keys }));
    }

    /// What introspection says about a token.
    pub(super) fn vouch(&self, token: &str, claims: Value) {
        self.state.active.lock().insert(token.to_owned(), claims);
    }

    /// How often a path was asked for.
    pub(super) fn asked(&self, path: &str) -> usize {
        self.state.asked.lock().iter().filter(|(asked, _)| asked == path).count()
    }

    pub(super) fn asked_at_all(&self) -> usize {
        self.state.asked.lock().len()
    }
}

impl Drop for TestIssuer {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.lock().take() {
            serving.abort();
        }
    }
}

async fn serve(mut tcp: TcpStream, state: Arc<State>) {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if tcp.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    while bytes.len() < head + length.unwrap_or(0) {
        if tcp.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let body = String::from_utf8_lossy(&bytes[head..]).into_owned();
    state.asked.lock().push((path.clone(), body.clone()));
    let page = match path.as_str() {
        "/introspect" if !state.pages.lock().contains_key("/introspect") => {
            let token =
                body.strip_prefix("token=").and_then(|rest| rest.split('&').next()).unwrap_or_default();
            let claims = state.active.lock().get(token).cloned().unwrap_or_else(|| json!({"active": false}));
            Some((200, "application/json", "", claims.to_string()))
        }
        path => state.pages.lock().get(path).cloned(),
    };
    let (status, media, more, body) = page.unwrap_or((404, "text/plain", "", "no".to_owned()));
    let answer = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {media}\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = tcp.write_all(answer.as_bytes()).await;
    let _ = tcp.shutdown().await;
}
