//! Shared by the tests of mistakes.
#![allow(dead_code, clippy::allow_attributes, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;

use bridgehead_config::{ConfigError, Diagnostic, Environment, load};

pub(crate) fn environment() -> Environment {
    Environment::read(BTreeMap::from([("HOME".to_owned(), "/home/x".to_owned())])).unwrap()
}

/// The error for a file that is refused.
#[track_caller]
pub(crate) fn refused(file: &str, text: &str) -> ConfigError {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(file), text).unwrap();
    let error =
        load(Some(file.as_ref()), &environment(), folder.path()).expect_err("the file must be refused");
    error.0.iter().for_each(follows_the_rules);
    error
}

/// Every error names the thing in backticks, the place, and the cure; and no path of the repository, which users do not have. A
/// syntax error is the parser's own: it names the place and what is wrong there.
#[track_caller]
fn follows_the_rules(diagnostic: &Diagnostic) {
    let text = ConfigError(vec![diagnostic.clone()]).to_string();
    if diagnostic.message.starts_with("not valid ") {
        return assert!(text.contains("--> "), "names no place: {text}");
    }
    assert!(diagnostic.message.contains('`'), "names no thing: {text}");
    assert!(text.contains("--> "), "names no place: {text}");
    let labelled = text.lines().any(|line| line.contains("^ "));
    assert!(diagnostic.help.is_some() || labelled, "names no cure: {text}");
    assert!(!["docs/", "crates/"].iter().any(|path| text.contains(path)), "names our repository: {text}");
}

/// What a user sees of the error, for a native file.
#[track_caller]
pub(crate) fn toml(text: &str) -> String {
    refused("bridgehead.toml", text).to_string()
}
