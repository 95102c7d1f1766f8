//! The end of a run that somebody wants to end: what it has started ends with it.
//!
//! Gateways and echo servers are children of this process, and whatever a gateway runs ends with the gateway. So the
//! children are killed, by their ids; what only sends its last words then is not waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::family;

/// Whether a signal has come that ends this process.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Ends this process and its children on SIGINT or SIGTERM, as a shell expects it, from a thread of its own.
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

/// Does not return where a signal ends this process: that children were killed is then no failure of the run.
pub fn wait_if_ended() {
    while ENDED.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Until there are none: the run goes on beside this, and may start another.
fn kill_children() {
    let own = std::process::id();
    for _ in 0..100 {
        let children: Vec<_> =
            family::below(own).into_iter().filter(|seen| seen.parent == own && seen.state != 'Z').collect();
        if children.is_empty() {
            return;
        }
        for child in children {
            // Who was waited for meanwhile has no id any more.
            if let Some(pid) = i32::try_from(child.pid).ok().and_then(Pid::from_raw)
                && child.runs()
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}
