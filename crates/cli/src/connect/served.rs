//! The servers in a client's file that the gateway serves too, so that they would run twice.
//!
//! Both are compared as `import` compares them: an entry counts if importing it would change nothing. One of the same name that
//! starts something else stays the client's.

use bridgehead::Config;
use bridgehead::config::Source;

use super::place::Target;
use crate::clients::Client;
use crate::clients::edit::{self, EditError, Format};
use crate::import;
use crate::servers_file::ServersFile;
use crate::world::World;

/// The servers of the gateway, as they are written.
pub(crate) struct Served<'w> {
    world: &'w World,
    file: ServersFile,
    /// Those that are on.
    on: Vec<String>,
}

impl<'w> Served<'w> {
    /// Those of a configuration; `None` if it has no file.
    pub(crate) fn of(config: &Config, world: &'w World) -> Option<Self> {
        let file = match &config.source {
            Source::Toml(path) => ServersFile::read(path, world).ok()?,
            Source::ClientJson(path) => import::as_imported(path, world)?,
            Source::Demo => return None,
        };
        let on = config.servers.iter().map(|server| server.name.to_string()).collect();
        Some(Self { world, file, on })
    }

    /// The names of those entries of a client's text that the gateway serves too, and that are on there.
    pub(crate) fn names(
        &self,
        client: &'static Client,
        target: &Target,
        (format, path): (Format, &[&str]),
        text: &str,
    ) -> Result<Vec<String>, EditError> {
        let entries = edit::servers(format, text, path)?.unwrap_or_default();
        let is_on = |name: &String| entries[name]["disabled"] != true && entries[name]["enabled"] != false;
        let kept = import::kept(client, &target.file, text, &self.file, self.world);
        let served = kept.into_iter().filter(|(_, server)| self.on.contains(server));
        Ok(served.map(|(name, _)| name).filter(|name| entries[name].is_object() && is_on(name)).collect())
    }
}
