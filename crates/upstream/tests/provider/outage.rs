//! How often, and after which delays, a provider reconnects.

use std::time::Duration;

use bridgehead_events::Detail;
use bridgehead_upstream::provider::{Health, ProviderAdapter};
use serde_json::json;

use crate::world::{Way, World, mock};

/// Loses the server, which can be restarted at once. Returns the delays of the attempts until it is back, in
/// milliseconds.
async fn lose_and_regain(world: &mut World) -> Vec<u64> {
    world.run("die", json!({})).await.unwrap_err();
    delays_until(world, |detail| matches!(detail, Detail::Reconnected)).await
}

/// The delays of all attempts before the event that `last` accepts.
pub(crate) async fn delays_until(world: &mut World, last: fn(&Detail) -> bool) -> Vec<u64> {
    let mut delays = Vec::new();
    let told = async {
        loop {
            for event in world.told() {
                match event.detail() {
                    Detail::Restart { delay_ms, .. } => delays.push(*delay_ms),
                    detail if last(detail) => return,
                    Detail::ReconnectExhausted => panic!("given up"),
                    _ => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), told).await.unwrap();
    delays
}

/// PROV-2, POOL-4: each outage gets all attempts, however many earlier outages used. The delay keeps doubling until the
/// connection has held for a minute.
#[tokio::test]
async fn attempts_count_per_outage_and_delays_do_not() {
    let mut world = World::new(Way::Stdio, mock());
    world.provider.init(world.config().max_retries(3)).await.unwrap();
    for delay in [5, 10, 20, 40, 80] {
        assert_eq!(lose_and_regain(&mut world).await, [delay]);
        world.until(Health::Healthy).await;
    }

    // The health probe is due after a minute, and is answered in real time.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    assert_eq!(lose_and_regain(&mut world).await, [5], "the connection was stable");
    world.until(Health::Healthy).await;

    world.lose().await;
    let delays = delays_until(&mut world, |detail| matches!(detail, Detail::ReconnectExhausted)).await;
    assert_eq!(delays, [10, 20, 40], "three failed attempts, and no more");
    world.until(Health::Unavailable).await;
    world.end().await;
}
