//! The gateway with scripted servers behind it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod catalog;
mod chain;
mod edges;
mod eras;
mod events;
mod leases;
mod limits;
mod one_shot;
mod outcomes;
mod parked;
mod pool;
mod questions;
mod queues;
mod reload;
mod remote;
mod rounds;
mod secrets;
mod status;
mod subscriptions;
mod support;
mod surfaces;
mod tasks;
mod telemetry;
