//! Keeps the last known list of a lazy server on disk, so that its tools can be listed before it runs.
//!
//! Each server identity has one file, readable by its owner only and always replaced as a whole. A file that is
//! unreadable or has another format counts as absent: every failure here only writes a log line.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridgehead_config::ServerName;
use bridgehead_wire::Raw;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tracing::debug;

use crate::catalog::{Features, Findings, ItemList, Items, Listing, Tool};
use crate::sharing::key::Identity;

/// The format of the file; files of other formats are not read.
const FORMAT: u32 = 3;

#[derive(Serialize, Deserialize)]
struct Written<T> {
    format: u32,
    instructions: Option<String>,
    /// The flags by position: nobody reads the file by eye.
    features: [bool; 10],
    experimental: Option<T>,
    tools: Vec<T>,
    prompts: Vec<T>,
    resources: Vec<T>,
    templates: Vec<T>,
}

/// The kept list of the server with this identity.
pub(crate) async fn read(folder: &Path, identity: &Identity, server: &ServerName) -> Option<Listing> {
    let path = path(folder, identity);
    let read = tokio::task::spawn_blocking(move || kept(&path));
    match read.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(listing) => listing,
        Err(error) => {
            debug!(server = %format_args!("mcp:{server}"), %error, "the cached tool list is not usable");
            None
        }
    }
}

/// Reads the list in a file. A missing file is not an error.
fn kept(path: &Path) -> io::Result<Option<Listing>> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps the list of a server.
pub(crate) async fn write(folder: &Path, identity: &Identity, server: &ServerName, listing: &Arc<Listing>) {
    let (folder, path, listing) = (folder.to_owned(), path(folder, identity), Arc::clone(listing));
    let written = tokio::task::spawn_blocking(move || replace(&folder, &path, &render(&listing)?));
    if let Err(error) = written.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        debug!(server = %format_args!("mcp:{server}"), %error, "the tool list could not be cached");
    }
}

fn path(folder: &Path, identity: &Identity) -> PathBuf {
    folder.join(format!("{identity}.json"))
}

fn parse(text: &str) -> Result<Listing, String> {
    /// Read first, so that a later format may differ in everything else.
    #[derive(Deserialize)]
    struct Form {
        format: u32,
    }
    let Form { format } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!("its format is {format}, not {FORMAT}"));
    }
    let written: Written<&RawValue> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    // The findings were reported when the tools were read from the server.
    let mut findings = Findings::default();
    let tools = written.tools.iter().map(|tool| Tool::read(tool.get(), false, &mut findings).map(Arc::new));
    let tools = tools.collect::<Option<Vec<_>>>().ok_or("it lists a malformed tool")?;
    let items = |list: ItemList, written: &[&RawValue]| {
        let items = written.iter().map(|item| list.read(item.get()).map(Arc::new));
        items.collect::<Option<Vec<_>>>().map(Items::from).ok_or("it lists a malformed entry")
    };
    Ok(Listing {
        tools,
        prompts: items(ItemList::Prompts, &written.prompts)?,
        resources: items(ItemList::Resources, &written.resources)?,
        templates: items(ItemList::Templates, &written.templates)?,
        features: Features::from_flags(written.features),
        experimental: written.experimental.and_then(|text| Raw::parse(text.get().to_owned()).ok()),
        instructions: written.instructions,
        cached: true,
    })
}

fn render(listing: &Listing) -> io::Result<Vec<u8>> {
    let raw = |definition: &'_ Raw| serde_json::from_str::<Box<RawValue>>(definition.as_str());
    let items = |items: &Items| items.iter().map(|item| raw(&item.definition)).collect::<Result<Vec<_>, _>>();
    let written = Written {
        format: FORMAT,
        instructions: listing.instructions.clone(),
        features: listing.features.flags(),
        experimental: listing.experimental.as_ref().map(raw).transpose()?,
        tools: listing.iter().map(|tool| raw(&tool.definition)).collect::<Result<Vec<_>, _>>()?,
        prompts: items(&listing.prompts)?,
        resources: items(&listing.resources)?,
        templates: items(&listing.templates)?,
    };
    Ok(serde_json::to_vec(&written)?)
}

/// Writes a temporary file and renames it, so that no reader ever sees half a file.
fn replace(folder: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    private_folder(folder)?;
    // Another gateway may write the same list at the same time.
    let beside = path.with_extension(format!("{}.new", uuid::Uuid::new_v4().simple()));
    let written = private_file(&beside).and_then(|mut file| file.write_all(text));
    let renamed = written.and_then(|()| std::fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    renamed
}

fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Lists;

    fn listing() -> Listing {
        let tools = [r#"{"name":"a","x": 1.50}"#, r#"{"name":"b"}"#];
        let tools =
            tools.map(|text| Arc::new(Tool::read(text, false, &mut Findings::default()).unwrap())).to_vec();
        let item = |list: ItemList, text: &str| Items::from(vec![Arc::new(list.read(text).unwrap())]);
        Listing {
            tools,
            prompts: item(ItemList::Prompts, r#"{"name":"p", "title":"P"}"#),
            resources: item(ItemList::Resources, r#"{"uri":"a://b"}"#),
            templates: item(ItemList::Templates, r#"{"uriTemplate":"a://{b}"}"#),
            features: Features { prompts: true, tasks: true, changes: Lists::PROMPTS, ..Features::default() },
            experimental: Some(Raw::literal(r#"{"x": 1.0}"#)),
            instructions: Some("say".to_owned()),
            cached: false,
        }
    }

    /// The file holds what the server said, byte for byte, and a list read from it is marked as cached.
    #[test]
    fn a_list_is_read_as_it_was_written() {
        let written = String::from_utf8(render(&listing()).unwrap()).unwrap();
        let read = parse(&written).unwrap();
        assert!(read.cached && read.offers_the_same(&listing()));
        assert_eq!(read[0].definition.as_str(), r#"{"name":"a","x": 1.50}"#);
    }

    #[test]
    fn what_is_of_another_form_is_refused() {
        #[track_caller]
        fn check(text: &str, reason: &str) {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        check("", "EOF");
        check("[]", "invalid");
        check(r#"{"format":4,"later":true}"#, "its format is 4");
        check(r#"{"format":3}"#, "missing field");
        let kept = |tools: &str, prompts: &str| {
            format!(
                r#"{{"format":3,"features":[true,false,false,false,false,false,false,false,false,false],"tools":[{tools}],"prompts":[{prompts}],"resources":[],"templates":[]}}"#
            )
        };
        check(&kept(r#"{"title":"no name"}"#, ""), "a malformed tool");
        check(&kept("", r#"{"title":"no name"}"#), "a malformed entry");
    }

    /// A missing file is not an error; one that is unreadable or malformed is an error for the log.
    #[test]
    fn only_what_is_there_can_be_at_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        assert!(kept(&path).unwrap().is_none());
        std::fs::write(&path, "{}").unwrap();
        assert!(kept(&path).is_err());
        std::fs::write(&path, render(&listing()).unwrap()).unwrap();
        assert_eq!(kept(&path).unwrap().unwrap().len(), 2);
        assert_ne!(kept(folder.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// Only the owner may read the folder and the file, and no temporary file stays behind.
    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_look() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state/catalog");
        let path = folder.join("x.json");
        for text in ["one", "two"] {
            replace(&folder, &path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        assert_eq!(folder.read_dir().unwrap().count(), 1);
        assert!(replace(&path, &path.join("y"), b"").is_err(), "a file is not a folder");
    }
}
