//! The server side of an encrypted connection, with a self-signed certificate that only tests trust.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Everything a test needs to act as an encrypted server.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it holds a key")]
pub struct Encryption {
    /// Accepts connections.
    pub acceptor: TlsAcceptor,
    /// The certificate for `localhost`.
    pub certificate: CertificateDer<'static>,
    /// The same as PEM, for a file of trusted certificates.
    pub pem: String,
}

impl Encryption {
    /// Makes a new certificate.
    pub fn of_localhost() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider knows the versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("the key is of the certificate");
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate, pem: made.cert.pem() }
    }
}
