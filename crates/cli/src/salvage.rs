//! What can still be used of a configuration that has a mistake, for verbs that only read.
//!
//! A mistake must not keep anybody from reading the record or listing keys. So the sections that such a verb needs are read by
//! themselves, from the text of the file without all others. Nothing is ever started from what is salvaged here.

use std::path::{Path, PathBuf};

use bridgehead::Config;
use bridgehead::config::{ConfigError, Environment, Severity, Source, load_text};

use super::output;

/// A configuration, or what is left of it.
pub(crate) struct Salvaged {
    pub(crate) config: Config,
    /// The file that has a mistake; `None` if it has none, and `config` is whole.
    pub(crate) wrong: Option<PathBuf>,
    /// Whether the sections that the verb needs were read.
    pub(crate) complete: bool,
}

impl Salvaged {
    pub(crate) const fn whole(config: Config) -> Self {
        Self { config, wrong: None, complete: true }
    }

    /// Reads these sections of a text that cannot be used as a whole.
    pub(crate) fn of(
        path: &Path,
        text: &[u8],
        sections: &[&str],
        environment: &Environment,
        folder: &Path,
    ) -> Self {
        let wrong = Some(folder.join(path));
        let read = |text: String| load_text(path, text.into_bytes(), environment, folder).ok();
        let text = String::from_utf8_lossy(text);
        if let Some(config) = read(only(&text, sections)) {
            return Self { config, wrong, complete: true };
        }
        let config = read(String::new()).unwrap_or_else(|| {
            let mut config = Config::demo();
            // The form of a client has none of these sections.
            config.source = Source::ClientJson(path.to_owned());
            config
        });
        Self { config, wrong, complete: false }
    }

    /// Tells what is used although there is a mistake, which was told.
    pub(crate) fn tell(&self, sections: &[&str]) {
        let Some(file) = &self.wrong else { return };
        let file = file.display();
        let sections: Vec<String> = sections.iter().map(|section| format!("[{section}]")).collect();
        let sections = sections.join(" and ");
        output::talk(&match self.complete {
            true => format!("warning: `{file}` cannot be used; of it, only {sections} is read here"),
            false => {
                format!(
                    "warning: `{file}` cannot be used, and its {sections} neither; what applies without it is read here"
                )
            }
        });
    }
}

/// Shows mistakes that keep nobody from reading.
pub(crate) fn show_mistakes(error: &ConfigError) {
    let mut all = error.0.clone();
    for one in &mut all {
        one.severity = Severity::Warning;
    }
    output::show(&all);
}

/// The lines of these sections; all others are empty, so that each line keeps its number.
fn only(text: &str, sections: &[&str]) -> String {
    let names = |text: &str, before: [char; 2]| {
        let follows = |rest: &str| rest.trim_start().starts_with(before);
        sections.iter().any(|section| text.strip_prefix(section).is_some_and(follows))
    };
    let (mut in_section, mut wanted) = (false, false);
    let lines = text.trim_start_matches('\u{feff}').lines().map(|line| {
        let start = line.trim_start();
        if start.starts_with('[') {
            in_section = true;
            wanted = names(start.trim_start_matches('[').trim_start(), [']', '.']);
        }
        let is_key = !in_section && names(start, ['.', '=']);
        if wanted || is_key { line } else { "" }
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-9: the sections that a verb needs are read whatever is wrong elsewhere; if they are wrong themselves, what applies
    /// without them is used.
    #[test]
    fn sections_are_read_by_themselves() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>, complete: bool) {
            let salvaged = Salvaged::of(
                Path::new("/c/a.toml"),
                text.as_bytes(),
                &["audit"],
                &Environment::default(),
                Path::new("/"),
            );
            let folder = salvaged.config.audit.folder.map(|folder| folder.display().to_string());
            assert_eq!((folder.as_deref(), salvaged.complete), (expected, complete), "{text}");
        }
        let audit = "[audit]\nfolder = '/r'\n";
        check(&format!("{audit}[broken\n"), Some("/r"), true);
        check(&format!("x = \n[servers.a]\nfoo = 1\n{audit}"), Some("/r"), true);
        check("[ audit ]\nfolder = '/r'\n[[policy]]\nwho = []\n", Some("/r"), true);
        check("audit.folder = '/r'\nx = \n", Some("/r"), true);
        check("[auditing]\nfolder = '/r'\n[broken\n", None, true);
        check("[audit]\nfolder = \n", None, false);
        check("[audit]\nfoldre = '/r'\n", None, false);
        assert_eq!(only("a\n[x]\nb\n[[y.z]]\nc\n", &["y"]), "\n\n\n[[y.z]]\nc\n");
        let json = Path::new("/c/a.json");
        let salvaged = Salvaged::of(json, b"{", &["audit"], &Environment::default(), Path::new("/"));
        assert_eq!(salvaged.config.source, Source::ClientJson(json.to_owned()));
    }
}
