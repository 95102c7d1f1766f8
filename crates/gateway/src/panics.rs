//! Remembers where the last panic on this thread happened, for errors that may show it.
//!
//! A caught panic brings its message but not its backtrace; only the process-wide hook sees that one. The
//! hook is installed by the server's start, never by a library call on its own.

use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the backtrace of a panic. Called from the panic hook.
pub fn note_backtrace() {
    let backtrace = std::backtrace::Backtrace::force_capture().to_string();
    LAST.with(|last| *last.borrow_mut() = Some(backtrace));
}

/// The backtrace of the last panic on this thread, if a hook noted it.
pub(crate) fn last_backtrace() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}
