//! Edits of the text of a `bridgehead.toml`.
//!
//! What must stay true: an edit changes the entry it names and no other byte. The parser says where an entry begins and ends,
//! and the edit is made in the text. Where that does not work (an entry within a table on one line), the whole file is
//! written anew from its tree, which keeps comments and order. Either way the result is read again: it must mean what the
//! file meant before, with that one difference. Otherwise it is not used.

use std::ops::Range;

use serde_json::{Map, Value as Meaning};
use toml_edit::{Document, DocumentMut, Item, Table, TableLike, Value};

use super::entry::ServerEntry;

/// The file writes this entry in a form that only a person can edit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ByHand;

const SERVERS: &str = "servers";

/// The text with a new server at its end, or with a server's entry replaced at its place.
pub(super) fn put(text: &str, name: &str, entry: &ServerEntry) -> Result<String, ByHand> {
    let document = read(text)?;
    let table = entry.table();
    let mut expected = meaning(document.as_table());
    within(&mut expected, SERVERS, |servers| drop(servers.insert(name.to_owned(), of_table(&table))));
    let block = block(name, entry, &table);
    let in_text = match place(&document, text, &[SERVERS, name]) {
        Some(old) => {
            let mut all = own_block(text, old.clone());
            if entry.comment.is_none() {
                all.start = line_start(text, old.start);
            }
            splice(text, &all, &block)
        }
        None if exists(&document, name) => None,
        None => Some(appended(text, &block)),
    };
    let in_tree = || {
        let mut document = editable(text)?;
        let servers = document.get_mut(SERVERS)?;
        let on_one_line = servers.is_inline_table() || servers.get(name).is_some_and(Item::is_value);
        let item = match on_one_line {
            true => toml_edit::value(table.clone().into_inline_table()),
            false => Item::Table(table.clone()),
        };
        servers.as_table_like_mut()?.insert(name, item);
        Some(document)
    };
    choose(text, &expected, in_text, in_tree)
}

/// The text without a server.
pub(super) fn remove(text: &str, name: &str) -> Result<String, ByHand> {
    let document = read(text)?;
    let mut expected = meaning(document.as_table());
    within(&mut expected, SERVERS, |servers| drop(servers.remove(name)));
    let in_text =
        place(&document, text, &[SERVERS, name]).and_then(|old| splice(text, &own_block(text, old), ""));
    let in_tree = || {
        let mut document = editable(text)?;
        document.get_mut(SERVERS)?.as_table_like_mut()?.remove(name)?;
        Some(document)
    };
    choose(text, &expected, in_text, in_tree)
}

/// The text with a server turned off or on.
pub(super) fn turn(text: &str, name: &str, on: bool) -> Result<String, ByHand> {
    let document = read(text)?;
    let mut expected = meaning(document.as_table());
    within(&mut expected, SERVERS, |servers| {
        within(servers, name, |server| {
            server.retain(|key, _| key != "disabled" && key != "enabled");
            if !on {
                server.insert("disabled".to_owned(), Meaning::Bool(true));
            }
        });
    });
    let in_text = || {
        let table = document.get(SERVERS)?.get(name)?.as_table()?;
        let header = place(&document, text, &[SERVERS, name])?;
        let mut edits: Vec<(Range<usize>, String)> = Vec::new();
        for key in ["disabled", "enabled"] {
            if let Some((key, item)) = table.get_key_value(key) {
                edits.push((whole_lines(text, key.span()?.start..item.span()?.end), String::new()));
            }
        }
        if !on {
            let at = line_end(text, header.start);
            edits.push((at..at, with_line_ends(text, "disabled = true\n")));
        }
        edits.sort_by_key(|(range, _)| range.start);
        let mut after = text.to_owned();
        for (range, new) in edits.into_iter().rev() {
            after.replace_range(range, &new);
        }
        Some(after)
    };
    let in_tree = || {
        let mut document = editable(text)?;
        let server = document.get_mut(SERVERS)?.get_mut(name)?.as_table_like_mut()?;
        server.remove("disabled");
        server.remove("enabled");
        if !on {
            server.insert("disabled", toml_edit::value(true));
        }
        Some(document)
    };
    choose(text, &expected, in_text(), in_tree)
}

/// The text whose `[secrets] env_file` names this file.
pub(super) fn name_env_file(text: &str, file: &str) -> Result<String, ByHand> {
    let document = read(text)?;
    let mut expected = meaning(document.as_table());
    within(&mut expected, "secrets", |secrets| drop(secrets.insert("env_file".to_owned(), file.into())));
    let line = format!("env_file = {}\n", Value::from(file));
    let in_text = match place(&document, text, &["secrets"]) {
        Some(header) => {
            let at = line_end(text, header.start);
            splice(text, &(at..at), &line)
        }
        None if document.contains_key("secrets") => None,
        None => Some(appended(text, &format!("[secrets]\n{line}"))),
    };
    let in_tree = || {
        let mut document = editable(text)?;
        document.get_mut("secrets")?.as_table_like_mut()?.insert("env_file", toml_edit::value(file));
        Some(document)
    };
    choose(text, &expected, in_text, in_tree)
}

/// The names of all servers, in order.
pub(super) fn names(text: &str) -> Vec<String> {
    let Some(document) = editable(text) else { return Vec::new() };
    let servers = document.get(SERVERS).and_then(Item::as_table_like);
    servers.map(|servers| servers.iter().map(|(name, _)| name.to_owned()).collect()).unwrap_or_default()
}

/// A server as it is written.
pub(super) fn get(text: &str, name: &str) -> Option<ServerEntry> {
    let document = editable(text)?;
    ServerEntry::read(document.get(SERVERS)?.get(name)?.as_table_like()?)
}

/// The first candidate that means what it should.
fn choose(
    text: &str,
    expected: &Map<String, Meaning>,
    in_text: Option<String>,
    in_tree: impl FnOnce() -> Option<DocumentMut>,
) -> Result<String, ByHand> {
    let means = |candidate: &String| {
        // A server without a table of its own may leave an empty one behind.
        read(candidate)
            .is_ok_and(|read| without_empty(meaning(read.as_table())) == without_empty(expected.clone()))
    };
    let whole = || Some(with_line_ends(text, &in_tree()?.to_string()));
    in_text.filter(means).or_else(|| whole().filter(means)).ok_or(ByHand)
}

fn without_empty(mut meaning: Map<String, Meaning>) -> Map<String, Meaning> {
    if meaning.get(SERVERS).and_then(Meaning::as_object).is_some_and(Map::is_empty) {
        meaning.remove(SERVERS);
    }
    meaning
}

fn read(text: &str) -> Result<Document<&str>, ByHand> {
    Document::parse(text).map_err(|_| ByHand)
}

fn editable(text: &str) -> Option<DocumentMut> {
    text.parse().ok()
}

fn exists(document: &Document<&str>, name: &str) -> bool {
    document.get(SERVERS).and_then(Item::as_table_like).is_some_and(|servers| servers.contains_key(name))
}

/// Where a table with a header is written: from its `[` to the end of its last value, tables within it included. `None` if
/// something else is written between these, or it has no header.
fn place(document: &Document<&str>, text: &str, path: &[&str]) -> Option<Range<usize>> {
    let mut table = document.as_table();
    for key in path {
        table = table.get(key)?.as_table()?;
    }
    if table.is_implicit() || table.is_dotted() {
        return None;
    }
    let start = table.span()?.start;
    let end = line_end(text, last(table));
    let mut others = Vec::new();
    headers(document.as_table(), &mut Vec::new(), &mut others);
    let between = others.iter().filter(|(at, _)| (start..end).contains(at));
    let is_own =
        |of: &Vec<String>| of.len() >= path.len() && of.iter().zip(path).all(|(one, other)| one == other);
    between.into_iter().all(|(_, of)| is_own(of)).then_some(start..end)
}

/// Where each header begins, and the table that it begins.
fn headers(table: &Table, path: &mut Vec<String>, found: &mut Vec<(usize, Vec<String>)>) {
    for (key, item) in table.iter() {
        path.push(key.to_owned());
        let tables: Vec<&Table> = match item {
            Item::Table(table) => vec![table],
            Item::ArrayOfTables(tables) => tables.iter().collect(),
            _ => Vec::new(),
        };
        for table in tables {
            if let (false, false, Some(span)) = (table.is_implicit(), table.is_dotted(), table.span()) {
                found.push((span.start, path.clone()));
            }
            headers(table, path, found);
        }
        path.pop();
    }
}

/// The end of the last thing in a table.
fn last(table: &Table) -> usize {
    let own = table.span().map_or(0, |span| span.end);
    let inner = table.iter().map(|(_, item)| match item {
        Item::Table(table) => last(table),
        Item::ArrayOfTables(tables) => tables.iter().map(last).max().unwrap_or(0),
        item => item.span().map_or(0, |span| span.end),
    });
    inner.max().unwrap_or(0).max(own)
}

/// A block with the comment lines directly above it and the blank lines after it.
fn own_block(text: &str, block: Range<usize>) -> Range<usize> {
    let mut start = line_start(text, block.start);
    while start > 0 {
        let above = line_start(text, start - 1);
        if !text[above..start].trim_start().starts_with('#') {
            break;
        }
        start = above;
    }
    // A comment at the top of the file is about the file.
    if start == 0 && block.start > 0 && text[..block.start].trim_start().starts_with('#') {
        start = line_start(text, block.start);
    }
    let mut end = block.end;
    while end < text.len() && text[end..line_end(text, end)].trim().is_empty() {
        end = line_end(text, end);
    }
    start..end
}

/// The text with a range replaced. A block that is followed by something else is separated from it by an empty line.
fn splice(text: &str, range: &Range<usize>, new: &str) -> Option<String> {
    let (before, after) = (text.get(..range.start)?, text.get(range.end..)?);
    let new = with_line_ends(text, new);
    let gap = match !new.is_empty() && new.contains('[') && !after.is_empty() {
        true => with_line_ends(text, "\n"),
        false => String::new(),
    };
    let mut whole = format!("{before}{new}{gap}{after}");
    if after.is_empty() && new.is_empty() {
        whole.truncate(before.trim_end().len());
        if !whole.is_empty() {
            whole.push_str(&with_line_ends(text, "\n"));
        }
    }
    Some(whole)
}

/// The text with a block at its end, after an empty line.
fn appended(text: &str, block: &str) -> String {
    let end = with_line_ends(text, "\n");
    let mut whole = text.to_owned();
    if !whole.is_empty() && !whole.ends_with('\n') {
        whole.push_str(&end);
    }
    let has_gap = whole.is_empty() || whole.ends_with("\n\n") || whole.ends_with("\n\r\n");
    if !has_gap {
        whole.push_str(&end);
    }
    whole.push_str(&with_line_ends(text, block));
    whole
}

/// The lines of a new entry.
fn block(name: &str, entry: &ServerEntry, table: &Table) -> String {
    let mut servers = Table::new();
    servers.set_implicit(true);
    let mut table = table.clone();
    table.decor_mut().set_prefix(entry.comment_lines());
    for (_, item) in table.iter_mut() {
        if let Some(inner) = item.as_table_mut() {
            inner.decor_mut().set_prefix("\n");
        }
    }
    servers.insert(name, Item::Table(table));
    let mut document = DocumentMut::new();
    document.insert(SERVERS, Item::Table(servers));
    document.to_string()
}

/// New lines as this text ends its lines.
fn with_line_ends(text: &str, new: &str) -> String {
    match text.contains("\r\n") {
        true => new.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => new.to_owned(),
    }
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |end| end + 1)
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

fn whole_lines(text: &str, range: Range<usize>) -> Range<usize> {
    line_start(text, range.start)..line_end(text, range.end)
}

/// What a table means, whatever it looks like.
fn meaning(table: &dyn TableLike) -> Map<String, Meaning> {
    table.iter().map(|(key, item)| (key.to_owned(), of_item(item))).collect()
}

fn of_table(table: &dyn TableLike) -> Meaning {
    Meaning::Object(meaning(table))
}

fn of_item(item: &Item) -> Meaning {
    match item {
        Item::None => Meaning::Null,
        Item::Value(value) => of_value(value),
        Item::Table(table) => of_table(table),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| of_table(table)).collect(),
    }
}

fn of_value(value: &Value) -> Meaning {
    match value {
        Value::String(text) => Meaning::from(text.value().as_str()),
        Value::Integer(number) => Meaning::from(*number.value()),
        Value::Float(number) => Meaning::from(number.value().to_string()),
        Value::Boolean(flag) => Meaning::from(*flag.value()),
        Value::Datetime(time) => Meaning::from(time.value().to_string()),
        Value::Array(items) => items.iter().map(of_value).collect(),
        Value::InlineTable(table) => of_table(table),
    }
}

/// Edits the members of a table, which is made if it is missing.
fn within(parent: &mut Map<String, Meaning>, key: &str, edit: impl FnOnce(&mut Map<String, Meaning>)) {
    let mut members = match parent.remove(key) {
        Some(Meaning::Object(members)) => members,
        _ => Map::new(),
    };
    edit(&mut members);
    parent.insert(key.to_owned(), Meaning::Object(members));
}

#[cfg(test)]
mod tests {
    use super::super::entry::EntryLaunch;
    use super::*;

    fn program(command: &str) -> ServerEntry {
        ServerEntry::new(EntryLaunch::Program {
            command: command.to_owned(),
            args: vec!["-y".to_owned(), "a b".to_owned()],
            cwd: None,
        })
    }

    const FILE: &str = "# The gateway of the team.\n\n[gateway]\nmode = \"full\" # all\n\n# notes\n[servers.notes]\n\
                        command  =  'notes' # as it is\n\n[servers.notes.env]\nA = \"1\"\n\n# search\n# second line\n\
                        [servers.search]\nurl = \"https://h/mcp\"\ndisabled = true # too slow\n\n# [servers.old]\n";

    /// JOIN-3: a new server comes last, and every other byte stays: comments, order, blanks and line ends.
    #[test]
    fn a_new_server_comes_last() {
        let added = "\n# for tests\n[servers.\"x.y\"]\ncommand = \"run\"\nargs = [\"-y\", \"a b\"]\n";
        let mut entry = program("run");
        entry.comment = Some("for tests".to_owned());
        assert_eq!(put(FILE, "x.y", &entry).unwrap(), format!("{FILE}{added}"));
        assert_eq!(put("", "x.y", &entry).unwrap(), &added[1..]);
        assert_eq!(put("a = 1", "x.y", &entry).unwrap(), format!("a = 1\n{added}"));
        let windows = FILE.replace('\n', "\r\n");
        assert_eq!(
            put(&windows, "x.y", &entry).unwrap(),
            format!("{windows}{}", added.replace('\n', "\r\n"))
        );
        let tabs = "[servers.a]\n\tcommand = \"x\"\t# c\n";
        assert_eq!(put(tabs, "x.y", &entry).unwrap(), format!("{tabs}{added}"));
        assert_eq!(names(&put(FILE, "x.y", &entry).unwrap()), ["notes", "search", "x.y"]);
    }

    /// JOIN-3: a server on one line with others gets a neighbour there.
    #[test]
    fn other_forms_of_tables() {
        let after =
            put("servers = { a = { command = \"x\" } } # all\nz = 1\n", "b", &program("run")).unwrap();
        let expected = "servers = { a = { command = \"x\" } , b = { command = \"run\", args = [\"-y\", \"a b\"] } } # all\nz = 1\n";
        assert_eq!(after.replace(" ,", ","), expected.replace(" ,", ","));
        assert_eq!(names(&after), ["a", "b"]);
        assert_eq!(names(&remove(&after, "a").unwrap()), ["b"]);
        for text in [
            "[servers]\na = { command = \"x\" }\n",
            "servers.a.command = \"x\"\n",
            "[servers]\na.command = 'x'\n",
        ] {
            let after = put(text, "b", &program("run")).unwrap();
            assert!(after.starts_with(text), "{after}");
            assert_eq!(names(&after), ["a", "b"]);
            assert_eq!(names(&remove(&after, "a").unwrap()), ["b"], "{after}");
            assert_eq!(remove(&after, "b").unwrap(), text);
            let off = turn(&after, "a", false).unwrap();
            assert!(
                get(&off, "a").unwrap().disabled.is_some() && get(&off, "b").unwrap().disabled.is_none(),
                "{off}"
            );
            assert!(get(&turn(&off, "a", true).unwrap(), "a").unwrap().disabled.is_none());
        }
    }

    /// JOIN-3: a removed server takes its own comment and its tables with it, and nothing else.
    #[test]
    fn a_removed_server() {
        let without_notes = "# The gateway of the team.\n\n[gateway]\nmode = \"full\" # all\n\n# search\n# second line\n\
                             [servers.search]\nurl = \"https://h/mcp\"\ndisabled = true # too slow\n\n# [servers.old]\n";
        assert_eq!(remove(FILE, "notes").unwrap(), without_notes);
        let without_search = "# The gateway of the team.\n\n[gateway]\nmode = \"full\" # all\n\n# notes\n[servers.notes]\n\
                              command  =  'notes' # as it is\n\n[servers.notes.env]\nA = \"1\"\n\n# [servers.old]\n";
        assert_eq!(remove(FILE, "search").unwrap(), without_search);
        let windows = FILE.replace('\n', "\r\n");
        assert_eq!(remove(&windows, "notes").unwrap(), without_notes.replace('\n', "\r\n"));
        assert_eq!(
            remove("# about the file\n[servers.a]\ncommand = 'x'\n", "a").unwrap(),
            "# about the file\n"
        );
        let last = "[gateway]\n\n[servers.a]\ncommand = 'x'\n\n[servers.b]\ncommand = 'y'";
        assert_eq!(remove(last, "b").unwrap(), "[gateway]\n\n[servers.a]\ncommand = 'x'\n");
        // The tables of one server may be apart.
        let apart = "[servers.a]\ncommand = 'x'\n[servers.b]\ncommand = 'y'\n[servers.a.env]\nA = '1'\n";
        assert_eq!(remove(apart, "a").unwrap(), "[servers.b]\ncommand = 'y'\n");
        // A header within a text is none.
        let text =
            "[servers.a]\ncommand = 'x'\nargs = ['''\n[servers.b]\n''']\n\n[servers.b]\ncommand = 'y'\n";
        assert_eq!(remove(text, "a").unwrap(), "[servers.b]\ncommand = 'y'\n");
        assert_eq!(remove("= broken", "a"), Err(ByHand));
    }

    /// JOIN-3: a replaced server stays at its place, with the comment above it.
    #[test]
    fn a_replaced_server() {
        let after = put(FILE, "notes", &program("run")).unwrap();
        let expected = FILE.replace(
            "command  =  'notes' # as it is\n\n[servers.notes.env]\nA = \"1\"\n",
            "command = \"run\"\nargs = [\"-y\", \"a b\"]\n",
        );
        assert_eq!(after, expected);
    }

    /// JOIN-3: turning a server off and on again restores the file.
    #[test]
    fn off_and_on() {
        let off = turn(FILE, "notes", false).unwrap();
        assert_eq!(off, FILE.replace("[servers.notes]\n", "[servers.notes]\ndisabled = true\n"));
        assert_eq!(turn(&off, "notes", true).unwrap(), FILE);
        assert_eq!(turn(FILE, "search", true).unwrap(), FILE.replace("disabled = true # too slow\n", ""));
        assert_eq!(get(FILE, "search").unwrap().disabled.as_deref(), Some("too slow"));
        let other = "[servers.a]\r\ncommand = 'x'\r\nenabled = false\r\n";
        assert_eq!(turn(other, "a", true).unwrap(), "[servers.a]\r\ncommand = 'x'\r\n");
        assert_eq!(turn(other, "a", false).unwrap(), "[servers.a]\r\ndisabled = true\r\ncommand = 'x'\r\n");
    }

    #[test]
    fn the_file_of_secrets_is_named() {
        let named = "[secrets]\nenv_file = \"b.env\"\n";
        assert_eq!(name_env_file("", "b.env").unwrap(), named);
        assert_eq!(name_env_file("a = 1\n", "b.env").unwrap(), format!("a = 1\n\n{named}"));
        assert_eq!(
            name_env_file("[secrets]\nallow_group_read = true\n", "b.env").unwrap(),
            format!("{named}allow_group_read = true\n")
        );
        let inline = name_env_file("secrets = { allow_group_read = true }\n", "b.env").unwrap();
        assert!(inline.contains("env_file = \"b.env\" }"), "{inline}");
    }
}
