//! Which configuration file is used.
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridgehead_config::{Environment, Origin, locate};

struct Place {
    folder: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Place {
    fn with(files: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in ["cwd", "xdg/bridgehead", "home/.config/bridgehead"] {
            std::fs::create_dir_all(folder.path().join(file)).unwrap();
        }
        for file in files {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        Self { folder, variables: BTreeMap::new() }
    }

    fn set(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        let value = self.folder.path().join(value);
        self.variables.insert(name.to_owned(), value.to_str().unwrap().to_owned());
        self
    }

    fn locate(&self, explicit: Option<&str>) -> Result<Option<PathBuf>, String> {
        Ok(self.all("cwd", explicit)?.into_iter().next().map(|(path, _)| path))
    }

    /// All files that may be used in a folder.
    fn all(&self, folder: &str, explicit: Option<&str>) -> Result<Vec<(PathBuf, Origin)>, String> {
        let environment = Environment::read(self.variables.clone()).unwrap();
        let root = self.folder.path();
        let short = |path: &Path| path.strip_prefix(root).map_or(path.to_owned(), Path::to_owned);
        locate(explicit.map(Path::new), &environment, &root.join(folder))
            .map(|all| all.iter().map(|found| (short(&found.path), found.origin)).collect())
            .map_err(|error| error.to_string().replace(root.to_str().unwrap(), "ROOT"))
    }
}

const XDG: &str = "xdg/bridgehead/bridgehead.toml";
const HOME: &str = "home/.config/bridgehead/bridgehead.toml";
const OWN: &str = "cwd/bridgehead.toml";
const CLIENT: &str = "cwd/.mcp.json";

#[track_caller]
fn check(place: &Place, explicit: Option<&str>, expected: Option<&str>) {
    assert_eq!(place.locate(explicit), Ok(expected.map(PathBuf::from)));
}

#[test]
fn the_first_of_the_search_order_is_used() {
    let all = ["cwd/named.toml", "cwd/variable.toml", OWN, CLIENT, XDG, HOME];
    let folders = |place: Place| place.set("XDG_CONFIG_HOME", "xdg").set("HOME", "home");
    let everything = folders(Place::with(&all)).set("BRIDGEHEAD_CONFIG", "cwd/variable.toml");
    check(&everything, Some("named.toml"), Some("named.toml"));
    check(&everything, None, Some("cwd/variable.toml"));
    check(&folders(Place::with(&all[2..])), None, Some(OWN));
    check(&folders(Place::with(&all[3..])), None, Some(CLIENT));
    check(&folders(Place::with(&all[4..])), None, Some(XDG));
    // If XDG_CONFIG_HOME is set, ~/.config is not used.
    check(&folders(Place::with(&all[5..])), None, None);
    check(&Place::with(&all[5..]).set("HOME", "home"), None, Some(HOME));
    check(&Place::with(&all[4..]), None, None);
}

#[test]
fn a_relative_configuration_folder_is_not_used() {
    let mut place = Place::with(&[XDG, HOME]).set("HOME", "home");
    place.variables.insert("XDG_CONFIG_HOME".to_owned(), "../xdg".to_owned());
    check(&place, None, Some(HOME));
}

#[test]
fn a_named_file_must_exist() {
    let place = Place::with(&[OWN]).set("BRIDGEHEAD_CONFIG", "gone.toml");
    insta::assert_snapshot!(place.locate(Some("gone.toml")).unwrap_err(), @r"
    error: --config names `gone.toml`, which does not exist
     |
     = help: correct --config, or leave it out
    ");
    insta::assert_snapshot!(place.locate(None).unwrap_err(), @r"
    error: BRIDGEHEAD_CONFIG names `ROOT/gone.toml`, which does not exist
     |
     = help: correct BRIDGEHEAD_CONFIG, or leave it out
    ");
    assert!(place.locate(Some(".")).is_err(), "a folder is not a file");
}

/// WALL-7: a file in the current folder is distinguished from a named file and from the user's own file.
#[test]
fn each_file_says_how_it_came_to_be_looked_at() {
    let place = Place::with(&["cwd/named.toml", OWN, CLIENT, XDG]).set("XDG_CONFIG_HOME", "xdg");
    let check = |folder: &str, explicit: Option<&str>, expected: &[(&str, Origin)]| {
        let expected: Vec<_> = expected.iter().map(|(path, origin)| (PathBuf::from(path), *origin)).collect();
        assert_eq!(place.all(folder, explicit), Ok(expected));
    };
    check("cwd", Some("named.toml"), &[("named.toml", Origin::Named)]);
    check("cwd", Some("bridgehead.toml"), &[("bridgehead.toml", Origin::Named)]);
    check("cwd", None, &[(OWN, Origin::Folder), (CLIENT, Origin::Folder), (XDG, Origin::User)]);
    check("home", None, &[(XDG, Origin::User)]);
    check("xdg/bridgehead", None, &[(XDG, Origin::User), (XDG, Origin::User)]);
}
