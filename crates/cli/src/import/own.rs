//! Knows an entry that leads back to Bridgehead. A gateway that served itself would start itself again without end.

use std::path::Path;

use crate::servers_file::EntryLaunch;

/// The port that the gateway listens on, unless its configuration says otherwise.
const PORT: u16 = 4848;
const PROGRAM: &str = "bridgehead";

/// Whether a server is the gateway, on its usual port or one of these.
pub(super) fn is_own(launch: &EntryLaunch, ports: &[u16]) -> bool {
    match launch {
        EntryLaunch::Program { command, args, .. } => {
            // A launcher such as `npx` or `sh -c` has the program among its arguments.
            let words = std::iter::once(command).chain(args).flat_map(|word| word.split_whitespace());
            let mut words = words.skip_while(|word| !is_program(word)).skip(1);
            words.any(|word| word == "serve")
        }
        EntryLaunch::Remote { url, .. } => {
            let Some((_, rest)) = url.split_once("://") else { return false };
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
            let here =
                ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"].contains(&host.to_ascii_lowercase().as_str());
            here && port.parse().is_ok_and(|port| port == PORT || ports.contains(&port))
        }
    }
}

/// Whether a word names the program, as a path or as a package with a version.
fn is_program(word: &str) -> bool {
    let word = word.trim_matches(['\'', '"']);
    let name = Path::new(word).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let name = name.split('@').next().unwrap_or_default();
    name == PROGRAM || name.split("==").next() == Some(PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-1: an entry that leads back to Bridgehead is known, in every form that `connect` writes and people use.
    #[test]
    fn own_entries() {
        #[track_caller]
        fn check(words: &[&str], expected: bool) {
            let launch = match words {
                [url] if url.contains("://") => {
                    EntryLaunch::Remote { url: (*url).to_owned(), transport: None }
                }
                [command, args @ ..] => EntryLaunch::Program {
                    command: (*command).to_owned(),
                    args: args.iter().map(ToString::to_string).collect(),
                    cwd: None,
                },
                [] => panic!("nothing to check"),
            };
            assert_eq!(is_own(&launch, &[9000]), expected, "{words:?}");
        }
        check(&["bridgehead", "serve", "--stdio"], true);
        check(&["/usr/local/bin/bridgehead", "--log-level", "off", "serve", "--stdio"], true);
        check(&["npx", "-y", "bridgehead@latest", "serve", "--stdio"], true);
        check(&["npx", "-y", "@ada/bridgehead", "serve", "--stdio"], true);
        check(&["uvx", "bridgehead==0.1.0", "serve", "--stdio"], true);
        check(&["sh", "-c", "exec '/opt/bridgehead' serve --stdio"], true);
        check(&["http://127.0.0.1:4848/mcp"], true);
        check(&["http://localhost:9000/mcp?x"], true);
        check(&["http://[::1]:4848"], true);
        check(&["bridgehead", "demo-server"], false);
        check(&["node", "serve", "bridgehead"], false);
        check(&["npx", "bridgehead-tools", "serve"], false);
        check(&["http://127.0.0.1:8080/mcp"], false);
        check(&["https://gateway.example.com:4848/mcp"], false);
        check(&["http://127.0.0.1/mcp"], false);
    }
}
