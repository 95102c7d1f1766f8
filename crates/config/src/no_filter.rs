//! The filter of a program that is built without patterns (the feature `globs`): it offers every tool, and no other filter can
//! be made.

/// Admits every tool.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ToolFilter;

impl ToolFilter {
    /// Whether the tool is offered: always.
    pub fn admits(&self, _tool: &str) -> bool {
        true
    }

    /// Patterns without effect: there are no patterns.
    pub fn without_match(&self, _tools: &[&str]) -> Vec<(&'static str, &str)> {
        Vec::new()
    }
}
