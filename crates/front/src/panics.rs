//! Handles panics in the front's own code: the request is answered, and the backend is told.
//!
//! The gateway guards the code that runs inside it. This module guards the code around that, so that no client waits for
//! an answer that is never written. The owner of the gateway decides whether the process continues.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use bridgehead_wire::{Code, RpcError, code};
use futures_util::FutureExt;
use serde_json::json;
use tokio::task::JoinError;

use crate::Backend;

/// The message of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Runs `work`. A panic is reported to the backend and becomes the error to answer with. The caller pins `work`: passed by
/// value, it would double the size of every request's future.
pub(crate) async fn guarded<B: Backend, T>(
    backend: &B,
    work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, RpcError> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| told(backend, &*panic))
}

/// The same for synchronous work.
pub(crate) fn guarded_now<B: Backend, T>(backend: &B, work: impl FnOnce() -> T) -> Result<T, RpcError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| told(backend, &*panic))
}

/// Reports the panic of a task to the backend, where no answer was possible any more.
pub(crate) fn ended<B: Backend>(backend: &B, error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        backend.panicked(&*panic);
    }
}

fn told<B: Backend>(backend: &B, panic: &(dyn Any + Send)) -> RpcError {
    backend.panicked(panic);
    let message = "the gateway panicked while it served this request; its log says where";
    let error = Code::HandlerError;
    let data = json!({
        "source": "gateway",
        "code": error.as_str(),
        "retryable": error.retryable(),
        "mayHaveRun": true,
        "hint": error.hint(),
    });
    RpcError::with_data(code::INTERNAL_ERROR, message, &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_said() {
        #[track_caller]
        fn check(panic: impl FnOnce() + std::panic::UnwindSafe, expected: &str) {
            let panic = std::panic::catch_unwind(panic).unwrap_err();
            assert_eq!(words(&*panic), expected);
        }
        let number = 7;
        check(|| panic!("plain words"), "plain words");
        check(move || panic!("number {number}"), "number 7");
        check(|| std::panic::panic_any(7), "no message");
    }
}
