//! Checks one table of a file against the key table: unknown keys, duplicate keys, keys that are not supported yet, values
//! of the wrong kind. The entries that pass are typed, so `check` only has to interpret them.
//!
//! The effect of a finding depends on the file ([`Findings`]): it refuses our own TOML, and disables one server of a
//! client's JSON.

use std::cell::OnceCell;
use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Severity, SourceText};
use crate::keys::{self, Key, KeyTable, Status, ValueKind};
use crate::tree::{Entry, Node, Span, Value};

/// Collects the problems found in a file.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) source: Arc<SourceText>,
    /// Whether mistakes refuse the whole file.
    pub(crate) strict: bool,
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Why the server that is being read cannot run.
    broken: Option<String>,
    /// The server that is being read.
    server: Option<String>,
    /// Where the lines of the file end. A file may have thousands of rules, and each of them keeps its line.
    line_ends: OnceCell<Vec<usize>>,
}

impl Findings {
    pub(crate) fn new(source: Arc<SourceText>, strict: bool) -> Self {
        Self {
            source,
            strict,
            diagnostics: Vec::new(),
            broken: None,
            server: None,
            line_ends: OnceCell::new(),
        }
    }

    pub(crate) fn enter_server(&mut self, name: &str) {
        self.server = Some(name.to_owned());
        self.broken = None;
    }

    /// Ends reading a server: the reason why it cannot run, if there is one.
    pub(crate) fn leave_server(&mut self) -> Option<String> {
        self.server = None;
        self.broken.take()
    }

    pub(crate) fn diagnostic(&self, message: impl Into<String>, span: &Span) -> Diagnostic {
        Diagnostic::error(message).at(&self.source, span)
    }

    /// The line of a place, from 1.
    pub(crate) fn line(&self, span: &Span) -> usize {
        let ends = self.line_ends.get_or_init(|| {
            self.source
                .text
                .bytes()
                .enumerate()
                .filter(|(_, byte)| *byte == b'\n')
                .map(|(at, _)| at)
                .collect()
        });
        ends.partition_point(|end| *end < span.start) + 1
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic.about(self.server.as_deref()));
    }

    /// Reports a mistake: it refuses a native file, and disables the current server of a client's file.
    pub(crate) fn mistake(&mut self, diagnostic: Diagnostic) {
        if self.strict || self.server.is_none() {
            self.push(diagnostic);
        } else {
            self.failure(diagnostic);
        }
    }

    /// Reports something unknown or redundant: it refuses a native file, and is a warning in a client's file.
    pub(crate) fn surplus(&mut self, mut diagnostic: Diagnostic) {
        if !self.strict {
            diagnostic.severity = Severity::Warning;
        }
        self.push(diagnostic);
    }

    /// Reports a failure: it disables the current server, in either kind of file.
    pub(crate) fn failure(&mut self, mut diagnostic: Diagnostic) {
        if self.broken.is_none() {
            self.broken = Some(diagnostic.message.clone());
        }
        if let Some(server) = &self.server {
            diagnostic.message = format!("server `{server}` cannot start: {}", diagnostic.message);
        }
        diagnostic.severity = Severity::Warning;
        self.push(diagnostic);
    }

    pub(crate) fn warning(&mut self, mut diagnostic: Diagnostic) {
        diagnostic.severity = Severity::Warning;
        self.push(diagnostic);
    }
}

/// The keys of one table that are known, supported and of the right kind.
#[derive(Debug)]
pub(crate) struct Section<'t> {
    entries: Vec<(&'static Key, &'t Entry)>,
    /// Every key that the user meant, usable or not.
    mentioned: Vec<&'static str>,
}

impl<'t> Section<'t> {
    /// Reads the entries of a table of the kind `place`.
    pub(crate) fn read(place: KeyTable, entries: &'t [Entry], findings: &mut Findings) -> Self {
        let mut section = Section { entries: Vec::new(), mentioned: Vec::new() };
        for entry in entries {
            let Some(key) = keys::find(place, &entry.key) else {
                let meant = keys::nearest(place, &entry.key);
                section.mentioned.extend(meant.map(|key| key.name));
                findings.surplus(unknown(place, entry, meant, findings));
                continue;
            };
            if section.mentioned.contains(&key.name) && section.supersede(key, entry, findings) {
                continue;
            }
            section.mentioned.push(key.name);
            if let Some(binding) = still_to_come(key, &entry.node) {
                // `isolation = "sesion"` is a typo, not an unsupported value.
                let misspelt =
                    matches!(key.kind, ValueKind::Choice(_)).then(|| wrong_kind(key, entry, findings));
                let diagnostic = misspelt.flatten().unwrap_or_else(|| to_come(key, entry, findings));
                if binding { findings.mistake(diagnostic) } else { findings.surplus(diagnostic) }
            } else if let Some(diagnostic) = wrong_kind(key, entry, findings) {
                findings.mistake(diagnostic);
            } else {
                section.entries.push((key, entry));
            }
        }
        section
    }

    /// Handles a duplicate key: an error in a native file; in JSON the last one wins, as in every JSON parser. Returns
    /// whether to skip the second one.
    fn supersede(&mut self, key: &Key, entry: &Entry, findings: &mut Findings) -> bool {
        let misspelt = !self.entries.iter().any(|(known, _)| known.name == key.name);
        if misspelt && !findings.strict {
            return false;
        }
        findings.surplus(
            findings.diagnostic(format!("`{}` is written twice", key.name), &entry.key_span).help(format!(
                "keep one; `{}` and `{}` are the same key",
                key.name,
                key.camel_case()
            )),
        );
        if !findings.strict {
            self.entries.retain(|(known, _)| known.name != key.name);
        }
        findings.strict
    }

    /// Whether the user meant this key in this table, even if it could not be used.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.mentioned.contains(&name)
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&'t Entry> {
        debug_assert!(keys::KEYS.iter().any(|key| key.name == name), "`{name}` is not in the key table");
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, entry)| *entry)
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.entry(name)?.node.value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Option<u64> {
        match self.entry(name)?.node.value {
            Value::Integer(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<(&'t str, &'t Span)> {
        let node = &self.entry(name)?.node;
        text_of(node).map(|text| (text, &node.span))
    }

    /// The value of a key that takes one of several words: the word as the table of keys spells it, and its place. So nothing
    /// that the table accepts, such as another case, is read as something else.
    pub(crate) fn word(&self, name: &str) -> Option<(&'static str, &'t Span)> {
        let (key, entry) = self.entries.iter().find(|(key, _)| key.name == name)?;
        let word = word_of(key.kind, text_of(&entry.node)?)?;
        Some((word, &entry.node.span))
    }

    pub(crate) fn list(&self, name: &str) -> Vec<(&'t str, &'t Span)> {
        match self.entry(name).map(|entry| &entry.node.value) {
            Some(Value::List(items)) => {
                items.iter().filter_map(|item| text_of(item).map(|text| (text, &item.span))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The items of a list of strings and numbers, as text; `None` if the value is not a list.
    pub(crate) fn items(&self, name: &str) -> Option<Vec<(String, &'t Span)>> {
        match &self.entry(name)?.node.value {
            Value::List(items) => {
                Some(items.iter().filter_map(|item| Some((item.value.scalar_text()?, &item.span))).collect())
            }
            _ => None,
        }
    }

    /// A time or a date as text, however it is written.
    pub(crate) fn time(&self, name: &str) -> Option<(&'t str, &'t Span)> {
        let node = &self.entry(name)?.node;
        match &node.value {
            Value::Text(text) | Value::Date(text) => Some((text, &node.span)),
            _ => None,
        }
    }

    /// The entries of a table of lists, each with its texts.
    pub(crate) fn lists(&self, name: &str) -> Vec<(&'t Entry, Vec<(&'t str, &'t Span)>)> {
        let of = |entry: &'t Entry| match &entry.node.value {
            Value::List(items) => {
                items.iter().filter_map(|item| text_of(item).map(|text| (text, &item.span))).collect()
            }
            _ => Vec::new(),
        };
        self.table(name).iter().map(|entry| (entry, of(entry))).collect()
    }

    /// The tables of a list of tables, each with the place of its heading.
    pub(crate) fn rows(&self, name: &str) -> Vec<(&'t [Entry], &'t Span)> {
        self.entry(name).map(|entry| rows_of(&entry.node)).unwrap_or_default()
    }

    /// The entries of a table; empty if the value is not a table.
    pub(crate) fn table(&self, name: &str) -> &'t [Entry] {
        match self.entry(name).map(|entry| &entry.node.value) {
            Some(Value::Table(entries)) => entries,
            _ => &[],
        }
    }
}

/// The tables of a list of tables, each with the place of its heading.
pub(crate) fn rows_of(node: &Node) -> Vec<(&[Entry], &Span)> {
    let Value::List(items) = &node.value else { return Vec::new() };
    let row = |item| match item {
        &Node { ref span, value: Value::Table(ref entries) } => Some((entries.as_slice(), span)),
        _ => None,
    };
    items.iter().filter_map(row).collect()
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn unknown(place: KeyTable, entry: &Entry, meant: Option<&Key>, findings: &Findings) -> Diagnostic {
    let diagnostic = findings.diagnostic(format!("unknown key `{}`", entry.key), &entry.key_span);
    if let Some(key) = meant {
        return diagnostic.label(format!("did you mean `{}`?", key.name)).help(key.gist());
    }
    let diagnostic = diagnostic.label(match place {
        KeyTable::Root => "not a key of the top of the file".to_owned(),
        _ => format!("not a key of `{}`", place.heading()),
    });
    if !findings.strict {
        return diagnostic.help("it is ignored");
    }
    if let Some(other) = keys::elsewhere(place, &entry.key) {
        return diagnostic.help(format!("it belongs in `{}`", other.heading()));
    }
    let known: Vec<_> = keys::of(place)
        .filter(|key| key.status == Status::Supported)
        .map(|key| format!("`{}`", key.name))
        .collect();
    diagnostic.help(format!("the keys here are {}", known.join(", ")))
}

/// `Some(binding)` if the key asks for something that is not supported yet.
fn still_to_come(key: &Key, node: &Node) -> Option<bool> {
    match key.status {
        Status::Supported => None,
        Status::Later { accepts, binding } => {
            let text = node.value.scalar_text();
            let accepted =
                text.is_some_and(|text| accepts.iter().any(|word| word.eq_ignore_ascii_case(&text)));
            (!accepted).then_some(binding)
        }
    }
}

fn to_come(key: &Key, entry: &Entry, findings: &Findings) -> Diagnostic {
    let way_out = match (key.status, findings.strict) {
        (Status::Later { accepts: [word], .. }, _) => format!("only `{word}` works today"),
        (Status::Later { accepts: words @ [_, ..], .. }, _) => {
            format!("only `{}` work today", words.join("` and `"))
        }
        (Status::Later { binding: true, .. }, false) => "the server is left out".to_owned(),
        (_, true) => "remove it".to_owned(),
        (_, false) => "it is ignored".to_owned(),
    };
    findings
        .diagnostic(format!("`{}` is not supported yet", key.name), &entry.key_span)
        .help(format!("{way_out} ({})", key.gist()))
}

fn wrong_kind(key: &Key, entry: &Entry, findings: &Findings) -> Option<Diagnostic> {
    let node = &entry.node;
    // Some clients accept `"PORT": 3000`; the process gets its text.
    let lenient = !findings.strict && key.kind == ValueKind::Map;
    let is_text = |item: &Node| match item.value {
        Value::Text(_) => true,
        Value::Integer(_) | Value::Number(_) | Value::Flag(_) => lenient,
        _ => false,
    };
    let wrong = match (key.kind, &node.value) {
        (ValueKind::Flag | ValueKind::FlagOr(_), Value::Flag(_))
        | (ValueKind::Text, Value::Text(_))
        | (ValueKind::Time, Value::Text(_) | Value::Date(_))
        | (ValueKind::Table(_), Value::Table(_)) => return None,
        (ValueKind::Integer { least, most }, Value::Integer(number)) => {
            let fits = u64::try_from(*number).is_ok_and(|number| (least..=most).contains(&number));
            (!fits).then_some(node)
        }
        (ValueKind::Choice(_) | ValueKind::FlagOr(_) | ValueKind::ChoiceOrList(_), Value::Text(text)) => {
            word_of(key.kind, text).is_none().then_some(node)
        }
        (ValueKind::List, Value::List(items)) => items.iter().find(|item| !is_text(item)),
        (ValueKind::ChoiceOrList(_), Value::List(items)) => {
            items.iter().find(|item| !matches!(item.value, Value::Text(_) | Value::Integer(_)))
        }
        (ValueKind::Map, Value::Table(entries)) => {
            entries.iter().map(|entry| &entry.node).find(|item| !is_text(item))
        }
        (ValueKind::ListMap, Value::Table(entries)) => {
            let mut lists = entries.iter().map(|entry| &entry.node);
            lists.find_map(|list| match &list.value {
                Value::List(items) => items.iter().find(|item| !is_text(item)),
                _ => Some(list),
            })
        }
        (ValueKind::Tables(_), Value::Table(entries)) => {
            entries.iter().map(|entry| &entry.node).find(|item| !matches!(item.value, Value::Table(_)))
        }
        (ValueKind::Rows(_), Value::List(items)) => not_a_row(items),
        (ValueKind::NamedRows(_), Value::Table(entries)) => {
            let mut lists = entries.iter().map(|entry| &entry.node);
            lists.find_map(|list| match &list.value {
                Value::List(items) => not_a_row(items),
                _ => Some(list),
            })
        }
        _ => Some(node),
    }?;
    let expected = key.kind.describe();
    let found = match (key.kind, &wrong.value) {
        // If the kind is right, only the value itself shows what is wrong. Such values are words and numbers; a longer
        // text is here by accident and may be a secret, so it is not repeated.
        (ValueKind::Integer { .. }, Value::Integer(number)) => format!("`{number}`"),
        (ValueKind::Choice(_) | ValueKind::FlagOr(_) | ValueKind::ChoiceOrList(_), Value::Text(text)) => {
            match text.len() {
                ..=20 => format!("`\"{text}\"`"),
                _ => "another string".to_owned(),
            }
        }
        (_, value) => value.describe().to_owned(),
    };
    Some(
        findings
            .diagnostic(format!("`{}` must be {expected}, found {found}", key.name), &wrong.span)
            .label(match meant_word(key.kind, &wrong.value) {
                Some(word) => format!("did you mean `\"{word}\"`?"),
                None => format!("expected {expected}"),
            })
            .help(key.gist()),
    )
}

fn not_a_row(items: &[Node]) -> Option<&Node> {
    items.iter().find(|item| !matches!(item.value, Value::Table(_)))
}

/// Which of the words of a key is written: in any case, and in camelCase like the key itself.
fn word_of(kind: ValueKind, text: &str) -> Option<&'static str> {
    let (ValueKind::Choice(words) | ValueKind::FlagOr(words) | ValueKind::ChoiceOrList(words)) = kind else {
        return None;
    };
    let camel_case = |word: &&&str| word.replace('_', "").eq_ignore_ascii_case(text);
    let word = words.iter().find(|word| word.eq_ignore_ascii_case(text));
    word.or_else(|| words.iter().find(camel_case)).copied()
}

fn meant_word(kind: ValueKind, value: &Value) -> Option<&'static str> {
    let (
        ValueKind::Choice(words) | ValueKind::FlagOr(words) | ValueKind::ChoiceOrList(words),
        Value::Text(text),
    ) = (kind, value)
    else {
        return None;
    };
    let distance = |word: &str| strsim::damerau_levenshtein(&text.to_lowercase(), word);
    words.iter().copied().filter(|word| distance(word) <= 2).min_by_key(|word| distance(word))
}
