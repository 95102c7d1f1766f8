//! Process-wide handlers. The only test in this file, so that it has the process for itself.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper of the test fails as the test does")]

use std::io;
use std::panic::{catch_unwind, set_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bridgehead::{Server, Transport};

/// Whether this process catches SIGTERM and SIGINT.
fn caught() -> (bool, bool) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    let has = |signal: u32| mask & (1 << (signal - 1)) != 0;
    (has(15), has(2))
}

/// Who hears of a panic: a hook of the program, or the log.
#[derive(Clone, Default)]
struct Panics {
    told: Arc<AtomicUsize>,
    lines: Arc<Mutex<Vec<u8>>>,
}

impl io::Write for Panics {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lines.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Panics {
    /// Logs to these lines, whatever the thread.
    fn log(&self) {
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || lines.clone()).with_ansi(false);
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    }

    /// Puts the program's own hook in place of whatever is there.
    fn hook(&self) {
        let told = Arc::clone(&self.told);
        set_hook(Box::new(move |_| {
            told.fetch_add(1, Ordering::SeqCst);
        }));
    }

    /// Panics; returns how often the program's hook and the log hear of it.
    fn heard(&self) -> (usize, usize) {
        self.told.store(0, Ordering::SeqCst);
        self.lines.lock().unwrap().clear();
        assert!(catch_unwind(|| panic!("on purpose")).is_err());
        let lines = String::from_utf8(self.lines.lock().unwrap().clone()).unwrap();
        (self.told.load(Ordering::SeqCst), lines.matches("panic: on purpose").count())
    }
}

/// SRV-1: building installs no global handler. SRV-2: starting does, unless it is disabled: those of signals, and a panic hook
/// that writes one line. A second start installs nothing again, so a hook that the program has set meanwhile stays.
#[tokio::test]
async fn handlers_come_with_the_start_and_only_where_wanted() {
    const OURS: (usize, usize) = (0, 1);
    const THE_PROGRAMS: (usize, usize) = (1, 0);
    let panics = Panics::default();
    panics.log();
    panics.hook();
    let server = |install| {
        let (client, theirs) = tokio::io::duplex(1024);
        let options = Server::builder().transport(Transport::Memory(theirs)).process_handlers(install);
        (options.build().unwrap(), client)
    };
    let (refusing, _held) = server(false);
    let (installing, _held_too) = server(true);
    assert_eq!((caught(), panics.heard()), ((false, false), THE_PROGRAMS), "building installs nothing");
    refusing.start().await.unwrap().stop().await;
    assert_eq!(
        (caught(), panics.heard()),
        ((false, false), THE_PROGRAMS),
        "nor does a start with handlers disabled"
    );
    installing.start().await.unwrap().stop().await;
    assert_eq!((caught(), panics.heard()), ((true, true), OURS));
    panics.hook();
    let (again, _held_as_well) = server(true);
    assert_eq!((caught(), panics.heard()), ((true, true), THE_PROGRAMS), "nor does building a second server");
    again.start().await.unwrap().stop().await;
    assert_eq!((caught(), panics.heard()), ((true, true), THE_PROGRAMS), "it is installed once");
}
