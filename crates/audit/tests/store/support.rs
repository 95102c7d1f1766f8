use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bridgehead_audit::{
    About, AuditError, AuditSink, Call, Clock, CorrelationId, Enter, Exit, Outcome, Problem, Record,
    RecordKind, Row, StoreOptions, StoreSink, SystemClock, Verified, Verifier, read_export, read_segment,
    segments,
};
use bridgehead_wire::Era;
use bytes::Bytes;

pub(crate) fn enter_of(id: CorrelationId, tool: &str, arguments: &str) -> Enter {
    let call = Call {
        tool: tool.into(),
        server: Some("files".into()),
        principal: "ada".into(),
        correlation: id,
        era: Era::Modern,
        transport: "http",
        about: About::default(),
    };
    Enter::new(call, Bytes::from(arguments.to_owned()), true, SystemClock::default().now())
}

pub(crate) fn exit_of(enter: &Enter, body: &str) -> Exit {
    let outcome = Outcome::Result { body: Bytes::from(body.to_owned()), is_error: false };
    Exit::new(enter.call(), enter.moment(), SystemClock::default().now(), outcome)
}

/// Makes a call, and waits for its enter like a client.
pub(crate) async fn call(sink: &StoreSink, number: usize) -> Result<CorrelationId, AuditError> {
    let id = CorrelationId::mint();
    let enter = enter_of(id, "files__read", &format!(r#"{{"n":{number}}}"#));
    let ticket = sink.enter(&enter).await?;
    sink.exit(ticket, exit_of(&enter, r#"{"content":[]}"#))?;
    Ok(id)
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// A store with `calls` calls, closed normally.
pub(crate) fn written(folder: &Path, calls: usize, change: impl FnOnce(&mut StoreOptions)) -> PathBuf {
    let mut options = StoreOptions::new(folder);
    options.checkpoint_rows = 8;
    change(&mut options);
    let sink = StoreSink::open(options).unwrap();
    block_on(async {
        for number in 0..calls {
            call(&sink, number).await.unwrap();
        }
    });
    sink.close();
    segments(folder).pop().unwrap()
}

pub(crate) fn records(path: &Path) -> Vec<Record> {
    let mut all = Vec::new();
    let take = |record: &Record| {
        all.push(record.clone());
        Ok(())
    };
    if path.extension().is_some_and(|ending| ending == "jsonl") {
        read_export(path, take).unwrap();
    } else {
        read_segment(path, take).unwrap();
    }
    all
}

pub(crate) fn rows(path: &Path) -> Vec<Row> {
    let rows = records(path).into_iter().filter(|record| record.kind == RecordKind::Row);
    rows.map(|record| serde_json::from_slice(&record.text).unwrap()).collect()
}

pub(crate) fn verify(paths: &[PathBuf]) -> (Vec<Verified>, Vec<Problem>) {
    let mut verifier = Verifier::default();
    verifier.read(paths);
    let (verified, problems, _) = verifier.finish();
    (verified, problems)
}

/// Whether the independent verifier in Python finds no problem.
pub(crate) fn python_verifies(arguments: &[&str]) -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/verify_audit.py");
    let output = Command::new("python3").arg(script).args(arguments).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    // Long enough for a busy machine.
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

pub(crate) fn open(folder: &Path) -> Arc<StoreSink> {
    Arc::new(StoreSink::open(StoreOptions::new(folder)).unwrap())
}
