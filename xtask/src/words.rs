//! `cargo xtask words`: texts follow a few rules that a program can check.
//!
//! Pages and comments avoid phrases that readers stumble over. Texts that the program shows name no path of this repository,
//! because whoever installs the program has no copy of it. What a program cannot check is in CONTRIBUTING.md.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::steps;

/// Phrases to avoid, and what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("of its own accord", "unprompted"),
    ("to be had", "available"),
    ("for want of", "without"),
    ("whosoever", "who"),
    ("whatsoever", "any"),
    ("hitherto", "so far"),
    ("thereby", "so"),
    ("therein", "in it"),
    ("thereof", "of it"),
    ("in order to", "to"),
    ("that is none", "that is missing or malformed"),
    ("but for the", "except the"),
    ("at the most", "at most"),
    ("at the least", "at least"),
    ("seamless", "(leave it out)"),
    ("leverage", "use"),
];

/// The crates whose texts users see.
const PRODUCT: &[&str] = &[
    "audit",
    "bridgehead",
    "call",
    "cli",
    "config",
    "events",
    "front",
    "gateway",
    "lines",
    "process",
    "schema",
    "upstream",
    "wire",
];

/// Parts of a path into this repository.
const PATHS: &[&str] = &["crates/", "xtask/", "docs/"];

/// Fails where a text breaks a rule, and names the line.
pub(crate) fn check(root: &Path) -> Result<()> {
    let files = steps::output(root, "git", &["ls-files", "*.rs", "*.md"])?;
    let files = String::from_utf8(files).context("a file name is not text")?;
    let mut complaints = Vec::new();
    for path in files.lines().filter(|path| !is_exempt(path)) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        complaints.extend(phrases(path, &text));
        if is_product(path) {
            complaints.extend(repository_paths(path, &text)?);
        }
    }
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n   "));
    }
    Ok(())
}

/// The list above breaks the rules itself.
fn is_exempt(path: &str) -> bool {
    path == "xtask/src/words.rs"
}

fn is_product(path: &str) -> bool {
    PRODUCT.iter().any(|name| {
        path.strip_prefix("crates/").and_then(|path| path.strip_prefix(name)).is_some_and(|path| {
            path.starts_with("/src/") && path.ends_with(".rs") && !path.ends_with("tests.rs")
        })
    })
}

fn phrases(path: &str, text: &str) -> Vec<String> {
    let lines = (1..).zip(text.lines());
    let found = lines.flat_map(|(number, line)| {
        let line = if path.ends_with(".rs") { comment(line) } else { line }.to_lowercase();
        PHRASES.iter().filter(move |(phrase, _)| has_words(&line, phrase)).map(move |(phrase, instead)| {
            format!("{path}:{number}: say \"{instead}\" instead of \"{phrase}\"")
        })
    });
    found.collect()
}

/// The comment of a line of code, or nothing.
fn comment(line: &str) -> &str {
    line.find("//").and_then(|at| line.get(at..)).unwrap_or_default()
}

/// Whether a line has a phrase as whole words.
fn has_words(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + phrase.len()..).and_then(|text| text.chars().next());
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

/// String literals of a source, outside of its tests, that name a path of the repository.
fn repository_paths(path: &str, source: &str) -> Result<Vec<String>> {
    let tokens: TokenStream =
        source.parse().map_err(|error| anyhow::anyhow!("{path} is not Rust: {error}"))?;
    let mut found = Vec::new();
    visit(tokens, &mut |text, line| {
        if PATHS.iter().any(|part| text.contains(part)) {
            found
                .push(format!("{path}:{line}: a text that users see names a path of the repository: {text}"));
        }
    });
    Ok(found)
}

/// Shows every string literal with its line. Attributes (doc comments among them), test modules and included files are skipped.
fn visit(tokens: TokenStream, show: &mut impl FnMut(&str, usize)) {
    let mut before: [String; 2] = Default::default();
    for token in tokens {
        let word = match &token {
            TokenTree::Group(group) => {
                let is_attribute =
                    group.delimiter() == Delimiter::Bracket && ["#", "!"].contains(&before[1].as_str());
                let is_tests = before == ["mod", "tests"];
                let is_included = before[1] == "!" && before[0].starts_with("include");
                if !is_attribute && !is_tests && !is_included {
                    visit(group.stream(), show);
                }
                String::new()
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('"') {
                    show(&text, literal.span().start().line);
                }
                String::new()
            }
            other => other.to_string(),
        };
        before = [std::mem::take(&mut before[1]), word];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_as_words_in_comments_and_pages() {
        let found = phrases("a.md", "It starts of its own accord.\nFine.");
        assert_eq!(found, ["a.md:1: say \"unprompted\" instead of \"of its own accord\""]);
        assert_eq!(phrases("a.rs", "let x = \"in order to\";\n// in order to\n// margin order too").len(), 1);
    }

    /// WORD-1: a text that users see names no path of the repository; comments, included files and tests may.
    #[test]
    fn texts_for_users_name_no_path_of_the_repository() {
        let source = r##"
            //! See docs/a.md.
            #[doc = "docs/b.md"]
            const A: &str = include_str!("../docs/c.md");
            fn a() { fail(format!("see docs/{}.md", 1)); b("fine") }
            mod tests { const B: &str = "docs/d.md"; }
        "##;
        let found = repository_paths("a.rs", source).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.rs:5: "), "{found:?}");
    }

    #[test]
    fn only_the_sources_of_the_product_speak_to_users() {
        assert!(is_product("crates/wire/src/message.rs"));
        assert!(!is_product("crates/wire/tests/message.rs"));
        assert!(!is_product("crates/testkit/src/lib.rs"));
        assert!(!is_product("crates/gateway/src/catalog/tests.rs"));
    }
}
