//! Reports the findings as a table for people and as JSON for programs, and judges them by the bars.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::isolation::TREE;
use crate::load::Round;
use crate::plan::{Behind, Cell, Findings};
use crate::record::Verification;
use crate::request::{Ask, Era};
use crate::statistics::median;
use crate::supervision::{MANY, Memory, Restart, START_SERVERS, Supervision};

/// The highest latency of a single call with recording, as a multiple of the latency without.
const RECORDED_LATENCY_RATIO: f64 = 1.5;
/// Like [`RECORDED_LATENCY_RATIO`], with a server over HTTP.
const RECORDED_HTTP_LATENCY_RATIO: f64 = 1.6;
/// The lowest throughput with recording, as a share of the throughput without.
const RECORDED_THROUGHPUT_RATIO: f64 = 0.65;
/// The lowest speed of verifying a record, as a share of the speed of reading and hashing its bytes.
const VERIFY_RATIO: f64 = 0.5;
/// Below this many requests per second the direct path is not a valid reference.
const DIRECT_AT_LEAST: f64 = 60_000.0;
const LATENCY_RATIO: f64 = 1.7;
const THROUGHPUT_RATIO: f64 = 0.55;
const ADDED_P95_MILLIS: f64 = 10.0;
const CPU_MICROS: f64 = 20.0;
const HTTP_LATENCY_RATIO: f64 = 2.5;
const HTTP_THROUGHPUT_RATIO: f64 = 0.32;
const HTTP_CPU_MICROS: f64 = 32.0;
const LIST_RATIO: f64 = 1.2;
const IDLE_MEGABYTES: f64 = 12.0;
const FIRST_ANSWER_MILLIS: f64 = 15.0;
const AMONG_MANY_RATIO: f64 = 1.1;
const KILOBYTES_PER_SERVER: f64 = 300.0;
const BACK_MILLIS: f64 = 300.0;
const FULL_LIST_MILLIS: f64 = 25.0;
const SHIM_RATIO: f64 = 2.5;
const ISOLATED_P50_MILLIS: f64 = 0.3;
const ISOLATED_P95_MILLIS: f64 = 2.0;
const LARGE_START_RATIO: f64 = 1.2;
const KILL_MILLIS: f64 = 50.0;

/// One promised figure.
#[derive(Debug)]
pub struct Bar {
    name: String,
    measured: f64,
    limit: f64,
    at_most: bool,
    unit: &'static str,
}

impl Bar {
    /// Whether it holds.
    pub fn holds(&self) -> bool {
        if self.at_most { self.measured <= self.limit } else { self.measured >= self.limit }
    }
}

/// The medians of several rounds, either direct or through the gateway.
struct Medians {
    p50: f64,
    p95: f64,
    p99: f64,
    per_second: f64,
    cpu_micros: f64,
}

impl Medians {
    fn of(rounds: &[Round]) -> Self {
        let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
        Self {
            p50: of(|round| round.latency.p50),
            p95: of(|round| round.latency.p95),
            p99: of(|round| round.latency.p99),
            per_second: of(|round| round.per_second),
            cpu_micros: of(|round| round.cpu_micros),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "p50_us": rounded(self.p50), "p95_us": rounded(self.p95), "p99_us": rounded(self.p99),
            "requests_per_second": self.per_second.round(), "cpu_us_per_request": rounded(self.cpu_micros),
        })
    }
}

impl Cell {
    /// The median of the ratios within each round.
    fn ratio(&self, value: fn(&Round) -> f64) -> f64 {
        median(self.direct.iter().zip(&self.through).map(|(direct, through)| value(through) / value(direct)))
    }

    fn latency_ratio(&self) -> f64 {
        self.ratio(|round| round.latency.p50)
    }

    /// What the gateway adds at the 95th percentile.
    fn added_p95_millis(&self) -> f64 {
        (Medians::of(&self.through).p95 - Medians::of(&self.direct).p95) / 1000.0
    }

    fn throughput_ratio(&self) -> f64 {
        self.ratio(|round| round.per_second)
    }
}

impl Findings {
    /// All bars.
    pub fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let mut bar = |name: String, measured: f64, at_most: bool, limit: f64, unit: &'static str| {
            bars.push(Bar { name, measured, limit, at_most, unit });
        };
        for era in Era::ALL {
            let name = era.name();
            let all = || self.cells.iter().filter(move |cell| cell.era == era);
            let cells = || all().filter(|cell| !cell.behind.is_recorded());
            for cell in all().filter(|cell| cell.behind.is_recorded()) {
                let (name, latency) = match cell.behind {
                    Behind::RecordedHttp => (format!("{name}, http"), RECORDED_HTTP_LATENCY_RATIO),
                    _ => (name.to_owned(), RECORDED_LATENCY_RATIO),
                };
                if cell.connections == 1 {
                    let ratio = cell.latency_ratio();
                    bar(format!("p50 at 1 with audit, {name}"), ratio, true, latency, "× without");
                } else {
                    let ratio = cell.throughput_ratio();
                    let name = format!("requests/s at {} with audit, {name}", cell.connections);
                    bar(name, ratio, false, RECORDED_THROUGHPUT_RATIO, "× without");
                }
            }
            let alone = || cells().filter(|cell| cell.connections == 1);
            if alone().next().is_some() {
                let cost = alone().map(Cell::added_p95_millis).fold(0.0, f64::max);
                bar(format!("p95 of what the gateway adds at 1, {name}"), cost, true, ADDED_P95_MILLIS, "ms");
            }
            for cell in cells() {
                let (name, latency, throughput, most_cpu) = match cell.behind {
                    Behind::Http => {
                        (format!("{name}, http"), HTTP_LATENCY_RATIO, HTTP_THROUGHPUT_RATIO, HTTP_CPU_MICROS)
                    }
                    _ => (name.to_owned(), LATENCY_RATIO, THROUGHPUT_RATIO, CPU_MICROS),
                };
                match (cell.ask, cell.connections) {
                    (Ask::Call, 1) => {
                        bar(format!("p50 at 1, {name}"), cell.latency_ratio(), true, latency, "× direct");
                    }
                    (Ask::Call, 64) => {
                        if cell.behind == Behind::Stdio {
                            let direct = Medians::of(&cell.direct).per_second;
                            bar(
                                format!("direct requests/s at 64, {name}"),
                                direct,
                                false,
                                DIRECT_AT_LEAST,
                                "/s",
                            );
                        }
                        let ratio = cell.throughput_ratio();
                        bar(format!("requests/s at 64, {name}"), ratio, false, throughput, "× direct");
                        let cpu = Medians::of(&cell.through).cpu_micros;
                        bar(format!("gateway CPU at 64, {name}"), cpu, true, most_cpu, "µs per request");
                    }
                    (Ask::List, _) => {
                        let ratio = cell.latency_ratio();
                        bar(
                            format!("p50 of a list of 1000 tools, {name}"),
                            ratio,
                            true,
                            LIST_RATIO,
                            "× direct",
                        );
                    }
                    _ => {}
                }
            }
        }
        bar("idle memory".to_owned(), self.idle_megabytes(), true, IDLE_MEGABYTES, "MB");
        let start = millis(&self.first_answer);
        bar("start to first answer".to_owned(), start, true, FIRST_ANSWER_MILLIS, "ms");
        if let Some(ratio) = self.verification.speed_ratio() {
            let name = format!("audit verify of {} rows", self.verification.rows);
            bar(name, ratio, false, VERIFY_RATIO, "× reading and hashing");
        }
        let kept = &self.supervision;
        if let Some(ratio) = kept.among_many_ratio() {
            bar(format!("p50 at 1 among {MANY} upstreams"), ratio, true, AMONG_MANY_RATIO, "× one upstream");
        }
        if !kept.memory.is_empty() {
            let grown = median(kept.memory.iter().map(|memory| memory.gateway));
            bar("memory per upstream".to_owned(), grown, true, KILOBYTES_PER_SERVER, "KB");
        }
        if !kept.restarts.is_empty() {
            let beyond = median(kept.restarts.iter().map(Restart::beyond_millis));
            bar("killed server, back after its own start".to_owned(), beyond, true, BACK_MILLIS, "ms");
        }
        if !kept.full_lists.is_empty() {
            let list = millis(&kept.full_lists);
            bar(
                format!("start to the list of {START_SERVERS} upstreams"),
                list,
                true,
                FULL_LIST_MILLIS,
                "ms",
            );
        }
        if let Some(ratio) = kept.shim_ratio() {
            bar("start through the shim to first byte".to_owned(), ratio, true, SHIM_RATIO, "× plain");
        }
        if let Some((p50, p95)) = kept.isolation.added_millis() {
            bar("p50 that isolation adds to a call".to_owned(), p50, true, ISOLATED_P50_MILLIS, "ms");
            bar("p95 that isolation adds to a call".to_owned(), p95, true, ISOLATED_P95_MILLIS, "ms");
        }
        if let Some(ratio) = kept.isolation.start_ratio() {
            bar("start with a gigabyte more".to_owned(), ratio, true, LARGE_START_RATIO, "× without");
        }
        if let Some(took) = kept.isolation.kill_millis() {
            bar(format!("kill of {TREE} processes"), took, true, KILL_MILLIS, "ms");
        }
        bars
    }

    fn idle_megabytes(&self) -> f64 {
        megabytes(median(self.idle_kb.iter().map(|kilobytes| *kilobytes as f64)))
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:<34} {:<8} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8} {:>8}",
            "load, era, connections",
            "way",
            "p50 µs",
            "p95 µs",
            "p99 µs",
            "requests/s",
            "CPU µs",
            "p50 ×",
            "rate ×"
        );
        for cell in &self.cells {
            for (way, rounds) in [("direct", &cell.direct), ("through", &cell.through)] {
                let Medians { p50, p95, p99, per_second, cpu_micros } = Medians::of(rounds);
                let _ = write!(
                    out,
                    "{:<34} {way:<8} {p50:>9.1} {p95:>9.1} {p99:>9.1} {per_second:>10.0} {cpu_micros:>9.1}",
                    cell.name()
                );
                let _ = match way {
                    "direct" => writeln!(out),
                    _ => writeln!(out, " {:>8.2} {:>8.2}", cell.latency_ratio(), cell.throughput_ratio()),
                };
            }
        }
        let _ = writeln!(
            out,
            "\nCPU µs: CPU time per request of the process that answers (echo-upstream directly, else the gateway)\n\
             first answer {:.1} ms, first list with the upstream's tools {:.1} ms, idle {:.1} MB, peak {:.1} MB, peak \
             with 1000 tools {:.1} MB\n{} form, {} cores, load average {:.1} before and {:.1} after, {:.1} % \
             of the CPU time taken by the host, {:.0} s\n",
            millis(&self.first_answer),
            millis(&self.first_list),
            self.idle_megabytes(),
            megabytes(self.peak_kb as f64),
            megabytes(self.peak_list_kb as f64),
            self.form.name(),
            self.cores,
            self.load_average[0],
            self.load_average[1],
            self.taken,
            self.elapsed.as_secs_f64(),
        );
        out.push_str(&words(self.verification.figures()));
        out.push_str(&words(self.supervision.figures()));
        for bar in self.bars() {
            let verdict = if bar.holds() { "holds " } else { "MISSED" };
            let sign = if bar.at_most { "≤" } else { "≥" };
            let _ = writeln!(
                out,
                "{verdict} {:<41} {:>9.2} {sign} {} {}",
                bar.name, bar.measured, bar.limit, bar.unit
            );
        }
        out
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        let cells: Vec<Value> = self.cells.iter().map(|cell| {
            json!({
                "load": cell.name(), "era": cell.era.name(), "connections": cell.connections,
                "direct": Medians::of(&cell.direct).to_json(), "through": Medians::of(&cell.through).to_json(),
                "p50_ratio": rounded(cell.latency_ratio()), "rate_ratio": rounded(cell.throughput_ratio()),
            })
        }).collect();
        let bars: Vec<Value> = self.bars().iter().map(|bar| {
            json!({
                "name": bar.name, "measured": rounded(bar.measured), "limit": bar.limit,
                "is": if bar.at_most { "at most" } else { "at least" }, "unit": bar.unit, "holds": bar.holds(),
            })
        }).collect();
        json!({
            "form": self.form.name(), "cores": self.cores, "load_average": self.load_average,
            "taken_by_host_percent": rounded(self.taken),
            "seconds": self.elapsed.as_secs(), "cells": cells, "bars": bars,
            "first_answer_ms": rounded(millis(&self.first_answer)), "first_list_ms": rounded(millis(&self.first_list)),
            "idle_mb": rounded(self.idle_megabytes()), "peak_mb": rounded(megabytes(self.peak_kb as f64)),
            "peak_1000_tools_mb": rounded(megabytes(self.peak_list_kb as f64)),
            "supervision": as_json(self.supervision.figures()),
            "verification": as_json(self.verification.figures()),
        })
    }
}

impl Restart {
    fn beyond_millis(&self) -> f64 {
        (self.back.as_secs_f64() - self.own.as_secs_f64()) * 1000.0
    }
}

impl Supervision {
    fn among_many_ratio(&self) -> Option<f64> {
        let ratios = self.among_many.iter().map(|(one, many)| many.latency.p50 / one.latency.p50);
        (!self.among_many.is_empty()).then(|| median(ratios))
    }

    fn shim_ratio(&self) -> Option<f64> {
        let ratios = self.starts.iter().map(|(plain, kept)| kept.as_secs_f64() / plain.as_secs_f64());
        (!self.starts.is_empty()).then(|| median(ratios))
    }

    /// The figures behind the bars, with their names.
    fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        if !self.among_many.is_empty() {
            let (one, many): (Vec<_>, Vec<_>) = self.among_many.iter().copied().unzip();
            figures.push(("p50_one_upstream_us", Medians::of(&one).p50));
            figures.push(("p50_many_upstreams_us", Medians::of(&many).p50));
        }
        if !self.memory.is_empty() {
            let of = |value: fn(&Memory) -> f64| median(self.memory.iter().map(value));
            figures.push(("upstream_gateway_kb", of(|memory| memory.gateway)));
            figures.push(("upstream_shim_own_kb", of(|memory| memory.shim_own)));
            figures.push(("upstream_shim_resident_kb", of(|memory| memory.shim_resident)));
        }
        let with_tools = self.memory.iter().find_map(|memory| memory.gateway_with_tools);
        figures.extend(with_tools.map(|grown| ("upstream_100_tools_gateway_kb", grown)));
        if !self.restarts.is_empty() {
            let of = |value: fn(&Restart) -> Duration| {
                millis(&self.restarts.iter().map(value).collect::<Vec<_>>())
            };
            figures.push(("killed_server_back_ms", of(|restart| restart.back)));
            figures.push(("server_own_start_ms", of(|restart| restart.own)));
        }
        if !self.full_lists.is_empty() {
            figures.push(("full_list_of_20_ms", millis(&self.full_lists)));
        }
        if !self.starts.is_empty() {
            let (plain, kept): (Vec<_>, Vec<_>) = self.starts.iter().copied().unzip();
            figures.push(("plain_start_ms", millis(&plain)));
            figures.push(("shim_start_ms", millis(&kept)));
        }
        if !self.isolation.calls.is_empty() {
            let (shared, alone): (Vec<_>, Vec<_>) = self.isolation.calls.iter().copied().unzip();
            figures.push(("shared_call_ms", millis(&shared)));
            figures.push(("isolated_call_ms", millis(&alone)));
        }
        figures
            .extend(self.isolation.per_second.map(|rate| ("isolated_calls_back_to_back_per_second", rate)));
        if !self.isolation.starts.is_empty() {
            let (small, large): (Vec<_>, Vec<_>) = self.isolation.starts.iter().copied().unzip();
            figures.push(("start_ms", millis(&small)));
            figures.push(("start_with_a_gigabyte_ms", millis(&large)));
        }
        figures.extend(self.isolation.kill_millis().map(|took| ("kill_of_100_ms", took)));
        figures
    }
}

impl Verification {
    fn speed_ratio(&self) -> Option<f64> {
        let ratios =
            self.rounds.iter().map(|(hashed, verified)| hashed.as_secs_f64() / verified.as_secs_f64());
        (!self.rounds.is_empty()).then(|| median(ratios))
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        if self.rounds.is_empty() {
            return Vec::new();
        }
        let (hashed, verified): (Vec<_>, Vec<_>) = self.rounds.iter().copied().unzip();
        vec![("record_hashed_ms", millis(&hashed)), ("record_verified_ms", millis(&verified))]
    }
}

/// The figures with their names, one per line.
fn words(figures: Vec<(&'static str, f64)>) -> String {
    let mut out = String::new();
    for (name, value) in figures {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{:<34} {value:>9.2}", name.replace('_', " "));
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

fn as_json(figures: Vec<(&'static str, f64)>) -> Value {
    figures.into_iter().map(|(name, value)| (name.to_owned(), Value::from(rounded(value)))).collect()
}

fn millis(durations: &[Duration]) -> f64 {
    median(durations.iter().map(|duration| duration.as_secs_f64() * 1000.0))
}

fn megabytes(kilobytes: f64) -> f64 {
    kilobytes * 1024.0 / 1e6
}

/// Rounds to two decimal places: more would suggest a precision that there is not.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::Isolation;
    use crate::plan::Form;
    use crate::statistics::Percentiles;

    fn round(p50: f64, per_second: f64, cpu_micros: f64) -> Round {
        Round { latency: Percentiles { p50, p95: p50 * 2.0, p99: p50 * 3.0 }, per_second, cpu_micros }
    }

    fn findings(through: Round) -> Findings {
        let cells = Era::ALL.into_iter().flat_map(|era| {
            [(Ask::Call, 1), (Ask::Call, 64), (Ask::List, 1)].map(|(ask, connections)| Cell {
                behind: Behind::Stdio,
                era,
                ask,
                connections,
                direct: vec![round(100.0, 80_000.0, 10.0); 3],
                through: vec![through, round(1.0, 1e6, 1.0), round(1e6, 1.0, 1e6)],
            })
        });
        Findings {
            form: Form::Short,
            cores: 2,
            load_average: [0.0, 0.0],
            taken: 0.0,
            elapsed: Duration::from_secs(1),
            cells: cells.collect(),
            first_answer: vec![Duration::from_millis(9)],
            first_list: vec![Duration::from_millis(10)],
            idle_kb: vec![8000],
            peak_kb: 9000,
            peak_list_kb: 10_000,
            supervision: Supervision::default(),
            verification: Verification::default(),
        }
    }

    fn missed(findings: &Findings) -> Vec<String> {
        findings.bars().iter().filter(|bar| !bar.holds()).map(|bar| bar.name.clone()).collect()
    }

    /// QA-5: the gateway's own cost, without the tool's, is judged at the 95th percentile.
    #[test]
    fn what_the_gateway_adds_is_judged() {
        let slow = findings(round(11_000.0, 50_000.0, 15.0));
        assert!(
            missed(&slow).iter().any(|name| name.starts_with("p95 of what the gateway adds")),
            "{:?}",
            missed(&slow)
        );
        let good = findings(round(110.0, 50_000.0, 15.0));
        assert_eq!(missed(&good), Vec::<String>::new());
    }

    #[test]
    fn bars_are_judged_by_medians_in_both_eras() {
        let good = findings(round(110.0, 50_000.0, 15.0));
        assert_eq!(missed(&good), Vec::<String>::new());
        assert_eq!(good.bars().len(), 14);
        let bad = findings(round(180.0, 40_000.0, 21.0));
        assert_eq!(missed(&bad).len(), 8);
    }

    #[test]
    fn supervision_is_judged_where_it_was_measured() {
        let ms = Duration::from_millis;
        let mut findings = findings(round(110.0, 50_000.0, 15.0));
        let memory =
            |gateway| Memory { gateway, gateway_with_tools: None, shim_own: 200.0, shim_resident: 2000.0 };
        findings.supervision = Supervision {
            among_many: vec![(round(100.0, 1.0, 1.0), round(109.0, 1.0, 1.0))],
            memory: vec![memory(299.0)],
            restarts: vec![Restart { back: ms(301), own: ms(2) }],
            full_lists: vec![ms(25)],
            starts: vec![(ms(2), ms(5))],
            isolation: Isolation {
                calls: vec![(ms(1), ms(1))],
                per_second: Some(400.0),
                starts: vec![(ms(10), ms(12))],
                kills: vec![ms(50)],
            },
        };
        assert_eq!(missed(&findings), Vec::<String>::new());
        assert_eq!(findings.bars().len(), 23);
        let rate = "isolated_calls_back_to_back_per_second";
        assert_eq!(findings.to_json()["supervision"][rate], 400.0, "it is reported but not judged");
        findings.supervision.among_many = vec![(round(100.0, 1.0, 1.0), round(111.0, 1.0, 1.0))];
        findings.supervision.memory = vec![memory(301.0)];
        findings.supervision.restarts = vec![Restart { back: ms(303), own: ms(2) }];
        findings.supervision.full_lists = vec![ms(26)];
        findings.supervision.starts = vec![(ms(2), ms(6))];
        findings.supervision.isolation = Isolation {
            calls: vec![(ms(1), ms(4))],
            per_second: None,
            starts: vec![(ms(10), ms(13))],
            kills: vec![ms(51)],
        };
        assert_eq!(missed(&findings).len(), 9);
        assert_eq!(findings.to_json()["supervision"]["shim_start_ms"], 6.0);
        assert!(findings.table().contains("killed server back ms"), "{}", findings.table());
    }

    #[test]
    fn recording_and_verifying_are_judged() {
        let ms = Duration::from_millis;
        let mut findings = findings(round(110.0, 50_000.0, 15.0));
        let recorded = |behind, connections, through| Cell {
            direct: vec![round(100.0, 80_000.0, 10.0)],
            through: vec![through],
            ..Cell::new(behind, Era::Modern, Ask::Call, connections)
        };
        let judged = |p50: f64, per_second| {
            [Behind::Recorded, Behind::RecordedHttp].into_iter().flat_map(move |behind| {
                [1, 64].map(|connections| recorded(behind, connections, round(p50, per_second, 20.0)))
            })
        };
        findings.cells.extend(judged(149.0, 53_000.0));
        findings.verification = Verification { rows: 10, rounds: vec![(ms(10), ms(20))] };
        assert_eq!(missed(&findings), Vec::<String>::new());
        findings.cells.extend(judged(155.0, 51_000.0));
        findings.verification.rounds = vec![(ms(10), ms(21))];
        assert_eq!(
            missed(&findings),
            [
                "p50 at 1 with audit, modern",
                "requests/s at 64 with audit, modern",
                "requests/s at 64 with audit, modern, http",
                "audit verify of 10 rows"
            ]
        );
        assert_eq!(findings.to_json()["verification"]["record_verified_ms"], 21.0);
    }

    #[test]
    fn table_and_json_tell_the_same() {
        let findings = findings(round(180.0, 40_000.0, 21.0));
        assert!(findings.table().contains("MISSED p50 at 1, modern"), "{}", findings.table());
        let json = findings.to_json();
        assert_eq!(json["bars"][1]["holds"], false);
        assert_eq!(json["cells"][0]["p50_ratio"], 1.8);
    }
}
