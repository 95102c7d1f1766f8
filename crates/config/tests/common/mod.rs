//! What tests of mistakes share.

use std::collections::BTreeMap;

use bridgehead_config::{ConfigError, Environment, load};

pub(crate) fn environment() -> Environment {
    Environment::read(BTreeMap::from([("HOME".to_owned(), "/home/x".to_owned())])).unwrap()
}

/// Why a file is refused.
#[track_caller]
pub(crate) fn refused(file: &str, text: &str) -> ConfigError {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(file), text).unwrap();
    load(Some(file.as_ref()), &environment(), folder.path()).expect_err("the file must be refused")
}

/// What a person sees of it, of our own form.
#[track_caller]
pub(crate) fn toml(text: &str) -> String {
    refused("bridgehead.toml", text).to_string()
}
