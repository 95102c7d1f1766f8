//! Makes a copy of the repository with mutants in it that compiles.
//!
//! A mutant that does not compile is removed and the rest is compiled again, until the compiler reports no more errors.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::list::{Mutant, PACKAGES, digest};
use super::weave::{Woven, weave};
use crate::compiler::Aim;
use crate::steps;

/// The largest number of compiler runs. Several are needed, because the compiler checks types before borrows, and a crate
/// only when the crates below it compile.
const MOST_ROUNDS: usize = 60;

/// The copy.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    /// The original; its `target` holds the copy and the copy's build.
    pub(super) repository: PathBuf,
    /// Where a process of the copy reads which mutant is on, and notes the mutants that it reached.
    pub(super) switch: PathBuf,
    /// The wrapper that compiles it. Without one, its crates would replace ours in the target folder.
    compiler: PathBuf,
    /// The mutants that could not be woven in or do not compile.
    pub(super) left_out: BTreeSet<u32>,
}

impl Tree {
    /// Copies the repository and weaves the mutants in, except those that are known not to compile.
    pub(super) fn make(
        root: &Path,
        folder: &Path,
        mutants: &BTreeMap<u32, Mutant>,
        left_out: BTreeSet<u32>,
    ) -> Result<Self> {
        let compiler = Aim::Copy.install(folder)?;
        let tree = Self {
            root: folder.join("tree"),
            repository: root.to_owned(),
            switch: folder.join("switch"),
            compiler,
            left_out,
        };
        fs::create_dir_all(&tree.switch)?;
        tree.copy(root)?;
        let roots = tree.roots(root)?;
        tree.woven(root, &roots, mutants)
    }

    /// Copies every file that git tracks or would add. Writes only changed files, because cargo compares modification times.
    fn copy(&self, root: &Path) -> Result<()> {
        let listed =
            steps::output(root, "git", &["ls-files", "--cached", "--others", "--exclude-standard", "-z"])?;
        let listed: BTreeSet<PathBuf> = String::from_utf8(listed)?
            .split('\0')
            .filter(|path| !path.is_empty() && (root.join(path).is_file() || root.join(path).is_symlink()))
            .map(PathBuf::from)
            .collect();
        for path in &listed {
            if root.join(path).is_symlink() {
                link(&self.root.join(path), &fs::read_link(root.join(path))?)?;
                continue;
            }
            // Files that may get mutants are written later, together with their mutants.
            if !is_source(path) {
                write(&self.root.join(path), &fs::read(root.join(path))?)?;
                fs::set_permissions(self.root.join(path), fs::metadata(root.join(path))?.permissions())?;
            }
        }
        remove_strays(&self.root, &self.root, &listed)
    }

    /// The root files of the crates, relative to the root of the repository.
    fn roots(&self, root: &Path) -> Result<BTreeSet<PathBuf>> {
        let metadata = steps::cargo_output(root, &["metadata", "--no-deps", "--format-version=1"], &[])?;
        let metadata: Value = serde_json::from_slice(&metadata)?;
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let ours = packages.filter(|package| PACKAGES.iter().any(|name| package["name"] == **name));
        let targets = ours.flat_map(|package| package["targets"].as_array().into_iter().flatten());
        let programs = targets.filter(|target| {
            let kinds = target["kind"].as_array().into_iter().flatten();
            kinds.into_iter().any(|kind| kind == "lib" || kind == "bin")
        });
        let paths =
            programs.filter_map(|target| Path::new(target["src_path"].as_str()?).strip_prefix(root).ok());
        Ok(paths.map(Path::to_owned).collect())
    }

    fn woven(
        mut self,
        root: &Path,
        roots: &BTreeSet<PathBuf>,
        mutants: &BTreeMap<u32, Mutant>,
    ) -> Result<Self> {
        let mut by_file: BTreeMap<&str, Vec<(u32, &Mutant)>> = BTreeMap::new();
        for (id, mutant) in mutants {
            by_file.entry(&mutant.file).or_default().push((*id, mutant));
        }
        let sources =
            steps::output(root, "git", &["ls-files", "--cached", "--others", "--exclude-standard", "-z"])?;
        let sources = String::from_utf8(sources)?;
        let sources: Vec<&str> = sources
            .split('\0')
            .filter(|path| is_source(Path::new(path)) && root.join(path).is_file())
            .collect();
        for round in 1..=MOST_ROUNDS {
            let mut files = BTreeMap::new();
            for path in &sources {
                let text = fs::read_to_string(root.join(path))?;
                let wanted = by_file.get(path).map(Vec::as_slice).unwrap_or_default();
                let wanted: Vec<_> =
                    wanted.iter().filter(|(id, _)| !self.left_out.contains(id)).copied().collect();
                let mut woven = weave(&text, &wanted).with_context(|| format!("{path} cannot be woven"))?;
                self.left_out.extend(woven.left_out.drain(..));
                if roots.contains(Path::new(path)) {
                    woven.text.push_str(&self.switch_module());
                }
                write(&self.root.join(path), woven.text.as_bytes())?;
                files.insert((*path).to_owned(), woven);
            }
            let errors = self.compile()?;
            if errors.is_empty() {
                return Ok(self);
            }
            let before = self.left_out.len();
            for error in &errors {
                self.leave_out(error, &files);
            }
            if self.left_out.len() == before {
                let said = errors.iter().find_map(|error| error["rendered"].as_str()).unwrap_or_default();
                bail!("the copy does not compile, and no mutant is the cause:\n{said}");
            }
            println!("round {round}: {} mutants do not compile", self.left_out.len() - before);
        }
        bail!("after {MOST_ROUNDS} rounds the mutants still do not compile")
    }

    /// Compiles the copy and returns the errors.
    fn compile(&self) -> Result<Vec<Value>> {
        let target = steps::target_folder()?;
        let output = steps::program_at(&self.root, "cargo")
            .args([
                "check",
                "--workspace",
                "--all-targets",
                "--keep-going",
                "--message-format=json",
                "--quiet",
            ])
            .arg("--target-dir")
            .arg(target)
            .envs(self.variables())
            .stderr(std::process::Stdio::null())
            .output()?;
        let messages = String::from_utf8_lossy(&output.stdout);
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let errors: Vec<Value> = messages
            .filter(|message| {
                message["reason"] == "compiler-message" && message["message"]["level"] == "error"
            })
            .map(|message| message["message"].clone())
            // The summary of a failed crate has no location.
            .filter(|message| message["spans"].as_array().is_some_and(|spans| !spans.is_empty()))
            .collect();
        if errors.is_empty() && !output.status.success() {
            bail!("the copy with mutants does not compile; see `cargo check` in {}", self.root.display());
        }
        Ok(errors)
    }

    /// Removes the mutant that an error is about: the innermost one at the error's location.
    fn leave_out(&mut self, error: &Value, files: &BTreeMap<String, Woven>) {
        let spans = || error["spans"].as_array().into_iter().flatten();
        let primary = spans().filter(|span| span["is_primary"] == true);
        for span in primary.chain(spans()) {
            let span = outermost(span);
            let Some(woven) = span["file_name"].as_str().and_then(|file| files.get(file)) else { continue };
            let number = |member: &str| span[member].as_u64().and_then(|number| usize::try_from(number).ok());
            let (Some(begin), Some(end)) = (number("byte_start"), number("byte_end")) else { continue };
            let around = woven.regions.iter().filter(|(region, id)| {
                region.start <= begin && end <= region.end && !self.left_out.contains(id)
            });
            if let Some((_, id)) = around.min_by_key(|(region, _)| region.len()) {
                self.left_out.insert(*id);
                return;
            }
            // The location may be around the mutant, or beside it on the same lines.
            let begin = woven.text[..begin].rfind('\n').unwrap_or(0);
            let end = woven.text[end..].find('\n').map_or(woven.text.len(), |at| end + at);
            let near = woven.regions.iter().filter(|(region, _)| region.start < end && begin < region.end);
            let near: Vec<u32> = near.map(|(_, id)| *id).filter(|id| !self.left_out.contains(id)).collect();
            if !near.is_empty() {
                self.left_out.extend(near);
                return;
            }
        }
        // The rendered error may show the mutated code.
        let shown = error["rendered"].as_str().unwrap_or_default().split("mutant_switch::on(").skip(1);
        self.left_out.extend(shown.filter_map(|text| text.split_once(')')?.0.parse::<u32>().ok()));
    }

    /// The variables that make cargo use the wrapper.
    pub(super) fn variables(&self) -> [(&'static str, &OsStr); 1] {
        [("RUSTC_WORKSPACE_WRAPPER", self.compiler.as_os_str())]
    }

    /// A digest of all files of the copy.
    pub(super) fn digest(&self) -> Result<u64> {
        let mut files = Vec::new();
        gather(&self.root, &mut files)?;
        files.sort();
        files.iter().try_fold(0, |sum, path| Ok(digest(sum, fs::read(path)?.into_iter())))
    }

    /// The module that is added to every crate. It says whether a mutant is on, or records that it was reached.
    fn switch_module(&self) -> String {
        let active = self.switch.join("active");
        let reach = self.switch.join("reach");
        format!(
            r#"
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all)]
pub mod mutant_switch {{
    use std::sync::atomic::{{AtomicU32, AtomicU64, Ordering::Relaxed}};
    const UNREAD: u32 = u32::MAX;
    const RECORDING: u32 = u32::MAX - 1;
    static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);
    static SEEN: [AtomicU64; 512] = [const {{ AtomicU64::new(0) }}; 512];
    #[inline]
    pub fn on(id: u32) -> bool {{
        match ACTIVE.load(Relaxed) {{
            UNREAD => first(id),
            RECORDING => seen(id),
            active => active == id,
        }}
    }}
    #[cold]
    fn first(id: u32) -> bool {{
        let text = std::fs::read_to_string({active:?}).unwrap_or_default();
        let active = if text == "record" {{ RECORDING }} else {{ text.parse().unwrap_or(0) }};
        ACTIVE.store(active, Relaxed);
        on(id)
    }}
    fn seen(id: u32) -> bool {{
        use std::io::Write as _;
        let bit = 1 << (id % 64);
        if SEEN[(id / 64) as usize % 512].fetch_or(bit, Relaxed) & bit == 0 {{
            let file = std::fs::OpenOptions::new().append(true).create(true).open({reach:?});
            if let Ok(mut file) = file {{
                let _ = file.write_all(&id.to_le_bytes());
            }}
        }}
        false
    }}
}}
"#
        )
    }
}

/// Whether mutants may go into a file.
fn is_source(path: &Path) -> bool {
    let mut parts = path.iter();
    path.extension().is_some_and(|extension| extension == "rs")
        && parts.next().is_some_and(|part| part == "crates")
        && parts.nth(1).is_some_and(|part| part == "src")
}

/// The location of the outermost macro call, if the span is inside a macro.
fn outermost(span: &Value) -> &Value {
    let mut span = span;
    while span["expansion"]["span"].is_object() {
        span = &span["expansion"]["span"];
    }
    span
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a symbolic link like that of the repository, which leads to the copy of its target.
fn link(path: &Path, target: &Path) -> Result<()> {
    if fs::read_link(path).is_ok_and(|before| before == target) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // A file of an earlier copy may be in the way.
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink(target, path).with_context(|| format!("cannot link {}", path.display()))
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Removes files that the repository no longer has.
fn remove_strays(root: &Path, folder: &Path, known: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let relative = path.strip_prefix(root)?;
        if path.is_dir() && !path.is_symlink() {
            remove_strays(root, &path, known)?;
        } else if !known.contains(relative) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
