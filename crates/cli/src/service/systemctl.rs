//! Asks the user's service manager.

use std::collections::BTreeMap;
use std::time::Duration;

use bridgehead_process::{Limits, Spec, output_blocking};

use super::unit::{SERVICE, SOCKET};
use crate::world::World;

/// How long a command may take: stopping the gateway lets its calls end.
const WITHIN: Duration = Duration::from_secs(60);
/// How much of its output is read.
const MOST: usize = 64 * 1024;

/// `systemctl --user`.
pub(crate) struct Systemctl {
    variables: BTreeMap<String, String>,
}

/// How the units are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct States {
    /// Whether the socket is opened at each login, as systemd says it.
    pub(crate) enabled: String,
    /// The state of the socket.
    pub(crate) socket: String,
    /// The state of the gateway.
    pub(crate) service: String,
}

impl States {
    /// Whether the socket or the gateway is up.
    pub(crate) fn is_active(&self) -> bool {
        [&self.socket, &self.service].into_iter().any(|state| state == "active")
    }
}

impl Systemctl {
    /// With all variables: they tell where the service manager is.
    pub(crate) fn new(world: &World) -> Self {
        Self { variables: world.variables.clone() }
    }

    /// Whether there is a service manager to talk to.
    pub(crate) fn works(&self) -> bool {
        self.ask(&["show", "--property=Version"]).is_ok()
    }

    /// Runs a command.
    pub(crate) fn run(&self, words: &[&str]) -> Result<(), String> {
        let failed = |error| format!("`systemctl --user {}` failed: {error}", words.join(" "));
        self.ask(words).map(drop).map_err(failed)
    }

    /// How the units are; `None` if that cannot be found out.
    pub(crate) fn states(&self) -> Option<States> {
        let of = |unit: &str, property: &str| {
            let told = self.ask(&["show", "--value", &format!("--property={property}"), unit]).ok()?;
            Some(told.trim().to_owned())
        };
        Some(States {
            enabled: of(SOCKET, "UnitFileState")?,
            socket: of(SOCKET, "ActiveState")?,
            service: of(SERVICE, "ActiveState")?,
        })
    }

    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let spec = Spec {
            program: "systemctl".to_owned(),
            args: ["--user", "--no-ask-password", "--no-pager"]
                .iter()
                .chain(words)
                .map(ToString::to_string)
                .collect(),
            env: self.variables.clone(),
            cwd: None,
            limits: Limits::default(),
            confinement: None,
        };
        let printed = output_blocking(&spec, MOST, WITHIN).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
}
