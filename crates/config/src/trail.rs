//! Where a path leads through its links, and which folders it passes on the way. A server that can write one of those
//! folders can change where the path leads.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// A path with more links than this counts as circular; Linux has the same limit.
const MOST_LINKS: usize = 40;

/// The way that a path takes. A part that does not exist is taken by its name, because it may exist later.
#[derive(Debug, Clone)]
pub(crate) struct Trail {
    /// Every folder in which a name is looked up, with links resolved.
    asked: Vec<PathBuf>,
    /// Where the path ends, with links resolved.
    pub(crate) end: PathBuf,
    /// Whether its links lead in a circle; then it has no end.
    pub(crate) circular: bool,
}

impl Trail {
    /// Follows a path. A relative path starts at the root.
    pub(crate) fn of(path: &Path) -> Self {
        let (mut asked, mut at, mut links) = (Vec::new(), PathBuf::from("/"), 0);
        let mut left = names(path);
        while let Some(name) = left.pop() {
            match Path::new(&name).components().next() {
                // A folder does not decide what lies above it, so `..` adds nothing.
                Some(Component::ParentDir) => drop(at.pop()),
                Some(Component::Normal(_)) => {
                    asked.push(at.clone());
                    let next = at.join(&name);
                    match next.read_link() {
                        Ok(_) if links == MOST_LINKS => return Self { asked, end: next, circular: true },
                        Ok(target) => {
                            links += 1;
                            left.extend(names(&target));
                        }
                        Err(_) => at = next,
                    }
                }
                // An absolute link starts over at the root.
                Some(Component::RootDir) => at = PathBuf::from("/"),
                Some(Component::CurDir | Component::Prefix(_)) | None => {}
            }
        }
        Self { asked, end: at, circular: false }
    }

    /// Whether a name on the way is looked up in `folder` or below it.
    pub(crate) fn leads_through(&self, folder: &Path) -> bool {
        self.asked.iter().any(|asked| asked.starts_with(folder))
    }

    /// Whether write access to `place` (a file, or a folder with everything in it) decides where the path ends.
    pub(crate) fn is_covered_by(&self, place: &Path) -> bool {
        self.leads_through(place) || self.end.starts_with(place)
    }
}

/// The names in a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|name| name.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// WALL-2: a path is resolved through its links, and every folder on the way is known.
    #[test]
    fn a_path_is_followed_to_its_end() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/inner")).unwrap();
        std::fs::create_dir(root.join("other")).unwrap();
        symlink(root.join("real"), root.join("link")).unwrap();
        symlink("../other", root.join("real/out")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let trail = |path: &str| Trail::of(&root.join(path));

        assert_eq!(trail("link/inner").end, root.join("real/inner"));
        assert!(trail("link/inner").leads_through(&root.join("real")));
        assert!(!trail("link/inner").leads_through(&root.join("real/inner")));
        assert!(trail("link/inner").is_covered_by(&root.join("real/inner")));
        assert_eq!(
            trail("link/out/x/y").end,
            root.join("other/x/y"),
            "a part that does not exist is taken by its name"
        );
        assert!(trail("link/out").is_covered_by(&root.join("real")), "the folder that holds the link");
        assert!(trail("link/out").is_covered_by(&root), "the folder above it");
        assert!(!trail("link/out").is_covered_by(&root.join("real/inner")));
        assert_eq!(trail("real/../other").end, root.join("other"));
        assert!(!trail("real/../other").is_covered_by(&root.join("real")));
        assert!(trail("circle").circular);
    }
}
