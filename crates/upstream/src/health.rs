//! Whether a server still answers.

use std::time::Duration;

use bridgehead_events::ProbeKind;
use bridgehead_wire::{Era, Method, Object, Raw, Spliced};

use crate::link::{Link, Purpose, modern_params};
use crate::negotiate::Peer;

/// How long a probe may take.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a probe of this peer asks first.
pub(crate) fn kind(peer: &Peer) -> ProbeKind {
    match peer.revision.era() {
        Era::Modern => ProbeKind::Discover,
        Era::Legacy => ProbeKind::Ping,
    }
}

/// Asks for a sign of life: `server/discover` of a modern server, `ping` of a legacy one, and where that is
/// refused the tool list. Fails with words.
pub(crate) async fn probe(link: &Link, peer: &Peer) -> Result<(), String> {
    let empty = Object::empty();
    let (first, params) = match peer.revision.era() {
        Era::Modern => (Method::Discover, modern_params(&empty)),
        Era::Legacy => (Method::Ping, Spliced::from(Raw::literal("{}"))),
    };
    let asking = async {
        for method in [first, Method::ToolsList] {
            match link.ask(&method, &params, Purpose::Ordinary).await {
                Ok(Ok(_)) => return Ok(()),
                // An error is an answer, but not of one who is well: ask once more, for something it must know.
                Ok(Err(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("it refuses both `ping` and `tools/list`".to_owned())
    };
    match tokio::time::timeout(PROBE_TIMEOUT, asking).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("it did not answer within {} s", PROBE_TIMEOUT.as_secs())),
    }
}
