//! A compiled schema that checks instances. Only a failure is explained, and only as far as is useful: a bounded
//! number of issues, each of bounded size and without the offending value, which may be huge or secret.
//!
//! What must stay true: no instance makes a check run away. Work is counted before it begins (`plan.rs`). A caller
//! that must not block asks for a brief check, and gets an error if the check would take longer.

use std::sync::OnceLock;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ReferencingError, ValidationOptions};
use serde_json::Value;

use crate::complexity::{self, Bounds};
use crate::plain::is_plain;
use crate::plan::{self, Plan};
use crate::{SchemaError, shortened, strict};

/// The most bytes of a schema's text.
const LONGEST_TEXT: usize = 1 << 20;
/// The most bytes of one compiled pattern.
const LARGEST_PATTERN: usize = 2 << 20;
pub(crate) const MOST_ISSUES: usize = 32;
const LONGEST_MESSAGE: usize = 256;
pub(crate) const LONGEST_PATH: usize = 512;
/// The most steps of a check. A step takes a few nanoseconds.
const MOST_STEPS: u64 = 100_000_000;
/// The most steps of a brief check, and of one that is repeated to explain a failure.
const BRIEF_STEPS: u64 = 300_000;
/// The same limit for the rough estimate, which is often far too high.
const ROUGHLY_BRIEF_STEPS: u64 = 2_000_000;
/// The most bytes of arguments in a brief check.
const BRIEF_TEXT: usize = 256 * 1024;
/// The most bytes of a schema that a brief check compiles.
const BRIEF_SCHEMA: usize = 64 * 1024;

/// How long a check may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few milliseconds at most, for a thread that must not block.
    Brief,
    /// The whole budget: up to a second.
    Full,
}

/// Why arguments were not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// They do not fit.
    Issues(Vec<Issue>),
    /// A brief check cannot tell.
    TooSlow,
}

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
    /// A plain schema is compiled on first use: of a long list of tools most are never called.
    compiled: OnceLock<Compiled>,
    /// The text of a plain schema.
    plain: Option<Box<str>>,
    bounds: Bounds,
}

#[derive(Debug)]
struct Compiled {
    validator: jsonschema::Validator,
    plan: Plan,
}

impl Compiled {
    fn of(schema: &Value) -> Result<Self, SchemaError> {
        let validator = options().build(schema).map_err(|error| refused(&error))?;
        Ok(Self { validator, plan: Plan::of(schema)? })
    }
}

impl Validator {
    /// Compiles a schema of the dialect that its `$schema` names, 2020-12 if it names none.
    ///
    /// Patterns run on an engine that is linear in the length of its input; patterns that need look-around or
    /// back-references do not compile.
    ///
    /// # Errors
    /// When the text is not a schema, refers outside of itself, or exceeds a bound.
    pub fn compile(schema: &str) -> Result<Self, SchemaError> {
        Self::compile_with_source(schema).map(|(_, validator)| validator)
    }

    /// Like [`compile`](Self::compile), but also returns the parsed schema.
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
            let _ = compiled.set(Compiled::of(&schema)?);
        }
        Ok((schema, Self { compiled, plain, bounds }))
    }

    /// `None` only for a plain schema that does not compile, which does not exist.
    fn compiled(&self) -> Option<&Compiled> {
        if let Some(compiled) = self.compiled.get() {
            return Some(compiled);
        }
        let schema: Value = serde_json::from_str(self.plain.as_deref()?).ok()?;
        let compiled = Compiled::of(&schema).ok()?;
        Some(self.compiled.get_or_init(|| compiled))
    }

    /// Whether `instance` can be checked at all.
    pub(crate) fn can_check(&self, instance: &Value) -> bool {
        self.bounds.checked.is_none_or(|bound| complexity::depth(instance) <= bound)
            && self.compiled().is_some_and(|compiled| compiled.plan.steps(instance, MOST_STEPS).is_some())
    }

    /// Reads arguments and checks them. No key may occur twice in an object, and none may be spelled nearly like one
    /// that is declared there: another reader could interpret them differently from this check.
    ///
    /// # Errors
    /// What does not match, at least one and at most 32 issues; or that a brief check cannot tell.
    #[inline]
    pub fn read(&self, text: &str, effort: Effort) -> Result<Value, Unfit> {
        let lengthy = |bytes: usize, limit: usize| effort == Effort::Brief && bytes > limit;
        let uncompiled = self.plain.as_ref().filter(|_| self.compiled.get().is_none());
        if lengthy(text.len(), BRIEF_TEXT)
            || uncompiled.is_some_and(|schema| lengthy(schema.len(), BRIEF_SCHEMA))
        {
            return Err(Unfit::TooSlow);
        }
        let names = self.compiled().map(|compiled| &compiled.plan.names);
        let reading = strict::read(text, names).map_err(|issue| Unfit::Issues(vec![issue]))?;
        self.judge(&reading.value, reading.resembles, text.len(), effort)?;
        Ok(reading.value)
    }

    /// Checks parsed arguments like [`read`](Self::read).
    ///
    /// # Errors
    /// What does not match, at least one and at most 32 issues.
    pub fn check_arguments(&self, arguments: &Value) -> Result<(), Vec<Issue>> {
        self.judge(arguments, true, plan::bytes(arguments), Effort::Full).map_err(Unfit::into_issues)
    }

    /// Checks `instance`.
    ///
    /// # Errors
    /// What does not match, at least one and at most 32 issues.
    pub fn check(&self, instance: &Value) -> Result<(), Vec<Issue>> {
        self.try_check(instance, Effort::Full).map_err(Unfit::into_issues)
    }

    /// Checks `instance` with a limited effort.
    ///
    /// # Errors
    /// What does not match; or that a brief check cannot tell.
    pub fn try_check(&self, instance: &Value, effort: Effort) -> Result<(), Unfit> {
        self.judge(instance, false, plan::bytes(instance), effort)
    }

    fn judge(&self, instance: &Value, resembles: bool, bytes: usize, effort: Effort) -> Result<(), Unfit> {
        let refused = |message: &str| Err(Unfit::Issues(vec![whole(message)]));
        let within = |bound: Option<usize>| bound.is_none_or(|bound| complexity::depth(instance) <= bound);
        if !within(self.bounds.checked) {
            return refused("value is nested more deeply than can be checked against this schema");
        }
        let Some(Compiled { validator, plan }) = self.compiled() else {
            return refused("the schema cannot be compiled, so nothing can be checked against it");
        };
        let little = plan.is_little(bytes, ROUGHLY_BRIEF_STEPS);
        let brief = little || plan.steps(instance, BRIEF_STEPS).is_some();
        if !brief {
            if effort == Effort::Brief {
                return Err(Unfit::TooSlow);
            }
            if plan.steps(instance, MOST_STEPS).is_none() {
                return refused(TOO_MUCH);
            }
        }
        if resembles {
            match plan.lookalikes(instance, MOST_STEPS) {
                None => return refused(TOO_MUCH),
                Some(issues) if !issues.is_empty() => return Err(Unfit::Issues(issues)),
                Some(_) => {}
            }
        }
        if validator.is_valid(instance) {
            return Ok(());
        }
        let mut issues: Vec<Issue> = Vec::new();
        let explained = little || brief && plan.steps_explained(instance, BRIEF_STEPS).is_some();
        if explained && within(self.bounds.explained) {
            issues.extend(validator.iter_errors(instance).take(MOST_ISSUES).map(|error| Issue {
                instance_path: shortened(error.instance_path(), LONGEST_PATH),
                schema_path: shortened(error.schema_path(), LONGEST_PATH),
                message: shortened(&error.masked(), LONGEST_MESSAGE),
            }));
        }
        if issues.is_empty() {
            issues.push(whole("value does not match the schema"));
        }
        Err(Unfit::Issues(issues))
    }
}

/// The message for an instance whose check would take too long.
const TOO_MUCH: &str = "value is too large to be checked against this schema: it would take more than 100 million steps; \
                        send less of it at once";

impl Unfit {
    fn into_issues(self) -> Vec<Issue> {
        match self {
            Self::Issues(issues) => issues,
            // Never happens with the full effort.
            Self::TooSlow => vec![whole(TOO_MUCH)],
        }
    }
}

/// Reads arguments without a schema: no key may occur twice in an object.
///
/// # Errors
/// The place of a duplicate key; or that the text is too long to be read briefly.
pub fn without_schema(text: &str, effort: Effort) -> Result<(), Unfit> {
    if effort == Effort::Brief && text.len() > BRIEF_TEXT {
        return Err(Unfit::TooSlow);
    }
    strict::read(text, None).map(drop).map_err(|issue| Unfit::Issues(vec![issue]))
}

/// The options for compiling every schema and part of one: offline, with bounded patterns.
pub(crate) fn options<'i>() -> ValidationOptions<'i> {
    let patterns = PatternOptions::regex().size_limit(LARGEST_PATTERN).dfa_size_limit(LARGEST_PATTERN);
    jsonschema::options().offline().with_pattern_options(patterns)
}

/// An issue with the instance as a whole.
pub(crate) fn whole(message: &str) -> Issue {
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
        // The instance checked here is the schema itself, so the instance path is the place in the schema.
        _ => SchemaError::Invalid {
            path: shortened(error.instance_path(), LONGEST_PATH),
            message: shortened(error, LONGEST_MESSAGE),
        },
    }
}
