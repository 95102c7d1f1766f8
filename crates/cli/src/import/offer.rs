//! After an import, the clients still start what the gateway starts now. This says so, and offers to hand it over.

use std::io::BufRead;
use std::path::Path;

use super::plan::{Outcome, Plan};
use super::read::EntryScope;
use super::sign_in::SignIn;
use crate::clients::Client;
use crate::exit::Exit;
use crate::world::World;
use crate::{connect, output};

/// The clients whose own files have servers of the configuration, which run twice unless somebody turns them off.
pub(super) struct Offer {
    clients: Vec<&'static Client>,
    /// The configuration, if a gateway does not find it by itself.
    config: Option<String>,
}

impl Offer {
    /// `None` if no server runs twice.
    pub(super) fn of(plan: &Plan, target: &Path, world: &World) -> Option<Self> {
        let mut clients: Vec<&'static Client> = Vec::new();
        let twice = plan.rows.iter().filter(|row| {
            let served = match row.outcome {
                Outcome::Added => row.disabled.is_none(),
                Outcome::Kept | Outcome::Merged(_) => true,
                Outcome::Skipped(_) => false,
            };
            let works = row.sign_in != Some(SignIn::Needed);
            served && works && !row.is_off && row.scope == EntryScope::User && connect::can_change(row.client)
        });
        for row in twice {
            if !clients.contains(&row.client) {
                clients.push(row.client);
            }
        }
        let own = world.own_file().is_some_and(|own| own == target);
        let config = (!own).then(|| target.display().to_string());
        (!clients.is_empty()).then_some(Self { clients, config })
    }

    /// The command that does it.
    pub(super) fn command(&self) -> String {
        let ids: Vec<&str> = self.clients.iter().map(|client| client.id).collect();
        let config = self.config.as_ref().map(|file| format!(" --config {file}")).unwrap_or_default();
        format!("bridgehead connect {} --move{config}", ids.join(" "))
    }

    /// Asks the user, or names the command.
    pub(super) fn make(&self, answers: Option<&mut dyn BufRead>, world: &World) -> Exit {
        let titles: Vec<&str> = self.clients.iter().map(|client| client.title).collect();
        let titles = titles.join(", ");
        if let Some(answers) = answers {
            output::talk(&format!(
                "{titles}: these servers still start there, too, so they run twice. Connect to the gateway, and turn them off \
                 there? `bridgehead disconnect` turns them on again. [y/N]"
            ));
            let mut line = String::new();
            let read = answers.read_line(&mut line).is_ok();
            if read && ["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()) {
                return connect::hand_over(&self.clients, self.config.as_ref().map(Into::into), world);
            }
        }
        output::talk(&format!(
            "next: `{}` lets {titles} use the gateway, and turns the same servers off there, so that they do not run twice",
            self.command()
        ));
        Exit::Success
    }
}
