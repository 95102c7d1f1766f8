//! Edits of JSON, with the comments and trailing commas that people put there.
//!
//! The parser names the place of each token; the edits are splices between them. An entry is put last into its object. If the
//! file was strict JSON, it stays strict JSON.

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged as _;
use jsonc_parser::tokens::{Token, TokenAndRange};
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, ParseResult, parse_to_ast};
use serde_json::Value as Tree;

use super::{Added, EditError, Place, Shape, Splice, newline, set, splice};

/// The indentation of files that show none.
const UNIT: &str = "  ";

/// A text with its tokens.
struct Source<'t> {
    text: &'t str,
    tokens: Vec<TokenAndRange<'t>>,
    newline: &'static str,
}

pub(super) fn find(text: &str, place: Place<'_>) -> Result<Option<Tree>, EditError> {
    let (source, value) = Source::parse(text)?;
    let Some(value) = value else { return Ok(None) };
    let found = source.descend(source.object(&value, "the file")?, place.path)?;
    match found.rest.is_empty() {
        true => Ok(source.member(found.object, place.name)?.map(|member| member.value.clone().into())),
        false => Ok(None),
    }
}

/// A value as a tree; null if it is none.
pub(super) fn tree(text: &str) -> Tree {
    Source::parse(text).ok().and_then(|(_, value)| value).map_or(Tree::Null, Tree::from)
}

pub(super) fn written(text: &str, place: Place<'_>) -> Result<Option<String>, EditError> {
    let (source, value) = Source::parse(text)?;
    let Some(value) = value else { return Ok(None) };
    let found = source.descend(source.object(&value, "the file")?, place.path)?;
    let member = source.member(found.object, place.name)?.filter(|_| found.rest.is_empty());
    Ok(member.map(|member| source.slice(member.value.start(), member.value.end()).to_owned()))
}

pub(super) fn insert(text: &str, place: Place<'_>, value: &Shape) -> Result<(String, Added), EditError> {
    let (source, root) = Source::parse(text)?;
    let (edited, added) = match &root {
        None => source.insert_root(place, value),
        Some(root) => {
            let found = source.descend(source.object(root, "the file")?, place.path)?;
            if found.rest.is_empty()
                && let Some(member) = source.member(found.object, place.name)?
            {
                return Err(EditError::at(text, member.start(), format!("`{}` exists already", place.name)));
            }
            source.insert_below(root, &found, place, value)
        }
    };
    let mut expected = root.map_or(Tree::Null, Tree::from);
    set(&mut expected, place, Some(value.tree()));
    verify(text, &edited, &expected)?;
    Ok((edited, added))
}

pub(super) fn replace(text: &str, place: Place<'_>, value: &Shape) -> Result<String, EditError> {
    let (source, root) = Source::parse(text)?;
    let Some(root) = root else { return Ok(text.to_owned()) };
    let found = source.descend(source.object(&root, "the file")?, place.path)?;
    let (true, Some(member)) = (found.rest.is_empty(), source.member(found.object, place.name)?) else {
        return Ok(text.to_owned());
    };
    let new = match source.slice(found.object.start(), found.object.end()).contains('\n') {
        true => source.block(value, source.indent_of_line(member.start()), source.unit(&root)),
        false => source.inline(value, source.is_spaced(found.object)),
    };
    let edited = splice(text, &[Splice { start: member.value.start(), end: member.value.end(), with: new }]);
    let mut expected = Tree::from(root);
    set(&mut expected, place, Some(value.tree()));
    verify(text, &edited, &expected)?;
    Ok(edited)
}

pub(super) fn remove(text: &str, place: Place<'_>, added: Option<&Added>) -> Result<String, EditError> {
    let (source, root) = Source::parse(text)?;
    let Some(root) = root else { return Ok(text.to_owned()) };
    let top = source.object(&root, "the file")?;
    let mut objects = vec![top];
    for depth in 1..=place.path.len() {
        let found = source.descend(top, place.path.get(..depth).unwrap_or_default())?;
        if !found.rest.is_empty() {
            return Ok(text.to_owned());
        }
        objects.push(found.object);
    }
    let mut names: Vec<&str> = place.path.to_vec();
    names.push(place.name);
    let mut depth = place.path.len();
    let existing = added.map_or(depth, |added| added.existing.min(depth));
    let object_at = |depth: usize| objects.get(depth).copied().unwrap_or(top);
    if source.member(object_at(depth), place.name)?.is_none() {
        return Ok(text.to_owned());
    }
    // The tables that were made for the entry go with it, unless somebody else uses them.
    while depth > existing && source.is_alone(object_at(depth)) {
        depth -= 1;
    }
    let object = object_at(depth);
    let name = names.get(depth).copied().unwrap_or_default();
    let Some(member) = source.member(object, name)? else { return Ok(text.to_owned()) };
    let edited = source.remove_member(object, member, added);
    let edited = match added.and_then(|added| added.before.as_deref()) {
        Some(before) if depth == 0 && source.is_alone(object) => {
            source.without_root(object, before).unwrap_or(edited)
        }
        _ => edited,
    };
    let mut expected = Tree::from(root.clone());
    set(&mut expected, Place { path: place.path.get(..depth).unwrap_or_default(), name }, None);
    verify(text, &edited, &expected)?;
    Ok(edited)
}

/// Refuses an edit that did more or less than it should.
fn verify(text: &str, edited: &str, expected: &Tree) -> Result<(), EditError> {
    let made = Source::parse(edited).ok().map(|(_, value)| value.map_or(Tree::Null, Tree::from));
    let empty = expected.as_object().is_some_and(serde_json::Map::is_empty);
    match made {
        Some(made) if made == *expected || (empty && made.is_null()) => Ok(()),
        _ => Err(EditError::at(text, 0, "the text of this file cannot be edited safely; edit it by hand")),
    }
}

/// The innermost object that exists on a path, and the keys that are missing below it.
struct Found<'v, 't, 'k> {
    object: &'v Object<'t>,
    rest: &'k [&'k str],
}

impl<'t> Source<'t> {
    fn parse(text: &'t str) -> Result<(Self, Option<Value<'t>>), EditError> {
        let options = ParseOptions {
            allow_comments: true,
            allow_trailing_commas: true,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let collect = CollectOptions { comments: CommentCollectionStrategy::AsTokens, tokens: true };
        let ParseResult { value, tokens, .. } = parse_to_ast(text, &collect, &options).map_err(|error| {
            let message = error.kind().to_string();
            let mut letters = message.chars();
            let lower: String =
                letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default();
            EditError::at(text, error.range().start, lower)
        })?;
        Ok((Self { text, tokens: tokens.unwrap_or_default(), newline: newline(text) }, value))
    }

    fn object<'v>(&self, value: &'v Value<'t>, what: &str) -> Result<&'v Object<'t>, EditError> {
        value.as_object().ok_or_else(|| {
            EditError::at(self.text, value.start(), format!("{what} does not hold an object; correct it"))
        })
    }

    /// The member of this name. Two of them are an error, because readers differ in which one they use.
    fn member<'v>(
        &self,
        object: &'v Object<'t>,
        name: &str,
    ) -> Result<Option<&'v ObjectProp<'t>>, EditError> {
        let mut all = object.properties.iter().filter(|property| property.name.as_str() == name);
        let first = all.next();
        if let (Some(first), Some(second)) = (first, all.next()) {
            let line = EditError::at(self.text, first.start(), "").line;
            let message = format!("the key `{name}` is here and in line {line}; remove one of the two");
            return Err(EditError::at(self.text, second.start(), message));
        }
        Ok(first)
    }

    fn descend<'v, 'k>(
        &self,
        root: &'v Object<'t>,
        path: &'k [&'k str],
    ) -> Result<Found<'v, 't, 'k>, EditError> {
        let mut found = Found { object: root, rest: path };
        while let Some((key, rest)) = found.rest.split_first() {
            let Some(member) = self.member(found.object, key)? else { break };
            found = Found { object: self.object(&member.value, &format!("`{key}`"))?, rest };
        }
        Ok(found)
    }

    fn slice(&self, start: usize, end: usize) -> &'t str {
        self.text.get(start..end).unwrap_or_default()
    }

    /// Tokens and comments inside an object, without its braces.
    fn inside(&self, object: &Object<'t>) -> impl DoubleEndedIterator<Item = &TokenAndRange<'t>> {
        let (start, end) = (object.start(), object.end());
        self.tokens.iter().filter(move |token| token.start() > start && token.end() < end)
    }

    /// The comma between `from` and the next token that is no comment.
    fn comma_after(&self, from: usize) -> Option<&TokenAndRange<'t>> {
        let mut after = self.tokens.iter().filter(|token| token.start() >= from && !is_comment(token));
        after.next().filter(|token| token.token == Token::Comma)
    }

    /// Whether an object has one member and no comment, beside the one in that member.
    fn is_alone(&self, object: &Object<'t>) -> bool {
        let [member] = object.properties.as_slice() else { return false };
        let outside =
            |token: &&TokenAndRange<'t>| token.end() <= member.start() || token.start() >= member.end();
        self.inside(object).filter(outside).all(|token| token.token == Token::Comma)
    }

    /// The blanks that the line of `at` begins with.
    fn indent_of_line(&self, at: usize) -> &'t str {
        let line = self.slice(0, at).rfind('\n').map_or(0, |end| end + 1);
        let line = self.text.get(line..).unwrap_or_default();
        let length = line.find(|letter| letter != ' ' && letter != '\t').unwrap_or(line.len());
        line.get(..length).unwrap_or_default()
    }

    /// Whether only blanks are before `at` in its line.
    fn starts_line(&self, at: usize) -> bool {
        let before = self.slice(0, at);
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        line > 0 && before.get(line..).unwrap_or_default().trim_matches([' ', '\t']).is_empty()
    }

    /// One step of indentation, as the first object shows it that has a member in a line of its own.
    fn unit(&self, root: &Value<'t>) -> &'t str {
        let mut open = vec![root];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(object) => {
                    let base = self.indent_of_line(object.start());
                    let own = object.properties.iter().find(|member| self.starts_line(member.start()));
                    let step = own.and_then(|own| self.indent_of_line(own.start()).strip_prefix(base));
                    if let Some(step) = step.filter(|step| !step.is_empty()) {
                        return step;
                    }
                    open.extend(object.properties.iter().rev().map(|member| &member.value));
                }
                Value::Array(array) => open.extend(array.elements.iter().rev()),
                _ => {}
            }
        }
        UNIT
    }

    /// Whether a blank follows the colons of an object in one line.
    fn is_spaced(&self, object: &Object<'t>) -> bool {
        let first = object.properties.first();
        first.is_none_or(|first| self.slice(first.name.end(), first.value.start()).contains(' '))
    }

    /// A value over several lines; `indent` is that of the line it begins in.
    fn block(&self, value: &Shape, indent: &str, unit: &str) -> String {
        let Shape::Table(members) = value else { return self.inline(value, true) };
        if members.is_empty() {
            return "{}".to_owned();
        }
        let inner = format!("{indent}{unit}");
        let lines: Vec<String> = members
            .iter()
            .map(|(name, value)| format!("{inner}{}: {}", quoted(name), self.block(value, &inner, unit)))
            .collect();
        let newline = self.newline;
        format!("{{{newline}{}{newline}{indent}}}", lines.join(&format!(",{newline}")))
    }

    /// A value in one line.
    fn inline(&self, value: &Shape, spaced: bool) -> String {
        let blank = if spaced { " " } else { "" };
        let comma = format!(",{blank}");
        match value {
            Shape::Text(text) => quoted(text),
            Shape::Flag(flag) => flag.to_string(),
            Shape::Written(text) => text.clone(),
            Shape::List(items) => {
                format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(&comma))
            }
            Shape::Table(members) => {
                let member = |(name, value): &(String, Shape)| {
                    format!("{}:{blank}{}", quoted(name), self.inline(value, spaced))
                };
                format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(&comma))
            }
        }
    }

    /// A text without any value gets one.
    fn insert_root(&self, place: Place<'_>, value: &Shape) -> (String, Added) {
        let added = Added { before: Some(self.text.to_owned()), ..Added::default() };
        let newline = self.newline;
        let kept = match self.text.trim().is_empty() {
            true => "",
            false => self.text,
        };
        let between = if kept.is_empty() || kept.ends_with('\n') { "" } else { newline };
        let object = self.block(&nested(place.path, place.name, value), "", UNIT);
        (format!("{kept}{between}{object}{newline}"), added)
    }

    /// Puts an entry last into the innermost object that exists.
    fn insert_below(
        &self,
        root: &Value<'t>,
        found: &Found<'_, 't, '_>,
        place: Place<'_>,
        value: &Shape,
    ) -> (String, Added) {
        let object = found.object;
        let (name, value) = match found.rest.split_first() {
            Some((first, rest)) => (*first, nested(rest, place.name, value)),
            None => (place.name, value.clone()),
        };
        let existing = place.path.len() - found.rest.len();
        let inner = self.slice(object.start() + 1, object.end() - 1);
        let blank = object.properties.is_empty().then(|| inner.to_owned());
        let last = self.inside(object).next_back().map_or(object.start() + 1, |token| token.end());
        let previous = object.properties.last();
        let trails = previous.is_some_and(|member| self.comma_after(member.end()).is_some());
        let in_one_line = previous.is_some() && !inner.contains('\n');
        let mut body = match in_one_line {
            true => {
                let spaced = self.is_spaced(object);
                let blank = if spaced { " " } else { "" };
                format!("{blank}{}:{blank}{}", quoted(name), self.inline(&value, spaced))
            }
            false => {
                let base = self.indent_of_line(object.start());
                let own = object.properties.iter().find(|member| self.starts_line(member.start()));
                let unit = self.unit(root);
                let indent = match own {
                    Some(own) => self.indent_of_line(own.start()).to_owned(),
                    None => format!("{base}{unit}"),
                };
                let newline = self.newline;
                format!("{newline}{indent}{}: {}", quoted(name), self.block(&value, &indent, unit))
            }
        };
        if trails {
            body.push(',');
        }
        if !in_one_line && !self.slice(last, object.end() - 1).contains('\n') {
            body.push_str(self.newline);
            body.push_str(self.indent_of_line(object.start()));
        }
        let comma = previous.filter(|_| !trails).map(|member| Splice::insert(member.end(), ","));
        let splices: Vec<Splice> = comma.into_iter().chain([Splice::insert(last, body)]).collect();
        (splice(self.text, &splices), Added { existing, blank, before: None })
    }

    /// The text without a member, with valid commas.
    fn remove_member(&self, object: &Object<'t>, member: &ObjectProp<'t>, added: Option<&Added>) -> String {
        let before = self.tokens.iter().rev().find(|token| token.end() <= member.start());
        let start = before.map_or(object.start() + 1, |token| token.end());
        let comma = self.comma_after(member.end());
        let end = comma.map_or(member.end(), |comma| comma.end());
        let next = self.tokens.iter().find(|token| token.start() >= end);
        let next = next.map_or(object.end() - 1, |token| token.start());
        let is_last = object.properties.last().is_some_and(|last| last.range == member.range);
        // The blanks before the member go with it if it has a line of its own or is the last one; else those after it. A line
        // comment needs the line end after it.
        let ends_line_comment = before.is_some_and(|token| matches!(token.token, Token::CommentLine(_)))
            && !self.slice(end, next).contains('\n');
        let takes_before = is_last || self.slice(start, member.start()).contains('\n');
        let (from, to) = match takes_before && !ends_line_comment {
            true => (start, end),
            false => (member.start(), next),
        };
        let mut splices = Vec::new();
        // If no comma follows the last member, the one before it becomes the last and loses its own.
        let previous = object.properties.iter().rev().find(|other| other.end() <= member.start());
        if let (true, None, Some(previous)) = (is_last, comma, previous)
            && let Some(comma) = self.comma_after(previous.end())
        {
            splices.push(Splice::cut(comma.start(), comma.end()));
        }
        match comma {
            // A comment between the member and its comma stays.
            Some(comma) if !self.slice(member.end(), comma.start()).trim().is_empty() => {
                splices.push(Splice::cut(from, member.end()));
                splices.push(Splice::cut(comma.start(), comma.end()));
            }
            _ => splices.push(Splice::cut(from, to)),
        }
        let edited = splice(self.text, &splices);
        if object.properties.len() > 1 {
            return edited;
        }
        // The object is empty now: it gets back what stood in it before, or becomes short.
        let (start, end) = (object.start() + 1, edited.len() + object.end() - 1 - self.text.len());
        let blank = added.and_then(|added| added.blank.as_deref()).unwrap_or_default();
        let squeezed = |text: &str| text.split_whitespace().collect::<String>();
        match squeezed(edited.get(start..end).unwrap_or_default()) == squeezed(blank) {
            true => splice(&edited, &[Splice { start, end, with: blank.to_owned() }]),
            false => edited,
        }
    }

    /// The text as it was before it held a value, if nothing else has changed.
    fn without_root(&self, object: &Object<'t>, before: &str) -> Option<String> {
        let outside =
            format!("{}{}", self.slice(0, object.start()), self.slice(object.end(), self.text.len()));
        (outside.trim() == before.trim()).then(|| before.to_owned())
    }
}

fn is_comment(token: &TokenAndRange<'_>) -> bool {
    matches!(token.token, Token::CommentLine(_) | Token::CommentBlock(_))
}

fn nested(path: &[&str], name: &str, value: &Shape) -> Shape {
    let entry = Shape::Table(vec![(name.to_owned(), value.clone())]);
    path.iter().rev().fold(entry, |inner, key| Shape::Table(vec![((*key).to_owned(), inner)]))
}

fn quoted(text: &str) -> String {
    Tree::from(text).to_string()
}
