//! Runs the commands from which a configuration takes secrets (`${cmd:NAME}`).

use std::collections::BTreeMap;
use std::sync::Arc;

use bridgehead_config::{RunCommand, SecretCommand};
use bridgehead_process::{Limits, Spec, output_blocking};

/// Runs the commands that a configuration lists under `[secrets]`, with these variables: such commands sign in at stores of
/// secrets. Pass it to [`Environment::running`](crate::config::Environment::running).
pub fn secret_commands(variables: BTreeMap<String, String>) -> Arc<RunCommand> {
    Arc::new(move |command: SecretCommand<'_>| {
        let spec = Spec {
            program: command.program.to_owned(),
            args: command.args.to_vec(),
            env: variables.clone(),
            cwd: Some(command.folder.to_owned()),
            limits: Limits::default(),
            confinement: None,
        };
        output_blocking(&spec, command.most, command.within).map_err(|error| error.to_string())
    })
}
