//! `bridgehead explain`: prints which rule decides about a tool, or the pages about errors and operation, which are built into
//! the program.

pub(crate) mod in_effect;
mod render;
mod rules;

use std::fmt::Write as _;

use bridgehead_gateway::Code;
use clap::Args;
use serde_json::json;

use super::exit::Exit;
use super::meant::meant;
use super::target::Where;
use super::{Run, output, table};

/// Print which rule decides about a tool, or what an error code or a topic means
#[derive(Debug, Args)]
#[command(
    after_help = "A topic is tried as SERVER/TOOL (the name that the server knows), as a name that `bridgehead tools` shows, and as
an error code or a page. A page comes first if nobody is named with --as. Without a topic, all codes and pages are listed.

Examples:
  bridgehead explain
  bridgehead explain github/delete_repo --as corp/ada --group build
  bridgehead explain github__create_issue --as key:ci --json
  bridgehead explain PROVIDER_TIMEOUT
  bridgehead explain a-server-does-not-start"
)]
pub(crate) struct Explain {
    /// A tool, an error code or a topic
    topic: Option<String>,
    /// For whom: local, local:UID, token, key:NAME, proxy:NAME or ISSUER/SUBJECT [default: local]
    #[arg(long = "as", value_name = "WHO", requires = "topic")]
    who: Option<String>,
    /// A group that they are in besides those of a key
    #[arg(long, value_name = "GROUP", requires = "topic")]
    group: Vec<String>,
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A page of the documentation, by its path below `docs`.
macro_rules! page {
    ($path:literal) => {
        include_str!(concat!("../docs/", $path, ".md"))
    };
}

/// The troubleshooting page: one section per problem, with its cause and cure.
const TROUBLESHOOTING: &str = page!("troubleshooting");

/// Whole pages.
const PAGES: [(&str, &str); 8] = [
    ("access", page!("access")),
    ("audit", page!("audit")),
    ("configuration", page!("configuration")),
    ("environment", page!("environment")),
    ("isolation", page!("isolation")),
    ("operations", page!("operations")),
    ("remote", page!("remote")),
    ("troubleshooting", TROUBLESHOOTING),
];

/// The topic whose page is made from the code.
const EXIT_CODES: &str = "exit-codes";

/// The page of a code.
const fn about(code: Code) -> &'static str {
    match code {
        Code::InvalidParams => page!("errors/INVALID_PARAMS"),
        Code::HandlerError => page!("errors/HANDLER_ERROR"),
        Code::ProviderToolUnknown => page!("errors/PROVIDER_TOOL_UNKNOWN"),
        Code::ProviderTimeout => page!("errors/PROVIDER_TIMEOUT"),
        Code::ProviderCrashed => page!("errors/PROVIDER_CRASHED"),
        Code::ProviderUnavailable => page!("errors/PROVIDER_UNAVAILABLE"),
        Code::RestartInProgress => page!("errors/mcp_restart_in_progress"),
        Code::ProviderInitFailed => page!("errors/PROVIDER_INIT_FAILED"),
        Code::ProviderInvalidOutput => page!("errors/PROVIDER_INVALID_OUTPUT"),
        Code::SandboxUnavailable => page!("errors/SANDBOX_UNAVAILABLE"),
        Code::RestartFailed => page!("errors/mcp_restart_failed"),
        Code::AuditEnterFailed => page!("errors/AUDIT_ENTER_FAILED"),
        Code::ProviderInvalidInput => page!("errors/PROVIDER_INVALID_INPUT"),
        Code::RateLimited => page!("errors/RATE_LIMITED"),
        Code::BudgetExhausted => page!("errors/BUDGET_EXHAUSTED"),
        Code::InsufficientScope => page!("errors/INSUFFICIENT_SCOPE"),
        Code::Denied => page!("errors/DENIED"),
        Code::Cancelled => page!("errors/cancelled"),
    }
}

impl Run for Explain {
    /// A page needs neither configuration nor environment.
    fn run_anywhere(&self) -> Option<Exit> {
        Some(run(self))
    }
}

fn run(explain: &Explain) -> Exit {
    let Some(topic) = &explain.topic else { return output::data(&list(), Exit::Success) };
    let page = text(topic);
    // A page needs no configuration, unless somebody is named for whom there may be a tool of that name.
    if (page.is_none() || explain.who.is_some())
        && let Some(exit) = rules::run(explain, topic)
    {
        return exit;
    }
    if let Some(text) = page {
        return match explain.json {
            true => output::json_data(&json!({"topic": topic, "text": text}), Exit::Success),
            false => output::data(&render::page(&text, table::stdout_width()), Exit::Success),
        };
    }
    let topics = topics();
    let meant = meant(topic, topics.iter().map(String::as_str), "`bridgehead explain` lists all topics");
    output::talk(&format!("error: there is no topic `{}`; {meant}", output::one_line(topic, 100)));
    Exit::Usage
}

/// The text about a topic; letter case does not matter.
fn text(topic: &str) -> Option<String> {
    if let Some(code) = Code::ALL.into_iter().find(|code| code.as_str().eq_ignore_ascii_case(topic)) {
        let mut text = plain(about(code));
        if let Some((heading, section)) = code.section().and_then(section) {
            let _ = write!(text, "\n# {heading}\n{}", plain(section));
        }
        return Some(text);
    }
    if topic.eq_ignore_ascii_case(EXIT_CODES) {
        return Some(format!("# Exit codes\n\n{}", Exit::page()));
    }
    let page = PAGES.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(topic));
    page.map(|(_, page)| plain(page))
        .or_else(|| section(topic).map(|(heading, section)| format!("# {heading}\n{}", plain(section))))
}

/// The section of the troubleshooting page with this anchor: its heading and its text.
fn section(anchor: &str) -> Option<(&'static str, &'static str)> {
    TROUBLESHOOTING
        .split("\n## ")
        .skip(1)
        .filter_map(|section| section.split_once('\n'))
        .find(|(heading, _)| anchor_of(heading).eq_ignore_ascii_case(anchor))
}

fn anchor_of(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

/// The text without link targets, because they lead to files that are not installed.
fn plain(text: &str) -> String {
    render::without_links(text, |page, anchor| {
        let is = |name: &&str| name.eq_ignore_ascii_case(page);
        // In the page about troubleshooting each section is a topic.
        let section =
            anchor.filter(|anchor| section(anchor).is_some() && (page.is_empty() || is(&"troubleshooting")));
        let code = || Code::ALL.into_iter().map(Code::as_str).find(is);
        let name = section.or_else(|| PAGES.into_iter().map(|(name, _)| name).find(is)).or_else(code);
        name.map(str::to_owned)
    })
}

fn topics() -> Vec<String> {
    let sections = TROUBLESHOOTING.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor_of);
    let codes = Code::ALL.into_iter().map(|code| code.as_str().to_owned());
    let pages = PAGES.into_iter().map(|(name, _)| name).chain([EXIT_CODES]).map(str::to_owned);
    codes.chain(sections).chain(pages).collect()
}

fn list() -> String {
    topics().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOUR-11: the program has a text for every code and topic, and no text links to a file that is not installed.
    #[test]
    fn every_topic_has_its_text() {
        for topic in topics() {
            let text = text(&topic).unwrap_or_default();
            assert!(text.starts_with("# ") && text.len() > 100, "{topic}: {text}");
            assert!(!text.contains(".md)"), "{topic}: {text}");
            let shown = render::page(&text, Some(80));
            assert!(!shown.contains("```") && !shown.contains("]("), "{topic}: {shown}");
        }
        for code in Code::ALL {
            let text = text(&code.as_str().to_lowercase()).unwrap();
            assert!(text.contains("## Cure") && !text.contains("docs/"), "{text}");
            assert_eq!(text.matches("\n# ").count(), usize::from(code.section().is_some()), "{code}");
        }
        assert_eq!(text("nothing"), None);
    }
}
