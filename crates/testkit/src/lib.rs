//! Tools for the tests of the other crates: a scripted upstream, a clock that tests advance, an audit sink that keeps
//! its events, a leak check, and raw clients.
//!
//! Only tests depend on this crate, so it panics where a test would: a fault here is a failed test, and the message
//! says what was expected. It implements the wire format on its own and shares no code with the crates that speak it,
//! so that the two cannot be wrong together.
//!
//! ```no_run
//! use bridgehead_testkit::{Behaviour, LeakCheck, Mock};
//!
//! # async fn test() {
//! let check = LeakCheck::start();
//! let mock = Mock::legacy()
//!     .tool("echo", Behaviour::Echo)
//!     .tool("slow", Behaviour::Echo.after(200).with_progress(3))
//!     .variable(check.marker().0, check.marker().1);
//! let ((program, arguments), variables) = (mock.command(), mock.env());
//! // … run it under the code to be tested, then stop …
//! check.assert_clean().await;
//! # }
//! ```

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "only tests use this crate: a fault here is a failed test"
)]

pub mod client;
mod clock;
mod encryption;
mod leak;
mod mock;
pub mod peer;
mod recorder;
mod script;
mod showing;
mod waiting;

pub use clock::{FakeClock, FrozenClock};
pub use encryption::Encryption;
pub use leak::{LeakCheck, Leftovers};
pub use mock::{Mock, Served, mock_path, shim_path};
pub use recorder::{Event, Recorder};
pub use script::{
    Behaviour, Carrier, Crash, Era, Initialize, LEGACY_REVISION, MODERN_REVISION, Probe, ProgressFault,
    Reply, RpcError, SCRIPT_VARIABLE, Script, Tool, Verbatim,
};
pub use showing::{as_unprivileged, not_shown};
pub use waiting::{PATIENCE, found, soon, until};
