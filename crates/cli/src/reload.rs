//! Applies a changed configuration to a running gateway: on SIGHUP, and when the content of its file changes.
//!
//! The demo, which has no file, gives way to the user's own file as soon as there is one.
//! A file that is invalid, is gone, or that nobody agreed to changes nothing; the log and the status say why. The log and
//! the status also name changed settings that need a restart. The gateway leaves unchanged servers alone.

use std::fmt::Debug;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bridgehead::access::{Access, AccessSettings};
use bridgehead::config::{ServerName, Source};
use bridgehead::{Config, Control, Exposed, Gateway, Mode, check_endpoint, control};
use bridgehead_gateway::{AdminEvent, Principal, Reload, ReloadReport, admin};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::address::refuse_own;
use super::explain::in_effect;
use super::world::World;

/// How long a folder must be quiet before its file is read, because editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// How long to wait for that, because something else may write into the folder all the time.
const QUIET_WITHIN: Duration = Duration::from_secs(2);

/// The state of reloading: the configuration in effect, and where a new one comes from.
pub(crate) struct Reloading {
    pub(crate) world: World,
    /// The file that the command line names.
    pub(crate) explicit: Option<PathBuf>,
    pub(crate) gateway: Gateway,
    /// The configuration in effect, without overrides from the command line.
    pub(crate) config: Config,
    /// What it was read from at that time.
    pub(crate) content: Content,
    /// Whether clients are served over HTTP.
    pub(crate) http: bool,
    /// The addresses it listens on.
    pub(crate) addresses: Vec<SocketAddr>,
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
        let mut seen = self.content.clone();
        let (mut folders, mut _watcher) = (Vec::new(), None);
        loop {
            // The file may be another one now, or its folder may be new.
            let now = self.folders();
            if now != folders {
                _watcher = watching(now.clone(), Arc::clone(&changed)).await;
                folders = now;
                // The file may have changed before the watcher started.
                changed.notify_one();
            }
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
                Cause::Hangup => seen = self.content_now(),
                Cause::Changed => {
                    let quiet =
                        async { while tokio::time::timeout(QUIET, changed.notified()).await.is_ok() {} };
                    let _ = tokio::time::timeout(QUIET_WITHIN, quiet).await;
                    let now = self.content_now();
                    if now == seen {
                        continue;
                    }
                    seen = now;
                }
            }
            if self.reload().await {
                // It may name another file of variables now.
                seen.secrets = secrets(&self.config);
                self.content = seen.clone();
            }
        }
    }

    /// What the configuration would be read from now.
    fn content_now(&self) -> Content {
        Content::of(&self.world, self.explicit.as_deref(), &self.config)
    }

    /// The folders in which something may change the configuration.
    fn folders(&self) -> Vec<PathBuf> {
        let (mut files, mut folders): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
        if self.config.source == Source::Demo
            && let Some(own) = self.world.own_file()
        {
            // Its folder need not exist.
            folders.extend(own.ancestors().skip(1).find(|folder| folder.is_dir()).map(Path::to_owned));
        }
        if let Some(file) = file(&self.config).and_then(|file| std::path::absolute(file).ok()) {
            // If the file is a link, its target may change, too.
            files.extend(file.canonicalize().ok().filter(|target| *target != file));
            files.push(file);
        }
        files.extend(self.config.secrets.env_file.clone());
        folders.extend(files.iter().filter_map(|file| file.parent().map(Path::to_owned)));
        if self.content.agreed.is_some() {
            folders.extend(self.world.trust().folder().map(Path::to_owned));
        }
        folders.sort();
        folders.dedup();
        folders
    }

    /// Applies the current content of the file; returns whether it is in effect.
    async fn reload(&mut self) -> bool {
        let (world, explicit, running) = (self.world.clone(), self.explicit.clone(), self.config.clone());
        let before = self.content.file.clone();
        let loading = tokio::task::spawn_blocking(move || {
            world.again(explicit.as_deref(), &running, before.as_deref())
        });
        let Ok(mut loaded) = loading.await else { return false };
        if let Ok(config) = &mut loaded {
            refuse_own(&mut config.servers, &self.addresses);
        }
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
                if self.config.source != config.source {
                    self.config.source.clone_from(&config.source);
                    self.tell_file();
                }
                self.config.servers.clone_from(&config.servers);
                self.config.policy.clone_from(&config.policy);
                self.config.limits.clone_from(&config.limits);
                self.config.auth.keys.clone_from(&config.auth.keys);
                self.config.auth.operators.clone_from(&config.auth.operators);
                self.config.auth.operators_read.clone_from(&config.auth.operators_read);
                self.config.secrets.clone_from(&config.secrets);
                // A command finds this gateway by its file only if the whole file is in effect.
                self.gateway.set_rules(in_effect::told(&config));
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
        let ok = outcome.ok;
        self.gateway.set_reload(outcome);
        ok
    }

    /// Tells the commands which file this gateway uses now.
    fn tell_file(&self) {
        let folder = Control::directory(&self.world.variables);
        let (Some(folder), Some(file)) = (folder, file(&self.config)) else { return };
        if let Err(error) = control::set_config(&folder, self.gateway.instance(), file.to_owned()) {
            warn!(%error, "`bridgehead status` does not know the file of this gateway");
        }
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
    /// Applies rules, limits, keys and operators; returns why they cannot be used.
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

/// What a configuration is read from. A gateway that is not restarted follows it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Content {
    /// The text of its file.
    file: Option<Vec<u8>>,
    /// The text of its file of variables.
    secrets: Option<Vec<u8>>,
    /// Whether the user agreed to the text; `None` if nobody has to.
    agreed: Option<bool>,
}

impl Content {
    /// Call this when the configuration is read, before the gateway starts.
    pub(crate) fn of(world: &World, explicit: Option<&Path>, config: &Config) -> Self {
        let own = world.own_file().filter(|_| config.source == Source::Demo);
        let path = file(config).or(own.as_deref());
        let file = path.and_then(|path| std::fs::read(path).ok());
        let needed = path.is_some_and(|path| world.needs_agreement(explicit, path).unwrap_or(false));
        let agreed = match (path, &file) {
            (Some(path), Some(text)) if needed => Some(world.trust().answer(path, text) == Some(true)),
            _ => None,
        };
        Self { file, secrets: secrets(config), agreed }
    }
}

fn secrets(config: &Config) -> Option<Vec<u8>> {
    std::fs::read(config.secrets.env_file.as_ref()?).ok()
}

fn file(config: &Config) -> Option<&Path> {
    match &config.source {
        Source::Toml(path) | Source::ClientJson(path) => Some(path),
        Source::Demo => None,
    }
}

/// Starts the watcher on another thread: starting it blocks, and this thread is busy starting servers.
async fn watching(folders: Vec<PathBuf>, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let watching = tokio::task::spawn_blocking(move || watch(&folders, &changed));
    watching.await.ok().flatten()
}

/// Watches folders instead of files, because editors replace files.
fn watch(folders: &[PathBuf], changed: &Arc<Notify>) -> Option<RecommendedWatcher> {
    let told = Arc::clone(changed);
    let on_event = move |event: notify::Result<notify::Event>| {
        // Ignores read accesses, which we make ourselves.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            told.notify_one();
        }
    };
    let watching = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        for folder in folders {
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
        allow_group_read = "secrets.allow_group_read",
        proxy = "auth.proxy",
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
