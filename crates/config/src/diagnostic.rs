//! Reports a mistake in a configuration: file, line, caret, what is wrong and the cure.
//!
//! A diagnostic keeps the text of its file to show the line. That text may hold credentials, so it is never printed
//! unmasked: [`crate::mask`] decides once per file what is secret, and every snippet leaves it out.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet, normalize_untrusted_str};
use bridgehead_wire::visible_line;

use crate::mask::Mask;
use crate::tree::Span;

/// How severe a diagnostic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration is used, except for something in it.
    Warning,
}

/// One mistake, or one thing worth knowing, in a configuration.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// How severe it is.
    pub severity: Severity,
    /// What is wrong, in one line without secrets.
    pub message: String,
    /// The cure, if one is known.
    pub help: Option<String>,
    /// The server that it is about; in one word, because diagnostics are passed by value as errors.
    server: Option<Arc<String>>,
    label: Option<String>,
    place: Option<Location>,
}

#[derive(Debug, Clone)]
enum Location {
    File(PathBuf),
    Text(Arc<SourceText>, Span),
}

/// The text of one configuration file, and which parts of it must not be shown.
pub(crate) struct SourceText {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) mask: Mask,
}

impl fmt::Debug for SourceText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SourceText").field(&self.path).finish()
    }
}

/// A configuration that cannot be used, with everything that is wrong with it.
#[derive(Debug, Clone)]
pub struct ConfigError(pub Vec<Diagnostic>);

impl Diagnostic {
    /// An error with this message and no place yet.
    pub fn error(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: message.into(),
            help: None,
            server: None,
            label: None,
            place: None,
        }
    }

    pub(crate) fn at(mut self, source: &Arc<SourceText>, span: &Span) -> Self {
        self.place = Some(Location::Text(Arc::clone(source), span.clone()));
        self
    }

    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        self.place = Some(Location::File(path.to_owned()));
        self
    }

    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds the cure.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn about(mut self, server: Option<&str>) -> Self {
        self.server = server.map(|server| Arc::new(server.to_owned()));
        self
    }

    /// The server it is about, if it is about one.
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref().map(String::as_str)
    }

    /// The file it is about, if it is about one.
    pub fn file(&self) -> Option<&Path> {
        match self.place.as_ref()? {
            Location::File(path) => Some(path),
            Location::Text(source, _) => Some(&source.path),
        }
    }

    /// Line and column of the caret, both counted from 1.
    pub fn position(&self) -> Option<(usize, usize)> {
        let Some(Location::Text(source, span)) = &self.place else { return None };
        let before = source.text.get(..span.start)?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Some((before.matches('\n').count() + 1, before[line_start..].chars().count() + 1))
    }

    /// The diagnostic with its line of the file and a caret; with colours if `styled`.
    pub fn render(&self, styled: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(self.message.as_str()));
        match &self.place {
            None => {}
            Some(Location::File(path)) => group = group.element(Origin::path(shown_path(path))),
            Some(Location::Text(source, span)) => {
                let (shown, span) = source.mask.apply(&source.text, first_line(&source.text, span));
                group = group.element(
                    Snippet::source(shown)
                        .path(shown_path(&source.path))
                        .annotation(AnnotationKind::Primary.span(span).label(self.label.as_deref())),
                );
            }
        }
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(normalize_untrusted_str(help)));
        }
        let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group])
    }
}

/// A path with control characters escaped: the renderer escapes texts, not paths.
fn shown_path(path: &Path) -> String {
    visible_line(&path.display().to_string()).into_owned()
}

/// The span, clamped to the text and to character boundaries, and cut after its first line: a caret under a
/// twenty-line table helps nobody.
fn first_line(text: &str, span: &Span) -> Span {
    let start = text.floor_char_boundary(span.start.min(text.len()));
    let end = text.ceil_char_boundary(span.end.clamp(start, text.len()));
    let line_end = text[start..end].find('\n').map_or(end, |newline| start + newline);
    start..line_end
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.render(false))
    }
}

impl ConfigError {
    /// All diagnostics, one after the other; with colours if `styled`.
    pub fn render(&self, styled: bool) -> String {
        let parts: Vec<_> = self.0.iter().map(|diagnostic| diagnostic.render(styled)).collect();
        parts.join("\n\n")
    }
}

impl From<Diagnostic> for ConfigError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.render(false))
    }
}

impl std::error::Error for ConfigError {}
