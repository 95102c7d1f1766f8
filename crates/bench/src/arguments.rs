//! Reads the command lines of this crate's programs, and writes the file of figures.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The arguments that are not read yet.
#[derive(Debug)]
pub struct Arguments {
    rest: std::vec::IntoIter<String>,
    /// The option that was read last.
    option: String,
    help: &'static str,
}

impl Arguments {
    /// The arguments of this process; `help` explains its options.
    pub fn new(help: &'static str) -> Self {
        Self::of(std::env::args().skip(1), help)
    }

    fn of(arguments: impl Iterator<Item = String>, help: &'static str) -> Self {
        let rest = arguments.collect::<Vec<_>>().into_iter();
        Self { rest, option: String::new(), help }
    }

    /// The next option.
    pub fn option(&mut self) -> Option<String> {
        self.option = self.rest.next()?;
        Some(self.option.clone())
    }

    /// The text after the option.
    pub fn text(&mut self) -> Result<String> {
        self.rest.next().with_context(|| format!("`{}` needs a value", self.option))
    }

    /// The path after the option.
    pub fn path(&mut self) -> Result<PathBuf> {
        self.text().map(PathBuf::from)
    }

    /// The number after the option.
    pub fn number<N: FromStr>(&mut self) -> Result<N> {
        let text = self.text()?;
        text.parse().ok().with_context(|| format!("`{}` needs a number", self.option))
    }

    /// Fails because the option is unknown.
    pub fn unknown<T>(&self) -> Result<T> {
        bail!("there is no option `{}`\n\n{}", self.option, self.help)
    }
}

/// Writes figures to a file, if one was named.
pub fn write_figures(file: Option<&Path>, figures: &Value) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(figures)? + "\n";
    std::fs::write(file, text).with_context(|| format!("cannot write `{}`", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_what_stands_behind_them() {
        let given = ["--calls", "7", "--calls", "many", "--json"].map(str::to_owned);
        let mut arguments = Arguments::of(given.into_iter(), "Usage: …");
        assert_eq!(arguments.option().as_deref(), Some("--calls"));
        assert_eq!(arguments.number::<usize>().unwrap(), 7);
        assert_eq!(arguments.option().as_deref(), Some("--calls"));
        assert_eq!(arguments.number::<usize>().unwrap_err().to_string(), "`--calls` needs a number");
        assert_eq!(arguments.option().as_deref(), Some("--json"));
        assert_eq!(arguments.path().unwrap_err().to_string(), "`--json` needs a value");
        let unknown = arguments.unknown::<()>().unwrap_err().to_string();
        assert_eq!(unknown, "there is no option `--json`\n\nUsage: …");
        assert_eq!(arguments.option(), None);
    }
}
