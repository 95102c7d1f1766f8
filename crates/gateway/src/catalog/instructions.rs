//! Joins the instructions of every server and its tools into one text for the model.

use std::fmt::Write;
use std::sync::Arc;

/// The section of one server: its own instructions, the names of its prompts, and the instructions of its
/// tools under their offered names. `None` if the section would be empty.
pub(crate) fn section<'a>(
    server: &str,
    own: Option<&str>,
    prompts: &[&str],
    tools: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<String> {
    let mut text = String::new();
    let own = own.map(str::trim).filter(|own| !own.is_empty());
    if let Some(own) = own {
        let _ = write!(text, "\n\n{own}");
    }
    if !prompts.is_empty() {
        let names: Vec<String> = prompts.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(text, "\n\nPrompts: {}", names.join(", "));
    }
    for (name, words) in tools {
        let words = words.trim();
        if !words.is_empty() {
            let _ = write!(text, "\n\n##### Tool: {name}\n\n{words}");
        }
    }
    (!text.is_empty()).then(|| format!("#### MCP Server: {server}{text}"))
}

/// Says that the instructions are partial, because these servers are still starting. `None` if they are complete.
pub(crate) fn partial(missing: &[Arc<str>]) -> Option<String> {
    let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    let (last, before) = names.split_last()?;
    Some(match before {
        [] => format!(
            "These instructions are partial: MCP server {last} is still starting. Its tools are listed when it is ready."
        ),
        _ => format!(
            "These instructions are partial: MCP servers {} and {last} are still starting. Their tools are listed when they \
             are ready.",
            before.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-5: partial instructions name the servers that are missing; complete ones say nothing.
    #[test]
    fn what_is_missing_is_named() {
        #[track_caller]
        fn check(missing: &[&str], expected: Option<&str>) {
            let missing: Vec<Arc<str>> = missing.iter().map(|name| (*name).into()).collect();
            assert_eq!(partial(&missing).as_deref(), expected);
        }
        check(&[], None);
        check(
            &["a"],
            Some(
                "These instructions are partial: MCP server `a` is still starting. Its tools are listed when it is ready.",
            ),
        );
        check(
            &["a", "b", "c"],
            Some(
                "These instructions are partial: MCP servers `a`, `b` and `c` are still starting. Their tools are listed when \
                 they are ready.",
            ),
        );
    }

    #[track_caller]
    fn check(own: Option<&str>, tools: &[(&str, &str)], expected: Option<&str>) {
        assert_eq!(section("files", own, &[], tools.iter().copied()).as_deref(), expected);
    }

    /// CAT-5: the names of prompts come between the server's own text and the tools' texts.
    #[test]
    fn prompts_are_named() {
        let text = section(
            "files",
            Some("Be kind."),
            &["files__a", "files__b"],
            [("files__t", "Once.")].into_iter(),
        );
        assert_eq!(
            text.as_deref(),
            Some(
                "#### MCP Server: files\n\nBe kind.\n\nPrompts: `files__a`, `files__b`\n\n##### Tool: files__t\n\nOnce."
            )
        );
    }

    /// CAT-5: headings, then the server's own text, then the tools' texts.
    #[test]
    fn sections_by_rule() {
        check(None, &[], None);
        check(Some(" \n"), &[("files__a", "")], None);
        check(Some("Be kind.\n"), &[], Some("#### MCP Server: files\n\nBe kind."));
        check(
            None,
            &[("files__a", "Once."), ("files__b", " Twice. ")],
            Some("#### MCP Server: files\n\n##### Tool: files__a\n\nOnce.\n\n##### Tool: files__b\n\nTwice."),
        );
        check(
            Some("Be kind."),
            &[("files__a", "Once.")],
            Some("#### MCP Server: files\n\nBe kind.\n\n##### Tool: files__a\n\nOnce."),
        );
    }
}
