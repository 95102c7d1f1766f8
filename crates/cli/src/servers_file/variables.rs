//! The text of a file of `NAME=value` lines, edited line by line: comments, order and all other lines stay as they are.

use bridgehead::config::{BadLine, parse_env_file};

/// The first line of a new file.
const HEADING: &str = "# Secrets of Bridgehead's servers, written by `bridgehead add` and `bridgehead import`.\n\
                       # `${NAME}` in the configuration stands for a value here. Keep this file to yourself.\n";

/// A text of variables. It does not print itself.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Variables {
    text: String,
}

impl Variables {
    /// The text of a file, which must be well formed.
    pub(super) fn read(text: String) -> Result<Self, BadLine> {
        parse_env_file(&text)?;
        Ok(Self { text })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The value of a variable; the last one counts.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let all = parse_env_file(&self.text).unwrap_or_default();
        all.into_iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The names of all variables.
    pub(super) fn names(&self) -> Vec<String> {
        parse_env_file(&self.text).unwrap_or_default().into_iter().map(|(name, _)| name).collect()
    }

    /// Sets a variable, at its place if it has one.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        let line = format!("{name}={}", quoted(value));
        let end = self.line_end();
        let mut found = false;
        let mut text = String::with_capacity(self.text.len() + line.len() + 1);
        for old in self.text.split_inclusive('\n') {
            if name_of(old).as_deref() != Some(name) {
                text.push_str(old);
            } else if !found {
                found = true;
                text.push_str(&line);
                text.push_str(end);
            }
        }
        if !found {
            if text.is_empty() {
                text.push_str(HEADING);
            }
            if !text.ends_with('\n') {
                text.push_str(end);
            }
            text.push_str(&line);
            text.push_str(end);
        }
        self.text = text;
    }

    /// Removes a variable.
    pub(super) fn remove(&mut self, name: &str) {
        let kept = self.text.split_inclusive('\n').filter(|line| name_of(line).as_deref() != Some(name));
        self.text = kept.collect();
    }

    fn line_end(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Variables").finish_non_exhaustive()
    }
}

/// The variable that a line sets.
fn name_of(line: &str) -> Option<String> {
    parse_env_file(line).ok()?.pop().map(|(name, _)| name)
}

/// A value as the reader of such files understands it.
fn quoted(value: &str) -> String {
    let plain = |next: char| next.is_ascii_alphanumeric() || "_-./:@%+=,".contains(next);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    if !value.contains(['\'', '\n', '\r']) {
        return format!("'{value}'");
    }
    let mut text = String::from('"');
    for next in value.chars() {
        match next {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '"' | '\\' => text.extend(['\\', next]),
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-3: every value comes back as it was, whatever it holds.
    #[test]
    fn values_survive() {
        let mut variables = Variables::default();
        let values = [
            "plain",
            "",
            " blanks ",
            "it's",
            "a \"b\" 'c'",
            "two\nlines\r\n",
            "back\\slash'",
            "$A ${B} #",
            "ü'\t",
            "x # y",
            "'",
            "\\n'",
        ];
        for (number, value) in values.iter().enumerate() {
            variables.set(&format!("V{number}"), value);
        }
        for (number, value) in values.iter().enumerate() {
            assert_eq!(variables.get(&format!("V{number}")).as_deref(), Some(*value), "{}", variables.text());
        }
        assert!(Variables::read(variables.text().to_owned()).is_ok());
        assert!(!format!("{variables:?}").contains("slash"));
    }

    /// JOIN-3: an edit of one variable leaves every other byte.
    #[test]
    fn other_lines_stay() {
        let text = "\u{feff}# mine\r\nA=1\r\nexport B = 'two' # c\r\n\r\nC=3";
        let mut variables = Variables::read(text.to_owned()).unwrap();
        variables.set("B", "new one");
        assert_eq!(variables.text(), "\u{feff}# mine\r\nA=1\r\nB='new one'\r\n\r\nC=3");
        variables.set("D", "4");
        assert_eq!(variables.text(), "\u{feff}# mine\r\nA=1\r\nB='new one'\r\n\r\nC=3\r\nD=4\r\n");
        variables.remove("A");
        variables.remove("D");
        variables.remove("NO");
        assert_eq!(variables.text(), "\u{feff}# mine\r\nB='new one'\r\n\r\nC=3\r\n");
        assert_eq!((variables.get("A"), variables.get("C").as_deref()), (None, Some("3")));
        assert_eq!(Variables::read("A=1\nnonsense".to_owned()), Err(BadLine(2)));
        let mut twice = Variables::read("A=1\nA=2\n".to_owned()).unwrap();
        assert_eq!(twice.get("A").as_deref(), Some("2"));
        twice.set("A", "3");
        assert_eq!(twice.text(), "A=3\n");
    }
}
