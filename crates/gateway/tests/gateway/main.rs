//! The gateway with scripted servers behind it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod allowances;
mod catalog;
mod codes;
mod edges;
mod envelopes;
mod eras;
mod events;
mod gate;
mod held;
mod leases;
mod limits;
mod native;
mod one_shot;
mod outcomes;
mod panics;
mod parked;
mod pool;
mod questions;
mod queues;
mod recorded;
mod reload;
mod remote;
mod rounds;
mod saved;
mod secrets;
mod signals;
mod status;
mod strict;
mod subscriptions;
mod support;
mod surfaces;
mod tasks;
mod telemetry;
mod views;

/// All isolation holds for an unprivileged user: root runs these tests once more as one.
#[test]
fn isolation_holds_for_an_unprivileged_user() {
    let programs = [bridgehead_testkit::mock_path(), bridgehead_testkit::shim_path()];
    let cases = ["limits::", "one_shot::", "outcomes::"];
    // Measurements, and repetitions of what other tests show, are the same for every user.
    let skipped = ["box_45", "box_46", "box_59", "box_30"];
    bridgehead_testkit::as_unprivileged("isolation_as_an_unprivileged_user", &programs, |name| {
        cases.iter().any(|case| name.starts_with(case))
            && !skipped.iter().any(|skipped| name.contains(skipped))
    });
}
