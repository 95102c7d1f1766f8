//! Reads a file of `NAME=value` lines.
//!
//! It understands blank lines, `#` comments, a leading `export`, single quotes (taken literally), and double quotes with
//! `\n`, `\r`, `\t`, `\"`, `\\`. Nothing is interpolated. An error gives the line number, never the line's text.

/// A line that is not `NAME=value`, counted from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {0} is not `NAME=value`")]
pub struct BadLine(pub usize);

/// The entries of a text of `NAME=value` lines, such as an `env_file`, in its order.
///
/// # Errors
/// The first malformed line.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, BadLine> {
    let mut entries = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        entries.push(entry(line).ok_or(BadLine(index + 1))?);
    }
    Ok(entries)
}

fn entry(line: &str) -> Option<(String, String)> {
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let named = name.chars().all(|other| other.is_ascii_alphanumeric() || "_.-".contains(other));
    if name.is_empty() || !named {
        return None;
    }
    Some((name.to_owned(), unquote(value.trim())?))
}

fn unquote(value: &str) -> Option<String> {
    if let Some(rest) = value.strip_prefix('\'') {
        let (inner, after) = rest.split_once('\'')?;
        return only_comment(after).then(|| inner.to_owned());
    }
    let Some(rest) = value.strip_prefix('"') else {
        let plain = value.find(" #").map_or(value, |comment| &value[..comment]);
        return Some(plain.trim_end().to_owned());
    };
    let mut inner = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return only_comment(characters.as_str()).then_some(inner),
            '\\' => match characters.next()? {
                'n' => inner.push('\n'),
                'r' => inner.push('\r'),
                't' => inner.push('\t'),
                other @ ('"' | '\\' | '$') => inner.push(other),
                other => inner.extend(['\\', other]),
            },
            other => inner.push(other),
        }
    }
}

fn only_comment(rest: &str) -> bool {
    let rest = rest.trim_start();
    rest.is_empty() || rest.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&[(&str, &str)], usize>) {
        let parsed = parse(text);
        let expected = expected
            .map(|entries| {
                entries.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
            })
            .map_err(BadLine);
        assert_eq!(parsed, expected, "{text:?}");
    }

    #[test]
    fn lines_are_read() {
        check("", Ok(&[]));
        check("# c\n\nA=1\n  B = two words  # c\r\n", Ok(&[("A", "1"), ("B", "two words")]));
        check("export A='x # \"y\"' # c", Ok(&[("A", "x # \"y\"")]));
        check(r#"A="x\ny \"z\" \\ \q $B""#, Ok(&[("A", "x\ny \"z\" \\ \\q $B")]));
        check("A=\nB=a#b=c", Ok(&[("A", ""), ("B", "a#b=c")]));
        check("\u{feff}A=1", Ok(&[("A", "1")]));
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        check("A=1\nnonsense", Err(2));
        check("=1", Err(1));
        check("A B=1", Err(1));
        check("A='x", Err(1));
        check("A=\"x", Err(1));
        check("A=\"x\" y", Err(1));
    }
}
