//! Tests the program from the outside. They are one binary, because linking takes most of the build time.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do: with a panic that says where"
)]

mod access;
mod adding;
mod answers;
mod asking;
mod bounds;
mod common;
mod connect;
mod doctor;
mod door;
mod example;
mod import;
mod joining;
mod keys;
mod leaks;
mod limits;
mod line;
mod memory;
mod moving;
mod offers;
mod operations;
mod pages;
mod questions;
mod reading;
mod record;
mod relay;
mod remote;
mod restrictions;
mod secrets;
mod serve;
mod servers;
mod service;
mod starting;
mod talk;
mod terminal;
mod trust;
mod verbs;
mod walls;
mod words;
