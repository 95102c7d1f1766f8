//! Which call gets which process, on servers that never start: leasing does not depend on that.

use super::*;
use crate::testing;

/// A server that, if `rooted`, has asked for roots.
fn upstream(interactive: Interactive, max_leases: usize, rooted: bool) -> Upstream {
    let upstream = Upstream::start(
        ServerConfig { interactive, max_leases, ..testing::unusable() },
        testing::surroundings(),
    );
    upstream.leases().roots.store(rooted, Ordering::Relaxed);
    upstream
}

/// Calls of a principal whose client has these roots.
fn keeper(roots: &str) -> Option<LeaseOwner> {
    Some(LeaseOwner::Roots { principal: "me".into(), roots: Roots::of([roots.to_owned()]) })
}

async fn lease(upstream: &Upstream, whose: Option<LeaseOwner>) -> Result<Lease, Unavailable> {
    let soon = Instant::now() + Duration::from_secs(1);
    Ok(upstream.lease(&"me".into(), Abilities::ALL, whose, soon).await?.expect("one beside the shared one"))
}

fn is_same(one: &Lease, other: &Lease) -> bool {
    one.upstream.is(&other.upstream)
}

fn free(upstream: &Upstream) -> usize {
    upstream.leases().turns.most() - upstream.leases().turns.depth().running
}

/// HOUR-1: calls of one client with the same roots run concurrently in one process, and hold one permit while any
/// of them runs; other roots get another process.
#[tokio::test(start_paused = true)]
async fn calls_with_the_same_roots_share_a_process() {
    let upstream = upstream(Interactive::Auto, 2, true);
    let first = lease(&upstream, keeper("a")).await.unwrap();
    let second = lease(&upstream, keeper("a")).await.unwrap();
    assert!(is_same(&first, &second));
    assert_eq!((free(&upstream), upstream.leased()), (1, 1));
    let other = lease(&upstream, keeper("b")).await.unwrap();
    assert!(!is_same(&first, &other));
    assert_eq!(free(&upstream), 0);
    drop(second);
    assert_eq!(free(&upstream), 0, "the first call is still running");
    drop(first);
    assert_eq!((free(&upstream), upstream.leased()), (1, 2), "it is kept for the next call");
    let again = lease(&upstream, keeper("a")).await.unwrap();
    assert_eq!((free(&upstream), upstream.leased()), (0, 2), "a returning client holds a permit too");
    let refused = lease(&upstream, keeper("c")).await.map(drop);
    assert_eq!(refused, Err(Unavailable::AllLeased(2)));
    drop((again, other));
    assert_eq!(free(&upstream), 2);
}

/// HOUR-1: the least recently used process makes way, and joining another call counts as use.
#[tokio::test(start_paused = true)]
async fn the_longest_unused_makes_way() {
    for joined in [false, true] {
        let upstream = upstream(Interactive::Auto, 2, true);
        let first = lease(&upstream, keeper("a")).await.unwrap();
        let second = lease(&upstream, keeper("b")).await.unwrap();
        let more = if joined { Some(lease(&upstream, keeper("a")).await.unwrap()) } else { None };
        let (a, b) = (first.upstream.clone(), second.upstream.clone());
        drop((first, second, more));
        let third = lease(&upstream, keeper("c")).await.unwrap();
        assert_eq!(upstream.leased(), 2);
        assert_eq!((a.is_released(), b.is_released()), (!joined, joined), "joined: {joined}");
        drop(third);
    }
}

/// ERA-3: if calls do not share, each gets its own process, and the next call reuses it. A process that may know a
/// client's roots is never given to another client.
#[tokio::test(start_paused = true)]
async fn a_process_is_used_again_by_whom_it_may_be() {
    let upstream = upstream(Interactive::Exclusive, 2, false);
    drop(lease(&upstream, None).await.unwrap());
    let first = lease(&upstream, None).await.unwrap();
    assert_eq!(upstream.leased(), 1, "an idle process is reused although there is room for another");
    let second = lease(&upstream, None).await.unwrap();
    assert!(!is_same(&first, &second));
    assert_eq!(lease(&upstream, None).await.map(drop), Err(Unavailable::AllLeased(2)));
    let before = first.upstream.clone();
    drop(first);
    let again = lease(&upstream, None).await.unwrap();
    assert!(again.upstream.is(&before));
    assert_eq!(upstream.leased(), 2);
    drop((again, second));
    upstream.leases().roots.store(true, Ordering::Relaxed);
    let rooted = lease(&upstream, None).await.unwrap();
    assert!(!rooted.upstream.is(&before));
    let used = rooted.upstream.clone();
    drop(rooted);
    assert!(used.is_released(), "it may know the roots of its call");
    let (one, other) = (lease(&upstream, keeper("a")).await.unwrap(), lease(&upstream, keeper("a")).await);
    assert!(!is_same(&one, &other.unwrap()), "each call has its own process");
}

/// ERA-3: a client that cannot be asked gets no lease, and with `interactive = "shared"` no client does.
#[tokio::test(start_paused = true)]
async fn calls_that_need_no_lease() {
    for (interactive, abilities) in
        [(Interactive::Shared, Abilities::ALL), (Interactive::Exclusive, Abilities::NONE)]
    {
        let upstream = upstream(interactive, 1, true);
        let leased = upstream.lease(&"me".into(), abilities, keeper("a"), Instant::now()).await.unwrap();
        assert!(leased.is_none() && upstream.leased() == 0, "{interactive:?}");
    }
}

/// HOUR-1: each process beside the shared one is reported with its reason.
#[tokio::test(start_paused = true)]
async fn why_there_are_several() {
    for (isolation, reason) in [(Isolation::Session, Reason::Isolation), (Isolation::Shared, Reason::Roots)] {
        let server = ServerConfig { isolation, interactive: Interactive::Exclusive, ..testing::unusable() };
        let upstream = Upstream::start(server, testing::surroundings());
        assert!(upstream.reasons_beside().is_empty());
        let own = [upstream.own(1, &"me".into()).unwrap(), upstream.own(2, &"me".into()).unwrap()];
        assert_eq!(upstream.reasons_beside(), [(reason, 2)].into());
        let questions = lease(&upstream, None).await.unwrap();
        assert_eq!(upstream.reasons_beside(), [(reason, 2), (Reason::Questions, 1)].into());
        drop((own, questions));
        assert_eq!(
            upstream.reasons_beside(),
            [(Reason::Questions, 1)].into(),
            "the lease is kept for another call"
        );
    }
}
