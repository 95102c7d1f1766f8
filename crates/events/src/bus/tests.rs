//! The bus as its publishers and subscribers see it.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use bridgehead_call::{Clock, CorrelationId};
use bridgehead_testkit::FakeClock;
use bridgehead_wire::Redactor;
use futures_util::FutureExt;
use proptest::prelude::*;

use crate::{Bus, Delivery, Detail, Event, Excerpt, Filter, Subscription};

use Got::{Missed, Number};

fn bus() -> Bus {
    Bus::new(Arc::new(FakeClock::new()))
}

/// An event that is identified by its number.
fn numbered(number: u64) -> Event {
    let detail =
        Detail::Restart { attempt: 1, delay_ms: number, reason: Excerpt::new(&Redactor::default(), "") };
    Event::new(FakeClock::new().wall(), CorrelationId::mint(), Some("files".into()), detail)
}

fn number(event: &Event) -> u64 {
    match event.detail() {
        Detail::Restart { delay_ms, .. } => *delay_ms,
        other => unreachable!("not a numbered event: {other:?}"),
    }
}

/// A delivery in short: the number of an event, or how many are missing.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Number(u64),
    Missed(u64),
}

fn short(delivery: &Delivery) -> Got {
    match delivery {
        Delivery::Event(event) => Number(number(event)),
        Delivery::Missed(count) => Missed(*count),
    }
}

fn drain(subscription: &mut Subscription) -> Vec<Got> {
    std::iter::from_fn(|| subscription.try_next()).map(|delivery| short(&delivery)).collect()
}

/// BUS-3: the oldest events are dropped first, and the count is delivered in their place.
#[test]
fn a_full_queue_loses_its_oldest_and_says_how_many() {
    #[track_caller]
    fn check(capacity: usize, published: u64, expected: &[Got]) {
        let bus = bus();
        let mut subscription = bus.subscribe(capacity);
        (0..published).for_each(|number| bus.publish(numbered(number)));
        assert_eq!(drain(&mut subscription), expected);
        bus.publish(numbered(99));
        assert_eq!(drain(&mut subscription), [Number(99)]);
    }
    check(3, 0, &[]);
    check(3, 3, &[Number(0), Number(1), Number(2)]);
    check(3, 4, &[Missed(1), Number(1), Number(2), Number(3)]);
    check(3, 10, &[Missed(7), Number(7), Number(8), Number(9)]);
    check(1, 5, &[Missed(4), Number(4)]);
    check(0, 5, &[Missed(4), Number(4)]);
}

/// BUS-3: a slow subscriber loses only its own events.
#[test]
fn every_subscriber_has_a_queue_of_its_own() {
    let bus = bus();
    let mut slow = bus.subscribe(2);
    let mut fast = bus.subscribe(100);
    (0..50).for_each(|number| bus.publish(numbered(number)));
    assert_eq!(drain(&mut fast), (0..50).map(Number).collect::<Vec<_>>());
    assert_eq!(drain(&mut slow), [Missed(48), Number(48), Number(49)]);
}

/// BUS-3: events that a filter excludes displace nothing and do not count as missed.
#[test]
fn filtered_events_take_no_room() {
    let bus = bus();
    let filter = |topics: &[&str], server: Option<&str>| Filter {
        topics: topics.iter().map(ToString::to_string).collect(),
        server: server.map(ToOwned::to_owned),
    };
    let mut restarts = bus.subscribe_to(filter(&["provider.mcp.restart"], Some("files")), 1);
    let mut others = bus.subscribe_to(filter(&[], Some("mail")), 1);
    bus.publish(numbered(1));
    for _ in 0..10 {
        bus.tell(CorrelationId::mint(), Some(&"files".into()), || Detail::InitStarted);
    }
    assert_eq!(drain(&mut restarts), [Number(1)]);
    assert_eq!(drain(&mut others), []);
}

/// BUS-2, PIPE-8: a published event has the correlation id of its publisher and the time of the bus's clock.
#[test]
fn told_events_carry_id_and_time() {
    let clock = FakeClock::new();
    let bus = Bus::new(Arc::new(clock.clone()));
    let mut subscription = bus.subscribe(1);
    clock.advance(Duration::from_secs(5));
    let correlation = CorrelationId::mint();
    bus.tell(correlation, None, || Detail::Disconnected);
    let Some(Delivery::Event(event)) = subscription.try_next() else { panic!("no event") };
    assert_eq!((event.correlation(), event.time(), event.server()), (correlation, clock.wall(), None));
}

/// BUS-3: without a subscriber no event is built; dropping a subscription ends it.
#[test]
fn an_unwatched_bus_builds_nothing() {
    let bus = bus();
    let told = |expected: bool| {
        let mut built = false;
        bus.tell(CorrelationId::mint(), None, || {
            built = true;
            Detail::InitStarted
        });
        assert_eq!((bus.is_watched(), built), (expected, expected));
    };
    told(false);
    let first = bus.subscribe(1);
    let second = bus.subscribe(1);
    told(true);
    drop(first);
    told(true);
    drop(second);
    told(false);
    bus.publish(numbered(1));
    assert_eq!(drain(&mut bus.subscribe(1)), [], "no history");
}

#[tokio::test]
async fn waiting_ends_with_an_event_or_with_the_bus() {
    let bus = bus();
    let mut subscription = bus.subscribe(2);
    assert_eq!(subscription.next().now_or_never(), None, "a cancelled wait loses nothing");
    let waiting = tokio::spawn(async move {
        let mut got = Vec::new();
        while let Some(delivery) = subscription.next().await {
            got.push(short(&delivery));
        }
        got
    });
    tokio::task::yield_now().await;
    bus.publish(numbered(0));
    tokio::task::yield_now().await;
    (1..=4).for_each(|number| bus.publish(numbered(number)));
    drop(bus);
    let expected = [Number(0), Missed(2), Number(3), Number(4)];
    assert_eq!(waiting.await.unwrap(), expected, "waiting events are delivered before the end");
}

#[test]
fn a_subscription_may_outlive_its_bus() {
    let bus = bus();
    let mut subscription = bus.subscribe(1);
    bus.publish(numbered(1));
    drop(bus);
    assert_eq!(drain(&mut subscription), [Number(1)]);
    assert_eq!(subscription.next().now_or_never(), Some(None));
}

/// BUS-3: publishing wakes subscribers without holding a lock that their code could need.
#[test]
fn a_woken_subscriber_may_end_another() {
    struct Ends(Mutex<Option<Subscription>>);
    impl Wake for Ends {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let bus = bus();
    let mut first = bus.subscribe(1);
    let waker = Arc::new(Ends(Mutex::new(Some(bus.subscribe(1))))).into();
    let mut next = pin!(first.next());
    let mut context = Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut context).is_pending());
    bus.publish(numbered(1));
    let Poll::Ready(Some(delivery)) = next.poll(&mut context) else { panic!("not woken") };
    assert_eq!(short(&delivery), Number(1));
}

/// BUS-3: under load from several threads every event is accounted for, each publisher's events arrive in
/// order, and a subscriber that never reads holds up nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_received_and_missed_are_all_that_was_published() {
    const PUBLISHERS: u64 = 4;
    const EACH: u64 = 20_000;
    let bus = bus();
    let mut stuck = bus.subscribe(8);
    let mut reader = bus.subscribe(16);
    let reading = tokio::spawn(async move {
        let (mut received, mut missed) = (0, 0);
        let mut last = [None; PUBLISHERS as usize];
        while let Some(delivery) = reader.next().await {
            match delivery {
                Delivery::Missed(count) => missed += count,
                Delivery::Event(event) => {
                    received += 1;
                    let number = number(&event);
                    let last = &mut last[usize::try_from(number / EACH).unwrap()];
                    assert!(last.replace(number).is_none_or(|last| last < number));
                }
            }
        }
        (received, missed)
    });
    let publishers = (0..PUBLISHERS).map(|publisher| {
        let bus = bus.clone();
        std::thread::spawn(move || {
            (publisher * EACH..(publisher + 1) * EACH).for_each(|number| bus.publish(numbered(number)));
        })
    });
    // All run at once. They are joined off the runtime, which must run the reader.
    let publishers: Vec<_> = publishers.collect();
    tokio::task::spawn_blocking(move || publishers.into_iter().for_each(|thread| thread.join().unwrap()))
        .await
        .unwrap();
    drop(bus);
    let (received, missed) = reading.await.unwrap();
    assert_eq!(received + missed, PUBLISHERS * EACH);
    let left = drain(&mut stuck);
    assert_eq!((left.len(), &left[0]), (9, &Missed(PUBLISHERS * EACH - 8)));
}

proptest! {
    /// BUS-3: for any capacity and pace, received plus missed is what was published, in order, and each count
    /// is exactly the gap at its place.
    #[test]
    fn nothing_is_lost_silently(
        capacity in 1_usize..20,
        steps in prop::collection::vec((0_u64..40, 0_usize..40), 0..40),
    ) {
        let bus = bus();
        let mut subscription = bus.subscribe(capacity);
        let (mut published, mut accounted) = (0, 0);
        let mut account = |delivery: Delivery| match short(&delivery) {
            Number(number) => {
                assert_eq!(number, accounted);
                accounted += 1;
            }
            Missed(count) => {
                assert!(count > 0);
                accounted += count;
            }
        };
        for (publish, read) in steps {
            (published..published + publish).for_each(|number| bus.publish(numbered(number)));
            published += publish;
            (0..read).map_while(|_| subscription.try_next()).for_each(&mut account);
        }
        std::iter::from_fn(|| subscription.try_next()).for_each(&mut account);
        prop_assert_eq!(accounted, published);
    }
}

/// BUS-3: dropping a subscription removes its queue and no other.
#[test]
fn a_subscriber_that_leaves_takes_only_itself_away() {
    let bus = bus();
    let first = bus.subscribe(4);
    let mut second = bus.subscribe(4);
    assert_eq!(format!("{bus:?}"), "Bus { watchers: 2, .. }");
    drop(first);
    assert_eq!(format!("{bus:?}"), "Bus { watchers: 1, .. }");
    bus.publish(numbered(7));
    let shown = format!("{second:?}");
    assert!(shown.contains("capacity: 4, waiting: 1, missed: 0"), "{shown}");
    assert_eq!(drain(&mut second), [Number(7)]);
}
