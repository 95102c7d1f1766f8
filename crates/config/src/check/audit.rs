//! Reads `[audit]`: what is recorded, where, for how long, and what is redacted.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_wire::{Method, Recording, RuleError, Rules};

use super::World;
use crate::section::{Findings, Section};
use crate::settings::{AuditPayloads, AuditSettings, AuditStore};
use crate::tree::Span;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn read(section: &Section<'_>, world: World<'_>, findings: &mut Findings) -> AuditSettings {
    let default = AuditSettings::default();
    let is = |key: &str, word: &str| section.word(key).is_some_and(|(written, _)| written == word);
    let mut file = |key: &str| {
        let (path, span) = section.text(key)?;
        if path.is_empty() {
            findings.mistake(
                findings.diagnostic(format!("`{key}` is empty"), span).help("name a path, or remove the key"),
            );
        }
        Some(world.environment.resolve(path, world.base))
    };
    let (folder, checkpoint_file, signing_key_file) =
        (file("folder"), file("checkpoint_file"), file("signing_key_file"));
    let megabytes = |key: &str, usual: u64| section.integer(key).map_or(usual, |number| number << 20);
    AuditSettings {
        store: if is("store", "none") { AuditStore::None } else { AuditStore::Sqlite },
        folder,
        methods: methods(section, findings),
        payloads: match () {
            () if is("payloads", "digest") => AuditPayloads::Digest,
            () if is("payloads", "none") => AuditPayloads::None,
            () => AuditPayloads::Redacted,
        },
        continue_on_failure: is("on_failure", "continue"),
        rules: Arc::new(rules(section, findings)),
        checkpoint_file,
        signing_key_file,
        segment_bytes: megabytes("segment_mb", default.segment_bytes),
        keep_for: section
            .integer("keep_days")
            .and_then(|days| u32::try_from(days).ok())
            .map_or(default.keep_for, |days| DAY * days),
        keep_bytes: megabytes("keep_mb", default.keep_bytes),
    }
}

/// The methods to record besides those that are always recorded.
fn methods(section: &Section<'_>, findings: &mut Findings) -> Vec<&'static str> {
    let listed = section.list("methods").into_iter();
    let known = listed.filter_map(|(name, span)| {
        let method = Method::from(name);
        if method.recording() == Recording::Never {
            let message = format!("method `{name}` cannot be recorded");
            let help = "name a request that clients send, such as \"tools/list\"";
            findings.mistake(findings.diagnostic(message, span).help(help));
        }
        method.known()
    });
    known.collect()
}

fn rules(section: &Section<'_>, findings: &mut Findings) -> Rules {
    let mut rules = Rules::default();
    let refuse = |findings: &mut Findings, message: &str, error: RuleError, span: &Span| {
        findings.mistake(findings.diagnostic(message, span).help(error.to_string()));
    };
    for (pattern, span) in section.list("redact") {
        if let Err(error) = rules.pattern(pattern) {
            refuse(findings, "this `redact` pattern cannot be used", error, span);
        }
    }
    for (rule, span) in section.list("redact_paths") {
        let (tool, path) = rule.split_once(':').unwrap_or(("", ""));
        let added = if tool.is_empty() { Err(RuleError::Path) } else { rules.path(tool, path) };
        if let Err(error) = added {
            let message =
                "a redacted path is written `tool:/path`, with the tool's name for clients, or `*:/path`";
            refuse(findings, message, error, span);
        }
    }
    rules
}
