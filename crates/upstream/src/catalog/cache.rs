//! Keeps the last known list of each server on disk, so that its tools can be listed before it has answered.
//!
//! Each server identity has one file, readable by its owner only and always replaced as a whole. A file that is
//! unreadable, too large, of another format, or that another user may have written counts as absent: every failure here
//! only writes a log line. There are at most [`MOST_FILES`]; the oldest make room.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
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
/// The largest file that is written and read.
const MOST_BYTES: u64 = 16 * 1024 * 1024;
/// How many files are kept.
const MOST_FILES: usize = 256;

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
            debug!(server = %format_args!("mcp:{server}"), %error, "the saved tool list is not usable");
            None
        }
    }
}

/// Reads the list in a file. A missing file is not an error.
fn kept(path: &Path) -> io::Result<Option<Listing>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !is_own(&file)? {
        return Err(io::Error::other("it belongs to another user, or others can write it"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    parse(&text).map(Some).map_err(io::Error::other)
}

/// Whether nobody but this process's user can have written a file.
#[cfg(unix)]
fn is_own(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let about = file.metadata()?;
    Ok(about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0)
}

#[cfg(not(unix))]
fn is_own(_file: &File) -> io::Result<bool> {
    Ok(true)
}

/// Keeps the list of a server.
pub(crate) async fn write(folder: &Path, identity: &Identity, server: &ServerName, listing: &Arc<Listing>) {
    let (folder, path, listing) = (folder.to_owned(), path(folder, identity), Arc::clone(listing));
    let written = tokio::task::spawn_blocking(move || replace(&folder, &path, &render(&listing)?));
    if let Err(error) = written.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        debug!(server = %format_args!("mcp:{server}"), %error, "the tool list could not be saved");
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
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    private_folder(folder)?;
    if !path.exists() {
        make_room(folder, MOST_FILES - 1);
    }
    // Another gateway may write the same list at the same time.
    let beside = path.with_extension(format!("{}.new", uuid::Uuid::new_v4().simple()));
    let written = private_file(&beside).and_then(|mut file| file.write_all(text));
    let renamed = written.and_then(|()| std::fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    renamed
}

/// Removes the oldest files of a folder until at most `most` are left. What cannot be removed stays.
fn make_room(folder: &Path, most: usize) {
    let Ok(files) = folder.read_dir() else { return };
    let mut files: Vec<_> = files
        .filter_map(|file| {
            let file = file.ok()?;
            Some((file.metadata().ok()?.modified().ok()?, file.path()))
        })
        .collect();
    files.sort();
    let surplus = files.len().saturating_sub(most);
    for (_, path) in &files[..surplus] {
        let _ = std::fs::remove_file(path);
    }
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

    /// SRV-3: the number and the size of saved lists are bounded, and the oldest make room.
    #[test]
    fn saved_lists_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(format!("{number}.json"));
        for number in 0..MOST_FILES + 2 {
            replace(folder.path(), &path(number), b"{}").unwrap();
            let file = File::options().append(true).open(path(number)).unwrap();
            let age = std::time::Duration::from_secs(10_000 - number as u64);
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), MOST_FILES);
        assert!(!path(0).exists() && !path(1).exists() && path(2).exists());
        replace(folder.path(), &path(2), b"{}").unwrap();
        assert_eq!(
            folder.path().read_dir().unwrap().count(),
            MOST_FILES,
            "a list that is replaced needs no room"
        );
        let large = vec![b' '; usize::try_from(MOST_BYTES).unwrap() + 1];
        assert!(replace(folder.path(), &path(2), &large).is_err());
        std::fs::write(path(2), &large).unwrap();
        assert!(kept(&path(2)).unwrap_err().to_string().contains("too large"));
    }

    /// SRV-3: only the owner may read the folder and the file, a file that others can write is not read, and no temporary
    /// file stays behind.
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
        replace(&folder, &path, &render(&listing()).unwrap()).unwrap();
        assert!(kept(&path).unwrap().is_some());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        assert!(kept(&path).unwrap_err().to_string().contains("others can write it"));
        assert!(replace(&path, &path.join("y"), b"").is_err(), "a file is not a folder");
    }
}
