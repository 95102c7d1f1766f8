//! `audit top`: how often each caller called each tool, and how that ended.
//!
//! It counts the calls of the record that are still kept; nothing is counted beside it.

use std::collections::BTreeMap;

use bridgehead::audit::{Archive, RecordedCall};
use clap::Args;
use serde_json::{Value, json};

use super::read::{Which, asked, each, program, readable};
use crate::exit::Exit;
use crate::output::{self, one_line};
use crate::table;

/// A terminal of this width has room for all columns.
const WIDE: usize = 90;

/// Count calls per tool and caller, the most frequent first
#[derive(Debug, Args)]
#[command(
    after_help = "A call that failed ended with an error of the tool, the server or the gateway, or was not allowed.

Examples:
  bridgehead audit top --since 24h
  bridgehead audit top --principal ada --json
  bridgehead audit top --server files --outcome error"
)]
pub(crate) struct Top {
    #[command(flatten)]
    which: Which,
    /// Show only the N most frequent; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 30)]
    limit: usize,
}

/// Who called what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    tool: String,
    server: Option<String>,
    principal: Option<String>,
    /// Its versions count together.
    client: Option<String>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Total {
    calls: u64,
    failed: u64,
    /// The sum over the calls that have ended, and their number.
    took_ms: u64,
    ended: u64,
    bytes_in: u64,
    bytes_out: u64,
    last: String,
}

impl Total {
    fn count(&mut self, call: &RecordedCall) {
        let exit = call.exit();
        self.calls += 1;
        self.failed += u64::from(["error", "toolError"].contains(&call.outcome()));
        if let Some(took) = exit.and_then(|row| row.duration_ms) {
            (self.took_ms, self.ended) = (self.took_ms.saturating_add(took), self.ended + 1);
        }
        let bytes = |bytes: Option<u64>| bytes.unwrap_or_default();
        self.bytes_in = self.bytes_in.saturating_add(bytes(call.enter().and_then(|row| row.bytes)));
        self.bytes_out = self.bytes_out.saturating_add(bytes(exit.and_then(|row| row.bytes)));
        if call.first.time > self.last {
            self.last.clone_from(&call.first.time);
        }
    }

    fn mean_ms(&self) -> Option<u64> {
        self.took_ms.checked_div(self.ended)
    }
}

pub(super) fn top(top: &Top, archive: &Archive, as_json: bool) -> Result<Exit, String> {
    let mut totals: BTreeMap<Subject, Total> = BTreeMap::new();
    each(&readable(archive)?, |call| {
        if top.which.matches(&call) {
            totals.entry(subject(&call)).or_default().count(&call);
        }
        Ok(())
    })?;
    let sorted = sorted(totals, top.limit);
    if as_json {
        return Ok(output::json_lines(sorted.iter().map(|one| as_line(one).to_string()), Exit::Success));
    }
    if sorted.is_empty() {
        output::talk(&format!("no matching calls in {}", archive.folder().display()));
        return Ok(Exit::Success);
    }
    Ok(output::data(&output::table(&rows(&sorted, table::stdout_width())), Exit::Success))
}

fn subject(call: &RecordedCall) -> Subject {
    let first = &call.first;
    // Other requests count by their method: each resource for itself would fill the table.
    let tool = first.method.clone().unwrap_or_else(|| asked(first));
    Subject {
        tool,
        server: first.server.clone(),
        principal: first.principal.clone(),
        client: first.client.as_deref().map(|client| program(client).to_owned()),
    }
}

/// The most frequent first; 0 keeps all.
fn sorted(totals: BTreeMap<Subject, Total>, limit: usize) -> Vec<(Subject, Total)> {
    let mut sorted: Vec<_> = totals.into_iter().collect();
    sorted.sort_by(|(one, its), (other, others)| others.calls.cmp(&its.calls).then(one.cmp(other)));
    sorted.truncate(if limit == 0 { usize::MAX } else { limit });
    sorted
}

fn as_line((subject, total): &(Subject, Total)) -> Value {
    json!({
        "tool": subject.tool,
        "server": subject.server,
        "principal": subject.principal,
        "client": subject.client,
        "calls": total.calls,
        "failed": total.failed,
        "meanMs": total.mean_ms(),
        "bytesIn": total.bytes_in,
        "bytesOut": total.bytes_out,
        "last": total.last,
    })
}

fn rows(sorted: &[(Subject, Total)], width: Option<usize>) -> Vec<Vec<String>> {
    let narrow = width.is_some_and(|width| width < WIDE);
    let head = ["TOOL", "PRINCIPAL", "CLIENT", "CALLS", "FAILED", "MEAN MS", "BYTES", "LAST"];
    let kept = if narrow { 5 } else { head.len() };
    let cells = sorted.iter().map(|(subject, total)| {
        let name = |name: &Option<String>| one_line(name.as_deref().unwrap_or("-"), 40);
        let mut row = vec![
            one_line(&subject.tool, 64),
            name(&subject.principal),
            name(&subject.client),
            total.calls.to_string(),
            total.failed.to_string(),
            total.mean_ms().map_or_else(|| "-".to_owned(), |ms| ms.to_string()),
            total.bytes_in.saturating_add(total.bytes_out).to_string(),
            output::time(total.last.get(..19).unwrap_or(&total.last)),
        ];
        row.truncate(kept);
        row
    });
    let head = head.iter().take(kept).map(ToString::to_string).collect();
    std::iter::once(head).chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, principal: &str, client: Option<&str>, outcome: &str, ms: u64) -> RecordedCall {
        let client = client.map(|client| format!(r#","client":"{client}""#)).unwrap_or_default();
        let rows = format!(
            r#"[{{"seq":1,"kind":"enter","time":"2026-11-18T10:00:0{ms}.000000Z","correlationId":"c","tool":"{tool}",
                "principal":"{principal}","bytes":10{client}}},
               {{"seq":2,"enter":1,"kind":"exit","time":"t","correlationId":"c","tool":"{tool}","outcome":"{outcome}",
                "durationMs":{ms},"bytes":5}}]"#
        );
        let [first, exit]: [bridgehead::audit::Row; 2] = serde_json::from_str(&rows).unwrap();
        RecordedCall::new("a.0001".to_owned(), first, Some(exit))
    }

    /// HOUR-4: calls are counted per tool, caller and client program, whose versions count together; the most frequent come first.
    #[test]
    fn totals() {
        let calls = [
            call("b", "ada", Some("ide 1"), "result", 1),
            call("a", "ada", Some("ide 1"), "result", 4),
            call("a", "ada", Some("ide 2"), "toolError", 2),
            call("a", "bob", None, "error", 9),
        ];
        let mut totals: BTreeMap<Subject, Total> = BTreeMap::new();
        for call in &calls {
            totals.entry(subject(call)).or_default().count(call);
        }
        let all = sorted(totals.clone(), 0);
        assert_eq!(all.len(), 3);
        assert_eq!(
            as_line(&all[0]),
            json!({"tool": "a", "server": null, "principal": "ada", "client": "ide", "calls": 2, "failed": 1,
                "meanMs": 3, "bytesIn": 20, "bytesOut": 10, "last": "2026-11-18T10:00:04.000000Z"})
        );
        assert_eq!((all[1].0.principal.as_deref(), all[1].1.failed), (Some("bob"), 1));
        assert_eq!(sorted(totals, 1), all[..1]);
        assert_eq!(
            rows(&all[..1], Some(60)),
            [vec!["TOOL", "PRINCIPAL", "CLIENT", "CALLS", "FAILED"], vec!["a", "ada", "ide", "2", "1"]]
        );
        assert_eq!(rows(&all, None)[0].len(), 8);
    }
}
