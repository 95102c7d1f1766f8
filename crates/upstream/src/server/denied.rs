//! Explains the confinement of a server that did not start: its configuration, and what it probably denied, judging
//! by the server's output.
//!
//! Programs do not know that they are confined; they complain about permissions.

use std::path::{Path, PathBuf};

use bridgehead_config::{Confinement, FileAccess, Network, Profile};

/// The most paths that are named.
const MOST_PATHS: usize = 3;

/// How programs report that they were denied something.
const REFUSED: [&str; 6] =
    ["eacces", "eperm", "permission denied", "operation not permitted", "errno 13", "permissionerror"];
/// How they report that they wanted to change something.
const CHANGES: [&str; 10] =
    ["mkd", "creat", "writ", "unlink", "rename", "rmdir", "remov", "symlink", "touch", "lock"];
/// Where programs keep downloads, which servers should not share.
const CACHES: [&str; 2] = ["/.npm", "/.cache/"];
/// How they report that the network is missing.
const OFFLINE: [&str; 9] = [
    "eai_again",
    "enotfound",
    "name resolution",
    "could not resolve",
    "dns error",
    "failed to lookup address",
    "network is unreachable",
    "connect eperm",
    "error sending request",
];

/// Names the confinement of a server, and the key that is probably missing, judging by its output.
pub(crate) fn by_confinement(asked: &Confinement, words: &str) -> String {
    let mut hints = Vec::new();
    if let Some(files) = &asked.files {
        let refused = refused_paths(words);
        let mut told = |key: &str, change: bool| {
            let paths =
                refused.iter().filter(|(path, changes)| missing(files, path, *changes) == Some(change));
            let paths: Vec<String> =
                paths.take(MOST_PATHS).map(|(path, _)| format!("`{}`", path.display())).collect();
            if !paths.is_empty() {
                let cache =
                    change && paths.iter().any(|path| CACHES.iter().any(|cache| path.contains(cache)));
                let instead = if cache { " (or a `HOME` of its own in its `env`)" } else { "" };
                hints.push(format!("{} in its `files.{key}`{instead}", paths.join(", ")));
            }
        };
        told("write", true);
        told("read", false);
    }
    let lower = words.to_ascii_lowercase();
    if asked.network == Network::None
        && (OFFLINE.iter().any(|sign| lower.contains(sign)) || is_refused_socket(&lower))
    {
        hints.push("`network = \"full\"`".to_owned());
    }
    let how = describe(asked);
    match hints.is_empty() {
        true => format!("it is confined by {how}, which may be why"),
        false => format!("it is confined by {how} and probably misses {}", hints.join(", and ")),
    }
}

/// The confinement, as the configuration writes it.
pub(crate) fn describe(asked: &Confinement) -> String {
    let files = asked.files.is_some().then(|| "`files`".to_owned());
    let network = (asked.network == Network::None).then(|| "`network = \"none\"`".to_owned());
    match asked.profile {
        Some(profile) => format!("`profile = \"{}\"`", Profile::as_str(profile)),
        None => files.into_iter().chain(network).collect::<Vec<_>>().join(" and "),
    }
}

fn is_refused_socket(words: &str) -> bool {
    words.lines().any(|line| is_refused(line) && (line.contains("socket") || line.contains("connect")))
}

fn is_refused(line: &str) -> bool {
    REFUSED.iter().any(|sign| line.contains(sign))
}

/// The denied paths, each once, and whether something was to be changed there.
fn refused_paths(words: &str) -> Vec<(PathBuf, bool)> {
    let lower = words.to_ascii_lowercase();
    // npm reports the error, the path and the call on separate lines.
    let by_npm = lower.lines().any(|line| line.contains("npm err") && is_refused(line));
    let npm_changes = by_npm && lower.lines().any(|line| line.contains("npm err") && changes(line));
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for line in words.lines() {
        let lower = line.to_ascii_lowercase();
        let of_npm = by_npm && (lower.starts_with("npm error path ") || lower.starts_with("npm err! path "));
        if !of_npm && !is_refused(&lower) {
            continue;
        }
        let change = changes(&lower) || of_npm && npm_changes;
        let apart = |letter: char| letter.is_whitespace() || "'\"`‘’“”,;:()[]{}<>".contains(letter);
        for part in line.split(apart).filter(|part| part.starts_with('/') && part.len() > 1) {
            let path = PathBuf::from(part.trim_end_matches('.'));
            match found.iter_mut().find(|(known, _)| *known == path) {
                Some((_, known)) => *known |= change,
                None => found.push((path, change)),
            }
        }
    }
    found
}

fn changes(line: &str) -> bool {
    CHANGES.iter().any(|sign| line.contains(sign))
}

/// Which access `files` lacks for a path: `true` for write, `false` for read; `None` if it grants what was wanted.
fn missing(files: &FileAccess, path: &Path, change: bool) -> Option<bool> {
    let below = |among: &[PathBuf]| among.iter().any(|folder| path.starts_with(folder));
    match (below(&files.write), below(&files.read)) {
        (true, _) => None,
        // It may be read, so the server wanted to write.
        (false, true) => Some(true),
        (false, false) => Some(change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confined(profile: Option<Profile>, network: Network) -> Confinement {
        let files = FileAccess { read: vec!["/srv/papers".into()], write: vec!["/srv/drafts".into()] };
        Confinement { files: Some(files), network, profile, ..Confinement::default() }
    }

    /// HOUR-6: what programs print about permissions is matched to the key that is probably missing.
    #[test]
    fn the_words_of_programs_name_the_key_that_is_missing() {
        #[track_caller]
        fn check(words: &str, expected: &str) {
            let told = by_confinement(&confined(Some(Profile::OfflineWorkspace), Network::None), words);
            assert_eq!(
                told,
                format!("it is confined by `profile = \"offline-workspace\"`{expected}"),
                "{words}"
            );
        }
        check("it just ended", ", which may be why");
        check("Error: ENOENT: no such file or directory, open '/srv/elsewhere/x'", ", which may be why");
        check("listening on a socket, connected to /run/x", ", which may be why");
        check(
            "the server ended; its stderr ends: npm error code EACCES\nnpm error syscall mkdtemp\n\
             npm error path /home/u/.npm/_cacache\nnpm error errno -13",
            " and probably misses `/home/u/.npm/_cacache` in its `files.write` (or a `HOME` of its own in its `env`)",
        );
        check(
            "error: Failed to initialize cache at `/home/u/.cache/uv`\n  Caused by: failed to create directory \
             `/home/u/.cache/uv`: Permission denied (os error 13)",
            " and probably misses `/home/u/.cache/uv` in its `files.write` (or a `HOME` of its own in its `env`)",
        );
        check(
            "PermissionError: [Errno 13] Permission denied: '/home/u/app/server.py'",
            " and probably misses `/home/u/app/server.py` in its `files.read`",
        );
        check(
            "Error: EACCES: permission denied, open '/srv/papers/index.db'",
            " and probably misses `/srv/papers/index.db` in its `files.write`",
        );
        check(
            "open /var/x: Permission denied\nmkdir /var/x: Permission denied\nopen /var/x: Permission denied",
            " and probably misses `/var/x` in its `files.write`",
        );
        check("mkdir: cannot create directory ‘/srv/drafts/x’: Permission denied", ", which may be why");
        check(
            "npm error code EAI_AGAIN\nnpm error request failed, reason: getaddrinfo EAI_AGAIN host",
            " and probably misses `network = \"full\"`",
        );
        check(
            "OSError: cannot make a socket: Operation not permitted",
            " and probably misses `network = \"full\"`",
        );
        check(
            "sh: 1: cannot create /a: Permission denied\nsh: 1: /b: Permission denied\nconnect EPERM 127.0.0.1:80",
            " and probably misses `/a` in its `files.write`, and `/b` in its `files.read`, and `network = \"full\"`",
        );
    }

    /// HOUR-6: without a profile the confining keys are named, and what is not confined is not suspected.
    #[test]
    fn a_confinement_is_named_by_what_is_written() {
        let told = by_confinement(&confined(None, Network::Full), "getaddrinfo EAI_AGAIN host");
        assert_eq!(told, "it is confined by `files`, which may be why");
        let offline = Confinement { network: Network::None, ..Confinement::default() };
        let told = by_confinement(&offline, "EACCES: permission denied, open '/x'");
        assert_eq!(told, "it is confined by `network = \"none\"`, which may be why");
    }
}
