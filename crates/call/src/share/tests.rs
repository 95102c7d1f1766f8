use tokio::time::advance;

use super::*;

fn principal(name: &str) -> Arc<str> {
    name.into()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

/// Waits for a place in a task of its own.
fn waits(share: &Arc<Share>, name: &str) -> tokio::task::JoinHandle<Result<Permit, NoTurn>> {
    let (share, principal) = (Arc::clone(share), principal(name));
    tokio::spawn(async move { share.take(&principal, 64, soon()).await })
}

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

fn depth(share: &Share) -> (usize, usize, usize) {
    let Depth { running, waiting, lingering } = share.depth();
    (running, waiting, lingering)
}

/// Whether a rest has been told to end.
async fn is_called_back(resting: &mut Resting) -> bool {
    tokio::time::timeout(Duration::ZERO, resting.evicted()).await.is_ok()
}

/// PIPE-2: principals take turns, and each one's takers keep their order.
#[tokio::test(start_paused = true)]
async fn principals_take_turns() {
    let share = Share::new(1);
    let first = share.try_take(&principal("a")).unwrap();
    let (told, mut ran) = tokio::sync::mpsc::channel(8);
    for (number, name) in ["a", "a", "b", "c", "b"].into_iter().enumerate() {
        let (share, principal, told) = (Arc::clone(&share), principal(name), told.clone());
        tokio::spawn(async move {
            let _permit = share.take(&principal, 64, soon()).await.unwrap();
            told.send(format!("{name}{number}")).await.unwrap();
        });
        settle().await;
    }
    assert_eq!(depth(&share), (1, 5, 0));
    drop((first, told));
    let mut order = Vec::new();
    while let Some(next) = ran.recv().await {
        order.push(next);
    }
    assert_eq!(order, ["a0", "b2", "c3", "a1", "b4"]);
    assert_eq!(depth(&share), (0, 0, 0));
    assert!(share.line.lock().holders.is_empty());
}

/// PIPE-2: the place of a call that was given up is kept until its end is known, and counts against whoever gave it up: the
/// next free place goes to a principal that has given up none, though its turn were later.
#[tokio::test(start_paused = true)]
async fn a_place_that_lingers_counts_against_its_principal() {
    let share = Share::new(2);
    let mut given_up = share.try_take(&principal("a")).unwrap();
    let other = share.try_take(&principal("a")).unwrap();
    given_up.linger();
    given_up.linger();
    assert_eq!(depth(&share), (2, 0, 1));
    let (again, newcomer) = (waits(&share, "a"), waits(&share, "b"));
    settle().await;
    drop(other);
    let newcomer = newcomer.await.unwrap().unwrap();
    assert!(!again.is_finished());
    drop(newcomer);
    let again = again.await.unwrap().unwrap();
    assert_eq!(depth(&share), (2, 0, 1));
    drop((again, given_up));
    assert_eq!(depth(&share), (0, 0, 0));
}

/// WIRE-5: a principal whose calls wait for their client makes way for another that waits, one place for each that waits, the
/// newest first, down to its fair share; and not for itself.
#[tokio::test(start_paused = true)]
async fn the_newest_of_the_greediest_makes_way() {
    let share = Share::new(4);
    let mut held: Vec<_> = (0..4).map(|_| share.try_take(&principal("a")).unwrap()).collect();
    let mut resting: Vec<_> = held.iter().map(|permit| permit.seat().rest()).collect();
    let own = waits(&share, "a");
    settle().await;
    advance(10 * PATIENCE).await;
    settle().await;
    for rest in &mut resting {
        assert!(!is_called_back(rest).await, "nobody else waits");
    }
    own.abort();
    settle().await;
    let (first, second, third) = (waits(&share, "b"), waits(&share, "b"), waits(&share, "b"));
    settle().await;
    let mut called = Vec::new();
    for rest in &mut resting {
        called.push(is_called_back(rest).await);
    }
    assert_eq!(called, [false, false, true, true], "half of them are the share of each");
    drop(resting.drain(2..));
    drop(held.drain(2..));
    let theirs = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    advance(10 * PATIENCE).await;
    settle().await;
    for rest in &mut resting {
        assert!(!is_called_back(rest).await, "each has its share");
    }
    assert!(!third.is_finished());
    third.abort();
    drop(theirs);
}

/// WIRE-5: a call back counts what is on its way already, and a place that works is never called back.
#[tokio::test(start_paused = true)]
async fn no_more_make_way_than_wait() {
    let share = Share::new(4);
    let held: Vec<_> = (0..4).map(|_| share.try_take(&principal("a")).unwrap()).collect();
    let waiter = waits(&share, "b");
    settle().await;
    advance(10 * PATIENCE).await;
    settle().await;
    assert_eq!(depth(&share), (4, 1, 0), "all of them work");
    let mut resting: Vec<_> = held[..3].iter().map(|permit| permit.seat().rest()).collect();
    settle().await;
    let mut called = Vec::new();
    for rest in &mut resting {
        called.push(is_called_back(rest).await);
    }
    assert_eq!(called, [true, false, false], "one waits, and this was the first that rested then");
    waiter.abort();
}

/// WIRE-5: the only place of a principal makes way too, but not before it has rested for a while.
#[tokio::test(start_paused = true)]
async fn the_only_place_makes_way_after_a_while() {
    let share = Share::new(1);
    let permit = share.try_take(&principal("a")).unwrap();
    let mut resting = permit.seat().rest();
    let waiter = waits(&share, "b");
    settle().await;
    advance(PATIENCE / 2).await;
    settle().await;
    assert!(!is_called_back(&mut resting).await);
    let told = tokio::time::timeout(2 * PATIENCE, resting.evicted()).await;
    assert_eq!(told, Ok(Evicted));
    drop((resting, permit));
    assert!(waiter.await.unwrap().is_ok());
}

/// PIPE-2: a taker waits no longer than its own deadline, and takes neither a place nor a turn with it when it leaves, also if
/// its turn came at the same moment.
#[tokio::test(start_paused = true)]
async fn leaving_gives_the_turn_to_the_next() {
    let share = Share::new(1);
    let permit = share.try_take(&principal("a")).unwrap();
    let late = share.take(&principal("b"), 64, Instant::now() + Duration::from_secs(3)).await;
    assert_eq!(late.unwrap_err(), NoTurn::Late);
    assert_eq!(share.take(&principal("b"), 0, soon()).await.unwrap_err(), NoTurn::Full);
    let (first, second) = (waits(&share, "a"), waits(&share, "b"));
    settle().await;
    assert_eq!(depth(&share), (1, 2, 0));
    drop(permit);
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(second.await.unwrap().is_ok());
    assert_eq!(depth(&share), (0, 0, 0));
}

/// WIRE-5: who makes way among places that are not waited for.
#[test]
fn the_greediest_above_its_share() {
    #[track_caller]
    fn check(most: usize, candidates: &[(usize, u8)], principals: usize, expected: Option<usize>) {
        let places = candidates.iter().enumerate();
        let found = makes_way(
            most,
            places.map(|(at, (held, order))| (Standing { held: *held, principals }, *order, at)),
        );
        assert_eq!(found, expected);
    }
    check(4, &[(3, 1), (3, 9), (2, 10)], 2, Some(1));
    check(4, &[(2, 1)], 2, None);
    check(4, &[(4, 1), (4, 2)], 1, None);
    check(1, &[(1, 1)], 2, Some(0));
    check(4, &[], 2, None);
}
