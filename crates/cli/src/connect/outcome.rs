//! What was done for one client, for people and for programs.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::record::How;
use crate::clients::Client;

/// What was done for one client.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) client: &'static Client,
    pub(crate) state: State,
    pub(crate) name: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) how: Option<How>,
    pub(crate) backup: Option<PathBuf>,
    /// The text to paste, or what would change.
    pub(crate) text: Option<String>,
    /// The command that takes it back.
    pub(crate) undo: Option<String>,
    /// The client's own servers that were turned off or taken out.
    pub(crate) moved: Vec<String>,
    /// What the user does next.
    pub(crate) next: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) error: Option<String>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Connected,
    /// An entry of ours was there and said something else.
    Updated,
    /// It was connected like this already.
    Unchanged,
    /// The user adds the entry.
    Printed,
    /// Nothing was written, because nothing was to be.
    Planned,
    /// The file is as it was before.
    Restored,
    /// The entry was taken out of the file.
    Removed,
    /// There was no entry.
    NotConnected,
    Failed,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Printed => "printed",
            Self::Planned => "planned",
            Self::Restored => "restored",
            Self::Removed => "removed",
            Self::NotConnected => "not connected",
            Self::Failed => "failed",
        }
    }
}

impl Outcome {
    pub(crate) fn new(client: &'static Client, name: &str) -> Self {
        Self {
            client,
            state: State::Failed,
            name: name.to_owned(),
            file: None,
            how: None,
            backup: None,
            text: None,
            undo: None,
            moved: Vec::new(),
            next: Vec::new(),
            warnings: Vec::new(),
            error: None,
        }
    }

    pub(crate) fn failed(mut self, error: impl Into<String>) -> Self {
        self.state = State::Failed;
        self.error = Some(error.into());
        self
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "client": self.client.id,
            "state": self.state.as_str(),
            "name": self.name,
            "file": self.file,
            "how": self.how,
            "backup": self.backup,
            "text": self.text,
            "undo": self.undo,
            "moved": self.moved,
            "next": self.next,
            "warnings": self.warnings,
            "error": self.error,
        })
    }

    /// For people: one paragraph.
    pub(crate) fn words(&self) -> String {
        let title = self.client.title;
        let file = self.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        let by = match self.how {
            Some(How::Command) => "by its own command, in",
            _ => "in",
        };
        let name = &self.name;
        let first = match self.state {
            State::Connected => format!("{title}: connected {by} `{file}`"),
            State::Updated => format!("{title}: the entry `{name}` was updated in `{file}`"),
            State::Unchanged => format!("{title}: connected already, nothing changed in `{file}`"),
            State::Printed => format!("{title}: add this to `{file}`"),
            State::Planned => format!("{title}: would change `{file}`"),
            State::Restored => format!("{title}: disconnected, `{file}` is as it was before"),
            State::Removed => format!("{title}: disconnected, the entry `{name}` is out of `{file}`"),
            State::NotConnected => format!("{title}: not connected, nothing changed"),
            State::Failed => {
                return format!("{title}: {}", self.error.as_deref().unwrap_or("failed"));
            }
        };
        let mut lines = vec![first];
        lines.extend(self.next.iter().map(|next| format!("  next: {next}")));
        if let Some(undo) = &self.undo {
            let kept = self.backup.as_ref().map(|backup| format!(" (the file before: {})", backup.display()));
            lines.push(format!("  undo: {undo}{}", kept.unwrap_or_default()));
        }
        lines.join("\n")
    }
}
