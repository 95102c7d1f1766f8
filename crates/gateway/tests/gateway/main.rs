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
mod leases;
mod limits;
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

/// Everything about isolation holds for a user without privileges, as which root runs it once more.
#[test]
fn isolation_holds_for_an_unprivileged_user() {
    let programs = [bridgehead_testkit::mock_path(), bridgehead_testkit::shim_path()];
    let cases = ["limits::", "one_shot::", "outcomes::"];
    // Those that are measured, or are many calls of what others show, are the same for everybody.
    let skipped = ["box_45", "box_46", "box_59", "box_30"];
    bridgehead_testkit::as_unprivileged("isolation_as_an_unprivileged_user", &programs, |name| {
        cases.iter().any(|case| name.starts_with(case))
            && !skipped.iter().any(|skipped| name.contains(skipped))
    });
}
