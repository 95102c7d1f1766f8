//! The gateway with scripted servers behind it.

mod catalog;
mod chain;
mod support;
