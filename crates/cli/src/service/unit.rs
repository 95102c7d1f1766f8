//! The text of the unit files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The names of the units.
pub(crate) const SERVICE: &str = "bridgehead.service";
pub(crate) const SOCKET: &str = "bridgehead.socket";

/// The setting that names the address.
pub(crate) const LISTEN: &str = "ListenStream=";

/// What the units say.
#[derive(Debug)]
pub(crate) struct Plan {
    program: String,
    pub(crate) config: PathBuf,
    config_text: String,
    pub(crate) listen: SocketAddr,
    /// The folders in which servers' programs are found.
    path: Option<String>,
    /// The file with further variables.
    pub(crate) variables: Option<PathBuf>,
}

impl Plan {
    /// A plan with these paths, which must be absolute.
    ///
    /// # Errors
    /// If a unit file cannot express one of the paths.
    pub(crate) fn new(
        program: &Path,
        config: &Path,
        listen: SocketAddr,
        path: Option<&str>,
        variables: Option<&Path>,
    ) -> Result<Self, String> {
        let is_plain = |text: &str| !text.chars().any(char::is_control);
        let text = |path: &Path| match path.to_str() {
            Some(text) if is_plain(text) => Ok(text.to_owned()),
            _ => Err(format!("`{}` has characters that a unit file cannot have; rename it", path.display())),
        };
        Ok(Self {
            program: text(program)?,
            config: config.to_owned(),
            config_text: text(config)?,
            listen,
            // Only absolute folders: the service runs elsewhere.
            path: path.filter(|path| is_plain(path)).map(|path| {
                let absolute = |folder: &&str| folder.starts_with('/');
                path.split(':').filter(absolute).collect::<Vec<_>>().join(":")
            }),
            variables: variables.filter(|path| text(path).is_ok()).map(Path::to_owned),
        })
    }

    /// The unit of the gateway.
    pub(crate) fn service(&self) -> String {
        let mut surroundings = String::new();
        if let Some(path) = self.path.as_ref().filter(|path| !path.is_empty()) {
            surroundings.push_str(&format!("Environment={}\n", quoted(&format!("PATH={path}"))));
        }
        if let Some(file) = &self.variables {
            surroundings.push_str(&format!("EnvironmentFile=-{}\n", plain(&file.display().to_string())));
        }
        format!(
            "[Unit]
Description=Bridgehead, an MCP gateway
Documentation=man:bridgehead(1)
Requires={SOCKET}
After={SOCKET}

[Service]
Type=notify
ExecStart={} serve --config {}
ExecReload=kill -HUP $MAINPID
{surroundings}# The gateway ends its servers itself; what it leaves behind is killed.
KillMode=mixed
TimeoutStopSec=30
# Limits of servers are kept by the kernel, in control groups below this unit's.
Delegate=cpu memory pids
Restart=on-failure
# A wrong command line or configuration does not get better by itself.
RestartPreventExitStatus=2 78

# To hide your home folder from the gateway and its servers, write a drop-in with `systemctl --user edit {SERVICE}`:
#   [Service]
#   ProtectHome=tmpfs
#   BindReadOnlyPaths=%h/.config/bridgehead
#   BindPaths=%h/.local/state/bridgehead
# Servers that npx or uvx start need their caches as well: BindPaths=%h/.npm %h/.cache
",
            command(&self.program),
            command(&self.config_text)
        )
    }

    /// The unit of the address.
    pub(crate) fn socket(&self) -> String {
        format!(
            "[Unit]
Description=The address of Bridgehead, an MCP gateway

[Socket]
{LISTEN}{}

[Install]
WantedBy=sockets.target
",
            self.listen
        )
    }
}

/// A value in which `%` is not special.
fn plain(text: &str) -> String {
    text.replace('%', "%%")
}

/// A value in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text).replace('\\', "\\\\").replace('"', "\\\""))
}

/// A word of a command, in which variables are special, too.
fn command(text: &str) -> String {
    quoted(&text.replace('$', "$$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Special characters of paths reach the program unchanged, relative folders are left out, and what a unit file cannot have is
    /// refused.
    #[test]
    fn paths_are_written_so_that_they_are_read_back() {
        let listen = "[::1]:9".parse().unwrap();
        let plan = |program: &str, path: Option<&str>| {
            Plan::new(Path::new(program), Path::new("/h/100%/my \"$f\".toml"), listen, path, None)
        };
        let unit = plan("/opt/b\\h", Some("/bin:.:relative:/50%")).unwrap();
        let service = unit.service();
        assert!(
            service.contains(r#"ExecStart="/opt/b\\h" serve --config "/h/100%%/my \"$$f\".toml""#),
            "{service}"
        );
        assert!(service.contains("Environment=\"PATH=/bin:/50%%\"\n"), "{service}");
        assert!(!service.contains("EnvironmentFile"), "{service}");
        assert!(unit.socket().contains("\nListenStream=[::1]:9\n"));
        assert!(!plan("/b", Some("relative")).unwrap().service().contains("PATH="));
        assert!(!plan("/b", None).unwrap().service().contains("PATH="));
        let refused = plan("/a\nExecStart=/evil", None).unwrap_err();
        assert!(refused.contains("characters that a unit file cannot have"), "{refused}");
        let more = Plan::new(Path::new("/b"), Path::new("/c"), listen, None, Some(Path::new("/e 5%/x.env")));
        assert!(more.unwrap().service().contains("\nEnvironmentFile=-/e 5%%/x.env\n"));
    }
}
