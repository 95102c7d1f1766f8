//! The errors of calls without a process, and the end of a call's budget.

use super::*;
use crate::server::Failure;

/// ERR-1, PROV-3, BOX-1: a call without a process is unavailable and may be retried, unless its process cannot be
/// limited as required.
#[test]
fn a_call_without_a_process() {
    #[track_caller]
    fn check(error: &Unavailable, code: Code, retryable: bool) {
        let refused = refused(&ServerName::adapt("far"), error);
        assert_eq!((refused.code, refused.retryable()), (code, retryable), "{error:?}");
        assert_eq!(refused.message, format!("server `far` has no process for the call: {error}"));
    }
    let failed = |stage| Unavailable::Failed(Arc::new(Failure { stage, reason: "so it is".to_owned() }));
    check(&failed(FailureStage::Sandbox), Code::SandboxUnavailable, false);
    check(&failed(FailureStage::Init), Code::ProviderUnavailable, true);
    check(&failed(FailureStage::Crashed), Code::ProviderUnavailable, true);
    check(&Unavailable::Stopped, Code::ProviderUnavailable, true);
    check(&Unavailable::StillStarting(Duration::from_secs(60)), Code::ProviderUnavailable, true);
}

/// PROV-1: the shorter of two limits counts and is named; the budget is spent from its end on.
#[tokio::test(start_paused = true)]
async fn the_budget_of_a_call() {
    let (short, long) = (Duration::from_millis(10), Duration::from_millis(20));
    for (timeout, execution, setting) in [
        (short, None, "timeout"),
        (short, Some(short), "timeout"),
        (short, Some(long), "timeout"),
        (long, Some(short), "limits.execution"),
    ] {
        let budget = Budget::new(Instant::now(), timeout, execution);
        assert_eq!((budget.limit, budget.setting), (short, setting));
        assert!(!budget.is_spent());
        tokio::time::advance(short - Duration::from_millis(1)).await;
        assert!(!budget.is_spent());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(budget.is_spent());
    }
}
