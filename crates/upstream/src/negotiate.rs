//! Finds out which protocol a peer on a fresh stream speaks, and never trusts one sign alone.
//!
//! A modern peer answers `server/discover`. Older ones answer it with any error, with silence, with an
//! error that names an id nobody used, or by ending; all of these mean `initialize`. A peer that is only
//! slow (a package being fetched at first start) may answer late: after [`PATIENCE`] the handshake is sent
//! as well, and both answers together decide.

use std::time::Duration;

use bridgehead_wire::{Era, Method, Object, Raw, Revision, RpcError, Spliced, code};
use serde::Deserialize;

use crate::link::{CLIENT_INFO, Exchange, Link, LinkError, Purpose, modern_params};

/// How long the probe has the peer to itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What a peer turned out to be.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The revision both sides speak now.
    pub revision: Revision,
    /// Its capabilities, as it wrote them.
    pub capabilities: Raw,
    /// What it tells the model about itself.
    pub instructions: Option<String>,
    /// Who it says it is.
    pub server_info: Option<Raw>,
}

/// Why no protocol was found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NegotiateError {
    /// The stream ended while only the probe had been sent: a legacy server may end on it.
    #[error("the server ended on the probe: {0}")]
    EndedOnProbe(LinkError),
    /// The stream ended later.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Both sides answered, and share no revision.
    #[error("no common protocol revision: the server speaks {theirs}, Bridgehead {ours}")]
    Incompatible { theirs: String, ours: String },
    /// The server refused the handshake.
    #[error("the server refused `initialize`: {message} (code {code})")]
    Refused { code: i64, message: String },
    /// The server's answer to the handshake makes no sense.
    #[error("the server's answer to `{method}` is not usable: {reason}")]
    Unusable { method: Method, reason: String },
}

/// Which question to put first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// `server/discover`, then what its answer calls for.
    Probe,
    /// Straight `initialize`: the peer has shown that the probe ends it.
    Initialize,
}

pub(crate) async fn negotiate(link: &Link, opening: Opening) -> Result<Peer, NegotiateError> {
    if opening == Opening::Initialize {
        return initialize(link).await;
    }
    let mut probe = link.open(Purpose::Handshake);
    probe.send(&Method::Discover, &modern_params(&Object::empty())).await;
    match tokio::time::timeout(PATIENCE, probe.answer()).await {
        Ok(Ok(outcome)) => match judge(outcome)? {
            Verdict::Modern(peer) => Ok(peer),
            Verdict::Legacy => initialize(link).await,
        },
        Ok(Err(error)) => Err(NegotiateError::EndedOnProbe(error)),
        Err(_) => silent(link, probe).await,
    }
}

/// The probe is still unanswered: offer the handshake too. An accepted `initialize` settles it (a server
/// of both eras is then a legacy one for this process); a refused one leaves the probe's answer to decide.
async fn silent(link: &Link, mut probe: Exchange) -> Result<Peer, NegotiateError> {
    let mut shake = link.open(Purpose::Handshake);
    shake.send(&Method::Initialize, &initialize_params()).await;
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
    if discovered.is_none() && probe_open && refused.code() != code::INTERNAL_ERROR {
        // A modern server that is slow answers in order: the probe's answer is due now.
        if let Ok(outcome) = tokio::time::timeout(PATIENCE, probe.answer()).await
            && let Verdict::Modern(peer) = judge(outcome?)?
        {
            discovered = Some(peer);
        }
    }
    discovered.ok_or_else(|| NegotiateError::Refused { code: refused.code(), message: refused.message() })
}

enum Verdict {
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

/// What the answer to the probe says. Only a result of the right shape, or an error that no legacy
/// server can mean, makes a peer modern.
fn judge(outcome: Result<Raw, RpcError>) -> Result<Verdict, NegotiateError> {
    let incompatible = |versions: &[String]| NegotiateError::Incompatible {
        theirs: versions.join(", "),
        ours: Revision::ALL.map(Revision::as_str).join(", "),
    };
    match outcome {
        Ok(result) => {
            let Ok(discover) = result.decode::<DiscoverResult<'_>>() else { return Ok(Verdict::Legacy) };
            if !discover.supported_versions.iter().any(|version| version == Revision::MODERN.as_str()) {
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
        Err(error) if error.code() == code::UNSUPPORTED_PROTOCOL_VERSION => {
            #[derive(Deserialize)]
            struct Supported {
                supported: Vec<String>,
            }
            let supported =
                error.data().and_then(|data| data.decode::<Supported>().ok()).map(|data| data.supported);
            legacy_or(&supported.unwrap_or_default(), incompatible)
        }
        Err(_) => Ok(Verdict::Legacy),
    }
}

/// A peer that names its versions, ours not among them: if any is a legacy one we know, shake hands.
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

fn initialize_params() -> Spliced {
    let text = format!(
        r#"{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{CLIENT_INFO}}}"#,
        Revision::LATEST_LEGACY
    );
    Spliced::from(Raw::parse(text).unwrap_or(Raw::literal("{}")))
}

async fn initialize(link: &Link) -> Result<Peer, NegotiateError> {
    match link.ask(&Method::Initialize, &initialize_params(), Purpose::Handshake).await? {
        Ok(result) => initialized(link, &result).await,
        Err(error) => Err(NegotiateError::Refused { code: error.code(), message: error.message() }),
    }
}

async fn initialized(link: &Link, result: &Raw) -> Result<Peer, NegotiateError> {
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
    link.notify(&Method::Initialized, None).await;
    Ok(Peer {
        revision,
        capabilities: object.get("capabilities").map_or(Raw::literal("{}"), |raw| raw.detached()),
        instructions: answer.instructions,
        server_info: object.get("serverInfo").map(|raw| raw.detached()),
    })
}
