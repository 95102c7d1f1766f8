//! `bridgehead resources`: shows the resources and templates that the servers offer, and reads one.
//!
//! Invariant: bytes that are not text never reach a terminal.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bridgehead_wire::{Method, Raw};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::answering::{Answering, Answers};
use super::exit::Exit;
use super::meant::meant;
use super::reply::{self, Failures};
use super::request::{AskError, Asking, Listed};
use super::target::{Need, Target, Where, run_once};
use super::world::World;
use super::{Run, output};

/// Show the resources that the servers offer, or read one
#[derive(Debug, Args)]
#[command(
    after_help = "The running gateway with the same configuration answers. Without one, the servers are started for
this command and stopped after it; `read` starts only those that may have the resource.
A URI with {braces} in the list is a template: fill it in to read it.
Exit codes: 0 success, 1 failure, 2 no such resource, 3 no server could be reached.

Examples:
  bridgehead resources
  bridgehead resources read file:///notes.txt
  bridgehead resources read image://logo --output logo.png
  bridgehead resources list --json"
)]
pub(crate) struct Resources {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All resources, then all templates, one line each (the default)
    #[command(after_help = "Examples:\n  bridgehead resources list\n  bridgehead resources list --json")]
    List,
    /// The contents of one resource
    #[command(
        after_help = "Examples:\n  bridgehead resources read file:///notes.txt\n  bridgehead resources read image://logo > logo.png"
    )]
    Read(Read),
}

#[derive(Debug, Args)]
struct Read {
    /// The resource, as `bridgehead resources` shows it
    uri: String,
    /// Write the contents to this file
    #[arg(long, short, value_name = "FILE", conflicts_with = "json")]
    output: Option<PathBuf>,
    #[command(flatten)]
    answers: Answers,
}

impl Run for Resources {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        match &self.what {
            None | Some(What::List) => list(self, world),
            Some(What::Read(wanted)) => read(self, wanted, world),
        }
    }
}

fn list(resources: &Resources, world: &World) -> Exit {
    run_once(async {
        let target = match Target::open(&resources.place, world, Need::Everything, resources.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let listed = all(&target).await;
        let (failures, some_serve) = target.failures().await;
        target.close().await;
        let (listed, templates) = match listed {
            Ok(listed) => listed,
            Err(error) => return reply::refused(&error, &failures, resources.json),
        };
        reply::warn(&failures);
        let exit = if some_serve { Exit::Success } else { Exit::Unreachable };
        if resources.json {
            let lists = [("resources", &listed[..]), ("resourceTemplates", &templates[..])];
            return output::lists(&lists, &reply::failed(&failures), exit);
        }
        if listed.is_empty() && templates.is_empty() {
            output::talk("no server offers a resource");
            return exit;
        }
        let rows =
            listed.iter().chain(&templates).filter_map(|entry| entry.decode().ok()).map(|entry| row(&entry));
        output::data(&output::table(&rows.collect::<Vec<_>>()), exit)
    })
}

/// All resources and all templates.
async fn all(target: &Target) -> Result<(Vec<Raw>, Vec<Raw>), AskError> {
    Ok((target.list(Listed::Resources).await?, target.list(Listed::Templates).await?))
}

/// URI or template, type and description.
fn row(entry: &Value) -> Vec<String> {
    let text = |keys: &[&str]| keys.iter().find_map(|key| entry[*key].as_str()).unwrap_or_default();
    vec![
        output::one_line(text(&["uri", "uriTemplate"]), 2000),
        output::one_line(text(&["mimeType"]), 100),
        output::summary(text(&["description", "title", "name"])),
    ]
}

fn read(resources: &Resources, wanted: &Read, world: &World) -> Exit {
    let answering = match Answering::new(&wanted.answers, &format!("`{}`", wanted.uri)) {
        Ok(answering) => answering,
        Err(reason) => return output::wrong(&reason),
    };
    run_once(async {
        let need = Need::Resource(&wanted.uri);
        let target = match Target::open(&resources.place, world, need, resources.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let asking = Asking {
            method: Method::ResourcesRead,
            members: vec![("uri", Raw::string(&wanted.uri))],
            answering: &answering,
            timeout: None,
        };
        let outcome = target.converse(&asking, reply::progress).await;
        let near = match &outcome {
            Err(error) if is_unknown(error) => near(&target, &wanted.uri).await,
            _ => None,
        };
        let (failures, _) = target.failures().await;
        target.close().await;
        match outcome {
            Ok(result) if resources.json => answering.judge(output::raw_data(result.as_str(), Exit::Success)),
            Ok(result) => answering.judge(contents(&result, wanted)),
            Err(error) => {
                let error = reply::unknown(error, "no server has resources");
                unread(&error, near.as_deref(), &failures, resources.json)
            }
        }
    })
}

fn is_unknown(error: &AskError) -> bool {
    let AskError::Answered(error) = error else { return false };
    let data = error.data().and_then(|data| data.decode().ok()).unwrap_or_default();
    reply::is_unknown_resource(error, &data)
}

/// The listed resources that somebody may have meant.
async fn near(target: &Target, uri: &str) -> Option<String> {
    let (listed, templates) = all(target).await.ok()?;
    let uri_of = |entry: &Raw| -> Option<String> {
        let entry: Value = entry.decode().ok()?;
        entry["uri"].as_str().or(entry["uriTemplate"].as_str()).map(str::to_owned)
    };
    let known: Vec<String> = listed.iter().chain(&templates).filter_map(uri_of).collect();
    Some(meant(uri, known.iter().map(String::as_str), "`bridgehead resources` lists all resources"))
}

fn unread(error: &AskError, near: Option<&str>, failures: &Failures, as_json: bool) -> Exit {
    let exit = reply::refused(error, failures, as_json);
    if let Some(near) = near {
        output::talk(&format!("hint: {near}"));
    }
    exit
}

/// One part of a resource.
enum Part {
    Text(String),
    Bytes { bytes: Vec<u8>, kind: String },
}

impl Part {
    fn read(content: &Value) -> Result<Self, String> {
        let named = || output::one_line(content["uri"].as_str().unwrap_or("?"), 200);
        match (content["text"].as_str(), content["blob"].as_str()) {
            (Some(text), _) => Ok(Self::Text(text.to_owned())),
            (None, Some(blob)) => {
                let bytes = STANDARD.decode(blob).map_err(|error| {
                    format!("the server's bytes of `{}` are not base64: {error}", named())
                })?;
                let kind = content["mimeType"].as_str().unwrap_or("unknown type");
                Ok(Self::Bytes { bytes, kind: output::one_line(kind, 100) })
            }
            (None, None) => Err(format!("`{}` has neither text nor bytes", named())),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes { bytes, .. } => bytes,
        }
    }
}

fn contents(result: &Raw, wanted: &Read) -> Exit {
    let result: Value = result.decode().unwrap_or_default();
    let parts = result["contents"].as_array().into_iter().flatten().map(Part::read);
    let parts: Vec<Part> = match parts.collect() {
        Ok(parts) => parts,
        Err(reason) => return failure(&reason),
    };
    if let Some(file) = &wanted.output {
        return match parts.as_slice() {
            [only] => write(file, only.bytes()),
            parts => failure(&format!(
                "the resource has {} parts, and --output takes one; use --json",
                parts.len()
            )),
        };
    }
    let on_terminal = std::io::stdout().is_terminal();
    parts.iter().fold(Exit::Success, |exit, part| match part {
        part if !on_terminal => output::raw_bytes(part.bytes(), exit),
        Part::Text(text) => output::raw_data(text, exit),
        Part::Bytes { bytes, kind } => failure(&format!(
            "this is no text ({kind}, {}); write it with --output FILE, or into a pipe",
            output::counted(bytes.len() as u64, "byte")
        )),
    })
}

fn write(file: &Path, bytes: &[u8]) -> Exit {
    match std::fs::write(file, bytes) {
        Ok(()) => {
            output::talk(&format!(
                "wrote {} to {}",
                output::counted(bytes.len() as u64, "byte"),
                file.display()
            ));
            Exit::Success
        }
        Err(error) => failure(&format!("cannot write `{}`: {error}", file.display())),
    }
}

fn failure(reason: &str) -> Exit {
    output::talk(&format!("error: {reason}"));
    Exit::Failure
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_for_people() {
        let entry = json!({"uri": "a://b", "name": "n", "mimeType": "text/plain"});
        assert_eq!(row(&entry), ["a://b", "text/plain", "n"]);
        let entry = json!({"uriTemplate": "a://{b}", "name": "n", "title": "t", "description": "d"});
        assert_eq!(row(&entry), ["a://{b}", "", "d"]);
    }

    /// JOIN-8: a part is text or bytes; anything else is an error that names it.
    #[test]
    fn parts() {
        assert_eq!(Part::read(&json!({"text": "t"})).unwrap().bytes(), b"t");
        assert_eq!(Part::read(&json!({"blob": "AP8="})).unwrap().bytes(), [0, 255]);
        for bad in [json!({"uri": "a:b", "blob": "?"}), json!({"uri": "a:b"})] {
            assert!(Part::read(&bad).err().unwrap().contains("`a:b`"));
        }
    }
}
