//! Edits members of a JSON object and leaves every other byte unchanged.

mod skim;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::de::{Error, IgnoredAny};
use smallvec::SmallVec;

use crate::raw::text_of;
use crate::{NotJson, Raw, folds_alike};

/// A stretch of an edited object up to this size is copied: that costs less than counting references to it.
/// Longer ones stay slices of the original message.
const COPIED: usize = 16 * 1024;

/// JSON text as a sequence of slices, most often just one. Long stretches are slices of the original message.
#[derive(Debug, Clone, Default)]
pub struct Spliced(SmallVec<[Bytes; 1]>);

impl Spliced {
    /// Its length in bytes when written out.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The slices.
    #[inline]
    pub fn parts(&self) -> &[Bytes] {
        &self.0
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// Writes it out.
    #[inline]
    pub fn write_to(&self, out: &mut BytesMut) {
        out.reserve(self.len());
        for part in &self.0 {
            out.extend_from_slice(part);
        }
    }

    /// This text with others before it and one after.
    pub(crate) fn between(&self, before: &[&[u8]], after: &[u8]) -> Self {
        let none = Bytes::new();
        let around = before.iter().map(|text| text.len()).sum::<usize>() + after.len();
        let mut out = Growing::new(&none, around + self.len().min(COPIED));
        before.iter().for_each(|text| out.text(text));
        self.0.iter().for_each(|part| out.slice(part));
        out.text(after);
        out.finish()
    }

    /// The whole text; not copied if it is one slice already.
    pub fn to_raw(&self) -> Raw {
        if let [only] = self.0.as_slice() {
            return Raw::trusted(only.clone());
        }
        let mut out = BytesMut::with_capacity(self.len());
        self.write_to(&mut out);
        Raw::trusted(out.freeze())
    }
}

impl From<Raw> for Spliced {
    #[inline]
    fn from(raw: Raw) -> Self {
        Self(SmallVec::from_buf([raw.into()]))
    }
}

/// The text of an edited object as it grows: short stretches are copied together, long ones kept as slices.
struct Growing<'a> {
    source: &'a Bytes,
    text: Vec<u8>,
    parts: SmallVec<[Bytes; 1]>,
}

impl<'a> Growing<'a> {
    fn new(source: &'a Bytes, added: usize) -> Self {
        Self { source, text: Vec::with_capacity(source.len().min(COPIED) + added), parts: SmallVec::new() }
    }

    fn text(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
    }

    #[inline]
    fn slice(&mut self, slice: &Bytes) {
        if slice.len() <= COPIED {
            return self.text(slice);
        }
        self.close();
        self.parts.push(slice.clone());
    }

    #[inline]
    fn source(&mut self, range: Range<usize>) {
        if range.len() <= COPIED {
            return self.text.extend_from_slice(&self.source[range]);
        }
        self.close();
        self.parts.push(self.source.slice(range));
    }

    fn close(&mut self) {
        if !self.text.is_empty() {
            self.parts.push(std::mem::take(&mut self.text).into());
        }
    }

    fn finish(mut self) -> Spliced {
        self.close();
        Spliced(self.parts)
    }
}

/// The top-level members of a JSON object, found but not decoded.
#[derive(Debug, Clone)]
pub struct Object {
    source: Bytes,
    members: SmallVec<[Member; 6]>,
}

/// The positions of a member's key and value in the source. Positions instead of slices: a slice costs
/// reference counting, and most members are never taken out. Small positions: objects are moved often.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    /// The key's text, without its quotes.
    key: Span,
    value: Span,
    /// Whether the key is written with escapes.
    escaped: bool,
}

/// A range of the source. No source is so long that a position needs more than 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// `None` if a position does not fit.
    fn of(range: Range<usize>) -> Option<Self> {
        Some(Self { start: u32::try_from(range.start).ok()?, end: u32::try_from(range.end).ok()? })
    }

    const fn start(self) -> usize {
        self.start as usize
    }

    const fn end(self) -> usize {
        self.end as usize
    }

    const fn range(self) -> Range<usize> {
        self.start()..self.end()
    }
}

impl Member {
    #[inline]
    fn key<'a>(&self, source: &'a [u8]) -> &'a [u8] {
        &source[self.key.range()]
    }

    /// The key with its escapes decoded.
    fn unescaped(&self, source: &[u8]) -> String {
        serde_json::from_slice(&source[self.key.start() - 1..self.key.end() + 1]).unwrap_or_default()
    }

    /// Keys are compared decoded: `"\u0061"` is `a`.
    #[inline]
    fn is(&self, source: &[u8], name: &str) -> bool {
        if self.escaped { self.unescaped(source) == name } else { self.key(source) == name.as_bytes() }
    }

    #[inline]
    fn value(&self, source: &Bytes) -> Raw {
        Raw::trusted(source.slice(self.value.range()))
    }
}

impl Object {
    /// Finds the members of `raw`, which must be an object.
    pub fn parse(raw: &Raw) -> Result<Self, NotJson> {
        let source = raw.bytes();
        match skim::members(source) {
            Some(members) => Ok(Self { members, source: source.clone() }),
            None => Err(not_an_object(raw)),
        }
    }

    /// An object without members.
    pub fn empty() -> Self {
        Self { source: Bytes::from_static(b"{}"), members: SmallVec::new() }
    }

    /// The value of the first member called `name`.
    pub fn get(&self, name: &str) -> Option<Raw> {
        self.members
            .iter()
            .find(|member| member.is(&self.source, name))
            .map(|member| member.value(&self.source))
    }

    /// The text of the first member called `name`, if it is a string. Borrowed unless it is written with escapes.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        let member = self.members.iter().find(|member| member.is(&self.source, name))?;
        text_of(std::str::from_utf8(&self.source[member.value.range()]).ok()?)
    }

    /// Whether there are several members called `name`: two readers could then disagree about the value.
    pub fn repeats(&self, name: &str) -> bool {
        self.members.iter().filter(|member| member.is(&self.source, name)).count() > 1
    }

    /// The first member that another reader could read differently than we do. It repeats one of the members in
    /// `known`, or its key differs from one of them only in what some readers ignore, such as upper and lower case.
    ///
    /// Runs for every request. A member whose key is exactly a known one costs only a few comparisons.
    pub fn ambiguous(&self, known: &'static [&'static str]) -> Option<Ambiguous> {
        // One bit for each name; no method has nearly 32.
        let mut seen = 0_u32;
        for member in &self.members {
            let unescaped = member.escaped.then(|| member.unescaped(&self.source));
            let key = match &unescaped {
                Some(text) => text.as_bytes(),
                None => member.key(&self.source),
            };
            match known.iter().position(|name| name.as_bytes() == key) {
                Some(at) => {
                    let bit = 1_u32.checked_shl(at as u32).unwrap_or(0);
                    if seen & bit != 0 {
                        return Some(Ambiguous::Repeated(known[at]));
                    }
                    seen |= bit;
                }
                None => {
                    let key = std::str::from_utf8(key).unwrap_or_default();
                    if let Some(name) = known.iter().find(|name| folds_alike(key, name)) {
                        return Some(Ambiguous::Resembles(name));
                    }
                }
            }
        }
        None
    }

    /// The members: key as text, value as it came.
    pub fn members(&self) -> impl Iterator<Item = (String, Raw)> + '_ {
        self.members.iter().map(|member| (member.unescaped(&self.source), member.value(&self.source)))
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Starts an edit.
    #[inline]
    pub fn edit(&self) -> Edit<'_> {
        Edit {
            object: self,
            changes: SmallVec::from_elem(Change::Keep, self.members.len()),
            values: SmallVec::new(),
        }
    }
}

/// Why readers may disagree about what an object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguous {
    /// A member appears more than once.
    #[error("`{0}` appears more than once")]
    Repeated(&'static str),
    /// The key of a member differs from a known one only in what some readers ignore.
    #[error(
        "a member is spelled nearly like `{0}`, and some readers would treat it as `{0}`; remove it or spell it exactly so"
    )]
    Resembles(&'static str),
}

/// An edit of an [`Object`] in progress.
#[derive(Debug)]
pub struct Edit<'a> {
    object: &'a Object,
    changes: SmallVec<[Change; 16]>,
    /// Room for what every call to a modern server gets: its version, capabilities, client and correlation id.
    values: SmallVec<[Value; 4]>,
}

/// What happens to an existing member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Keep,
    Remove,
    /// It gets the value with this index.
    Replace(u16),
}

/// A value that was set.
#[derive(Debug)]
struct Value {
    name: &'static str,
    text: Spliced,
    /// Whether it replaces an existing member.
    replaces: bool,
}

impl Edit<'_> {
    /// Sets the value of `name`: in place if the member exists (further copies are removed), else in front.
    /// Our own names need no escaping.
    pub fn set(&mut self, name: &'static str, value: impl Into<Spliced>) -> &mut Self {
        let text = value.into();
        if let Some(known) = self.values.iter_mut().find(|known| known.name == name) {
            known.text = text;
            return self;
        }
        // Never fails: we have far fewer names than a `u16` can count.
        let Ok(number) = u16::try_from(self.values.len()) else { return self };
        let mut replaces = false;
        for (member, change) in self.object.members.iter().zip(&mut self.changes) {
            if member.is(&self.object.source, name) {
                *change = if replaces { Change::Remove } else { Change::Replace(number) };
                replaces = true;
            }
        }
        self.values.push(Value { name, text, replaces });
        self
    }

    /// Removes every member whose name is `unwanted`. The name comes as bytes: it was checked to be UTF-8 when it arrived.
    pub fn remove_if(&mut self, unwanted: impl Fn(&[u8]) -> bool) -> &mut Self {
        for (member, change) in self.object.members.iter().zip(&mut self.changes) {
            let hit = if member.escaped {
                unwanted(member.unescaped(&self.object.source).as_bytes())
            } else {
                unwanted(member.key(&self.object.source))
            };
            if hit {
                *change = Change::Remove;
            }
        }
        self.forget(|set| unwanted(set.as_bytes()));
        self
    }

    /// Removes `name`.
    pub fn remove(&mut self, name: &str) -> &mut Self {
        for (member, change) in self.object.members.iter().zip(&mut self.changes) {
            if member.is(&self.object.source, name) {
                *change = Change::Remove;
            }
        }
        self.forget(|set| set == name);
        self
    }

    /// Discards values that were set.
    fn forget(&mut self, unwanted: impl Fn(&str) -> bool) {
        for value in self.values.iter_mut().filter(|value| unwanted(value.name)) {
            // The entry stays, so that the other indices remain valid; no member has its empty name.
            *value = Value { name: "", text: Spliced::default(), replaces: true };
        }
    }

    /// The edited object.
    pub fn finish(&self) -> Spliced {
        let Self { object, changes, values } = self;
        let source = &object.source;
        let added = || values.iter().filter(|value| !value.replaces);
        if added().next().is_none() && changes.iter().all(|change| *change == Change::Keep) {
            return Spliced(SmallVec::from_buf([source.clone()]));
        }
        let sizes = values.iter().map(|value| value.name.len() + value.text.len() + 4).sum();
        let mut out = Growing::new(source, sizes);
        let first = object.members.first().map_or(1, |member| member.key.start() - 1);
        out.source(0..first);
        let mut empty = true;
        for Value { name, text, .. } in added() {
            out.text(if empty { b"\"" } else { b",\"" });
            out.text(name.as_bytes());
            out.text(b"\":");
            text.0.iter().for_each(|part| out.slice(part));
            empty = false;
        }
        // `kept` is the stretch of source bytes that has been accepted but not yet written out.
        let mut kept = first..first;
        let mut previous_end = first;
        for (position, (member, change)) in object.members.iter().zip(changes).enumerate() {
            let gap = previous_end;
            previous_end = member.value.end();
            if *change == Change::Remove {
                continue;
            }
            // The separator before a member is the source's own, unless the member comes first.
            let start = if empty {
                member.key.start() - 1
            } else if position == 0 {
                out.text(b",");
                member.key.start() - 1
            } else {
                gap
            };
            empty = false;
            if start != kept.end {
                out.source(kept);
                kept = start..start;
            }
            match change {
                Change::Replace(number) => {
                    out.source(kept.start..member.value.start());
                    if let Some(with) = values.get(usize::from(*number)) {
                        with.text.0.iter().for_each(|part| out.slice(part));
                    }
                    kept = member.value.end()..member.value.end();
                }
                _ => kept.end = member.value.end(),
            }
        }
        out.source(kept);
        out.source(previous_end..source.len());
        out.finish()
    }
}

/// The decoder's error for a value that is not an object.
fn not_an_object(raw: &Raw) -> NotJson {
    let decoded: Result<BTreeMap<String, IgnoredAny>, _> = raw.decode();
    decoded.map_or_else(NotJson::from, |_| serde_json::Error::custom("an object that is not closed").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, change: impl FnOnce(&mut Edit<'_>), expected: &str) {
        let object = Object::parse(&Raw::parse(source.to_owned()).unwrap()).unwrap();
        let mut edit = object.edit();
        change(&mut edit);
        let spliced = edit.finish();
        let raw = spliced.to_raw();
        assert_eq!(raw.as_str(), expected);
        assert_eq!(spliced.len(), expected.len());
        assert!(Raw::parse(expected.to_owned()).is_ok());
    }

    fn one() -> Raw {
        Raw::literal("1")
    }

    #[test]
    fn replaces_in_place() {
        check(
            r#"{ "a" : 2 , "b":3 }"#,
            |e| {
                e.set("a", one());
            },
            r#"{ "a" : 1 , "b":3 }"#,
        );
        check(
            r#"{"\u0061":2,"b":3}"#,
            |e| {
                e.set("a", one());
            },
            r#"{"\u0061":1,"b":3}"#,
        );
        check(
            r#"{"a":2,"b":3,"a":4}"#,
            |e| {
                e.set("a", one());
            },
            r#"{"a":1,"b":3}"#,
        );
    }

    /// WIRE-1: a member that repeats a known one, or that a lenient reader takes for one, is found; others pass.
    #[test]
    fn members_that_readers_disagree_about() {
        #[track_caller]
        fn check(source: &str, expected: Option<Ambiguous>) {
            let object = Object::parse(&Raw::parse(source.to_owned()).unwrap()).unwrap();
            assert_eq!(object.ambiguous(&["_meta", "name", "task", "skip"]), expected, "{source}");
        }
        check("{}", None);
        check(r#"{"name":1,"other":{"Name":2},"Other":3,"other":4,"names":5}"#, None);
        check(r#"{"\u006eame":1}"#, None);
        check(r#"{"name":1,"x":2,"name":3}"#, Some(Ambiguous::Repeated("name")));
        check(r#"{"name":1,"n\u0061me":3}"#, Some(Ambiguous::Repeated("name")));
        check(r#"{"name":1,"Name":3}"#, Some(Ambiguous::Resembles("name")));
        check(r#"{"NAME":3}"#, Some(Ambiguous::Resembles("name")));
        check(r#"{"_Meta":3}"#, Some(Ambiguous::Resembles("_meta")));
        check(r#"{"\u004eame":3}"#, Some(Ambiguous::Resembles("name")));
        check("{\"ta\u{17f}\u{212a}\":3}", Some(Ambiguous::Resembles("task")));
        check(r#"{"\u017f\u212aip":3}"#, Some(Ambiguous::Resembles("skip")));
    }

    #[test]
    fn texts_are_borrowed_unless_they_have_escapes() {
        let object = Object::parse(&Raw::literal(r#"{"a":"x","b":"\u0078","c":7,"a":"y"}"#)).unwrap();
        assert!(matches!(object.text("a"), Some(Cow::Borrowed("x"))));
        assert!(matches!(object.text("b"), Some(Cow::Owned(text)) if text == "x"));
        assert_eq!((object.text("c"), object.text("d")), (None, None));
    }

    #[test]
    fn adds_in_front() {
        check(
            "{}",
            |e| {
                e.set("a", one());
            },
            r#"{"a":1}"#,
        );
        check(
            "{ }",
            |e| {
                e.set("a", one()).set("b", one());
            },
            r#"{"a":1,"b":1 }"#,
        );
        check(
            r#"{ "x":1.50 }"#,
            |e| {
                e.set("a", one());
            },
            r#"{ "a":1,"x":1.50 }"#,
        );
    }

    #[test]
    fn removes_with_its_separator() {
        check(
            r#"{ "a":1, "b":2, "c":3 }"#,
            |e| {
                e.remove("a");
            },
            r#"{ "b":2, "c":3 }"#,
        );
        check(
            r#"{ "a":1, "b":2, "c":3 }"#,
            |e| {
                e.remove("b");
            },
            r#"{ "a":1, "c":3 }"#,
        );
        check(
            r#"{ "a":1, "b":2, "c":3 }"#,
            |e| {
                e.remove("b").remove("c");
            },
            r#"{ "a":1 }"#,
        );
        check(
            r#"{"a":1,"b":2}"#,
            |e| {
                e.remove("a").remove("b");
            },
            "{}",
        );
        check(
            r#"{"a":1,"b":2}"#,
            |e| {
                e.remove("a").remove("b").set("c", one());
            },
            r#"{"c":1}"#,
        );
        check(
            r#"{"a":1,"b":2}"#,
            |e| {
                e.remove("a").set("c", one());
            },
            r#"{"c":1,"b":2}"#,
        );
    }

    #[test]
    fn takes_back_what_was_set() {
        check(
            r#"{"a":1,"b":2}"#,
            |e| {
                e.set("a", one()).set("c", one()).remove("a").remove("c");
            },
            r#"{"b":2}"#,
        );
    }

    #[test]
    fn nests() {
        let object = Object::parse(&Raw::literal(r#"{"_meta":{"k":1,"p":2},"z":0}"#)).unwrap();
        let meta = Object::parse(&object.get("_meta").unwrap()).unwrap();
        let mut inner = meta.edit();
        inner.remove("k");
        let mut outer = object.edit();
        outer.set("_meta", inner.finish());
        assert_eq!(outer.finish().to_raw().as_str(), r#"{"_meta":{"p":2},"z":0}"#);
    }

    #[test]
    fn says_when_a_key_repeats() {
        let object = Object::parse(&Raw::literal(r#"{"a":1,"\u0061":2}"#)).unwrap();
        assert!(object.repeats("a"));
        assert!(!object.repeats("b"));
        assert!(Object::parse(&Raw::literal("[]")).is_err());
    }
}
