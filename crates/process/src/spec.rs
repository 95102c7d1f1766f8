//! What to start, where the program is found, and why a start failed.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{Confinement, Files, Limits};

/// A program to start.
///
/// `Debug` hides the arguments and the values of the environment, which may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Spec {
    /// A name to look up in the `PATH` of `env`, or a path. A relative path starts at `cwd`.
    pub program: String,
    /// The arguments, without the program itself.
    pub args: Vec<String>,
    /// The complete environment.
    pub env: BTreeMap<String, String>,
    /// The working directory; `None` means the gateway's own.
    pub cwd: Option<PathBuf>,
    /// What the program and its descendants may use.
    pub limits: Limits,
    /// What the program and its descendants may reach; `None` means everything.
    pub confinement: Option<Confinement>,
}

impl fmt::Debug for Spec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Spec")
            .field("program", &self.program)
            .field("args", &format_args!("<{}>", self.args.len()))
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("limits", &self.limits)
            .field("confinement", &self.confinement)
            .finish()
    }
}

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// A bare name is in none of the directories of `PATH`.
    #[error(
        "program `{program}` was not found; every directory in PATH was searched; install it, \
         correct the name, give its full path, or set PATH in the server's env"
    )]
    NotFound {
        /// The program as written.
        program: String,
    },
    /// A bare name was given, but there is no `PATH` to search.
    #[error(
        "program `{program}` was not found because PATH is not set; give its full path, or set PATH in the \
         server's env"
    )]
    NoPath {
        /// The program as written.
        program: String,
    },
    /// There is no file at the given path.
    #[error("there is no program at `{}`; correct the path, or give only a name to search PATH", path.display())]
    NoSuchFile {
        /// Where it was expected.
        path: PathBuf,
    },
    /// The file exists but may not be executed, or is not a program.
    #[error(
        "`{}` cannot be executed; check that it is a program, starts with `#!` if it is a script, and has \
         execute permission",
        path.display()
    )]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// The file exists, but the interpreter in its first line does not.
    #[error("the interpreter that `{}` names in its first line does not exist; install it", path.display())]
    NoInterpreter {
        /// The script.
        path: PathBuf,
    },
    /// The working directory does not exist or is not a directory.
    #[error("the working directory `{}` does not exist; create it or correct `cwd`", cwd.display())]
    NoDirectory {
        /// The working directory.
        cwd: PathBuf,
    },
    /// The shim, which keeps the tree of the program, does not work.
    #[error(
        "the shim `{}`, which keeps the processes of a server together, failed: {source}; install it again, and \
         restart the gateway if its programs were replaced while it ran",
        shim.display()
    )]
    Shim {
        /// The program that is the shim.
        shim: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The limits cannot be enforced, so nothing was started.
    #[error(
        "program `{program}` was not started because its limits cannot be enforced: {reason}; remove the limits, or \
         run the gateway where they can be enforced"
    )]
    Limits {
        /// The program as written.
        program: String,
        /// What is missing.
        reason: String,
    },
    /// The system itself must enforce the limits and there is no control group for that, so nothing was started.
    #[error(
        "program `{program}` was not started because `require` asks for limits that the system itself enforces, and \
         here they can only be sampled: {why}; or take them out of `require`"
    )]
    Ungrouped {
        /// The program as written.
        program: String,
        /// What is missing, and the cure.
        why: &'static str,
    },
    /// It cannot be confined as configured, so nothing was started.
    #[error(
        "program `{program}` was not started because it cannot be confined as configured: this system lacks {feature} \
         ({reason}); run the gateway on a system that has it, or {way_out} (`bridgehead doctor` shows what works here)"
    )]
    Confinement {
        /// The program as written.
        program: String,
        /// What the system lacks.
        feature: &'static str,
        /// What the system said.
        reason: String,
        /// How to start without it.
        way_out: &'static str,
    },
    /// It must be confined, and this program is built without that, so nothing was started.
    #[error(
        "program `{program}` was not started because it must be confined (`files`, `network` or `profile`), and the program \
         that starts it is built without that: build it with the feature `sandbox`, or remove the confinement"
    )]
    NotBuiltIn {
        /// The program as written.
        program: String,
    },
    /// A path that it may use does not exist or contains a symbolic link, so nothing was started.
    #[error(
        "program `{program}` was not started because the path `{}` in its `files` cannot be used: {source}; create it \
         or correct the path",
        path.display()
    )]
    Path {
        /// The program as written.
        program: String,
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused for another reason.
    #[error("program `{program}` could not be started: {source}")]
    Other {
        /// The program as written.
        program: String,
        /// What the system said.
        source: io::Error,
    },
}

impl SpawnError {
    /// Whether the limits or the confinement, not the program itself, prevented the start.
    #[must_use]
    pub fn is_of_sandbox(&self) -> bool {
        use SpawnError as E;
        matches!(
            self,
            E::Limits { .. }
                | E::Ungrouped { .. }
                | E::Confinement { .. }
                | E::NotBuiltIn { .. }
                | E::Path { .. }
        )
    }
}

impl Spec {
    /// The absolute path of the program, found as a shell in the child's environment would find it.
    pub(crate) fn resolve(&self) -> Result<PathBuf, SpawnError> {
        // `degrade` does not cover this: it is for systems that cannot confine, not for programs.
        if !cfg!(feature = "sandbox") && self.confinement.is_some() {
            return Err(SpawnError::NotBuiltIn { program: self.program.clone() });
        }
        let files = self.confinement.as_ref().and_then(|confinement| confinement.files.as_ref());
        if let Some((path, source)) = files.and_then(Files::unusable) {
            let (program, path) = (self.program.clone(), path.to_owned());
            return Err(SpawnError::Path { program, path, source });
        }
        if let Some(cwd) = &self.cwd
            && !cwd.is_dir()
        {
            return Err(SpawnError::NoDirectory { cwd: cwd.clone() });
        }
        if self.program.contains('/') {
            let path = self.absolute(Path::new(&self.program))?;
            return match look(&path) {
                Found::Program => Ok(path),
                Found::Other => Err(SpawnError::NotExecutable { path }),
                Found::Nothing => Err(SpawnError::NoSuchFile { path }),
            };
        }
        let Some(search) = self.env.get("PATH") else {
            return Err(SpawnError::NoPath { program: self.program.clone() });
        };
        let mut blocked = None;
        for directory in std::env::split_paths(search) {
            let path = self.absolute(&directory.join(&self.program))?;
            match look(&path) {
                Found::Program => return Ok(path),
                Found::Other if path.is_file() => blocked = blocked.or(Some(path)),
                Found::Other | Found::Nothing => {}
            }
        }
        Err(match blocked {
            Some(path) => SpawnError::NotExecutable { path },
            None => SpawnError::NotFound { program: self.program.clone() },
        })
    }

    /// Turns the system's refusal to start the program at `path` into an error that names the cause.
    pub(crate) fn refused(&self, path: PathBuf, source: io::Error) -> SpawnError {
        match source.kind() {
            // The file existed a moment ago, so its interpreter is missing.
            io::ErrorKind::NotFound => SpawnError::NoInterpreter { path },
            io::ErrorKind::PermissionDenied => SpawnError::NotExecutable { path },
            _ if source.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
                SpawnError::NotExecutable { path }
            }
            _ => SpawnError::Other { program: self.program.clone(), source },
        }
    }

    fn absolute(&self, path: &Path) -> Result<PathBuf, SpawnError> {
        let path = match &self.cwd {
            Some(cwd) => cwd.join(path),
            None => path.to_owned(),
        };
        std::path::absolute(path)
            .map_err(|source| SpawnError::Other { program: self.program.clone(), source })
    }
}

/// The file that a program's name stands for in a search path, with links followed. `None` if there is none, or if it is not
/// searched for because the name is a path.
#[must_use]
pub fn find_program(program: &str, search: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return None;
    }
    let mut candidates = std::env::split_paths(search).map(|directory| directory.join(program));
    candidates.find(|path| matches!(look(path), Found::Program))?.canonicalize().ok()
}

enum Found {
    Program,
    Other,
    Nothing,
}

fn look(path: &Path) -> Found {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => Found::Program,
        Ok(_) => Found::Other,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Found::Other,
        Err(_) => Found::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn programs_are_searched_as_the_child_would() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let first = file("first/tool", 0o644);
        let second = file("second/tool", 0o755);
        let plain = file("first/plain", 0o644);
        std::fs::create_dir(place.path().join("first/folder")).unwrap();
        let path = format!("{0}/none:{0}/first:{0}/second", place.path().display());

        let check = |program: &str, path: Option<&str>, cwd: Option<&Path>, expected: Result<&Path, &str>| {
            let spec = Spec {
                program: program.to_owned(),
                args: Vec::new(),
                env: path.map(|path| map(&[("PATH", path)])).unwrap_or_default(),
                cwd: cwd.map(Path::to_owned),
                limits: Limits::default(),
                confinement: None,
            };
            match (spec.resolve(), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => {
                    let message = error.to_string();
                    assert!(message.contains(expected), "{message}");
                    assert!(!message.contains("/second"), "the message shows PATH: {message}");
                }
                (found, expected) => panic!("{program}: {found:?} instead of {expected:?}"),
            }
        };
        check("tool", Some(&path), None, Ok(&second));
        check("plain", Some(&path), None, Err(&format!("`{}` cannot be executed", plain.display())));
        check("folder", Some(&path), None, Err("program `folder` was not found; every directory in PATH"));
        check("absent", Some(&path), None, Err("program `absent` was not found; every directory in PATH"));
        check("tool", None, None, Err("because PATH is not set"));
        check("./second/tool", None, Some(place.path()), Ok(&place.path().join("second/tool")));
        check(second.to_str().unwrap(), None, None, Ok(&second));
        check(first.to_str().unwrap(), None, None, Err("cannot be executed"));
        check("./absent", None, Some(place.path()), Err("there is no program at"));
        check("tool", Some(&path), Some(Path::new("/no/such/place")), Err("`/no/such/place` does not exist"));
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let spec = Spec {
            program: "server".to_owned(),
            args: vec!["--token=hunter2".to_owned()],
            env: map(&[("TOKEN", "hunter2")]),
            cwd: None,
            limits: Limits::default(),
            confinement: None,
        };
        let shown = format!("{spec:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter2"), "{shown}");
    }
}
