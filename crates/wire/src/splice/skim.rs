//! Finds the members of an object in text that is known to be JSON.
//!
//! A message is validated as a whole when it arrives. This code only finds where keys and values begin and end, and
//! validates nothing again. What must stay true: on JSON it finds the members that a decoder finds. On any other text it
//! finds something or nothing, but never reads outside the text.

use smallvec::SmallVec;

use super::{Member, Span};

/// The members, if the text is an object and nothing else.
pub(super) fn members(text: &[u8]) -> Option<SmallVec<[Member; 6]>> {
    let mut members = SmallVec::new();
    if text.first() != Some(&b'{') {
        return None;
    }
    let mut at = skip_space(text, 1);
    if text.get(at) == Some(&b'}') {
        return (at + 1 == text.len()).then_some(members);
    }
    loop {
        let (key, escaped) = string_end(text, at)?;
        let colon = skip_space(text, key);
        if text.get(colon) != Some(&b':') {
            return None;
        }
        let value = skip_space(text, colon + 1);
        let end = value_end(text, value)?;
        members.push(Member { key: Span::of(at + 1..key - 1)?, value: Span::of(value..end)?, escaped });
        at = skip_space(text, end);
        match text.get(at)? {
            b',' => at = skip_space(text, at + 1),
            b'}' => return (at + 1 == text.len()).then_some(members),
            _ => return None,
        }
    }
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\t' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// The position after the string that begins at `start`, and whether it is written with escapes.
fn string_end(text: &[u8], start: usize) -> Option<(usize, bool)> {
    if text.get(start) != Some(&b'"') {
        return None;
    }
    let (mut at, mut escaped) = (start + 1, false);
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some((at + 1, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// The position after the value that begins at `start`.
fn value_end(text: &[u8], start: usize) -> Option<usize> {
    match text.get(start)? {
        b'"' => string_end(text, start).map(|(end, _)| end),
        b'{' | b'[' => {
            let (mut at, mut open) = (start + 1, 1_usize);
            while open > 0 {
                match text.get(at)? {
                    b'"' => {
                        at = string_end(text, at)?.0;
                        continue;
                    }
                    b'{' | b'[' => open += 1,
                    b'}' | b']' => open -= 1,
                    _ => {}
                }
                at += 1;
            }
            Some(at)
        }
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r');
            let length = text[start..].iter().position(ends)?;
            (length > 0).then_some(start + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn check(text: &str, expected: Option<&[(&str, &str)]>) {
        let found = members(text.as_bytes());
        let found: Option<Vec<(&str, &str)>> = found.as_ref().map(|members| {
            members.iter().map(|member| (&text[member.key.range()], &text[member.value.range()])).collect()
        });
        assert_eq!(found.as_deref(), expected, "{text}");
    }

    #[test]
    fn members_are_found_as_they_stand() {
        check("{}", Some(&[]));
        check("{ \n}", Some(&[]));
        check(
            r#"{"a":1,"b" : [ {"c":"]}"} , 2 ] ,"d":null}"#,
            Some(&[("a", "1"), ("b", r#"[ {"c":"]}"} , 2 ]"#), ("d", "null")]),
        );
        check(r#"{"a\"}":"\\","a":"\\\""}"#, Some(&[(r#"a\"}"#, r#""\\""#), ("a", r#""\\\"""#)]));
        check(r#"{"":{}}"#, Some(&[("", "{}")]));
    }

    #[test]
    fn what_is_no_object_has_no_members() {
        for text in [
            "",
            "[]",
            "1",
            "\"{}\"",
            "{",
            "{}}",
            "{} ",
            " {}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1",
            "{\"a\":1,}",
            "{\"a\":1 2}",
            "{\"a\":\"",
            "{\"a\":[1}",
            "{\"a\":{\"b\":\"\\",
            "{a:1}",
            "{\"a\",1}",
        ] {
            check(text, None);
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
            "[\"\\\\{}\\[\\],: ]{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map("[\"\\\\{}a-c:,]{0,4}", inner, 0..5)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// A decoder finds the same, however the text is laid out.
        #[test]
        fn a_decoder_finds_the_same(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let decoded: Option<BTreeMap<String, &RawValue>> = serde_json::from_str(&text).ok();
            let found = members(text.as_bytes()).map(|members| {
                let pairs = members.iter().map(|member| {
                    let key = &text[member.key.start() - 1..member.key.end() + 1];
                    prop_assert_eq!(member.escaped, key.contains('\\'));
                    Ok((serde_json::from_str::<String>(key).unwrap(), text[member.value.range()].to_owned()))
                });
                pairs.collect::<Result<BTreeMap<String, String>, TestCaseError>>()
            });
            let decoded = decoded.map(|members| {
                members.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect()
            });
            prop_assert_eq!(found.transpose()?, decoded);
        }

        /// In any text, no member is found outside of it.
        #[test]
        fn any_text_is_survived(text in "[{}\\[\\]\":,\\\\a1 ]{0,24}") {
            for member in members(text.as_bytes()).into_iter().flatten() {
                prop_assert!(member.key.start() <= member.key.end() && member.value.end() <= text.len());
            }
        }
    }
}
