//! Reads JSON and refuses duplicate keys in an object.
//!
//! Of two members with the same key some readers take the first and some the last. If the gateway checked one, a
//! server might use the other, so the text is refused, with the place of the second. Keys are compared after decoding,
//! not as written.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::plan::Names;
use crate::validator::{Issue, LONGEST_PATH, whole};
use crate::{escaped_pointer, shortened};

/// The value, and whether a key in it resembles one that the schema declares anywhere.
pub(crate) struct Reading {
    pub(crate) value: Value,
    pub(crate) resembles: bool,
}

/// Reads `text`. With `names`, also notes whether a key resembles one of them.
// Inlined together with `Validator::read`: every call runs them, and this crate is optimised little (`profile.release`).
#[inline]
pub(crate) fn read(text: &str, names: Option<&Names>) -> Result<Reading, Issue> {
    let resembles = Cell::new(false);
    match decode(text, &(), names.map(|names| (names, &resembles))) {
        Ok(value) => Ok(Reading { value, resembles: resembles.get() }),
        Err(error) => Err(explained(text, &error)),
    }
}

/// Reads the text again to find the place of the error, so that valid texts do not pay for tracking it.
fn explained(text: &str, error: &serde_json::Error) -> Issue {
    let trail = RefCell::new(String::new());
    if error.is_data() && decode(text, &trail, None).is_err() {
        let mut issue = whole("the key occurs more than once in its object");
        issue.instance_path = shortened(&trail.borrow(), LONGEST_PATH);
        return issue;
    }
    // A number or a nesting beyond what can be represented. The decoder's message quotes no part of the text.
    whole(&error.to_string())
}

fn decode<T: Trail>(
    text: &str,
    trail: &T,
    names: Option<(&Names, &Cell<bool>)>,
) -> Result<Value, serde_json::Error> {
    let mut decoder = serde_json::Deserializer::from_str(text);
    let value = Strict { trail, names }.deserialize(&mut decoder)?;
    decoder.end()?;
    Ok(value)
}

/// Tracks the place in the text, or ignores it.
trait Trail {
    fn key(&self, key: &str);
    fn item(&self, at: usize);
    fn leave(&self);
}

impl Trail for () {
    fn key(&self, _: &str) {}
    fn item(&self, _: usize) {}
    fn leave(&self) {}
}

impl Trail for RefCell<String> {
    fn key(&self, key: &str) {
        let mut pointer = self.borrow_mut();
        pointer.push('/');
        pointer.push_str(&escaped_pointer(key));
    }

    fn item(&self, at: usize) {
        self.borrow_mut().push_str(&format!("/{at}"));
    }

    fn leave(&self) {
        let mut pointer = self.borrow_mut();
        let end = pointer.rfind('/').unwrap_or(0);
        pointer.truncate(end);
    }
}

struct Strict<'a, T> {
    trail: &'a T,
    names: Option<(&'a Names, &'a Cell<bool>)>,
}

impl<T> Clone for Strict<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Strict<'_, T> {}

impl<'de, T: Trail> DeserializeSeed<'de> for Strict<'_, T> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Trail> Visitor<'de> for Strict<'_, T> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            self.trail.item(values.len());
            match items.next_element_seed(self)? {
                Some(value) => values.push(value),
                None => {
                    self.trail.leave();
                    return Ok(Value::Array(values));
                }
            }
            self.trail.leave();
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if let Some((names, resembles)) = self.names
                && names.resembled_by(&key)
            {
                resembles.set(true);
            }
            self.trail.key(&key);
            let value = members.next_value_seed(self)?;
            if values.insert(key, value).is_some() {
                return Err(A::Error::custom("duplicate key"));
            }
            self.trail.leave();
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// WIRE-1: equal keys are found at any depth, with their place; the same key in another object is fine.
    #[test]
    fn keys_that_stand_twice() {
        #[track_caller]
        fn check(text: &str, place: Option<&str>) {
            let issue = read(text, None).err();
            assert_eq!(issue.as_ref().map(|issue| issue.instance_path.as_str()), place, "{text} {issue:?}");
        }
        check(r#"{"a":{"a":1},"b":[{"a":1},{"a":1}],"A":1}"#, None);
        check(r#"{"a":1,"a":1}"#, Some("/a"));
        check(r#"{"a":1,"b":2,"\u0061":1}"#, Some("/a"));
        check(r#"{"x":[0,{"y":{"p/q":1,"r":[{}],"p/q":2}}]}"#, Some("/x/1/y/p~1q"));
        check(r#"{"x":[1,[],{"":1,"":2}]}"#, Some("/x/2/"));
        check(r#"{"x":1e999}"#, Some(""));
    }

    proptest! {
        /// A text without duplicate keys is read as any decoder reads it.
        #[test]
        fn a_decoder_reads_the_same(text in "[0-9eE.+-]{1,8}|\"[a-z\\\\u00e4/]{0,6}\"|[{}\\[\\]\":,a1 ]{0,16}") {
            let decoded: Option<Value> = serde_json::from_str(&text).ok();
            match (read(&text, None).ok().map(|reading| reading.value), decoded) {
                (None, Some(decoded)) => prop_assert!(text.matches("\"").count() >= 4, "{} {}", text, decoded),
                (read, decoded) => prop_assert_eq!(read, decoded),
            }
        }
    }
}
