//! Applies a changed configuration to a running gateway: on SIGHUP, and when the content of its file changes.
//!
//! The demo, which has no file, gives way to the user's own file as soon as there is one.
//! A file that is invalid, is gone, or that nobody agreed to changes nothing; the log and the status say why. The log and
//! the status also name changed settings that need a restart, and rotated secrets that only a restart reads. The gateway leaves unchanged servers alone.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bridgehead::access::{Access, AccessSettings};
use bridgehead::config::{GatewaySettings, HttpSettings, ServerName, Source, TokenSource, read_secret_file};
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
/// The longest file that can hold a token or a key.
const LONGEST_SECRET: u64 = 64 * 1024;

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
        let started = self.content.read_once.clone();
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
            if self.reload(&started).await {
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
        files.extend(self.content.read_once.0.iter().map(|(_, path, _)| path.clone()));
        folders.extend(files.iter().filter_map(|file| file.parent().map(Path::to_owned)));
        if self.content.agreed.is_some() {
            folders.extend(self.world.trust().folder().map(Path::to_owned));
        }
        folders.sort();
        folders.dedup();
        folders
    }

    /// Applies the current content of the file; returns whether it is in effect. What a start has read goes on until the next.
    async fn reload(&mut self, started: &ReadOnce) -> bool {
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
                let mut needs_restart = needs_restart(&self.config, &config);
                needs_restart.extend(started.rotated(&ReadOnce::of(&self.config)));
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
    /// What is read at a start only. A change of it is told.
    read_once: ReadOnce,
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
        Self { file, secrets: secrets(config), agreed, read_once: ReadOnce::of(config) }
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

/// Changed settings that need a restart of the gateway. They are compared as values, never as they print: secrets print all the
/// same. A new setting of a part does not compile until it is listed here.
fn needs_restart(before: &Config, after: &Config) -> Vec<String> {
    let mut different = Vec::new();
    let mut note = |name: &str, same: bool| {
        if !same {
            different.push(name.to_owned());
        }
    };
    macro_rules! settings {
        ($kind:ident, $part:ident: $($field:ident = $name:literal),+; elsewhere: $($other:ident),*) => {
            let $kind { $($field,)+ $($other: _,)* } = &after.$part;
            $(note($name, before.$part.$field == *$field);)+
        };
    }
    settings!(GatewaySettings, gateway:
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
        views_bytes = "limits.views_mb";
        // The servers have these times, and no key sets the last one.
        elsewhere: request_timeout, max_total, question_timeout, cancel_grace, builtin
    );
    settings!(HttpSettings, http:
        listen = "http.listen",
        listeners = "http.listeners",
        allowed_hosts = "http.allowed_hosts",
        allowed_origins = "http.allowed_origins",
        local_users = "http.local_users",
        token = "http.token",
        allow_group_read = "secrets.allow_group_read",
        max_sessions = "http.max_sessions",
        session_idle = "http.session_idle_ms",
        max_body_bytes = "http.max_body_mb",
        head_within = "limits.head_ms",
        body_within = "limits.body_ms",
        keep_alive = "http.keep_alive_ms",
        poll_after = "http.poll_after_ms";
        // Of the environment, not of the file.
        elsewhere: sudo_uid
    );
    let (old, new) = (&before.auth, &after.auth);
    note("auth.public_url", old.public_url == new.public_url);
    note("auth.local", old.local == new.local);
    note("auth.issuers", old.issuers == new.issuers);
    note("auth.keys_file", old.keys_file == new.keys_file);
    note("auth.proxy", old.proxy == new.proxy);
    note("auth.step_up", old.step_up == new.step_up);
    note("auth.legacy_discovery", old.legacy_discovery == new.legacy_discovery);
    note("audit", before.audit == after.audit);
    different
}

/// The files with secrets that only a start reads, each with the key that names it and with what it held. A gateway goes on with
/// that until it is restarted.
#[derive(Clone, PartialEq, Eq)]
struct ReadOnce(Vec<(&'static str, PathBuf, Option<Vec<u8>>)>);

impl ReadOnce {
    fn of(config: &Config) -> Self {
        let token = match &config.http.token {
            TokenSource::File(path) => Some(path),
            TokenSource::None | TokenSource::Env { .. } => None,
        };
        let key = config.audit.signing_key_file.as_ref();
        let named = [("http.token_file", token), ("audit.signing_key_file", key)];
        // Whoever starts with a file that others can read refuses it; here only its content matters.
        let read = |path: &Path| read_secret_file(path, true, LONGEST_SECRET).ok();
        let files = named.into_iter().filter_map(|(name, path)| Some((name, path?)));
        Self(files.map(|(name, path)| (name, path.clone(), read(path))).collect())
    }

    /// The keys whose files hold something else in `now`. A key that names another file is a changed setting.
    fn rotated(&self, now: &Self) -> impl Iterator<Item = String> {
        let rotated = self.0.iter().filter(|(name, path, before)| {
            now.0.iter().any(|(other, at, after)| (name, path) == (other, at) && before != after)
        });
        rotated.map(|(name, ..)| (*name).to_owned())
    }
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

    fn configuration(folder: &Path, text: &str, variables: &[(&str, &str)]) -> Config {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let environment = bridgehead::config::Environment::read(variables).unwrap();
        std::fs::write(folder.join("bridgehead.toml"), text).unwrap();
        bridgehead::config::load(Some("bridgehead.toml".as_ref()), &environment, folder).unwrap()
    }

    /// ACC-8: a rotated secret is a change, although it prints as before; so is a part of an address that does not print. A
    /// configuration that is read again is not.
    #[test]
    fn rotated_secrets_need_a_restart() {
        const TEXT: &str = "[http]\ntoken_env = 'TOKEN'\n[audit]\nredact = ['zq-1', 'zq-2']\n\
            [auth]\npublic_url = 'https://gateway.example.com'\n\
            [auth.issuers.corp]\nissuer = 'https://id.example.com'\n\
            [auth.issuers.corp.introspection]\nurl = 'https://id.example.com/one'\nclient_id = 'gateway'\n\
            client_secret = '${SECRET}'\n";
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str, token, secret| {
            configuration(folder.path(), text, &[("TOKEN", token), ("SECRET", secret)])
        };
        let before = read(TEXT, "token-1-of-thirty-two-characters-", "hunter2");
        let check = |after: &Config, expected: &[&str]| assert_eq!(needs_restart(&before, after), expected);
        check(&read(TEXT, "token-1-of-thirty-two-characters-", "hunter2"), &[]);
        check(&read(TEXT, "token-1-of-thirty-two-characters-", "hunter3"), &["auth.issuers"]);
        check(&read(TEXT, "token-2-of-thirty-two-characters-", "hunter2"), &["http.token"]);
        let elsewhere = TEXT.replace("example.com/one", "example.com/two");
        check(&read(&elsewhere, "token-1-of-thirty-two-characters-", "hunter2"), &["auth.issuers"]);
    }

    /// ACC-8: the files with secrets that only a start reads are compared with what they held then.
    #[test]
    fn rotated_files_need_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (token, key) = (folder.path().join("token"), folder.path().join("key"));
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).unwrap();
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        };
        write(&token, "token-1-of-thirty-two-characters-");
        write(&key, "key-1");
        let text = format!(
            "[http]\ntoken_file = '{}'\n[audit]\nsigning_key_file = '{}'\n",
            token.display(),
            key.display()
        );
        let config = configuration(folder.path(), &text, &[]);
        let started = ReadOnce::of(&config);
        let rotated = || started.rotated(&ReadOnce::of(&config)).collect::<Vec<_>>();
        assert_eq!(rotated(), [""; 0]);
        write(&token, "token-2-of-thirty-two-characters-");
        assert_eq!(rotated(), ["http.token_file"]);
        write(&key, "key-2");
        assert_eq!(rotated(), ["http.token_file", "audit.signing_key_file"]);
        write(&token, "token-1-of-thirty-two-characters-");
        assert_eq!(rotated(), ["audit.signing_key_file"], "it is what it was");
    }

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
