//! The pages of the documentation: where they are in the repository, and where they go in the book.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::links;

/// Pages outside of `docs`.
const AT_ROOT: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "crates/README.md"];
/// Pages outside of `docs` that are not in the book: the book has an index of its own.
const NOT_IN_BOOK: &[&str] = &["README.md", "crates/README.md"];
/// Lists the pages of the book in their order.
const SUMMARY: &str = "docs/SUMMARY.md";
/// What a path in backticks starts with if it names a source file: a crate or a folder of the repository.
const FOLDERS: &[&str] = &["crates", "docs", "xtask"];

/// One page.
pub(super) struct Page {
    /// From the root of the repository.
    path: PathBuf,
    text: String,
}

impl Page {
    /// Every page of the repository.
    pub(super) fn all(root: &Path) -> Result<Vec<Self>> {
        let mut paths: Vec<PathBuf> = AT_ROOT.iter().map(PathBuf::from).collect();
        let mut folders = vec![PathBuf::from("docs")];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(root.join(&folder))
                .with_context(|| format!("{} could not be read", folder.display()))?;
            for entry in entries {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md")
                    && path != Path::new(SUMMARY)
                {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        paths.into_iter().map(|path| Self::read(root, path)).collect()
    }

    fn read(root: &Path, path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(root.join(&path))
            .with_context(|| format!("{} could not be read", path.display()))?;
        Ok(Self { path, text })
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// One line for each link that leads nowhere and each source file that does not exist.
    pub(super) fn broken_links(&self, root: &Path, pages: &[Self]) -> Vec<String> {
        let prose: Vec<&str> = links::prose(&self.text).map(|(_, line)| line).collect();
        let prose = prose.join("\n");
        let page = &self.path.display();
        let broken = links::targets(&prose)
            .filter(|target| !self.leads_somewhere(target, root, pages))
            .map(|target| format!("{page}: the link to `{target}` leads nowhere"));
        let missing = links::prose(&self.text).flat_map(|(number, line)| {
            links::code_spans(line)
                .filter(|span| names_missing_source(root, span))
                .map(move |span| format!("{page}:{number}: there is no `{span}`"))
        });
        broken.chain(missing).collect()
    }

    fn leads_somewhere(&self, target: &str, root: &Path, pages: &[Self]) -> bool {
        if target.contains("://") {
            return true;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() { self.path.clone() } else { plain(&self.folder().join(file)) };
        let page = pages.iter().find(|page| page.path == path);
        match page {
            Some(page) => anchor.is_empty() || links::anchors(&page.text).iter().any(|known| known == anchor),
            None => anchor.is_empty() && root.join(&path).exists(),
        }
    }

    fn in_book(&self) -> bool {
        !NOT_IN_BOOK.iter().any(|path| self.path == Path::new(path))
    }

    /// Writes the page where the book wants it, with its links adjusted.
    pub(super) fn copy(&self, sources: &Path) -> Result<()> {
        if !self.in_book() {
            return Ok(());
        }
        let to = sources.join(book_path(&self.path));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&to, self.for_book()).with_context(|| format!("{} could not be written", to.display()))
    }

    /// The text with links as the book needs them. A link out of the book becomes its text alone.
    fn for_book(&self) -> String {
        let mut text = String::with_capacity(self.text.len());
        let mut rest = self.text.as_str();
        while let Some((before, label, target, after)) = next_link(rest) {
            text.push_str(before);
            match self.book_target(target) {
                Some(target) => text.extend(["[", label, "](", &target, ")"]),
                None => text.push_str(label),
            }
            rest = after;
        }
        text + rest
    }

    fn book_target(&self, target: &str) -> Option<String> {
        if target.contains("://") || target.starts_with('#') {
            return Some(target.to_owned());
        }
        let (file, anchor) =
            target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let path = plain(&self.folder().join(file));
        let known = path.starts_with("docs") || AT_ROOT.iter().any(|page| path == Path::new(page));
        if !known || NOT_IN_BOOK.iter().any(|page| path == Path::new(page)) {
            return None;
        }
        let up = "../".repeat(book_path(&self.path).components().count() - 1);
        let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
        Some(format!("{up}{}{anchor}", book_path(&path).display()))
    }
}

/// The next `[label](target)`: what is before it, its parts, what is after it.
fn next_link(text: &str) -> Option<(&str, &str, &str, &str)> {
    let middle = text.find("](")?;
    let open = text.get(..middle)?.rfind('[')?;
    let (target, after) = text.get(middle + 2..)?.split_once(')')?;
    Some((text.get(..open)?, text.get(open + 1..middle)?, target, after))
}

/// Where a page of the repository is in the book.
fn book_path(path: &Path) -> &Path {
    path.strip_prefix("docs").unwrap_or(path)
}

/// Whether a text in backticks is a path of ours to a Rust source, and the file is missing.
fn names_missing_source(root: &Path, span: &str) -> bool {
    let mut parts = span.split('/');
    let (Some(first), Some(second)) = (parts.next(), parts.next()) else { return false };
    let plain = span.chars().all(|letter| letter.is_ascii_alphanumeric() || "/_.-".contains(letter));
    if !plain || Path::new(span).extension().is_none_or(|extension| extension != "rs") {
        return false;
    }
    let of_crate = ["src", "tests", "examples"].contains(&second) && root.join("crates").join(first).exists();
    let path = if of_crate { root.join("crates").join(span) } else { root.join(span) };
    (of_crate || FOLDERS.contains(&first)) && !path.exists()
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => (),
            part => plain.push(part),
        }
    }
    plain
}

/// The table of contents as the book needs it.
pub(super) fn summary(root: &Path) -> Result<String> {
    let summary = Page::read(root, SUMMARY.into())?;
    Ok(summary.for_book())
}

/// Pages of the book that its table of contents does not list, and lines of it without a page.
pub(super) fn unlisted(root: &Path, pages: &[Page]) -> Result<Vec<String>> {
    let summary = Page::read(root, SUMMARY.into())?;
    let mut complaints = summary.broken_links(root, pages);
    let listed: Vec<PathBuf> =
        links::targets(&summary.text).map(|target| plain(&summary.folder().join(target))).collect();
    if listed.is_empty() {
        bail!("{SUMMARY} lists no page");
    }
    let missing = pages.iter().filter(|page| page.in_book() && !listed.contains(&page.path));
    complaints.extend(missing.map(|page| format!("{SUMMARY} does not list {}", page.path.display())));
    Ok(complaints)
}

/// Everything in `docs` that pages show or offer and that is not a page.
pub(super) fn copy_pictures(root: &Path, sources: &Path) -> Result<()> {
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| ["svg", "json", "py"].iter().any(|kind| extension == *kind))
            && let Some(name) = path.file_name()
        {
            fs::copy(&path, sources.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page { path: path.into(), text: text.into() }
    }

    /// WORD-2: a link to a missing page or heading is named with its page, and so is a source file that does not exist.
    #[test]
    fn broken_links_and_missing_sources_are_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let pages = [
            page("docs/a.md", "# One\n[b](b.md) [c](errors/c.md#two) [x](../README.md)"),
            page("docs/errors/c.md", "## Two"),
        ];
        assert_eq!(pages[0].broken_links(root, &pages), ["docs/a.md: the link to `b.md` leads nowhere"]);
        let text = "[a](#one) [r](https://example.org) `wire/src/message.rs` `wire/src/nothing.rs` `any/src/other.rs`";
        let pages = [page("docs/a.md", text)];
        assert_eq!(
            pages[0].broken_links(root, &pages),
            ["docs/a.md: the link to `#one` leads nowhere", "docs/a.md:1: there is no `wire/src/nothing.rs`"]
        );
    }

    /// WORD-2: the pages of the repository become a book, with links that lead to the same pages there.
    #[test]
    fn links_follow_their_pages_into_the_book() {
        let check =
            |path: &str, text: &str, expected: &str| assert_eq!(page(path, text).for_book(), expected);
        check("ARCHITECTURE.md", "see [it](docs/eras.md#a).", "see [it](eras.md#a).");
        check(
            "docs/errors/a.md",
            "[b](../audit.md) [c](README.md)",
            "[b](../audit.md) [c](../errors/README.md)",
        );
        check("docs/a.md", "[code](../crates/x.rs) [up](../ARCHITECTURE.md)", "code [up](ARCHITECTURE.md)");
        check("docs/a.md", "[here](#b) [web](https://example.org)", "[here](#b) [web](https://example.org)");
    }
}
