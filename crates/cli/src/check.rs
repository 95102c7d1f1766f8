//! `bridgehead check`: checks the configuration, and whether each server starts.

mod access;

use std::time::Duration;

use bridgehead::config::{ConfigError, Diagnostic, Severity, Source};
use bridgehead::{Config, Gateway, Mode, check_endpoint};
use bridgehead_gateway::{ServerState, ServerStatus};
use clap::Args;
use serde_json::{Value, json};

use self::access::Access;
use super::exit::Exit;
use super::starting::{self, Form, Shower, Then};
use super::target::{next_step, run_once, start};
use super::world::World;
use super::{Chosen, Run, output};

/// Check the configuration and start every server once
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 all is well, 1 a server does not start, 78 the configuration is wrong.

Examples:
  bridgehead check
  bridgehead check --config .mcp.json --json")]
pub(crate) struct Check {
    #[command(flatten)]
    chosen: Chosen,
    /// Give up on servers that have not answered after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Check {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(check: &Check, world: &World) -> Exit {
    let mut config = match world.configuration(check.chosen.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return refused(&error, check.json),
    };
    for server in &mut config.servers {
        // Every server starts now; remembered tools from its last run do not count.
        (server.lazy, server.idle_timeout) = (false, None);
    }
    if let Err(exposed) = check_endpoint(&config.servers, &config.http, config.auth.refuses_strangers()) {
        let mut finding = Diagnostic::error(format!("`serve` over HTTP refuses this: {exposed}"));
        finding.severity = Severity::Warning;
        config.warnings.push(finding);
    }
    let about = About::of(&config);
    if !check.json {
        output::show(&config.warnings);
    }
    run_once(async {
        let gateway = match start(config, world) {
            Ok(gateway) => gateway,
            Err(exit) => return exit,
        };
        // A server that is late is reported in its current state.
        let settling = tokio::time::timeout(Duration::from_secs(check.timeout), gateway.settled());
        let _ = starting::watch(&gateway, Form::of(Shower::Command), Then::Clear, settling).await;
        let servers: Vec<Server> = servers(&gateway);
        let renamed = gateway.renamed();
        let started: Vec<(&str, bool)> =
            servers.iter().map(|server| (server.name.as_str(), server.outcome.is_ok())).collect();
        let findings = about.access.findings(&gateway.list_tools(), &started);
        gateway.stop().await;
        let exit = match servers.iter().any(|server| server.outcome.is_err()) {
            true => Exit::Failure,
            false => Exit::Success,
        };
        if check.json {
            output::json_data(&about.json(&servers, &renamed, &findings, exit), exit)
        } else {
            output::data(&about.text(&servers, &renamed, &findings), exit)
        }
    })
}

fn refused(error: &ConfigError, as_json: bool) -> Exit {
    let exit = output::configuration_error(error, as_json);
    if !as_json {
        output::talk(&match error.0.len() {
            1 => "the configuration cannot be used: 1 finding".to_owned(),
            findings => format!("the configuration cannot be used: {findings} findings"),
        });
    }
    exit
}

/// The result for one server.
struct Server {
    name: String,
    /// Revision and number of tools, or why it did not start.
    outcome: Result<(String, usize), String>,
    /// What to do about it.
    next_step: Option<String>,
    /// Problems with its tools, although it started.
    findings: Vec<String>,
}

fn servers(gateway: &Gateway) -> Vec<Server> {
    let told = |status: ServerStatus| {
        let outcome = match (status.state, &status.revision) {
            (ServerState::Ready, Some(revision)) => Ok((revision.clone(), status.tools.unwrap_or_default())),
            _ => Err(status.reason.clone().unwrap_or_else(|| "it did not start in time".to_owned())),
        };
        let next_step = next_step(&status);
        Server { name: status.name, outcome, next_step, findings: status.findings }
    };
    gateway.status().upstreams.into_iter().map(told).collect()
}

/// What is known before any server starts.
struct About {
    source: String,
    mode: Mode,
    disabled: Vec<String>,
    warnings: Vec<Value>,
    access: Access,
}

impl About {
    fn of(config: &Config) -> Self {
        let source = match &config.source {
            Source::Toml(path) | Source::ClientJson(path) => path.display().to_string(),
            Source::Demo => "none found, the demo runs".to_owned(),
        };
        Self {
            source,
            mode: config.gateway.mode,
            disabled: config.disabled.iter().map(ToString::to_string).collect(),
            warnings: output::diagnostics(&config.warnings),
            access: Access::of(config),
        }
    }

    fn json(
        &self,
        servers: &[Server],
        renamed: &[(String, String, String)],
        findings: &[String],
        exit: Exit,
    ) -> Value {
        let servers: Vec<Value> = servers
            .iter()
            .map(|server| match &server.outcome {
                Ok((revision, tools)) => {
                    let findings = &server.findings;
                    json!({"name": server.name, "ok": true, "revision": revision, "tools": tools, "findings": findings})
                }
                Err(reason) => {
                    json!({"name": server.name, "ok": false, "reason": reason, "nextStep": server.next_step})
                }
            })
            .collect();
        let renamed: Vec<Value> = renamed
            .iter()
            .map(|(server, tool, name)| json!({"server": server, "tool": tool, "name": name}))
            .collect();
        json!({
            "ok": exit == Exit::Success,
            "configuration": self.source,
            "mode": self.mode.as_str(),
            "diagnostics": self.warnings,
            "servers": servers,
            "disabled": self.disabled,
            "renamed": renamed,
            "access": self.access.json(findings),
        })
    }

    fn text(&self, servers: &[Server], renamed: &[(String, String, String)], findings: &[String]) -> String {
        let mut text = format!("configuration: {}\n", self.source);
        let mut rows: Vec<Vec<String>> = servers
            .iter()
            .map(|server| {
                let (word, detail) = match &server.outcome {
                    Ok((revision, tools)) => {
                        ("ok", format!("{}, speaks {revision}", output::counted(*tools as u64, "tool")))
                    }
                    // Its reason follows the table, in which it might be cut.
                    Err(_) => ("failed", String::new()),
                };
                vec![server.name.clone(), word.to_owned(), detail]
            })
            .collect();
        rows.extend(
            self.disabled
                .iter()
                .map(|name| vec![name.clone(), "off".to_owned(), "disabled in the configuration".to_owned()]),
        );
        match (rows.is_empty(), self.mode) {
            (_, Mode::Minimal) => text.push_str("no server is started in mode `minimal`\n"),
            (true, _) => text.push_str("no server is configured\n"),
            (false, _) => {}
        }
        text.push_str(&output::table(&rows));
        for server in servers {
            if let Err(reason) = &server.outcome {
                text.push_str(&format!("failed: {}: {}\n", server.name, output::one_line(reason, 1000)));
            }
            if let Some(next) = &server.next_step {
                text.push_str(&format!("next: {}: {}\n", server.name, output::one_line(next, 1000)));
            }
            for finding in &server.findings {
                text.push_str(&format!("finding: {}: {}\n", server.name, output::one_line(finding, 1000)));
            }
        }
        for (server, tool, name) in renamed {
            text.push_str(&format!("renamed: `{tool}` of `{server}` is offered as `{name}`\n"));
        }
        text.push_str(&self.access.text(findings));
        text
    }
}
