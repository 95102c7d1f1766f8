use bridgehead_config::Algorithm;
use jsonwebtoken::EncodingKey;

use super::*;

/// A gateway with the issuer's keys, as after the start.
async fn started(settings: &AuthSettings) -> Gate {
    let gate = Gate::new(settings);
    gate.credentials.issuers.refresh_due().await;
    gate
}

/// ACC-2 (case 1): without credentials, the challenge names the metadata and all scopes, and no error.
#[tokio::test]
async fn the_first_challenge() {
    let issuer = TestIssuer::start().await;
    let gate = Gate::new(&corp(&issuer, |issuer| issuer.required_scopes = vec!["use".to_owned()]));
    let refused = gate.ask(&[], from([127, 0, 0, 1].into())).await.unwrap_err();
    let url = "https://gate.example/.well-known/oauth-protected-resource/mcp";
    assert_eq!(refused.status, 401);
    assert_eq!(refused.challenge, format!("Bearer resource_metadata=\"{url}\", scope=\"use repo:write\""));
    let host =
        [("host", "evil.example"), ("x-forwarded-host", "evil.example"), ("x-forwarded-proto", "http")];
    assert_eq!(gate.ask(&host, from([127, 0, 0, 1].into())).await.unwrap_err().challenge, refused.challenge);
    let metadata: Value = serde_json::from_slice(&gate.door.metadata().unwrap()).unwrap();
    assert_eq!(
        (&metadata["resource"], &metadata["authorization_servers"]),
        (&json!(PUBLIC), &json!([issuer.url]))
    );
    assert!(gate.door.asks_for_secret());
    let keys_only = Gate::with(&AuthSettings::default(), Some("bh_secret"), None);
    assert_eq!(keys_only.ask(&[], from([9; 4].into())).await.unwrap_err().challenge, "Bearer");
    assert!(keys_only.door.metadata().is_none());
}

/// ACC-2: a token of each accepted algorithm names its holder, with the keys found through the issuer's metadata.
#[tokio::test]
async fn a_good_token() {
    let issuer = TestIssuer::start().await;
    let signers: Vec<Signer> =
        Algorithm::ALL.iter().map(|algorithm| Signer::new(algorithm.as_str(), *algorithm)).collect();
    issuer.publish(&signers.iter().collect::<Vec<_>>());
    let gate = started(&corp(&issuer, |issuer| issuer.groups_claim = Some("groups".to_owned()))).await;
    for signer in &signers {
        let token = signer.sign(&claims(&issuer, &json!({"groups": ["build"], "scope": "a b"})));
        let headers = [("authorization", &*format!("bearer {token}"))];
        let principal = gate.principal(&headers, from([9, 0, 0, 1].into())).await.unwrap();
        assert_eq!((principal.as_str(), principal.kind()), ("corp/ada", PrincipalKind::Issuer));
        assert_eq!(principal.groups().collect::<Vec<_>>(), ["build"]);
        assert_eq!(principal.scopes().collect::<Vec<_>>(), ["a", "b"]);
    }
    assert_eq!(issuer.asked("/jwks"), 1);
}

/// ACC-2: a verified token is known for five minutes by its digest, so its issuer and its signature are not needed; it is not known
/// beyond its expiry, also when the clock is set.
#[tokio::test]
async fn a_verified_token_is_remembered() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", Algorithm::ES256);
    issuer.publish(&[&signer]);
    let gate = started(&corp(&issuer, |_| {})).await;
    let token = signer.sign(&claims(&issuer, &json!({})));
    let short = signer.sign(&claims(&issuer, &json!({"exp": NOW + 60})));
    for token in [&token, &short] {
        assert_eq!(gate.bearer(token).await.as_deref(), Ok("corp/ada"));
        let header =
            HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap())]);
        let again = gate.door.authenticate(&header, from([9; 4].into()));
        assert!(matches!(again, Either::Left(_)), "the answer is known at once");
    }
    gate.advance(91);
    Gate::is_refused(&gate.bearer(&short).await, 401, "error=\"invalid_token\"");
    assert_eq!(gate.bearer(&token).await.as_deref(), Ok("corp/ada"));
    let digest = keys::digest(token.as_bytes());
    gate.advance(208);
    assert!(gate.credentials.issuers.known(&digest, gate.clock.now()).is_some());
    gate.advance(2);
    assert!(gate.credentials.issuers.known(&digest, gate.clock.now()).is_none(), "five minutes are over");
    assert_eq!(gate.bearer(&token).await.as_deref(), Ok("corp/ada"), "and it is verified again");
    gate.clock.set_wall(jiff::Timestamp::from_second(NOW + 3600 + 30).unwrap());
    Gate::is_refused(&gate.bearer(&token).await, 401, "error=\"invalid_token\"");
    gate.clock.set_wall(jiff::Timestamp::from_second(NOW).unwrap());
    assert_eq!(gate.bearer(&token).await.as_deref(), Ok("corp/ada"), "the clock was set back");
}

/// ACC-2 (case 4): expired, not valid yet, a string as expiry, wrong issuer or audience, no subject: 401 with `invalid_token`.
#[tokio::test]
async fn wrong_claims() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", Algorithm::ES256);
    issuer.publish(&[&signer]);
    let gate = started(&corp(&issuer, |_| {})).await;
    for changed in [
        json!({"exp": NOW - 31}),
        json!({"nbf": NOW + 31}),
        json!({"exp": "9999999999"}),
        json!({"exp": null}),
        json!({"iss": "https://other.example"}),
        json!({"iss": format!("{}/", issuer.url)}),
        json!({"aud": "https://other.example/mcp"}),
        json!({"aud": null}),
        json!({"sub": null}),
    ] {
        let found = gate.bearer(&signer.sign(&claims(&issuer, &changed))).await;
        Gate::is_refused(&found, 401, "Bearer error=\"invalid_token\", resource_metadata=");
    }
    assert_eq!(gate.bearer(&signer.sign(&claims(&issuer, &json!({})))).await.as_deref(), Ok("corp/ada"));
}

/// ACC-2 (case 5): no algorithm, a symmetric one with the public key, another issuer's key, an id token, a wrong type: 401, and the
/// issuer is not asked.
#[tokio::test]
async fn forged_tokens_cause_no_request() {
    let (issuer, other) = (TestIssuer::start().await, TestIssuer::start().await);
    let (signer, foreign) = (Signer::new("one", Algorithm::RS256), Signer::new("two", Algorithm::RS256));
    issuer.publish(&[&signer]);
    other.publish(&[&foreign]);
    let mut settings = corp(&issuer, |issuer| issuer.algorithms = vec![Algorithm::RS256, Algorithm::ES256]);
    settings.issuers.push(Issuer::new("other", &other.url));
    let gate = started(&settings).await;
    let asked = (issuer.asked_at_all(), other.asked_at_all());
    let good = claims(&issuer, &json!({}));
    let of_header = |header: Value| {
        use base64::Engine;
        let encode =
            |value: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", encode(&header), encode(&good))
    };
    let with = |change: &dyn Fn(&mut jsonwebtoken::Header)| {
        let mut header = signer.header();
        change(&mut header);
        jsonwebtoken::encode(&header, &good, &signer.key).unwrap()
    };
    let mut symmetric = signer.header();
    symmetric.alg = jsonwebtoken::Algorithm::HS256;
    let public = EncodingKey::from_secret(signer.public["n"].as_str().unwrap().as_bytes());
    let mut swapped = signer.sign(&good);
    swapped.replace_range(swapped.len() - 8..swapped.len() - 4, "AAAA");
    let forged = [
        ("none", of_header(json!({"alg": "none", "kid": "one"}))),
        ("symmetric", jsonwebtoken::encode(&symmetric, &good, &public).unwrap()),
        (
            "not in the list",
            Signer { algorithm: jsonwebtoken::Algorithm::PS256, ..signer.clone() }.sign(&good),
        ),
        ("foreign key", foreign.sign(&good)),
        ("foreign key with our id", {
            let mut header = foreign.header();
            header.kid = Some("one".to_owned());
            jsonwebtoken::encode(&header, &good, &foreign.key).unwrap()
        }),
        ("changed signature", swapped),
        ("another kind of key", of_header(json!({"alg": "ES256", "kid": "one"}))),
        ("id token", signer.sign(&claims(&issuer, &json!({"nonce": "n"})))),
        ("id token", signer.sign(&claims(&issuer, &json!({"at_hash": "h"})))),
        ("type", with(&|header| header.typ = Some("logout+jwt".to_owned()))),
        ("crit", with(&|header| header.crit = Some(vec!["b64".to_owned()]))),
        ("no token", "a.b.c".to_owned()),
        ("opaque", "opaque".to_owned()),
        ("long", "x".repeat(9000)),
    ];
    for (what, token) in &forged {
        let found = gate.bearer(token).await;
        assert_eq!(found.as_ref().map_err(|refused| refused.status), Err(401), "{what}");
        Gate::is_refused(&found, 401, "error=\"invalid_token\"");
    }
    assert_eq!((issuer.asked_at_all(), other.asked_at_all()), asked);
    assert_eq!(
        gate.bearer(&with(&|header| header.typ = Some("at+jwt".to_owned()))).await.as_deref(),
        Ok("corp/ada")
    );
    assert_eq!(gate.bearer(&with(&|header| header.typ = None)).await.as_deref(), Ok("corp/ada"));
    assert_eq!(
        gate.bearer(&with(&|header| header.kid = None)).await.as_deref(),
        Ok("corp/ada"),
        "the only key"
    );
}

/// ACC-2 (case 5): an algorithm that the settings of the issuer do not name is refused, although the key would be good for it:
/// a key that names no algorithm of its own is for all of its kind.
#[tokio::test]
async fn only_named_algorithms_are_accepted() {
    let issuer = TestIssuer::start().await;
    let mut signer = Signer::new("one", Algorithm::RS256);
    signer.public.as_object_mut().unwrap().remove("alg");
    issuer.publish(&[&signer]);
    let by = |algorithm| Signer { algorithm, ..signer.clone() }.sign(&claims(&issuer, &json!({})));
    let (rs, ps) = (by(jsonwebtoken::Algorithm::RS256), by(jsonwebtoken::Algorithm::PS256));
    for (named, accepted, refused) in [
        (Algorithm::RS256, &rs, Some(&ps)),
        (Algorithm::PS256, &ps, Some(&rs)),
        (Algorithm::ES256, &rs, None),
    ] {
        let all = if refused.is_some() { vec![named] } else { vec![named, Algorithm::RS256] };
        let gate = started(&corp(&issuer, |issuer| issuer.algorithms = all)).await;
        assert_eq!(gate.bearer(accepted).await.as_deref(), Ok("corp/ada"), "{named:?}");
        let Some(refused) = refused else { continue };
        let found = gate.bearer(refused).await;
        Gate::is_refused(&found, 401, "error=\"invalid_token\"");
        assert!(found.unwrap_err().reason.contains("algorithm is not accepted"), "{named:?}");
    }
}

/// ACC-2 (case 6): a rotated key is found while the gateway runs; a thousand forged key ids cause one request in 30 seconds.
#[tokio::test]
async fn keys_rotate() {
    let issuer = TestIssuer::start().await;
    let (old, new) = (Signer::new("old", Algorithm::ES256), Signer::new("new", Algorithm::ES256));
    issuer.publish(&[&old]);
    let gate = started(&corp(&issuer, |_| {})).await;
    issuer.publish(&[&old, &new]);
    assert_eq!(gate.bearer(&new.sign(&claims(&issuer, &json!({})))).await.as_deref(), Ok("corp/ada"));
    assert_eq!(issuer.asked("/jwks"), 2);
    let forge = |number: usize| {
        let mut header = old.header();
        header.kid = Some(format!("forged-{number}"));
        jsonwebtoken::encode(&header, &claims(&issuer, &json!({})), &old.key).unwrap()
    };
    let mut sent = 0;
    for seconds in [29, 1, 0, 29, 1] {
        gate.advance(seconds);
        for _ in 0..200 {
            sent += 1;
            Gate::is_refused(&gate.bearer(&forge(sent)).await, 401, "invalid_token");
        }
    }
    assert_eq!(sent, 1000);
    let asked = issuer.asked("/jwks");
    assert!((18..=32).contains(&asked), "sixteen at once, and one in five seconds: {asked}");
    gate.advance(60);
    Gate::is_refused(&gate.bearer(&forge(1)).await, 401, "invalid_token");
    assert_eq!(issuer.asked("/jwks"), asked, "a key id that was missing is not asked for again");
    let mut nameless = new.header();
    nameless.kid = None;
    let nameless = jsonwebtoken::encode(&nameless, &claims(&issuer, &json!({})), &new.key).unwrap();
    Gate::is_refused(&gate.bearer(&nameless).await, 401, "invalid_token");
    assert_eq!(issuer.asked("/jwks"), asked, "without a key id there is nothing to ask for");
    // An address that forges is slowed down before it has used up what a new key needs.
    let (eve, newest) = (IpAddr::from([192, 0, 2, 1]), Signer::new("newest", Algorithm::ES256));
    for number in 2000..2100 {
        assert!(gate.bearer_from(&forge(number), eve).await.is_err());
    }
    issuer.publish(&[&old, &new, &newest]);
    let rotated = newest.sign(&claims(&issuer, &json!({})));
    assert_eq!(gate.bearer(&rotated).await.as_deref(), Ok("corp/ada"));
    assert_eq!(issuer.asked("/.well-known/openid-configuration"), 1);
}

/// ACC-2 (case 7): keys that cannot be read at the start answer 503 until they can; later, the old ones stay in use for a day.
#[tokio::test]
async fn an_issuer_that_is_down() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", Algorithm::ES256);
    issuer.publish(&[&signer]);
    issuer.stop().await;
    let gate = started(&corp(&issuer, |_| {})).await;
    let fresh = |number: u64| signer.sign(&claims(&issuer, &json!({"jti": number, "exp": NOW + 400_000})));
    let found = gate.bearer(&fresh(0)).await;
    Gate::is_refused(&found, 503, "");
    assert_eq!(found.unwrap_err().retry_after, Some(ISSUER_RETRY));
    assert!(gate.credentials.issuer_problems()[0].1.contains("metadata cannot be found"));
    issuer.start_again().await;
    Gate::is_refused(&gate.bearer(&fresh(1)).await, 503, "");
    gate.advance(5);
    assert_eq!(gate.bearer(&fresh(2)).await.as_deref(), Ok("corp/ada"), "a token asks for the keys again");
    assert_eq!(gate.credentials.issuer_problems(), []);
    let asked = issuer.asked("/jwks");
    gate.advance(15 * 60 - 1);
    gate.credentials.issuers.refresh_due().await;
    assert_eq!(issuer.asked("/jwks"), asked, "fresh keys are not asked for");
    issuer.stop().await;
    gate.advance(1);
    gate.credentials.issuers.refresh_due().await;
    assert!(!gate.credentials.issuer_problems().is_empty());
    assert_eq!(gate.bearer(&fresh(3)).await.as_deref(), Ok("corp/ada"), "old keys stay in use");
    gate.advance(24 * 3600 - 15 * 60);
    assert_eq!(gate.bearer(&fresh(4)).await.as_deref(), Ok("corp/ada"));
    gate.advance(1);
    Gate::is_refused(&gate.bearer(&fresh(5)).await, 503, "");
    issuer.start_again().await;
    gate.advance(60);
    gate.credentials.issuers.refresh_due().await;
    assert_eq!(gate.bearer(&fresh(6)).await.as_deref(), Ok("corp/ada"));
}

/// ACC-2: an issuer that answers HTML, a redirect, another issuer's metadata or 10 000 keys changes nothing, and the problem says so.
#[tokio::test]
async fn wrong_answers_of_an_issuer() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", Algorithm::ES256);
    issuer.publish(&[&signer]);
    let jwks = format!("{}/jwks", issuer.url).parse().unwrap();
    let gate = started(&corp(&issuer, |issuer| issuer.jwks = Some(jwks))).await;
    let many: Vec<Value> = (0..10_000)
        .map(|number| {
            let mut key = signer.public.clone();
            key["kid"] = json!(format!("key-{number}"));
            key
        })
        .collect();
    let json = "application/json";
    let answers = [
        (
            (200, "text/html; charset=utf-8", "", "<html>sign in</html>".to_owned()),
            "an HTML page instead of JSON",
        ),
        (
            (200, "text/html", "", json!({"keys": [signer.public]}).to_string()),
            "an HTML page instead of JSON",
        ),
        ((200, json, "", "<!doctype html>".to_owned()), "an HTML page instead of JSON"),
        ((302, json, "location: /other\r\n", String::new()), "status 302; redirects are not followed"),
        ((500, json, "", String::new()), "status 500"),
        ((200, json, "", "{}".to_owned()), "not the expected JSON"),
        (
            (200, json, "", json!({"keys": [{"kty": "oct", "k": "AAAA", "kid": "one"}]}).to_string()),
            "there is no key",
        ),
        ((200, json, "", json!({ "keys": many }).to_string()), "more keys than any issuer needs"),
    ];
    for (page, told) in answers {
        issuer.raw_page("/jwks", page);
        gate.advance(24 * 3600 / 9);
        gate.credentials.issuers.refresh_due().await;
        let problems = gate.credentials.issuer_problems();
        assert!(problems[0].1.contains(told), "{problems:?}");
    }
    let token = signer.sign(&claims(&issuer, &json!({"exp": NOW + 400_000})));
    assert_eq!(gate.bearer(&token).await.as_deref(), Ok("corp/ada"), "the first keys are still in use");
    let used: Vec<Value> = many.into_iter().take(65).collect();
    issuer.page("/jwks", &json!({ "keys": used }));
    let asked = issuer.asked("/jwks");
    gate.advance(59);
    gate.credentials.issuers.refresh_due().await;
    assert_eq!(issuer.asked("/jwks"), asked, "an issuer that fails is asked once a minute");
    gate.advance(1);
    gate.credentials.issuers.refresh_due().await;
    let by = |kid: &str| {
        let mut header = signer.header();
        header.kid = Some(kid.to_owned());
        jsonwebtoken::encode(&header, &claims(&issuer, &json!({"exp": NOW + 400_000})), &signer.key).unwrap()
    };
    assert_eq!(gate.bearer(&by("key-63")).await.as_deref(), Ok("corp/ada"));
    Gate::is_refused(&gate.bearer(&by("key-64")).await, 401, "invalid_token");

    issuer.page("/.well-known/openid-configuration", &json!({"issuer": "https://other.example"}));
    let gate = started(&corp(&issuer, |_| {})).await;
    let problem = &gate.credentials.issuer_problems()[0].1;
    assert!(problem.contains("the document of another issuer"), "{problem}");
}

/// ACC-2 (case 7): the background work reads the keys at the start, and finds them again when their address has changed.
#[tokio::test]
async fn keys_that_move() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", Algorithm::ES256);
    issuer.publish(&[&signer]);
    let gate = Gate::new(&corp(&issuer, |_| {}));
    let running = tokio::spawn(Arc::clone(&gate.credentials).run(drop));
    bridgehead_testkit::until("a request for the keys", || issuer.asked("/jwks") > 0).await;
    running.abort();
    let _ = running.await;
    let document = json!({"issuer": issuer.url, "jwks_uri": format!("{}/moved", issuer.url)});
    issuer.page("/.well-known/openid-configuration", &document);
    issuer.page("/moved", &json!({"keys": [signer.public]}));
    issuer.raw_page("/jwks", (404, "text/plain", "", String::new()));
    let gate = started(&corp(&issuer, |_| {})).await;
    assert_eq!(issuer.asked("/moved"), 1);
    issuer.page(
        "/.well-known/openid-configuration",
        &json!({"issuer": issuer.url, "jwks_uri": format!("{}/again", issuer.url)}),
    );
    issuer.page("/again", &json!({"keys": [signer.public]}));
    issuer.raw_page("/moved", (404, "text/plain", "", String::new()));
    for (seconds, problems) in [(15 * 60, 1), (60, 0)] {
        gate.advance(seconds);
        gate.credentials.issuers.refresh_due().await;
        assert_eq!(gate.credentials.issuer_problems().len(), problems);
    }
    assert_eq!(issuer.asked("/again"), 1);
}

/// ACC-2: a token that lacks a scope that every request needs is answered with 403 and all of them; a wider scope includes others.
#[tokio::test]
async fn required_scopes() {
    let issuer = TestIssuer::start().await;
    let signer = Signer::new("one", Algorithm::ES256);
    issuer.publish(&[&signer]);
    let gate = started(&corp(&issuer, |issuer| {
        issuer.required_scopes = vec!["read".to_owned(), "use".to_owned()];
        issuer.scope_includes = vec![("all".to_owned(), vec!["read".to_owned(), "use".to_owned()])];
    }))
    .await;
    let token = |scope: &str| signer.sign(&claims(&issuer, &json!({ "scope": scope })));
    for _ in 0..2 {
        let found = gate.bearer(&token("read")).await;
        Gate::is_refused(&found, 403, "error=\"insufficient_scope\"");
        Gate::is_refused(&found, 403, "scope=\"read use\"");
        Gate::is_refused(&found, 403, "resource_metadata=");
    }
    assert_eq!(gate.bearer(&token("use read")).await.as_deref(), Ok("corp/ada"));
    assert_eq!(gate.bearer(&token("all")).await.as_deref(), Ok("corp/ada"));
    let found = gate.bearer(&token("repo:write openid read")).await;
    Gate::is_refused(&found, 403, "scope=\"read use repo:write\"");
    let headers = [("authorization", &*format!("Bearer {}", token("read use")))];
    let ada = gate.principal(&headers, from([9, 0, 0, 1].into())).await.unwrap();
    assert_eq!(ada.required_scopes().map(|scope| &**scope).collect::<Vec<_>>(), ["read", "use"]);
    let step_up = gate.door.step_up("a b").unwrap();
    assert!(step_up.to_str().unwrap().ends_with("scope=\"a b\""), "{step_up:?}");
    let mut settings = corp(&issuer, |_| {});
    settings.step_up = StepUp::InBand;
    assert_eq!(Gate::new(&settings).door.step_up("a"), None);
}

/// ACC-2 (case 1): after a reload, challenges and metadata name the scopes of the new rules.
#[tokio::test]
async fn scopes_of_a_reload() {
    let issuer = TestIssuer::start().await;
    let gate = Gate::new(&corp(&issuer, |issuer| issuer.required_scopes = vec!["use".to_owned()]));
    for (scopes, told) in [(None, "use repo:write"), (Some("b"), "use b")] {
        if let Some(scope) = scopes {
            gate.credentials.set_scopes(&[scope.to_owned()]);
        }
        let scope = format!("scope=\"{told}\"");
        let here = from([9, 0, 0, 1].into());
        Gate::is_refused(&gate.ask(&[], here).await, 401, &scope);
        Gate::is_refused(&gate.ask(&[("authorization", "Bearer wrong")], here).await, 401, &scope);
        let metadata: Value = serde_json::from_slice(&gate.door.metadata().unwrap()).unwrap();
        let expected: Vec<&str> = told.split(' ').collect();
        assert_eq!(
            (&metadata["scopes_supported"], &metadata["resource"]),
            (&json!(expected), &json!(PUBLIC))
        );
    }
}

/// ACC-2: each issuer's tokens follow its own rules; metadata is found behind a path, and served to old clients if that is asked for.
#[tokio::test]
async fn issuers_are_separate() {
    let (one, two) = (TestIssuer::start().await, TestIssuer::start().await);
    let (first, second) = (Signer::new("one", Algorithm::ES256), Signer::new("two", Algorithm::ES256));
    one.publish(&[&first]);
    two.publish(&[&second]);
    let realm = format!("{}/realms/a", two.url);
    let document = json!({"issuer": realm, "jwks_uri": format!("{}/jwks", two.url)});
    two.page("/realms/a/.well-known/openid-configuration", &document);
    let mut settings = corp(&one, |issuer| {
        issuer.audiences = vec!["api-one".to_owned()];
        issuer.jwks = Some(format!("{}/jwks", one.url).parse().unwrap());
    });
    let mut known = Issuer::new("realm", &realm);
    known.audiences = vec!["api-two".to_owned()];
    settings.issuers.push(known);
    settings.legacy_discovery = true;
    let gate = started(&settings).await;
    let of_two = |audience: &str| json!({"iss": realm, "aud": audience, "sub": "ada", "exp": NOW + 60});
    assert_eq!(
        gate.bearer(&first.sign(&claims(&one, &json!({"aud": "api-one"})))).await.as_deref(),
        Ok("corp/ada")
    );
    assert_eq!(gate.bearer(&second.sign(&of_two("api-two"))).await.as_deref(), Ok("realm/ada"));
    Gate::is_refused(&gate.bearer(&second.sign(&of_two("api-one"))).await, 401, "invalid_token");
    Gate::is_refused(&gate.bearer(&first.sign(&of_two("api-two"))).await, 401, "invalid_token");
    Gate::is_refused(&gate.bearer(&second.sign(&claims(&one, &json!({})))).await, 401, "invalid_token");

    let served: Value = serde_json::from_slice(&gate.door.issuer_metadata().unwrap()).unwrap();
    assert_eq!(served["issuer"], json!(one.url));
    assert_eq!(one.asked("/.well-known/openid-configuration"), 1);
    gate.credentials.issuers.refresh_due().await;
    assert_eq!(one.asked("/.well-known/openid-configuration"), 1);
    settings.legacy_discovery = false;
    let gate = started(&settings).await;
    assert!(gate.door.issuer_metadata().is_none());
}
