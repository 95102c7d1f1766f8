//! Reads which parameters of a tool travel as `Mcp-Param-*` headers: the `x-mcp-header` annotations of its
//! input schema, and every rule about their place and form.
//!
//! A tool with an invalid annotation must not be offered over HTTP; the caller decides what happens to it.
//! This module does not know header values (their encoding, and integers beyond ±(2^53−1), which have no
//! header form): the code that writes and compares headers checks them.

use serde_json::{Map, Value};

use crate::complexity::DATA;
use crate::shortened;

const ANNOTATION: &str = "x-mcp-header";

/// A parameter that is repeated in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderParameter {
    /// The part of the header's name after `Mcp-Param-`, as the schema spells it.
    pub header: String,
    /// The property names that lead from the arguments to the value.
    pub path: Vec<String>,
    /// The type of the value.
    pub kind: HeaderKind,
}

/// The types that have a header form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Boolean,
}

/// Why the annotations of a schema are invalid. `at` is a JSON pointer into the schema.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderAnnotationError {
    /// The annotation is a number, a list or the like.
    #[error("`x-mcp-header` at `{at}` is not a string")]
    NotAString {
        /// Where.
        at: String,
    },
    /// The annotation is an empty string.
    #[error("`x-mcp-header` at `{at}` is empty")]
    Empty {
        /// Where.
        at: String,
    },
    /// The annotation has a character that no header name may have.
    #[error("`x-mcp-header` at `{at}` is `{header}`, which cannot be part of a header name")]
    NotAToken {
        /// Where.
        at: String,
        /// The annotation.
        header: String,
    },
    /// Two annotations differ at most in case.
    #[error("`x-mcp-header` `{header}` at `{at}` is used a second time")]
    Duplicate {
        /// Where the second one is.
        at: String,
        /// The annotation.
        header: String,
    },
    /// The annotated property has a type without a header form.
    #[error("`x-mcp-header` at `{at}` is on a property whose `type` is not string, integer or boolean")]
    WrongType {
        /// Where.
        at: String,
    },
    /// The annotated schema is not a property, or not one that has the same path in every call.
    #[error("`x-mcp-header` at `{at}` is not on a property that is reached by `properties` alone")]
    Unreachable {
        /// Where.
        at: String,
    },
}

/// The annotated parameters of an input schema, in the order of their property names.
///
/// # Errors
/// The first annotation that breaks a rule.
pub fn header_parameters(schema: &Value) -> Result<Vec<HeaderParameter>, HeaderAnnotationError> {
    let mut walk = Walk { place: String::new(), found: Vec::new() };
    walk.schema(schema, Some(&mut Vec::new()))?;
    Ok(walk.found)
}

struct Walk {
    place: String,
    found: Vec<HeaderParameter>,
}

impl Walk {
    /// Visits one schema. `path` is its path in the arguments; `None` if properties alone do not lead to
    /// it.
    fn schema(
        &mut self,
        schema: &Value,
        mut path: Option<&mut Vec<String>>,
    ) -> Result<(), HeaderAnnotationError> {
        let Value::Object(members) = schema else { return Ok(()) };
        if let Some(annotation) = members.get(ANNOTATION) {
            let parameter = self.annotation(annotation, members, path.as_deref().map(Vec::as_slice))?;
            self.found.push(parameter);
        }
        for (keyword, value) in members {
            if keyword == ANNOTATION || DATA.contains(&keyword.as_str()) {
                continue;
            }
            self.within(keyword, |walk| match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => walk.named(properties, path.as_deref_mut()),
                (
                    "patternProperties" | "dependentSchemas" | "dependencies" | "$defs" | "definitions",
                    Value::Object(schemas),
                ) => walk.named(schemas, None),
                (_, Value::Array(several)) => several.iter().enumerate().try_for_each(|(index, one)| {
                    walk.within(&index.to_string(), |walk| walk.schema(one, None))
                }),
                (_, one) => walk.schema(one, None),
            })?;
        }
        Ok(())
    }

    /// Visits the schemas of a map whose keys are names, not keywords.
    fn named(
        &mut self,
        schemas: &Map<String, Value>,
        mut path: Option<&mut Vec<String>>,
    ) -> Result<(), HeaderAnnotationError> {
        for (name, schema) in schemas {
            if let Some(path) = path.as_deref_mut() {
                path.push(name.clone());
            }
            self.within(name, |walk| walk.schema(schema, path.as_deref_mut()))?;
            if let Some(path) = path.as_deref_mut() {
                path.pop();
            }
        }
        Ok(())
    }

    fn annotation(
        &self,
        annotation: &Value,
        schema: &Map<String, Value>,
        path: Option<&[String]>,
    ) -> Result<HeaderParameter, HeaderAnnotationError> {
        let at = shortened(&self.place, 512);
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Err(HeaderAnnotationError::Unreachable { at });
        };
        let Value::String(header) = annotation else {
            return Err(HeaderAnnotationError::NotAString { at });
        };
        if header.is_empty() {
            return Err(HeaderAnnotationError::Empty { at });
        }
        if !header.bytes().all(is_token_byte) {
            return Err(HeaderAnnotationError::NotAToken { at, header: shortened(header, 128) });
        }
        if self.found.iter().any(|other| other.header.eq_ignore_ascii_case(header)) {
            return Err(HeaderAnnotationError::Duplicate { at, header: shortened(header, 128) });
        }
        let kind = match schema.get("type").and_then(Value::as_str) {
            Some("string") => HeaderKind::String,
            Some("integer") => HeaderKind::Integer,
            Some("boolean") => HeaderKind::Boolean,
            _ => return Err(HeaderAnnotationError::WrongType { at }),
        };
        Ok(HeaderParameter { header: header.clone(), path: path.to_vec(), kind })
    }

    /// Runs `visit` one step further down the schema.
    fn within<T>(&mut self, step: &str, visit: impl FnOnce(&mut Self) -> T) -> T {
        let here = self.place.len();
        self.place.push('/');
        self.place.push_str(&crate::escaped_pointer(step));
        let result = visit(self);
        self.place.truncate(here);
        result
    }
}

/// RFC 9110, section 5.6.2: `tchar`.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Expected<'a> = (&'a str, &'a [&'a str], HeaderKind);

    #[track_caller]
    fn check(schema: &Value, expected: Result<&[Expected<'_>], &str>) {
        let found = header_parameters(schema);
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let found: Vec<_> = found
                    .iter()
                    .map(|one| (one.header.as_str(), one.path.iter().map(String::as_str).collect(), one.kind))
                    .collect();
                let expected: Vec<(&str, Vec<&str>, HeaderKind)> =
                    expected.iter().map(|&(header, path, kind)| (header, path.to_vec(), kind)).collect();
                assert_eq!(found, expected);
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    fn on_property(schema: &Value) -> Value {
        json!({"type": "object", "properties": {"p": schema}})
    }

    #[test]
    fn valid_annotations_are_listed() {
        check(&json!({"type": "object"}), Ok(&[]));
        check(&json!(true), Ok(&[]));
        check(
            &json!({"properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "limits": {"type": "object", "properties": {
                    "a/b": {"type": "integer", "x-mcp-header": "Max_Rows.1"},
                    "dry": {"type": "boolean", "x-mcp-header": "!#$%&'*+-.^_`|~"},
                }},
            }}),
            Ok(&[
                ("Max_Rows.1", &["limits", "a/b"], HeaderKind::Integer),
                ("!#$%&'*+-.^_`|~", &["limits", "dry"], HeaderKind::Boolean),
                ("Region", &["region"], HeaderKind::String),
            ]),
        );
    }

    #[test]
    fn names_and_data_are_not_annotations() {
        check(&json!({"properties": {"x-mcp-header": {"type": "string"}}}), Ok(&[]));
        check(&json!({"$defs": {"x-mcp-header": {"type": "string"}}}), Ok(&[]));
        check(&json!({"default": {"x-mcp-header": 1}, "examples": [{"x-mcp-header": 1}]}), Ok(&[]));
        check(&on_property(&json!({"const": {"x-mcp-header": ""}})), Ok(&[]));
        check(&on_property(&json!({"enum": [{"x-mcp-header": ""}]})), Ok(&[]));
    }

    #[test]
    fn bad_values_are_refused() {
        let p = "/properties/p";
        for value in [json!(1), json!(null), json!(["A"]), json!({"name": "A"}), json!(true)] {
            let schema = on_property(&json!({"type": "string", "x-mcp-header": value}));
            check(&schema, Err(&format!("`x-mcp-header` at `{p}` is not a string")));
        }
        check(
            &on_property(&json!({"type": "string", "x-mcp-header": ""})),
            Err(&format!("`x-mcp-header` at `{p}` is empty")),
        );
        for header in ["My Region", "Region:", "Región", "a\tb", "a\r\nb", "(a)", "a/b", "a,b", "\u{7f}"] {
            check(
                &on_property(&json!({"type": "string", "x-mcp-header": header})),
                Err(&format!("`x-mcp-header` at `{p}` is `{header}`, which cannot be part of a header name")),
            );
        }
    }

    #[test]
    fn bad_types_are_refused() {
        for kind in [
            json!({"type": "number"}),
            json!({"type": "object"}),
            json!({"type": "array"}),
            json!({"type": "null"}),
            json!({"type": ["string", "integer"]}),
            json!({}),
        ] {
            let mut schema = kind;
            schema["x-mcp-header"] = json!("A");
            check(
                &on_property(&schema),
                Err(
                    "`x-mcp-header` at `/properties/p` is on a property whose `type` is not string, integer or \
                     boolean",
                ),
            );
        }
    }

    #[test]
    fn a_header_is_used_once() {
        check(
            &json!({"properties": {
                "a": {"type": "string", "x-mcp-header": "Region"},
                "b": {"properties": {"c": {"type": "string", "x-mcp-header": "REGION"}}},
            }}),
            Err("`x-mcp-header` `REGION` at `/properties/b/properties/c` is used a second time"),
        );
    }

    #[test]
    fn only_properties_of_properties_are_reached() {
        #[track_caller]
        fn refused(schema: &Value, at: &str) {
            check(
                schema,
                Err(&format!(
                    "`x-mcp-header` at `{at}` is not on a property that is reached by `properties` alone"
                )),
            );
        }
        let annotated = json!({"type": "string", "x-mcp-header": "A"});
        let inner = json!({"properties": {"q": annotated}});
        refused(&annotated, "");
        for keyword in ["items", "not", "if", "then", "else", "additionalProperties", "contains", "unknown"] {
            refused(&on_property(&json!({keyword: annotated})), &format!("/properties/p/{keyword}"));
            refused(&json!({keyword: inner}), &format!("/{keyword}/properties/q"));
        }
        for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            refused(&json!({keyword: [{}, inner]}), &format!("/{keyword}/1/properties/q"));
        }
        for keyword in ["patternProperties", "dependentSchemas", "$defs", "definitions"] {
            refused(&json!({keyword: {"a/b": annotated}}), &format!("/{keyword}/a~1b"));
        }
        // The target of a reference is not reached by properties alone either.
        refused(
            &json!({"properties": {"p": {"$ref": "#/$defs/d"}}, "$defs": {"d": inner}}),
            "/$defs/d/properties/q",
        );
    }
}
