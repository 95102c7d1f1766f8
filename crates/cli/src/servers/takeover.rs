//! What becomes of a change: a running gateway takes it over, or the server is started once to see whether it works.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead::Control;
use bridgehead::config::{Config, read_text};
use bridgehead::control::{Instance, running};
use clap::Args;
use serde_json::{Value, json};

use super::Edited;
use crate::exit::Exit;
use crate::instance::get;
use crate::output::{self, one_line};
use crate::starting::{self, Form, Mark, Seen, Shower, Stage, TakenOver, Then, watch_running};
use crate::target::{next_step, run_once, start};
use crate::world::World;

/// How a change is watched.
#[derive(Debug, Args)]
pub(super) struct Watch {
    /// Write the file only, and do not wait for the server
    #[arg(long)]
    no_check: bool,
    /// Give up waiting for the server after this many seconds; it stays in the file
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

/// A change of a file, from before it is made.
pub(super) struct Change<'w> {
    file: PathBuf,
    /// Whether the user named the file, which counts as agreeing to it.
    named: bool,
    world: &'w World,
    /// The running gateway that serves the file, and when it last reloaded.
    gateway: Option<(Instance, Mark)>,
}

/// What became of a server.
struct Outcome {
    /// `ready`, `failed`, `starting`, …, and `gone` for a server that runs no more.
    state: &'static str,
    tools: Option<u64>,
    reason: Option<String>,
    next_step: Option<String>,
}

impl<'w> Change<'w> {
    /// Call this before the file is changed: it looks for the gateway that serves it.
    pub(super) fn begin(file: &Path, edited: &Edited, world: &'w World) -> Self {
        let gateway = serving(file, world).and_then(|instance| {
            let mark = mark(&instance)?;
            Some((instance, mark))
        });
        Self { file: file.to_owned(), named: edited.config.is_some(), world, gateway }
    }

    /// Reports a change that changed nothing.
    pub(super) fn nothing(&self, (text, done): (&str, &Value), as_json: bool) -> Exit {
        self.report(text, done, None, Exit::Success, as_json)
    }

    /// Reports a change after which no server starts, once a running gateway has taken it over.
    pub(super) fn without_start(&self, (text, done): (&str, &Value), watch: &Watch, as_json: bool) -> Exit {
        let Some((instance, mark)) = self.gateway.as_ref().filter(|_| !watch.no_check) else {
            return self.report(text, done, None, Exit::Success, as_json);
        };
        let mut outcome = None;
        let waited = run_once(async {
            outcome = Some(reloaded(instance, mark).await.map(|_| Outcome::GONE));
            Exit::Success
        });
        self.end(text, done, outcome, waited, as_json)
    }

    /// Reports a change after which a server starts: waits until it is ready or has failed.
    pub(super) fn with_start(
        &self,
        name: &str,
        (text, done): (&str, &Value),
        watch: &Watch,
        as_json: bool,
    ) -> Exit {
        if watch.no_check {
            return self.report(text, done, None, Exit::Success, as_json);
        }
        let within = Duration::from_secs(watch.timeout);
        let mut outcome = None;
        let waited = run_once(async {
            outcome = match &self.gateway {
                Some((instance, mark)) => {
                    let pid = instance.pid;
                    output::talk(&format!("{name}: the gateway with pid {pid} takes it over"));
                    Some(started_by(instance, mark, name, within).await)
                }
                None => match self.alone(name) {
                    Ok(config) => {
                        output::talk(&format!(
                            "{name}: starting it once, because no gateway serves this file"
                        ));
                        match started_once(config, self.world, within).await {
                            Ok(outcome) => Some(Ok(outcome)),
                            Err(exit) => return exit,
                        }
                    }
                    Err(reason) => Some(Err(reason)),
                },
            };
            Exit::Success
        });
        self.end(text, done, outcome, waited, as_json)
    }

    /// The configuration with this server alone.
    fn alone(&self, name: &str) -> Result<Config, String> {
        if !self.named && !self.world.may_run(&self.file) {
            let file = self.file.display();
            return Err(format!(
                "not started, because nobody agreed to run what `{file}` says; agree with `bridgehead trust {file}`"
            ));
        }
        let loaded = read_text(&self.file, self.world.folder())
            .and_then(|text| self.world.load_text(&self.file, text, &self.world.environment));
        let mut config = loaded.map_err(|error| error.to_string())?;
        config.servers.retain(|server| server.name.as_str() == name);
        for server in &mut config.servers {
            (server.lazy, server.idle_timeout) = (false, None);
        }
        Ok(config)
    }

    fn end(
        &self,
        text: &str,
        done: &Value,
        outcome: Option<Result<Outcome, String>>,
        waited: Exit,
        as_json: bool,
    ) -> Exit {
        match outcome {
            Some(outcome) => {
                let exit = match &outcome {
                    Ok(outcome) if ["ready", "asleep", "gone"].contains(&outcome.state) => Exit::Success,
                    _ => Exit::Failure,
                };
                self.report(text, done, Some(&outcome), exit, as_json)
            }
            // Interrupted, or it could not be started at all, which was told.
            None => {
                output::talk(
                    "note: the change stays written; `bridgehead status` and `bridgehead check` show how the server fares",
                );
                self.report(text, done, None, waited, as_json)
            }
        }
    }

    fn report(
        &self,
        text: &str,
        done: &Value,
        outcome: Option<&Result<Outcome, String>>,
        exit: Exit,
        as_json: bool,
    ) -> Exit {
        let told = outcome.map(|outcome| match outcome {
            Ok(outcome) => json!({
                "state": outcome.state,
                "tools": outcome.tools,
                "reason": outcome.reason,
                "nextStep": outcome.next_step,
            }),
            Err(reason) => json!({"state": "unknown", "reason": reason}),
        });
        if as_json {
            let mut all = json!({
                "ok": exit == Exit::Success,
                "file": self.file,
                "gateway": self.gateway.as_ref().map(|(instance, _)| json!({"pid": instance.pid, "instance": instance.instance})),
                "server": told,
            });
            if let (Some(all), Some(done)) = (all.as_object_mut(), done.as_object()) {
                all.extend(done.clone());
            }
            return output::json_data(&all, exit);
        }
        let fate = match outcome {
            None => String::new(),
            Some(Err(reason)) => format!("; {}", one_line(reason, 1000)),
            Some(Ok(outcome)) => outcome.text(),
        };
        output::data(&format!("{text}{fate}"), exit)
    }
}

impl Outcome {
    /// A server that runs no more.
    const GONE: Self = Self { state: "gone", tools: None, reason: None, next_step: None };

    fn text(&self) -> String {
        let reason = self.reason.as_deref().map(|reason| one_line(reason, 1000)).unwrap_or_default();
        let next = match &self.next_step {
            Some(next) => format!("\nnext: {}", one_line(next, 1000)),
            None => String::new(),
        };
        match (self.state, self.tools) {
            ("gone", _) => String::new(),
            ("ready", Some(tools)) => format!(": ready, {}", output::counted(tools, "tool")),
            ("asleep", _) => ": it starts when it is used".to_owned(),
            ("waiting" | "starting", _) => format!(": still starting; see `bridgehead status`{next}"),
            (_, _) => format!(": it does not start: {reason}{next}"),
        }
    }

    /// A server at this stage.
    fn of(stage: &Stage) -> Self {
        let (tools, reason) = match stage {
            Stage::Ready { tools } => (Some(*tools as u64), None),
            Stage::Failed { reason, .. } => (None, Some(reason.clone())),
            Stage::Awaited | Stage::Starting | Stage::Asleep | Stage::Stopped => (None, None),
        };
        Self { state: stage.word(), tools, reason, next_step: None }
    }
}

/// The running gateway of this user that serves a file. One that was started without a file serves the user's own file, once
/// there is one.
pub(crate) fn serving(file: &Path, world: &World) -> Option<Instance> {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = Control::directory(&world.variables)?;
    let own = world.own_file();
    let is_served = |one: &Instance| {
        let served = one.config.as_deref().or(own.as_deref());
        served.map(canonical) == Some(canonical(file)) && one.is_own()
    };
    running(&folder).into_iter().find(is_served)
}

/// When a gateway last read its file; `None` if it does not answer.
pub(crate) fn mark(instance: &Instance) -> Option<Mark> {
    let mut mark = None;
    run_once(async {
        mark = Mark::of(instance).await.ok();
        Exit::Success
    });
    mark
}

/// Waits until a gateway has read its file again, and returns what it says about that.
pub(crate) async fn reloaded(instance: &Instance, mark: &Mark) -> Result<String, String> {
    let form = Form::of(Shower::Command);
    taken_over(instance, mark, &[], Duration::ZERO, form).await.map(|(message, _)| message)
}

/// Waits until a gateway has taken its file over and these servers have started or failed. Returns what it says about the file,
/// and the servers as they were seen last.
async fn taken_over(
    instance: &Instance,
    mark: &Mark,
    names: &[String],
    within: Duration,
    form: Form,
) -> Result<(String, Vec<Seen>), String> {
    let taken = watch_running(instance, mark, names, within, form).await;
    let TakenOver { servers, reload } =
        taken.map_err(|_| "the gateway does not answer any more".to_owned())?;
    match reload {
        Some((true, message)) => Ok((message, servers)),
        Some((false, message)) => Err(format!("the gateway did not take it over: {message}")),
        None if servers.iter().any(|server| server.stage == Stage::Starting) => Ok((String::new(), servers)),
        None => Err("the gateway has not taken it over yet; see `bridgehead status`".to_owned()),
    }
}

/// What became of a server that a running gateway starts.
async fn started_by(
    instance: &Instance,
    mark: &Mark,
    name: &str,
    within: Duration,
) -> Result<Outcome, String> {
    let names = [name.to_owned()];
    let (_, servers) = taken_over(instance, mark, &names, within, Form::of(Shower::Command)).await?;
    let mut outcome = Outcome::of(servers.first().map_or(&Stage::Awaited, |server| &server.stage));
    if outcome.reason.is_some() {
        let status = get(instance, "status").await.unwrap_or_default();
        let servers = status["upstreams"].as_array().map(Vec::as_slice).unwrap_or_default();
        let server = servers.iter().find(|server| server["name"] == name);
        outcome.next_step = server.and_then(|server| server["nextStep"].as_str()).map(str::to_owned);
    }
    Ok(outcome)
}

/// Starts a server once, and stops it again.
async fn started_once(config: Config, world: &World, within: Duration) -> Result<Outcome, Exit> {
    let gateway = start(config, world)?;
    let settling = tokio::time::timeout(within, gateway.settled());
    let settled = starting::watch(&gateway, Form::of(Shower::Command), Then::Clear, settling).await;
    let status = gateway.status().upstreams.into_iter().next();
    gateway.stop().await;
    Ok(match status {
        Some(_) if settled.is_err() => Outcome {
            state: "failed",
            tools: None,
            reason: Some(format!("it was not ready within {} s, and was stopped again", within.as_secs())),
            next_step: Some("give it longer with --timeout SECONDS, or start the gateway with it".to_owned()),
        },
        Some(status) => Outcome {
            state: status.state.as_str(),
            tools: status.tools.map(|tools| tools as u64),
            next_step: next_step(&status),
            reason: status.reason,
        },
        None => Outcome {
            state: "stopped",
            tools: None,
            reason: Some("the configuration starts no server, because its mode is `minimal`".to_owned()),
            next_step: None,
        },
    })
}
