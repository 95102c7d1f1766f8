//! `bridgehead key`: makes, lists and revokes API keys.
//!
//! A key is printed once, when it is made; files and the record hold its digest. A running gateway watches the keys file, so
//! nothing has to be restarted. Keys made and revoked are in the record, like calls: the enter is written before the file is
//! changed, and a change that cannot be recorded is not made.

use std::path::PathBuf;
use std::sync::Arc;

use bridgehead::config::{ApiKey, RevokedKey, Who};
use bridgehead::{About, AuditSink, Call, Clock, Config, CorrelationId, Enter, Era, Outcome, SystemClock};
use bridgehead_access::keys::{Key, KeysFile, Removed, check_name, digest_text};
use bytes::Bytes;
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::exit::Exit;
use super::meant::meant;
use super::target::run_once;
use super::world::World;
use super::{Chosen, Run, audit, output};

/// How much of a digest is shown: enough to tell keys apart.
const SHOWN: usize = 12;

/// Make, list and revoke the API keys of clients
#[derive(Debug, Args)]
#[command(
    after_help = "A client sends its key as `Authorization: Bearer KEY`; rules call its holder `key:NAME`. `auth.keys_file` names the file
(keys.toml beside the configuration), which holds digests only. A running gateway follows it within a second.

Examples:
  bridgehead key new ci --group build --expires 90d
  bridgehead key list
  bridgehead key revoke ci"
)]
pub(crate) struct Keys {
    #[command(flatten)]
    chosen: Chosen,
    /// The keys file; no configuration is then read, and nothing is recorded
    #[arg(long, global = true, value_name = "FILE")]
    keys_file: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    New(New),
    List(List),
    Revoke(Revoke),
}

/// Make a key and print it, once
#[derive(Debug, Args)]
#[command(
    after_help = "A second key of the same name is valid beside the first, so that clients can change over.

Examples:
  bridgehead key new ci --group build --scope repo:read --expires 90d
  bridgehead key new ada > ada.key"
)]
struct New {
    /// Name of its holder: letters, digits, `_`, `.` and `-`
    #[arg(value_parser = name)]
    name: String,
    /// A group of its holder; may be repeated
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// A scope of its holder; may be repeated
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// When it stops working: in 90d, 12h or 4w, or at a time such as 2027-01-31T00:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    expires: Option<Timestamp>,
}

/// List all keys, by the beginnings of their digests
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bridgehead key list\n  bridgehead key list --json")]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Revoke the keys of a name
#[derive(Debug, Args)]
#[command(
    after_help = "Calls that are running finish. Streams, sessions and parked calls of the key end within a second.

Examples:
  bridgehead key revoke ci
  bridgehead key revoke ci --digest 1f3a      only the key whose digest begins so"
)]
struct Revoke {
    /// Name of the holder
    #[arg(value_parser = name)]
    name: String,
    /// Beginning of the digest of one key, as `key list` shows it
    #[arg(long, value_name = "PREFIX", value_parser = digest_prefix)]
    digest: Option<String>,
}

/// What the verbs work on.
struct Place<'a> {
    file: KeysFile,
    /// `None` if the keys file was named instead.
    config: Option<Config>,
    world: &'a World,
}

impl Run for Keys {
    fn json(&self) -> bool {
        matches!(&self.verb, Verb::List(list) if list.json)
    }

    fn only_reads(&self) -> bool {
        matches!(self.verb, Verb::List(_))
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(keys: &Keys, world: &World) -> Exit {
    let place = match Place::find(keys, world) {
        Ok(place) => place,
        Err(exit) => return exit,
    };
    let done = match &keys.verb {
        Verb::New(new) => place.make(new),
        Verb::List(list) => place.list(list),
        Verb::Revoke(revoke) => place.revoke(revoke),
    };
    done.unwrap_or_else(|error| {
        output::talk(&format!("error: {error}"));
        Exit::Failure
    })
}

impl<'a> Place<'a> {
    fn find(keys: &Keys, world: &'a World) -> Result<Self, Exit> {
        if let Some(path) = &keys.keys_file {
            return Ok(Self { file: KeysFile::new(path), config: None, world });
        }
        let explicit = keys.chosen.config.as_deref();
        let config = match keys.verb {
            // Nothing is changed, so a mistake elsewhere does not matter.
            Verb::List(_) => {
                let found = world.to_look_up(explicit, &["auth"]);
                found.map_err(|error| output::configuration_error(&error, keys.json()))?.config
            }
            Verb::New(_) | Verb::Revoke(_) => world.for_keys(explicit, keys.json()).inspect_err(|_| {
                output::talk("hint: --keys-file FILE works without the configuration");
            })?,
        };
        let Some(path) = config.auth.keys_file.clone() else {
            output::talk(
                "error: there is no configuration file, and so no keys file beside it; name one with --config or --keys-file",
            );
            return Err(Exit::Configuration);
        };
        let file = KeysFile::new(path).allow_group_read(config.auth.allow_group_read);
        Ok(Self { file, config: Some(config), world })
    }

    fn make(&self, new: &New) -> Result<Exit, String> {
        let key = Key::generate().map_err(|error| format!("the system gives no random numbers: {error}"))?;
        let New { name, groups, scopes, expires } = new;
        let row = ApiKey {
            name: name.clone(),
            sha256: key.digest(),
            groups: groups.clone(),
            scopes: scopes.clone(),
            expires: *expires,
        };
        let append = || self.file.append(&row).map_err(|error| error.to_string());
        self.recorded("key/new", name, &described(&row), append, |()| json!({}))?;
        let exit = output::raw_data(key.expose(), Exit::Success);
        output::talk(&format!(
            "made a key for `{name}`; its digest, {}…, is in `{}`\n\
             this is the only time that the key is shown; a client sends it as `Authorization: Bearer KEY`",
            &digest_text(&row.sha256)[..SHOWN],
            self.file.path().display()
        ));
        let said = self.config.as_ref().is_none_or(|config| config.auth.asks_for_credentials());
        if !said {
            output::talk(
                "note: from now on the gateway asks local clients for credentials, too; `auth.local = true` admits them without",
            );
        }
        Ok(exit)
    }

    fn list(&self, list: &List) -> Result<Exit, String> {
        let of_file = self.file.rows().map_err(|error| error.to_string())?.unwrap_or_default();
        let configured = self.configured();
        let now = Timestamp::now();
        let file = self.file.path().display().to_string();
        let places = [(self.configuration_file(), configured), (file.clone(), &of_file.keys)];
        let all: Vec<(&ApiKey, &str)> = places
            .iter()
            .flat_map(|(place, keys)| keys.iter().map(move |key| (key, place.as_str())))
            .collect();
        if list.json {
            let valid = all.iter().map(|(key, place)| {
                let mut told = described(key);
                told["name"] = json!(key.name);
                told["expired"] = json!(key.expires.is_some_and(|expires| expires <= now));
                told["file"] = json!(place);
                told
            });
            let revoked = of_file.revoked.iter().map(|key| {
                json!({
                    "name": key.name,
                    "groups": key.groups,
                    "revoked": key.at.to_string(),
                    "file": file,
                })
            });
            let keys: Vec<Value> = valid.chain(revoked).collect();
            return Ok(output::json_data(&json!({ "keys": keys }), Exit::Success));
        }
        if all.is_empty() && of_file.revoked.is_empty() {
            output::talk("there are no keys; `bridgehead key new NAME` makes one");
            return Ok(Exit::Success);
        }
        let heading = ["NAME", "DIGEST", "GROUPS", "SCOPES", "EXPIRES", "FILE"].map(str::to_owned).to_vec();
        let list = |items: &[String]| if items.is_empty() { "-".to_owned() } else { items.join(" ") };
        let rows = all.iter().map(|(key, place)| {
            let expires = match key.expires {
                None => "never".to_owned(),
                Some(expires) if expires <= now => format!("{expires} (expired)"),
                Some(expires) => expires.to_string(),
            };
            let digest = digest_text(&key.sha256)[..SHOWN].to_owned();
            vec![key.name.clone(), digest, list(&key.groups), list(&key.scopes), expires, (*place).to_owned()]
        });
        let revoked = |RevokedKey { name, groups, at }: &RevokedKey| {
            let none = || "-".to_owned();
            vec![name.clone(), none(), list(groups), none(), format!("revoked {at}"), file.clone()]
        };
        let rows = rows.chain(of_file.revoked.iter().map(revoked));
        let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
        Ok(output::data(&output::table(&rows), Exit::Success))
    }

    fn revoke(&self, revoke: &Revoke) -> Result<Exit, String> {
        let Revoke { name, digest } = revoke;
        let fits = |key: &&ApiKey| {
            let begins = |prefix: &String| digest_text(&key.sha256).starts_with(prefix);
            key.name == *name && digest.as_ref().is_none_or(begins)
        };
        let elsewhere: Vec<&ApiKey> = self.configured().iter().filter(fits).collect();
        let place = format!("written in `{}` itself; remove it there", self.configuration_file());
        let of_file = self.file.read().map_err(|error| error.to_string())?.unwrap_or_default();
        if !elsewhere.is_empty() && !of_file.iter().any(|key| fits(&key)) {
            return Err(format!("the key `{name}` is {place}"));
        }
        if !of_file.iter().any(|key| key.name == *name) {
            let near = meant(name, of_file.iter().map(|key| key.name.as_str()), "");
            if !near.is_empty() {
                output::talk(&format!("hint: {near}"));
            }
        }
        let asked = json!({ "digest": digest });
        let begin = |key: &ApiKey| digest_text(&key.sha256)[..SHOWN].to_owned();
        // A person reads the time, so that fractions of its second are left out.
        let now = Timestamp::now();
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let remove = || self.file.remove(name, digest.as_deref(), now).map_err(|error| error.to_string());
        let went = |Removed(keys): &Removed| json!({ "digests": keys.iter().map(begin).collect::<Vec<_>>() });
        let Removed(removed) = self.recorded("key/revoke", name, &asked, remove, went)?;
        let digests: Vec<String> = removed.iter().map(|key| format!("{}…", begin(key))).collect();
        let count = output::counted(removed.len() as u64, "key");
        output::talk(&format!("revoked {count} of `{name}`: {}", digests.join(", ")));
        if !elsewhere.is_empty() {
            return Err(format!("another key `{name}` is still valid: it is {place}"));
        }
        let is_last =
            !of_file.iter().chain(self.configured()).any(|key| key.name == *name && !removed.contains(key));
        if is_last && self.rules_name(name) {
            output::talk(&format!(
                "note: the configuration still names `key:{name}`; nobody can sign in as that until `bridgehead key new {name}` makes a key"
            ));
        }
        Ok(Exit::Success)
    }

    /// The keys that the configuration file itself holds.
    fn configured(&self) -> &[ApiKey] {
        self.config.as_ref().map(|config| config.auth.keys.as_slice()).unwrap_or_default()
    }

    fn configuration_file(&self) -> String {
        let file = self.config.as_ref().and_then(|config| self.world.file(config));
        file.map(|file| file.display().to_string()).unwrap_or_default()
    }

    /// Whether a rule of the configuration names this key.
    fn rules_name(&self, name: &str) -> bool {
        let Some(config) = &self.config else { return false };
        let rules = config.policy.iter().flat_map(|rule| &rule.who);
        let limits = config.limits.iter().flat_map(|rule| &rule.who);
        let operators = config.auth.operators.iter().chain(&config.auth.operators_read);
        rules.chain(limits).chain(operators).any(|who| matches!(who, Who::Key(key) if key == name))
    }

    /// Makes a change and leaves its pair of events in the record, if one is kept. `told` is what the second says of it.
    fn recorded<T>(
        &self,
        method: &'static str,
        name: &str,
        arguments: &Value,
        change: impl FnOnce() -> Result<T, String>,
        told: impl FnOnce(&T) -> Value,
    ) -> Result<T, String> {
        let record = match &self.config {
            Some(config) => audit::open(config, self.world)?,
            None => None,
        };
        let Some(record) = record else { return change() };
        let clock = SystemClock::new();
        let call = Call {
            tool: Arc::default(),
            server: None,
            principal: format!("local:{}", rustix::process::getuid().as_raw()).into(),
            correlation: CorrelationId::mint(),
            era: Era::Modern,
            transport: "cli",
            about: About::of(Some(method), name.into()),
        };
        let enter = Enter::new(call, Bytes::from(arguments.to_string()), true, clock.now());
        let mut entered = Err("interrupted; nothing was changed".to_owned());
        run_once(async {
            let ticket = record.sink.enter(&enter).await;
            entered = ticket
                .map_err(|error| format!("nothing was changed, because it cannot be recorded: {error}"));
            Exit::Success
        });
        let ticket = entered?;
        let changed = change();
        let outcome = match &changed {
            Ok(changed) => Outcome::Result { body: told(changed).to_string().into(), is_error: false },
            Err(error) => {
                Outcome::Error { code: "HANDLER_ERROR".into(), message: error.clone(), details: None }
            }
        };
        let exit = bridgehead::Exit::new(enter.call(), enter.moment(), clock.now(), outcome);
        if let Err(error) = record.sink.exit(ticket, exit) {
            output::talk(&format!("warning: the end of the change is not recorded: {error}"));
        }
        record.sink.close();
        changed
    }
}

/// What may be told of a key.
fn described(key: &ApiKey) -> Value {
    json!({
        "digest": &digest_text(&key.sha256)[..SHOWN],
        "groups": key.groups,
        "scopes": key.scopes,
        "expires": key.expires.map(|expires| expires.to_string()),
    })
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

fn digest_prefix(text: &str) -> Result<String, String> {
    let text = text.trim_start_matches("sha256:").trim_end_matches('…').to_ascii_lowercase();
    match !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text),
        false => Err("write the first digits that `bridgehead key list` shows".to_owned()),
    }
}

/// A time in the future: a duration from now, a time or a date.
fn moment(text: &str) -> Result<Timestamp, String> {
    moment_after(text, Timestamp::now())
}

fn moment_after(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let unit = |unit: char| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(60 * 60),
        'd' => Some(24 * 60 * 60),
        'w' => Some(7 * 24 * 60 * 60),
        _ => None,
    };
    let duration = || {
        let (at, last) = text.char_indices().next_back()?;
        let count: i64 = text[..at].parse().ok()?;
        now.checked_add(SignedDuration::from_secs(count.checked_mul(unit(last)?)?)).ok()
    };
    let time = || text.parse().ok().or_else(|| format!("{text}T00:00:00Z").parse().ok());
    let found = duration()
        .or_else(time)
        .ok_or("write a duration such as 90d, 12h or 4w, or a time such as 2027-01-31T00:00:00Z")?;
    if found <= now { Err("that is not in the future".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiries() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>) {
            let found = moment_after(text, "2026-11-17T12:00:00Z".parse().unwrap());
            assert_eq!(found.ok().map(|time| time.to_string()).as_deref(), expected, "{text}");
        }
        check("90d", Some("2027-02-15T12:00:00Z"));
        check("4w", Some("2026-12-15T12:00:00Z"));
        check("12h", Some("2026-11-18T00:00:00Z"));
        check("1m", Some("2026-11-17T12:01:00Z"));
        check("30s", Some("2026-11-17T12:00:30Z"));
        check("2027-01-31T18:00:00+01:00", Some("2027-01-31T17:00:00Z"));
        check("2027-01-31", Some("2027-01-31T00:00:00Z"));
        for wrong in
            ["", "d", "90", "0d", "-1d", "90y", "2020-01-01", "9223372036854775807w", "99999999999d", "ä"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn digests() {
        assert_eq!(digest_prefix("1F3a…").as_deref(), Ok("1f3a"));
        assert_eq!(digest_prefix("sha256:ab").as_deref(), Ok("ab"));
        for wrong in ["", "xyz", &"a".repeat(65)] {
            assert!(digest_prefix(wrong).is_err(), "{wrong}");
        }
    }
}
