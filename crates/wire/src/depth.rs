//! The nesting limit, checked before anything recursive looks at a message.

/// How deep a message may nest. The JSON decoder's own recursion limit is the same, so a message that
/// passes here can always be decoded later.
pub const MAX_DEPTH: usize = 127;

/// Whether `json` opens more than [`MAX_DEPTH`] arrays and objects at once. For text that is not JSON the answer means
/// nothing; the parser rejects such text.
#[inline]
pub fn too_deep(json: &[u8]) -> bool {
    // Most messages have fewer brackets than that in total, and counting them is cheap.
    memchr::memchr2_iter(b'[', b'{', json).nth(MAX_DEPTH).is_some() && nests_too_deep(json)
}

/// Counts the nesting in one pass, without recursion.
fn nests_too_deep(json: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut rest = json;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'[' | b'{' | b']' | b'}')) {
        let byte = rest[at];
        rest = &rest[at + 1..];
        match byte {
            b'"' => rest = after_string(rest),
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            _ => depth = depth.saturating_sub(1),
        }
    }
    false
}

/// What follows the string whose opening quote was just read.
fn after_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', text) {
        if text[at] == b'"' {
            return &text[at + 1..];
        }
        text = text.get(at + 2..).unwrap_or_default();
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_open_at_once() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(!too_deep(nested(MAX_DEPTH).as_bytes()));
        assert!(too_deep(nested(MAX_DEPTH + 1).as_bytes()));
        assert!(!too_deep(format!("[{}]", vec!["{}"; 1000].join(",")).as_bytes()));
        assert!(
            !too_deep(format!("[\"\\\"{}\"]", "[".repeat(500)).as_bytes()),
            "brackets in strings do not count"
        );
    }

    #[test]
    fn what_passes_can_be_decoded() {
        let text = format!("{}1{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }
}
