//! Applies a changed configuration to a running gateway: on SIGHUP, and when the content of its file changes.
//!
//! A file that is invalid, is gone, or that nobody agreed to changes nothing; the log and the status say why. The log and
//! the status also name changed settings that need a restart. The gateway leaves unchanged servers alone.

use std::fmt::Debug;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bridgehead::access::{Access, AccessSettings};
use bridgehead::config::{ServerName, Source};
use bridgehead::{Config, Exposed, Gateway, Mode, check_endpoint};
use bridgehead_gateway::{AdminEvent, Principal, Reload, ReloadReport, admin};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::world::World;

/// How long a folder must be quiet before its file is read, because editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// The state of reloading: the configuration in effect, and where a new one comes from.
pub(crate) struct Reloading {
    pub(crate) world: World,
    /// The file that the command line names.
    pub(crate) explicit: Option<PathBuf>,
    pub(crate) gateway: Gateway,
    /// The configuration in effect, without overrides from the command line.
    pub(crate) config: Config,
    /// The content of its file at that time, from [`text`].
    pub(crate) text: Option<Vec<u8>>,
    /// Whether clients are served over HTTP.
    pub(crate) http: bool,
    /// Whether other clients may join this gateway.
    pub(crate) joinable: bool,
    /// Decides who may call what; `None` for a configuration that cannot say so.
    pub(crate) access: Option<Access>,
}

/// What asks for a reload.
enum Cause {
    Hangup,
    Changed,
}

impl Reloading {
    /// Waits for causes and reloads, for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let terminal = std::io::stderr().is_terminal();
        let mut hangup = signal(SignalKind::hangup()).ok();
        let changed = Arc::new(Notify::new());
        let file = file(&self.config).map(Path::to_owned);
        let mut text = self.text.take();
        let _watcher = watching(file.clone(), Arc::clone(&changed)).await;
        // The file may have changed before the watcher started.
        changed.notify_one();
        loop {
            let cause = tokio::select! {
                () = async {
                    match &mut hangup {
                        Some(hangup) => drop(hangup.recv().await),
                        None => std::future::pending().await,
                    }
                } => Cause::Hangup,
                () = changed.notified() => Cause::Changed,
            };
            match cause {
                // The terminal was closed, so this hangup asks for the end, not for a reload.
                Cause::Hangup if terminal && !std::io::stderr().is_terminal() => {
                    let _ = kill_process(getpid(), Signal::TERM);
                    continue;
                }
                Cause::Hangup => text = file.as_deref().and_then(|file| std::fs::read(file).ok()),
                Cause::Changed => {
                    while tokio::time::timeout(QUIET, changed.notified()).await.is_ok() {}
                    let now = file.as_deref().and_then(|file| std::fs::read(file).ok());
                    if now == text {
                        continue;
                    }
                    text = now;
                }
            }
            self.reload().await;
        }
    }

    async fn reload(&mut self) {
        let (world, explicit, running) = (self.world.clone(), self.explicit.clone(), self.config.clone());
        let loading = tokio::task::spawn_blocking(move || world.again(explicit.as_deref(), &running));
        let Ok(loaded) = loading.await else { return };
        let outcome = match loaded {
            // The endpoint still uses the old token settings, so the check uses them too.
            Ok(config) if let Some(exposed) = self.exposed(&config) => {
                let message = exposed.to_string();
                warn!(reason = message, "the new configuration cannot be used; the old one stays in effect");
                Reload { time: now(), ok: false, message, needs_restart: Vec::new() }
            }
            Ok(config) if let Some(message) = self.change_access(&config) => {
                warn!(reason = message, "the new configuration cannot be used; the old one stays in effect");
                Reload { time: now(), ok: false, message, needs_restart: Vec::new() }
            }
            Ok(config) => {
                let needs_restart = needs_restart(&self.config, &config);
                for setting in &needs_restart {
                    warn!(setting, "changed; restart the gateway to apply it");
                }
                let report = self.gateway.reload(config.servers.clone()).await;
                // Settings that need a restart stay different until they are applied or reverted.
                self.config.servers.clone_from(&config.servers);
                self.config.policy.clone_from(&config.policy);
                self.config.limits.clone_from(&config.limits);
                self.config.auth.keys.clone_from(&config.auth.keys);
                // A command finds this gateway by its file only if the whole file is in effect.
                let id = needs_restart.is_empty().then(|| self.world.id(&config));
                self.gateway.set_configuration_id(id);
                let joinable = self.joinable && needs_restart.is_empty();
                self.gateway.set_identity(joinable.then(|| self.world.identity(&config)));
                let message = summary(&report);
                info!(message, "the configuration was reloaded");
                Reload { time: now(), ok: true, message, needs_restart }
            }
            Err(error) => {
                let message = error.to_string();
                warn!(reason = message, "the new configuration cannot be used; the old one stays in effect");
                Reload { time: now(), ok: false, message, needs_restart: Vec::new() }
            }
        };
        self.record(&outcome).await;
        self.gateway.set_reload(outcome);
    }

    /// Puts the reload into the record, with what identifies the rules that are now in effect.
    async fn record(&self, outcome: &Reload) {
        let policy = self.access.as_ref().map(|access| access.policy().digest());
        let file = file(&self.config).map(|file| file.display().to_string()).unwrap_or_default();
        let event = AdminEvent {
            principal: &Principal::local(),
            transport: "gateway",
            method: admin::RELOAD,
            subject: &file,
            arguments: &json!({"policy": policy}),
        };
        let told = || match outcome.ok {
            true => Ok(json!({"message": outcome.message, "needsRestart": outcome.needs_restart})),
            false => Err(outcome.message.clone()),
        };
        // A record that fails is signalled there.
        drop(self.gateway.record_event(event, told).await);
    }
}

impl Reloading {
    /// Applies rules, limits and keys; returns why they cannot be used.
    fn change_access(&self, config: &Config) -> Option<String> {
        let access = self.access.as_ref()?;
        let applied = access.apply(AccessSettings::configured(config), &self.gateway);
        applied.err().map(|error| error.to_string())
    }

    /// A confined server of `config` that could call this gateway.
    fn exposed(&self, config: &Config) -> Option<Exposed> {
        let served = self.http && self.config.gateway.mode != Mode::Minimal;
        check_endpoint(&config.servers, &self.config.http, self.config.auth.refuses_strangers())
            .err()
            .filter(|_| served)
    }
}

fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// The content of a configuration's file. Call this when the configuration is read, before the gateway starts.
pub(crate) fn text(config: &Config) -> Option<Vec<u8>> {
    std::fs::read(file(config)?).ok()
}

fn file(config: &Config) -> Option<&Path> {
    match &config.source {
        Source::Toml(path) | Source::ClientJson(path) => Some(path),
        Source::Demo => None,
    }
}

/// Starts the watcher on another thread: starting it blocks, and this thread is busy starting servers.
async fn watching(file: Option<PathBuf>, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let watching = tokio::task::spawn_blocking(move || watch(&file?, &changed));
    watching.await.ok().flatten()
}

/// Watches the file's folder instead of the file, because editors replace the file. If the file is a link, watches its
/// target's folder too.
fn watch(file: &Path, changed: &Arc<Notify>) -> Option<RecommendedWatcher> {
    let told = Arc::clone(changed);
    let on_event = move |event: notify::Result<notify::Event>| {
        // Ignores read accesses, which we make ourselves.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            told.notify_one();
        }
    };
    let watching = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        let file = std::path::absolute(file).map_err(notify::Error::io)?;
        let mut folders: Vec<PathBuf> = file.parent().map(Path::to_owned).into_iter().collect();
        let target = file.canonicalize().ok().and_then(|target| target.parent().map(Path::to_owned));
        folders.extend(target.filter(|target| !folders.contains(target)));
        for folder in &folders {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            debug!(%error, "the configuration file is not watched; SIGHUP reloads it");
            None
        }
    }
}

/// Changed settings that need a restart of the gateway.
fn needs_restart(before: &Config, after: &Config) -> Vec<String> {
    let mut different = Vec::new();
    let mut compare = |name: &str, one: &dyn Debug, other: &dyn Debug| {
        if format!("{one:?}") != format!("{other:?}") {
            different.push(name.to_owned());
        }
    };
    macro_rules! settings {
        ($part:ident: $($field:ident = $name:literal),+ $(,)?) => {
            $(compare($name, &before.$part.$field, &after.$part.$field);)+
        };
    }
    settings!(gateway:
        mode = "gateway.mode",
        prefix = "gateway.prefix",
        max_name_length = "gateway.max_name_length",
        resource_uris = "gateway.resource_uris",
        startup_timeout = "gateway.startup_timeout_ms",
        init_concurrency = "gateway.init_concurrency",
        list_wait = "gateway.list_wait_ms",
        linger = "gateway.linger_ms",
        threads = "gateway.threads",
        debug_errors = "gateway.debug_errors",
        max_message_bytes = "gateway.max_message_mb",
        held_bytes = "limits.held_mb",
        held_per_peer_bytes = "limits.held_per_peer_mb",
    );
    settings!(http:
        listen = "http.listen",
        allowed_hosts = "http.allowed_hosts",
        allowed_origins = "http.allowed_origins",
        local_users = "http.local_users",
        token = "http.token",
        max_sessions = "http.max_sessions",
        session_idle = "http.session_idle_ms",
        max_body_bytes = "http.max_body_mb",
        head_within = "limits.head_ms",
        body_within = "limits.body_ms",
        keep_alive = "http.keep_alive_ms",
        poll_after = "http.poll_after_ms",
    );
    settings!(auth:
        public_url = "auth.public_url",
        local = "auth.local",
        issuers = "auth.issuers",
        keys_file = "auth.keys_file",
        proxy = "auth.proxy",
        operators = "auth.operators",
        operators_read = "auth.operators_read",
        step_up = "auth.step_up",
        legacy_discovery = "auth.legacy_discovery",
    );
    compare("http.listeners", &before.http.listeners, &after.http.listeners);
    compare("limits.views_mb", &before.gateway.views_bytes, &after.gateway.views_bytes);
    compare("audit", &before.audit, &after.audit);
    different
}

fn summary(report: &ReloadReport) -> String {
    if report.is_empty() {
        return "no server changed".to_owned();
    }
    let part = |what: &str, names: &[ServerName]| {
        let names: Vec<&str> = names.iter().map(ServerName::as_str).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let parts = [
        part("added", &report.added),
        part("removed", &report.removed),
        part("restarted", &report.restarted),
        part("changed", &report.changed),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_by_name() {
        let names =
            |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<ServerName>>();
        let mut report = ReloadReport { unchanged: names(&["a"]), ..ReloadReport::default() };
        assert_eq!(summary(&report), "no server changed");
        report.added = names(&["b", "c"]);
        report.removed = names(&["d"]);
        assert_eq!(summary(&report), "added b, c; removed d");
    }
}
