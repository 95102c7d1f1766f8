//! The cost of one schema's keywords, in steps.
//!
//! A step is about the comparison of two short values. The numbers are upper bounds for the validator in use: it looks
//! up the strings and integers of an `enum` and compares all other values one by one, hashes items that must differ,
//! and runs patterns on an engine whose worst case is length times size.

use serde_json::{Map, Value};

/// A byte that a keyword only counts costs 1/64 of a step.
const FRACTION: u64 = 64;
/// Steps for one byte of a text with a format.
const FORMAT: u64 = 4;
/// Steps for one byte of a text that must be a pattern, which is compiled to check it.
const COMPILED: u64 = 512;
/// Steps for each value that is checked against a meta-schema.
const SCHEMA_OF_SCHEMAS: u64 = 512;
/// The largest pattern: the compiler refuses larger ones.
const LARGEST_PATTERN: u64 = 1 << 18;
/// States of a character class that is not spelled out.
const CLASS: u64 = 32;

/// The steps of one node for one value.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    /// Steps for any value.
    each: u64,
    /// Additional steps for an object.
    object: u64,
    /// Steps for each byte of a text, in fractions of a step.
    text: u64,
    /// Steps for each byte of a key, in fractions of a step.
    key: u64,
    /// Steps for everything inside a value, by its weight.
    pub(crate) whole: u64,
}

impl Cost {
    pub(crate) fn of_schema(members: &Map<String, Value>) -> Self {
        let mut cost = Self { each: 1, ..Self::default() };
        for (keyword, value) in members {
            cost.add(keyword, value);
        }
        cost
    }

    fn add(&mut self, keyword: &str, value: &Value) {
        let length = || value.as_array().map_or(0, Vec::len) as u64;
        let names = || value.as_object().map_or(0, Map::len) as u64;
        match (keyword, value) {
            ("enum", Value::Array(values)) => {
                let looked_up = values.iter().all(|value| value.is_string() || value.is_null());
                // Integers are looked up too, but a number in another notation is compared with each value.
                let compared = if looked_up { 4 } else { values.iter().map(weight).sum() };
                self.each = self.each.saturating_add(compared);
                self.text = self.text.saturating_add(1 + compared);
            }
            ("const", value) => {
                self.each = self.each.saturating_add(weight(value));
                self.text += 1;
            }
            ("uniqueItems", Value::Bool(true)) => self.whole += 4,
            ("pattern", Value::String(pattern)) => {
                self.text = self.text.saturating_add(states(pattern).saturating_mul(FRACTION));
            }
            ("patternProperties", Value::Object(patterns)) => {
                for pattern in patterns.keys() {
                    self.key = self.key.saturating_add(states(pattern).saturating_mul(FRACTION));
                }
                // `additionalProperties` matches the patterns again.
                self.key = self.key.saturating_mul(2);
            }
            ("format", Value::String(format)) => {
                self.text += if format.contains("regex") { COMPILED } else { FORMAT } * FRACTION;
            }
            ("minLength" | "maxLength", _) => self.text += 1,
            ("contentEncoding" | "contentMediaType", _) => self.text += 4 * FRACTION,
            ("required", _) => self.object += length(),
            ("properties", _) => self.object += names(),
            ("dependentRequired" | "dependencies", Value::Object(all)) => {
                let needed = all.values().map(|names| 1 + names.as_array().map_or(0, Vec::len) as u64);
                self.object += needed.sum::<u64>();
            }
            ("dependentSchemas", _) => self.object += names(),
            ("additionalProperties" | "unevaluatedProperties" | "propertyNames", _) => self.key += 1,
            _ => self.each += 1,
        }
    }

    pub(crate) fn is_a_schema_of_schemas(&mut self) {
        self.whole = self.whole.saturating_add(SCHEMA_OF_SCHEMAS);
    }

    /// The cost of a value, without its parts.
    pub(crate) fn of(&self, value: &Value) -> u64 {
        match value {
            Value::String(text) => self.of_text(text),
            Value::Object(_) => self.each.saturating_add(self.object),
            _ => self.each,
        }
    }

    pub(crate) fn of_text(&self, text: &str) -> u64 {
        self.each.saturating_add(self.text.saturating_mul(text.len() as u64) / FRACTION)
    }

    pub(crate) fn of_key(&self, key: &str) -> u64 {
        match self.key {
            0 => 0,
            each => 1 + each.saturating_mul(key.len() as u64) / FRACTION,
        }
    }

    /// The most that one byte of an instance can cost here. A value and a key have at least one byte.
    pub(crate) fn per_byte(&self) -> u64 {
        let parts = [self.object, self.text.div_ceil(FRACTION), 1 + self.key.div_ceil(FRACTION), self.whole];
        parts.into_iter().fold(self.each, u64::saturating_add)
    }
}

/// The effort of comparing or hashing a value.
pub(crate) fn weight(value: &Value) -> u64 {
    sum(value, |length| 1 + length as u64 / 16)
}

/// About how many bytes the value has as JSON.
pub(crate) fn size(value: &Value) -> u64 {
    sum(value, |length| 1 + length as u64)
}

/// Sums over all values and keys, by the length of their text. Without recursion, because the value may be deep.
fn sum(value: &Value, one: impl Fn(usize) -> u64) -> u64 {
    let mut total = 0_u64;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        total += match value {
            Value::String(text) => one(text.len()),
            _ => one(0),
        };
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => {
                total += members.keys().map(|key| one(key.len())).sum::<u64>();
                open.extend(members.values());
            }
            _ => {}
        }
    }
    total
}

/// About how many states a pattern has; never far too low. For each byte of a text each state may be visited.
fn states(pattern: &str) -> u64 {
    let mut open: Vec<Group> = Vec::new();
    let mut group = Group::default();
    let mut rest = pattern.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match byte {
            b'\\' => {
                let class = tail.first().is_some_and(|kind| b"wWdDsSpPbB".contains(kind));
                group.next(if class { CLASS } else { 1 });
                rest = tail.get(1..).unwrap_or_default();
            }
            b'[' => {
                let end = class_end(tail);
                let wide = tail[..end].contains(&b'\\') || tail.first() == Some(&b'^');
                group.next(2 + end as u64 / 2 + if wide { CLASS } else { 0 });
                rest = tail.get(end + 1..).unwrap_or_default();
            }
            b'.' => group.next(4),
            b'(' => open.push(std::mem::take(&mut group)),
            b')' => {
                if let Some(outer) = open.pop() {
                    let inner = std::mem::replace(&mut group, outer);
                    group.next(inner.size() + 1);
                }
            }
            b'{' => {
                let end = tail.iter().position(|&byte| byte == b'}').unwrap_or(tail.len());
                let most = tail[..end].split(|&byte| byte == b',').filter_map(number).max();
                group.last = group.last.saturating_mul(most.unwrap_or(1).max(1)).min(LARGEST_PATTERN);
                rest = tail.get(end + 1..).unwrap_or_default();
            }
            b'*' | b'+' | b'?' => group.last += 1,
            _ => group.next(1),
        }
    }
    open.iter().fold(1 + group.size(), |all, group| all.saturating_add(group.size())).min(LARGEST_PATTERN)
}

/// A group of a pattern, as read so far.
#[derive(Default)]
struct Group {
    before: u64,
    /// The last atom, which a repetition multiplies.
    last: u64,
}

impl Group {
    fn next(&mut self, size: u64) {
        self.before = self.size();
        self.last = size;
    }

    fn size(&self) -> u64 {
        self.before.saturating_add(self.last).min(LARGEST_PATTERN)
    }
}

/// The end of a character class whose opening bracket was just read.
fn class_end(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 1,
            b']' if at > 0 => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_are_as_large_as_their_repetitions_make_them() {
        #[track_caller]
        fn check(pattern: &str, expected: std::ops::RangeInclusive<u64>) {
            assert!(expected.contains(&states(pattern)), "{pattern}: {}", states(pattern));
        }
        check("", 1..=1);
        check("^abc$", 5..=8);
        check("^[a-z]{2,32}-[0-9]{1,8}$", 100..=250);
        check("(a|b){100}", 300..=500);
        check("((a{100}){100}){100}", LARGEST_PATTERN..=LARGEST_PATTERN);
        check("a{999999999}", LARGEST_PATTERN..=LARGEST_PATTERN);
        check(r"\w+@\w+", 60..=80);
        for odd in ["[", "]", "[]]", "{", "}", "a{", "a{,}", "(((", ")))", "\\", "[\\", "é{3}"] {
            check(odd, 0..=64);
        }
    }

    #[test]
    fn what_is_looked_up_is_cheap_and_what_is_compared_is_not() {
        let of = |schema: Value| Cost::of_schema(schema.as_object().unwrap()).of(&json!(1));
        let many = |make: fn(usize) -> Value| (0..1000).map(make).collect::<Vec<_>>();
        assert!(of(json!({"enum": many(|n| json!(n.to_string()))})) < 10);
        assert!(of(json!({"enum": many(|n| json!({"n": n}))})) >= 1000);
        assert!(of(json!({"type": "string", "minLength": 1})) < 10);
    }
}
