//! What one upstream offers, read once: its tools, prepared for every later call, and its prompts, resources and
//! templates.

pub(crate) mod cache;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bridgehead_events::{Signal, Signals};
use bridgehead_schema::{Effort, Envelope, HeaderParameter, OutputSchema, Unfit, Validator};
use bridgehead_wire::held::Reservation;
use bridgehead_wire::{Era, Method, Object, Raw, RpcError, Spliced, code, key};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::link::negotiate::Peer;
use crate::link::{Link, LinkError, Purpose, modern_params};

/// The most pages of one list; a longer list counts as endless.
const MAX_PAGES: usize = 1_000;
/// The most entries of one list; a longer list is the server's fault.
const MAX_ENTRIES: usize = 50_000;

/// Memory held per byte of a list entry: its definition here, and its copies in the prepared lists.
const ENTRY_WEIGHT: usize = 3;

/// The largest result, in bytes, that is checked on a thread that serves other calls.
const BRIEF_OUTPUT: usize = 256 * 1024;

/// Why a result does not pass the check against its tool's output schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// It violates the schema.
    #[error("{0}")]
    Broken(String),
    /// The check would hold up a thread that serves other calls for too long.
    #[error("it takes too long to check")]
    TooSlow,
}

/// One tool as its upstream describes it, prepared for calls.
#[derive(Debug)]
pub struct Tool {
    /// Its name at the upstream.
    pub name: String,
    /// Its whole definition, byte for byte.
    pub definition: Raw,
    /// Checks arguments; absent if the schema does not compile.
    pub validator: Option<Validator>,
    /// Arguments that are also sent as headers.
    pub headers: Arc<[HeaderParameter]>,
    /// Whether it is annotated as changing nothing.
    pub read_only: bool,
    /// Whether it is annotated as idempotent.
    pub idempotent: bool,
    /// Instructions for the model beyond its description. The protocol has no place for them: they are taken from
    /// the string `instructions` in the definition, else in its `_meta`.
    pub instructions: Option<String>,
    /// Its output schema, compiled on the first call of [`Tool::output_schema`].
    pub output: OnceLock<Option<OutputSchema>>,
    /// Its share of the memory that is held for its server.
    pub held: Option<Reservation>,
}

/// One prompt, resource or resource template as its upstream describes it.
#[derive(Debug)]
pub struct Item {
    /// Its identifier: the name of a prompt, the URI of a resource, the pattern of a template.
    pub name: String,
    /// Its whole definition, byte for byte.
    pub definition: Raw,
    /// Its share of the memory that is held for its server.
    pub held: Option<Reservation>,
}

/// Items in their server's order. Unchanged items keep their allocation.
pub type Items = Arc<[Arc<Item>]>;

/// The capabilities of a server that matter to the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Prompts.
    pub prompts: bool,
    /// Resources and resource templates.
    pub resources: bool,
    /// Notifications when a resource changes.
    pub subscribe: bool,
    /// Completions of arguments.
    pub completions: bool,
    /// Log lines for clients.
    pub logging: bool,
    /// Calls that continue as tasks (an extension of the modern era).
    pub tasks: bool,
    /// Tools with a user interface (an extension).
    pub ui: bool,
    /// The lists whose changes it announces.
    pub changes: Lists,
}

impl Features {
    /// What a server's capabilities declare.
    pub fn declared(capabilities: &Raw) -> Self {
        let object = Object::parse(capabilities).unwrap_or_else(|_| Object::empty());
        let member = |name: &str| object.get(name).and_then(|raw| Object::parse(&raw).ok());
        let says = |member: &Option<Object>, name: &str| {
            member.as_ref().and_then(|member| member.get(name)).is_some_and(|raw| raw.as_str() == "true")
        };
        let (tools, prompts, resources) = (member("tools"), member("prompts"), member("resources"));
        let extensions = member("extensions");
        let extends = |name| extensions.as_ref().is_some_and(|all| all.get(name).is_some());
        let mut changes = Lists::NONE;
        for (member, list) in
            [(&tools, Lists::TOOLS), (&prompts, Lists::PROMPTS), (&resources, Lists::RESOURCES)]
        {
            if says(member, "listChanged") {
                changes = changes | list;
            }
        }
        Self {
            subscribe: says(&resources, "subscribe"),
            prompts: prompts.is_some(),
            resources: resources.is_some(),
            completions: member("completions").is_some(),
            logging: member("logging").is_some(),
            tasks: extends(key::TASKS),
            ui: extends(key::UI),
            changes,
        }
    }

    /// The flags as the cache file holds them.
    pub(crate) const fn flags(self) -> [bool; 10] {
        let Self { prompts, resources, subscribe, completions, logging, tasks, ui, changes } = self;
        [
            prompts,
            resources,
            subscribe,
            completions,
            logging,
            tasks,
            ui,
            changes.has(Lists::TOOLS),
            changes.has(Lists::PROMPTS),
            changes.has(Lists::RESOURCES),
        ]
    }

    pub(crate) fn from_flags(flags: [bool; 10]) -> Self {
        let [prompts, resources, subscribe, completions, logging, tasks, ui, changes @ ..] = flags;
        let lists = [Lists::TOOLS, Lists::PROMPTS, Lists::RESOURCES];
        let changes = lists.into_iter().zip(changes).filter(|(_, told)| *told);
        let changes = changes.fold(Lists::NONE, |all, (list, _)| all | list);
        Self { prompts, resources, subscribe, completions, logging, tasks, ui, changes }
    }

    /// The features of either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            prompts: self.prompts || other.prompts,
            resources: self.resources || other.resources,
            subscribe: self.subscribe || other.subscribe,
            completions: self.completions || other.completions,
            logging: self.logging || other.logging,
            tasks: self.tasks || other.tasks,
            ui: self.ui || other.ui,
            changes: self.changes | other.changes,
        }
    }
}

/// Some of the lists of a server; the templates belong to the resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lists(u8);

impl Lists {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// The tools.
    pub const TOOLS: Self = Self(1);
    /// The prompts.
    pub const PROMPTS: Self = Self(2);
    /// The resources and their templates.
    pub const RESOURCES: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Whether `other` is among these.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The lists in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// These without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there are no lists.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

impl std::ops::BitOr for Lists {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a server offers, each list in the server's order, and its instructions for the model.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The tools.
    pub tools: Vec<Arc<Tool>>,
    /// The prompts.
    pub prompts: Items,
    /// The resources.
    pub resources: Items,
    /// The resource templates.
    pub templates: Items,
    /// Its capabilities.
    pub features: Features,
    /// Its experimental capabilities, as it wrote them.
    pub experimental: Option<Raw>,
    /// Its instructions for the model.
    pub instructions: Option<String>,
    /// Whether this was read from disk and the server has not been asked since.
    pub cached: bool,
}

impl Listing {
    /// Whether both offer the same, regardless of where they were read from.
    pub(crate) fn offers_the_same(&self, other: &Self) -> bool {
        let same_items = |one: &Items, other: &Items| {
            Arc::ptr_eq(one, other)
                || one.iter().map(|item| &item.definition).eq(other.iter().map(|item| &item.definition))
        };
        self.instructions == other.instructions
            && self.features == other.features
            && self.experimental == other.experimental
            && self.iter().map(|tool| &tool.definition).eq(other.iter().map(|tool| &tool.definition))
            && same_items(&self.prompts, &other.prompts)
            && same_items(&self.resources, &other.resources)
            && same_items(&self.templates, &other.templates)
    }
}

impl Deref for Listing {
    type Target = [Arc<Tool>];

    fn deref(&self) -> &Self::Target {
        &self.tools
    }
}

/// Why a list could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the server refused `{}`: {} (code {})", .0, .1.message(), .1.code())]
    Refused(Method, RpcError),
    #[error("the server's answer to `{0}` is not usable: {1}")]
    Unusable(Method, String),
}

/// Reads all pages of a list and passes on each entry as text. A server without such a list need not know the
/// method.
async fn pages(
    link: &Link,
    peer: &Peer,
    method: &Method,
    member: &str,
    mut take: impl FnMut(&str, Reservation),
) -> Result<(), ListError> {
    let unusable = |reason: String| ListError::Unusable(method.clone(), reason);
    let mut taken = 0;
    let mut cursors = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params = list_params(peer, cursor.as_deref());
        let result = match link.ask(method, &params, Purpose::Ordinary).await? {
            Ok(result) => result,
            Err(error) if error.code() == code::METHOD_NOT_FOUND && taken == 0 => return Ok(()),
            Err(error) => return Err(ListError::Refused(method.clone(), error)),
        };
        let page = Object::parse(&result).map_err(|error| unusable(error.to_string()))?;
        let entries = page.get(member).ok_or_else(|| unusable(format!("it has no `{member}`")))?;
        let entries: Vec<&serde_json::value::RawValue> =
            entries.decode().map_err(|error| unusable(error.to_string()))?;
        taken += entries.len();
        if taken > MAX_ENTRIES {
            return Err(unusable(format!("more than {MAX_ENTRIES} entries")));
        }
        for entry in entries {
            let held = link.account().reserve(entry.get().len() * ENTRY_WEIGHT);
            take(entry.get(), held.map_err(|no_room| unusable(format!("it is too large: {no_room}")))?);
        }
        match page.get("nextCursor").filter(|next| !next.is_null()) {
            None => return Ok(()),
            Some(next) => {
                let next =
                    next.to_text().ok_or_else(|| unusable("`nextCursor` is not a string".to_owned()))?;
                if !cursors.insert(next.clone()) {
                    return Err(unusable("a page repeats an earlier cursor: the list never ends".to_owned()));
                }
                cursor = Some(next);
            }
        }
    }
    Err(unusable(format!("the list has more than {MAX_PAGES} pages")))
}

/// Reads the tools. Also returns the problems of single tools, as text.
pub(crate) async fn list_tools(link: &Link, peer: &Peer) -> Result<(Vec<Arc<Tool>>, Vec<String>), ListError> {
    let mut tools: Vec<Arc<Tool>> = Vec::new();
    let mut findings = Findings::default();
    let mut names = HashSet::new();
    pages(link, peer, &Method::ToolsList, "tools", |text, held| {
        match Tool::read(text, link.mirrors_headers(), &mut findings) {
            Some(tool) if names.insert(tool.name.clone()) => {
                tools.push(Arc::new(Tool { held: Some(held), ..tool }));
            }
            Some(tool) => findings.add(&tool.name, "appears twice in the server's list; the first is used"),
            None => {}
        }
    })
    .await?;
    Ok((tools, findings.finish()))
}

/// One of the lists of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemList {
    Prompts,
    Resources,
    Templates,
}

impl ItemList {
    /// The method that reads it, the member that holds it, and the member that names an item.
    const fn words(self) -> (Method, &'static str, &'static str) {
        match self {
            Self::Prompts => (Method::PromptsList, "prompts", "name"),
            Self::Resources => (Method::ResourcesList, "resources", "uri"),
            Self::Templates => (Method::TemplatesList, "resourceTemplates", "uriTemplate"),
        }
    }

    /// Reads one entry. The text is copied out of the page, so that the page can be freed.
    pub(crate) fn read(self, text: &str) -> Option<Item> {
        let (definition, _, name) = named(text, self.words().2)?;
        Some(Item { name, definition, held: None })
    }
}

/// Reads a list of items. Leaves out entries without a name and duplicates.
pub(crate) async fn list_items(link: &Link, peer: &Peer, list: ItemList) -> Result<Items, ListError> {
    let (method, member, _) = list.words();
    let mut items: Vec<Arc<Item>> = Vec::new();
    let mut names = HashSet::new();
    pages(link, peer, &method, member, |text, held| match list.read(text) {
        Some(item) if names.insert(item.name.clone()) => {
            items.push(Arc::new(Item { held: Some(held), ..item }));
        }
        _ => debug!(%method, "left out an entry that has no name or is a duplicate"),
    })
    .await?;
    Ok(items.into())
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

/// Findings beyond this many are only counted.
const MAX_FINDINGS: usize = 20;

/// The problems of single tools in a list.
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
            self.words.push(format!("{} more of its tools have problems", self.more));
        }
        self.words
    }
}

fn named(text: &str, member: &str) -> Option<(Raw, Object, String)> {
    let definition = Raw::parse(text.to_owned()).ok()?;
    let members = Object::parse(&definition).ok()?;
    let name = members.get(member)?.to_text().filter(|name| !name.is_empty())?;
    Some((definition, members, name))
}

impl Tool {
    /// Casts the data of a result to the tool's output schema, and reports the cast. A tool without a usable schema may answer
    /// with anything.
    pub fn cast(&self, result: Envelope, signals: &Signals) -> Envelope {
        let anything = OutputSchema::anything();
        let cast = result.cast(self.output_schema().unwrap_or(&anything));
        if cast.meta.structured_content.is_some() && !cast.meta.is_error {
            let (changes, issues) = (cast.meta.cast.len(), cast.meta.issues.len());
            signals.emit(&Signal::Cast { changes, issues });
        }
        cast
    }

    /// The schema that its structured results are checked against. `None` if the tool declares no schema, or
    /// one that does not compile; the latter is logged once.
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

    /// Whether a result matches the tool's output schema. A result that the tool marks as an error is not checked.
    ///
    /// # Errors
    /// Why it does not match, without quoting it; or that the check would take too long.
    pub fn check_output(&self, result: &Object, effort: Effort) -> Result<(), OutputError> {
        let Some(schema) = self.output_schema() else { return Ok(()) };
        if result.get("isError").is_some_and(|raw| raw.as_str() == "true") {
            return Ok(());
        }
        let Some(content) = result.get("structuredContent") else {
            return Err(OutputError::Broken("`structuredContent` is missing".to_owned()));
        };
        if effort == Effort::Brief && content.bytes().len() > BRIEF_OUTPUT {
            return Err(OutputError::TooSlow);
        }
        let content: Value = content.decode().map_err(|error| OutputError::Broken(error.to_string()))?;
        schema.try_check(&content, effort).map_err(|unfit| match unfit {
            Unfit::Issues(issues) => OutputError::Broken(json!(issues).to_string()),
            Unfit::TooSlow => OutputError::TooSlow,
        })
    }

    pub(crate) fn member(&self, name: &str) -> Option<Raw> {
        Object::parse(&self.definition).ok()?.get(name)
    }

    /// Prepares one entry of a list. The definition is copied out of the page, so that the page can be freed. With
    /// `mirrored`, a tool with invalid `x-mcp-header` annotations is left out: no call to it could be written.
    pub(crate) fn read(text: &str, mirrored: bool, findings: &mut Findings) -> Option<Self> {
        let Some((definition, members, name)) = named(text, "name") else {
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
                        &format!("has `x-mcp-header` annotations that are not valid, so it cannot be called over HTTP and is left out: {error}"),
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
        struct Execution {
            task_support: String,
        }
        let execution = members.get("execution").and_then(|raw| raw.decode::<Execution>().ok());
        if execution.is_some_and(|execution| execution.task_support == "required") {
            findings.add(&name, "runs only as a task of 2025-11-25, which is not relayed, and is left out");
            return None;
        }
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
            held: None,
        })
    }
}

#[cfg(test)]
mod tests;
