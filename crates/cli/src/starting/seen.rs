//! What can be seen of a server while it starts, in this process or through the status of a running gateway.

use bridgehead::Gateway;
use bridgehead_upstream::{Upstream, UpstreamState};
use serde_json::Value;

/// One server at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its name.
    pub(crate) name: String,
    /// How far it is.
    pub(crate) stage: Stage,
    /// The last line that it wrote to standard error.
    pub(crate) stderr: Option<String>,
}

/// How far a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The gateway does not know it yet.
    Awaited,
    /// It is being started.
    Starting,
    /// It serves this many tools.
    Ready {
        /// How many.
        tools: usize,
    },
    /// It starts when it is used.
    Asleep,
    /// It does not serve.
    Failed {
        /// Why.
        reason: String,
        /// Whether the gateway tries again, and that may help.
        again: bool,
    },
    /// The gateway has stopped it.
    Stopped,
}

impl Stage {
    /// Whether its start is over.
    pub(crate) const fn is_settled(&self) -> bool {
        !matches!(self, Self::Awaited | Self::Starting)
    }

    /// The word for it.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Awaited => "waiting",
            Self::Starting => "starting",
            Self::Ready { .. } => "ready",
            Self::Asleep => "asleep",
            Self::Failed { .. } => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// The servers of a gateway in this process, in the order of the configuration.
pub(crate) fn here(gateway: &Gateway) -> Vec<Seen> {
    gateway.upstreams().iter().map(of_upstream).collect()
}

fn of_upstream(upstream: &Upstream) -> Seen {
    let stage = match upstream.state() {
        UpstreamState::Starting { .. } => Stage::Starting,
        UpstreamState::Ready(ready) => Stage::Ready { tools: ready.tools.len() },
        UpstreamState::Asleep(_) => Stage::Asleep,
        UpstreamState::Restarting(outage) => {
            Stage::Failed { reason: outage.reason.clone(), again: !outage.lasting }
        }
        UpstreamState::Failed(failure) => Stage::Failed { reason: failure.reason.clone(), again: false },
        UpstreamState::Stopped => Stage::Stopped,
    };
    Seen { name: upstream.name().to_string(), stage, stderr: upstream.record().last_words().pop() }
}

/// These servers in the status of a running gateway. A server of a configuration that is just being taken over counts before the
/// one of the same name that still serves.
pub(crate) fn in_status(status: &Value, names: &[String]) -> Vec<Seen> {
    let of = |name: &String| {
        let named = |key: &str| {
            status[key].as_array().into_iter().flatten().find(|server| server["name"] == name.as_str())
        };
        match named("arriving").or_else(|| named("upstreams")) {
            Some(server) => Seen {
                name: name.clone(),
                stage: stage(server),
                stderr: server["stderr"]
                    .as_array()
                    .and_then(|lines| lines.last()?.as_str())
                    .map(str::to_owned),
            },
            None => Seen { name: name.clone(), stage: Stage::Awaited, stderr: None },
        }
    };
    names.iter().map(of).collect()
}

fn stage(server: &Value) -> Stage {
    let failed = |again| Stage::Failed {
        reason: server["reason"].as_str().unwrap_or("no reason is known").to_owned(),
        again,
    };
    match server["state"].as_str().unwrap_or_default() {
        "ready" => {
            let tools = server["tools"].as_u64().and_then(|tools| usize::try_from(tools).ok());
            Stage::Ready { tools: tools.unwrap_or_default() }
        }
        "asleep" => Stage::Asleep,
        "stopped" => Stage::Stopped,
        "failed" => failed(false),
        "restarting" | "crash-looping" => failed(server["lasting"] != true),
        _ => Stage::Starting,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// JOIN-5: the status of a running gateway tells each stage, also of a server that is not in effect yet.
    #[test]
    fn stages_in_a_status() {
        let status = json!({
            "upstreams": [
                {"name": "a", "state": "starting", "stderr": ["one", "two"]},
                {"name": "b", "state": "ready", "tools": 3},
                {"name": "c", "state": "failed", "reason": "no licence"},
                {"name": "d", "state": "crash-looping"},
                {"name": "e", "state": "asleep"},
                {"name": "f", "state": "stopped"},
                {"name": "g", "state": "restarting", "reason": "it ended"},
                {"name": "i", "state": "restarting", "reason": "it wants credentials", "lasting": true},
            ],
            "arriving": [{"name": "b", "state": "starting"}, {"name": "h", "state": "ready", "tools": 1}],
        });
        let check = |name: &str, stage: Stage, stderr: Option<&str>, word: &str, settled: bool| {
            let seen = in_status(&status, &[name.to_owned()]);
            assert_eq!((stage.word(), stage.is_settled()), (word, settled), "{name}");
            let expected = Seen { name: name.to_owned(), stage, stderr: stderr.map(str::to_owned) };
            assert_eq!(seen, [expected]);
        };
        let failed = |reason: &str, again| Stage::Failed { reason: reason.to_owned(), again };
        check("a", Stage::Starting, Some("two"), "starting", false);
        check("b", Stage::Starting, None, "starting", false);
        check("c", failed("no licence", false), None, "failed", true);
        check("d", failed("no reason is known", true), None, "failed", true);
        check("e", Stage::Asleep, None, "asleep", true);
        check("f", Stage::Stopped, None, "stopped", true);
        check("g", failed("it ended", true), None, "failed", true);
        check("i", failed("it wants credentials", false), None, "failed", true);
        check("h", Stage::Ready { tools: 1 }, None, "ready", true);
        check("x", Stage::Awaited, None, "waiting", false);
    }
}
