//! Tracks which attachments use which process of which server.
//!
//! A process belongs to the server's identity ([`Key`]), not to its name: it starts with the first attachment and
//! stops with the last. The registry knows nothing of calls; the supervisor runs the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bridgehead_config::ServerConfig;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::server::core::{Core, Listener};
use crate::server::{Surroundings, Upstream};
use crate::sharing::key::{Key, Scope};
use crate::transport::relay;

/// The running servers. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Registry(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cores: Mutex<HashMap<Key, Arc<Core>>>,
    attached: AtomicU64,
}

impl Registry {
    /// An empty registry, whose processes are not shared with any other.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry that all gateways of this process use unless they are given another.
    pub fn of_this_process() -> Self {
        static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);
        REGISTRY.clone()
    }

    /// Joins the process that serves this configuration, or starts one in the background on the current runtime.
    #[doc(hidden)]
    pub fn attach(&self, server: ServerConfig, surroundings: Surroundings) -> Upstream {
        let server = Arc::new(relay::relayed(server, surroundings.credentials.as_ref(), surroundings.limit));
        let upstream = self.join(server, surroundings, Scope::Shared, Handle::current());
        upstream.fill();
        upstream
    }

    pub(crate) fn join(
        &self,
        server: Arc<ServerConfig>,
        surroundings: Surroundings,
        scope: Scope,
        runtime: Handle,
    ) -> Upstream {
        let key = Key::of(&server, &surroundings, scope, &runtime);
        let listener = Listener {
            number: self.0.attached.fetch_add(1, Ordering::Relaxed),
            name: Arc::from(server.name.as_ref()),
            signals: surroundings.signals.clone(),
            changed: Arc::clone(&surroundings.changed),
            notices: surroundings.notices.clone(),
            session: match scope {
                Scope::Session(number) => Some(number),
                Scope::Shared | Scope::Call(_) | Scope::Lease(..) | Scope::Class(_) => None,
            },
            left: CancellationToken::new(),
        };
        let mut cores = self.0.cores.lock();
        let core = match cores.get(&key).filter(|core| core.is_alive()) {
            Some(core) => Arc::clone(core),
            None => {
                let (server, surroundings) = (Arc::clone(&server), surroundings.clone());
                let core = Core::start(key.clone(), scope, server, surroundings, &runtime);
                cores.insert(key, Arc::clone(&core));
                core
            }
        };
        // Done under the lock of the map, so that a concurrent `leave` cannot stop it in between.
        core.listeners.write().push(listener.clone());
        drop(cores);
        Upstream::new(self.clone(), core, server, surroundings, listener, runtime)
    }

    /// Ends an attachment, and its process if it was the last.
    pub(crate) fn leave(&self, core: &Arc<Core>, listener: &Listener) {
        let mut cores = self.0.cores.lock();
        let mut listeners = core.listeners.write();
        listeners.retain(|other| other.number != listener.number);
        let last = listeners.is_empty();
        drop(listeners);
        if last && cores.get(&core.key).is_some_and(|known| Arc::ptr_eq(known, core)) {
            cores.remove(&core.key);
        }
        drop(cores);
        listener.left.cancel();
        if last {
            core.stop.cancel();
        }
    }

    /// How many processes there are, including sleeping ones.
    pub fn len(&self) -> usize {
        self.0.cores.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends every server, whatever is attached, and returns when nothing of them is left. The registry can be used
    /// again at once.
    pub async fn clean_up(&self) {
        let cores: Vec<Arc<Core>> = self.0.cores.lock().drain().map(|(_, core)| core).collect();
        for core in &cores {
            let listeners = std::mem::take(&mut *core.listeners.write());
            listeners.iter().for_each(|listener| listener.left.cancel());
            core.stop.cancel();
        }
        for core in cores {
            core.tasks.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use bridgehead_call::SystemClock;

    use super::*;
    use crate::server::UpstreamState;
    use crate::server::record::{LineSink, ServerRecords};
    use crate::testing;

    /// POOL-1: a process stops with its last attachment, and not before.
    #[tokio::test]
    async fn the_last_to_leave_stops_it() {
        let registry = Registry::new();
        let [first, second] =
            std::array::from_fn(|_| registry.attach(testing::unusable(), testing::surroundings()));
        assert!(first.is_same_process(&second) && registry.len() == 1);
        first.release();
        assert!(first.is_released() && !second.is_released());
        assert_eq!(registry.len(), 1);
        second.release();
        assert!(registry.is_empty() && second.is_released());
        let alone = registry.attach(testing::unusable(), testing::surroundings());
        alone.release();
        assert!(registry.is_empty());
        tokio::time::timeout(Duration::from_secs(10), alone.stop()).await.expect("nothing is left of it");
    }

    /// POOL-1: attaching to a server whose supervisor has panicked starts a new one.
    #[tokio::test]
    async fn a_dead_supervisor_is_not_joined() {
        let first = AtomicBool::new(true);
        let sink = LineSink::new(move |_| assert!(!first.swap(false, Ordering::SeqCst), "a sink that fails"));
        let records = ServerRecords::new(Arc::new(SystemClock::default()), Some(sink));
        let surroundings = Surroundings { records, ..testing::surroundings() };
        let registry = Registry::new();
        let attach = || registry.attach(testing::missing(), surroundings.clone());
        let dead = attach();
        let mut states = dead.watch();
        let gone = tokio::time::timeout(Duration::from_secs(10), states.wait_for(|_| false)).await;
        assert!(gone.is_ok_and(|gone| gone.is_err()), "its supervisor has ended");
        let next = attach();
        assert!(!next.is_same_process(&dead));
        next.settled().await;
        assert!(matches!(next.state(), UpstreamState::Restarting(_)), "{:?}", next.state());
        assert!(attach().is_same_process(&next));
    }
}
