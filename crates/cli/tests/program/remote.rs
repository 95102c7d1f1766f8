//! A remote server from the outside: encrypted, behind a proxy, and with secrets wherever one can be.

use std::time::{Duration, Instant};

use bridgehead_testkit::Encryption;
use bridgehead_testkit::client::HttpClient;
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply, reply};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{Place, signal};

fn serve(asked: &Asked) -> Vec<Part> {
    let message = asked.json();
    let mut result = match asked.rpc().as_str() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "tools/list" => {
            let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
            json!({"tools": [tool("echo"), tool("denied")]})
        }
        _ if message["params"]["name"] == "denied" => {
            return reply("403 Forbidden", &["x-said: hunter2"], "hunter2");
        }
        _ => json!({"content": [{"type": "text", "text": "hello"}]}),
    };
    for (name, value) in
        [("resultType", json!("complete")), ("ttlMs", json!(0)), ("cacheScope", json!("private"))]
    {
        result[name] = value;
    }
    json_reply(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
}

/// Adds TLS in front of a plain server; returns its port and its certificate.
async fn encrypted(server: std::net::SocketAddr) -> (u16, String) {
    let Encryption { acceptor, pem, .. } = Encryption::of_localhost();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let (Ok(mut tls), Ok(mut plain)) =
                    (acceptor.accept(tcp).await, TcpStream::connect(server).await)
                else {
                    return;
                };
                let _ = copy_bidirectional(&mut tls, &mut plain).await;
            });
        }
    });
    (port, pem)
}

/// A proxy that opens connections for clients with the right password; returns its port.
async fn proxy() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if client.read_buf(&mut head).await.unwrap_or_default() == 0 {
                        return;
                    }
                }
                let head = String::from_utf8(head).unwrap();
                // me:hunter2
                if !head.contains("\r\nproxy-authorization: Basic bWU6aHVudGVyMg==\r\n") {
                    let _ = client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
                    return;
                }
                let Ok(mut server) = TcpStream::connect(head.split(' ').nth(1).unwrap()).await else {
                    return;
                };
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

/// LINK-2: an encrypted server is reached through the configured proxy, not the one in `HTTPS_PROXY`. Neither the log at its
/// most verbose level, nor `server_health`, nor an error shows a header, a path or the proxy's credentials.
#[tokio::test]
async fn secrets_of_remote_servers_stay_secret() {
    let peer = Peer::start(serve).await;
    let ((port, certificate), proxy) = (encrypted(peer.address()).await, proxy().await);
    let place = Place::new();
    let trusted = place.file("trusted.pem", &certificate).display().to_string();
    let config = place.file(
        "bridgehead.toml",
        &format!(
            r#"
[servers.far]
url = "https://localhost:{port}/hunter2?key=hunter2"
headers = {{ Authorization = "Bearer ${{SECRET}}" }}
proxy = "http://me:${{SECRET}}@127.0.0.1:{proxy}"

[servers.barred]
url = "https://localhost:{port}/hunter2?key=hunter2"
headers = {{ Authorization = "Bearer ${{SECRET}}" }}
proxy = "http://me:${{SECRET}}-wrong@127.0.0.1:{proxy}"
"#
        ),
    );
    let nowhere = "http://127.0.0.1:9";
    let variables = [
        ("SSL_CERT_FILE", trusted.as_str()),
        ("SECRET", "hunter2"),
        ("HTTP_PROXY", nowhere),
        ("HTTPS_PROXY", nowhere),
        ("https_proxy", nowhere),
        ("ALL_PROXY", nowhere),
    ];
    let config = config.display().to_string();
    let arguments = ["--config", &config, "--log-level", "trace"];
    let (mut gateway, address) = place.serve_http(&arguments, &variables).await;
    let http = HttpClient::new(address);
    let call = |tool: &'static str| async move {
        let params = json!({"name": tool, "arguments": {}});
        let answer: Value = http.post_modern("/mcp", "tools/call", params).await.json();
        answer
    };
    let answer = call("far__echo").await;
    assert_eq!(answer["result"]["content"][0]["text"], "hello", "{answer}");
    let denied = call("far__denied").await;
    assert!(denied["error"]["message"].as_str().unwrap().contains("forbids it (403)"), "{denied}");
    let barred = format!("the proxy http://127.0.0.1:{proxy}/ rejects the credentials in `proxy` (407)");
    let began = Instant::now();
    let health = loop {
        let health = call("server_health").await.to_string();
        if health.contains(&barred) {
            break health;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{health}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let asked = peer.asked();
    assert!(asked.iter().all(|asked| asked.header("authorization") == "Bearer hunter2"), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.target == "/hunter2?key=hunter2"), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.header("proxy-authorization").is_empty()), "{asked:?}");
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
    let log = gateway.stderr();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    for (what, text) in [("log", log.as_str()), ("health", &health), ("error", &denied.to_string())] {
        assert!(!text.contains("hunter2") && !text.contains("bWU6"), "{what}: {text}");
    }
}
