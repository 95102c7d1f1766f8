//! Reads what a server's processes may use and reach: `limits`, `require`, `files`, `network`, `profile`, `on_missing`.
//!
//! A setting that makes no sense for the server is a mistake; it is never dropped silently.

use std::time::Duration;

use super::server::Reader;
use crate::keys::KeyTable;
use crate::section::{Findings, Section};
use crate::server::{
    Confinement, FileAccess, Isolation, Launch, Limits, Network, OnMissing, Profile, Requirement,
};

/// Reads `limits` of a server or a tool.
fn read(written: &Section<'_>) -> Limits {
    let count = |name| written.integer(name).and_then(|count| u32::try_from(count).ok());
    let megabytes = |name| written.integer(name).map(|megabytes| megabytes << 20);
    Limits {
        memory: megabytes("max_memory_mb"),
        execution: written.integer("max_execution_ms").map(Duration::from_millis),
        processes: count("max_processes"),
        open_files: count("max_open_files"),
        file_size: megabytes("max_file_mb"),
        output: megabytes("max_output_mb").and_then(|bytes| usize::try_from(bytes).ok()),
        log: written.integer("max_log_kb").and_then(|kilobytes| usize::try_from(kilobytes << 10).ok()),
    }
}

/// Reads `limits` of a server. Limits of a process need a process that the gateway starts.
pub(super) fn limits(section: &Section<'_>, isolation: Isolation, findings: &mut Findings) -> Limits {
    let written = Section::read(KeyTable::Limits, section.table("limits"), findings);
    // With a process for each call, that process reaches the server and can be limited.
    if section.mentions("url") && isolation != Isolation::Call {
        let of_processes = ["max_memory_mb", "max_processes", "max_open_files", "max_file_mb", "max_log_kb"];
        for entry in of_processes.into_iter().filter_map(|name| written.entry(name)) {
            let diagnostic = findings
                .diagnostic(format!("`{}` cannot limit a remote server, which runs elsewhere", entry.key), &entry.key_span)
                .help("only `max_execution_ms` and `max_output_mb` limit calls to a `url`, unless `isolation = \"call\"`");
            findings.mistake(diagnostic);
        }
    }
    read(&written)
}

/// Reads `limits` of a tool. If calls share processes, only the time of a single call can be limited.
pub(super) fn tool_limits(section: &Section<'_>, isolation: Isolation, findings: &mut Findings) -> Limits {
    let written = Section::read(KeyTable::Limits, section.table("limits"), findings);
    if isolation != Isolation::Call {
        let of_processes = [
            "max_memory_mb",
            "max_processes",
            "max_open_files",
            "max_file_mb",
            "max_output_mb",
            "max_log_kb",
        ];
        for entry in of_processes.into_iter().filter_map(|name| written.entry(name)) {
            let diagnostic = findings
                .diagnostic(format!("`{}` cannot limit one tool whose calls share processes", entry.key), &entry.key_span)
                .help("write `isolation = \"call\"`, or limit the whole server; `max_execution_ms` works for any tool");
            findings.mistake(diagnostic);
        }
    }
    read(&written)
}

/// Reads `require`.
pub(super) fn require(section: &Section<'_>, findings: &mut Findings) -> Vec<Requirement> {
    let mut required = Vec::new();
    for (word, span) in section.list("require") {
        match Requirement::ALL.into_iter().find(|known| known.as_str() == word) {
            Some(known) => required.push(known),
            None => {
                let known = Requirement::ALL.map(|known| format!("`{}`", known.as_str())).join(", ");
                let diagnostic = findings
                    .diagnostic(format!("`require` does not know `{word}`"), span)
                    .help(format!("`require` takes {known}"));
                findings.mistake(diagnostic);
            }
        }
    }
    required
}

impl Reader<'_> {
    /// What the server's processes may reach; `None` if everything. A path with an unset variable disables the server.
    pub(super) fn confinement(
        &mut self,
        section: &Section<'_>,
        launch: Option<&Launch>,
    ) -> Option<Confinement> {
        let asks = ["files", "network", "profile", "on_missing"];
        if section.mentions("url") {
            for entry in asks.into_iter().filter_map(|name| section.entry(name)) {
                let message = format!("`{}` cannot confine a remote server, which runs elsewhere", entry.key);
                self.mistake(
                    &message,
                    &entry.key_span,
                    "remove the key, or run the server here with `command`",
                );
            }
            return None;
        }
        let profile = section.text("profile").and_then(|(word, span)| {
            let known = Profile::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(word));
            if known.is_none() {
                let names = Profile::ALL.map(|known| format!("`{}`", known.as_str())).join(", ");
                self.mistake(
                    &format!("there is no profile `{word}`"),
                    span,
                    &format!("the profiles are {names}"),
                );
            }
            known.map(|known| (known, span))
        });
        let folder = match launch {
            Some(Launch::Stdio(stdio)) => stdio.cwd.clone(),
            _ => None,
        };
        if let (Some((profile, span)), None) = (profile, &folder)
            && profile.needs_folder()
        {
            let message = format!("profile `{}` needs the working folder of the server", profile.as_str());
            self.mistake(&message, span, "name that folder in `cwd`");
        }
        let profile = profile.map(|(profile, _)| profile);
        let written = Section::read(KeyTable::Files, section.table("files"), self.findings);
        let mut paths = |name: &'static str| {
            let key = format!("files.{name}");
            let listed = written.list(name).into_iter();
            listed.filter_map(|(text, span)| self.path(&key, text, span)).collect::<Vec<_>>()
        };
        let (read, write) = (paths("read"), paths("write"));
        let mut files = section.entry("files").map(|_| FileAccess { read, write });
        if let Some(profile) = profile {
            let FileAccess { read, write } = profile.files(folder.as_ref());
            let files = files.get_or_insert_default();
            files.read.extend(read);
            files.write.extend(write);
        }
        let by_word = |(word, _): (&str, _)| match word {
            "none" => Network::None,
            _ => Network::Full,
        };
        let network = section.word("network").map(by_word).or(profile.map(Profile::network));
        let on_missing = match section.word("on_missing") {
            Some(("degrade", _)) => OnMissing::Degrade,
            _ => OnMissing::Refuse,
        };
        let network = network.unwrap_or_default();
        (files.is_some() || network == Network::None).then_some(Confinement {
            files,
            network,
            on_missing,
            profile,
        })
    }
}
