//! `bridgehead key` as an operator uses it.

use std::os::unix::fs::PermissionsExt;

use bridgehead_testkit::client::{HttpClient, legacy_handshake};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, Ran, signal};

/// Runs `bridgehead key` with the configuration of the place.
async fn key(place: &Place, arguments: &[&str]) -> Ran {
    let config = place.path().join("bridgehead.toml");
    let mut all = vec!["key"];
    all.extend_from_slice(arguments);
    all.extend_from_slice(&["--config", config.to_str().unwrap()]);
    place.run(&all).await
}

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// ACC-1, ACC-2 (case 11): a key is printed once and kept as a digest; it is listed and revoked by its name.
#[tokio::test]
async fn keys_are_made_listed_and_revoked() {
    let place = Place::new();
    let by_hand = "ab".repeat(32);
    place.config(&[], &format!("[[auth.keys.old]]\nsha256 = \"{by_hand}\"\n"));
    let made =
        key(&place, &["new", "ci", "--group", "build", "--scope", "repo:read", "--expires", "90d"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let text = made.stdout.trim_end();
    assert!(text.len() == 53 && text.starts_with("bhk_"), "{made:?}");
    assert!(made.stderr.contains("the only time") && !made.stderr.contains(text), "{made:?}");
    let file = place.path().join("keys.toml");
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(!written.contains(text) && mode(&file) == 0o600, "{written}");
    assert_eq!(key(&place, &["new", "ci"]).await.code, Some(0), "two may be valid");

    let listed = key(&place, &["list", "--json"]).await.json();
    let keys = listed["keys"].as_array().unwrap();
    let names: Vec<&str> = keys.iter().map(|key| key["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["old", "ci", "ci"]);
    assert_eq!(keys[0]["digest"], "abababababab");
    assert!(keys[0]["file"].as_str().unwrap().ends_with("bridgehead.toml"), "{listed}");
    assert!(keys[1]["file"].as_str().unwrap().ends_with("keys.toml"), "{listed}");
    assert_eq!((&keys[1]["groups"][0], &keys[1]["scopes"][0]), (&"build".into(), &"repo:read".into()));
    assert_eq!((&keys[1]["expired"], &keys[2]["expires"]), (&Value::Bool(false), &Value::Null));
    let table = key(&place, &["list"]).await.stdout;
    assert!(
        table.starts_with("NAME  DIGEST") && table.contains("repo:read") && table.contains("never"),
        "{table}"
    );

    let one = keys[1]["digest"].as_str().unwrap();
    let revoked = key(&place, &["revoke", "ci", "--digest", one]).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert!(revoked.stderr.contains("revoked 1 key of `ci`"), "{revoked:?}");
    let listed = key(&place, &["list", "--json"]).await.json();
    let keys = listed["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 3, "{listed}");
    // The other key is not in this group, which rules may name.
    assert_eq!((&keys[2]["name"], &keys[2]["groups"]), (&"ci".into(), &json!(["build"])), "{listed}");
    let when = keys[2]["revoked"].as_str().unwrap();
    assert!(keys[2].get("digest").is_none() && keys[1].get("revoked").is_none(), "{listed}");
    let table = key(&place, &["list"]).await.stdout;
    assert!(table.contains(&format!("revoked {when}")), "{table}");
    let again = key(&place, &["revoke", "ci", "--digest", one]).await;
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("has a digest with this beginning"), "{again:?}");
    let elsewhere = key(&place, &["revoke", "old"]).await;
    assert_eq!(elsewhere.code, Some(1));
    assert!(elsewhere.stderr.contains("bridgehead.toml` itself; remove it there"), "{elsewhere:?}");
    let nobody = key(&place, &["revoke", "eve"]).await;
    assert!(nobody.code == Some(1) && nobody.stderr.contains("there is no key `eve`"), "{nobody:?}");
    for wrong in
        [&["new", "a b"][..], &["new", "ci", "--expires", "soon"], &["revoke", "ci", "--digest", "xyz"]]
    {
        assert_eq!(key(&place, wrong).await.code, Some(2), "{wrong:?}");
    }
}

/// ACC-9: keys made and revoked are in the record: who, which name, and the beginning of the digest.
#[tokio::test]
async fn keys_are_in_the_record() {
    let place = Place::new();
    let config = place.config(&[], "");
    let made = key(&place, &["new", "ci", "--group", "build"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(made.stderr.contains("asks local clients for credentials"), "{made:?}");
    assert_eq!(key(&place, &["new", "ci", "--group", "group:x"]).await.code, Some(1));
    assert_eq!(key(&place, &["revoke", "ci"]).await.code, Some(0));
    let config = config.to_str().unwrap();
    let listed = place.run(&["audit", "list", "--json", "--config", config]).await;
    let calls: Vec<Value> = listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&str, &str, &str)> = calls
        .iter()
        .map(|call| ["method", "subject", "outcome"].map(|name| call[name].as_str().unwrap_or_default()))
        .map(|[method, subject, outcome]| (method, subject, outcome))
        .collect();
    assert_eq!(
        told,
        [("key/new", "ci", "result"), ("key/new", "ci", "error"), ("key/revoke", "ci", "result")],
        "{listed:?}"
    );
    assert!(calls.iter().all(|call| call["principal"].as_str().unwrap().starts_with("local:")), "{listed:?}");
    let show = async |call: &Value| {
        place.run(&["audit", "show", call["correlationId"].as_str().unwrap(), "--config", config]).await
    };
    let key_file = std::fs::read_to_string(place.path().join("keys.toml")).unwrap();
    assert!(key_file.contains("[[ci]]\nrevoked = ") && !key_file.contains("sha256 ="), "{key_file}");
    let revoked = show(&calls[2]).await.stdout;
    let made_digest = |text: &str| text.split("\"digest\":\"").nth(1).map(|rest| rest[..12].to_owned());
    let digest = made_digest(&show(&calls[0]).await.stdout).unwrap();
    assert!(revoked.contains(&format!("{{\"digests\":[\"{digest}\"]}}")), "{revoked}");
    let shown = show(&calls[0]).await;
    assert!(shown.stdout.contains("digest") && !shown.stdout.contains(made.stdout.trim_end()), "{shown:?}");
    let verified = place.run(&["audit", "verify", "--config", config]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

/// ACC-2: keys that two programs make at the same time are both kept, and so is an edit by hand.
#[tokio::test]
async fn keys_are_made_at_once() {
    let place = Place::new();
    place.config(&[], "[audit]\nstore = \"none\"\n");
    let file = place.file("keys.toml", "# ours\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let making: Vec<_> = (0..8).map(|number| format!("k{number}")).collect();
    let made =
        futures_util::future::join_all(making.iter().map(async |name| key(&place, &["new", name]).await))
            .await;
    assert!(made.iter().all(|made| made.code == Some(0)), "{made:?}");
    assert_eq!(key(&place, &["list", "--json"]).await.json()["keys"].as_array().unwrap().len(), 8);
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("# ours\n"));
    assert!(!place.path().join("state").exists(), "nothing is recorded if nothing is to be");
}

/// ACC-2: a keys file that others can read is refused; without a configuration the file is named.
#[tokio::test]
async fn a_keys_file_that_cannot_be_used() {
    let place = Place::new();
    place.config(&[], "[audit]\nstore = \"none\"\n");
    let file = place.file("keys.toml", "");
    let chmod = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    chmod(0o640);
    let refused = key(&place, &["list"]).await;
    let cure = format!("run `chmod 600 {}`, or set `allow_group_read = true`", file.display());
    assert!(refused.code == Some(1) && refused.stderr.contains(&cure), "{refused:?}");
    place.config(&[], "[audit]\nstore = \"none\"\n[secrets]\nallow_group_read = true\n");
    assert_eq!(key(&place, &["list"]).await.code, Some(0), "the group may read it");
    place.config(&[], "[audit]\nstore = \"none\"\n");
    chmod(0o644);
    for arguments in [&["new", "ci"][..], &["list"], &["revoke", "ci"]] {
        let refused = key(&place, arguments).await;
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(refused.stderr.contains("chmod") && refused.stdout.is_empty(), "{refused:?}");
    }
    std::fs::remove_file(&file).unwrap();
    place.config(&[], "[gateway]\nmode = \"no such mode\"\n");
    let broken = key(&place, &["new", "ci"]).await;
    assert_eq!(broken.code, Some(78), "{broken:?}");
    assert!(broken.stderr.contains("hint: --keys-file"), "{broken:?}");
    // Rules may wait for the key that is being made.
    place.config(&[], "[[policy]]\nwho = [\"key:ci\"]\ntools = [\"*/*\"]\n");
    let made = key(&place, &["new", "ci"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let revoked = key(&place, &["revoke", "ci"]).await;
    assert!(revoked.code == Some(0) && revoked.stderr.contains("still names `key:ci`"), "{revoked:?}");
    // The first key is made because nobody has one.
    let url = place.config(&[], "[auth]\npublic_url = \"https://mcp.example.com/mcp\"\n");
    let warning = "but nobody has any";
    let checked = place.run(&["check", "--config", url.to_str().unwrap()]).await;
    assert!(checked.stderr.contains(warning) || checked.stdout.contains(warning), "{checked:?}");
    let listed = key(&place, &["list"]).await;
    assert!(listed.code == Some(0) && !listed.stderr.contains(warning), "{listed:?}");
    place.config(&[], "[[policy]]\nwho = [\"key:ci\"]\ntools = [\"*/*\"]\n");
    let without = place.run(&["key", "list"]).await;
    assert!(without.code == Some(78) && without.stderr.contains("no configuration"), "{without:?}");
    let checked =
        place.run(&["check", "--config", place.path().join("bridgehead.toml").to_str().unwrap()]).await;
    assert!(checked.stdout.contains("rules: 1 rule") && !checked.stdout.contains("admits: "), "{checked:?}");
    let left = place.run(&["key", "list", "--keys-file", file.to_str().unwrap()]).await;
    assert!(left.code == Some(0) && left.stdout.contains("revoked 20"), "{left:?}");
    let again = key(&place, &["new", "ci"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    let back = place.run(&["key", "list", "--keys-file", file.to_str().unwrap()]).await;
    assert!(back.stdout.contains("never") && !back.stdout.contains("revoked"), "{back:?}");
    std::fs::remove_file(&file).unwrap();
    let empty = place.run(&["key", "list", "--keys-file", file.to_str().unwrap()]).await;
    assert!(empty.code == Some(0) && empty.stderr.contains("there are no keys"), "{empty:?}");
}

/// The status of a legacy `initialize` with these headers, and its session.
async fn sign_in(client: &HttpClient, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": legacy_handshake()});
    let reply = client.post(path, headers, body.to_string()).await;
    (reply.status, reply.header("mcp-session-id").unwrap_or_default().to_owned())
}

/// ACC-2 (case 9, case 11): a running gateway follows the keys file. A key opens a session; in the query it is ignored; when it is
/// revoked, the open stream of its session ends, and the session with it. The local user is asked for a key from then on.
#[tokio::test]
async fn a_running_gateway_follows_the_keys() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let (mut gateway, address) = place.serve_http(&["--config", config.to_str().unwrap()], &[]).await;
    let client = HttpClient::new(address);
    assert_eq!(sign_in(&client, "/mcp", &[]).await.0, 200, "without keys, the local user is admitted");
    let made = key(&place, &["new", "ci"]).await;
    let secret = made.stdout.trim_end();
    let bearer = format!("Bearer {secret}");
    let known = [("authorization", bearer.as_str())];
    let session = loop {
        let (status, session) = sign_in(&client, "/mcp", &known).await;
        if status == 200 {
            break session;
        }
        // The address is slowed down by unknown keys until the gateway has read the file.
        assert!([401, 429].contains(&status), "{status}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    assert_eq!(sign_in(&client, &format!("/mcp?access_token={secret}&token={secret}"), &[]).await.0, 401);
    assert_eq!(sign_in(&client, "/mcp", &[("authorization", "Bearer bhk_wrong")]).await.0, 401);

    let of_session = [
        known[0],
        ("mcp-session-id", session.as_str()),
        ("accept", "text/event-stream"),
        ("mcp-protocol-version", "2025-06-18"),
    ];
    let mut stream = client.open(hyper::Method::GET, "/mcp", &of_session, "").await;
    assert_eq!(stream.status, 200);
    assert_eq!(key(&place, &["revoke", "ci"]).await.code, Some(0));
    while stream.next_event().await.is_some() {}
    assert_eq!(sign_in(&client, "/mcp", &known).await.0, 401);
    assert_eq!(sign_in(&client, "/mcp", &[]).await.0, 401, "the last key is gone, and the door stays closed");
    assert!(!gateway.stderr().contains(secret), "{}", gateway.stderr());
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}
