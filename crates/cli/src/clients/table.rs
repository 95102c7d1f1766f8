//! All clients, one row each.
//!
//! Paths in question have several entries. The rows say only where things are; how an entry of a server is read is the
//! business of `import`, how one is written that of `connect`.

use super::{By, Client, Connect, File, Form, Http, Keys, Root};

const MCP_SERVERS: Keys = &[&["mcpServers"]];
/// The map may also be the whole file.
const MCP_SERVERS_OR_BARE: Keys = &[&["mcpServers"], &[]];

const fn file(root: Root, path: &'static str) -> File {
    File { root, path, keys: None }
}

const fn home(path: &'static str) -> File {
    file(Root::Home, path)
}

const fn config(path: &'static str) -> File {
    file(Root::Config, path)
}

const fn app(path: &'static str) -> File {
    file(Root::App, path)
}

const fn project(path: &'static str) -> File {
    file(Root::Project, path)
}

const fn upward(path: &'static str) -> File {
    file(Root::Upward, path)
}

impl File {
    const fn under(self, keys: Keys) -> Self {
        Self { keys: Some(keys), ..self }
    }
}

/// All clients, in the order in which their servers are imported.
pub(crate) static CLIENTS: [Client; 19] = [
    Client {
        id: "claude-desktop",
        title: "Claude Desktop",
        aliases: &["claude-app"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[
            app("Claude/claude_desktop_config.json"),
            // Builds for Linux disagree about the letter case.
            app("claude/claude_desktop_config.json"),
        ],
        project: &[],
        connect: Connect { by: By::Edit, http: Http::No, restart: true, trust: None },
    },
    Client {
        id: "claude-code",
        title: "Claude Code",
        aliases: &["claude"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[file(Root::Folder("CLAUDE_CONFIG_DIR", ""), ".claude.json")],
        project: &[project(".mcp.json")],
        connect: Connect {
            by: By::Command("claude"),
            http: Http::Header("${X}"),
            restart: false,
            trust: Some(
                "Claude Code asks once in each project before it uses the servers of its `.mcp.json`",
            ),
        },
    },
    Client {
        id: "cursor",
        title: "Cursor",
        aliases: &[],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[home(".cursor/mcp.json")],
        project: &[project(".cursor/mcp.json")],
        connect: Connect { by: By::Edit, http: Http::Header("${env:X}"), restart: false, trust: None },
    },
    Client {
        id: "vscode",
        title: "VS Code",
        aliases: &["vs-code", "code"],
        form: Form::Jsonc,
        keys: &[&["servers"]],
        user: &[
            app("Code/User/mcp.json"),
            app("Code/User/profiles/*/mcp.json"),
            app("Code - Insiders/User/mcp.json"),
            app("Code - Insiders/User/profiles/*/mcp.json"),
            home(".vscode-server/data/User/mcp.json"),
            // Before version 1.102.
            app("Code/User/settings.json").under(&[&["mcp", "servers"]]),
        ],
        project: &[
            project(".vscode/mcp.json"),
            project(".vscode/settings.json").under(&[&["mcp", "servers"]]),
        ],
        connect: Connect {
            // Not by `code --add-mcp`: it opens a window if the editor is not running, and cannot take an entry away again.
            by: By::Edit,
            http: Http::Header("${env:X}"),
            restart: false,
            trust: Some("VS Code asks whether you trust a server before it starts it for the first time"),
        },
    },
    Client {
        id: "windsurf",
        title: "Windsurf",
        aliases: &["devin"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[
            home(".codeium/windsurf/mcp_config.json"),
            // In JetBrains editors.
            home(".codeium/mcp_config.json"),
            config("devin/mcp_config.json"),
        ],
        project: &[project(".devin/mcp_config.json")],
        connect: Connect { by: By::Edit, http: Http::Header("${env:X}"), restart: false, trust: None },
    },
    Client {
        id: "zed",
        title: "Zed",
        aliases: &[],
        form: Form::Jsonc,
        keys: &[&["context_servers"]],
        // On macOS, Zed does not look at XDG_CONFIG_HOME.
        user: &[config("zed/settings.json"), home(".config/zed/settings.json")],
        project: &[project(".zed/settings.json")],
        connect: Connect { by: By::Edit, http: Http::WithoutToken, restart: false, trust: None },
    },
    Client {
        id: "codex",
        title: "Codex",
        aliases: &["codex-cli"],
        form: Form::Toml,
        keys: &[&["mcp_servers"]],
        user: &[file(Root::Folder("CODEX_HOME", ".codex"), "config.toml")],
        project: &[project(".codex/config.toml")],
        connect: Connect {
            by: By::Command("codex"),
            http: Http::TokenVariable("bearer_token_env_var"),
            restart: false,
            trust: None,
        },
    },
    Client {
        id: "goose",
        title: "Goose",
        aliases: &[],
        form: Form::Yaml,
        keys: &[&["extensions"]],
        user: &[config("goose/config.yaml")],
        project: &[],
        connect: Connect { by: By::Snippet, http: Http::Header("${X}"), restart: false, trust: None },
    },
    Client {
        id: "opencode",
        title: "OpenCode",
        aliases: &["open-code"],
        form: Form::Jsonc,
        keys: &[&["mcp"]],
        user: &[
            file(Root::Variable("OPENCODE_CONFIG"), ""),
            config("opencode/opencode.json"),
            config("opencode/opencode.jsonc"),
            config("opencode/config.json"),
        ],
        project: &[upward("opencode.json"), upward("opencode.jsonc")],
        connect: Connect { by: By::Snippet, http: Http::Header("{env:X}"), restart: false, trust: None },
    },
    Client {
        id: "gemini",
        title: "Gemini CLI",
        aliases: &["gemini-cli"],
        form: Form::Jsonc,
        keys: MCP_SERVERS,
        user: &[home(".gemini/settings.json")],
        project: &[project(".gemini/settings.json")],
        connect: Connect {
            by: By::Command("gemini"),
            http: Http::Header("${X}"),
            restart: false,
            trust: Some(
                "Gemini CLI uses no server, not even your own, in a folder that you have not trusted",
            ),
        },
    },
    Client {
        id: "lmstudio",
        title: "LM Studio",
        aliases: &["lm-studio"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[home(".lmstudio/mcp.json"), home(".cache/lm-studio/mcp.json")],
        project: &[],
        connect: Connect { by: By::Snippet, http: Http::WithoutToken, restart: false, trust: None },
    },
    Client {
        id: "junie",
        title: "Junie",
        aliases: &[],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[home(".junie/mcp/mcp.json")],
        project: &[project(".junie/mcp/mcp.json")],
        connect: Connect { by: By::Snippet, http: Http::No, restart: false, trust: None },
    },
    Client {
        id: "ai-assistant",
        title: "AI Assistant",
        aliases: &["jetbrains"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[home(".ai/mcp/mcp.json")],
        project: &[project(".ai/mcp/mcp.json")],
        connect: Connect { by: By::Snippet, http: Http::No, restart: false, trust: None },
    },
    Client {
        id: "cline",
        title: "Cline",
        aliases: &[],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[
            file(Root::Variable("CLINE_MCP_SETTINGS_PATH"), ""),
            home(".cline/data/settings/cline_mcp_settings.json"),
            app("Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
        ],
        project: &[],
        connect: Connect { by: By::Snippet, http: Http::Header("${env:X}"), restart: false, trust: None },
    },
    Client {
        id: "roo",
        title: "Roo Code",
        aliases: &["roo-code", "roo-cline"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[app("Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json")],
        project: &[project(".roo/mcp.json")],
        connect: Connect { by: By::Never, http: Http::Header("${env:X}"), restart: false, trust: None },
    },
    Client {
        id: "continue",
        title: "Continue",
        aliases: &[],
        form: Form::Yaml,
        keys: MCP_SERVERS,
        user: &[home(".continue/config.yaml")],
        project: &[
            project(".continue/mcpServers/*.yaml"),
            project(".continue/mcpServers/*.yml"),
            project(".continue/mcpServers/*.json"),
        ],
        connect: Connect {
            by: By::Snippet,
            http: Http::Header("${{ secrets.X }}"),
            restart: false,
            trust: None,
        },
    },
    Client {
        id: "amp",
        title: "Amp",
        aliases: &[],
        form: Form::Jsonc,
        keys: &[&["amp.mcpServers"]],
        user: &[
            config("amp/settings.json"),
            config("amp/settings.jsonc"),
            home(".config/amp/settings.json"),
            home(".config/amp/settings.jsonc"),
        ],
        project: &[project(".amp/settings.json")],
        connect: Connect { by: By::Snippet, http: Http::Header("${X}"), restart: false, trust: None },
    },
    Client {
        id: "warp",
        title: "Warp",
        aliases: &[],
        form: Form::Json,
        keys: &[&["mcpServers"], &["mcp_servers"], &["servers"], &["mcp", "servers"], &[]],
        user: &[home(".warp/.mcp.json")],
        project: &[project(".warp/.mcp.json")],
        connect: Connect { by: By::Snippet, http: Http::Header("${X}"), restart: false, trust: None },
    },
    Client {
        id: "copilot",
        title: "Copilot CLI",
        aliases: &["copilot-cli", "github-copilot"],
        form: Form::Json,
        keys: MCP_SERVERS,
        user: &[file(Root::Folder("COPILOT_HOME", ".copilot"), "mcp-config.json")],
        project: &[
            upward(".mcp.json").under(MCP_SERVERS_OR_BARE),
            upward(".github/mcp.json").under(MCP_SERVERS_OR_BARE),
        ],
        connect: Connect {
            by: By::Command("copilot"),
            // Variables are known to work in `env` only.
            http: Http::WithoutToken,
            restart: false,
            trust: Some(
                "Copilot CLI asks whether you trust a folder before it uses the servers of its files",
            ),
        },
    },
];
