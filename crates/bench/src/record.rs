//! Measures how fast a record of calls is verified, compared with reading and hashing the same bytes.
//!
//! This module writes the record with the store itself; the program verifies it, as a user would. Hashing and verifying
//! alternate on files that are in the page cache, because the disk would cost both the same.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bridgehead_audit::{
    About, AuditSink, Call, Clock, CorrelationId, Enter, Era, Exit, Outcome, StoreOptions, StoreSink,
    SystemClock, segments,
};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::machine::Process;
use crate::plan::{Form, Plan, text};

/// Its name for `--only`.
pub(crate) const PART: &str = "audit verify";
/// How many calls are recorded at once.
const AT_ONCE: usize = 64;

/// What was measured; empty if it was not requested.
#[derive(Debug, Default)]
pub struct Verification {
    /// How many rows the record has.
    pub rows: usize,
    /// The times to read and hash the bytes of the record, and to verify it.
    pub rounds: Vec<(Duration, Duration)>,
}

impl Form {
    const fn recorded_rows(self) -> usize {
        match self {
            Self::Brief => 20_000,
            Self::Short => 200_000,
            Self::Full => 1_000_000,
        }
    }
}

impl Verification {
    pub(crate) fn measure(plan: &Plan, folder: &TempDir, tell: &mut dyn FnMut(&str)) -> Result<Self> {
        let rows = plan.form.recorded_rows();
        tell(&format!("recording {rows} rows, then verifying them"));
        let record = folder.path().join("record");
        write(&record, rows)?;
        let files = segments(&record);
        let verify = || {
            let arguments = ["audit", "verify", "--folder", text(&record)?];
            let mut process = Process::start(&plan.gateway, &arguments, folder.path().join("verify.txt"))?;
            process.succeeds().context("`audit verify`")
        };
        // The first runs bring the files into the page cache.
        hash(&files)?;
        verify()?;
        let rounds = (0..plan.form.rounds()).map(|_| Ok((hash(&files)?, verify()?)));
        Ok(Self { rows, rounds: rounds.collect::<Result<_>>()? })
    }
}

/// Records calls as a gateway does.
fn write(folder: &Path, rows: usize) -> Result<()> {
    let sink = Arc::new(StoreSink::open(StoreOptions::new(folder))?);
    let runtime = Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let mut calls = JoinSet::new();
        for number in 0..rows / 2 {
            if calls.len() == AT_ONCE {
                calls.join_next().await.context("no call is running")???;
            }
            let sink = Arc::clone(&sink);
            calls.spawn(async move { call(&sink, number).await });
        }
        while let Some(done) = calls.join_next().await {
            done??;
        }
        anyhow::Ok(())
    })?;
    sink.close();
    Ok(())
}

async fn call(sink: &StoreSink, number: usize) -> Result<()> {
    let clock = SystemClock::default();
    let call = Call {
        tool: "echo".into(),
        server: Some("echo".into()),
        principal: "local:1000".into(),
        correlation: CorrelationId::mint(),
        era: Era::Modern,
        transport: "http",
        about: About::default(),
    };
    let arguments = Bytes::from(format!(r#"{{"text":"message {number:08}"}}"#));
    let enter = Enter::new(call, arguments, true, clock.now());
    let ticket = sink.enter(&enter).await?;
    let body = Bytes::from(format!(r#"{{"content":[{{"type":"text","text":"message {number:08}"}}]}}"#));
    let outcome = Outcome::Result { body, is_error: false };
    sink.exit(ticket, Exit::new(enter.call(), enter.moment(), clock.now(), outcome))?;
    Ok(())
}

/// Reads the files and hashes their bytes; returns the time.
fn hash(files: &[PathBuf]) -> Result<Duration> {
    let begun = Instant::now();
    let mut room = vec![0; 256 * 1024];
    for path in files {
        let (mut file, mut hasher) = (File::open(path)?, Sha256::new());
        loop {
            let count = file.read(&mut room)?;
            if count == 0 {
                break;
            }
            hasher.update(&room[..count]);
        }
        std::hint::black_box(hasher.finalize());
    }
    ensure!(!files.is_empty(), "nothing was recorded");
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A whole record is measured: two rows for each call.
    #[test]
    fn all_rows_are_written_and_hashed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 200).unwrap();
        let files = segments(folder.path());
        let mut rows = 0;
        bridgehead_audit::read_segment(&files[0], |record| {
            rows += usize::from(record.kind == bridgehead_audit::RecordKind::Row);
            Ok(())
        })
        .unwrap();
        assert_eq!((files.len(), rows), (1, 200));
        assert!(hash(&files).unwrap() > Duration::ZERO);
        hash(&[]).unwrap_err();
    }
}
