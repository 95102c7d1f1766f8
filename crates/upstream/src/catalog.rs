//! The tools of one upstream, read once and prepared for every later call.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bridgehead_schema::{HeaderParameter, OutputSchema, Validator};
use bridgehead_wire::{Era, Method, Object, Raw, RpcError, Spliced, code};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use crate::link::{Link, LinkError, Purpose, modern_params};
use crate::negotiate::Peer;

/// A list that goes on past this many pages never ends.
const MAX_PAGES: usize = 1_000;
/// More tools than this from one server are a fault of that server.
const MAX_TOOLS: usize = 50_000;

/// One tool as its upstream describes it, with what a call needs prepared.
#[derive(Debug)]
pub struct Tool {
    /// Its name upstream.
    pub name: String,
    /// Its whole definition, byte for byte.
    pub definition: Raw,
    /// Checks arguments; absent where the schema does not compile.
    pub validator: Option<Validator>,
    /// Arguments that travel as headers too.
    pub headers: Arc<[HeaderParameter]>,
    /// Whether it is annotated as changing nothing.
    pub read_only: bool,
    /// Whether it is annotated as doing no more when run twice.
    pub idempotent: bool,
    /// What it tells the model beyond its description. The protocol has no place for that; taken is a text
    /// called `instructions` in the definition itself, else in its `_meta`.
    pub instructions: Option<String>,
    /// What it promises of its results, once somebody asked for it by [`Tool::output_schema`].
    pub output: OnceLock<Option<OutputSchema>>,
}

/// What a server offers: its tools in its order, and what it tells the model about itself.
#[derive(Debug, Default)]
pub struct Listing {
    /// The tools.
    pub tools: Vec<Arc<Tool>>,
    /// What it tells the model about itself.
    pub instructions: Option<String>,
    /// Whether this was read from disk, and the server has not been asked since.
    pub cached: bool,
}

impl Listing {
    /// Whether both say the same, wherever they were read from.
    pub(crate) fn offers_the_same(&self, other: &Self) -> bool {
        let definitions =
            |listing: &Self| listing.iter().map(|tool| tool.definition.clone()).collect::<Vec<_>>();
        self.instructions == other.instructions && definitions(self) == definitions(other)
    }
}

impl Deref for Listing {
    type Target = [Arc<Tool>];

    fn deref(&self) -> &Self::Target {
        &self.tools
    }
}

/// Why a tool list could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the server refused `tools/list`: {} (code {})", .0.message(), .0.code())]
    Refused(RpcError),
    #[error("the server's answer to `tools/list` is not usable: {0}")]
    Unusable(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    tools: Vec<&'a serde_json::value::RawValue>,
    next_cursor: Option<String>,
}

/// Reads all pages. Comes with what is wrong with single tools, in words.
pub(crate) async fn list_tools(link: &Link, peer: &Peer) -> Result<(Vec<Arc<Tool>>, Vec<String>), ListError> {
    let mut tools: Vec<Arc<Tool>> = Vec::new();
    let mut findings = Findings::default();
    let mut names = HashSet::new();
    let mut cursors = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params = list_params(peer, cursor.as_deref());
        let result = match link.ask(&Method::ToolsList, &params, Purpose::Ordinary).await? {
            Ok(result) => result,
            // A server without tools need not know the method.
            Err(error) if error.code() == code::METHOD_NOT_FOUND && tools.is_empty() => {
                return Ok((tools, Vec::new()));
            }
            Err(error) => return Err(ListError::Refused(error)),
        };
        let page: Page<'_> = result.decode().map_err(|error| ListError::Unusable(error.to_string()))?;
        for definition in page.tools {
            match Tool::read(definition.get(), link.mirrors_headers(), &mut findings) {
                Some(tool) if names.insert(tool.name.clone()) => tools.push(Arc::new(tool)),
                Some(tool) => {
                    findings.add(&tool.name, "stands twice in the server's list; the first is used");
                }
                None => {}
            }
        }
        if tools.len() > MAX_TOOLS {
            return Err(ListError::Unusable(format!("more than {MAX_TOOLS} tools")));
        }
        match page.next_cursor {
            None => return Ok((tools, findings.finish())),
            Some(next) => {
                if !cursors.insert(next.clone()) {
                    return Err(ListError::Unusable(
                        "a page names a cursor that came before: the list never ends".to_owned(),
                    ));
                }
                cursor = Some(next);
            }
        }
    }
    Err(ListError::Unusable(format!("the list goes on past {MAX_PAGES} pages")))
}

fn list_params(peer: &Peer, cursor: Option<&str>) -> Spliced {
    let members = Object::empty();
    let mut edit = members.edit();
    if let Some(cursor) = cursor {
        edit.set("cursor", Raw::string(cursor));
    }
    let params = edit.finish().to_raw();
    match peer.revision.era() {
        Era::Legacy => params.into(),
        Era::Modern => modern_params(&Object::parse(&params).unwrap_or_else(|_| Object::empty())),
    }
}

/// More findings than this are only counted.
const MAX_FINDINGS: usize = 20;

/// What is wrong with single tools of a list.
#[derive(Default)]
pub(crate) struct Findings {
    words: Vec<String>,
    more: usize,
}

impl Findings {
    fn add(&mut self, tool: &str, words: &str) {
        if self.words.len() < MAX_FINDINGS {
            let shown: String = tool.chars().filter(|character| !character.is_control()).take(128).collect();
            self.words.push(format!("tool `{shown}` {words}"));
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.words.push(format!("{} more of its tools are not right", self.more));
        }
        self.words
    }
}

fn named(text: &str) -> Option<(Raw, Object, String)> {
    let definition = Raw::parse(text.to_owned()).ok()?;
    let members = Object::parse(&definition).ok()?;
    let name = members.get("name")?.to_text().filter(|name| !name.is_empty())?;
    Some((definition, members, name))
}

impl Tool {
    /// What its structured results are held against. None where the tool promises nothing, or nothing that
    /// compiles, which is told once.
    pub fn output_schema(&self) -> Option<&OutputSchema> {
        let compile = || {
            let schema = self.member("outputSchema")?;
            let told = |error| {
                warn!(tool = self.name, %error, "an output schema cannot be used, so results go through unchecked");
            };
            OutputSchema::compile(schema.as_str()).map_err(told).ok()
        };
        self.output.get_or_init(compile).as_ref()
    }

    /// Whether a result keeps what the tool promises. One that the tool calls an error has promised nothing.
    ///
    /// # Errors
    /// What is wrong with it, in words that do not quote it.
    pub fn check_output(&self, result: &Object) -> Result<(), String> {
        let Some(schema) = self.output_schema() else { return Ok(()) };
        if result.get("isError").is_some_and(|raw| raw.as_str() == "true") {
            return Ok(());
        }
        match result.get("structuredContent").map(|content| content.decode::<Value>()) {
            None => Err("`structuredContent` is missing".to_owned()),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(content)) => schema.check(&content).map_err(|issues| json!(issues).to_string()),
        }
    }

    pub(crate) fn member(&self, name: &str) -> Option<Raw> {
        Object::parse(&self.definition).ok()?.get(name)
    }

    /// Prepares one entry of a list. The definition is copied out of the page, which may then go. With
    /// `mirrored`, a tool whose `x-mcp-header` annotations are invalid is none: no call to it could be written.
    pub(crate) fn read(text: &str, mirrored: bool, findings: &mut Findings) -> Option<Self> {
        let Some((definition, members, name)) = named(text) else {
            findings.add("", "has no name and is left out; the server must give it one");
            return None;
        };
        let schema = members.get("inputSchema");
        let validator = schema.as_ref().and_then(|schema| match Validator::compile(schema.as_str()) {
            Ok(validator) => Some(validator),
            Err(error) => {
                let words = format!(
                    "has an input schema that cannot be used, so arguments go through unchecked: {error}"
                );
                findings.add(&name, &words);
                None
            }
        });
        let headers = match schema.as_ref().and_then(|schema| schema.decode::<Value>().ok()) {
            None => Vec::new(),
            Some(schema) => match bridgehead_schema::header_parameters(&schema) {
                Ok(headers) => headers,
                Err(error) if mirrored => {
                    findings.add(
                        &name,
                        &format!("has `x-mcp-header` annotations that are not valid, cannot be called over HTTP and is left out: {error}"),
                    );
                    return None;
                }
                Err(error) => {
                    findings.add(
                        &name,
                        &format!(
                            "has `x-mcp-header` annotations that are not valid and are ignored: {error}"
                        ),
                    );
                    Vec::new()
                }
            },
        };
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Annotations {
            read_only_hint: bool,
            idempotent_hint: bool,
        }
        let annotations: Annotations =
            members.get("annotations").and_then(|raw| raw.decode().ok()).unwrap_or_default();
        let meta = members.get("_meta").and_then(|meta| Object::parse(&meta).ok());
        let text = |object: &Object| object.get("instructions").and_then(|text| text.to_text());
        Some(Self {
            name,
            instructions: text(&members).or_else(|| meta.as_ref().and_then(text)),
            validator,
            headers: headers.into(),
            read_only: annotations.read_only_hint,
            idempotent: annotations.idempotent_hint,
            definition,
            output: OnceLock::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_prepared_once() {
        let text = r#"{"name":"a","x": 1.50,"inputSchema":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"annotations":{"readOnlyHint":true}}"#;
        let tool = Tool::read(text, false, &mut Findings::default()).unwrap();
        assert_eq!(tool.definition.as_str(), text, "the definition is kept byte for byte");
        assert!(tool.read_only);
        assert!(tool.validator.as_ref().unwrap().check(&serde_json::json!({"n": "x"})).is_err());
        assert_eq!(tool.headers.len(), 1);
    }

    /// LINK-2: over HTTP a tool with an invalid annotation is left out; elsewhere only the annotation is.
    #[test]
    fn invalid_annotations() {
        let text = r#"{"name":"a","inputSchema":{"properties":{"n":{"type":"number","x-mcp-header":"N"}}}}"#;
        assert!(Tool::read(text, true, &mut Findings::default()).is_none());
        assert!(Tool::read(text, false, &mut Findings::default()).unwrap().headers.is_empty());
    }

    /// CAT-5: where a tool's own instructions stand.
    #[test]
    fn instructions_of_a_tool() {
        #[track_caller]
        fn check(definition: &str, expected: Option<&str>) {
            assert_eq!(
                Tool::read(definition, false, &mut Findings::default()).unwrap().instructions.as_deref(),
                expected
            );
        }
        check(r#"{"name":"a"}"#, None);
        check(r#"{"name":"a","instructions":"x"}"#, Some("x"));
        check(r#"{"name":"a","_meta":{"instructions":"y"}}"#, Some("y"));
        check(r#"{"name":"a","instructions":"x","_meta":{"instructions":"y"}}"#, Some("x"));
        check(r#"{"name":"a","instructions":5,"_meta":{"instructions":"y"}}"#, Some("y"));
        check(r#"{"name":"a","instructions":{},"_meta":7}"#, None);
    }

    /// PIPE-3: a tool whose schema does not compile is kept, unvalidated.
    #[test]
    fn a_tool_with_a_broken_schema_is_kept() {
        let tool =
            Tool::read(r#"{"name":"a","inputSchema":{"type":5}}"#, false, &mut Findings::default()).unwrap();
        assert!(tool.validator.is_none());
        assert!(Tool::read(r#"{"title":"no name"}"#, false, &mut Findings::default()).is_none());
        assert!(Tool::read("5", false, &mut Findings::default()).is_none());
    }
}
