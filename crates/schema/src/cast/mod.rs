//! Makes a value fit its schema with as few changes as can be, and says which.
//!
//! What fits is kept. A part that is missing or does not fit is filled: from its default, its constant, the first of
//! its enumerated values, else with the smallest value that fits (null, then false, 0, the empty text, list and
//! object, or what comes next to them). What a closed object or list has too much is removed. Where nothing helps
//! the part stays as it is, and the cast says that it does not fit.
//!
//! What must stay true: a value that fits is not touched; casting twice is casting once; the changes, applied in
//! order to what came, give what is returned; and neither a schema nor a value makes it run away.

mod repair;
mod smallest;
mod walk;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde_json::Value;

use crate::validator::{Effort, Unfit, Validator};
use crate::{Issue, SchemaError};
use walk::Walk;

/// What is still changing after so many rounds never settles.
const MOST_ROUNDS: usize = 4;

/// What a tool promises of its structured results, ready to hold them against it.
#[derive(Debug)]
pub struct OutputSchema(Option<Compiled>);

#[derive(Debug)]
struct Compiled {
    schema: Value,
    validator: Validator,
    /// Parts of the schema, by their place in it, compiled when they were first needed.
    parts: Mutex<HashMap<String, Arc<jsonschema::Validator>>>,
}

/// A value that was made to fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// The value.
    pub value: Value,
    /// What was changed, in order.
    pub changes: Vec<Change>,
    /// In what it does not fit all the same; empty where it fits.
    pub issues: Vec<Issue>,
}

/// One change, as an operation of a JSON Patch (RFC 6902): the path leads into the value as the changes before it
/// have left it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Change {
    /// Something was missing.
    Add {
        /// JSON pointer to it.
        path: String,
        /// What was put in.
        value: Value,
        /// Where that comes from.
        source: Source,
    },
    /// Something did not fit.
    Replace {
        /// JSON pointer to it.
        path: String,
        /// What was put in its place.
        value: Value,
        /// Where that comes from.
        source: Source,
    },
    /// Something was too much.
    Remove {
        /// JSON pointer to it.
        path: String,
    },
}

/// Where a value that was put in comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `default`.
    Default,
    /// `const`.
    Const,
    /// `enum`.
    Enum,
    /// The smallest value that fits.
    Smallest,
}

impl OutputSchema {
    /// Compiles what a tool calls its output schema.
    ///
    /// # Errors
    /// As [`Validator::compile`].
    pub fn compile(schema: &str) -> Result<Self, SchemaError> {
        let (schema, validator) = Validator::compile_with_source(schema)?;
        Ok(Self(Some(Compiled { schema, validator, parts: Mutex::default() })))
    }

    /// The schema of a tool that promises nothing: anything fits.
    #[must_use]
    pub const fn anything() -> Self {
        Self(None)
    }

    /// The schema itself.
    #[must_use]
    pub fn schema(&self) -> &Value {
        self.0.as_ref().map_or(&Value::Bool(true), |compiled| &compiled.schema)
    }

    /// Whether `value` fits.
    ///
    /// # Errors
    /// What does not, at least one and at most 32 issues.
    pub fn check(&self, value: &Value) -> Result<(), Vec<Issue>> {
        self.0.as_ref().map_or(Ok(()), |compiled| compiled.validator.check(value))
    }

    /// Whether `value` fits, found out with an effort.
    ///
    /// # Errors
    /// What does not; or that it cannot be found out briefly.
    pub fn try_check(&self, value: &Value, effort: Effort) -> Result<(), Unfit> {
        self.0.as_ref().map_or(Ok(()), |compiled| compiled.validator.try_check(value, effort))
    }

    /// Makes `raw` fit.
    #[must_use]
    pub fn cast(&self, raw: &Value) -> Cast {
        let as_it_is = |issues| Cast { value: raw.clone(), changes: Vec::new(), issues };
        let Some(compiled) = &self.0 else { return as_it_is(Vec::new()) };
        match compiled.validator.check(raw) {
            Ok(()) => as_it_is(Vec::new()),
            Err(issues) if !compiled.validator.can_check(raw) => as_it_is(issues),
            Err(issues) => compiled.cast(raw).unwrap_or_else(|| as_it_is(issues)),
        }
    }
}

impl Compiled {
    /// None where it does not settle.
    fn cast(&self, raw: &Value) -> Option<Cast> {
        let (mut value, mut changes) = (raw.clone(), Vec::new());
        for _ in 0..MOST_ROUNDS {
            let round = Walk::over(&self.schema, &self.parts, &value)?.cast(&value);
            let settled = round.changes.is_empty();
            value = round.value;
            changes.extend(round.changes);
            match self.validator.check(&value) {
                Ok(()) => return Some(Cast { value, changes, issues: Vec::new() }),
                Err(issues) if settled => return Some(Cast { value, changes, issues }),
                Err(_) => {}
            }
        }
        None
    }
}
