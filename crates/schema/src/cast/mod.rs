//! Makes a value fit its schema with as few changes as possible, and lists them.
//!
//! Parts that fit are kept. A part that is missing or does not fit is filled: with its default, its constant, the
//! first of its enumerated values, or else the smallest value that fits (null, then false, 0, the empty text, list
//! and object, or a value close to those). Surplus members of a closed object and surplus elements of a closed list
//! are removed. If nothing helps, the part stays as it is, and the cast reports the issue.
//!
//! What must stay true: a value that fits is not touched; a second cast changes nothing; the changes, applied in
//! order to the original, give the result; and no schema or value makes a cast run away.

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

/// A value that still changes after this many rounds never settles.
const MOST_ROUNDS: usize = 4;

/// The output schema of a tool, compiled to check and cast its structured results.
#[derive(Debug)]
pub struct OutputSchema(Option<Compiled>);

#[derive(Debug)]
struct Compiled {
    schema: Value,
    validator: Validator,
    /// Parts of the schema by their pointer, compiled on first use.
    parts: Mutex<HashMap<String, Arc<jsonschema::Validator>>>,
}

/// A value that was made to fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// The value.
    pub value: Value,
    /// What was changed, in order.
    pub changes: Vec<CastChange>,
    /// The issues that are left; empty if it fits.
    pub issues: Vec<Issue>,
}

/// One change, as an operation of a JSON Patch (RFC 6902): the path refers to the value after the changes before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum CastChange {
    /// A part was missing.
    Add {
        /// JSON pointer to it.
        path: String,
        /// The value that was added.
        value: Value,
        /// The source of that value.
        source: CastSource,
    },
    /// A part did not fit.
    Replace {
        /// JSON pointer to it.
        path: String,
        /// The value that replaced it.
        value: Value,
        /// The source of that value.
        source: CastSource,
    },
    /// A part was surplus.
    Remove {
        /// JSON pointer to it.
        path: String,
    },
}

/// The source of a value that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CastSource {
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
    /// Compiles the output schema of a tool.
    ///
    /// # Errors
    /// As [`Validator::compile`].
    pub fn compile(schema: &str) -> Result<Self, SchemaError> {
        let (schema, validator) = Validator::compile_with_source(schema)?;
        Ok(Self(Some(Compiled { schema, validator, parts: Mutex::default() })))
    }

    /// The schema of a tool without an output schema: anything fits.
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
    /// What does not fit: at least one and at most 32 issues.
    pub fn check(&self, value: &Value) -> Result<(), Vec<Issue>> {
        self.0.as_ref().map_or(Ok(()), |compiled| compiled.validator.check(value))
    }

    /// Whether `value` fits, with a limited effort.
    ///
    /// # Errors
    /// What does not fit; or that a brief check cannot tell.
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
    /// `None` if the value does not settle.
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
