//! What a server is asked to report, when, and what happens with its answers.

use bridgehead_wire::Revision;
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::server::core::Watch;
use crate::testing::{self, Far};

const ALL: &str = r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

struct Listener {
    far: Far,
    link: Link,
    core: std::sync::Arc<Core>,
    _driven: AbortOnDropHandle<()>,
}

/// Listens to a modern server with these capabilities.
fn listen(capabilities: &'static str, watched: &[Watched]) -> (Listener, Vec<Watch>) {
    listen_to(Revision::MODERN, capabilities, watched)
}

fn listen_to(revision: Revision, capabilities: &'static str, watched: &[Watched]) -> (Listener, Vec<Watch>) {
    let core = testing::core(testing::unusable());
    let watches =
        watched.iter().map(|watched| core.watch(watched.clone(), CancellationToken::new())).collect();
    let (link, far) = testing::link();
    let mut listening = Listening::new(&testing::peer(revision, capabilities));
    let driven = tokio::spawn({
        let (link, core) = (link.clone(), std::sync::Arc::clone(&core));
        async move { listening.go_on(&link, &core).await }
    });
    (Listener { far, link, core, _driven: AbortOnDropHandle::new(driven) }, watches)
}

impl Listener {
    /// The next listen: its id, and its filter.
    async fn next(&mut self) -> (Value, Value) {
        let asked = self.far.next().await;
        assert_eq!(asked["method"], "subscriptions/listen", "{asked}");
        (asked["id"].clone(), asked["params"]["notifications"].clone())
    }

    async fn acknowledge(&mut self, id: &Value) {
        let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": id}});
        let method = "notifications/subscriptions/acknowledged";
        self.far.say(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    async fn end(&mut self, id: &Value) {
        self.far.say(json!({"jsonrpc": "2.0", "id": id, "result": {}})).await;
    }

    async fn refuse(&mut self, id: &Value, code: i64) {
        let error = json!({"code": code, "message": "no"});
        self.far.say(json!({"jsonrpc": "2.0", "id": id, "error": error})).await;
    }

    /// Fails if anything is sent within an hour.
    async fn is_quiet(&mut self) {
        let sent = tokio::time::timeout(Duration::from_secs(3_600), self.far.lines.next_line()).await;
        assert!(sent.is_err(), "{sent:?}");
    }
}

fn task(id: &str) -> Watched {
    Watched::Task(id.to_owned())
}

/// ERA-1: a listen that ended is repeated after 1, 2, 4 … and at most 60 s, and after 1 s again once one was
/// acknowledged.
#[tokio::test(start_paused = true)]
async fn a_listen_that_ended_is_asked_for_again_ever_later() {
    let (mut listener, _) = listen(ALL, &[]);
    let (mut id, wanted) = listener.next().await;
    assert_eq!(wanted, json!({"toolsListChanged": true}));
    for acknowledged in [false, true] {
        if acknowledged {
            listener.acknowledge(&id).await;
        }
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            listener.end(&id).await;
            let ended = Instant::now();
            id = listener.next().await.0;
            assert_eq!(ended.elapsed().as_secs(), pause, "acknowledged: {acknowledged}");
        }
    }
    listener.refuse(&id, -32601).await;
    listener.is_quiet().await;
}

/// ERA-1: only its answer ends a listen; other messages for it do not.
#[tokio::test(start_paused = true)]
async fn only_an_answer_ends_a_listen() {
    let (mut listener, _) = listen(ALL, &[]);
    let (id, _) = listener.next().await;
    for _ in 0..3 {
        listener.acknowledge(&id).await;
        let params = json!({"progressToken": id, "progress": 1});
        let told = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        listener.far.say(told).await;
    }
    listener.is_quiet().await;
    assert_eq!(listener.link.lists_changed().now_or_never(), None, "nothing was missed");
    listener.end(&id).await;
    let (id, _) = listener.next().await;
    listener.acknowledge(&id).await;
    let doubted = tokio::time::timeout(Duration::from_secs(1), listener.link.lists_changed()).await;
    assert_eq!(doubted, Ok(Lists::TOOLS), "something may have changed in between");
}

/// ERA-1: tasks of a refused listen are left out of the next one. A listen that ends later, or without an error,
/// does not exclude them.
#[tokio::test(start_paused = true)]
async fn only_a_refusal_makes_tasks_forgotten() {
    let (mut listener, _watches) = listen(ALL, &[task("t"), Watched::Resource("a://r".to_owned())]);
    let all = json!({"toolsListChanged": true, "resourceSubscriptions": ["a://r"], "taskIds": ["t"]});
    let (id, wanted) = listener.next().await;
    assert_eq!(wanted, all);
    listener.end(&id).await;
    let (id, wanted) = listener.next().await;
    assert_eq!(wanted, all, "the listen ended without an error");
    listener.acknowledge(&id).await;
    listener.core.followed.subscribe().wait_for(|followed| followed.len() == 2).await.unwrap();
    listener.refuse(&id, -32000).await;
    let (id, wanted) = listener.next().await;
    assert_eq!(wanted, all, "the listen had been acknowledged");
    listener.refuse(&id, -32000).await;
    let (_, wanted) = listener.next().await;
    assert_eq!(wanted, json!({"toolsListChanged": true, "resourceSubscriptions": ["a://r"]}));
}

/// ERA-1: a server is asked only for what it declares that it reports, and not at all if it declares nothing.
#[tokio::test(start_paused = true)]
async fn only_what_a_server_tells_is_asked_for() {
    let watched = [task("t"), Watched::Resource("a://r".to_owned())];
    for (capabilities, expected) in [
        (r#"{"resources":{"subscribe":true}}"#, json!({"resourceSubscriptions": ["a://r"]})),
        (r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#, json!({"taskIds": ["t"]})),
        (
            r#"{"prompts":{"listChanged":true},"resources":{"listChanged":true}}"#,
            json!({"promptsListChanged": true, "resourcesListChanged": true}),
        ),
    ] {
        let (mut listener, _watches) = listen(capabilities, &watched);
        assert_eq!(listener.next().await.1, expected, "{capabilities}");
    }
    let (mut listener, _watches) = listen(r#"{"tools":{},"resources":{}}"#, &watched);
    listener.is_quiet().await;
}

/// ERA-1: a new listen is opened when the wanted set changes. It replaces the old one only once it is acknowledged;
/// the old one is then cancelled.
#[tokio::test(start_paused = true)]
async fn a_listen_is_replaced_by_the_next() {
    let (mut listener, mut watches) = listen(ALL, &[task("t")]);
    let (first, _) = listener.next().await;
    listener.acknowledge(&first).await;
    tokio::time::timeout(Duration::from_secs(1), watches[0].settled())
        .await
        .expect("the listen is acknowledged");
    watches.push(listener.core.watch(Watched::Resource("a://r".to_owned()), CancellationToken::new()));
    let settled = watches[1].settled();
    tokio::pin!(settled);
    let (second, wanted) = listener.next().await;
    assert_eq!(
        wanted,
        json!({"toolsListChanged": true, "resourceSubscriptions": ["a://r"], "taskIds": ["t"]})
    );
    assert!(settled.as_mut().now_or_never().is_none(), "it is not acknowledged yet");
    listener.acknowledge(&second).await;
    tokio::time::timeout(Duration::from_secs(1), settled).await.expect("changes are reported from now on");
    let cancelled = listener.far.next().await;
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["requestId"]),
        (&json!("notifications/cancelled"), &first)
    );
    watches.clear();
    let (third, wanted) = listener.next().await;
    assert_eq!(wanted, json!({"toolsListChanged": true}));
    listener.acknowledge(&third).await;
    assert_eq!(listener.far.next().await["params"]["requestId"], second);
    assert!(listener.core.followed.borrow().is_empty());
}

/// ERA-1: a legacy server is asked for each resource once, however many watch it, and unsubscribed when the last
/// watch ends. A server that does not answer is waited for at most ten seconds.
#[tokio::test(start_paused = true)]
async fn a_legacy_server_is_asked_for_single_resources() {
    let resource = |uri: &str| Watched::Resource(uri.to_owned());
    let watched = [resource("a://r"), resource("a://r"), task("t")];
    let subscribes = r#"{"resources":{"subscribe":true,"listChanged":true}}"#;
    let (mut listener, mut watches) = listen_to(Revision::V2025_11_25, subscribes, &watched);
    listener.far.answer("resources/subscribe", json!({})).await;
    tokio::time::timeout(Duration::from_secs(1), watches[0].settled())
        .await
        .expect("changes are reported from now on");
    watches.push(listener.core.watch(resource("a://s"), CancellationToken::new()));
    let asked = listener.far.next().await;
    assert_eq!(
        (&asked["method"], &asked["params"]),
        (&json!("resources/subscribe"), &json!({"uri": "a://s"}))
    );
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(60), watches[3].settled())
        .await
        .expect("it continues without the answer");
    assert_eq!(began.elapsed(), ANSWER);
    assert_eq!(listener.far.next().await["method"], "notifications/cancelled");
    drop(watches.remove(0));
    listener.is_quiet().await;
    drop(watches.remove(0));
    listener.far.answer("resources/unsubscribe", json!({})).await;
    listener.is_quiet().await;
    assert_eq!(listener.core.followed.borrow().iter().collect::<Vec<_>>(), [&resource("a://s")]);
    let (mut listener, _watches) = listen_to(Revision::V2025_11_25, r#"{"resources":{}}"#, &watched);
    listener.is_quiet().await;
}
