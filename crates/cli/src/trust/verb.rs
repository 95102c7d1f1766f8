//! `bridgehead trust`: agrees to a configuration that lies in a project's folder, lists and revokes such agreements.

use std::path::{Path, PathBuf};

use bridgehead::config::{load_text, read_text, user_file};
use clap::Args;
use serde_json::json;

use super::{Answer, digest, what_runs};
use crate::exit::Exit;
use crate::output;
use crate::run::Run;
use crate::servers::takeover::{mark, reloaded, serving};
use crate::target::run_once;
use crate::world::World;

/// Agree to the configuration in the current folder, which may be somebody else's
#[derive(Debug, Args)]
#[command(
    name = "trust",
    after_help = "A bridgehead.toml or .mcp.json in the current folder runs programs, so it is used only after you agreed, and only for as long as
nobody changes it. Verbs that edit it renew the agreement, but not an import of a project's servers. Your own configuration
and a file that you name with --config or BRIDGEHEAD_CONFIG need none.
Exit codes: 0 agreed, 1 not agreed, 2 no such file, 78 the file is wrong.

Examples:
  bridgehead trust
  bridgehead trust ~/code/project/.mcp.json --yes
  bridgehead trust --list
  bridgehead trust --revoke ~/code/project/.mcp.json"
)]
pub(crate) struct TrustFile {
    /// The file, or its folder [default: the current folder]
    path: Option<PathBuf>,
    /// Agree without being asked
    #[arg(long, short)]
    yes: bool,
    /// List what you agreed to and what you refused
    #[arg(long, conflicts_with_all = ["path", "yes", "revoke"])]
    list: bool,
    /// Forget what you said about this file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["path", "yes"])]
    revoke: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for TrustFile {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        match &self.revoke {
            Some(path) => self.revoke(path, world),
            None if self.list => self.list(world),
            None => self.agree(world),
        }
    }
}

impl TrustFile {
    fn agree(&self, world: &World) -> Exit {
        let place = world.folder().join(self.path.as_deref().unwrap_or(Path::new("")));
        let place: PathBuf = place.components().collect();
        let Some(file) = found(&place) else {
            let told = match place.is_dir() {
                true => format!("there is neither bridgehead.toml nor .mcp.json in `{}`", place.display()),
                false => format!("there is no file `{}`", place.display()),
            };
            return self.failed(&told, Exit::Usage);
        };
        let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if user_file(&world.environment).is_some_and(|own| canonical(&own) == canonical(&file)) {
            return self.agreed(&file, b"", "is your own configuration, which needs no agreement", None);
        }
        let read = read_text(&file, world.folder()).and_then(|text| {
            let environment = world.environment.clone().without_secrets();
            load_text(&file, text.clone(), &environment, world.folder()).map(|config| (text, config))
        });
        let (text, config) = match read {
            Ok(read) => read,
            Err(error) => return output::configuration_error(&error, self.json),
        };
        if world.trust().answer(&file, &text) == Some(true) {
            return self.agreed(&file, &text, "may be used already", None);
        }
        output::talk(&format!("`{}` would run:", file.display()));
        what_runs(&text, &config.source).iter().for_each(|line| output::talk(&format!("  {line}")));
        match self
            .yes
            .then_some(true)
            .or_else(|| world.agree("Use it, for as long as it does not change? [y/N]"))
        {
            Some(true) => {}
            Some(false) => {
                if let Err(error) = world.trust().keep(&file, &text, false) {
                    output::talk(&format!("warning: the answer cannot be kept: {error}"));
                }
                return self.failed(&format!("you refused `{}`", file.display()), Exit::Failure);
            }
            None => {
                return self
                    .failed("nobody can be asked here; read what it runs, then add --yes", Exit::Usage);
            }
        }
        let gateway = serving(&file, world).and_then(|instance| {
            let mark = mark(&instance)?;
            Some((instance, mark))
        });
        if let Err(error) = world.trust().keep(&file, &text, true) {
            return self.failed(&format!("the agreement cannot be kept: {error}"), Exit::Failure);
        }
        let Some((instance, mark)) = gateway else {
            return self.agreed(&file, &text, "may be used now", None);
        };
        let mut outcome = Err("interrupted; the agreement is kept".to_owned());
        run_once(async {
            outcome = reloaded(&instance, &mark).await;
            Exit::Success
        });
        match outcome {
            Ok(message) => self.agreed(&file, &text, "may be used now", Some((instance.pid, message))),
            Err(reason) => self.failed(&reason, Exit::Failure),
        }
    }

    fn agreed(&self, file: &Path, text: &[u8], what: &str, gateway: Option<(u32, String)>) -> Exit {
        if self.json {
            let told = json!({
                "ok": true,
                "path": file,
                "sha256": (!text.is_empty()).then(|| digest(text)),
                "gateway": gateway.map(|(pid, message)| json!({"pid": pid, "message": message})),
            });
            return output::json_data(&told, Exit::Success);
        }
        let taken = match gateway {
            Some((pid, message)) => format!("\nthe gateway with pid {pid} took it over: {message}"),
            None => String::new(),
        };
        output::data(&format!("{} {what}{taken}", file.display()), Exit::Success)
    }

    fn list(&self, world: &World) -> Exit {
        let answers = world.trust().all();
        if self.json {
            let one = |answer: &Answer| {
                json!({
                    "path": answer.path,
                    "sha256": answer.sha256,
                    "agreed": answer.agreed,
                    "time": answer.time,
                    "file": answer.state(),
                })
            };
            let files: Vec<_> = answers.iter().map(one).collect();
            return output::json_data(&json!({ "files": files }), Exit::Success);
        }
        if answers.is_empty() {
            output::talk("you have not been asked about any configuration yet");
            return Exit::Success;
        }
        let mut rows = vec![["FILE", "ANSWER", "WHEN", "NOW"].map(str::to_owned).to_vec()];
        rows.extend(answers.iter().map(|answer| {
            let said = if answer.agreed { "agreed" } else { "refused" };
            vec![answer.path.clone(), said.to_owned(), answer.time.clone(), answer.state().to_owned()]
        }));
        output::data(&output::table(&rows), Exit::Success)
    }

    fn revoke(&self, path: &Path, world: &World) -> Exit {
        let place: PathBuf = world.folder().join(path).components().collect();
        let file = found(&place).unwrap_or(place);
        match world.trust().forget(&file) {
            Ok(0) => self.failed(&format!("you said nothing about `{}`", file.display()), Exit::Usage),
            Ok(count) if self.json => {
                output::json_data(&json!({"ok": true, "path": file, "forgotten": count}), Exit::Success)
            }
            Ok(count) => {
                let count = output::counted(count as u64, "answer");
                output::data(&format!("forgot {count} about {}", file.display()), Exit::Success)
            }
            Err(error) => self.failed(&format!("the answers cannot be changed: {error}"), Exit::Failure),
        }
    }

    fn failed(&self, message: &str, exit: Exit) -> Exit {
        output::failed(message, exit, self.json)
    }
}

/// The file that a path means: itself, or the configuration in a folder that would be used first.
fn found(place: &Path) -> Option<PathBuf> {
    let in_folder = ["bridgehead.toml", ".mcp.json"].into_iter().map(|name| place.join(name));
    std::iter::once(place.to_owned()).chain(in_folder).find(|path| path.is_file())
}
