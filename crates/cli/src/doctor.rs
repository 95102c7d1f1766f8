//! `bridgehead doctor`: tests what this machine can enforce, and shows for each server what is configured, what is
//! enforced, and what to do about the rest.

use std::path::Path;
use std::time::Duration;

use bridgehead::Gateway;
use bridgehead::config::ConfigError;
use bridgehead_gateway::ServerStatus;
use bridgehead_process::trial::{Finding, try_all};
use clap::Args;
use serde_json::{Value, json};

use super::exit::Exit;
use super::target::{run_once, start};
use super::world::World;
use super::{Chosen, Run, output};

/// The file to test with: every system has it, and no program needs it to run.
const TRIED: &str = "/proc/self/mountinfo";

/// Test what this machine can enforce, and compare it with what each server needs
#[derive(Debug, Args)]
#[command(
    after_help = "Every protection is tested: a test program tries to break out and reports whether it succeeded.
Each server is started once, as configured, to see how its limits are enforced.

Exit codes: 0 everything configured is enforced, 1 something is not, 78 the configuration is wrong.

Examples:
  bridgehead doctor
  bridgehead doctor --machine               only this machine, no server is started
  bridgehead doctor --config bridgehead.toml --json"
)]
pub(crate) struct Doctor {
    #[command(flatten)]
    chosen: Chosen,
    /// Test the machine only, and start no server
    #[arg(long)]
    machine: bool,
    /// Give up on servers that have not answered after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Doctor {
    fn json(&self) -> bool {
        self.json
    }

    fn only_reads(&self) -> bool {
        true
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(doctor: &Doctor, world: &World) -> Exit {
    let config = match doctor.machine {
        true => None,
        false => match world.configuration(doctor.chosen.config.as_deref()) {
            Ok(config) => Some(config),
            Err(error) => return only_machine(doctor, &error),
        },
    };
    run_once(async {
        let machine = try_all(Path::new(TRIED)).await;
        let servers = match config {
            None => Vec::new(),
            Some(mut config) => {
                for server in &mut config.servers {
                    // Every server starts now; remembered tools from its last run do not count.
                    (server.lazy, server.idle_timeout) = (false, None);
                }
                let gateway = match start(config, world) {
                    Ok(gateway) => gateway,
                    Err(exit) => return exit,
                };
                // A server that is late is reported in its current state.
                let _ = tokio::time::timeout(Duration::from_secs(doctor.timeout), gateway.settled()).await;
                let servers = servers(&gateway);
                gateway.stop().await;
                servers
            }
        };
        let exit = match servers.iter().all(|server| server.gaps.iter().all(|gap| !gap.asked)) {
            true => Exit::Success,
            false => Exit::Failure,
        };
        if doctor.json {
            output::json_data(&told(&machine, &servers, exit), exit)
        } else {
            output::data(&text(&machine, &servers, doctor.machine), exit)
        }
    })
}

/// Tests the machine, which needs no configuration, and says what is wrong with the configuration.
fn only_machine(doctor: &Doctor, error: &ConfigError) -> Exit {
    run_once(async {
        let machine = try_all(Path::new(TRIED)).await;
        let exit = Exit::Configuration;
        if doctor.json {
            let mut all = told(&machine, &[], exit);
            all["diagnostics"] = output::diagnostics(&error.0).into();
            return output::json_data(&all, exit);
        }
        output::show(&error.0);
        output::talk("note: no server was examined, because the configuration cannot be used");
        output::data(&text(&machine, &[], true), exit)
    })
}

/// What is configured for a server, and each gap in its enforcement with the cure.
struct Server {
    name: String,
    isolation: &'static str,
    limits: Option<Value>,
    confinement: Option<Value>,
    gaps: Vec<Gap>,
}

/// Something that is not enforced, and its cure.
struct Gap {
    what: String,
    cure: String,
    /// Whether the configuration asks for it.
    asked: bool,
}

fn servers(gateway: &Gateway) -> Vec<Server> {
    gateway.status().upstreams.into_iter().map(examined).collect()
}

fn examined(status: ServerStatus) -> Server {
    let mut gaps = status.confinement.as_ref().map(gaps).unwrap_or_default();
    // A confined server without a transport was refused because of its confinement, or has a mistake in it.
    if status.sandbox_unavailable || (status.transport == "none" && status.confinement.is_some()) {
        let what = status.reason.clone().unwrap_or_default();
        gaps.push(Gap { what, cure: status.next_step.clone().unwrap_or_default(), asked: true });
    }
    Server {
        name: status.name,
        isolation: status.isolation,
        limits: status.limits,
        confinement: status.confinement,
        gaps,
    }
}

/// The parts of a confinement that are not enforced for the running process.
fn gaps(confinement: &Value) -> Vec<Gap> {
    let listed = |name: &str| confinement[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    let missing = listed("missing").map(|missing| Gap {
        what: format!("not confined as asked: this system lacks {missing}"),
        cure: "the table above says what makes it work; without `on_missing = \"degrade\"` the server is not started"
            .to_owned(),
        asked: true,
    });
    let lacking = listed("gaps").map(|lacking| Gap {
        what: format!("this system lacks {lacking}"),
        cure: "the table above says what makes it work; with `require = [\"signals\"]` the server is not started \
               without it"
            .to_owned(),
        asked: false,
    });
    missing.chain(lacking).collect()
}

fn told(machine: &[Finding], servers: &[Server], exit: Exit) -> Value {
    let machine: Vec<Value> = machine
        .iter()
        .map(|finding| {
            let protection = finding.protection;
            let (works, how) = match &finding.outcome {
                Ok(how) => (true, how),
                Err(why) => (false, why),
            };
            let cure = (!works).then(|| protection.cure());
            json!({"protection": protection.as_str(), "works": works, "how": how, "for": protection.purpose(), "cure": cure, "better": finding.better})
        })
        .collect();
    let servers: Vec<Value> = servers
        .iter()
        .map(|server| {
            let gap = |gap: &Gap| json!({"gap": gap.what, "cure": gap.cure, "asked": gap.asked});
            json!({
                "name": server.name,
                "isolation": server.isolation,
                "limits": server.limits,
                "confinement": server.confinement,
                "gaps": server.gaps.iter().map(gap).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({"ok": exit == Exit::Success, "machine": machine, "servers": servers})
}

fn text(machine: &[Finding], servers: &[Server], only_machine: bool) -> String {
    let mut text = "this machine, as tested:\n".to_owned();
    let rows: Vec<Vec<String>> = machine
        .iter()
        .map(|finding| {
            let (word, how) = match &finding.outcome {
                Ok(how) => ("works", how),
                Err(why) => ("missing", why),
            };
            vec![finding.protection.as_str().to_owned(), word.to_owned(), output::one_line(how, 200)]
        })
        .collect();
    text.push_str(&output::table(&rows));
    for (finding, better) in machine.iter().filter_map(|finding| Some((finding, finding.better.as_ref()?))) {
        text.push_str(&format!("better: {}: {better}\n", finding.protection.as_str()));
    }
    for finding in machine.iter().filter(|finding| finding.outcome.is_err()) {
        let protection = finding.protection;
        text.push_str(&format!(
            "cure: {} ({}): {}\n",
            protection.as_str(),
            protection.purpose(),
            protection.cure()
        ));
    }
    if only_machine {
        return text;
    }
    text.push_str("\nservers, as configured and as enforced:\n");
    let rows: Vec<Vec<String>> = servers
        .iter()
        .map(|server| {
            vec![
                server.name.clone(),
                format!("isolation {}", server.isolation),
                limits(server.limits.as_ref()),
                confinement(server.confinement.as_ref()),
            ]
        })
        .collect();
    text.push_str(&match rows.is_empty() {
        true => "no server is configured\n".to_owned(),
        false => output::table(&rows),
    });
    for server in servers {
        for Gap { what, cure, .. } in &server.gaps {
            text.push_str(&format!("gap: {}: {}\n", server.name, output::one_line(what, 1000)));
            text.push_str(&format!("cure: {}: {}\n", server.name, output::one_line(cure, 1000)));
        }
    }
    text
}

/// Limits on one line, such as `memory 256 MB sampled`.
fn limits(limits: Option<&Value>) -> String {
    let Some(Value::Object(limits)) = limits else { return "no limits".to_owned() };
    let each = limits.iter().filter_map(|(name, limit)| {
        let most = limit["most"].as_u64()?;
        let (name, most) = match name.as_str() {
            "memoryBytes" => ("memory", format!("{} MB", most >> 20)),
            "fileBytes" => ("files of", format!("{} MB", most >> 20)),
            "outputBytes" => ("answers of", format!("{} MB", most >> 20)),
            "logBytes" => ("log", format!("{} kB", most >> 10)),
            "executionMs" => ("calls of", format!("{most} ms")),
            "openFiles" => ("open files", most.to_string()),
            other => (other, most.to_string()),
        };
        Some(match limit["enforced"].as_str() {
            Some(how) => format!("{name} {most} {how}"),
            None => format!("{name} {most}"),
        })
    });
    each.collect::<Vec<_>>().join(", ")
}

/// A confinement on one line.
fn confinement(confinement: Option<&Value>) -> String {
    let Some(asked) = confinement else { return "not confined".to_owned() };
    let kept = |kept: &Value| match kept.as_bool() {
        Some(true) => "enforced",
        Some(false) => "not enforced",
        None => "unknown",
    };
    let paths = |name: &str| asked["files"][name].as_array().map_or(0, Vec::len);
    let files = asked["files"].is_object().then(|| {
        let (read, write) = (paths("read"), paths("write"));
        format!("files {} ({read} to read, {write} to write)", kept(&asked["files"]["enforced"]))
    });
    let network = (asked["network"]["allowed"] == "none")
        .then(|| format!("network none {}", kept(&asked["network"]["enforced"])));
    files.into_iter().chain(network).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WALL-4: protection that only a newer system has is reported as a gap; since it is not configured, it fails no run.
    #[test]
    fn what_a_system_is_too_old_for_is_a_gap() {
        let found = gaps(&json!({"missing": ["walls"], "gaps": ["Landlock of version 6 or later"]}));
        let told: Vec<_> = found.iter().map(|gap| (gap.what.as_str(), gap.asked)).collect();
        assert_eq!(
            told,
            [
                ("not confined as asked: this system lacks walls", true),
                ("this system lacks Landlock of version 6 or later", false)
            ]
        );
        assert!(gaps(&json!({"missing": [], "gaps": []})).is_empty());
    }
}
