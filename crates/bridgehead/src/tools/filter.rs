//! Which of the tools an agent gets to know.

use std::collections::HashSet;

use bridgehead_config::{InvalidPattern, ToolFilter};
use bridgehead_gateway::OfferedTool;

/// Admits tools by server and by name. Admits everything by default.
///
/// Patterns are those of `tools_allowed` and `tools_denied` in a configuration: `*`, `any` and globs on the name that the
/// server gives its tool. Letter case does not matter, and a denial wins.
#[derive(Debug, Clone, Default)]
pub struct ToolsFilter {
    servers: Option<HashSet<String>>,
    allowed: Option<ToolFilter>,
    denied: Option<ToolFilter>,
}

impl ToolsFilter {
    /// Admits only tools of these servers. Rust tools have no server.
    #[must_use]
    pub fn servers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { servers: Some(names.into_iter().map(str::to_owned).collect()), ..self }
    }

    /// Admits only tools whose name fits one of the patterns.
    ///
    /// # Errors
    /// If a pattern cannot be used.
    pub fn allow<'a>(self, patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidPattern> {
        let allowed = ToolFilter::new(patterns, [])?;
        Ok(Self { allowed: Some(allowed), ..self })
    }

    /// Admits no tool whose name fits one of the patterns.
    ///
    /// # Errors
    /// If a pattern cannot be used.
    pub fn deny<'a>(self, patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidPattern> {
        let denied = ToolFilter::new(["*"], patterns)?;
        Ok(Self { denied: Some(denied), ..self })
    }

    /// Whether it admits a tool.
    pub fn admits(&self, tool: &OfferedTool) -> bool {
        let of_server = self
            .servers
            .as_ref()
            .is_none_or(|servers| tool.server.as_ref().is_some_and(|server| servers.contains(&**server)));
        of_server
            && [&self.allowed, &self.denied].into_iter().flatten().all(|filter| filter.admits(&tool.own_name))
    }
}
