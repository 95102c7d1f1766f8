//! Takes the listening sockets that a service manager passes to this process (`LISTEN_FDS`, as systemd does).
//!
//! The service manager keeps such a socket open, too. So the port stays taken while the program restarts, and clients that
//! connect meanwhile wait instead of being refused.

use std::io;
use std::os::fd::OwnedFd;

/// The number of the first passed descriptor.
#[cfg(target_os = "linux")]
const FIRST: u32 = 3;

/// The sockets that were passed to this process, in their order; none if it was started otherwise. Only the first call returns
/// them. Programs that are started afterwards do not inherit them.
///
/// # Errors
/// If the service manager promised descriptors that are not there.
#[cfg(target_os = "linux")]
pub fn passed_sockets() -> io::Result<Vec<OwnedFd>> {
    use std::sync::atomic::{AtomicBool, Ordering};

    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| std::env::var(name).ok();
    let count = promised(variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref());
    if count == 0 || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    (FIRST..FIRST.saturating_add(count)).map(crate::sys::take_passed).collect()
}

/// Elsewhere no service manager passes sockets in this way.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn passed_sockets() -> io::Result<Vec<OwnedFd>> {
    Ok(Vec::new())
}

/// How many descriptors were passed. The variables may be inherited from a parent that they were meant for.
#[cfg(target_os = "linux")]
fn promised(process: Option<&str>, count: Option<&str>) -> u32 {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    match number(process) == Some(std::process::id()) {
        true => number(count).unwrap_or(0),
        false => 0,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_taken_only_by_the_process_they_are_for() {
        let this = std::process::id().to_string();
        assert_eq!(promised(Some(&this), Some("2")), 2);
        assert_eq!(promised(Some("1"), Some("2")), 0);
        for (process, count) in [(None, Some("2")), (Some(&*this), None), (Some(&*this), Some("-1"))] {
            assert_eq!(promised(process, count), 0, "{process:?} {count:?}");
        }
        assert_eq!(passed_sockets().unwrap().len(), 0, "this process was started otherwise");
    }
}
