//! The outcome of all checks, as tables for people and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

/// The outcome of one check.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    row: String,
    check: String,
    detail: String,
    ok: bool,
}

impl Outcome {
    /// Passed if there are no complaints.
    pub(crate) fn of(row: &str, check: &str, complaints: &[String]) -> Self {
        let ok = complaints.is_empty();
        Self { row: row.to_owned(), check: check.to_owned(), detail: complaints.join("\n"), ok }
    }
}

/// Checks of one kind.
#[derive(Debug, Default)]
pub(crate) struct Group(Vec<Outcome>);

/// The outcomes of all parts.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// By client.
    pub(crate) clients: Group,
    /// By server.
    pub(crate) servers: Group,
    /// By server, for servers that are reached by URL.
    pub(crate) remote: Group,
    /// By client, with servers that ask questions and send notifications.
    pub(crate) interactive: Group,
    /// By client, with users who sign in.
    pub(crate) access: Group,
    /// The first hour of a new user.
    pub(crate) hour: Group,
    /// By client that the gateway writes itself into.
    pub(crate) connect: Group,
    /// By client that lists once, right after its start.
    pub(crate) cold: Group,
    /// Whether processes ended.
    pub(crate) processes: Group,
}

impl Group {
    pub(crate) fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }

    /// Adds what a driver reported, and whether the driver itself failed.
    pub(crate) fn told(
        &mut self,
        subject: &str,
        era: &str,
        transport: &str,
        (lines, trouble): (Vec<Value>, Option<String>),
    ) {
        let row = |upstream: &str| match (subject, upstream) {
            ("servers", "") => format!("(client) · {era} · {transport}"),
            ("servers", server) => format!("{server} · {era} · {transport}"),
            (client, _) => format!("{client} · {era} · {transport}"),
        };
        let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        // A driver without output has checked nothing.
        let silent = lines.is_empty().then(|| "the driver reported nothing".to_owned());
        for line in &lines {
            let upstream = text(line, "upstream");
            let detail = text(line, "detail");
            let detail = if upstream.is_empty() { detail } else { format!("{upstream}: {detail}") };
            let (check, ok) = (text(line, "check"), line["ok"] == true);
            self.push(Outcome { row: row(&upstream), check, detail, ok });
        }
        if let Some(detail) = trouble.or(silent) {
            self.push(Outcome { row: row(""), check: "driver".to_owned(), detail, ok: false });
        }
    }

    /// A row for every subject and a column for every check, both in order of appearance.
    fn table(&self, title: &str) -> String {
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        let mut cells: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
        for outcome in &self.0 {
            let (row, column) = (outcome.row.as_str(), outcome.check.as_str());
            if !rows.contains(&row) {
                rows.push(row);
            }
            if !columns.contains(&column) {
                columns.push(column);
            }
            let (passed, all) = cells.entry((row, column)).or_default();
            *passed += u32::from(outcome.ok);
            *all += 1;
        }
        let first = rows.iter().map(|row| row.chars().count()).max().unwrap_or(0).max(title.len());
        let mut text = format!("{title:<first$}");
        for column in &columns {
            let _ = write!(text, "  {column}");
        }
        for row in rows {
            let _ = write!(text, "\n{row:<first$}");
            for column in &columns {
                let cell =
                    cells.get(&(row, *column)).map_or("–".to_owned(), |(passed, all)| cell(*passed, *all));
                let _ = write!(text, "  {cell:<width$}", width = column.chars().count());
            }
        }
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

impl Outcomes {
    fn all(&self) -> impl Iterator<Item = &Outcome> {
        let groups = [
            &self.clients,
            &self.servers,
            &self.remote,
            &self.interactive,
            &self.access,
            &self.hour,
            &self.connect,
            &self.cold,
            &self.processes,
        ];
        groups.into_iter().flat_map(|group| &group.0)
    }

    /// How many checks passed.
    pub(crate) fn passed(&self) -> usize {
        self.all().filter(|outcome| outcome.ok).count()
    }

    /// How many checks failed.
    pub(crate) fn failed(&self) -> usize {
        self.all().filter(|outcome| !outcome.ok).count()
    }

    /// The tables, and the details of failed checks.
    pub(crate) fn report(&self) -> String {
        let tables = [
            (&self.clients, "client · era · transport"),
            (&self.servers, "server · era · transport"),
            (&self.remote, "remote server · era · transport"),
            (&self.interactive, "interactive: client · era · transport"),
            (&self.access, "sign-in: client · era · way"),
            (&self.hour, "steps"),
            (&self.connect, "connected client · way"),
            (&self.cold, "cold start: client · era · transport"),
        ];
        // A part that was not run has no table.
        let tables = tables.into_iter().filter(|(group, _)| !group.0.is_empty());
        let tables: Vec<String> = tables.map(|(group, title)| group.table(title)).collect();
        let mut text = [tables.join("\n"), self.processes.list()].join("\n");
        for outcome in self.all().filter(|outcome| !outcome.ok) {
            let _ =
                write!(text, "\nfailed: {}: {}\n{}\n", outcome.row, outcome.check, indent(&outcome.detail));
        }
        text
    }

    /// All outcomes as JSON.
    pub(crate) fn to_json(&self, full: bool) -> Value {
        let group = |group: &Group| -> Vec<Value> {
            let told = group.0.iter().map(|outcome| {
                json!({"subject": outcome.row, "check": outcome.check, "ok": outcome.ok, "detail": outcome.detail})
            });
            told.collect()
        };
        json!({
            "full": full,
            "passed": self.passed(),
            "failed": self.failed(),
            "clients": group(&self.clients),
            "servers": group(&self.servers),
            "remote": group(&self.remote),
            "interactive": group(&self.interactive),
            "access": group(&self.access),
            "hour": group(&self.hour),
            "connect": group(&self.connect),
            "cold": group(&self.cold),
            "processes": group(&self.processes),
        })
    }
}

impl Group {
    /// A line for every kind of check: the checks on processes have no common columns.
    fn list(&self) -> String {
        let mut kinds: Vec<(&str, &str, u32, u32)> = Vec::new();
        for outcome in &self.0 {
            let (row, check) = (outcome.row.as_str(), outcome.check.as_str());
            let known = kinds.iter().position(|kind| (kind.0, kind.1) == (row, check));
            let kind = known.unwrap_or_else(|| {
                kinds.push((row, check, 0, 0));
                kinds.len() - 1
            });
            kinds[kind].2 += u32::from(outcome.ok);
            kinds[kind].3 += 1;
        }
        let line = |(row, check, passed, all): (&str, &str, u32, u32)| {
            format!("{:<8}{row} {check}\n", cell(passed, all))
        };
        kinds.into_iter().map(line).collect()
    }
}

fn cell(passed: u32, all: u32) -> String {
    if passed == all { "ok".to_owned() } else { format!("{passed}/{all} !") }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(outcomes: &[(&str, &str, bool)]) -> Vec<Value> {
        let mut lines = Vec::new();
        for (upstream, check, ok) in outcomes {
            lines.push(json!({"upstream": upstream, "check": check, "ok": ok, "detail": "seen"}));
        }
        lines
    }

    #[test]
    fn a_row_is_a_client_and_a_cell_counts_both_servers() {
        let mut outcomes = Outcomes::default();
        let told = lines(&[("", "list", true), ("old", "call", true), ("new", "call", false)]);
        outcomes.clients.told("rmcp", "modern", "http", (told, None));
        outcomes.clients.told("Inspector CLI", "legacy", "stdio", (lines(&[("", "list", true)]), None));
        assert_eq!(
            outcomes.clients.table("client"),
            "client                          list  call\n\
             rmcp · modern · http            ok    1/2 !\n\
             Inspector CLI · legacy · stdio  ok    –\n"
        );
        assert_eq!((outcomes.passed(), outcomes.failed()), (3, 1));
        assert!(outcomes.report().ends_with("failed: rmcp · modern · http: call\n    new: seen\n\n"));
    }

    #[test]
    fn a_row_is_a_server_where_servers_are_checked() {
        let mut outcomes = Outcomes::default();
        let told = lines(&[("", "connect", true), ("git", "call", true)]);
        outcomes.servers.told("servers", "legacy", "http", (told, None));
        let table = outcomes.servers.table("server");
        assert!(table.contains("(client) · legacy · http"), "{table}");
        assert!(table.contains("git · legacy · http"), "{table}");
    }

    #[test]
    fn a_driver_that_tells_nothing_or_breaks_has_failed() {
        let mut outcomes = Outcomes::default();
        outcomes.clients.told("rmcp", "modern", "http", (Vec::new(), None));
        let broken = Some("the driver ended with signal 11".to_owned());
        outcomes.clients.told("rmcp", "modern", "stdio", (lines(&[("", "list", true)]), broken));
        assert_eq!((outcomes.passed(), outcomes.failed()), (1, 2));
    }

    #[test]
    fn complaints_fail_a_check_on_processes() {
        let mut outcomes = Outcomes::default();
        outcomes.processes.push(Outcome::of("all servers", "gone", &[]));
        outcomes.processes.push(Outcome::of("all servers", "gone", &["17 node".to_owned()]));
        assert_eq!(outcomes.processes.list(), "1/2 !   all servers gone\n");
    }
}
