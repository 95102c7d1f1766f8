//! How `[auth]`, `[[policy]]`, `[[limits.rules]]`, listeners and the keys file are read.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed assumption is a failed test"
)]

mod common;

use std::path::Path;
use std::time::Duration;

use bridgehead_config::{
    Algorithm, ApiKey, Config, ConfigError, KeyRows, ListenAddress, ListenerAuth, StepUp, ThingPattern, Who,
    load, read_keys,
};
use common::environment;
use insta::assert_snapshot;

const DIGEST: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

fn load_in(folder: &Path, text: &str) -> Result<Config, ConfigError> {
    std::fs::write(folder.join("bridgehead.toml"), text).unwrap();
    load(Some("bridgehead.toml".as_ref()), &environment(), folder)
}

#[track_caller]
fn config(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    load_in(folder.path(), text).unwrap_or_else(|error| panic!("{error}"))
}

fn thing(server: &str, name: &str) -> ThingPattern {
    ThingPattern { server: server.to_owned(), name: name.to_owned() }
}

const EVERYTHING: &str = r#"
[http]
listen = "127.0.0.1:7000"
allowed_origins = ["*"]
[http.listeners.team]
listen = "0.0.0.0:7443"
auth = "required"
tls.cert_file = "tls/cert.pem"
tls.key_file = "/etc/key.pem"
[http.listeners.here]
listen = "unix:gate.sock"
auth = "Open"
[http.listeners.other]
listen = "localhost:7001"

[auth]
public_url = "https://mcp.example.com/mcp"
keys_file = "secrets/keys.toml"
operators = ["key:ci", "group:admins"]
operators_read = ["corp/alice"]
step_up = "in-band"
legacy_discovery = true

[[auth.keys.ci]]
sha256 = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
groups = ["build"]
scopes = ["repo:read", "repo:write"]
expires = 2027-01-31T18:00:00+02:00
[[auth.keys.ci]]
sha256 = "2C26B46B68FFC68FF99B453C1D30413413422D706483BFA0F98A5E886266E7AF"

[auth.issuers.corp]
issuer = "https://id.example.com/realms/corp/"
audiences = ["gateway"]
algorithms = ["ES256", "EdDSA"]
jwks = "https://id.example.com/keys"
groups_claim = "groups"
required_scopes = ["mcp"]
scope_includes = { repo = ["repo:read", "repo:write"] }
[auth.issuers.corp.introspection]
url = "http://127.0.0.1:9/introspect"
client_id = "gateway"
client_secret = "${HOME}"
[auth.issuers.old]
issuer = "http://localhost:8/"

[auth.proxy]
proxies = ["10.0.0.0/8", "::1"]
user_header = "X-Forwarded-User"
groups_header = "X-Forwarded-Groups"

[[policy]]
who = ["*", "local", "local:7", "token", "key:ci", "group:x", "proxy:bob", "corp/a/b", "old/*"]
tools = ["files/read_*", "*/*"]
prompts = ["files/*"]
resources = ["files/file:///srv/**"]
deny_tools = ["FILES/delete_*"]
deny_prompts = ["bridgehead/*"]
deny_resources = ["{files,off}/x"]
scopes = { "files/write_*" = ["repo:write"] }
read_only = true

[[policy]]
who = ["*"]
deny_tools = ["off/x"]

[limits]
views_mb = 3
[[limits.rules]]
who = ["*"]
rate = "60/min"
burst = 5
[[limits.rules]]
who = ["key:ci"]
tools = ["files/*"]
concurrent = 2
budget_per_day = 1000

[servers.files]
command = "x"
[servers.off]
command = "x"
disabled = true
"#;

/// ACC-1: every key of `[auth]` sets what it names.
#[test]
fn who_is_admitted() {
    let folder = tempfile::tempdir().unwrap();
    let auth = load_in(folder.path(), EVERYTHING).unwrap_or_else(|error| panic!("{error}")).auth;
    assert_eq!(auth.public_url.as_deref(), Some("https://mcp.example.com/mcp"));
    assert!(!auth.local && auth.legacy_discovery && auth.asks_for_credentials());
    assert_eq!(auth.step_up, StepUp::InBand);
    assert_eq!(auth.keys_file, Some(folder.path().join("secrets/keys.toml")));
    assert_eq!(auth.operators, [Who::Key("ci".to_owned()), Who::Group("admins".to_owned())]);
    let alice = Who::Subject { issuer: "corp".to_owned(), subject: "alice".to_owned() };
    assert_eq!(auth.operators_read, [alice]);

    let [first, second] = auth.keys.as_slice() else { panic!("{:?}", auth.keys) };
    assert_eq!((first.name.as_str(), second.name.as_str()), ("ci", "ci"));
    assert_eq!((first.sha256[0], first.sha256[31], second.sha256[31]), (0x2c, 0xae, 0xaf));
    assert_eq!((first.groups.as_slice(), first.scopes.len()), (["build".to_owned()].as_slice(), 2));
    assert_eq!(first.expires, Some("2027-01-31T16:00:00Z".parse().unwrap()));
    assert_eq!((second.expires, second.groups.len(), second.scopes.len()), (None, 0, 0));

    let [corp, old] = auth.issuers.as_slice() else { panic!("{:?}", auth.issuers) };
    assert_eq!((corp.name.as_str(), corp.issuer.as_str()), ("corp", "https://id.example.com/realms/corp/"));
    assert_eq!(corp.audiences, ["gateway"]);
    assert_eq!(corp.algorithms, [Algorithm::ES256, Algorithm::EdDSA]);
    assert_eq!(corp.jwks.as_ref().unwrap().expose(), "https://id.example.com/keys");
    assert_eq!(corp.groups_claim.as_deref(), Some("groups"));
    assert_eq!(corp.required_scopes, ["mcp"]);
    let parts = vec!["repo:read".to_owned(), "repo:write".to_owned()];
    assert_eq!(corp.scope_includes, [("repo".to_owned(), parts)]);
    let asked = corp.introspection.as_ref().unwrap();
    assert_eq!(asked.url.as_ref().unwrap().expose(), "http://127.0.0.1:9/introspect");
    assert_eq!((asked.client_id.as_str(), asked.client_secret.expose()), ("gateway", "/home/x"));
    assert!(!format!("{auth:?}").contains("/home/x"), "the secret is printed");
    assert_eq!((old.algorithms.as_slice(), &old.jwks), (Algorithm::ALL.as_slice(), &None));

    let proxy = auth.proxy.unwrap();
    let networks: Vec<_> =
        proxy.proxies.iter().map(|net| format!("{}/{}", net.address, net.prefix)).collect();
    assert_eq!(networks, ["10.0.0.0/8", "::1/128"]);
    assert_eq!(
        (proxy.user_header.as_deref(), proxy.groups_header.as_deref()),
        (Some("X-Forwarded-User"), Some("X-Forwarded-Groups"))
    );
}

/// ACC-3: every key of `[[policy]]` sets what it names, in the order of the file, and a rule knows its line.
#[test]
fn who_may_use_what() {
    let read = config(EVERYTHING);
    assert_eq!(read.gateway.views_bytes, 3 << 20);
    let [first, second] = read.policy.as_slice() else { panic!("{:?}", read.policy) };
    let who: Vec<String> = first.who.iter().map(ToString::to_string).collect();
    assert_eq!(
        who,
        ["*", "local", "local:7", "token", "key:ci", "group:x", "proxy:bob", "corp/a/b", "old/*"]
    );
    assert_eq!(first.who[7], Who::Subject { issuer: "corp".to_owned(), subject: "a/b".to_owned() });
    assert_eq!(first.tools, [thing("files", "read_*"), thing("*", "*")]);
    assert_eq!(first.prompts, [thing("files", "*")]);
    assert_eq!(first.resources, [thing("files", "file:///srv/**")]);
    assert_eq!(first.deny_tools, [thing("FILES", "delete_*")]);
    assert_eq!(first.deny_prompts, [thing("bridgehead", "*")]);
    assert_eq!(first.deny_resources, [thing("{files,off}", "x")]);
    assert_eq!(first.scopes, [(thing("files", "write_*"), vec!["repo:write".to_owned()])]);
    assert!(first.read_only && first.allows());
    assert_eq!(second.deny_tools, [thing("off", "x")]);
    assert!(!second.read_only && !second.allows());
    for rule in &read.policy {
        assert_eq!(EVERYTHING.lines().nth(rule.line - 1), Some("[[policy]]"));
    }
}

/// ACC-5: every key of `[[limits.rules]]` sets what it names.
#[test]
fn how_much() {
    let read = config(EVERYTHING);
    let [first, second] = read.limits.as_slice() else { panic!("{:?}", read.limits) };
    let rate = first.rate.unwrap();
    assert_eq!((rate.count.get(), rate.per, rate.burst.get()), (60, Duration::from_secs(60), 5));
    assert_eq!((first.concurrent, first.budget_per_day, first.tools.len()), (None, None, 0));
    assert_eq!(second.who, [Who::Key("ci".to_owned())]);
    assert_eq!(second.tools, [thing("files", "*")]);
    assert_eq!((second.rate, second.concurrent.unwrap().get(), second.budget_per_day), (None, 2, Some(1000)));
    for rule in &read.limits {
        assert_eq!(EVERYTHING.lines().nth(rule.line - 1), Some("[[limits.rules]]"));
    }
    let usual = config("[[limits.rules]]\nwho = ['*']\nrate = '7/s'\n").limits[0].rate.unwrap();
    assert_eq!(usual.burst.get(), 7);
}

/// ACC-6: every key of a listener sets what it names.
#[test]
fn where_clients_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let http = load_in(folder.path(), EVERYTHING).unwrap_or_else(|error| panic!("{error}")).http;
    assert_eq!(http.listen.to_string(), "127.0.0.1:7000");
    assert_eq!(http.allowed_origins, ["*"]);
    let [team, here, other] = http.listeners.as_slice() else { panic!("{:?}", http.listeners) };
    assert_eq!((team.name.as_str(), here.name.as_str()), ("team", "here"));
    assert_eq!(team.listen, ListenAddress::Tcp("0.0.0.0:7443".parse().unwrap()));
    assert_eq!(here.listen, ListenAddress::Unix(folder.path().join("gate.sock")));
    assert_eq!(other.listen, ListenAddress::Tcp("127.0.0.1:7001".parse().unwrap()));
    assert_eq!(
        [team.auth, here.auth, other.auth],
        [Some(ListenerAuth::Required), Some(ListenerAuth::Open), None]
    );
    let tls = team.tls.as_ref().unwrap();
    assert_eq!(
        (&tls.cert_file, tls.key_file.to_str()),
        (&folder.path().join("tls/cert.pem"), Some("/etc/key.pem"))
    );
    assert_eq!(here.tls, None);
}

/// ACC-1: without `[auth]`, nobody needs credentials, and the keys file is beside the configuration. Once that file has a
/// key, credentials are needed.
#[test]
fn defaults() {
    let folder = tempfile::tempdir().unwrap();
    let auth = load_in(folder.path(), "").unwrap().auth;
    assert!(!auth.asks_for_credentials() && !auth.local && !auth.legacy_discovery);
    assert_eq!((auth.step_up, auth.keys_file), (StepUp::Http, Some(folder.path().join("keys.toml"))));
    assert!(config("[auth]\npublic_url = 'http://[::1]:1'").auth.asks_for_credentials());
    assert!(!config("[auth]\npublic_url = 'http://localhost:1'").auth.has_credentials());
    let proxied = |lines: &str| config(&format!("[auth.proxy]\nproxies = ['10.0.0.7']\n{lines}")).auth;
    let (silent, naming) = (proxied(""), proxied("user_header = 'X-User'\n"));
    assert!(
        naming.has_credentials() && !silent.has_credentials(),
        "a proxy that names nobody signs nobody in"
    );
    assert!(silent.proxy.is_some_and(|proxy| proxy.user_header.is_none() && proxy.proxies.len() == 1));

    std::fs::write(
        folder.path().join("keys.toml"),
        format!("[[ci]]\nsha256 = '{DIGEST}'\ngroups = ['build']\n"),
    )
    .unwrap();
    let read =
        load_in(folder.path(), "[[policy]]\nwho = ['key:ci', 'group:build']\ntools = ['*/*']\n").unwrap();
    assert!(read.auth.asks_for_credentials() && read.auth.keys.is_empty());
    assert_eq!(read.auth.keys_in_file[0].name, "ci");
    let error = load_in(folder.path(), "[auth]\nkeys_file = '.'\n").unwrap_err().to_string();
    assert!(error.contains("cannot be read") && error.contains("bridgehead.toml:2"), "{error}");
}

/// ACC-1: an address for clients without any credentials is a warning that says what is missing, because everybody would be refused.
#[test]
fn an_address_where_nobody_can_sign_in() {
    let url = "[auth]\npublic_url = 'https://mcp.example.com/mcp'\n";
    let warnings = config(url).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].message.contains("nobody has any"), "{warnings:?}");
    assert!(
        warnings[0].help.as_ref().is_some_and(|help| help.contains("bridgehead key new")),
        "{warnings:?}"
    );
    assert_eq!(warnings[0].position(), Some((2, 1)));
    for more in [
        "local = true\n",
        "[auth.issuers.corp]\nissuer = 'https://id.example.com'\n",
        &format!("[[auth.keys.ci]]\nsha256 = '{DIGEST}'\n"),
        "[auth.proxy]\nproxies = ['10.0.0.1']\nuser_header = 'x-user'\n",
        "[http]\ntoken_file = 'token'\n",
        "[http.listeners.here]\nlisten = 'unix:gate.sock'\nauth = 'open'\n",
    ] {
        let warnings = config(&format!("{url}{more}")).warnings;
        assert!(!warnings.iter().any(|warning| warning.message.contains("nobody")), "{more}: {warnings:?}");
    }
}

/// ACC-2: a row with `revoked` admits nobody, with a digest or without. Rules may name its name and its groups.
#[test]
fn revoked_keys() {
    let folder = tempfile::tempdir().unwrap();
    let rows = format!(
        "[[ci]]\nrevoked = 2026-11-17T12:00:00Z\ngroups = ['build']\n[[ada]]\nsha256 = '{DIGEST}'\nrevoked = 2026-11-17\n"
    );
    std::fs::write(folder.path().join("keys.toml"), rows).unwrap();
    let rules = "[[auth.keys.old]]\nrevoked = 2026-11-17\n\
                 [[policy]]\nwho = ['key:ci', 'group:build', 'key:ada', 'key:old']\ntools = ['*/*']\n";
    let auth = load_in(folder.path(), rules).unwrap().auth;
    assert!(auth.keys.is_empty() && auth.keys_in_file.is_empty() && !auth.has_credentials());
    assert!(auth.asks_for_credentials(), "the door stays closed");
    let names: Vec<&str> = auth.revoked_keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["old", "ci", "ada"]);
    assert_eq!(auth.revoked_keys[1].groups, ["build"]);
    assert_eq!(auth.revoked_keys[1].at, "2026-11-17T12:00:00Z".parse().unwrap());
    for (unknown, told) in [("key:eve", "there is no key `eve`"), ("group:x", "nobody is in a group `x`")] {
        let error = load_in(folder.path(), &rules.replace("key:old", unknown)).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    let wrong = format!("[[ci]]\nsha256 = '{DIGEST}'\nrevoked = 'yesterday'\n");
    let error = read_keys(&wrong, Path::new("keys.toml")).unwrap_err().to_string();
    assert!(error.contains("`revoked` is not a time or a date"), "{error}");
}

/// ACC-1: a client's file says nothing about who may call.
#[test]
fn a_client_file_has_no_rules() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"mcpServers": {}, "auth": {"local": true}, "policy": [{"who": ["*"]}]}"#;
    std::fs::write(folder.path().join(".mcp.json"), text).unwrap();
    let read = load(Some(".mcp.json".as_ref()), &environment(), folder.path()).unwrap();
    assert!(!read.auth.local && read.policy.is_empty() && read.auth.keys_file.is_none());
    assert_eq!(read.warnings.len(), 1);
}

/// ACC-1: the file of keys has the keys of the configuration under its own names, and the same diagnostics.
#[test]
fn a_keys_file() {
    let path = Path::new("keys.toml");
    let text = format!(
        "# made by hand\n[[ci]]\nsha256 = \"sha256:{DIGEST}\"\ngroups = [\"build\"]\nexpires = 2027-01-31\n\n\
         [[ci]]\nsha256 = \"{}\"\n[[laptop]]\nsha256 = \"{}\"\nscopes = ['a']\n",
        "00".repeat(32),
        "01".repeat(32)
    );
    let keys = read_keys(&text, path).unwrap().keys;
    assert_eq!(keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["ci", "ci", "laptop"]);
    let expires = Some("2027-01-31T00:00:00Z".parse().unwrap());
    let first = ApiKey {
        name: "ci".to_owned(),
        sha256: keys[0].sha256,
        groups: vec!["build".to_owned()],
        scopes: Vec::new(),
        expires,
    };
    assert_eq!((&keys[0], keys[2].scopes[0].as_str()), (&first, "a"));
    assert_eq!(read_keys("", path).unwrap(), KeyRows::default());
    assert_eq!(read_keys("\u{feff}# nothing\n", path).unwrap(), KeyRows::default());

    let key = "bhk_A1b2C3d4E5f6G7h8I9j0A1b2C3d4E5f6G7h8I9j0A1b2C3d4E5";
    let wrong = format!(
        "[[ci]]\nsha = '{DIGEST}'\n[[ci]]\nsha256 = '{key}'\n[laptop]\nsha256 = '{DIGEST}'\n[['a b']]\nsha256 = '{DIGEST}'\n"
    );
    let error = read_keys(&wrong, path).unwrap_err();
    assert!(!error.to_string().contains("A1b2"), "{error}");
    assert_snapshot!(error, @r"
    error: unknown key `sha`
     --> keys.toml:2:1
      |
    2 | sha = '2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae'
      | ^^^ did you mean `sha256`?
      |
      = help: digest (SHA-256) of the key, in hexadecimal; `bridgehead key new` prints the key and stores its digest

    error: the `sha256` of key `ci` is not a SHA-256 in hexadecimal
     --> keys.toml:4:10
      |
    4 | sha256 = …
      |          ^
      |
      = help: it is a key itself, which belongs nowhere in a file: revoke it, and make another with `bridgehead key new ci`

    error: key `laptop` must be a list of tables, found a table
     --> keys.toml:5:2
      |
    5 | [laptop]
      |  ^^^^^^
      |
      = help: write each key of that name under `[[laptop]]`

    error: `a b` cannot be the name of a key
     --> keys.toml:7:3
      |
    7 | [['a b']]
      |   ^^^^^
      |
      = help: use 1 to 64 letters, digits, `_`, `.` and `-`
    ");
    assert!(read_keys("[[ci]\n", path).unwrap_err().to_string().contains("not valid TOML"));
}
