//! What the words and options of `bridgehead add` mean.

use std::path::Path;

use bridgehead::config::{Secret, ServerName, Url};
use clap::ValueEnum;

use super::Scope;
use crate::servers_file::{EntryLaunch, EntryTransport, ServerEntry};
use crate::world::{THIS_PROGRAM, World};

/// How the server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Transport {
    Stdio,
    #[value(aliases = ["streamable-http", "streamable_http", "streamableHttp"])]
    Http,
    Sse,
    #[value(alias = "websocket")]
    Ws,
}

/// The words and options of the command line.
#[derive(Debug, Default)]
pub(super) struct Words<'w> {
    pub(super) name: &'w str,
    pub(super) transport: Option<Transport>,
    pub(super) url: Option<&'w str>,
    /// An address, or a command and its arguments.
    pub(super) words: Vec<&'w str>,
    pub(super) env: Vec<(String, String)>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) cwd: Option<&'w Path>,
}

impl Words<'_> {
    /// The server that they describe, and what is worth a warning. The error says what to write instead.
    pub(super) fn entry(&self, scope: Scope, world: &World) -> Result<(ServerEntry, Vec<String>), String> {
        let secrets = |pairs: &[(String, String)]| {
            pairs.iter().map(|(key, value)| (key.clone(), Secret::new(value.as_str()))).collect()
        };
        let is_address = self.words.first().is_some_and(|word| has_scheme(word));
        let remote = match (self.transport, self.url) {
            (Some(Transport::Stdio), None) => false,
            (Some(Transport::Stdio), Some(_)) => {
                return Err(
                    "--transport stdio runs a command, and --url is an address; leave one of them out"
                        .to_owned(),
                );
            }
            (Some(_), _) | (None, Some(_)) => true,
            (None, None) => is_address,
        };
        if remote {
            let entry = self.remote()?;
            return Ok((ServerEntry { headers: secrets(&self.headers), ..entry }, Vec::new()));
        }
        let (entry, warnings) = self.program(scope, world)?;
        Ok((ServerEntry { env: secrets(&self.env), ..entry }, warnings))
    }

    fn remote(&self) -> Result<ServerEntry, String> {
        let url = match (self.url, self.words.as_slice()) {
            (Some(url), []) => url,
            (None, [url]) => url,
            (None, []) => {
                return Err(format!("where is it? write `bridgehead add {} https://host/mcp`", self.name));
            }
            (_, [.., extra]) => {
                return Err(format!("a remote server has an address and no arguments; leave `{extra}` out"));
            }
        };
        if !has_scheme(url) && !url.contains("${") {
            let scheme = if self.transport == Some(Transport::Ws) { "wss" } else { "https" };
            return Err(format!("`{url}` has no scheme; did you mean `{scheme}://{url}`?"));
        }
        if !url.contains("${") {
            url.parse::<Url>().map_err(|error| format!("that is not the address of a server: {error}"))?;
        }
        if let Some((key, _)) = self.env.first() {
            return Err(format!(
                "--env {key} is for a program; a remote server gets --header \"NAME: VALUE\""
            ));
        }
        if self.cwd.is_some() {
            return Err("--cwd is for a program, and this is the address of a server".to_owned());
        }
        let transport = self.transport.and_then(|transport| match transport {
            Transport::Http => Some(EntryTransport::Http),
            Transport::Sse => Some(EntryTransport::Sse),
            Transport::Ws => Some(EntryTransport::WebSocket),
            Transport::Stdio => None,
        });
        Ok(ServerEntry::new(EntryLaunch::Remote { url: url.to_owned(), transport }))
    }

    fn program(&self, scope: Scope, world: &World) -> Result<(ServerEntry, Vec<String>), String> {
        let Some((command, args)) = self.words.split_first() else {
            return Err(format!(
                "what does it run? write `bridgehead add {0} -- command arguments`, or `bridgehead add {0} https://host/mcp`",
                self.name
            ));
        };
        if let Some((name, _)) = self.headers.first() {
            return Err(format!("--header {name} is for a remote server; a program gets --env NAME=VALUE"));
        }
        let folder = world.folder();
        let is_file = |word: &str| folder.join(word).is_file() || on_path(word, world);
        if command.split_whitespace().nth(1).is_some() && !is_file(command) {
            // The words are not repeated: one of them may be a secret.
            let program = command.split_whitespace().next().unwrap_or_default();
            return Err(format!(
                "the command holds arguments; write them without quotes: `bridgehead add {} -- {program} …`",
                self.name
            ));
        }
        if command.trim().is_empty() {
            return Err("the command is empty".to_owned());
        }
        let mut warnings = Vec::new();
        if !command.contains("${") && *command != THIS_PROGRAM && !is_file(command) {
            let cure = match *command {
                "npx" | "node" | "npm" => "install Node.js",
                "uvx" | "uv" => "install uv",
                "docker" => "install Docker",
                _ => "install it, or correct the name",
            };
            warnings.push(format!("there is no program `{command}` here; {cure}"));
        }
        // The gateway may run in another folder. Only a project's file is used in its own folder.
        let absolute = |path: &Path| match scope {
            Scope::User => {
                folder.join(path).components().collect::<std::path::PathBuf>().display().to_string()
            }
            Scope::Project => path.display().to_string(),
        };
        let command = match command.contains('/') && !command.contains("${") && folder.join(command).is_file()
        {
            true => absolute(Path::new(command)),
            false => (*command).to_owned(),
        };
        if let Some(cwd) = self.cwd.filter(|cwd| !folder.join(cwd).is_dir()) {
            warnings.push(format!("there is no folder `{}`", cwd.display()));
        }
        // The words of the arguments stay as they are: who knows whether one of them means the file.
        let is_here = |word: &&str| {
            !word.starts_with('-') && Path::new(word).is_relative() && folder.join(word).exists()
        };
        let here = args.iter().any(|word| !word.is_empty() && is_here(word)) && scope == Scope::User;
        let cwd = self.cwd.or(here.then_some(folder)).map(absolute);
        let args = args.iter().map(ToString::to_string).collect();
        let launch = EntryLaunch::Program { command, args, cwd };
        Ok((ServerEntry::new(launch), warnings))
    }
}

/// Whether the text begins with a scheme that servers are reached by.
fn has_scheme(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["http://", "https://", "ws://", "wss://"].iter().any(|scheme| lower.starts_with(scheme))
}

/// Whether `PATH` has a program of this name.
fn on_path(command: &str, world: &World) -> bool {
    let folders = world.environment.variable("PATH").unwrap_or_default();
    !command.contains('/') && std::env::split_paths(folders).any(|folder| folder.join(command).is_file())
}

/// A variable as `NAME=VALUE`.
pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        Some(_) => Err("write it as NAME=VALUE".to_owned()),
        None if text.parse::<ServerName>().is_ok() => {
            Err(format!("write it as NAME=VALUE; {text}='${{{text}}}' takes the gateway's own variable"))
        }
        None => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// A header as `NAME: VALUE`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write it as \"NAME: VALUE\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn world(folder: &Path) -> World {
        let path = folder.join("bin").display().to_string();
        World::of(BTreeMap::from([("PATH".to_owned(), path)]), folder.to_owned()).unwrap()
    }

    #[track_caller]
    fn refused(words: &Words<'_>, part: &str) {
        let folder = tempfile::tempdir().unwrap();
        let told = words.entry(Scope::User, &world(folder.path())).unwrap_err();
        assert!(told.contains(part), "{part:?} is missing: {told}");
    }

    /// JOIN-3: each mistake is refused with what to write instead.
    #[test]
    fn mistakes() {
        let words = |words: &[&'static str]| Words { name: "x", words: words.to_vec(), ..Words::default() };
        let http = |list: &[&'static str]| Words { transport: Some(Transport::Http), ..words(list) };
        refused(&words(&[]), "write `bridgehead add x -- command arguments`");
        refused(&http(&[]), "write `bridgehead add x https://host/mcp`");
        refused(&http(&["example.com/mcp"]), "did you mean `https://example.com/mcp`?");
        refused(&Words { transport: Some(Transport::Ws), ..words(&["h"]) }, "did you mean `wss://h`?");
        refused(&http(&["https://h/mcp", "--verbose"]), "leave `--verbose` out");
        refused(&http(&["https://"]), "not the address of a server");
        refused(&words(&["npx -y hunter2"]), "`bridgehead add x -- npx …`");
        refused(&words(&[" "]), "the command is empty");
        let url = Words { url: Some("https://h"), transport: Some(Transport::Stdio), ..words(&[]) };
        refused(&url, "leave one of them out");
        let env = vec![("A".to_owned(), "1".to_owned())];
        refused(&Words { env: env.clone(), ..words(&["https://h/mcp"]) }, "--header");
        refused(&Words { headers: env, ..words(&["npx"]) }, "--env NAME=VALUE");
        refused(&Words { cwd: Some(Path::new("/")), ..words(&["https://h/mcp"]) }, "--cwd is for a program");
        for text in ["A", "=1", "a b"] {
            assert!(variable(text).unwrap_err().contains("NAME=VALUE"), "{text}");
        }
        assert!(variable("TOKEN").unwrap_err().contains("TOKEN='${TOKEN}'"));
        for text in ["A", ": x", "A=1"] {
            assert!(header(text).is_err(), "{text}");
        }
        assert_eq!(variable("A=b=c").unwrap(), ("A".to_owned(), "b=c".to_owned()));
        assert_eq!(header("A:  b: c ").unwrap(), ("A".to_owned(), "b: c".to_owned()));
    }

    /// JOIN-3: words mean a program or an address, and paths of a program mean the same wherever the gateway runs.
    #[test]
    fn programs_and_addresses() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        for file in ["bin/npx", "run.sh", "with blank"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let world = world(folder.path());
        let entry = |words: &Words<'_>, scope| words.entry(scope, &world).unwrap();
        let words = |words: &[&'static str]| Words { name: "x", words: words.to_vec(), ..Words::default() };
        let program = |command: &str, args: &[&str], cwd: Option<String>| EntryLaunch::Program {
            command: command.to_owned(),
            args: args.iter().map(ToString::to_string).collect(),
            cwd,
        };
        let (read, warnings) = entry(&words(&["npx", "-y", "a b"]), Scope::User);
        assert_eq!((read.launch, warnings.len()), (program("npx", &["-y", "a b"], None), 0));
        let (read, warnings) = entry(&words(&["uvx", "x"]), Scope::User);
        assert_eq!((read.launch, warnings.len()), (program("uvx", &["x"], None), 1));
        assert!(warnings[0].contains("install uv"), "{warnings:?}");
        let there = folder.path().join("run.sh").display().to_string();
        let relative = Words { cwd: Some(Path::new("bin")), ..words(&["./run.sh"]) };
        let bin = folder.path().join("bin").display().to_string();
        assert_eq!(entry(&relative, Scope::User).0.launch, program(&there, &[], Some(bin)));
        assert_eq!(
            entry(&relative, Scope::Project).0.launch,
            program("./run.sh", &[], Some("bin".to_owned()))
        );
        let gone = Words { cwd: Some(Path::new("gone")), ..words(&["npx"]) };
        assert!(entry(&gone, Scope::User).1[0].contains("no folder `gone`"));
        assert_eq!(
            entry(&words(&["./with blank"]), Scope::Project).0.launch,
            program("./with blank", &[], None)
        );
        let here = Some(folder.path().display().to_string());
        for (args, cwd) in [
            (&["run.sh"][..], &here),
            (&["-y", "x", "bin"], &here),
            (&["no-such-file", ""], &None),
            (&["/"], &None),
        ] {
            let line = words(&[&["npx"][..], args].concat());
            assert_eq!(entry(&line, Scope::User).0.launch, program("npx", args, cwd.clone()), "{args:?}");
            assert_eq!(entry(&line, Scope::Project).0.launch, program("npx", args, None), "{args:?}");
        }
        std::fs::write(folder.path().join("-run.sh"), "").unwrap();
        assert_eq!(
            entry(&words(&["npx", "-run.sh"]), Scope::User).0.launch,
            program("npx", &["-run.sh"], None)
        );
        let named = Words { cwd: Some(Path::new("/")), ..words(&["npx", "run.sh"]) };
        assert_eq!(entry(&named, Scope::User).0.launch, program("npx", &["run.sh"], Some("/".to_owned())));
        let remote = |url: &str, transport| EntryLaunch::Remote { url: url.to_owned(), transport };
        assert_eq!(entry(&words(&["HTTPS://h/mcp"]), Scope::User).0.launch, remote("HTTPS://h/mcp", None));
        let far = |transport, url| Words { transport: Some(transport), url: Some(url), ..words(&[]) };
        for (transport, url, expected) in [
            (Transport::Http, "https://h/mcp", EntryTransport::Http),
            (Transport::Sse, "http://h/sse", EntryTransport::Sse),
            (Transport::Ws, "ws://h", EntryTransport::WebSocket),
            (Transport::Http, "${URL}", EntryTransport::Http),
        ] {
            assert_eq!(entry(&far(transport, url), Scope::User).0.launch, remote(url, Some(expected)));
        }
        assert_eq!(entry(&words(&["${PROGRAM}"]), Scope::User).0.launch, program("${PROGRAM}", &[], None));
    }
}
