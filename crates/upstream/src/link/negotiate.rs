//! Finds out which protocol a peer on a new stream speaks; no single sign decides.
//!
//! A modern peer answers `server/discover`. Older peers answer it with any error, with silence, with an error for
//! an unknown id, or by ending; all of these lead to `initialize`. A slow peer (a package being fetched at first
//! start) may answer late: after [`PATIENCE`] the handshake is sent as well, and both answers together decide.

use std::time::Duration;

use bridgehead_wire::{Abilities, Era, Method, Object, Raw, Revision, RpcError, Spliced, code};
use serde::Deserialize;

use crate::link::{CLIENT_INFO, Exchange, Link, LinkError, Purpose, modern_params};

/// How long the probe runs alone, before the handshake is sent too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What was negotiated with a peer.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The revision both sides speak now.
    pub revision: Revision,
    /// Its capabilities, as it wrote them.
    pub capabilities: Raw,
    /// Its instructions for the model.
    pub instructions: Option<String>,
    /// Its name and version, as it states them.
    pub server_info: Option<Raw>,
}

/// Why negotiation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NegotiateError {
    /// The stream ended after only the probe was sent: a legacy server may end on it.
    #[error("the server ended on the probe: {0}")]
    EndedOnProbe(LinkError),
    /// The stream ended later.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Both sides answered, but share no revision.
    #[error("no common protocol revision: the server speaks {theirs}, Bridgehead {ours}")]
    Incompatible { theirs: String, ours: String },
    /// The server refused the handshake.
    #[error("the server refused `initialize`: {message} (code {code})")]
    Refused { code: i64, message: String },
    /// The server is not modern, though the configuration says so.
    #[error(
        "the server does not speak {}: {message} (code {code}); leave `era` out to let it choose",
        Revision::MODERN
    )]
    NotModern { code: i64, message: String },
    /// The server's answer to the handshake is malformed.
    #[error("the server's answer to `{method}` is not usable: {reason}")]
    Unusable { method: Method, reason: String },
}

/// Which request to send first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// `server/discover`, then whatever its answer calls for.
    Probe,
    /// `initialize` at once: the peer has ended on the probe, or is known to be legacy.
    Initialize,
    /// `server/discover` and nothing else: the peer is known to be modern.
    Discover,
}

pub(crate) async fn negotiate(link: &Link, opening: Opening, offer: Offer) -> Result<Peer, NegotiateError> {
    match opening {
        Opening::Initialize => return initialize(link, offer).await,
        Opening::Discover => return discover(link).await,
        Opening::Probe => {}
    }
    let mut probe = link.open(Purpose::Handshake);
    probe.send(&Method::Discover, &modern_params(&Object::empty())).await;
    match tokio::time::timeout(PATIENCE, probe.answer()).await {
        Ok(Ok(outcome)) => match judge(outcome)? {
            Verdict::Modern(peer) => Ok(peer),
            Verdict::Legacy => initialize(link, offer).await,
        },
        Ok(Err(error)) => Err(NegotiateError::EndedOnProbe(error)),
        Err(_) => silent(link, probe, offer).await,
    }
}

/// Like [`negotiate`], for a link that notices its end only while `ended` is polled. Messages from before the end
/// still count.
pub(crate) async fn negotiate_until(
    ended: impl Future<Output = ()>,
    link: &Link,
    opening: Opening,
    offer: Offer,
) -> Result<Peer, NegotiateError> {
    let mut negotiating = std::pin::pin!(negotiate(link, opening, offer));
    tokio::select! {
        outcome = &mut negotiating => outcome,
        () = ended => negotiating.await,
    }
}

async fn discover(link: &Link) -> Result<Peer, NegotiateError> {
    let outcome = link.ask(&Method::Discover, &modern_params(&Object::empty()), Purpose::Handshake).await?;
    let refusal = outcome.as_ref().err().map(|error| (error.code(), error.message()));
    match judge(outcome)? {
        Verdict::Modern(peer) => Ok(peer),
        Verdict::Legacy => {
            let (code, message) =
                refusal.unwrap_or((0, "its answer is not one of a modern server".to_owned()));
            Err(NegotiateError::NotModern { code, message })
        }
    }
}

/// The probe is still unanswered: send the handshake too. An accepted `initialize` settles it, and a server of both
/// eras then counts as legacy for this process. After a refused one the probe's answer decides.
async fn silent(link: &Link, mut probe: Exchange, offer: Offer) -> Result<Peer, NegotiateError> {
    let mut shake = link.open(Purpose::Handshake);
    shake.send(&Method::Initialize, &initialize_params(offer)).await;
    let mut discovered = None;
    let mut probe_open = true;
    let refused = loop {
        let grace = async {
            match discovered {
                Some(_) => tokio::time::sleep(PATIENCE).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = shake.answer() => match outcome? {
                Ok(result) => return initialized(link, &result).await,
                Err(error) => break error,
            },
            outcome = probe.answer(), if probe_open => {
                probe_open = false;
                if let Verdict::Modern(peer) = judge(outcome?)? {
                    discovered = Some(peer);
                }
            }
            () = grace => break RpcError::new(code::INTERNAL_ERROR, "no answer"),
        }
    };
    if probe_open {
        // A slow modern server may answer out of order: wait for the probe's answer now, whatever the refusal says.
        if let Ok(outcome) = tokio::time::timeout(PATIENCE, probe.answer()).await
            && let Verdict::Modern(peer) = judge(outcome?)?
        {
            discovered = Some(peer);
        }
    }
    discovered.ok_or_else(|| NegotiateError::Refused { code: refused.code(), message: refused.message() })
}

/// The result of a probe.
pub(crate) enum Verdict {
    Modern(Peer),
    Legacy,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoverResult<'a> {
    supported_versions: Vec<String>,
    #[serde(borrow)]
    capabilities: &'a serde_json::value::RawValue,
    instructions: Option<String>,
}

/// Judges the answer to the probe. Only a result of the right shape, or an error that no legacy server can mean,
/// makes a peer modern.
pub(crate) fn judge(outcome: Result<Raw, RpcError>) -> Result<Verdict, NegotiateError> {
    let incompatible = |versions: &[String]| NegotiateError::Incompatible {
        theirs: versions.join(", "),
        ours: Revision::ALL.map(Revision::as_str).join(", "),
    };
    match outcome {
        Ok(result) => {
            let Ok(discover) = result.decode::<DiscoverResult<'_>>() else { return Ok(Verdict::Legacy) };
            if !discover.supported_versions.iter().any(is_modern) {
                return legacy_or(&discover.supported_versions, incompatible);
            }
            let meta = Object::parse(&result).ok().and_then(|result| result.get("_meta"));
            let server_info = meta
                .and_then(|meta| Object::parse(&meta).ok())
                .and_then(|meta| meta.get(bridgehead_wire::key::SERVER_INFO));
            Ok(Verdict::Modern(Peer {
                revision: Revision::MODERN,
                capabilities: Raw::parse(discover.capabilities.get().to_owned())
                    .unwrap_or(Raw::literal("{}")),
                instructions: discover.instructions,
                server_info: server_info.map(|info| info.detached()),
            }))
        }
        Err(error) => legacy_or(&supported_revisions(&error).unwrap_or_default(), incompatible),
    }
}

/// The revisions that a refusal of our revision names.
pub(crate) fn supported_revisions(refusal: &RpcError) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Supported {
        supported: Vec<String>,
    }
    let data = refusal.data().filter(|_| refusal.code() == code::UNSUPPORTED_PROTOCOL_VERSION)?;
    data.decode::<Supported>().ok().map(|data| data.supported)
}

/// Whether a version is the modern revision that we use.
pub(crate) fn is_modern(version: &String) -> bool {
    version == Revision::MODERN.as_str()
}

/// For a peer that names its versions without ours: if one is a known legacy version, do the handshake.
fn legacy_or(
    versions: &[String],
    incompatible: impl Fn(&[String]) -> NegotiateError,
) -> Result<Verdict, NegotiateError> {
    let legacy =
        |version: &String| version.parse::<Revision>().is_ok_and(|revision| revision.era() == Era::Legacy);
    if versions.is_empty() || versions.iter().any(legacy) {
        Ok(Verdict::Legacy)
    } else {
        Err(incompatible(versions))
    }
}

/// What a legacy server is told at the handshake that it may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Anything that a client can answer. Whether the client of a call can is checked when the server asks.
    Questions,
    /// The same for a process of a single client: it is also told when that client's roots change.
    Session,
    /// What the clients of this process declared.
    Only(Abilities),
    /// Nothing: no client is behind us.
    Nothing,
}

impl Offer {
    /// The same, with an answer for roots in any case.
    pub(crate) fn with_roots(self) -> Self {
        match self {
            Self::Only(abilities) => Self::Only(abilities.with_roots()),
            other => other,
        }
    }

    fn capabilities(self) -> Raw {
        match self {
            Self::Questions => Abilities::ALL.capabilities(),
            Self::Session => Raw::literal(
                r#"{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}"#,
            ),
            Self::Only(abilities) => abilities.capabilities(),
            Self::Nothing => Raw::literal("{}"),
        }
    }
}

pub(crate) fn initialize_params(offer: Offer) -> Spliced {
    let text = format!(
        r#"{{"protocolVersion":"{}","capabilities":{},"clientInfo":{CLIENT_INFO}}}"#,
        Revision::LATEST_LEGACY,
        offer.capabilities().as_str()
    );
    Spliced::from(Raw::parse(text).unwrap_or(Raw::literal("{}")))
}

async fn initialize(link: &Link, offer: Offer) -> Result<Peer, NegotiateError> {
    match link.ask(&Method::Initialize, &initialize_params(offer), Purpose::Handshake).await? {
        Ok(result) => initialized(link, &result).await,
        Err(error) => Err(NegotiateError::Refused { code: error.code(), message: error.message() }),
    }
}

async fn initialized(link: &Link, result: &Raw) -> Result<Peer, NegotiateError> {
    let peer = peer_of(result)?;
    link.notify(&Method::Initialized, None).await;
    Ok(peer)
}

/// What the result of `initialize` says about the peer.
pub(crate) fn peer_of(result: &Raw) -> Result<Peer, NegotiateError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct InitializeResult {
        protocol_version: String,
        instructions: Option<String>,
    }
    let unusable = |reason: String| NegotiateError::Unusable { method: Method::Initialize, reason };
    let object = Object::parse(result).map_err(|_| unusable("it is not an object".to_owned()))?;
    let answer: InitializeResult = result.decode().map_err(|error| unusable(error.to_string()))?;
    let revision =
        answer.protocol_version.parse::<Revision>().ok().filter(|revision| revision.era() == Era::Legacy);
    let Some(revision) = revision else {
        return Err(NegotiateError::Incompatible {
            theirs: answer.protocol_version,
            ours: Revision::ALL.map(Revision::as_str).join(", "),
        });
    };
    Ok(Peer {
        revision,
        capabilities: object.get("capabilities").map_or(Raw::literal("{}"), |raw| raw.detached()),
        instructions: answer.instructions,
        server_info: object.get("serverInfo").map(|raw| raw.detached()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

    use super::*;

    /// What the scripted peer does with a message: lines to write, or `None` to end.
    type Script = fn(&Value) -> Option<Vec<Value>>;

    async fn peer(stream: DuplexStream, script: Script) -> Vec<String> {
        let (read, mut write) = tokio::io::split(stream);
        let mut lines = BufReader::new(read).lines();
        let mut seen = Vec::new();
        while let Ok(Some(line)) = lines.next_line().await {
            let message: Value = serde_json::from_str(&line).unwrap();
            seen.push(message["method"].as_str().unwrap_or("answer").to_owned());
            let Some(answers) = script(&message) else { break };
            for answer in answers {
                let mut text = answer.to_string();
                text.push('\n');
                write.write_all(text.as_bytes()).await.unwrap();
            }
        }
        seen
    }

    async fn against(script: Script) -> (Result<Peer, NegotiateError>, Vec<String>) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(ours);
        let (link, reading, writing) = Link::over("test", read, write, 1 << 20);
        let peer = tokio::spawn(peer(theirs, script));
        let reader = tokio::spawn({
            let link = link.clone();
            async move {
                reading.await;
                link.end(LinkError::Closed("ended".into()));
            }
        });
        let writer = tokio::spawn(writing);
        // A task like the others, so that each of them gets its turn.
        let negotiating =
            tokio::spawn(async move { negotiate(&link, Opening::Probe, Offer::Questions).await });
        let outcome = negotiating.await.unwrap();
        // Lets the last message arrive before the stream closes.
        tokio::time::sleep(Duration::from_millis(1)).await;
        writer.abort();
        let _ = writer.await;
        reader.abort();
        let _ = reader.await;
        (outcome, peer.await.unwrap())
    }

    fn error(message: &Value, code: i64, data: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": "no", "data": data}})
    }

    fn legacy(message: &Value, revision: &str) -> Value {
        json!({"jsonrpc": "2.0", "id": message["id"], "result": {
            "protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"},
            "instructions": "be kind",
        }})
    }

    fn modern(message: &Value, versions: &[&str]) -> Value {
        json!({"jsonrpc": "2.0", "id": message["id"], "result": {
            "supportedVersions": versions, "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "public",
            "resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "1"}},
        }})
    }

    const HANDSHAKE: [&str; 3] = ["server/discover", "initialize", "notifications/initialized"];

    #[tokio::test(start_paused = true)]
    async fn a_modern_peer_gets_no_handshake() {
        let (peer, seen) = against(|message| Some(vec![modern(message, &["2026-07-28"])])).await;
        let peer = peer.unwrap();
        assert_eq!(peer.revision, Revision::MODERN);
        assert_eq!(peer.server_info.unwrap().as_str(), r#"{"name":"new","version":"1"}"#);
        assert_eq!(seen, ["server/discover"]);
    }

    #[track_caller]
    fn is_legacy((peer, seen): (Result<Peer, NegotiateError>, Vec<String>), revision: Revision) {
        let peer = peer.unwrap();
        assert_eq!(peer.revision, revision);
        assert_eq!(peer.instructions.as_deref(), Some("be kind"));
        assert_eq!(seen, HANDSHAKE);
    }

    /// Every error code leads to the handshake: no server is judged by a single code.
    #[tokio::test(start_paused = true)]
    async fn any_error_means_legacy() {
        macro_rules! with_code {
            ($($code:literal),*) => {$({
                let outcome = against(|message| match message["method"].as_str() {
                    Some("server/discover") => Some(vec![error(message, $code, &json!(null))]),
                    Some("initialize") => Some(vec![legacy(message, "2024-11-05")]),
                    _ => Some(vec![]),
                });
                is_legacy(outcome.await, Revision::V2024_11_05);
            })*};
        }
        with_code!(-32601, -32602, -32600, -32000, -32700, 0, 42);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_means_legacy_after_a_while() {
        let outcome = against(|message| match message["method"].as_str() {
            Some("initialize") => Some(vec![legacy(message, "2025-06-18")]),
            _ => Some(vec![]),
        });
        is_legacy(outcome.await, Revision::V2025_06_18);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_with_a_foreign_id_means_legacy_at_once() {
        let started = tokio::time::Instant::now();
        let outcome = against(|message| match message["method"].as_str() {
            Some("server/discover") => Some(vec![
                json!({"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "x"}}),
            ]),
            Some("initialize") => Some(vec![legacy(message, "2025-11-25")]),
            _ => Some(vec![]),
        });
        is_legacy(outcome.await, Revision::V2025_11_25);
        assert!(started.elapsed() < PATIENCE);
    }

    /// A server is offered only what can be answered: behind a gateway there are clients to ask, behind a bridge
    /// there are none.
    #[test]
    fn what_a_legacy_server_may_ask_for() {
        let offered = |offer| {
            let params: Value = initialize_params(offer).to_raw().decode().unwrap();
            params["capabilities"].clone()
        };
        let elicitation = json!({"form": {}, "url": {}});
        assert_eq!(
            offered(Offer::Questions),
            json!({"sampling": {}, "elicitation": elicitation, "roots": {}})
        );
        let only = Abilities::declared(&Raw::literal(r#"{"elicitation":{}}"#));
        assert_eq!(offered(Offer::Only(only)), json!({"elicitation": {"form": {}}}));
        assert_eq!(offered(Offer::Nothing), json!({}));
        let mut session = offered(Offer::Session);
        assert_eq!(session["roots"].take(), json!({"listChanged": true}));
        session["roots"] = json!({});
        assert_eq!(session, offered(Offer::Questions));
    }

    /// Notifications and requests before the handshake ends, with the id of our own request.
    #[tokio::test(start_paused = true)]
    async fn early_traffic_is_not_taken_for_an_answer() {
        let outcome = against(|message| match message["method"].as_str() {
            Some("server/discover") => Some(vec![
                json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
                json!({"jsonrpc": "2.0", "id": message["id"], "method": "roots/list"}),
                error(message, -32601, &json!(null)),
            ]),
            Some("initialize") => Some(vec![
                json!({"jsonrpc": "2.0", "id": message["id"], "method": "ping"}),
                json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}),
                legacy(message, "2025-11-25"),
            ]),
            _ => Some(vec![]),
        });
        let (peer, seen) = outcome.await;
        assert_eq!(peer.unwrap().revision, Revision::V2025_11_25);
        let asked: Vec<_> = seen.iter().filter(|method| *method != "answer").collect();
        assert_eq!(asked, HANDSHAKE.iter().collect::<Vec<_>>());
        assert_eq!(seen.len(), 5, "both requests of the server were answered: {seen:?}");
    }

    /// A slow server answers the probe after the handshake was offered too.
    #[tokio::test(start_paused = true)]
    async fn late_answers_to_both_questions() {
        // Answers nothing until `initialize` arrives, then in order.
        let modern_only = against(|message| match message["method"].as_str() {
            Some("initialize") => {
                Some(vec![modern(&json!({"id": 1}), &["2026-07-28"]), error(message, -32601, &json!(null))])
            }
            _ => Some(vec![]),
        });
        assert_eq!(modern_only.await.0.unwrap().revision, Revision::MODERN);
        let both = against(|message| match message["method"].as_str() {
            Some("initialize") => {
                Some(vec![modern(&json!({"id": 1}), &["2026-07-28"]), legacy(message, "2025-11-25")])
            }
            _ => Some(vec![]),
        });
        assert_eq!(both.await.0.unwrap().revision, Revision::V2025_11_25);
        let legacy_only = against(|message| match message["method"].as_str() {
            Some("initialize") => {
                Some(vec![error(&json!({"id": 1}), -32601, &json!(null)), legacy(message, "2025-11-25")])
            }
            _ => Some(vec![]),
        });
        assert_eq!(legacy_only.await.0.unwrap().revision, Revision::V2025_11_25);
        let silent_on_initialize = against(|message| match message["method"].as_str() {
            Some("initialize") => Some(vec![modern(&json!({"id": 1}), &["2026-07-28"])]),
            _ => Some(vec![]),
        });
        assert_eq!(silent_on_initialize.await.0.unwrap().revision, Revision::MODERN);
    }

    /// A modern server that first refuses the handshake, with any code, is still heard on the probe. If the probe
    /// has its answer already, there is no further wait.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_before_the_answer_to_the_probe() {
        macro_rules! with_code {
            ($($code:literal),*) => {$({
                let (peer, _) = against(|message| match message["method"].as_str() {
                    Some("initialize") => Some(vec![
                        error(message, $code, &json!(null)),
                        modern(&json!({"id": 1}), &["2026-07-28"]),
                    ]),
                    _ => Some(vec![]),
                })
                .await;
                assert_eq!(peer.unwrap().revision, Revision::MODERN, "{}", $code);
            })*};
        }
        with_code!(-32601, -32603, -32000);
        let began = tokio::time::Instant::now();
        let (neither, _) = against(|message| match message["method"].as_str() {
            Some("initialize") => Some(vec![
                error(&json!({"id": 1}), -32601, &json!(null)),
                json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}),
            ]),
            // The answer to its `ping`: its earlier messages have been read.
            None => Some(vec![error(&json!({"id": 2}), -32000, &json!(null))]),
            _ => Some(vec![]),
        })
        .await;
        assert!(matches!(neither, Err(NegotiateError::Refused { code: -32000, .. })), "{neither:?}");
        assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs(), "as long as the probe runs alone");
    }

    #[tokio::test(start_paused = true)]
    async fn versions_that_do_not_meet_are_named() {
        let (future, _) = against(|message| Some(vec![modern(message, &["2031-01-01"])])).await;
        let error_text = future.unwrap_err().to_string();
        assert!(error_text.contains("2031-01-01") && error_text.contains("2026-07-28"), "{error_text}");
        let (refusing, _) =
            against(|message| Some(vec![error(message, -32022, &json!({"supported": ["2031-01-01"]}))]))
                .await;
        assert!(matches!(refusing, Err(NegotiateError::Incompatible { .. })));
        let (odd, _) = against(|message| match message["method"].as_str() {
            Some("initialize") => Some(vec![legacy(message, "1999-09-09")]),
            _ => Some(vec![error(message, -32601, &json!(null))]),
        })
        .await;
        assert!(odd.unwrap_err().to_string().contains("1999-09-09"));
    }

    /// A server that names legacy versions in its answer to the probe gets the handshake.
    #[tokio::test(start_paused = true)]
    async fn named_legacy_versions_mean_legacy() {
        let outcome = against(|message| match message["method"].as_str() {
            Some("server/discover") => {
                Some(vec![error(message, -32022, &json!({"supported": ["2025-11-25"]}))])
            }
            Some("initialize") => Some(vec![legacy(message, "2025-11-25")]),
            _ => Some(vec![]),
        });
        is_legacy(outcome.await, Revision::V2025_11_25);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_on_the_probe_is_told_apart() {
        let (outcome, _) = against(|_| None).await;
        assert!(matches!(outcome, Err(NegotiateError::EndedOnProbe(_))), "{outcome:?}");
        let (outcome, _) = against(|message| match message["method"].as_str() {
            Some("server/discover") => Some(vec![error(message, -32601, &json!(null))]),
            _ => None,
        })
        .await;
        assert!(matches!(outcome, Err(NegotiateError::Link(_))), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_handshake_says_why() {
        let (outcome, _) = against(|message| Some(vec![error(message, -32000, &json!(null))])).await;
        assert!(matches!(outcome, Err(NegotiateError::Refused { code: -32000, .. })));
    }
}
