//! Finds the tests in a source file, and the requirement ids that each of them names.
//!
//! This is a line scanner, not a parser: it relies only on the layout that `cargo fmt` gives every file. It ignores string
//! literals and block comments. It skips ignored tests, because they prove nothing.

use std::mem::take;

/// One test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    /// The modules within the file, then its name.
    pub(crate) path: String,
    /// The ids in its doc comment and in its name.
    pub(crate) ids: Vec<String>,
}

/// The tests of a file that name an id of one of the families.
pub(crate) fn tests(source: &str, families: &[&str]) -> Vec<Test> {
    let mut found = Vec::new();
    let mut modules: Vec<(usize, String)> = Vec::new();
    let mut doc = String::new();
    let (mut is_test, mut is_ignored) = (false, false);
    let mut attribute = String::new();
    for line in without_literals(source).lines() {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        if !attribute.is_empty() || text.starts_with("#[") {
            attribute.push_str(text);
            if attribute.matches('[').count() <= attribute.matches(']').count() {
                let name = attribute_name(&take(&mut attribute));
                is_test |= name == "test";
                is_ignored |= name == "ignore";
            }
            continue;
        }
        if let Some(words) = text.strip_prefix("///") {
            doc.push_str(words);
            doc.push('\n');
            continue;
        }
        if text.is_empty() || text.starts_with("//") {
            continue;
        }
        let (doc, is_test, is_ignored) = (take(&mut doc), take(&mut is_test), take(&mut is_ignored));
        if let Some(name) = function_name(text) {
            let mut ids = ids_in_text(&doc, families);
            ids.extend(ids_in_name(name, families));
            ids.sort();
            ids.dedup();
            if is_test && !is_ignored && !ids.is_empty() {
                let parents = modules.iter().map(|(_, module)| module.as_str());
                found.push(Test { path: parents.chain([name]).collect::<Vec<_>>().join("::"), ids });
            }
        } else if let Some(name) = text.strip_suffix(" {").and_then(module_name) {
            modules.push((indent, name.to_owned()));
        } else if text.starts_with('}') {
            modules.retain(|(opened_at, _)| *opened_at != indent);
        }
    }
    found
}

/// The last part of an attribute's path: `test` for `#[test]` and for `#[tokio::test(start_paused = true)]`.
fn attribute_name(attribute: &str) -> String {
    let inner = attribute.trim_start_matches("#[");
    let path = inner.split(['(', ']', '=', ' ']).next().unwrap_or_default();
    path.rsplit("::").next().unwrap_or_default().to_owned()
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = match line.strip_prefix("fn ") {
        Some(after) => ("", after),
        None => line.split_once(" fn ")?,
    };
    let qualifiers = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe"];
    if !before.split_whitespace().all(|word| qualifiers.contains(&word)) {
        return None;
    }
    after.split(['(', '<']).next().map(str::trim)
}

fn module_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    name.strip_prefix("mod ")
}

/// Ids in text, such as `PIPE-3`. `UTF-8`, `FNV-1a` and `XPIPE-3` are not ids.
fn ids_in_text(text: &str, families: &[&str]) -> Vec<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-')
        .filter(|word| {
            word.split_once('-')
                .is_some_and(|(family, number)| families.contains(&family) && is_number(number))
        })
        .map(str::to_owned)
        .collect()
}

/// Ids in a test name, such as `pipe_3`. `box_07_…` has a two-digit number: it is a case of isolation, not an id. Such
/// tests name their ids in the doc comment.
fn ids_in_name(name: &str, families: &[&str]) -> Vec<String> {
    let case = name.strip_prefix("box_").and_then(|rest| rest.split('_').next());
    if case.is_some_and(|number| number.len() == 2 && is_number(number)) {
        return Vec::new();
    }
    let parts: Vec<&str> = name.split('_').collect();
    let pairs = parts.iter().zip(parts.iter().skip(1));
    pairs
        .filter_map(|(word, number)| {
            let family = word.to_ascii_uppercase();
            (families.contains(&family.as_str()) && is_number(number)).then(|| format!("{family}-{number}"))
        })
        .collect()
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// The source with string literals, character literals and block comments replaced by blanks. Line breaks stay.
fn without_literals(source: &str) -> String {
    let letters: Vec<char> = source.chars().collect();
    let at = |index: usize| letters.get(index).copied().unwrap_or('\0');
    let mut out = String::with_capacity(source.len());
    let mut index = 0;
    while index < letters.len() {
        let end = match (at(index), at(index + 1)) {
            ('/', '/') => {
                while index < letters.len() && at(index) != '\n' {
                    out.push(at(index));
                    index += 1;
                }
                continue;
            }
            ('/', '*') => end_of_block_comment(&letters, index),
            ('"', _) => end_of_string(&letters, index, '"'),
            ('\'', '\\') => end_of_string(&letters, index, '\''),
            ('\'', _) if at(index + 2) == '\'' => index + 3,
            ('r', '"' | '#') if !follows_name(&letters, index) => match end_of_raw_string(&letters, index) {
                Some(end) => end,
                None => index,
            },
            _ => index,
        };
        if end == index {
            out.push(at(index));
            index += 1;
        } else {
            let end = end.min(letters.len());
            out.extend(letters[index..end].iter().map(|letter| if *letter == '\n' { '\n' } else { ' ' }));
            index = end;
        }
    }
    out
}

/// Whether the letter at `index` continues a name, except for the prefix `b` or `c` of a raw string.
fn follows_name(letters: &[char], index: usize) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    match index.checked_sub(1).map(|before| letters[before]) {
        Some('b' | 'c') => index.checked_sub(2).is_some_and(|before| is_name(letters[before])),
        Some(letter) => is_name(letter),
        None => false,
    }
}

fn end_of_string(letters: &[char], start: usize, quote: char) -> usize {
    let mut index = start + 1;
    while index < letters.len() && letters[index] != quote {
        index += if letters[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

fn end_of_block_comment(letters: &[char], start: usize) -> usize {
    let mut depth = 1;
    let mut index = start + 2;
    while index < letters.len() && depth > 0 {
        match (letters[index], letters.get(index + 1)) {
            ('*', Some('/')) => {
                depth -= 1;
                index += 2;
            }
            ('/', Some('*')) => {
                depth += 1;
                index += 2;
            }
            _ => index += 1,
        }
    }
    index
}

/// `None` if it is not a raw string but a name such as `r#type`.
fn end_of_raw_string(letters: &[char], start: usize) -> Option<usize> {
    let hashes = letters[start + 1..].iter().take_while(|letter| **letter == '#').count();
    let open = start + 1 + hashes;
    if letters.get(open) != Some(&'"') {
        return None;
    }
    let closes = |index: usize| {
        letters[index] == '"'
            && letters
                .get(index + 1..index + 1 + hashes)
                .is_some_and(|tail| tail.iter().all(|letter| *letter == '#'))
    };
    let close = (open + 1..letters.len()).find(|index| closes(*index)).unwrap_or(letters.len());
    Some(close + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::tests as scan;

    const FAMILIES: [&str; 3] = ["PIPE", "SRV", "AUD"];

    /// `expected` has one entry for each test: its path, then its ids.
    #[track_caller]
    fn check(source: &str, expected: &[&[&str]]) {
        let found: Vec<Vec<String>> =
            scan(source, &FAMILIES).into_iter().map(|test| [vec![test.path], test.ids].concat()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_doc_comment_above_a_test_counts() {
        check("/// PIPE-3: words.\n#[test]\nfn one() {\n}\n", &[&["one", "PIPE-3"]]);
        check("/// PIPE-3.\n#[tokio::test(start_paused = true)]\nasync fn one() {}\n", &[&["one", "PIPE-3"]]);
        check(
            "#[test]\n/// SRV-1 and SRV-12,\n/// then AUD-1/AUD-2.\nfn one() {}",
            &[&["one", "AUD-1", "AUD-2", "SRV-1", "SRV-12"]],
        );
    }

    #[test]
    fn the_name_counts_too() {
        check("#[test]\nfn pipe_3_holds() {}\n", &[&["pipe_3_holds", "PIPE-3"]]);
        check("/// PIPE-3\n#[test]\nfn and_srv_1() {}\n", &[&["and_srv_1", "PIPE-3", "SRV-1"]]);
        check("#[test]\nfn a_pipe_of_3() {}\n", &[]);
        check("#[test]\nfn box_21_holds() {}\n", &[]);
    }

    #[test]
    fn what_is_no_test_proves_nothing() {
        check("/// PIPE-3: words.\nfn helper() {}\n", &[]);
        check("/// PIPE-3\n#[cfg(test)]\nmod tests {\n}\n", &[]);
        check("/// PIPE-3\nstruct Lock;\n#[test]\nfn one() {}\n", &[]);
        check("/// PIPE-3\n#[test]\n#[ignore = \"slow\"]\nfn one() {}\n", &[]);
        check("// PIPE-3\n#[test]\nfn one() {}\n", &[]);
    }

    #[test]
    fn what_only_looks_like_an_id_is_none() {
        check("/// UTF-8, FNV-1a, XPIPE-3, PIPE-3a, PIPE-, pipe-3, QA-1.\n#[test]\nfn one() {}\n", &[]);
    }

    #[test]
    fn the_path_has_the_modules_of_the_file() {
        let source = "\
mod first {
    /// PIPE-1
    #[test]
    fn one() {
        let _ = Lock {};
    }
    pub(crate) mod inner {
        /// PIPE-2
        #[test]
        fn two() {}
    }
    /// PIPE-3
    #[test]
    fn three() {}
}
/// PIPE-4
#[test]
fn four() {}
";
        check(
            source,
            &[
                &["first::one", "PIPE-1"],
                &["first::inner::two", "PIPE-2"],
                &["first::three", "PIPE-3"],
                &["four", "PIPE-4"],
            ],
        );
    }

    #[test]
    fn an_attribute_may_have_several_lines() {
        let source =
            "/// PIPE-1\n#[expect(\n    clippy::panic,\n    reason = \"]\"\n)]\n#[test]\nfn one() {}\n";
        check(source, &[&["one", "PIPE-1"]]);
    }

    #[test]
    fn literals_and_block_comments_are_not_seen() {
        let inside = "\n/// PIPE-1\n#[test]\nfn hidden() {}\n";
        let after = "/// PIPE-2\n#[test]\nfn seen() {}\n";
        for (open, close) in [
            ("const A: &str = \"\\\"", "\";\n"),
            ("const A: &str = r#\"\"", "\"#;\n"),
            ("const A: &[u8] = br\"", "\";\n"),
            ("/* /* */", "*/\n"),
            ("const A: (char, &str) = ('\"', \"", "\");\n"),
            ("const A: (char, &str) = ('\\'', \"", "\");\n"),
            ("fn a<'a>(r#type: &'a str) {}\nconst A: &str = \"", "\";\n"),
        ] {
            check(&format!("{open}{inside}{close}{after}"), &[&["seen", "PIPE-2"]]);
        }
    }
}
