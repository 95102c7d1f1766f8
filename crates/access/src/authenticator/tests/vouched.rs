use bridgehead_config::Introspection;

use super::*;

fn asking(issuer: &TestIssuer) -> AuthSettings {
    corp(issuer, |known| {
        known.introspection = Some(Introspection {
            url: None,
            client_id: "gateway".to_owned(),
            client_secret: Secret::new("hunter2"),
        });
    })
}

fn active(issuer: &TestIssuer, changed: &Value) -> Value {
    let mut claims = claims(issuer, changed);
    claims["active"] = json!(true);
    claims
}

/// ACC-2 (case 8): an opaque token is good if its issuer says so: believed for 60 seconds, and refused for 10.
#[tokio::test]
async fn opaque_tokens() {
    let issuer = TestIssuer::start().await;
    issuer.vouch("good", active(&issuer, &json!({"scope": "a"})));
    let gate = Gate::new(&asking(&issuer));
    gate.credentials.issuers.refresh_due().await;
    assert_eq!(issuer.asked_at_all(), 0, "the keys of an issuer that is asked are of no use");
    for _ in 0..3 {
        assert_eq!(gate.bearer("good").await.as_deref(), Ok("corp/ada"));
        Gate::is_refused(&gate.bearer("bad").await, 401, "error=\"invalid_token\"");
    }
    assert_eq!(issuer.asked("/introspect"), 2, "one request for each token");
    issuer.vouch("bad", active(&issuer, &json!({})));
    gate.advance(9);
    Gate::is_refused(&gate.bearer("bad").await, 401, "error=\"invalid_token\"");
    gate.advance(1);
    assert_eq!(gate.bearer("bad").await.as_deref(), Ok("corp/ada"));

    for (length, expected) in [(8192, Ok("corp/ada")), (8193, Err(401))] {
        let long = "x".repeat(length);
        issuer.vouch(&long, active(&issuer, &json!({})));
        let found = gate.bearer(&long).await;
        assert_eq!(found.as_deref().map_err(|refused| refused.status), expected);
    }
    let headers = [("authorization", "Bearer good")];
    let held = gate.principal(&headers, from([9; 4].into())).await.unwrap();
    issuer.vouch("good", json!({"active": false}));
    gate.advance(49);
    assert_eq!(gate.bearer("good").await.as_deref(), Ok("corp/ada"), "believed for 60 s");
    gate.advance(1);
    assert!(!held.validity().has_ended());
    Gate::is_refused(&gate.bearer("good").await, 401, "error=\"invalid_token\"");
    assert!(held.validity().has_ended(), "what its holder kept open ends");
}

/// ACC-2 (case 8): what the holder of a token keeps open ends when the token is revoked, however often it was found good before:
/// what was opened first, and what was opened after each look.
#[tokio::test]
async fn a_revocation_ends_what_was_opened_before_the_last_check() {
    let issuer = TestIssuer::start().await;
    issuer.vouch("good", active(&issuer, &json!({"exp": NOW + 3600})));
    issuer.vouch("other", active(&issuer, &json!({"sub": "eve"})));
    let gate = Gate::new(&asking(&issuer));
    let show = async |token: &str| {
        let bearer = format!("Bearer {token}");
        gate.principal(&[("authorization", &bearer)], from([9; 4].into())).await
    };
    let other = show("other").await.unwrap();
    let mut held = Vec::new();
    for round in 1..=3 {
        held.push(show("good").await.unwrap());
        held.push(show("good").await.unwrap());
        assert_eq!(issuer.asked("/introspect"), 1 + round, "asked once in 60 s");
        gate.advance(60);
    }
    assert!(held.iter().all(|held| !held.validity().is_revoked()), "a check that it passes ends nothing");
    issuer.vouch("good", json!({"active": false}));
    Gate::is_refused(&gate.bearer("good").await, 401, "error=\"invalid_token\"");
    assert!(held.iter().all(|held| held.validity().is_revoked()), "{:?}", held.len());
    assert!(!other.validity().is_revoked(), "another token goes on");
    // A token that is good again, which some issuers allow, begins anew.
    issuer.vouch("good", active(&issuer, &json!({})));
    gate.advance(10);
    let again = show("good").await.unwrap();
    assert!(!again.validity().is_revoked() && held.iter().all(|held| held.validity().is_revoked()));
    issuer.vouch("good", json!({"active": false}));
    gate.advance(60);
    Gate::is_refused(&gate.bearer("good").await, 401, "error=\"invalid_token\"");
    assert!(again.validity().is_revoked());
}

/// ACC-2: a token that its issuer calls inactive counts against the address that shows it. One that is good but lacks scopes does
/// not, because its holder is no stranger; nor does one about which the issuer says nothing.
#[tokio::test]
async fn inactive_tokens_are_throttled() {
    let issuer = TestIssuer::start().await;
    let mut settings = asking(&issuer);
    settings.issuers[0].required_scopes = vec!["use".to_owned()];
    let gate = Gate::new(&settings);
    let (eve, ada, tim): (IpAddr, IpAddr, IpAddr) =
        ([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), [192, 0, 2, 3].into());
    for number in 0..10 {
        let found = gate.bearer_from(&format!("bad-{number}"), eve).await;
        Gate::is_refused(&found, 401, "error=\"invalid_token\"");
    }
    assert_eq!(issuer.asked("/introspect"), 10);
    let found = gate.bearer_from("bad-10", eve).await;
    Gate::is_refused(&found, 429, "");
    assert_eq!(found.unwrap_err().retry_after, Some(Duration::from_secs(6)));
    assert_eq!(issuer.asked("/introspect"), 10, "the issuer is not asked for a throttled address");
    Gate::is_refused(&gate.bearer_from("bad-9", eve).await, 401, "error=\"invalid_token\"");
    for number in 0..15 {
        let token = format!("narrow-{number}");
        issuer.vouch(&token, active(&issuer, &json!({"scope": "other"})));
        Gate::is_refused(&gate.bearer_from(&token, ada).await, 403, "insufficient_scope");
    }
    issuer.raw_page("/introspect", (500, "application/json", "", String::new()));
    for number in 0..15 {
        Gate::is_refused(&gate.bearer_from(&format!("new-{number}"), tim).await, 503, "");
    }
}

/// ACC-2 (case 8): a token that its issuer vouches for is still checked: for its audience, its times and its subject.
#[tokio::test]
async fn an_issuers_word_is_checked() {
    let issuer = TestIssuer::start().await;
    let gate = Gate::new(&asking(&issuer));
    for (token, changed) in [
        ("audience", json!({"aud": "other"})),
        ("expired", json!({"exp": NOW - 31})),
        ("subject", json!({"sub": null})),
        ("issuer", json!({"iss": "https://other.example"})),
    ] {
        issuer.vouch(token, active(&issuer, &changed));
        Gate::is_refused(&gate.bearer(token).await, 401, "error=\"invalid_token\"");
    }
    issuer.vouch("short", active(&issuer, &json!({"exp": NOW + 10})));
    assert_eq!(gate.bearer("short").await.as_deref(), Ok("corp/ada"));
    gate.advance(40);
    issuer.vouch("short", json!({"active": false}));
    Gate::is_refused(&gate.bearer("short").await, 401, "error=\"invalid_token\"");
    assert_eq!(issuer.asked("/introspect"), 6, "a token is not believed after its expiry");
    // A token that looks like a JWT of this issuer is introspected as well.
    let signer = Signer::new("one", bridgehead_config::Algorithm::ES256);
    let token = signer.sign(&claims(&issuer, &json!({})));
    issuer.vouch(&token, active(&issuer, &json!({"sub": "eve"})));
    assert_eq!(gate.bearer(&token).await.as_deref(), Ok("corp/eve"));
    assert_eq!(issuer.asked("/jwks"), 0, "and never verified");
}

/// ACC-2 (case 5): a JWT is told only to the issuer that it names, even if its header cannot be used. What is not a JWT goes to
/// the issuer that is asked about tokens.
#[tokio::test]
async fn a_token_of_one_issuer_is_not_told_to_another() {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let (signing, asked) = (TestIssuer::start().await, TestIssuer::start().await);
    let mut settings = asking(&asked);
    settings.issuers.insert(0, Issuer::new("signing", &signing.url));
    let gate = Gate::new(&settings);
    let of = |issuer: &TestIssuer, header: &str| {
        format!("{}.{}.c2ln", encode(header), encode(&claims(issuer, &json!({})).to_string()))
    };
    let unusable = [r#"{"alg":"ES256","kid":7}"#, r#"{"kid":"one"}"#, r#"{"alg":1}"#, "{}"];
    for header in unusable {
        let found = gate.bearer(&of(&signing, header)).await;
        Gate::is_refused(&found, 401, "error=\"invalid_token\"");
        assert!(found.unwrap_err().reason.contains("header cannot be read"), "{header}");
        let nameless = format!("{}.{}.c2ln", encode(header), encode("no claims"));
        Gate::is_refused(&gate.bearer(&nameless).await, 401, "error=\"invalid_token\"");
    }
    assert_eq!((signing.asked_at_all(), asked.asked_at_all()), (0, 0));
    for header in unusable {
        let token = of(&asked, header);
        asked.vouch(&token, active(&asked, &json!({})));
        assert_eq!(gate.bearer(&token).await.as_deref(), Ok("corp/ada"), "its own issuer reads it");
    }
    for (number, opaque) in ["a.b.c", "Nw.b.c", &format!("{}.b", encode("{}"))].into_iter().enumerate() {
        Gate::is_refused(&gate.bearer(opaque).await, 401, "error=\"invalid_token\"");
        assert_eq!(asked.asked("/introspect"), unusable.len() + number + 1, "{opaque}");
    }
}

/// ACC-2 (case 8): if the issuer does not answer, or not usefully, the request may be tried again (503), and nothing is remembered.
#[tokio::test]
async fn an_issuer_that_does_not_answer() {
    let issuer = TestIssuer::start().await;
    issuer.vouch("good", active(&issuer, &json!({})));
    let gate = Gate::new(&asking(&issuer));
    issuer.stop().await;
    let found = gate.bearer("good").await;
    Gate::is_refused(&found, 503, "");
    assert_eq!(found.unwrap_err().retry_after, Some(ISSUER_RETRY));
    issuer.start_again().await;
    let json = "application/json";
    for page in [
        (500, json, "", String::new()),
        (401, json, "", "{\"active\":true}".to_owned()),
        (200, "text/html", "", "<html>".to_owned()),
        (200, json, "", "{\"active\":\"true\"}".to_owned()),
    ] {
        issuer.raw_page("/introspect", page);
        Gate::is_refused(&gate.bearer("good").await, 503, "");
    }
    issuer.raw_page("/introspect", (200, json, "", active(&issuer, &json!({})).to_string()));
    assert_eq!(gate.bearer("good").await.as_deref(), Ok("corp/ada"));
}

/// ACC-2: an issuer is asked over https, except on this machine: otherwise its answers and the gateway's secret could be read.
#[tokio::test]
async fn an_issuer_without_encryption_is_not_asked() {
    let issuer = TestIssuer::start().await;
    let mut settings = asking(&issuer);
    let url = Some("http://192.0.2.1/introspect".parse().unwrap());
    settings.issuers[0].introspection.as_mut().unwrap().url = url;
    Gate::is_refused(&Gate::new(&settings).bearer("good").await, 503, "");
    let settings = corp(&issuer, |known| known.jwks = Some("http://192.0.2.1/jwks".parse().unwrap()));
    let gate = Gate::new(&settings);
    gate.credentials.issuers.refresh_due().await;
    let problem = &gate.credentials.issuer_problems()[0].1;
    assert!(problem.contains("is not an https address"), "{problem}");
    assert_eq!(issuer.asked_at_all(), 0);
}

/// ACC-2 (case 8): many requests with one new token are one request to its issuer.
#[tokio::test]
async fn one_request_for_many() {
    let issuer = TestIssuer::start().await;
    issuer.vouch("good", active(&issuer, &json!({})));
    let gate = Gate::new(&asking(&issuer));
    let all = futures_util::future::join_all((0..50).map(|_| gate.bearer("good"))).await;
    assert!(all.iter().all(|found| found.as_deref() == Ok("corp/ada")), "{all:?}");
    assert_eq!(issuer.asked("/introspect"), 1);
}

/// ACC-2: what a token opened ends when its issuer revokes the token, although nobody shows it again; nothing is asked about a
/// token whose holder has nothing open.
#[tokio::test]
async fn open_tokens_are_asked_about_again() {
    let issuer = TestIssuer::start().await;
    for token in ["open", "closed"] {
        issuer.vouch(token, active(&issuer, &json!({})));
    }
    let gate = Gate::new(&asking(&issuer));
    let held = gate.principal(&[("authorization", "Bearer open")], from([9; 4].into())).await.unwrap();
    gate.bearer("closed").await.unwrap();
    let recheck = async |seconds| {
        gate.advance(seconds);
        gate.credentials.issuers.recheck_open().await;
        issuer.asked("/introspect")
    };
    assert_eq!(recheck(59).await, 2);
    assert_eq!(recheck(1).await, 3, "only the one that is held");
    assert!(!held.validity().has_ended());
    issuer.vouch("open", json!({"active": false}));
    assert_eq!(recheck(59).await, 3);
    assert_eq!(recheck(1).await, 4, "once a minute, by the principal of before too");
    assert!(held.validity().has_ended());
    assert_eq!(recheck(60).await, 4);
}

/// ACC-2: good tokens are not refused for being many: one that is shown twenty times at once, those of thirty users behind one
/// address, and one that was good before, whatever others show.
#[tokio::test]
async fn good_tokens_pass_together() {
    let issuer = TestIssuer::start().await;
    for number in 0..=30 {
        issuer.vouch(&format!("good-{number}"), active(&issuer, &json!({})));
    }
    let gate = Gate::new(&asking(&issuer));
    let address = IpAddr::from([192, 0, 2, 1]);
    let same = (0..20).map(|_| gate.bearer_from("good-0", address));
    for found in futures_util::future::join_all(same).await {
        assert_eq!(found.as_deref(), Ok("corp/ada"));
    }
    assert_eq!(issuer.asked("/introspect"), 1, "one request for one token");
    let users: Vec<String> = (1..=30).map(|number| format!("good-{number}")).collect();
    let users = users.iter().map(|token| gate.bearer_from(token, address));
    for found in futures_util::future::join_all(users).await {
        assert_eq!(found.as_deref(), Ok("corp/ada"));
    }
    let wrong: Vec<String> = (0..100).map(|number| format!("bad-{number}")).collect();
    let asked = issuer.asked("/introspect");
    let wrong = wrong.iter().map(|token| gate.bearer_from(token, address));
    let refused = futures_util::future::join_all(wrong).await;
    let checked = issuer.asked("/introspect") - asked;
    assert!((10..=14).contains(&checked), "{checked} of 100 wrong tokens were checked");
    assert!(
        refused.iter().all(|found| matches!(found, Err(refused) if [401, 429].contains(&refused.status)))
    );
    assert_eq!(gate.bearer_from("good-1", address).await.as_deref(), Ok("corp/ada"));
    gate.advance(60);
    for number in 200..220 {
        let _ = gate.bearer_from(&format!("bad-{number}"), address).await;
    }
    let stale = gate.bearer_from("good-1", address).await;
    assert_eq!(stale.as_deref(), Ok("corp/ada"), "it was good before, and is checked again");
}
