use bridgehead_config::{PeerNetwork, TrustedProxy};

use super::*;
use crate::keys::Key;

const HERE: Peer =
    Peer { address: Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)), user: PeerUser::Admitted(Some(7)) };
const SOCKET: Peer = Peer { address: None, user: PeerUser::Admitted(Some(7)) };

fn keyed(key: &Key, expires: Option<i64>) -> AuthSettings {
    auth(|settings| {
        settings.keys.push(ApiKey {
            name: "ci".to_owned(),
            sha256: key.digest(),
            groups: vec!["build".to_owned()],
            scopes: Vec::new(),
            expires: expires.map(|second| jiff::Timestamp::from_second(second).unwrap()),
        });
    })
}

/// ACC-2 (case 11): a key is valid until it expires or is removed; a mistyped, unknown or expired one is 401. What its holder keeps
/// open ends when it is removed.
#[tokio::test]
async fn keys() {
    let key = Key::generate().unwrap();
    let gate = Gate::new(&keyed(&key, Some(NOW + 100)));
    assert_eq!(gate.bearer(key.expose()).await.as_deref(), Ok("key:ci"));
    let mut mistyped = key.expose().to_owned();
    mistyped.pop();
    let other = Key::generate().unwrap();
    for (wrong, told) in
        [(mistyped.as_str(), "49 letters"), (other.expose(), "not known"), ("bhk_", "49 letters")]
    {
        let found = gate.bearer(wrong).await;
        Gate::is_refused(&found, 401, "Bearer error=\"invalid_token\"");
        assert!(found.unwrap_err().reason.contains(told));
    }
    let held = gate.principal(&[("authorization", &format!("Bearer {}", key.expose()))], HERE).await.unwrap();
    gate.advance(100);
    let expired = gate.bearer(key.expose()).await;
    Gate::is_refused(&expired, 401, "error=\"invalid_token\"");
    assert!(expired.unwrap_err().reason.contains("expired"));
    gate.credentials.set_keys(Vec::new());
    assert!(held.validity().has_ended());
    Gate::is_refused(&gate.ask(&[], HERE).await, 401, "Bearer");
}

/// ACC-2 (case 11): keys of the keys file count like those of the configuration, and a wrong file prevents the start.
#[tokio::test]
async fn keys_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = KeysFile::new(folder.path().join("keys.toml"));
    let settings = auth(|settings| settings.keys_file = Some(file.path().to_owned()));
    let open = Gate::new(&settings);
    assert_eq!(open.ask(&[], HERE).await.as_deref(), Ok("local:7"));
    assert!(!open.door.asks_for_secret());
    let key = Key::generate().unwrap();
    file.append(&keyed(&key, None).keys[0]).unwrap();
    let gate = Gate::new(&settings);
    assert_eq!(gate.bearer(key.expose()).await.as_deref(), Ok("key:ci"));
    Gate::is_refused(&gate.ask(&[], HERE).await, 401, "Bearer");
    let refused = |settings: &AuthSettings| {
        let means = Means {
            token: None,
            scopes: Vec::new(),
            clock: Arc::new(FakeClock::new()),
            fetch: Arc::new(HttpFetch),
        };
        AcceptedCredentials::new(settings, means).err()
    };
    let group = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(file.path(), group).unwrap();
    assert!(matches!(refused(&settings), Some(KeysFileError::Exposed { .. })));
    let mut allowing = settings;
    allowing.allow_group_read = true;
    assert!(refused(&allowing).is_none(), "the group may read it if the configuration says so");
    std::fs::write(file.path(), "[[broken").unwrap();
    assert!(matches!(refused(&allowing), Some(KeysFileError::Wrong(_))));
}

/// ACC-1: the background work picks up a new key and ends with the server; failed sign-ins are reported.
#[tokio::test(start_paused = true)]
async fn the_background_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = KeysFile::new(folder.path().join("keys.toml"));
    let gate = Gate::new(&auth(|settings| settings.keys_file = Some(file.path().to_owned())));
    let (told, mut failed) = tokio::sync::mpsc::channel(10);
    let report = move |sign_ins: FailedSignIns| told.try_send(sign_ins).unwrap();
    let running = tokio::spawn(Arc::clone(&gate.credentials).run(report));
    let key = Key::generate().unwrap();
    Gate::is_refused(&gate.bearer_from(key.expose(), [192, 0, 2, 1].into()).await, 401, "");
    file.append(&keyed(&key, None).keys[0]).unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if gate.bearer(key.expose()).await.is_ok() {
            break;
        }
    }
    assert_eq!(gate.bearer(key.expose()).await.as_deref(), Ok("key:ci"));
    gate.advance(60);
    let told = failed.recv().await.unwrap();
    assert!(told.count >= 1 && told.reason.contains("not known"), "{told:?}");
    running.abort();
    drop(gate.credentials.unreported());
    Gate::is_refused(&gate.bearer_from("bhk_x", [192, 0, 2, 2].into()).await, 401, "");
    let last = gate.credentials.unreported();
    assert!(last.len() == 1 && last[0].origin == "192.0.2.2", "{last:?}");
}

/// ACC-2: the endpoint's token is a kind of its own. A credential of one kind is never tried as another.
#[tokio::test]
async fn kinds_do_not_mix() {
    let issuer = TestIssuer::start().await;
    let key = Key::generate().unwrap();
    let mut settings = corp(&issuer, |_| {});
    settings.keys = keyed(&key, None).keys;
    settings.local = true;
    let gate = Gate::with(&settings, Some("bh_token"), None);
    assert_eq!(gate.bearer("bh_token").await.as_deref(), Ok("token"));
    assert_eq!(gate.bearer(key.expose()).await.as_deref(), Ok("key:ci"));
    assert_eq!(gate.ask(&[], HERE).await.as_deref(), Ok("local:7"));
    let asked = issuer.asked_at_all();
    for wrong in [
        "Bearer bhk_wrong",
        "Bearer bh_toke",
        "Bearer",
        "Bearer  ",
        "Basic bh_token",
        "bh_token",
        "Bearer a b",
    ] {
        Gate::is_refused(&gate.ask(&[("authorization", wrong)], HERE).await, 401, "error=\"invalid_token\"");
    }
    assert_eq!(issuer.asked_at_all(), asked);
    let as_token = Gate::with(&auth(|_| {}), Some(key.expose()), None);
    Gate::is_refused(&as_token.bearer(key.expose()).await, 401, "invalid_token");
}

/// ACC-2 (case 9): only the `Authorization` header is read, whatever other headers hold the credential.
#[tokio::test]
async fn a_credential_elsewhere_is_ignored() {
    let key = Key::generate().unwrap();
    let gate = Gate::new(&keyed(&key, None));
    let bearer = format!("Bearer {}", key.expose());
    for header in ["cookie", "x-api-key", "proxy-authorization", "x-forwarded-authorization", "referer"] {
        let found = gate.ask(&[(header, &bearer)], HERE).await;
        Gate::is_refused(&found, 401, "Bearer");
        assert!(!found.unwrap_err().challenge.contains("error"));
    }
}

/// ACC-2 (case 10): two `Authorization` headers are 401, also if both are good.
#[tokio::test]
async fn two_authorization_headers() {
    let key = Key::generate().unwrap();
    let gate = Gate::new(&keyed(&key, None));
    let good = format!("Bearer {}", key.expose());
    for pair in [[&*good, &*good], [&good, "Bearer x"], ["Basic x", &good]] {
        let found = gate.ask(&pair.map(|value| ("authorization", value)), HERE).await;
        Gate::is_refused(&found, 401, "error=\"invalid_token\"");
    }
}

fn behind_proxy(change: impl FnOnce(&mut AuthSettings)) -> AuthSettings {
    auth(|settings| {
        settings.proxy = Some(TrustedProxy {
            proxies: vec![PeerNetwork { address: [10, 0, 0, 0].into(), prefix: 8 }],
            user_header: Some("X-User".to_owned()),
            groups_header: Some("X-Groups".to_owned()),
        });
        change(settings);
    })
}

/// ACC-2 (case 12): the proxy's header counts from the proxy's address and from a Unix socket only, by the TCP peer and never by a
/// forwarded address; twice or empty is 401.
#[tokio::test]
async fn a_proxy_names_the_user() {
    let gate = Gate::new(&behind_proxy(|_| {}));
    let proxy = from([10, 1, 2, 3].into());
    let headers = [("x-user", "ada"), ("x-groups", "build, ops,"), ("x-forwarded-for", "203.0.113.9")];
    for peer in [proxy, SOCKET] {
        let ada = gate.principal(&headers, peer).await.unwrap();
        assert_eq!((ada.as_str(), ada.kind(), ada.name()), ("proxy:ada", PrincipalKind::Proxy, "ada"));
        assert_eq!(ada.groups().collect::<Vec<_>>(), ["build", "ops"]);
    }
    let stranger = from([11, 0, 0, 1].into());
    for headers in [&headers[..], &[("x-user", "ada"), ("x-forwarded-for", "10.1.2.3")]] {
        let found = gate.ask(headers, stranger).await;
        Gate::is_refused(&found, 401, "Bearer");
        assert!(!found.unwrap_err().challenge.contains("error"), "the header is ignored");
    }
    Gate::is_refused(&gate.ask(&headers, HERE).await, 401, "Bearer");
    let (longest, long) = ("x".repeat(255), "x".repeat(256));
    assert!(gate.ask(&[("x-user", &longest)], proxy).await.is_ok());
    for wrong in [
        &[("x-user", "ada"), ("x-user", "ada")][..],
        &[("x-user", "ada"), ("x-user", "eve")],
        &[("x-user", "")],
        &[("x-user", " ")],
        &[("x-user", &long)],
        &[("x-user", "ada"), ("x-groups", "a"), ("x-groups", "b")],
    ] {
        Gate::is_refused(&gate.ask(wrong, proxy).await, 401, "error=\"invalid_token\"");
    }
    Gate::is_refused(&gate.ask(&[], proxy).await, 401, "Bearer");
}

/// ACC-2 (case 12): a proxy without a header for the user names nobody, and its requests are not the local user's. The addresses
/// that it forwards are counted one by one, so that a stranger behind it blocks nobody else there.
#[tokio::test]
async fn a_proxy_that_names_only_addresses() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", bridgehead_config::Algorithm::ES256);
    issuer.publish(&[&signer]);
    let mut settings = corp(&issuer, |_| {});
    settings.proxy = behind_proxy(|_| {}).proxy;
    settings.proxy.as_mut().unwrap().user_header = None;
    let gate = Gate::new(&settings);
    let proxy = from([10, 1, 2, 3].into());
    Gate::is_refused(&gate.ask(&[("x-user", "ada"), ("x-groups", "ops")], proxy).await, 401, "Bearer");
    let shown = async |credential: &str, forwarded: &str| {
        let bearer = format!("Bearer {credential}");
        gate.ask(&[("authorization", &bearer), ("x-forwarded-for", forwarded)], proxy).await
    };
    for _ in 0..10 {
        Gate::is_refused(&shown("wrong", "203.0.113.9").await, 401, "invalid_token");
    }
    let good = |number: u64| signer.sign(&claims(&issuer, &json!({ "jti": number })));
    Gate::is_refused(&shown(&good(1), "203.0.113.9").await, 429, "");
    assert_eq!(shown(&good(2), "203.0.113.10").await.as_deref(), Ok("corp/ada"));

    let here = auth(|auth| {
        auth.proxy = settings.proxy.clone();
        auth.proxy.as_mut().unwrap().proxies =
            vec![PeerNetwork { address: [127, 0, 0, 1].into(), prefix: 32 }];
    });
    Gate::is_refused(&Gate::new(&here).ask(&[], HERE).await, 401, "Bearer");
    assert_eq!(Gate::new(&behind_nobody()).ask(&[], HERE).await.as_deref(), Ok("local:7"));
}

/// Settings of a gateway whose proxy is elsewhere, and names nobody.
fn behind_nobody() -> AuthSettings {
    behind_proxy(|settings| settings.proxy.as_mut().unwrap().user_header = None)
}

/// ACC-2 (case 12): a stranger's use of the proxy's header is logged once, without what the header says.
#[tokio::test]
async fn a_strangers_header_is_logged_once() {
    #[derive(Clone, Default)]
    struct Log(Arc<parking_lot::Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let gate = Gate::new(&behind_proxy(|_| {}));
    for _ in 0..3 {
        Gate::is_refused(
            &gate.ask(&[("x-user", "hunter2")], from([11, 0, 0, 1].into())).await,
            401,
            "Bearer",
        );
    }
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    assert_eq!(text.matches("ignoring the proxy's header").count(), 1, "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

/// ACC-1: without configured credentials, a local caller is its user; with them it is 401, unless `auth.local` or the listener
/// says otherwise. A request through a proxy is never that of the local user.
#[tokio::test]
async fn the_local_user() {
    #[track_caller]
    fn check(found: &Result<String, Refused>, expected: Result<&str, u16>) {
        assert_eq!(found.as_deref().map_err(|refused| refused.status), expected);
    }
    let key = Key::generate().unwrap();
    let nothing = AuthSettings::default();
    let keys = keyed(&key, None);
    let with_local = auth(|settings| (settings.keys, settings.local) = (keys.keys.clone(), true));
    let public = auth(|settings| settings.public_url = Some(PUBLIC.to_owned()));
    let (open, required) = (Some(ListenerAuth::Open), Some(ListenerAuth::Required));
    for (settings, listener, expected) in [
        (&nothing, None, Ok("local:7")),
        (&nothing, required, Err(401)),
        (&keys, None, Err(401)),
        (&keys, open, Ok("local:7")),
        (&public, None, Err(401)),
        (&with_local, None, Ok("local:7")),
        (&with_local, required, Err(401)),
    ] {
        let gate = Gate::with(settings, None, listener);
        check(&gate.ask(&[], HERE).await, expected);
        check(&gate.ask(&[], SOCKET).await, expected);
        assert_eq!(gate.door.asks_for_secret(), expected.is_err());
        for forwarded in ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-anything"] {
            let answer = gate.ask(&[(forwarded, "for=192.0.2.1")], HERE).await;
            check(&answer, Err(401));
        }
        let elsewhere = Peer { address: Some([192, 0, 2, 1].into()), ..HERE };
        check(&gate.ask(&[], elsewhere).await, Err(401));
    }
    let by_token = Gate::with(&nothing, Some("bh_token"), None);
    check(&by_token.ask(&[], HERE).await, Err(401));
    let refused = Peer { user: PeerUser::Refused(Some(8)), ..HERE };
    check(&Gate::new(&nothing).ask(&[], refused).await, Err(403));
    check(&Gate::new(&with_local).ask(&[], refused).await, Err(401));

    let local_proxy = behind_proxy(|settings| {
        settings.local = true;
        settings
            .proxy
            .as_mut()
            .unwrap()
            .proxies
            .push(PeerNetwork { address: [127, 0, 0, 1].into(), prefix: 32 });
    });
    check(&Gate::new(&local_proxy).ask(&[], HERE).await, Err(401));
    let address = "127.0.0.1:1".parse().unwrap();
    assert_eq!(by_token.door.meet(address, address), PeerUser::Refused(None), "nobody is looked up in vain");
    assert_eq!(Gate::new(&nothing).door.meet(address, address), PeerUser::Admitted(None));
    assert_eq!(
        Gate::new(&nothing).door.meet("192.0.2.1:1".parse().unwrap(), address),
        PeerUser::Refused(None)
    );
    assert_eq!(Gate::new(&nothing).door.meet_user(Some(5)), PeerUser::Admitted(Some(5)));
}

/// ACC-2: unknown credentials slow down their address, before any work; known ones pass all the time.
#[tokio::test]
async fn unknown_credentials_are_throttled() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", bridgehead_config::Algorithm::ES256);
    issuer.publish(&[&signer]);
    let key = Key::generate().unwrap();
    let mut settings = corp(&issuer, |_| {});
    settings.keys = keyed(&key, None).keys;
    let gate = Gate::with(&settings, Some("bh_token"), None);
    let eve: IpAddr = [192, 0, 2, 1].into();
    let sign = |number: u64| signer.sign(&claims(&issuer, &json!({ "jti": number })));
    let first = sign(0);
    assert!(gate.bearer_from(&first, eve).await.is_ok());
    for number in 0..30 {
        assert_eq!(
            gate.bearer_from(&sign(number), eve).await.as_deref(),
            Ok("corp/ada"),
            "good tokens cost nothing"
        );
    }
    let unknown = Key::generate().unwrap();
    let forged = format!("{}x", sign(1));
    for wrong in [unknown.expose(), "bhk_x", &forged, "opaque", &"x".repeat(9000)].repeat(2) {
        Gate::is_refused(&gate.bearer_from(wrong, eve).await, 401, "error=\"invalid_token\"");
    }
    for wrong in [unknown.expose(), "bhk_x", &forged, "opaque", &sign(99)] {
        let found = gate.bearer_from(wrong, eve).await;
        Gate::is_refused(&found, 429, "");
        assert_eq!(found.unwrap_err().retry_after, Some(Duration::from_secs(6)));
    }
    for known in [key.expose(), "bh_token", &first] {
        assert!(gate.bearer_from(known, eve).await.is_ok(), "a known credential passes");
    }
    assert_eq!(gate.bearer_from(&sign(99), [192, 0, 2, 2].into()).await.as_deref(), Ok("corp/ada"));
    gate.advance(6);
    assert_eq!(gate.bearer_from(&sign(100), eve).await.as_deref(), Ok("corp/ada"));
}

/// ACC-2 (case 12): a forwarded address counts for the throttle only if a trusted proxy forwards it, and only its last hop.
#[tokio::test]
async fn a_forwarded_address_is_believed_from_proxies() {
    let gate = Gate::new(&behind_proxy(|_| {}));
    let attempt = async |peer: [u8; 4], forwarded: &str| {
        let headers = [("authorization", "Bearer wrong"), ("x-forwarded-for", forwarded)];
        gate.ask(&headers, from(peer.into())).await.unwrap_err().status
    };
    for number in 0..10 {
        assert_eq!(attempt([10, 0, 0, 1], &format!("198.51.100.{number}, 203.0.113.9")).await, 401);
    }
    assert_eq!(attempt([10, 0, 0, 1], "198.51.100.77, 203.0.113.9:4711").await, 429);
    assert_eq!(attempt([10, 0, 0, 2], "[203.0.113.9]").await, 429, "through another proxy");
    let twice = [
        ("authorization", "Bearer wrong"),
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    assert_eq!(
        gate.ask(&twice, from([10, 0, 0, 1].into())).await.unwrap_err().status,
        429,
        "the last header counts"
    );
    assert_eq!(attempt([10, 0, 0, 1], "203.0.113.10").await, 401);
    assert_eq!(attempt([203, 0, 113, 9], "198.51.100.1").await, 429, "the address itself");
    for number in 0..10 {
        assert_eq!(attempt([192, 0, 2, 1], &format!("203.0.113.{number}")).await, 401);
    }
    assert_eq!(attempt([192, 0, 2, 1], "203.0.113.200").await, 429, "a stranger's header is not believed");
}
