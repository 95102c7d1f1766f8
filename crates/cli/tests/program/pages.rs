//! Runs the shell blocks of the documentation, so that no page shows a command that does not work.
//!
//! The blocks of a page run in order, each in a shell of its own, in one folder with an empty home; `bridgehead` is this program. A
//! comment on the line before a block says what is special about it:
//!
//! - `<!-- not run: REASON -->`: the block is not run, for example because it needs the network;
//! - `<!-- left running -->`: the block runs until the end of the page, and is then interrupted;
//! - `<!-- exits with N -->`: the block ends with this code instead of 0;
//! - `<!-- file: NAME -->`: the block, of any language, is saved as a file of the folder.

use std::path::{Path, PathBuf};

use bridgehead_front::{API, ENDPOINT, HEALTH, READINESS};
use rustix::process::Signal;

use crate::common::{Place, Ran, program, signal, until};

/// What is done with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Use {
    Run {
        code: i32,
    },
    LeftRunning,
    Saved(String),
    /// The reason why it is not run.
    NotRun(String),
    /// It is no shell block.
    Shown,
}

/// One fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    language: String,
    text: String,
    meant: Use,
}

/// The blocks of a page, or what is wrong with one of them.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    let mut before = "";
    for (at, line) in page.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (Some(language), None) => {
                let language = language.split(',').next().unwrap_or_default().trim().to_owned();
                let meant = meant(&language, before).map_err(|error| format!("line {}: {error}", at + 1))?;
                open = Some(Block { line: at + 1, language, text: String::new(), meant });
            }
            (None, None) => {}
        }
        before = line.trim();
    }
    match open {
        Some(block) => Err(format!("line {}: the block has no end", block.line)),
        None => Ok(blocks),
    }
}

fn meant(language: &str, before: &str) -> Result<Use, String> {
    let comment = before.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")).unwrap_or_default();
    if let Some(name) = comment.strip_prefix("file: ") {
        return Ok(Use::Saved(name.to_owned()));
    }
    match (language, comment) {
        ("", _) => Err("the block names no language; write ```sh, ```text or another".to_owned()),
        ("console" | "bash" | "shell", _) => Err("write ```sh, and the commands alone".to_owned()),
        ("sh", "left running") => Ok(Use::LeftRunning),
        ("sh", _) => match (comment.strip_prefix("not run: "), comment.strip_prefix("exits with ")) {
            (Some(reason), _) if reason.len() < 10 => Err("say why the block is not run".to_owned()),
            (Some(reason), _) => Ok(Use::NotRun(reason.to_owned())),
            (_, Some(code)) => code
                .parse()
                .map(|code| Use::Run { code })
                .map_err(|_| format!("`{code}` is not an exit code")),
            _ => Ok(Use::Run { code: 0 }),
        },
        _ => Ok(Use::Shown),
    }
}

/// The pages of the book and of the repository's root.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for path in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("md") => pages.push(path),
                _ => {}
            }
        }
    }
    pages.sort();
    pages
}

/// A folder in which `bridgehead` is this program. `serve` gets a free port, because the usual one may be taken.
fn prepared() -> (Place, String) {
    let place = Place::new();
    let folder = place.path().join("bin");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::create_dir_all(place.path().join("home")).unwrap();
    let wrapper = format!(
        "#!/bin/sh\ncase \"$*\" in\n  *--listen*|*--stdio*|*--help*) ;;\n  serve*) shift; set -- serve --listen 127.0.0.1:0 \"$@\" ;;\nesac\n\
         exec '{}' \"$@\"\n",
        program().display()
    );
    let file = place.file("bin/bridgehead", &wrapper);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(file, executable).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    (place, path)
}

/// JOIN-8: every shell block of the documentation works as it stands, or says why it is not run.
#[tokio::test]
async fn the_shell_blocks_of_the_pages_work() {
    let (mut wrong, mut ran, mut left_out) = (Vec::new(), 0, 0);
    for page in pages() {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        let blocks = match blocks(&std::fs::read_to_string(&page).unwrap()) {
            Ok(blocks) => blocks,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        if !blocks.iter().any(|block| matches!(block.meant, Use::Run { .. } | Use::LeftRunning)) {
            left_out += blocks.iter().filter(|block| matches!(block.meant, Use::NotRun(_))).count();
            continue;
        }
        let (place, path) = prepared();
        let home = place.path().join("home").display().to_string();
        let variables = [("PATH", path.as_str()), ("HOME", home.as_str()), ("USER", "me")];
        let shell = |text: &str| {
            let text = format!("set -eu\ncd '{}'\n{text}", place.path().display());
            place.start_program(Path::new("/bin/sh"), &["-c", &text], &variables)
        };
        let mut running = Vec::new();
        for Block { line, text, meant, .. } in blocks {
            match meant {
                Use::Saved(file) => {
                    let folder = place.path().join(&file);
                    std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
                    place.file(&file, &text);
                }
                Use::LeftRunning => {
                    let started = shell(&format!("exec {text}"));
                    until(|| started.stderr().contains("serves MCP at").then_some(())).await;
                    running.push((line, started));
                    ran += 1;
                }
                Use::Run { code } => {
                    let ended = Ran::of(shell(&text)).await;
                    ran += 1;
                    if ended.code != Some(code) {
                        wrong.push(format!(
                            "{name}, line {line}: {text}ended with {:?}: {}",
                            ended.code, ended.stderr
                        ));
                    }
                }
                Use::NotRun(_) => left_out += 1,
                Use::Shown => {}
            }
        }
        for (line, mut started) in running {
            signal(&started, Signal::INT);
            let ended = started.wait().await;
            if !ended.success() {
                wrong.push(format!("{name}, line {line}: interrupted, it ended with {ended}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran >= 4, "only {ran} blocks were run, and {left_out} were not");
}

/// WORD-2: the page of HTTP paths has every path that is served, and every route of the operators' API.
#[test]
fn the_page_of_http_paths_is_complete() {
    let read = |path: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(path)).unwrap()
    };
    let page = read("docs/http-api.md");
    let metadata = ["/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server"];
    for path in [ENDPOINT, HEALTH, READINESS].iter().chain(&metadata) {
        assert!(page.contains(&format!("| `{path}`")), "docs/http-api.md lacks {path}");
    }
    // The answer to an unknown route lists them all.
    let source = read("crates/front/src/http/api.rs");
    let (_, rest) = source.split_once("the routes are {API}{{").unwrap();
    let (routes, _) = rest.split_once("}}").unwrap();
    for route in routes.split(',') {
        assert!(page.contains(&format!(" {API}{route}")), "docs/http-api.md lacks {API}{route}");
    }
}

#[test]
fn what_is_done_with_a_block() {
    #[track_caller]
    fn check(page: &str, expected: Result<Use, &str>) {
        match (blocks(page), expected) {
            (Ok(blocks), Ok(meant)) => assert_eq!(blocks[0].meant, meant, "{page}"),
            (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
            (found, expected) => panic!("{page}: {found:?} instead of {expected:?}"),
        }
    }
    check("```sh\nx\n```\n", Ok(Use::Run { code: 0 }));
    check("<!-- exits with 3 -->\n```sh\nx\n```\n", Ok(Use::Run { code: 3 }));
    check("<!-- exits with x -->\n```sh\nx\n```\n", Err("line 2: `x` is not an exit code"));
    check("<!-- left running -->\n```sh\nx\n```\n", Ok(Use::LeftRunning));
    check(
        "<!-- not run: it needs the network -->\n```sh\nx\n```\n",
        Ok(Use::NotRun("it needs the network".to_owned())),
    );
    check("<!-- not run: no -->\n```sh\nx\n```\n", Err("say why"));
    check("<!-- file: a.toml -->\n```toml\nx = 1\n```\n", Ok(Use::Saved("a.toml".to_owned())));
    check("```text\n$ x\n```\n", Ok(Use::Shown));
    check("```rust,no_run\n```\n", Ok(Use::Shown));
    check("```\nx\n```\n", Err("names no language"));
    check("```console\n$ x\n```\n", Err("the commands alone"));
    check("\n\n```sh\nx\n", Err("line 3: the block has no end"));
    assert_eq!(blocks("```sh\na\nb\n```\ntext\n```text\n```\n").unwrap()[0].text, "a\nb\n");
}

/// LIB-6: every dependency on the library that a page shows can be written before anything is published: by the path of a checkout that
/// has the crate, with features that it has.
#[test]
fn dependencies_on_the_library_work_from_a_checkout() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crate_file = std::fs::read_to_string(root.join("crates/bridgehead/Cargo.toml")).unwrap();
    let manifest: toml_edit::DocumentMut = crate_file.parse().unwrap();
    assert_eq!(manifest["package"]["name"].as_str(), Some("bridgehead"));
    let guides = std::fs::read_dir(root.join("docs/library")).unwrap().map(|entry| entry.unwrap().path());
    let mut seen = 0;
    for page in guides.chain([root.join("docs/library.md")]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in blocks(&text).unwrap().iter().filter(|block| block.text.contains("[dependencies]")) {
            let shown: toml_edit::DocumentMut = block.text.parse().unwrap();
            let dependency = &shown["dependencies"]["bridgehead"];
            let path = dependency["path"].as_str().unwrap_or_else(|| panic!("{}: no path", page.display()));
            assert_eq!(path, "../bridgehead/crates/bridgehead", "{}", page.display());
            for feature in dependency["features"].as_array().unwrap() {
                let feature = feature.as_str().unwrap();
                assert!(manifest["features"].get(feature).is_some(), "{}: {feature}", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen >= 6, "{seen} pages show a dependency");
}
