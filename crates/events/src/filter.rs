//! Which events a subscriber wants. Other events never enter its queue, so they displace nothing and do not
//! count as missed.

use crate::{Event, Topic};

/// Which events a subscriber wants; the default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Topics by their first words: `provider.mcp.tool` matches `provider.mcp.tool.failed`, but not
    /// `provider.mcp.tools.refreshed`. An empty list means every topic.
    pub topics: Vec<String>,
    /// The only server of interest. Events without a server are then excluded too.
    pub server: Option<String>,
}

impl Filter {
    /// Whether events of a topic can pass. A filter that admits no topic of [`Topic::ALL`] has a misspelt one.
    #[must_use]
    pub fn admits(&self, topic: Topic) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|prefix| begins_with(topic.as_str(), prefix))
    }

    /// Whether an event passes.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.server.as_deref().is_none_or(|server| event.server() == Some(server))
            && self.admits(event.topic())
    }
}

/// Whether the words of `topic` begin with those of `prefix`; a dot at the end of `prefix` is ignored.
fn begins_with(topic: &str, prefix: &str) -> bool {
    let prefix = prefix.strip_suffix('.').unwrap_or(prefix);
    topic.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use bridgehead_call::CorrelationId;

    use super::*;
    use crate::Detail;

    /// BUS-1: topics can be chosen by their first words.
    #[test]
    fn topics_are_chosen_by_whole_words() {
        #[track_caller]
        fn check(topics: &[&str], expected: &[Topic]) {
            let filter = Filter { topics: topics.iter().map(ToString::to_string).collect(), server: None };
            let admitted: Vec<Topic> = Topic::ALL.into_iter().filter(|topic| filter.admits(*topic)).collect();
            assert_eq!(admitted, expected);
        }
        check(&[], &Topic::ALL);
        let (audit, servers) = Topic::ALL.split_last().unwrap();
        check(&["provider.mcp"], servers);
        check(&["provider.mcp."], servers);
        check(&["audit"], &[*audit]);
        check(&["provider.mcp.tool"], &[Topic::ToolCompleted, Topic::ToolFailed]);
        check(&["provider.mcp.tools"], &[Topic::ToolsDiscovered, Topic::ToolsRefreshed]);
        check(&["provider.mcp.re"], &[]);
        check(&["provider.mcp.restart", "provider.mcp.probe"], &[Topic::Probe, Topic::Restart]);
        check(&["provider.mcp.probe.more"], &[]);
        check(&[""], &[]);
    }

    #[test]
    fn a_server_excludes_others_and_none() {
        let filter = Filter { topics: Vec::new(), server: Some("files".to_owned()) };
        for (server, expected) in [(Some("files"), true), (Some("file"), false), (None, false)] {
            let event = Event::new(
                jiff::Timestamp::UNIX_EPOCH,
                CorrelationId::mint(),
                server.map(Into::into),
                Detail::InitStarted,
            );
            assert_eq!(filter.matches(&event), expected, "{server:?}");
        }
    }
}
