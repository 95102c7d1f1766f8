//! Whether a server still answers.

use std::time::Duration;

use bridgehead_config::HealthProbe;
use bridgehead_events::ProbeKind;
use bridgehead_wire::{Era, Method, Object, Raw, Spliced};
use futures_util::future::{Either, select};

use crate::link::negotiate::Peer;
use crate::link::{Link, Purpose, modern_params};

/// How long a probe may take.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the first request of a probe runs alone. Some servers never answer a `ping`.
const FALLBACK_AFTER: Duration = Duration::from_millis(1_500);

/// The result of a probe.
pub(crate) struct Probed {
    /// The request that was answered, or the first one if none was.
    pub(crate) kind: ProbeKind,
    /// Whether the server is healthy; else the reason, as text.
    pub(crate) outcome: Result<(), String>,
}

/// The result of one request.
enum Asked {
    Answered,
    /// An error is an answer, but not a healthy one.
    Refused,
    Lost(String),
}

/// Probes the server: `ping`, or `server/discover` on a modern server, and the tool list if that is refused or
/// unanswered. If so configured, only the tool list.
pub(crate) async fn probe(link: &Link, peer: &Peer, choice: HealthProbe) -> Probed {
    let first = match (choice, peer.revision.era()) {
        (HealthProbe::ListTools, _) => ProbeKind::ListTools,
        (HealthProbe::Ping, Era::Modern) => ProbeKind::Discover,
        (HealthProbe::Ping, Era::Legacy) => ProbeKind::Ping,
    };
    match tokio::time::timeout(PROBE_TIMEOUT, ask_in_turn(link, peer, first)).await {
        Ok(Ok(kind)) => Probed { kind, outcome: Ok(()) },
        Ok(Err(reason)) => Probed { kind: first, outcome: Err(reason) },
        Err(_) => {
            let reason = format!("it did not answer within {} s", PROBE_TIMEOUT.as_secs());
            Probed { kind: first, outcome: Err(reason) }
        }
    }
}

/// Sends the first request, and the tool list if that fails. Returns the kind of request that was answered.
async fn ask_in_turn(link: &Link, peer: &Peer, first: ProbeKind) -> Result<ProbeKind, String> {
    let mut asking = std::pin::pin!(ask(link, peer, first));
    if first == ProbeKind::ListTools {
        return match asking.await {
            Asked::Answered => Ok(first),
            Asked::Refused => Err("it refuses `tools/list`".to_owned()),
            Asked::Lost(reason) => Err(reason),
        };
    }
    let refused = match tokio::time::timeout(FALLBACK_AFTER, &mut asking).await {
        Ok(Asked::Answered) => return Ok(first),
        Ok(Asked::Lost(reason)) => return Err(reason),
        Ok(Asked::Refused) => true,
        Err(_) => false,
    };
    let listing = std::pin::pin!(ask(link, peer, ProbeKind::ListTools));
    let (last, kind) = if refused {
        (listing.await, ProbeKind::ListTools)
    } else {
        // A slow answer to the first request counts as well.
        match select(asking, listing).await {
            Either::Left((Asked::Refused, listing)) => (listing.await, ProbeKind::ListTools),
            Either::Left((answer, _)) => (answer, first),
            Either::Right((Asked::Refused, asking)) => (asking.await, first),
            Either::Right((answer, _)) => (answer, ProbeKind::ListTools),
        }
    };
    match last {
        Asked::Answered => Ok(kind),
        Asked::Refused => Err(format!("it refuses both `{}` and `tools/list`", method(first))),
        Asked::Lost(reason) => Err(reason),
    }
}

async fn ask(link: &Link, peer: &Peer, kind: ProbeKind) -> Asked {
    let params = match peer.revision.era() {
        Era::Modern => modern_params(&Object::empty()),
        Era::Legacy => Spliced::from(Raw::literal("{}")),
    };
    match link.ask(&method(kind), &params, Purpose::Ordinary).await {
        Ok(Ok(_)) => Asked::Answered,
        Ok(Err(_)) => Asked::Refused,
        Err(error) => Asked::Lost(error.to_string()),
    }
}

const fn method(kind: ProbeKind) -> Method {
    match kind {
        ProbeKind::Ping => Method::Ping,
        ProbeKind::ListTools => Method::ToolsList,
        ProbeKind::Discover => Method::Discover,
    }
}
