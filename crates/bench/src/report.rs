//! What was found, as a table for people, as JSON for programs, and against the bars.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::Round;
use crate::plan::{Cell, Findings};
use crate::request::{Ask, Era};
use crate::statistics::median;

/// Below this the direct path is no yardstick.
const DIRECT_AT_LEAST: f64 = 60_000.0;
const LATENCY_RATIO: f64 = 1.7;
const THROUGHPUT_RATIO: f64 = 0.55;
const ADDED_P95_MILLIS: f64 = 10.0;
const CPU_MICROS: f64 = 20.0;
const LIST_RATIO: f64 = 1.2;
const IDLE_MEGABYTES: f64 = 12.0;
const FIRST_ANSWER_MILLIS: f64 = 15.0;

/// One thing that is promised.
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

/// The medians of the rounds of one way.
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
            let cells = || self.cells.iter().filter(move |cell| cell.era == era);
            let cost =
                cells().filter(|cell| cell.connections == 1).map(Cell::added_p95_millis).fold(0.0, f64::max);
            bar(format!("p95 of what the gateway adds at 1, {name}"), cost, true, ADDED_P95_MILLIS, "ms");
            for cell in cells() {
                match (cell.ask, cell.connections) {
                    (Ask::Call, 1) => {
                        bar(
                            format!("p50 at 1, {name}"),
                            cell.latency_ratio(),
                            true,
                            LATENCY_RATIO,
                            "× direct",
                        );
                    }
                    (Ask::Call, 64) => {
                        let direct = Medians::of(&cell.direct).per_second;
                        bar(format!("direct requests/s at 64, {name}"), direct, false, DIRECT_AT_LEAST, "/s");
                        let ratio = cell.throughput_ratio();
                        bar(format!("requests/s at 64, {name}"), ratio, false, THROUGHPUT_RATIO, "× direct");
                        let cpu = Medians::of(&cell.through).cpu_micros;
                        bar(format!("gateway CPU at 64, {name}"), cpu, true, CPU_MICROS, "µs per request");
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
            "{:<26} {:<8} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8} {:>8}",
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
                    "{:<26} {way:<8} {p50:>9.1} {p95:>9.1} {p99:>9.1} {per_second:>10.0} {cpu_micros:>9.1}",
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
            "\nCPU µs: processor time per request of the process that answers (echo-upstream directly, else the gateway)\n\
             first answer {:.1} ms, first list with the upstream's tools {:.1} ms, idle {:.1} MB, peak {:.1} MB, peak \
             with 1000 tools {:.1} MB\n{} form, {} cores, load average {:.1} before and {:.1} after, {:.0} s\n",
            millis(&self.first_answer),
            millis(&self.first_list),
            self.idle_megabytes(),
            megabytes(self.peak_kb as f64),
            megabytes(self.peak_list_kb as f64),
            self.form.name(),
            self.cores,
            self.load_average[0],
            self.load_average[1],
            self.elapsed.as_secs_f64(),
        );
        for bar in self.bars() {
            let verdict = if bar.holds() { "holds " } else { "MISSED" };
            let sign = if bar.at_most { "≤" } else { "≥" };
            let _ = writeln!(
                out,
                "{verdict} {:<38} {:>9.2} {sign} {} {}",
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
            "seconds": self.elapsed.as_secs(), "cells": cells, "bars": bars,
            "first_answer_ms": rounded(millis(&self.first_answer)), "first_list_ms": rounded(millis(&self.first_list)),
            "idle_mb": rounded(self.idle_megabytes()), "peak_mb": rounded(megabytes(self.peak_kb as f64)),
            "peak_1000_tools_mb": rounded(megabytes(self.peak_list_kb as f64)),
        })
    }
}

fn millis(durations: &[Duration]) -> f64 {
    median(durations.iter().map(|duration| duration.as_secs_f64() * 1000.0))
}

fn megabytes(kilobytes: f64) -> f64 {
    kilobytes * 1024.0 / 1e6
}

/// To two places: more would pretend.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::statistics::Percentiles;

    fn round(p50: f64, per_second: f64, cpu_micros: f64) -> Round {
        Round { latency: Percentiles { p50, p95: p50 * 2.0, p99: p50 * 3.0 }, per_second, cpu_micros }
    }

    fn findings(through: Round) -> Findings {
        let cells = Era::ALL.into_iter().flat_map(|era| {
            [(Ask::Call, 1), (Ask::Call, 64), (Ask::List, 1)].map(|(ask, connections)| Cell {
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
            elapsed: Duration::from_secs(1),
            cells: cells.collect(),
            first_answer: vec![Duration::from_millis(9)],
            first_list: vec![Duration::from_millis(10)],
            idle_kb: vec![8000],
            peak_kb: 9000,
            peak_list_kb: 10_000,
        }
    }

    fn missed(findings: &Findings) -> Vec<String> {
        findings.bars().iter().filter(|bar| !bar.holds()).map(|bar| bar.name.clone()).collect()
    }

    /// QA-5: the gateway's own cost, everything but the tool's, is judged at the 95th percentile.
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
    fn table_and_json_tell_the_same() {
        let findings = findings(round(180.0, 40_000.0, 21.0));
        assert!(findings.table().contains("MISSED p50 at 1, modern"), "{}", findings.table());
        let json = findings.to_json();
        assert_eq!(json["bars"][1]["holds"], false);
        assert_eq!(json["cells"][0]["p50_ratio"], 1.8);
    }
}
