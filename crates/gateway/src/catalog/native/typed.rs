//! Tools whose arguments and results are Rust types, and questions for Rust types.
//!
//! The schemas come from [`schemars`]; this module takes out what only describes Rust, and nothing that decides
//! what fits. Arguments are checked against the schema first and then read by serde, so a type with its own
//! `Deserialize` may still refuse them.

use bridgehead_schema::Validator;
use bridgehead_wire::Method;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use serde_path_to_error::Segment;

use super::ask::{AskError, Elicitation, bad_answer};
use super::context::ToolContext;
use super::form;
use super::handler::{Handler, ToolFailure, Unreadable};
use super::tool::NativeTool;

impl NativeTool {
    /// A tool that takes an `A` and answers with a `D`, both described by their [`schemars::JsonSchema`]. Needs the
    /// feature `typed`.
    ///
    /// The schema of `A` has to describe an object: a struct with named fields, or an enum that has one for each
    /// variant. A struct without fields takes no arguments. Arguments that fit the schema but cannot be read as an
    /// `A` are refused with `INVALID_PARAMS`, and the handler does not run.
    ///
    /// ```
    /// use bridgehead_gateway::{NativeTool, ToolContext};
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct CountWords {
    ///     /// The text to count in.
    ///     text: String,
    /// }
    ///
    /// #[derive(Serialize, JsonSchema)]
    /// struct Counted {
    ///     words: usize,
    /// }
    ///
    /// let tool = NativeTool::typed(
    ///     "count_words",
    ///     "Counts the words of a text.",
    ///     |asked: CountWords, _cx: ToolContext| async move {
    ///         Ok(Counted { words: asked.text.split_whitespace().count() })
    ///     },
    /// );
    /// # drop(tool);
    /// ```
    pub fn typed<A, D, F, R>(name: &str, description: &str, handler: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        D: Serialize + JsonSchema,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, ToolFailure>> + Send + 'static,
    {
        let handler = move |arguments: A, context| {
            let running = handler(arguments, context);
            async move {
                let data = running.await?;
                serde_json::to_value(data).map_err(|error| {
                    ToolFailure::new(format!("its result cannot be written as JSON: {error}"))
                })
            }
        };
        let input = schema::<A>(SchemaSettings::draft2020_12());
        let data = schema::<D>(SchemaSettings::draft2020_12().for_serialize());
        let handler = Handler::new(read::<A>, handler);
        Self::with(name, description, of_objects(input), handler).data_schema(data)
    }
}

impl ToolContext {
    /// Asks the user to fill in a form for a `T`. Needs the feature `typed`.
    ///
    /// `T` is a struct whose fields are texts, numbers, booleans, enums without data, lists of such enums, and options
    /// of all these. The doc comments of the fields become their descriptions. An answer that does not fit the schema
    /// of `T` is an error.
    ///
    /// ```
    /// use bridgehead_gateway::{Elicitation, NativeTool, ToolContext};
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Release {
    ///     tag: String,
    /// }
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Confirmation {
    ///     /// Whether to tell everyone.
    ///     announce: bool,
    /// }
    ///
    /// let tool = NativeTool::typed("release", "Makes a release.", |asked: Release, cx: ToolContext| async move {
    ///     let question = format!("Release {}?", asked.tag);
    ///     Ok(match cx.elicit::<Confirmation>(&question).await? {
    ///         Elicitation::Accepted(Confirmation { announce: true }) => "released and announced",
    ///         Elicitation::Accepted(_) => "released",
    ///         Elicitation::Declined | Elicitation::Cancelled => "not released",
    ///     })
    /// });
    /// # drop(tool);
    /// ```
    ///
    /// # Errors
    /// If the client cannot be asked, its answer cannot be used, or a form cannot ask for a `T`.
    pub async fn elicit<T: DeserializeOwned + JsonSchema>(
        &self,
        message: &str,
    ) -> Result<Elicitation<T>, AskError> {
        let schema =
            schema::<T>(SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true));
        let form = form::of(&schema)
            .map_err(|reason| AskError::NotAForm { name: T::schema_name().into_owned(), reason })?;
        Ok(match self.elicit_form(message, form).await? {
            Elicitation::Accepted(content) => Elicitation::Accepted(accepted(&schema, content)?),
            Elicitation::Declined => Elicitation::Declined,
            Elicitation::Cancelled => Elicitation::Cancelled,
        })
    }
}

/// What a user filled in, as a `T`.
fn accepted<T: DeserializeOwned>(schema: &Value, content: Value) -> Result<T, AskError> {
    let bad = |path: &str, message: &str| {
        let place = if path.is_empty() { String::new() } else { format!("`{path}`: ") };
        bad_answer(&Method::Elicit, format!("{place}{message}"))
    };
    // A form says less than the schema, and a client may check less than the form.
    if let Ok(validator) = Validator::compile(&schema.to_string())
        && let Err(issues) = validator.check(&content)
        && let Some(issue) = issues.first()
    {
        return Err(bad(&issue.instance_path, &issue.message));
    }
    read(content).map_err(|unreadable| bad(&unreadable.path, &unreadable.message))
}

/// Reads a `T`, and says where it cannot.
fn read<T: DeserializeOwned>(value: Value) -> Result<T, Unreadable> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut path = String::new();
        for segment in error.path() {
            match segment {
                Segment::Seq { index } => path += &format!("/{index}"),
                Segment::Map { key } => path += &format!("/{}", key.replace('~', "~0").replace('/', "~1")),
                // The variant of an enum is not a step into the value.
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        Unreadable { path, message: error.inner().to_string() }
    })
}

/// The schema of a type, without the name of the dialect, the name of the type and Rust's number formats.
fn schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let generator = settings.with(|settings| settings.meta_schema = None).into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    if schema.get("title").is_some_and(|title| *title == *T::schema_name()) {
        schema.as_object_mut().map(|schema| schema.remove("title"));
    }
    without_number_formats(&mut schema);
    schema
}

/// Removes `"format": "uint32"` and the like, which no standard knows and some clients refuse.
fn without_number_formats(schema: &mut Value) {
    const FORMATS: [&str; 14] = [
        "int8", "int16", "int32", "int64", "int128", "int", "uint8", "uint16", "uint32", "uint64", "uint128",
        "uint", "float", "double",
    ];
    match schema {
        Value::Object(members) => {
            let is_rust = |members: &Map<String, Value>| {
                let format = members.get("format").and_then(Value::as_str);
                members.contains_key("type") && format.is_some_and(|format| FORMATS.contains(&format))
            };
            if is_rust(members) {
                members.remove("format");
            }
            members.values_mut().for_each(without_number_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(without_number_formats),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The same schema with the type of its root, if it is a choice of objects: the protocol wants it there.
fn of_objects(mut schema: Value) -> Value {
    let choices = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
    let is_object = |choice: &Value| choice["type"] == "object";
    if schema.get("type").is_none() && choices.is_some_and(|choices| choices.iter().all(is_object)) {
        schema["type"] = json!("object");
    }
    schema
}

#[cfg(test)]
mod tests {
    use bridgehead_config::Mode;
    use serde::Deserialize;

    use super::super::RegisterError;
    use super::*;

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Empty {}

    /// Adds numbers.
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema matters")]
    struct Add {
        /// The first one.
        a: u32,
        b: Option<f64>,
        tone: Tone,
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    enum Tone {
        Kind,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(tag = "shape")]
    #[expect(dead_code, reason = "only its schema matters")]
    enum Area {
        Circle { radius: f64 },
        Square { side: f64 },
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Tree {
        kids: Vec<Tree>,
    }

    fn input<A: JsonSchema>() -> Value {
        of_objects(schema::<A>(SchemaSettings::draft2020_12()))
    }

    fn register<A, D>() -> Result<(), RegisterError>
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        D: Serialize + JsonSchema + Send + 'static,
    {
        let tool = NativeTool::typed("t", "", |_: A, _| std::future::pending::<Result<D, ToolFailure>>());
        tool.register(Mode::Full, |_| false).map(drop)
    }

    /// LIB-2: the schema of a type is that of its fields, with their comments and without Rust's own names.
    #[test]
    fn schemas_of_types() {
        assert_eq!(input::<Empty>(), json!({"type": "object"}));
        assert_eq!(
            input::<Add>(),
            json!({
                "type": "object",
                "description": "Adds numbers.",
                "properties": {
                    "a": {"type": "integer", "minimum": 0, "description": "The first one."},
                    "b": {"type": ["number", "null"]},
                    "tone": {"$ref": "#/$defs/Tone"},
                },
                "required": ["a", "tone"],
                "$defs": {"Tone": {"type": "string", "enum": ["Kind"]}},
            })
        );
        assert_eq!(input::<Area>()["type"], "object", "each variant is an object");
    }

    /// LIB-2: a type whose schema does not describe an object cannot be the arguments of a tool; any type can be
    /// its result.
    #[test]
    fn arguments_are_objects() {
        assert_eq!(register::<Empty, String>(), Ok(()));
        assert_eq!(register::<Area, Tree>(), Ok(()));
        assert_eq!(register::<Tree, Tree>(), Ok(()), "a type that contains itself");
        assert_eq!(register::<Add, Option<Tone>>(), Ok(()));
        for refused in [register::<String, Empty>(), register::<(), Empty>(), register::<Tone, Empty>()] {
            assert!(matches!(&refused, Err(RegisterError::BadSchema { .. })), "{refused:?}");
        }
    }

    /// LIB-2: an answer that does not fit says where.
    #[test]
    fn answers_that_do_not_fit() {
        #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
        struct Age {
            #[schemars(range(max = 120))]
            years: u8,
        }
        let schema = schema::<Age>(SchemaSettings::draft2020_12());
        assert_eq!(accepted(&schema, json!({"years": 7})), Ok(Age { years: 7 }));
        for (content, part) in [(json!({"years": 121}), "`/years`: "), (json!({}), "required")] {
            let error = accepted::<Age>(&schema, content).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
