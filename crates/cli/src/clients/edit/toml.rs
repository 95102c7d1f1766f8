//! Edits of TOML.
//!
//! The parser names the place of each header, key and value; the edits are splices of whole lines. (Its own writer ends every
//! line of the file in the same way, so it is not used.) An entry becomes a table of its own at the end of the file, or a member
//! of the inline table that all entries are in.

use std::ops::Range;

use serde_json::{Value as Tree, json};
use toml_edit::{Document, Item, Table, TableLike, Value};

use super::{Added, EditError, Place, Shape, Splice, newline, prune, set, splice};

pub(super) fn find(text: &str, place: Place<'_>) -> Result<Option<Tree>, EditError> {
    let document = parse(text)?;
    Ok(item(&document, place).map(tree))
}

pub(super) fn insert(text: &str, place: Place<'_>, value: &Shape) -> Result<(String, Added), EditError> {
    let document = parse(text)?;
    if item(&document, place).is_some() {
        let at = document_key(&document, place).unwrap_or_default();
        return Err(EditError::at(text, at, format!("`{}` exists already", place.name)));
    }
    let existing =
        (0..=place.path.len()).rev().find(|&depth| table_at(&document, place.path, depth).is_some());
    let existing = existing.unwrap_or_default();
    let around = table_at(&document, place.path, existing);
    let (edited, blank) = match (around, value) {
        (Some(Item::Value(Value::InlineTable(table))), _) if existing == place.path.len() => {
            (into_inline(text, table.span(), table.is_empty(), place.name, value), None)
        }
        (Some(Item::Table(table)), Shape::Text(_) | Shape::Flag(_) | Shape::List(_) | Shape::Written(_))
            if existing == place.path.len() && section(text, table).is_some() =>
        {
            (into_section(text, table, place.name, value), None)
        }
        _ => {
            let (edited, blank) = at_the_end(text, place, value);
            (edited, Some(blank))
        }
    };
    let mut expected = document_tree(&document);
    set(&mut expected, place, Some(value.tree()));
    verify(text, &edited, &expected)?;
    Ok((edited, Added { existing, blank, before: None }))
}

pub(super) fn replace(text: &str, place: Place<'_>, value: &Shape) -> Result<String, EditError> {
    let document = parse(text)?;
    let Some(Item::Value(old)) = item(&document, place) else { return Ok(text.to_owned()) };
    let Some(span) = old.span() else { return Ok(text.to_owned()) };
    let edited = splice(text, &[Splice { start: span.start, end: span.end, with: inline(value) }]);
    let mut expected = document_tree(&document);
    set(&mut expected, place, Some(value.tree()));
    verify(text, &edited, &expected)?;
    Ok(edited)
}

pub(super) fn remove(text: &str, place: Place<'_>, added: Option<&Added>) -> Result<String, EditError> {
    let document = parse(text)?;
    let Some(found) = item(&document, place) else { return Ok(text.to_owned()) };
    let parent = table_at(&document, place.path, place.path.len());
    let edited = match (parent, found) {
        (Some(Item::Value(Value::InlineTable(_))), Item::Value(value)) => {
            let key = document_key(&document, place);
            out_of_inline(text, key.zip(value.span().map(|span| span.end)))
        }
        _ => {
            let mut lines = Vec::new();
            whole_lines(text, found, &mut lines);
            lines.sort_by_key(|range| range.start);
            without_lines(text, &lines, added)
        }
    };
    let mut expected = document_tree(&document);
    set(&mut expected, place, None);
    let mut made = parse(&edited).map(|document| document_tree(&document)).unwrap_or_default();
    // An empty table that only existed through the entry is gone with it.
    prune(&mut expected, place.path, 0);
    prune(&mut made, place.path, 0);
    match made == expected {
        true => Ok(edited),
        false => Err(unsafe_to_edit(text)),
    }
}

fn unsafe_to_edit(text: &str) -> EditError {
    EditError::at(text, 0, "the text of this file cannot be edited safely; edit it by hand")
}

fn verify(text: &str, edited: &str, expected: &Tree) -> Result<(), EditError> {
    match parse(edited) {
        Ok(document) if document_tree(&document) == *expected => Ok(()),
        _ => Err(unsafe_to_edit(text)),
    }
}

fn parse(text: &str) -> Result<Document<&str>, EditError> {
    Document::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        EditError::at(text, at, error.message().trim().replace('\n', "; "))
    })
}

/// The table that the first `depth` keys of a path lead to.
fn table_at<'d>(document: &'d Document<&str>, path: &[&str], depth: usize) -> Option<&'d Item> {
    let mut at = document.as_item();
    for key in path.get(..depth)? {
        at = at.as_table_like()?.get(key)?;
    }
    at.is_table_like().then_some(at)
}

fn item<'d>(document: &'d Document<&str>, place: Place<'_>) -> Option<&'d Item> {
    table_at(document, place.path, place.path.len())?.as_table_like()?.get(place.name)
}

/// Where the key of an entry begins.
fn document_key(document: &Document<&str>, place: Place<'_>) -> Option<usize> {
    let table = table_at(document, place.path, place.path.len())?.as_table_like()?;
    Some(table.key(place.name)?.span()?.start)
}

/// Writes a new table, with all its keys in the header, behind everything else.
fn at_the_end(text: &str, place: Place<'_>, value: &Shape) -> (String, String) {
    let newline = newline(text);
    let blank = match text {
        "" => String::new(),
        _ if text.ends_with('\n') => newline.to_owned(),
        _ => newline.repeat(2),
    };
    let keys: Vec<String> = place.path.iter().copied().chain([place.name]).map(key).collect();
    let body = match value {
        Shape::Table(members) => {
            let lines: Vec<String> =
                members.iter().map(|(name, value)| format!("{} = {}", key(name), inline(value))).collect();
            std::iter::once(format!("[{}]", keys.join("."))).chain(lines).collect::<Vec<_>>().join(newline)
        }
        _ => match keys.split_last() {
            Some((last, above)) if !above.is_empty() => {
                format!("[{}]{newline}{last} = {}", above.join("."), inline(value))
            }
            _ => format!("{} = {}", keys.join("."), inline(value)),
        },
    };
    let end = if text.is_empty() || text.ends_with('\n') { newline } else { "" };
    (format!("{text}{blank}{body}{end}"), blank)
}

/// Writes a member behind the others of a table that has a header.
fn into_section(text: &str, table: &Table, name: &str, value: &Shape) -> String {
    let end = section(text, table).map_or(text.len(), |range| range.end);
    let newline = newline(text);
    let line = format!("{} = {}", key(name), inline(value));
    let with = match text.get(..end).is_some_and(|before| before.ends_with('\n')) {
        true => format!("{line}{newline}"),
        false => format!("{newline}{line}"),
    };
    splice(text, &[Splice::insert(end, with)])
}

/// Writes a member behind the others of an inline table.
fn into_inline(text: &str, span: Option<Range<usize>>, empty: bool, name: &str, value: &Shape) -> String {
    let Some(span) = span else { return text.to_owned() };
    let inner = text.get(span.start + 1..span.end - 1).unwrap_or_default();
    let at = span.start + 1 + inner.trim_end().len();
    let member = format!("{} = {}", key(name), inline(value));
    let with = match empty {
        true => format!(" {member} "),
        false => format!(", {member}"),
    };
    splice(text, &[Splice::insert(at, with)])
}

/// Takes a member out of an inline table, with the comma on one side.
fn out_of_inline(text: &str, span: Option<(usize, usize)>) -> String {
    let Some((start, end)) = span else { return text.to_owned() };
    let (before, after) = (text.get(..start).unwrap_or_default(), text.get(end..).unwrap_or_default());
    let cut = match before.trim_end().strip_suffix(',') {
        Some(before) => Splice::cut(before.len(), end),
        None => {
            let rest = after.trim_start();
            let rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            let start = if rest.starts_with('}') { before.trim_end().len() } else { start };
            Splice::cut(start, text.len() - rest.len())
        }
    };
    splice(text, &[cut])
}

/// The lines of everything that an entry consists of.
fn whole_lines(text: &str, item: &Item, lines: &mut Vec<Range<usize>>) {
    match item {
        Item::None => {}
        Item::Value(value) => lines.extend(value.span().map(|span| lines_of(text, &span))),
        Item::Table(table) => {
            lines.extend(section(text, table));
            for (_, inner) in table.iter() {
                if !(section(text, table).is_some() && is_line(inner)) {
                    whole_lines(text, inner, lines);
                }
            }
        }
        Item::ArrayOfTables(tables) => {
            for table in tables {
                whole_lines(text, &Item::Table(table.clone()), lines);
            }
        }
    }
}

/// Whether a member is a line of its table, or several with dotted keys.
fn is_line(item: &Item) -> bool {
    match item {
        Item::Value(_) => true,
        Item::Table(table) => table.is_dotted(),
        _ => false,
    }
}

/// The lines from the header of a table to its last member. `None` if it has no header.
fn section(text: &str, table: &Table) -> Option<Range<usize>> {
    let header =
        table.span().filter(|span| !span.is_empty() && !table.is_dotted() && !table.is_implicit())?;
    let mut range = lines_of(text, &header);
    let mut open: Vec<&Table> = vec![table];
    while let Some(table) = open.pop() {
        for (_, inner) in table.iter() {
            match inner {
                Item::Value(value) => {
                    if let Some(span) = value.span() {
                        range.end = range.end.max(lines_of(text, &span).end);
                    }
                }
                Item::Table(inner) if inner.is_dotted() => open.push(inner),
                _ => {}
            }
        }
    }
    Some(range)
}

/// The lines that a span touches, with the end of the last one.
fn lines_of(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let end =
        text.get(span.end..).and_then(|after| after.find('\n')).map_or(text.len(), |at| span.end + at + 1);
    start..end
}

/// Cuts lines, and the blank that was put before them.
fn without_lines(text: &str, lines: &[Range<usize>], added: Option<&Added>) -> String {
    let mut splices: Vec<Splice> = Vec::new();
    for range in lines {
        match splices.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => splices.push(Splice::cut(range.start, range.end)),
        }
    }
    if let Some(first) = splices.first_mut() {
        let before = text.get(..first.start).unwrap_or_default();
        let line = newline(text);
        let blank = match added.map(|added| added.blank.as_deref()) {
            Some(blank) => blank.unwrap_or_default(),
            None if before.ends_with(&line.repeat(2)) => line,
            None => "",
        };
        if let Some(before) = before.strip_suffix(blank) {
            first.start = before.len();
            // What follows begins a line, and the line before it may have no other end.
            if first.end < text.len() && !before.ends_with('\n') {
                first.start += blank.find('\n').map_or(0, |end| end + 1);
            }
        }
    }
    splice(text, &splices)
}

/// A value in one line.
fn inline(value: &Shape) -> String {
    match value {
        Shape::Text(text) => Value::from(text.as_str()).to_string(),
        Shape::Flag(flag) => flag.to_string(),
        // It is JSON, and only ever comes from such a file; the check after the edit refuses it.
        Shape::Written(text) => Value::from(text.as_str()).to_string(),
        Shape::List(items) => {
            let items: Vec<String> =
                items.iter().map(|item| Value::from(item.as_str()).to_string()).collect();
            format!("[{}]", items.join(", "))
        }
        Shape::Table(members) if members.is_empty() => "{}".to_owned(),
        Shape::Table(members) => {
            let members: Vec<String> =
                members.iter().map(|(name, value)| format!("{} = {}", key(name), inline(value))).collect();
            format!("{{ {} }}", members.join(", "))
        }
    }
}

fn key(name: &str) -> String {
    toml_edit::Key::new(name).to_string()
}

fn document_tree(document: &Document<&str>) -> Tree {
    tree(document.as_item())
}

fn tree(item: &Item) -> Tree {
    match item {
        Item::None => Tree::Null,
        Item::Value(value) => value_tree(value),
        Item::Table(table) => table_tree(table),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| table_tree(table)).collect(),
    }
}

fn table_tree(table: &dyn TableLike) -> Tree {
    table.iter().map(|(name, item)| (name.to_owned(), tree(item))).collect()
}

fn value_tree(value: &Value) -> Tree {
    match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(number) => (*number.value()).into(),
        Value::Float(number) => json!(*number.value()),
        Value::Boolean(flag) => (*flag.value()).into(),
        Value::Datetime(time) => time.value().to_string().into(),
        Value::Array(items) => items.iter().map(value_tree).collect(),
        Value::InlineTable(table) => table_tree(table),
    }
}
