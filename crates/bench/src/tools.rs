//! Tool definitions of a realistic size, as JSON text.

use std::fmt::Write;

const VERBS: [&str; 8] = ["search", "create", "update", "delete", "list", "export", "archive", "assign"];
const NOUNS: [&str; 5] = ["issues", "invoices", "documents", "customers", "deployments"];

/// The array of tools: `echo`, then `generated` others with names of their own.
pub(crate) fn definitions(generated: usize) -> String {
    let mut text = String::from(
        r#"[{"name":"echo","description":"Answers with the text it was given","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}"#,
    );
    for number in 0..generated {
        let verb = VERBS[number % VERBS.len()];
        let noun = NOUNS[number / VERBS.len() % NOUNS.len()];
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            r#",{{"name":"{verb}_{noun}_{number:04}","description":"Use this to {verb} {noun} of the current workspace; at most one page is returned.","inputSchema":{{"type":"object","properties":{{"query":{{"type":"string","description":"What to look for"}},"limit":{{"type":"integer","minimum":1,"maximum":100}},"archived":{{"type":"boolean"}}}},"required":["query"]}}}}"#
        );
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_tools_are_valid_distinct_and_of_the_size_that_is_claimed() {
        let text = definitions(1000);
        let tools: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(tools.len(), 1001);
        let names: std::collections::HashSet<_> = tools.iter().map(|tool| tool["name"].to_string()).collect();
        assert_eq!(names.len(), 1001);
        assert!((300..400).contains(&(text.len() / 1000)), "{} bytes per tool", text.len() / 1000);
    }
}
