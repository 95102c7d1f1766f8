//! How a client starts or reaches the gateway: the program by an absolute path that stays valid, or an address.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// What a client's entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Launch {
    /// The client starts a program and talks to it over its pipes.
    Stdio {
        /// An absolute path.
        command: String,
        args: Vec<String>,
    },
    /// The client sends requests to an address.
    Http {
        url: String,
        /// The variable of the client that holds the token or key.
        token: Option<String>,
    },
}

/// How this program is started again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) command: PathBuf,
    pub(crate) before: Vec<String>,
    /// What the user should know about the path.
    pub(crate) remark: Option<String>,
}

impl Start {
    /// The entry for a gateway on demand, with this configuration.
    pub(crate) fn launch(&self, config: Option<&Path>) -> Launch {
        let mut args = self.before.clone();
        args.extend(["serve", "--stdio"].map(str::to_owned));
        if let Some(config) = config {
            args.extend(["--config".to_owned(), config.display().to_string()]);
        }
        Launch::Stdio { command: self.command.display().to_string(), args }
    }
}

/// How to start the program that runs from `program`. `npx` and `uvx` run it from a cache that they empty, so they are asked
/// again; a link in the PATH stays valid through an update of what it means.
pub(crate) fn start(program: &Path, variables: &BTreeMap<String, String>) -> Start {
    let search = |name: &str| on_path(name, variables);
    let runs_from = |folders: &[&str]| {
        let is_one_of = |part: Component<'_>| folders.iter().any(|folder| part.as_os_str() == *folder);
        program.components().any(is_one_of)
    };
    let version = env!("CARGO_PKG_VERSION");
    if runs_from(&["_npx"])
        && let Some(npx) = search("npx")
    {
        let remark = "the entry starts the program with npx, which may download it again; \
            `npm install --global bridgehead` and `bridgehead connect` again make it start faster";
        let before = vec!["-y".to_owned(), format!("bridgehead@{version}")];
        return Start { command: npx, before, remark: Some(remark.to_owned()) };
    }
    if runs_from(&["archive-v0", "environments-v2"])
        && let Some(uvx) = search("uvx")
    {
        let remark = "the entry starts the program with uvx, which may download it again; \
            `uv tool install bridgehead` and `bridgehead connect` again make it start faster";
        let before = vec![format!("bridgehead@{version}")];
        return Start { command: uvx, before, remark: Some(remark.to_owned()) };
    }
    let itself = program.canonicalize().ok();
    let link = all_on_path("bridgehead", variables)
        .find(|found| itself.is_some() && found.canonicalize().ok() == itself);
    let built =
        program.parent().and_then(Path::parent).is_some_and(|folder| folder.join("CACHEDIR.TAG").is_file());
    let remark = (built && link.is_none()).then(|| {
        format!(
            "the entry starts `{}`, which is in a build folder that `cargo clean` empties; \
             `cargo install` and `bridgehead connect` again give it a lasting place",
            program.display()
        )
    });
    Start { command: link.unwrap_or_else(|| program.to_owned()), before: Vec::new(), remark }
}

/// The first program of this name in the PATH, by an absolute path.
pub(crate) fn on_path(name: &str, variables: &BTreeMap<String, String>) -> Option<PathBuf> {
    all_on_path(name, variables).next()
}

fn all_on_path(name: &str, variables: &BTreeMap<String, String>) -> impl Iterator<Item = PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let folders: Vec<PathBuf> =
        variables.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let candidates: Vec<PathBuf> =
        folders.into_iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).collect();
    candidates.into_iter().filter(|file| {
        file.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn program(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_owned()
    }

    /// JOIN-2: the path in a client's file stays valid: a link in the PATH rather than what it means today, npx and uvx rather
    /// than their caches; a build folder is remarked on.
    #[test]
    fn the_path_stays_valid() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let bin = at("bin");
        let variables = BTreeMap::from([("PATH".to_owned(), format!("relative:{}", bin.display()))]);
        let plain = |command: PathBuf| Start { command, before: Vec::new(), remark: None };

        let cellar = program(&at("cellar/1.0/bridgehead"));
        assert_eq!(start(&cellar, &variables), plain(cellar.clone()));
        fs::create_dir(&bin).unwrap();
        program(&at("other/bridgehead"));
        symlink(at("other/bridgehead"), bin.join("bridgehead")).unwrap();
        assert_eq!(start(&cellar, &variables), plain(cellar.clone()), "the PATH has another one");
        fs::remove_file(bin.join("bridgehead")).unwrap();
        symlink(&cellar, bin.join("bridgehead")).unwrap();
        assert_eq!(start(&cellar, &variables), plain(bin.join("bridgehead")));

        let npx = program(&at("home/.npm/_npx/abc/node_modules/@bridgehead/linux-x64/bin/bridgehead"));
        assert_eq!(start(&npx, &variables), plain(npx.clone()), "npx itself is not there");
        program(&bin.join("npx"));
        let found = start(&npx, &variables);
        assert_eq!(found.command, bin.join("npx"));
        assert!(found.remark.unwrap().contains("npm install --global"));
        let config = Some(Path::new("/c.toml"));
        let version = env!("CARGO_PKG_VERSION");
        let Launch::Stdio { args, .. } = start(&npx, &variables).launch(config) else { panic!("not stdio") };
        assert_eq!(args, ["-y", &format!("bridgehead@{version}"), "serve", "--stdio", "--config", "/c.toml"]);

        let uvx = program(&at("home/.cache/uv/archive-v0/xyz/bin/bridgehead"));
        program(&bin.join("uvx"));
        let found = start(&uvx, &variables);
        assert_eq!((found.command, found.before), (bin.join("uvx"), vec![format!("bridgehead@{version}")]));

        fs::remove_file(bin.join("bridgehead")).unwrap();
        let built = program(&at("target/debug/bridgehead"));
        assert_eq!(start(&built, &variables).remark, None);
        fs::write(at("target/CACHEDIR.TAG"), "").unwrap();
        assert!(start(&built, &variables).remark.unwrap().contains("cargo clean"));
        symlink(&built, bin.join("bridgehead")).unwrap();
        assert_eq!(start(&built, &variables), plain(bin.join("bridgehead")));
        fs::set_permissions(bin.join("npx"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(on_path("npx", &variables), None, "it cannot be run");
    }
}
