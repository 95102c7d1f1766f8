//! The page about importing follows the table of clients.

use std::fs;
use std::path::Path;

use crate::clients::{CLIENTS, File, Root};

/// The rows of the page about importing: what is read from where.
fn rows_of_the_page() -> String {
    let of = |files: &[File]| -> String {
        let path = |file: &File| {
            let path = match file.root {
                Root::Home => format!("~/{}", file.path),
                Root::Config | Root::App => {
                    format!("{}/{}", if file.root == Root::App { "APP" } else { "CONFIG" }, file.path)
                }
                Root::Folder(variable, "") => format!("~/{0}`, `${variable}/{0}", file.path),
                Root::Folder(variable, folder) => format!("~/{folder}/{0}`, `${variable}/{0}", file.path),
                Root::Variable(variable) => format!("${variable}"),
                Root::Project => file.path.to_owned(),
                Root::Upward => format!("{} ↑", file.path),
            };
            format!("`{path}`")
        };
        files.iter().map(path).collect::<Vec<_>>().join(", ")
    };
    let mut rows = String::new();
    for client in &CLIENTS {
        let keys: Vec<String> =
            client
                .keys
                .iter()
                .map(|path| {
                    if path.is_empty() {
                        "the whole file".to_owned()
                    } else {
                        format!("`{}`", path.join("."))
                    }
                })
                .collect();
        let project = if client.project.is_empty() { "none".to_owned() } else { of(client.project) };
        rows.push_str(&format!(
            "| {} | `{}` | {} | {} | {} |\n",
            client.title,
            client.id,
            of(client.user),
            project,
            keys.join(", ")
        ));
    }
    rows
}

/// JOIN-1: the page says what is read from where, for every client of the table.
#[test]
fn the_rows_of_the_page_are_fresh() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join("docs").join("import.md");
    let page = fs::read_to_string(&file).unwrap();
    let heading = "| client | name | your files | project's files | servers under |\n|---|---|---|---|---|\n";
    let (before, rest) = page.split_once(heading).unwrap();
    let rows: usize = rest.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&file, format!("{before}{heading}{}{}", rows_of_the_page(), &rest[rows..])).unwrap();
        return;
    }
    assert_eq!(&rest[..rows], rows_of_the_page(), "import.md is stale; UPDATE_REFERENCE=1 rewrites it");
}
