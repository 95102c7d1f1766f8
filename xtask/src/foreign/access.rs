//! Two users sign in at a real authorization server and use one gateway at once, with foreign clients of both eras.
//!
//! The authorization server is oidc-provider. The clients reach the gateway directly, where it checks signed tokens; by
//! another name, where it introspects opaque ones; and through a proxy that ends TLS (nginx), where every address that the
//! gateway tells must be the one that clients typed.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::install::{Installed, NGINX, succeed};
use super::outcome::{Outcome, Outcomes};
use super::program::{Gateway, MARK, command, drive, leftovers, mark};
use super::remote::Remote;

/// All scopes that the rules and the issuer ask for, as the first challenge must name them.
const SCOPE: &str = "tools:read tools:write";
const SECRET: &str = "a-secret-of-the-gateway-alone";

/// How clients reach the gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At its own address; tokens are signed.
    Signed,
    /// At its own address by name; tokens are opaque.
    Introspected,
    /// Through a proxy that ends TLS; tokens are opaque, because the proxy is reached by name.
    Proxied,
}

impl Way {
    const ALL: [Self; 3] = [Self::Signed, Self::Introspected, Self::Proxied];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Signed => "signed tokens",
            Self::Introspected => "opaque tokens",
            Self::Proxied => "through TLS",
        }
    }
}

/// Runs every client on every way.
pub(crate) fn run(installed: &Installed, outcomes: &mut Outcomes) -> Result<()> {
    let mark = mark("access");
    let log = installed.logs().join("access.log");
    let identity = Remote::start("identity", ("", "http"), |port| identity(installed, port, &mark), &log)?;
    for way in Way::ALL {
        let port = free_port()?;
        let proxy = match way {
            Way::Proxied => Some(Proxy::start(&installed.scratch(), port, &mark, &log)?),
            _ => None,
        };
        let url = match (way, &proxy) {
            (_, Some(proxy)) => proxy.url(),
            (Way::Signed, _) => format!("http://127.0.0.1:{port}/mcp"),
            _ => format!("http://localhost:{port}/mcp"),
        };
        let config = write_config(installed, way, &url, &identity.url, &mark)?;
        let gateway =
            Gateway::start_at(&format!("127.0.0.1:{port}"), &installed.gateway(), &config, &mark, &log)?;
        for era in ["legacy", "modern"] {
            for (name, program) in [("TypeScript SDK v2", "sign-in.mjs"), ("Python SDK", "python_sign_in.py")]
            {
                let mut driver = driver(installed, program, proxy.as_ref());
                let told = drive(
                    &format!("{name} · {era} · {}", way.as_str()),
                    driver.env(MARK, &mark),
                    &order(era, &url),
                    &log,
                )?;
                outcomes.access.told(name, era, way.as_str(), told);
            }
        }
        outcomes.processes.push(gateway.terminate()?);
    }
    drop(identity);
    tokens(installed, outcomes, &mark, &log)?;
    outcomes.processes.push(Outcome::of("sign-in", "leaves no process", &leftovers(&mark)));
    Ok(())
}

/// Shows the gateway tokens of every kind. Their issuer is started after the gateway, by the driver.
fn tokens(installed: &Installed, outcomes: &mut Outcomes, mark: &str, log: &Path) -> Result<()> {
    let (port, issuer) = (free_port()?, format!("http://127.0.0.1:{}", free_port()?));
    let url = format!("http://127.0.0.1:{port}/mcp");
    let config = write_config(installed, Way::Signed, &url, &issuer, mark)?;
    let gateway = Gateway::start_at(&format!("127.0.0.1:{port}"), &installed.gateway(), &config, mark, log)?;
    let order = json!({"url": url, "issuer": issuer, "tools": ["files__read", "files__write"]});
    let mut driver = command(installed.node());
    driver.arg(installed.npm().join("tokens.mjs")).env(MARK, mark);
    let told = drive("tokens of every kind", &mut driver, &order, log)?;
    outcomes.access.told("raw requests", "modern", "signed tokens", told);
    outcomes.processes.push(gateway.terminate()?);
    Ok(())
}

fn identity(installed: &Installed, port: u16, mark: &str) -> Command {
    let order = json!({
        "port": port,
        "groups": {"alice": ["build"], "bob": ["ops"]},
        "scopes": SCOPE.split(' ').collect::<Vec<_>>(),
        "lifetime": 300,
        "secret": SECRET,
    });
    let mut server = command(installed.node());
    server.arg(installed.npm().join("identity.mjs")).arg(order.to_string()).env(MARK, mark);
    server
}

fn driver(installed: &Installed, program: &str, proxy: Option<&Proxy>) -> Command {
    let script = installed.npm().join("clients").join(program);
    let mut driver = match program.ends_with(".py") {
        true => command(installed.python("python")),
        false => command(installed.node()),
    };
    driver.arg(script);
    if let Some(proxy) = proxy {
        driver.env("NODE_EXTRA_CA_CERTS", &proxy.certificate).env("SSL_CERT_FILE", &proxy.certificate);
    }
    driver
}

/// Who signs in, what each must see, and what each must not.
fn order(era: &str, url: &str) -> Value {
    json!({
        "era": era,
        "url": url,
        "scope": SCOPE,
        "users": [
            {"user": "alice", "tools": ["files__read", "files__write"], "others": ["cloud__deploy"]},
            {"user": "bob", "tools": ["cloud__deploy"], "others": ["files__read", "files__write"]},
        ],
    })
}

fn write_config(installed: &Installed, way: Way, url: &str, issuer: &str, mark: &str) -> Result<PathBuf> {
    let server = |name: &str, tools: &[&str]| {
        let tools: Vec<Value> = tools.iter().map(|tool| json!({"name": tool, "behaviour": "echo"})).collect();
        let script = json!({"era": "modern", "tools": tools});
        format!(
            "[servers.{name}]\ncommand = {}\nenv = {{ MOCK_SCRIPT = {}, {MARK} = {} }}\n",
            json!(installed.mock()),
            json!(script.to_string()),
            json!(mark),
        )
    };
    let introspection = match way {
        Way::Signed => String::new(),
        _ => format!(
            "[auth.issuers.corp.introspection]\nclient_id = \"gateway\"\nclient_secret = \"{SECRET}\"\n"
        ),
    };
    let config = format!(
        "[http]\nallowed_hosts = [\"localhost\"]\n[auth]\npublic_url = \"{url}\"\n\
         [auth.issuers.corp]\nissuer = \"{issuer}\"\ngroups_claim = \"groups\"\nrequired_scopes = [\"tools:read\"]\n{introspection}\
         [[policy]]\nwho = [\"group:build\", \"corp/alice\"]\ntools = [\"files/*\"]\nscopes = {{ \"files/write\" = [\"tools:write\"] }}\n\
         [[policy]]\nwho = [\"corp/bob\"]\ntools = [\"cloud/*\"]\n{}{}",
        server("files", &["read", "write"]),
        server("cloud", &["deploy"]),
    );
    let file = installed.scratch().join(format!("access-{}.toml", way.as_str().replace(' ', "-")));
    fs::write(&file, config).with_context(|| format!("{} could not be written", file.display()))?;
    Ok(file)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// nginx, which ends TLS for the gateway. Dropping it ends it.
struct Proxy {
    nginx: Remote,
    certificate: PathBuf,
}

impl Proxy {
    /// Starts it in front of the gateway's port, with a certificate of its own.
    fn start(scratch: &Path, gateway: u16, mark: &str, log: &Path) -> Result<Self> {
        let folder = scratch.join("nginx");
        fs::create_dir_all(&folder)?;
        let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let subject =
            ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-nodes"];
        let mut make = command("openssl");
        make.args(["req", "-x509", "-newkey", "rsa:2048", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
        succeed(make.args(subject), "openssl")?;
        let nginx = Remote::start(
            "nginx",
            ("/mcp", "http"),
            |port| {
                let configuration = folder.join("nginx.conf");
                // Written before nginx reads it; a failure shows when nginx does not start.
                let _ = fs::write(&configuration, Self::configuration(&folder, port, gateway));
                let mut server = command(NGINX);
                server
                    .args(["-e", "stderr", "-p"])
                    .arg(&folder)
                    .arg("-c")
                    .arg(&configuration)
                    .env(MARK, mark);
                server
            },
            log,
        )?;
        Ok(Self { nginx, certificate })
    }

    fn configuration(folder: &Path, port: u16, gateway: u16) -> String {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()))
            .collect();
        format!(
            "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
             server {{\nlisten 127.0.0.1:{port} ssl;\nssl_certificate {folder}/cert.pem;\nssl_certificate_key {folder}/key.pem;\n\
             location / {{\nproxy_pass http://127.0.0.1:{gateway};\nproxy_http_version 1.1;\nproxy_buffering off;\n\
             proxy_set_header Host evil.example;\nproxy_set_header X-Forwarded-Host evil.example;\n\
             proxy_set_header X-Forwarded-Proto http;\nproxy_set_header X-Forwarded-For $remote_addr;\n}}\n}}\n}}\n",
            folder = folder.display(),
        )
    }

    fn url(&self) -> String {
        self.nginx.url.replace("http://127.0.0.1", "https://localhost")
    }
}
