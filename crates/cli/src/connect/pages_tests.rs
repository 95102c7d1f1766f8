//! Writes a page for each client, from the table of clients and from what `connect` would write, and fails if one is stale
//! (`cargo xtask generate`).

use std::fmt::Write as _;
use std::path::Path;

use super::NAME;
use super::entry::{can, snippet};
use super::launch::Launch;
use crate::clients::{By, CLIENTS, Client, File, Form, Http, Root};

const MARK: &str = "<!-- Written by `cargo xtask generate` from the table of clients. -->";

/// A file of a client, as the pages write it.
fn place(file: &File) -> String {
    match file.root {
        Root::Home => format!("`~/{}`", file.path),
        Root::Config => format!("`~/.config/{}`", file.path),
        Root::App => {
            format!("`~/.config/{0}` (macOS: `~/Library/Application Support/{0}`)", file.path)
        }
        Root::Folder(variable, home) => {
            let home = if home.is_empty() { String::new() } else { format!("{home}/") };
            format!("`~/{home}{0}`, or `${variable}/{0}`", file.path)
        }
        Root::Variable(variable) => format!("the file that `${variable}` names"),
        Root::Project => format!("`{}`", file.path),
        Root::Upward => format!("`{}`, also in a folder above", file.path),
    }
}

fn block(page: &mut String, before: &str, language: &str, text: &str) {
    let before = if before.is_empty() { String::new() } else { format!("<!-- {before} -->\n") };
    write!(page, "\n{before}```{language}\n{}\n```\n", text.trim_end()).unwrap();
}

const fn language(client: &Client) -> &'static str {
    match client.form {
        Form::Json => "json",
        Form::Jsonc => "jsonc",
        Form::Toml => "toml",
        Form::Yaml => "yaml",
    }
}

fn page(client: &Client) -> String {
    let (title, id) = (client.title, client.id);
    let mut page = format!("# {title}\n\n{MARK}\n");
    if client.connect.by == By::Never {
        write!(
            page,
            "\n{title} has ended, so Bridgehead does not connect it. Its servers can still be imported:\n"
        )
        .unwrap();
        block(
            &mut page,
            "not run: it needs the file of the client",
            "sh",
            &format!("bridgehead import --from {id}"),
        );
        write!(page, "\nIt keeps them in {}.\n", files(client.user.iter())).unwrap();
        return page;
    }
    let run = "not run: it would run the client's own program, if that is installed";
    match client.connect.by {
        By::Command(program) => {
            write!(
                page,
                "\nThis puts the gateway into {title}'s file. If `{program}` is installed, it does that; otherwise the file \
                 is edited.\n"
            )
            .unwrap();
            block(&mut page, run, "sh", &format!("bridgehead connect {id}"));
        }
        By::Edit => {
            write!(page, "\nThis puts the gateway into {title}'s file. Nothing else in it changes.\n")
                .unwrap();
            block(&mut page, "", "sh", &format!("bridgehead connect {id}"));
        }
        By::Snippet | By::Never => {
            write!(page, "\nBridgehead does not edit {title}'s file. This prints what to add to it:\n")
                .unwrap();
            block(&mut page, "", "sh", &format!("bridgehead connect {id}"));
        }
    }
    let launch = Launch::Stdio {
        command: "/usr/local/bin/bridgehead".to_owned(),
        args: ["serve", "--stdio"].map(str::to_owned).to_vec(),
    };
    page += "\nThe entry looks like this, with the path of your own program:\n";
    block(&mut page, "", language(client), &snippet(client, NAME, &launch));
    let mut notes = vec![format!("**Its file** is {}.", files(current(client)))];
    if let Some(file) = client.project.first() {
        notes.push(format!(
            "**For one project**, `bridgehead connect {id} --project` uses `{}` in the current folder instead.",
            file.path
        ));
    }
    if client.connect.restart {
        notes.push(format!("**Restart** {title} after the change."));
    }
    notes.extend(client.connect.trust.map(|asks| format!("**Trust**: {asks}.")));
    if !client.aliases.is_empty() {
        let names: Vec<String> = client.aliases.iter().map(|alias| format!("`{alias}`")).collect();
        notes.push(format!("**Also called** {} on the command line.", names.join(", ")));
    }
    notes.push(format!("**Its own servers**: `bridgehead import --from {id}` puts them behind the gateway."));
    page += "\n";
    for note in notes {
        writeln!(page, "- {note}").unwrap();
    }

    page += "\n## Over HTTP\n";
    let http = |token: Option<&str>| Launch::Http {
        url: "http://127.0.0.1:4848/mcp".to_owned(),
        token: token.map(str::to_owned),
    };
    let (plain, keyed) = (http(None), http(Some(super::KEY_VARIABLE)));
    if client.connect.http == Http::No {
        write!(
            page,
            "\n{title} is connected as a program that it starts. HTTP is not known to work there.\n"
        )
        .unwrap();
    } else {
        write!(
            page,
            "\nIf the gateway [runs as a service](../howto/service.md), `bridgehead connect {id} --http` gives the client its address:\n"
        )
        .unwrap();
        let shown = if can(client, &keyed) { &keyed } else { &plain };
        block(&mut page, "", language(client), &snippet(client, NAME, shown));
        page += &match can(client, &keyed) {
            true => format!(
                "\nA gateway that asks for no key needs none: what names `{}` is then left out. Otherwise set the variable where {title} \
                 starts, to a key of `bridgehead key new`.\n",
                super::KEY_VARIABLE
            ),
            false => format!(
                "\n{title} takes no variable there, so a gateway that asks for a key is connected as a program.\n"
            ),
        };
    }
    page += "\n## Undo\n";
    match client.connect.by {
        By::Snippet | By::Never => page += "\nTake the entry out of the file.\n",
        By::Edit => block(&mut page, "", "sh", &format!("bridgehead disconnect {id}")),
        By::Command(_) => block(&mut page, run, "sh", &format!("bridgehead disconnect {id}")),
    }
    if !matches!(client.connect.by, By::Snippet | By::Never) {
        page += "\nA file that nobody has changed since gets back every byte. From any other, only the entry is taken out.\n";
    }
    page
}

/// The files that `connect` may write. The others are only imported.
fn current(client: &Client) -> impl Iterator<Item = &File> {
    let keys = |file: &File| file.keys.unwrap_or(client.keys).first().copied();
    let first = client.user.first().and_then(keys);
    client.user.iter().filter(move |file| keys(file) == first)
}

fn files<'f>(files: impl Iterator<Item = &'f File>) -> String {
    let mut all: Vec<String> = files.map(place).collect();
    all.dedup();
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{}; else {last}", rest.join("; else ")),
        _ => all.concat(),
    }
}

fn index() -> String {
    let mut page = format!(
        "# Connect a client\n\n{MARK}\n\n`bridgehead connect` shows which clients are on this machine, and which are connected. \
         `bridgehead connect NAME` connects one, `--all` all that are found. `--dry-run` shows what would change.\n\n\
         - One entry is added to the client's file. Comments, order and everything else stay; the file from before is kept beside it.\n\
         - The client then starts the gateway by itself. With `--http` it uses one that runs already.\n\
         - A file that is broken is named and left alone.\n\
         - `bridgehead disconnect NAME` takes the entry out again.\n\n\
         | client | name | how | HTTP |\n|---|---|---|---|\n"
    );
    for client in &CLIENTS {
        let how = match client.connect.by {
            By::Command(program) => format!("by `{program}`, or an edit of its file"),
            By::Edit => "an edit of its file".to_owned(),
            By::Snippet => "prints the entry".to_owned(),
            By::Never => "import only".to_owned(),
        };
        let http = match (client.connect.by, client.connect.http) {
            (By::Never, _) | (_, Http::No) => "–",
            (_, Http::WithoutToken) => "without a key",
            (_, Http::Header(_) | Http::TokenVariable(_)) => "yes",
        };
        writeln!(page, "| [{}]({id}.md) | `{id}` | {how} | {http} |", client.title, id = client.id).unwrap();
    }
    page += "\nAny other client: if it starts its servers itself, give it the command `bridgehead serve --stdio` with the absolute path of the \
             program. If it speaks HTTP, give it the address that `bridgehead serve` prints.\n";
    page
}

#[track_caller]
fn check(name: &str, page: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clients").join(name);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "docs/clients/{name} is stale; run `cargo xtask generate`");
}

/// JOIN-2, WORD-2: each client has a page with its files and the entry that `connect` writes.
#[test]
fn the_pages_of_clients_are_fresh() {
    check("README.md", &index());
    for client in &CLIENTS {
        check(&format!("{}.md", client.id), &page(client));
    }
}
