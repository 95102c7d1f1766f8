//! Where a path leads, and which folders are asked on the way there: whoever can write in one of those decides it.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// How many links a path may have before it is taken for a circle; as many as Linux follows.
const MOST_LINKS: usize = 40;

/// The way that a path takes. What is not there is taken by its name, as it may be there later.
#[derive(Debug, Clone)]
pub(crate) struct Trail {
    /// Every folder in which a name is looked up, free of links.
    asked: Vec<PathBuf>,
    /// What is found in the end, free of links.
    pub(crate) end: PathBuf,
    /// Whether its links lead in a circle; it has no end then.
    pub(crate) circular: bool,
}

impl Trail {
    /// Follows a path. One that is not absolute begins at the root.
    pub(crate) fn of(path: &Path) -> Self {
        let (mut asked, mut at, mut links) = (Vec::new(), PathBuf::from("/"), 0);
        let mut left = names(path);
        while let Some(name) = left.pop() {
            match Path::new(&name).components().next() {
                // What is above a folder is nothing that the folder decides.
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
                // The root, where links that are absolute begin.
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

    /// Whether whoever can write `place`, a file or a folder with all that is in it, decides what is found.
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

    /// WALL-2: a path is what its links lead to, and everybody on the way is known.
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
        assert_eq!(trail("link/out/x/y").end, root.join("other/x/y"), "a missing part is taken by its name");
        assert!(trail("link/out").is_covered_by(&root.join("real")), "which leads on");
        assert!(trail("link/out").is_covered_by(&root), "and what is above");
        assert!(!trail("link/out").is_covered_by(&root.join("real/inner")));
        assert_eq!(trail("real/../other").end, root.join("other"));
        assert!(!trail("real/../other").is_covered_by(&root.join("real")));
        assert!(trail("circle").circular);
    }
}
