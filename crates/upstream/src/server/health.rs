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
/// How long the first question of a probe has the server to itself. Some servers leave a `ping` unanswered.
const FALLBACK_AFTER: Duration = Duration::from_millis(1_500);

/// What a probe came to.
pub(crate) struct Probed {
    /// The question that was answered, or the first if none was.
    pub(crate) kind: ProbeKind,
    /// Whether the server is well; else why not, in words.
    pub(crate) outcome: Result<(), String>,
}

/// What one question came to.
enum Asked {
    Answered,
    /// An error is an answer, but not of one who is well.
    Refused,
    Lost(String),
}

/// Asks for a sign of life: `ping`, of a modern server `server/discover`, and the tool list where that is refused or not
/// answered; or the tool list only, as configured.
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

/// Puts the first question, and where it leads nowhere asks for the tool list. Says which was answered.
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
        // A slow answer to the first question is as good.
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
