//! A page of the documentation as text for a terminal.
//!
//! Links lead to files that are not installed: they become the command that prints the page, or just their label. Headings
//! are underlined, code is indented, tables line up, and paragraphs fit the width. The pages use little of Markdown, and
//! what is not known here stays as it is.

use unicode_width::UnicodeWidthStr;

use super::super::table;

/// How far code is indented.
const CODE: &str = "    ";
/// Wider lines than this are hard to read, however wide the terminal is.
const WIDEST: usize = 100;

/// The page for a terminal of this width; `None` keeps each paragraph on one line.
pub(super) fn page(markdown: &str, width: Option<usize>) -> String {
    let mut out = String::new();
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        if let Some(fence) = text.strip_prefix("```") {
            let _language = fence;
            while let Some(code) = lines.next_if(|line| !line.trim_start().starts_with("```")) {
                out.push_str(format!("{CODE}{code}").trim_end());
                out.push('\n');
            }
            lines.next();
        } else if text.starts_with("<!--") {
            let mut last = line;
            while !last.contains("-->") {
                let Some(next) = lines.next() else { break };
                last = next;
            }
        } else if text.starts_with('|') {
            let mut rows = vec![cells(text)];
            while let Some(row) = lines.next_if(|line| line.trim_start().starts_with('|')) {
                rows.push(cells(row.trim()));
            }
            // The line of dashes below the titles.
            rows.retain(|row| !row.iter().all(|cell| cell.chars().all(|one| "-: ".contains(one))));
            out.push_str(&table::text(&rows, width));
        } else if let Some((level, heading)) = heading(line) {
            let underline = if level == 1 { "=" } else { "-" };
            out.push_str(&format!("{heading}\n{}\n", underline.repeat(heading.width())));
        } else if text.is_empty() {
            out.push('\n');
        } else {
            let mut paragraph = line.trim_end().to_owned();
            while let Some(next) = lines.next_if(|next| continues(next)) {
                paragraph.push(' ');
                paragraph.push_str(next.trim());
            }
            out.push_str(&filled(&paragraph.replace("**", ""), width));
        }
    }
    out
}

/// The level and the text of a heading.
fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    (level > 0).then(|| line[level..].strip_prefix(' ')).flatten().map(|text| (level, text.trim()))
}

/// Whether a line belongs to the paragraph or the point before it.
fn continues(line: &str) -> bool {
    let text = line.trim_start();
    !text.is_empty() && indent_of(text) == 0 && !text.starts_with(['#', '|', '<']) && !text.starts_with("```")
}

/// How far the text of a point of a list is indented behind its mark; zero if a line is none.
fn indent_of(text: &str) -> usize {
    let number = text.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match (number, text.as_bytes().get(number)) {
        (1.., Some(b'.')) => number + 1,
        (0, Some(b'-' | b'*')) => 1,
        _ => return 0,
    };
    if text[mark..].starts_with(' ') { mark + 1 } else { 0 }
}

fn cells(row: &str) -> Vec<String> {
    // A `|` inside of a cell is written with a backslash.
    let row = row.trim().trim_matches('|').replace("\\|", "\u{0}");
    row.split('|').map(|cell| cell.trim().replace('\u{0}', "|").replace("**", "")).collect()
}

/// A paragraph in lines of at most `width`; further lines of a point begin below its first word.
fn filled(paragraph: &str, width: Option<usize>) -> String {
    let text = paragraph.trim_start();
    let margin = paragraph.len() - text.len();
    let Some(width) = width.map(|width| width.min(WIDEST)) else { return format!("{paragraph}\n") };
    let hanging = " ".repeat(margin + indent_of(text));
    let mut line = " ".repeat(margin);
    let mut out = String::new();
    let mut is_fresh = true;
    for word in text.split_whitespace() {
        if !is_fresh && line.width() + 1 + word.width() > width {
            out.push_str(&line);
            out.push('\n');
            line.clone_from(&hanging);
            is_fresh = true;
        }
        if !is_fresh {
            line.push(' ');
        }
        line.push_str(word);
        is_fresh = false;
    }
    out + &line + "\n"
}

/// The text without link targets. A link to a page that the program has becomes the command that prints it; `topic_of`
/// knows these pages by the file and the anchor of a link.
pub(super) fn without_links(text: &str, topic_of: impl Fn(&str, Option<&str>) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (Some((label_at, label)), Some((target, behind))) = (
            before.rfind('[').map(|at| (at, &before[at + 1..])).filter(|(_, label)| !label.contains("\n\n")),
            after.split_once(')'),
        ) else {
            out.push_str(before);
            out.push_str("](");
            rest = after;
            continue;
        };
        out.push_str(&before[..label_at]);
        out.push_str(&linked(label, target, &topic_of));
        rest = behind;
    }
    out.push_str(rest);
    out
}

fn linked(label: &str, target: &str, topic_of: &impl Fn(&str, Option<&str>) -> Option<String>) -> String {
    if target.starts_with("http://") || target.starts_with("https://") {
        return if label == target { label.to_owned() } else { format!("{label} ({target})") };
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let page = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".md");
    match topic_of(page, anchor) {
        Some(topic) if label.ends_with(".md") => format!("`bridgehead explain {topic}`"),
        Some(topic) if label.trim_matches('`').eq_ignore_ascii_case(&topic) => label.to_owned(),
        Some(topic) => format!("{label} (`bridgehead explain {topic}`)"),
        None => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-8: a page is readable on a terminal: underlined headings, indented code, tables and paragraphs that fit.
    #[test]
    fn pages_for_a_terminal() {
        let markdown = "<!-- made\nby x -->\n# The title\n\nSome **bold** words that\nare one paragraph.\n\n## Points\n\n- first point of\n  two lines\n\
            - second\n10. tenth point that is long\n\n   ```toml\n   [a]\n   b = 1\n   ```\n\n| a | b |\n|---|:--|\n| 1 | x \\| y |\n";
        insta::assert_snapshot!(page(markdown, Some(22)), @r"
        The title
        =========

        Some bold words that
        are one paragraph.

        Points
        ------

        - first point of two
          lines
        - second
        10. tenth point that
            is long

               [a]
               b = 1

        a  b
        1  x | y
        ");
        let wide = page(markdown, None);
        assert!(wide.contains("\nSome bold words that are one paragraph.\n"), "{wide}");
        let long = "word ".repeat(60);
        assert!(page(&long, Some(500)).lines().all(|line| line.len() <= WIDEST));
        assert_eq!(page("```\nopen", None), "    open\n");
        assert_eq!(page("<!-- open", None), "");
        assert_eq!(page("#no heading\n1.5 is no point\n-x", None), "#no heading 1.5 is no point -x\n");
    }

    /// JOIN-8: links become commands where the program has the page, and plain text elsewhere.
    #[test]
    fn links_become_commands() {
        let plain = |text: &str| {
            without_links(text, |page, anchor| match (page, anchor) {
                ("audit", _) => Some("audit".to_owned()),
                ("trouble", Some("slow")) => Some("slow".to_owned()),
                ("CODE", None) => Some("CODE".to_owned()),
                _ => None,
            })
        };
        for (given, expected) in [
            ("a [b](c.md) d](e [f](g)", "a b d](e f"),
            ("([docs/audit.md](../audit.md))", "(`bridgehead explain audit`)"),
            ("[the record](audit.md#rows)", "the record (`bridgehead explain audit`)"),
            ("[it](trouble.md#slow) [it](trouble.md#x)", "it (`bridgehead explain slow`) it"),
            ("[CODE](CODE.md) [`CODE`](errors/CODE.md)", "CODE `CODE`"),
            ("[x](https://a) [https://a](https://a)", "x (https://a) https://a"),
            ("[a\nb](c) [a]\n(b)", "a\nb [a]\n(b)"),
        ] {
            assert_eq!(plain(given), expected);
        }
    }
}
