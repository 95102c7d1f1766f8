//! `cargo xtask recording`: the picture of the README, a terminal in which the real program runs.
//!
//! The commands run one after the other against one gateway, in a home folder of their own. What they print becomes a picture
//! (SVG) whose lines appear in turn. Times and ids are those of the run, so the picture differs each time it is made.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::built::Built;
use crate::steps;

/// Where the picture is.
const PICTURE: &str = "docs/recording.svg";
/// What is typed after the gateway was started.
const COMMANDS: &[&[&str]] = &[
    &["tools"],
    &["call", "add", "--args", r#"{"a": 1, "b": 2}"#],
    &["call", "addd"],
    &["status"],
    &["audit", "list"],
    &["audit", "verify"],
];
/// The look of the picture, in pixels and seconds.
const LETTER: f32 = 7.25;
const LINE: f32 = 17.0;
const EDGE: f32 = 14.0;
const TYPING: f32 = 0.9;
const PRINTING: f32 = 0.08;

/// One line of the terminal.
enum Line {
    Typed(String),
    Printed(String),
}

/// Runs the program and writes the picture.
pub(crate) fn run(root: &Path) -> Result<()> {
    let built = Built::by(root, &["build", "--release", "--bins", "--package=bridgehead-cli"], &[])?;
    let terminal = Terminal { program: built.program("bridgehead")?.to_owned(), home: home()? };
    let lines = terminal.record();
    fs::remove_dir_all(&terminal.home).context("the home folder of the recording could not be removed")?;
    fs::write(root.join(PICTURE), picture(&lines?))
        .with_context(|| format!("{PICTURE} could not be written"))?;
    println!("{PICTURE} is written");
    Ok(())
}

/// An empty home folder: neither a configuration nor a gateway of the person who runs this is used.
fn home() -> Result<PathBuf> {
    let home = std::env::temp_dir().join(format!("bridgehead-recording-{}", std::process::id()));
    fs::create_dir(&home).with_context(|| format!("{} could not be made", home.display()))?;
    Ok(home)
}

/// Where the commands run.
struct Terminal {
    program: PathBuf,
    home: PathBuf,
}

impl Terminal {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = steps::program_at(&self.home, &self.program);
        command
            .args(arguments)
            .env_clear()
            .env("HOME", &self.home)
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    fn record(&self) -> Result<Vec<Line>> {
        let serve = ["serve", "--log-level", "warn"];
        let mut gateway = Gateway::start(self.command(&serve))?;
        let mut lines = vec![Line::Typed("bridgehead serve --log-level warn &".to_owned())];
        lines.extend(gateway.greeting()?.into_iter().map(Line::Printed));
        for arguments in COMMANDS {
            // A person types for as long; meanwhile the gateway records how the last call ended.
            std::thread::sleep(Duration::from_secs_f32(TYPING));
            lines.push(Line::Typed(typed(arguments)));
            let output = self.command(arguments).output().context("the program could not be started")?;
            for text in [&output.stdout, &output.stderr] {
                let text = String::from_utf8_lossy(text);
                lines.extend(text.lines().map(|line| Line::Printed(line.to_owned())));
            }
        }
        Ok(lines)
    }
}

/// The running gateway, stopped when dropped.
struct Gateway(Child);

impl Gateway {
    fn start(mut command: Command) -> Result<Self> {
        let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        Ok(Self(child.context("the gateway could not be started")?))
    }

    /// What it prints until it is ready: everything up to the line for a client.
    fn greeting(&mut self) -> Result<Vec<String>> {
        let stderr = self.0.stderr.take().context("the gateway's stderr was read before")?;
        let mut lines = Vec::new();
        for line in BufReader::new(stderr).lines() {
            let line = line?;
            let last = line.trim_start().starts_with("for a client");
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
        bail!("the gateway ended before it was ready: {}", lines.join("\n"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        // SIGTERM lets it stop its servers; std can only kill.
        let _ = steps::output(Path::new("/"), "kill", &["-TERM", &pid]);
        let _ = self.0.wait();
    }
}

/// A command as a person types it.
fn typed(arguments: &[&str]) -> String {
    let mut line = "bridgehead".to_owned();
    for argument in arguments {
        let quote = if argument.contains([' ', '"']) { "'" } else { "" };
        let _ = write!(line, " {quote}{argument}{quote}");
    }
    line
}

/// The picture of some lines, each shown after the one before.
fn picture(lines: &[Line]) -> String {
    let letters = lines.iter().map(|line| line.text().chars().count() + 2).max().unwrap_or(0);
    let (width, height) = (letters as f32 * LETTER + 2.0 * EDGE, lines.len() as f32 * LINE + 2.0 * EDGE);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" role=\"img\">\n\
         <title>Bridgehead in a terminal</title>\n\
         <style>text {{ font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #d7dae0; white-space: pre; \
         animation: shown 0.01s linear both; }} .typed {{ fill: #ffffff; font-weight: 600; }} .prompt {{ fill: #7fd18b; }} \
         @keyframes shown {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }} \
         @media (prefers-reduced-motion: reduce) {{ text {{ animation: none; }} }}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1e24\"/>\n"
    );
    let mut after = 0.0;
    for (row, line) in lines.iter().enumerate() {
        let y = EDGE + LINE * (row as f32 + 0.75);
        after += if matches!(line, Line::Typed(_)) { TYPING } else { PRINTING };
        let (class, prompt) = match line {
            Line::Typed(_) => (" class=\"typed\"", "<tspan class=\"prompt\">$ </tspan>"),
            Line::Printed(_) => ("", ""),
        };
        let text = escaped(line.text());
        let _ = writeln!(
            picture,
            "<text x=\"{EDGE}\" y=\"{y:.1}\"{class} style=\"animation-delay: {after:.2}s\">{prompt}{text}</text>"
        );
    }
    picture + "</svg>\n"
}

impl Line {
    fn text(&self) -> &str {
        let (Self::Typed(text) | Self::Printed(text)) = self;
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_typed_as_a_shell_takes_them() {
        assert_eq!(
            typed(&["call", "add", "--args", r#"{"a": 1}"#]),
            r#"bridgehead call add --args '{"a": 1}'"#
        );
    }

    #[test]
    fn a_picture_shows_every_line_in_turn_and_as_text() {
        let lines = [Line::Typed("a <b>".to_owned()), Line::Printed("c & d".to_owned())];
        let picture = picture(&lines);
        assert!(picture.contains("$ </tspan>a &lt;b&gt;</text>"), "{picture}");
        assert!(picture.contains(">c &amp; d</text>"), "{picture}");
        let delays: Vec<_> = picture.split("animation-delay: ").skip(1).map(|rest| &rest[..5]).collect();
        assert_eq!(delays, ["0.90s", "0.98s"]);
    }
}
