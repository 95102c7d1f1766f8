//! What one upstream offers, read once: tools, prepared for every later call, prompts, resources and templates.

pub(crate) mod cache;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bridgehead_schema::{Effort, HeaderParameter, OutputSchema, Unfit, Validator};
use bridgehead_wire::held::Reservation;
use bridgehead_wire::{Era, Method, Object, Raw, RpcError, Spliced, code, key};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::link::negotiate::Peer;
use crate::link::{Link, LinkError, Purpose, modern_params};

/// A list that goes on past this many pages never ends.
const MAX_PAGES: usize = 1_000;
/// A longer list from one server is a fault of that server.
const MAX_ENTRIES: usize = 50_000;

/// How much memory an entry of a list takes for each byte of it: its definition here, and those in the prepared lists.
const ENTRY_WEIGHT: usize = 3;

/// Bytes of a result that are read without holding anybody up.
const BRIEF_OUTPUT: usize = 256 * 1024;

/// Why a result was not found to keep what its tool promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// It does not keep it.
    #[error("{0}")]
    Broken(String),
    /// To find out takes longer than a thread that serves others may be held up.
    #[error("it could not be checked briefly")]
    NotBriefly,
}

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
    /// What it takes of what is held for its server.
    pub held: Option<Reservation>,
}

/// One prompt, resource or resource template as its upstream describes it.
#[derive(Debug)]
pub struct Item {
    /// What it is asked for by: the name of a prompt, the URI of a resource, the pattern of a template.
    pub name: String,
    /// Its whole definition, byte for byte.
    pub definition: Raw,
    /// What it takes of what is held for its server.
    pub held: Option<Reservation>,
}

/// Items in the order of their server. Those that did not change are the same allocation.
pub type Items = Arc<[Arc<Item>]>;

/// What a server says that it has, as far as it matters here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Prompts.
    pub prompts: bool,
    /// Resources and templates of them.
    pub resources: bool,
    /// Resources whose changes it tells of.
    pub subscribe: bool,
    /// Suggestions for arguments.
    pub completions: bool,
    /// Log lines for clients.
    pub logging: bool,
    /// Calls that go on as tasks (an extension of the modern era).
    pub tasks: bool,
    /// Tools with a user interface (an extension).
    pub ui: bool,
    /// Whether it tells when one of its lists changes.
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

    /// As they are written down.
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

    /// What either has.
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

/// Some of the lists of a server; the templates go with the resources.
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

    /// Whether `other` is among them.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// These, but not `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there are none.
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

/// What a server offers, each list in its order, and what it tells the model about itself.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The tools.
    pub tools: Vec<Arc<Tool>>,
    /// The prompts.
    pub prompts: Items,
    /// The resources.
    pub resources: Items,
    /// The patterns of resources.
    pub templates: Items,
    /// What it says that it has.
    pub features: Features,
    /// What it says that it tries out, as it says it.
    pub experimental: Option<Raw>,
    /// What it tells the model about itself.
    pub instructions: Option<String>,
    /// Whether this was read from disk, and the server has not been asked since.
    pub cached: bool,
}

impl Listing {
    /// Whether both say the same, wherever they were read from.
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

/// Reads all pages of a list, each entry as its text. A server that has nothing of the kind need not know the method.
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
                let next = next.to_text().ok_or_else(|| unusable("`nextCursor` is no text".to_owned()))?;
                if !cursors.insert(next.clone()) {
                    return Err(unusable(
                        "a page names a cursor that came before: the list never ends".to_owned(),
                    ));
                }
                cursor = Some(next);
            }
        }
    }
    Err(unusable(format!("the list goes on past {MAX_PAGES} pages")))
}

/// Reads the tools. Comes with what is wrong with single ones, in words.
pub(crate) async fn list_tools(link: &Link, peer: &Peer) -> Result<(Vec<Arc<Tool>>, Vec<String>), ListError> {
    let mut tools: Vec<Arc<Tool>> = Vec::new();
    let mut findings = Findings::default();
    let mut names = HashSet::new();
    pages(link, peer, &Method::ToolsList, "tools", |text, held| {
        match Tool::read(text, link.mirrors_headers(), &mut findings) {
            Some(tool) if names.insert(tool.name.clone()) => {
                tools.push(Arc::new(Tool { held: Some(held), ..tool }));
            }
            Some(tool) => findings.add(&tool.name, "stands twice in the server's list; the first is used"),
            None => {}
        }
    })
    .await?;
    Ok((tools, findings.finish()))
}

/// Which list of items.
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

    /// Reads one entry. It is copied out of the page, which may then go.
    pub(crate) fn read(self, text: &str) -> Option<Item> {
        let (definition, _, name) = named(text, self.words().2)?;
        Some(Item { name, definition, held: None })
    }
}

/// Reads a list of items. One without a name, or that stands twice, is left out.
pub(crate) async fn list_items(link: &Link, peer: &Peer, list: ItemList) -> Result<Items, ListError> {
    let (method, member, _) = list.words();
    let mut items: Vec<Arc<Item>> = Vec::new();
    let mut names = HashSet::new();
    pages(link, peer, &method, member, |text, held| match list.read(text) {
        Some(item) if names.insert(item.name.clone()) => {
            items.push(Arc::new(Item { held: Some(held), ..item }));
        }
        _ => debug!(%method, "left out an entry that has no name or stands twice"),
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

fn named(text: &str, member: &str) -> Option<(Raw, Object, String)> {
    let definition = Raw::parse(text.to_owned()).ok()?;
    let members = Object::parse(&definition).ok()?;
    let name = members.get(member)?.to_text().filter(|name| !name.is_empty())?;
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
    /// What is wrong with it, in words that do not quote it; or that it cannot be found out briefly.
    pub fn check_output(&self, result: &Object, effort: Effort) -> Result<(), OutputError> {
        let Some(schema) = self.output_schema() else { return Ok(()) };
        if result.get("isError").is_some_and(|raw| raw.as_str() == "true") {
            return Ok(());
        }
        let Some(content) = result.get("structuredContent") else {
            return Err(OutputError::Broken("`structuredContent` is missing".to_owned()));
        };
        if effort == Effort::Brief && content.bytes().len() > BRIEF_OUTPUT {
            return Err(OutputError::NotBriefly);
        }
        let content: Value = content.decode().map_err(|error| OutputError::Broken(error.to_string()))?;
        schema.try_check(&content, effort).map_err(|unfit| match unfit {
            Unfit::Issues(issues) => OutputError::Broken(json!(issues).to_string()),
            Unfit::NotBriefly => OutputError::NotBriefly,
        })
    }

    pub(crate) fn member(&self, name: &str) -> Option<Raw> {
        Object::parse(&self.definition).ok()?.get(name)
    }

    /// Prepares one entry of a list. The definition is copied out of the page, which may then go. With
    /// `mirrored`, a tool whose `x-mcp-header` annotations are invalid is none: no call to it could be written.
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
        struct Execution {
            task_support: String,
        }
        let execution = members.get("execution").and_then(|raw| raw.decode::<Execution>().ok());
        if execution.is_some_and(|execution| execution.task_support == "required") {
            findings.add(&name, "runs as a task of 2025-11-25 only, which is not relayed, and is left out");
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
