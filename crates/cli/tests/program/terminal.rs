//! A terminal for the program under test: `script` makes it, and this draws what it has received.

use std::path::{Path, PathBuf};

use bridgehead_testkit::client::StdioClient;

use crate::common::{Place, program, until};

/// The size of the terminal.
pub(crate) const COLUMNS: usize = 60;
pub(crate) const ROWS: usize = 20;

/// The program on a terminal.
pub(crate) struct Terminal {
    pub(crate) client: StdioClient,
    received: PathBuf,
}

impl Terminal {
    /// Starts the program on a terminal of its own.
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        let received = place.path().join(format!("terminal-{}", arguments[0]));
        let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        let words: Vec<String> = std::iter::once(program().to_str().unwrap())
            .chain(arguments.iter().copied())
            .map(quoted)
            .collect();
        let command = format!("stty cols {COLUMNS} rows {ROWS}; exec {}", words.join(" "));
        let script = ["-q", "-e", "-f", "-c", &command, received.to_str().unwrap()];
        let variables = [("TERM", "xterm"), ("SHELL", "/bin/sh")];
        let client = place.start_program(Path::new("/usr/bin/script"), &script, &variables);
        Self { client, received }
    }

    /// Everything that the terminal has received.
    pub(crate) fn received(&self) -> String {
        let text = String::from_utf8_lossy(&std::fs::read(&self.received).unwrap_or_default()).into_owned();
        // `script` puts a line before and after it.
        let text = text.split_once('\n').map_or("", |(_, text)| text);
        text.split("\nScript done").next().unwrap_or_default().to_owned()
    }

    /// The lines that a person sees.
    pub(crate) fn lines(&self) -> Vec<String> {
        drawn(&self.received())
    }

    /// Waits until the lines that a person sees fit.
    pub(crate) async fn until(&self, fits: impl Fn(&[String]) -> bool) -> Vec<String> {
        until(|| Some(self.lines()).filter(|lines| fits(lines))).await
    }
}

/// The lines of a terminal that has received a text. Knows the codes that the program may use, and no others.
fn drawn(text: &str) -> Vec<String> {
    let mut screen: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0, 0);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        match character {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                if row == screen.len() {
                    screen.push(Vec::new());
                }
            }
            '\x1b' => {
                let end = rest.find(|one: char| one.is_ascii_alphabetic()).expect("a whole code");
                let (code, after) = rest.split_at(end + 1);
                rest = after;
                match code {
                    "[J" => {
                        screen.truncate(row + 1);
                        screen[row].truncate(column);
                    }
                    "[?7l" | "[?7h" => {}
                    up => {
                        let up = up.strip_prefix('[').and_then(|up| up.strip_suffix('A'));
                        row -= up.and_then(|up| up.parse::<usize>().ok()).expect("a code of ours");
                    }
                }
            }
            other => {
                let line = &mut screen[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = other;
                column += 1;
            }
        }
    }
    screen.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}
