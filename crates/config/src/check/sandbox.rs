//! What a server's processes may use and reach: `limits`, `require`, `files`, `network`, `profile`, `on_missing`.
//!
//! What is asked for and makes no sense for such a server is a mistake, never silently dropped.

use std::time::Duration;

use super::server::Reader;
use crate::keys::KeyTable;
use crate::section::{Findings, Section};
use crate::server::{
    Confinement, FileAccess, Isolation, Launch, Limits, Network, OnMissing, Profile, Requirement,
};

/// `limits`, of a server or a tool.
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

/// `limits` of a server. Those of a process need one of ours.
pub(super) fn limits(section: &Section<'_>, isolation: Isolation, findings: &mut Findings) -> Limits {
    let written = Section::read(KeyTable::Limits, section.table("limits"), findings);
    // One with a process for each call is reached from there.
    if section.mentions("url") && isolation != Isolation::Call {
        let of_processes = ["max_memory_mb", "max_processes", "max_open_files", "max_file_mb", "max_log_kb"];
        for entry in of_processes.into_iter().filter_map(|name| written.entry(name)) {
            let diagnostic = findings
                .diagnostic("what a remote server uses cannot be limited from here", &entry.key_span)
                .help("only `max_execution_ms` and `max_output_mb` limit calls to a `url`, unless `isolation = \"call\"`");
            findings.mistake(diagnostic);
        }
    }
    read(&written)
}

/// `limits` of a tool. Where calls share processes, only time can be limited for one of them.
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
                .diagnostic("a tool whose calls share processes cannot have this limit for itself", &entry.key_span)
                .help("write `isolation = \"call\"`, or limit the whole server; `max_execution_ms` works for any tool");
            findings.mistake(diagnostic);
        }
    }
    read(&written)
}

/// `require`, and that what is required is asked for at all.
pub(super) fn require(section: &Section<'_>, findings: &mut Findings) -> Vec<Requirement> {
    let mut required = Vec::new();
    for (word, span) in section.list("require") {
        match Requirement::ALL.into_iter().find(|known| known.as_str() == word) {
            Some(known) => required.push(known),
            None => {
                let known = Requirement::ALL.map(|known| format!("`{}`", known.as_str())).join(", ");
                let diagnostic = findings
                    .diagnostic(format!("`{word}` is nothing that can be required"), span)
                    .help(format!("what can be required is {known}"));
                findings.mistake(diagnostic);
            }
        }
    }
    required
}

impl Reader<'_> {
    /// What its processes may reach; nothing if they may reach everything. A path that cannot be read costs the server.
    pub(super) fn confinement(
        &mut self,
        section: &Section<'_>,
        launch: Option<&Launch>,
    ) -> Option<Confinement> {
        let asks = ["files", "network", "profile", "on_missing"];
        if section.mentions("url") {
            for entry in asks.into_iter().filter_map(|name| section.entry(name)) {
                self.mistake(
                    "a remote server runs elsewhere and cannot be confined from here",
                    &entry.key_span,
                    "leave it out, or run the server here by its `command`",
                );
            }
            return None;
        }
        let profile = section.text("profile").and_then(|(word, span)| {
            let known = Profile::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(word));
            if known.is_none() {
                let names = Profile::ALL.map(|known| format!("`{}`", known.as_str())).join(", ");
                self.mistake(&format!("there is no profile `{word}`"), span, &format!("there are {names}"));
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
            let message = format!("profile `{}` needs the folder that the server works in", profile.as_str());
            self.mistake(&message, span, "name it as `cwd`");
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
        let by_word = |(word, _): (&str, _)| match word.eq_ignore_ascii_case("none") {
            true => Network::None,
            false => Network::Full,
        };
        let network = section.text("network").map(by_word).or(profile.map(Profile::network));
        let on_missing = match section.text("on_missing") {
            Some((word, _)) if word.eq_ignore_ascii_case("degrade") => OnMissing::Degrade,
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
