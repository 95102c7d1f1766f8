//! Reports the findings of a soak as a table for people and as JSON for programs, with complaints.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Crashes, Harm, Holdings, Isolated, Victim};
use crate::statistics::median;

/// The allowed growth in descriptors: a connection may be closing while it is counted.
const MORE_DESCRIPTORS: usize = 4;
/// The allowed growth in threads: threads for blocking work start and end.
const MORE_THREADS: usize = 2;
/// The allowed growth in memory: what the allocator keeps varies by this much.
const MORE_OWN_KB: u64 = 3 * 1024;

/// One kind of harm to one server.
#[derive(Debug)]
pub struct Row {
    server: String,
    harm: Harm,
    back: Vec<Duration>,
    failed: usize,
}

/// All findings of a soak.
#[derive(Debug)]
pub struct Findings {
    cycles: usize,
    rows: Vec<Row>,
    /// The holdings after the first cycles.
    pub early: Option<Holdings>,
    /// The holdings after the last cycle.
    pub late: Option<Holdings>,
    /// Zombies below the gateway after the last cycle.
    pub zombies: usize,
    /// Processes that kept running after SIGTERM of the gateway.
    pub left_after_term: Vec<String>,
    /// Processes that kept running after SIGKILL of the gateway.
    pub left_after_kill: Vec<String>,
    /// The findings about the record of a gateway that was killed under load.
    pub crashes: Option<Crashes>,
    /// The findings about isolated calls.
    pub isolated: Option<Isolated>,
    /// The duration of the whole soak.
    pub elapsed: Duration,
}

impl Findings {
    pub(super) fn new(victims: &[Victim], cycles: usize) -> Self {
        let row =
            |server: &Victim, harm| Row { server: server.name.clone(), harm, back: Vec::new(), failed: 0 };
        let rows = victims.iter().flat_map(|victim| Harm::ALL.map(|harm| row(victim, harm))).collect();
        Self {
            cycles,
            rows,
            early: None,
            late: None,
            zombies: 0,
            left_after_term: Vec::new(),
            left_after_kill: Vec::new(),
            crashes: None,
            isolated: None,
            elapsed: Duration::ZERO,
        }
    }

    pub(super) fn add(&mut self, victim: &Victim, harm: Harm, back: Duration, failed: usize) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.server == victim.name && row.harm == harm) {
            row.back.push(back);
            row.failed += failed;
        }
    }

    /// What is wrong; empty if everything is fine.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let cycles = self.early.zip(self.late);
        let calls = self.isolated.map(|isolated| (isolated.early, isolated.late));
        for (early, late) in cycles.into_iter().chain(calls) {
            let mut more = |what: &str, early: u64, late: u64, allowed: u64| {
                if late > early + allowed {
                    complaints.push(format!("{what} grew from {early} to {late}"));
                }
            };
            more("descriptors", early.descriptors as u64, late.descriptors as u64, MORE_DESCRIPTORS as u64);
            more("threads", early.threads as u64, late.threads as u64, MORE_THREADS as u64);
            more("kilobytes of its own", early.own_kb, late.own_kb, MORE_OWN_KB);
            more("keepers of servers", early.processes as u64, late.processes as u64, 0);
        }
        let zombies = self.zombies + self.isolated.map_or(0, |isolated| isolated.zombies);
        if zombies > 0 {
            complaints.push(format!("{zombies} zombies"));
        }
        for (end, left) in [("SIGTERM", &self.left_after_term), ("SIGKILL", &self.left_after_kill)] {
            complaints.extend(left.iter().map(|process| format!("outlived {end} of the gateway: {process}")));
        }
        complaints
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<12} {:<22} {:>7} {:>14} {:>9} {:>13}\n",
            "server", "harm", "cycles", "back, p50 ms", "most ms", "failed calls"
        );
        for row in self.rows.iter().filter(|row| !row.back.is_empty()) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{:<12} {:<22} {:>7} {:>14.0} {:>9.0} {:>13}",
                row.server,
                row.harm.name(),
                row.back.len(),
                row.p50(),
                row.most(),
                row.failed
            );
        }
        if let (Some(early), Some(late)) = (self.early, self.late) {
            let _ = writeln!(
                out,
                "\n{:<22} {:>8} {:>8}  allowed\n{:<22} {:>8} {:>8}  +{MORE_DESCRIPTORS}\n{:<22} {:>8} {:>8}  +{MORE_THREADS}\n\
                 {:<22} {:>8} {:>8}  +{MORE_OWN_KB}\n{:<22} {:>8} {:>8}  +0",
                "the gateway",
                "early",
                "late",
                "descriptors",
                early.descriptors,
                late.descriptors,
                "threads",
                early.threads,
                late.threads,
                "own memory, KB",
                early.own_kb,
                late.own_kb,
                "keepers of servers",
                early.processes,
                late.processes
            );
        }
        let _ = writeln!(
            out,
            "zombies {}; left after SIGTERM of the gateway {}, after SIGKILL {}\n{} cycles in {:.0} s",
            self.zombies,
            self.left_after_term.len(),
            self.left_after_kill.len(),
            self.cycles,
            self.elapsed.as_secs_f64()
        );
        if let Some(Crashes { kills, answered, rows }) = self.crashes {
            let _ = writeln!(
                out,
                "killed under load {kills} times: all {answered} answered calls are in the record, whose {rows} rows verify"
            );
        }
        if let Some(Isolated { calls, early, late, .. }) = self.isolated {
            let _ = writeln!(
                out,
                "{calls} calls with a process tree each: descriptors {} to {}, own KB {} to {}",
                early.descriptors, late.descriptors, early.own_kb, late.own_kb
            );
        }
        out
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .filter(|row| !row.back.is_empty())
            .map(|row| {
                json!({
                    "server": row.server, "harm": row.harm.name(), "cycles": row.back.len(),
                    "back_p50_ms": row.p50().round(), "back_most_ms": row.most().round(), "failed_calls": row.failed,
                })
            })
            .collect();
        let held = |held: Option<Holdings>| {
            held.map(|held| {
                json!({
                    "descriptors": held.descriptors, "threads": held.threads,
                    "own_kb": held.own_kb, "keepers": held.processes,
                })
            })
        };
        json!({
            "cycles": self.cycles, "seconds": self.elapsed.as_secs(), "rows": rows,
            "early": held(self.early), "late": held(self.late), "zombies": self.zombies,
            "left_after_term": self.left_after_term, "left_after_kill": self.left_after_kill,
            "complaints": self.complaints(),
            "isolated": self.isolated.map(|isolated| {
                json!({"calls": isolated.calls, "early": held(Some(isolated.early)), "late": held(Some(isolated.late))})
            }),
            "kills": self.crashes.map(|crashes| {
                json!({"kills": crashes.kills, "answered": crashes.answered, "rows": crashes.rows})
            }),
        })
    }
}

impl Row {
    fn millis(&self) -> impl Iterator<Item = f64> {
        self.back.iter().map(|back| back.as_secs_f64() * 1000.0)
    }

    fn p50(&self) -> f64 {
        median(self.millis())
    }

    fn most(&self) -> f64 {
        self.millis().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(late: Holdings) -> Findings {
        let victim = Victim::mock("mock-upstream", "modern");
        let mut findings = Findings::new(std::slice::from_ref(&victim), 8);
        findings.add(&victim, Harm::Kill, Duration::from_millis(30), 1);
        findings.add(&victim, Harm::Kill, Duration::from_millis(10), 0);
        findings.early = Some(Holdings { descriptors: 20, threads: 3, own_kb: 9000, processes: 1 });
        findings.late = Some(late);
        findings
    }

    #[test]
    fn what_grows_is_complained_about() {
        let flat = Holdings { descriptors: 24, threads: 5, own_kb: 12_072, processes: 1 };
        assert_eq!(findings(flat).complaints(), Vec::<String>::new());
        let grown = Holdings { descriptors: 25, threads: 6, own_kb: 12_073, processes: 2 };
        assert_eq!(findings(grown).complaints().len(), 4);
    }

    #[test]
    fn zombies_and_survivors_are_complained_about() {
        let flat = Holdings { descriptors: 20, threads: 3, own_kb: 9000, processes: 1 };
        let mut findings = findings(flat);
        findings.zombies = 1;
        findings.left_after_kill = vec!["7 (S) node".to_owned()];
        findings.crashes = Some(Crashes { kills: 5, answered: 7, rows: 14 });
        assert!(findings.table().contains("killed under load 5 times: all 7"), "{}", findings.table());
        assert_eq!(findings.to_json()["kills"]["rows"], 14);
        assert_eq!(findings.complaints(), ["1 zombies", "outlived SIGKILL of the gateway: 7 (S) node"]);
        assert!(findings.table().contains("after SIGKILL 1"), "{}", findings.table());
        let json = findings.to_json();
        assert_eq!(json["rows"][0]["back_p50_ms"], 20.0);
        assert_eq!(json["rows"][0]["failed_calls"], 1);
        assert_eq!(json["rows"][1], Value::Null);
    }
}
