//! Process-wide handlers. The only test in this file, so that it has the process for itself.

#![expect(clippy::unwrap_used, reason = "a helper of the test fails as the test does")]

use bridgehead::{Server, Transport};

/// Whether this process catches SIGTERM and SIGINT.
fn caught() -> (bool, bool) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    let has = |signal: u32| mask & (1 << (signal - 1)) != 0;
    (has(15), has(2))
}

/// SRV-1: building installs no global handler. SRV-2: starting does, any number of times, unless it is disabled.
#[tokio::test]
async fn handlers_come_with_the_start_and_only_where_wanted() {
    let server = |install| {
        let (client, theirs) = tokio::io::duplex(1024);
        let options = Server::builder().transport(Transport::Memory(theirs)).process_handlers(install);
        (options.build().unwrap(), client)
    };
    let (refusing, _held) = server(false);
    let (installing, _held_too) = server(true);
    assert_eq!(caught(), (false, false), "building installs nothing");
    refusing.start().await.unwrap().stop().await;
    assert_eq!(caught(), (false, false), "nor does a start with handlers disabled");
    installing.start().await.unwrap().stop().await;
    assert_eq!(caught(), (true, true));
    let (again, _held_as_well) = server(true);
    again.start().await.unwrap().stop().await;
    assert_eq!(caught(), (true, true));
}
