//! A gateway that was started for its clients: it leaves its starter's session, tells it when it serves, and logs to a file.
//!
//! The log has a bounded size: a file that is full is renamed, and replaces the one that was renamed before.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bridgehead::config::Diagnostic;
use serde_json::json;

use crate::output;

/// The size at which a log file is renamed.
const FULL: u64 = 4 * 1024 * 1024;

/// The most that the starter is told about the configuration, in bytes.
const MOST_WARNINGS: usize = 32 * 1024;

/// Tells the starter that clients can join at `socket`, and gives up its pipes.
pub(crate) fn ready(socket: &Path, log: Option<&Path>, warnings: &[Diagnostic]) -> io::Result<()> {
    let warnings = output::told(warnings, MOST_WARNINGS);
    let mut out = io::stdout().lock();
    writeln!(out, "{}", json!({"socket": socket, "log": log, "warnings": warnings}))?;
    out.flush()?;
    drop(out);
    bridgehead_process::give_up_output()
}

/// The log file of detached gateways: `$XDG_STATE_HOME/bridgehead/gateway.log`, or the same below `~/.local/state`.
pub(crate) fn log_file(variables: &BTreeMap<String, String>) -> Option<PathBuf> {
    let folder = |name: &str| variables.get(name).map(Path::new).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME")
        .map(Path::to_owned)
        .or_else(|| folder("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("bridgehead/gateway.log"))
}

/// A log file of bounded size. Several gateways may write to it.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    full: u64,
}

impl LogFile {
    /// Opens it, with its folder.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::bounded(path, FULL)
    }

    fn bounded(path: &Path, full: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        Ok(Self { path: path.to_owned(), file: append_to(path)?, full })
    }

    /// Appends a line.
    pub(crate) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let own = self.file.metadata()?;
        let there = fs::metadata(&self.path);
        let is_own = there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
        if is_own && own.len() >= self.full {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        // Another gateway may have renamed it.
        if !is_own || own.len() >= self.full {
            self.file = append_to(&self.path)?;
        }
        self.file.write_all(line)
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-4: the log is bounded, also if two gateways write to it, and only its owner may read it.
    #[test]
    fn a_log_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("bridgehead/gateway.log");
        let mut logs = [LogFile::bounded(&path, 100).unwrap(), LogFile::bounded(&path, 100).unwrap()];
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        for number in 0..100 {
            logs[number % 2].write(format!("{number:09}\n").as_bytes()).unwrap();
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let both = read(&path.with_extension("log.1")) + &read(&path);
        assert!((100..=200).contains(&both.len()), "{both}");
        let numbers: Vec<usize> = both.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers, (100 - numbers.len()..100).collect::<Vec<_>>(), "the last lines, in order");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
        let variables = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert_eq!(log_file(&variables("HOME", "/h")), Some("/h/.local/state/bridgehead/gateway.log".into()));
        assert_eq!(log_file(&variables("XDG_STATE_HOME", "/s")), Some("/s/bridgehead/gateway.log".into()));
        assert_eq!(log_file(&variables("HOME", "relative")), None);
    }
}
