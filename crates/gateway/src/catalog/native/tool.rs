//! Tools written in Rust, including the built-in ones.

use std::fmt;

use bridgehead_config::Mode;
use bridgehead_schema::Validator;
use bridgehead_wire::Raw;
use serde_json::{Map, Value, json};

use super::context::ToolContext;
use super::handler::{BoundHandler, Handler, Named, ToolFailure};
use super::{RegisterError, is_plain_name};
use crate::error::GatewayError;

/// What a tool needs of the gateway's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It changes something.
    Write,
    /// It uses the upstream servers.
    Upstreams,
}

impl Need {
    const fn admitted_by(self, mode: Mode) -> bool {
        match (self, mode) {
            (_, Mode::Full | Mode::Test)
            | (Self::Upstreams, Mode::Readonly)
            | (Self::Write, Mode::Minimal) => true,
            (Self::Write, Mode::Readonly) | (Self::Upstreams, Mode::Minimal) => false,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "to change something",
            Self::Upstreams => "upstream servers",
        })
    }
}

/// A Rust tool: a function that takes JSON and returns JSON, or, with the feature `typed`, types of its own.
#[derive(Clone)]
pub struct NativeTool {
    name: String,
    title: Option<String>,
    description: String,
    input_schema: Value,
    data_schema: Value,
    needs: Vec<Need>,
    locked: bool,
    read_only: bool,
    builtin: bool,
    handler: Handler<Value, Value>,
}

/// A Rust tool with its schema compiled.
#[derive(Debug)]
pub(crate) struct RegisteredTool {
    pub(crate) tool: NativeTool,
    pub(crate) validator: Validator,
    pub(crate) definition: Raw,
}

impl NativeTool {
    /// A tool that takes arguments of `input_schema` and answers with data.
    pub fn new<F, R>(name: &str, description: &str, input_schema: Value, handler: F) -> Self
    where
        F: Fn(Value, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, ToolFailure>> + Send + 'static,
    {
        Self::with(name, description, input_schema, Handler::new(Ok, handler))
    }

    pub(super) fn with(
        name: &str,
        description: &str,
        input_schema: Value,
        handler: Handler<Value, Value>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            title: None,
            description: description.to_owned(),
            input_schema,
            data_schema: json!({}),
            needs: Vec::new(),
            locked: true,
            read_only: false,
            builtin: false,
            handler,
        }
    }

    /// Sets a display name.
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Describes the data it answers with.
    #[must_use]
    pub fn data_schema(self, data_schema: Value) -> Self {
        Self { data_schema, ..self }
    }

    /// Declares something it needs of the mode.
    #[must_use]
    pub fn needs(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    /// Lets calls of it run side by side; by default they take turns.
    #[must_use]
    pub fn concurrent(self) -> Self {
        Self { locked: false, ..self }
    }

    /// Annotates it as changing nothing.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Marks it as one of the gateway's own, which send clients nothing.
    #[must_use]
    pub(crate) fn builtin(self) -> Self {
        Self { builtin: true, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) const fn is_builtin(&self) -> bool {
        self.builtin
    }

    pub(crate) const fn locked(&self) -> bool {
        self.locked
    }

    /// The checks of registration, in the order a person would fix them. `is_taken` says whether a tool of that
    /// name is registered already.
    pub(super) fn register(
        self,
        mode: Mode,
        is_taken: impl FnOnce(&str) -> bool,
    ) -> Result<RegisteredTool, RegisterError> {
        if !is_plain_name(&self.name) {
            return Err(RegisterError::BadName(self.name));
        }
        let bad_schema = |reason: String| RegisterError::BadSchema { tool: self.name.clone(), reason };
        if !bridgehead_schema::is_object_schema(&self.input_schema) {
            return Err(bad_schema("it must be an object schema (`\"type\": \"object\"`)".to_owned()));
        }
        let validator = Validator::compile(&self.input_schema.to_string())
            .map_err(|error| bad_schema(error.to_string()))?;
        if is_taken(&self.name) {
            return Err(RegisterError::Duplicate(self.name));
        }
        if let Some(need) = self.needs.iter().find(|need| !need.admitted_by(mode)) {
            return Err(RegisterError::NotAdmitted { need: *need, mode, tool: self.name });
        }
        let definition = self.definition();
        // Clients check answers against this schema, and one that they cannot use may cost them the whole list.
        if let Err(error) = Validator::compile(&definition["outputSchema"].to_string()) {
            return Err(RegisterError::BadDataSchema { tool: self.name, reason: error.to_string() });
        }
        let definition = Raw::encode(&definition);
        Ok(RegisteredTool { tool: self, validator, definition })
    }

    /// Its entry in a tool list; the output schema describes the envelope.
    fn definition(&self) -> Value {
        let mut output = json!({
            "type": "object",
            "properties": {
                "ok": {"type": "boolean"},
                "error": {
                    "type": "object",
                    "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "details": {}},
                    "required": ["code", "message"],
                },
            },
            "required": ["ok"],
        });
        let mut data = self.data_schema.clone();
        // References in the data's schema count from its root, which is not the root of the envelope's.
        if let Some(definitions) = data.as_object_mut().and_then(|data| data.remove("$defs")) {
            output["$defs"] = definitions;
        }
        output["properties"]["data"] = data;
        refer_to_data(&mut output);
        let mut definition = json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": output,
            "annotations": {"readOnlyHint": self.read_only},
        });
        if let Some(title) = &self.title {
            definition["title"] = json!(title);
        }
        definition
    }

    pub(crate) fn named(&self) -> Named<'_> {
        Named { kind: "tool", name: &self.name }
    }

    /// Reads arguments that fit the input schema.
    pub(crate) fn read(&self, arguments: Value, debug: bool) -> Result<BoundHandler<Value>, GatewayError> {
        self.handler.read(arguments).map_err(|refused| refused.into_error(self.named(), debug))
    }
}

/// Points references to the root of the data's schema to where that is in the envelope's schema.
fn refer_to_data(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let is_root = |members: &Map<String, Value>| members.get("$ref").is_some_and(|to| to == "#");
            if is_root(members) {
                members.insert("$ref".to_owned(), json!("#/properties/data"));
            }
            members.values_mut().for_each(refer_to_data);
        }
        Value::Array(items) => items.iter_mut().for_each(refer_to_data),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

impl fmt::Debug for NativeTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeTool").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, schema: Value) -> NativeTool {
        NativeTool::new(name, "", schema, |_, _| async { Ok(json!(null)) })
    }

    fn object() -> Value {
        json!({"type": "object"})
    }

    fn check(tool: NativeTool, mode: Mode) -> Option<RegisterError> {
        tool.register(mode, |name| name == "taken").err()
    }

    /// SRV-8: a bad name, a schema that is not an object schema, and a duplicate are three errors.
    #[test]
    fn registration_refuses_by_rule() {
        for name in ["a", "_a1", "snake_case"] {
            assert_eq!(check(tool(name, object()), Mode::Full), None);
        }
        for name in ["", "A", "1a", "a-b", "a b", "ä"] {
            let expected = Some(RegisterError::BadName(name.to_owned()));
            assert_eq!(check(tool(name, object()), Mode::Full), expected);
        }
        for schema in
            [json!({"type": "string"}), json!(true), json!({}), json!({"type": "object", "properties": 5})]
        {
            let error = check(tool("a", schema), Mode::Full);
            assert!(matches!(error, Some(RegisterError::BadSchema { .. })), "{error:?}");
        }
        let words = |schema| check(tool("a", schema), Mode::Full).unwrap().to_string();
        assert_eq!(
            words(json!({"type": "string"})),
            "the input schema of tool `a` cannot be used: it must be an object schema (`\"type\": \"object\"`)"
        );
        let broken = words(json!({"type": "object", "properties": 5}));
        assert!(broken.starts_with("the input schema of tool `a` cannot be used: the schema is"), "{broken}");
        assert!(!broken.contains("must be an object schema"), "{broken}");
        let duplicate = check(tool("taken", object()), Mode::Full);
        assert_eq!(duplicate, Some(RegisterError::Duplicate("taken".to_owned())));
    }

    /// SRV-8: a schema of the data that does not compile is refused, also inside the envelope; any other is served.
    #[test]
    fn a_data_schema_must_compile() {
        for data in [json!({"type": 5}), json!({"$ref": "#/$defs/Missing"}), json!("text")] {
            let error = check(tool("a", object()).data_schema(data), Mode::Full).unwrap();
            assert!(matches!(&error, RegisterError::BadDataSchema { tool, .. } if tool == "a"), "{error:?}");
            assert!(error.to_string().starts_with("the data schema of tool `a` cannot be used: "), "{error}");
        }
        for data in [
            json!({}),
            json!(true),
            json!({"type": "string"}),
            json!({"$ref": "#/$defs/A", "$defs": {"A": {}}}),
        ] {
            assert_eq!(check(tool("a", object()).data_schema(data), Mode::Full), None);
        }
    }

    /// SRV-5: a tool that needs what the mode does not admit is refused, and the error names both.
    #[test]
    fn modes_admit_by_need() {
        let refused =
            |need, mode| check(tool("a", object()).needs(need), mode).map(|error| error.to_string());
        assert_eq!(refused(Need::Write, Mode::Full), None);
        assert_eq!(refused(Need::Write, Mode::Test), None);
        assert_eq!(refused(Need::Write, Mode::Minimal), None);
        assert_eq!(refused(Need::Upstreams, Mode::Readonly), None);
        assert_eq!(
            refused(Need::Write, Mode::Readonly).unwrap(),
            "tool `a` needs to change something, which mode `readonly` does not admit"
        );
        assert_eq!(
            refused(Need::Upstreams, Mode::Minimal).unwrap(),
            "tool `a` needs upstream servers, which mode `minimal` does not admit"
        );
    }

    /// LIB-2: references in the schema of the data still lead where they did.
    #[test]
    fn references_of_the_data_hold_in_the_envelope() {
        let data = json!({
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}, "tone": {"$ref": "#/$defs/Tone"}},
            "$defs": {"Tone": {"enum": ["kind"]}},
        });
        let definition = tool("a", object()).data_schema(data).definition();
        let described = Validator::compile(&definition["outputSchema"].to_string()).unwrap();
        let fits = |data: Value| described.check(&json!({"ok": true, "data": data})).is_ok();
        assert!(fits(json!({"kids": [{"kids": [], "tone": "kind"}], "tone": "kind"})));
        assert!(!fits(json!({"kids": [{"kids": 7}]})));
        assert!(!fits(json!({"kids": [{"tone": "curt"}]})));
    }
}
