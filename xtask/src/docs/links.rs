//! The links, headings and named source files of a Markdown page.
//!
//! Code blocks are skipped. Links are inline ones, `[text](target)`; our pages use no other form.

use std::collections::BTreeMap;

/// A line outside of code blocks, with its number.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The targets of the links in a text. A link may run over the end of a line.
pub(super) fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("](")
        .filter_map(|(at, _)| text.get(at + 2..)?.split_once(')').map(|(target, _)| target))
}

/// The text in backticks on one line.
pub(super) fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The anchors of all headings, as GitHub and mdBook derive them.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
    });
    headings
        .map(|title| {
            let anchor = anchor(title);
            let count = seen.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

fn anchor(title: &str) -> String {
    let kept = title.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_in_prose_only() {
        let page = "[a](b.md), [c\nd](e.md#f)\n```\n[no](code.md)\n```\n![p](q.svg)";
        let prose: Vec<&str> = prose(page).map(|(_, line)| line).collect();
        let prose = prose.join("\n");
        assert_eq!(targets(&prose).collect::<Vec<_>>(), ["b.md", "e.md#f", "q.svg"]);
        assert_eq!(code_spans("see `a/b.rs` and `c`").collect::<Vec<_>>(), ["a/b.rs", "c"]);
    }

    #[test]
    fn anchors_are_those_that_readers_get() {
        let page = "# One Two\n## `serve`, and more\n```\n# not one\n```\n## One two\n#no heading";
        assert_eq!(anchors(page), ["one-two", "serve-and-more", "one-two-1"]);
    }
}
