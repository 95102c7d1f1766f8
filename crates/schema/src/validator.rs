//! A schema that instances are checked against. Checking allocates nothing when the instance is valid; only a failure is explained, and
//! only as far as a reader can use: a bounded number of issues, each of bounded size and without the
//! offending value itself, which may be huge or secret.

use std::sync::OnceLock;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ReferencingError, ValidationOptions};
use serde_json::Value;

use crate::complexity::{self, Bounds};
use crate::plain::is_plain;
use crate::{SchemaError, shortened};

/// Bytes of schema text.
const LONGEST_TEXT: usize = 1 << 20;
/// Bytes of one compiled pattern.
const LARGEST_PATTERN: usize = 2 << 20;
const MOST_ISSUES: usize = 32;
const LONGEST_MESSAGE: usize = 256;
const LONGEST_PATH: usize = 512;

/// One way in which an instance does not match a schema.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Issue {
    /// JSON pointer into the instance.
    #[serde(rename = "path")]
    pub instance_path: String,
    /// JSON pointer into the schema, to the keyword that failed.
    #[serde(rename = "schemaPath")]
    pub schema_path: String,
    /// What is wrong; names what was expected, not what was found.
    pub message: String,
}

/// A schema, ready to check instances.
#[derive(Debug)]
pub struct Validator {
    /// A plain schema is compiled when it is first asked: of a long list of tools most are never called.
    compiled: OnceLock<jsonschema::Validator>,
    /// The text of a plain schema.
    plain: Option<Box<str>>,
    bounds: Bounds,
}

impl Validator {
    /// Compiles a schema of the dialect that its `$schema` names, 2020-12 if it names none.
    ///
    /// Patterns run on an engine that is linear in the length of what it reads; those that need look-around
    /// or back-references do not compile.
    ///
    /// # Errors
    /// When the text is not a schema, refers to something outside of itself, or exceeds a bound.
    pub fn compile(schema: &str) -> Result<Self, SchemaError> {
        Self::compile_with_source(schema).map(|(_, validator)| validator)
    }

    /// The same, with the schema as it was read.
    pub(crate) fn compile_with_source(schema: &str) -> Result<(Value, Self), SchemaError> {
        if schema.len() > LONGEST_TEXT {
            return Err(SchemaError::TooLarge { what: "bytes", limit: LONGEST_TEXT });
        }
        let text = schema;
        let schema: Value =
            serde_json::from_str(text).map_err(|error| SchemaError::NotJson(error.to_string()))?;
        let bounds = complexity::measure(&schema)?;
        let plain = is_plain(&schema).then(|| text.into());
        let compiled = OnceLock::new();
        if plain.is_none() {
            let built = options().build(&schema).map_err(|error| refused(&error))?;
            let _ = compiled.set(built);
        }
        Ok((schema, Self { compiled, plain, bounds }))
    }

    /// None could only be a plain schema that does not compile, and there is none.
    fn compiled(&self) -> Option<&jsonschema::Validator> {
        if let Some(compiled) = self.compiled.get() {
            return Some(compiled);
        }
        let schema: Value = serde_json::from_str(self.plain.as_deref()?).ok()?;
        let built = options().build(&schema).ok()?;
        Some(self.compiled.get_or_init(|| built))
    }

    /// Whether `instance` can be checked at all.
    pub(crate) fn can_check(&self, instance: &Value) -> bool {
        self.bounds.checked.is_none_or(|bound| complexity::depth(instance) <= bound)
    }

    /// Checks `instance`.
    ///
    /// # Errors
    /// What does not match, at least one and at most 32 issues.
    pub fn check(&self, instance: &Value) -> Result<(), Vec<Issue>> {
        let within = |bound: Option<usize>| bound.is_none_or(|bound| complexity::depth(instance) <= bound);
        if !within(self.bounds.checked) {
            return Err(vec![whole("value is nested more deeply than can be checked against this schema")]);
        }
        let Some(compiled) = self.compiled() else {
            return Err(vec![whole("the schema cannot be compiled, so nothing can be checked against it")]);
        };
        if compiled.is_valid(instance) {
            return Ok(());
        }
        let mut issues: Vec<Issue> = Vec::new();
        if within(self.bounds.explained) {
            issues.extend(compiled.iter_errors(instance).take(MOST_ISSUES).map(|error| Issue {
                instance_path: shortened(error.instance_path(), LONGEST_PATH),
                schema_path: shortened(error.schema_path(), LONGEST_PATH),
                message: shortened(&error.masked(), LONGEST_MESSAGE),
            }));
        }
        if issues.is_empty() {
            issues.push(whole("value does not match the schema"));
        }
        Err(issues)
    }
}

/// How every schema, and every part of one, is compiled: without a network, with bounded patterns.
pub(crate) fn options<'i>() -> ValidationOptions<'i> {
    let patterns = PatternOptions::regex().size_limit(LARGEST_PATTERN).dfa_size_limit(LARGEST_PATTERN);
    jsonschema::options().offline().with_pattern_options(patterns)
}

/// An issue with the instance as a whole.
fn whole(message: &str) -> Issue {
    Issue { instance_path: String::new(), schema_path: String::new(), message: message.to_owned() }
}

fn refused(error: &jsonschema::ValidationError<'_>) -> SchemaError {
    match error.kind() {
        ValidationErrorKind::Referencing(ReferencingError::UnknownSpecification { specification }) => {
            SchemaError::UnknownDialect(shortened(specification, LONGEST_MESSAGE))
        }
        ValidationErrorKind::Referencing(ReferencingError::Unretrievable { uri, .. }) => {
            SchemaError::RemoteReference(shortened(uri, LONGEST_MESSAGE))
        }
        // What is checked here is the schema, so the place in it is the instance path.
        _ => SchemaError::Invalid {
            path: shortened(error.instance_path(), LONGEST_PATH),
            message: shortened(error, LONGEST_MESSAGE),
        },
    }
}
