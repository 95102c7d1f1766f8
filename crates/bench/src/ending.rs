//! Ends a run on a signal, together with everything that it has started.
//!
//! Gateways and echo servers are children of this process, and everything that a gateway runs ends with the gateway. So it
//! is enough to kill the children, by their ids. Their last output is not read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::family;

/// Whether a signal is ending this process.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Starts a thread that ends this process and its children on SIGINT or SIGTERM, with the exit code that a shell expects.
pub fn on_signals() -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
            }
        });
        ENDED.store(true, Ordering::SeqCst);
        kill_children();
        std::process::exit(128 + number.as_raw_value());
    });
    Ok(())
}

/// Does not return if a signal is ending this process. Otherwise the killed children would be reported as a failed run.
pub fn wait_if_ended() {
    while ENDED.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills children until there are none: the run continues on another thread and may start more.
fn kill_children() {
    let own = std::process::id();
    for _ in 0..100 {
        let children: Vec<_> =
            family::below(own).into_iter().filter(|seen| seen.parent == own && seen.state != 'Z').collect();
        if children.is_empty() {
            return;
        }
        for child in children {
            // If a child was reaped meanwhile, its id is no longer valid.
            if let Some(pid) = i32::try_from(child.pid).ok().and_then(Pid::from_raw)
                && child.runs()
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}
