//! Reads a Rust type from named texts: the arguments of a prompt, the variables of a URI.
//!
//! A text becomes what its field is: a text, a number, a boolean, or a variant of an enum by its name. A field
//! that is an `Option` may be missing. A map of texts takes everything as it is.

use std::collections::BTreeMap;

use serde::de::value::{Error, StringDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::handler::Unreadable;

/// Texts by name.
pub(crate) type Strings = BTreeMap<String, String>;

/// Reads a `T`.
pub(super) fn read<T: DeserializeOwned>(strings: Strings) -> Result<T, Unreadable> {
    let mut current = None;
    let members = Members { rest: strings.into_iter(), value: None, current: &mut current };
    T::deserialize(members).map_err(|error| {
        let path = current.map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")));
        Unreadable { path: path.unwrap_or_default(), message: error.to_string() }
    })
}

/// All texts, as an object.
struct Members<'a> {
    rest: std::collections::btree_map::IntoIter<String, String>,
    value: Option<String>,
    /// The name of the text that is being read.
    current: &'a mut Option<String>,
}

impl<'de> Deserializer<'de> for Members<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(self)
    }

    /// A handler that takes `()` ignores everything.
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((name, value)) = self.rest.next() else {
            *self.current = None;
            return Ok(None);
        };
        self.value = Some(value);
        *self.current = Some(name.clone());
        let name: StringDeserializer<Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Text(self.value.take().unwrap_or_default()))
    }
}

/// One text, as whatever its field is.
struct Text(String);

macro_rules! parsed {
    ($($method:ident $visit:ident $kind:literal,)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            // The text itself is not repeated: it may be a secret.
            let parsed = self.0.parse().map_err(|_| Error::custom(concat!("it is not ", $kind)))?;
            visitor.$visit(parsed)
        })*
    };
}

impl<'de> Deserializer<'de> for Text {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0)
    }

    parsed! {
        deserialize_bool visit_bool "`true` or `false`",
        deserialize_i8 visit_i8 "a whole number in its range",
        deserialize_i16 visit_i16 "a whole number in its range",
        deserialize_i32 visit_i32 "a whole number in its range",
        deserialize_i64 visit_i64 "a whole number in its range",
        deserialize_i128 visit_i128 "a whole number in its range",
        deserialize_u8 visit_u8 "a whole number in its range",
        deserialize_u16 visit_u16 "a whole number in its range",
        deserialize_u32 visit_u32 "a whole number in its range",
        deserialize_u64 visit_u64 "a whole number in its range",
        deserialize_u128 visit_u128 "a whole number in its range",
        deserialize_f32 visit_f32 "a number",
        deserialize_f64 visit_f64 "a number",
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let variant: StringDeserializer<Error> = self.0.into_deserializer();
        variant.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Tone {
        Kind,
        Curt,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Greeting {
        name: String,
        times: Option<u8>,
        tone: Option<Tone>,
        #[serde(default)]
        loud: bool,
    }

    fn strings(members: &[(&str, &str)]) -> Strings {
        members.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// LIB-2: texts become what the fields are.
    #[test]
    fn texts_become_fields() {
        let all = [("name", "Ada"), ("times", "3"), ("tone", "curt"), ("loud", "true"), ("more", "x")];
        let found: Greeting = read(strings(&all)).unwrap();
        let expected =
            Greeting { name: "Ada".to_owned(), times: Some(3), tone: Some(Tone::Curt), loud: true };
        assert_eq!(found, expected);
        let found: Greeting = read(strings(&[("name", "7")])).unwrap();
        assert_eq!(found, Greeting { name: "7".to_owned(), times: None, tone: None, loud: false });
        let map: HashMap<String, String> = read(strings(&[("a", "1")])).unwrap();
        assert_eq!(map["a"], "1");
        read::<()>(strings(&[("a", "1")])).unwrap();
    }

    /// LIB-2: a text that its field cannot take is refused, with the name of the field and without the text.
    #[test]
    fn what_a_field_cannot_take() {
        #[track_caller]
        fn check(members: &[(&str, &str)], path: &str, message: &str) {
            let error = read::<Greeting>(strings(members)).unwrap_err();
            assert_eq!(error.path, path, "{error:?}");
            assert!(error.message.contains(message), "{error:?}");
        }
        check(&[], "", "missing field `name`");
        check(&[("name", "x"), ("times", "300")], "/times", "it is not a whole number in its range");
        check(&[("name", "x"), ("loud", "yes")], "/loud", "it is not `true` or `false`");
        check(
            &[("name", "x"), ("tone", "shrill")],
            "/tone",
            "unknown variant `shrill`, expected `kind` or `curt`",
        );
    }
}
