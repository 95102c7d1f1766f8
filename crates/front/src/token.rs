//! The bearer token of the HTTP front: where it comes from, and when one is required.
//!
//! A token is never shown and never logged. The token file is read; if it is missing, it is created with a
//! new token that only its owner may read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bridgehead_config::{HttpSettings, Secret, SecretFileError, TokenSource, check_secret_file};
use bridgehead_gateway::Principal;
use subtle::ConstantTimeEq;
use tracing::info;

/// A longer file is not a token.
const LONGEST: u64 = 4096;
/// The prefix of a generated token: it makes leaks recognisable, and no command takes the token for an option.
const PREFIX: &str = "bh_";

/// What clients must send as `Authorization: Bearer …`, and the principal that they then are.
#[derive(Debug, Clone)]
pub struct Token {
    value: Secret,
    principal: Principal,
}

impl Token {
    /// A token that names its holder.
    pub fn new(name: &str, value: Secret) -> Self {
        Self { value, principal: Principal::named(name) }
    }

    /// Whether `offered` is the token, compared in constant time.
    pub fn matches(&self, offered: &[u8]) -> bool {
        self.value.expose().as_bytes().ct_eq(offered).into()
    }

    /// The principal of its holders.
    pub const fn principal(&self) -> &Principal {
        &self.principal
    }
}

/// Why there is no usable token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The address can be reached from elsewhere and no token is configured.
    #[error(
        "`http.listen` is {listen}, which other machines can reach, so clients must show who they are: set \
         `http.token_file` (a missing file is created) or `http.token_env`, make a key with `bridgehead key new NAME`, or \
         listen on 127.0.0.1"
    )]
    Required {
        /// The configured address.
        listen: SocketAddr,
    },
    /// The file cannot be read or created.
    #[error("the token file `{}` cannot be {action}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// Others than its owner can use the file.
    #[error("the token file cannot be used: {0}")]
    Exposed(SecretFileError),
    /// The file or variable holds no valid token.
    #[error("{place} does not hold a token: it must be one line of visible ASCII characters")]
    Unusable {
        /// The file or variable.
        place: String,
    },
}

/// Finds the token that the settings name, and creates its file if that is missing.
pub fn resolve_token(settings: &HttpSettings) -> Result<Option<Token>, TokenError> {
    let value = match &settings.token {
        TokenSource::None => return Ok(None),
        TokenSource::Env { name, value } => checked(value.expose(), || format!("the variable `{name}`"))?,
        TokenSource::File(path) => from_file(path, settings.allow_group_read)?,
    };
    Ok(Some(Token::new("token", value)))
}

/// Refuses to serve an address that other machines can reach to callers who show no secret.
pub fn check_reachable(listen: SocketAddr, asks_for_secret: bool) -> Result<(), TokenError> {
    if listen.ip().is_loopback() || asks_for_secret { Ok(()) } else { Err(TokenError::Required { listen }) }
}

fn from_file(path: &Path, allow_group_read: bool) -> Result<Secret, TokenError> {
    let failed =
        |action: &'static str| move |error| TokenError::File { path: path.to_owned(), action, error };
    match File::open(path) {
        Ok(file) => read(file, path, allow_group_read),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match create(path) {
            // Another process created the file first: its token counts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                read(File::open(path).map_err(failed("read"))?, path, allow_group_read)
            }
            created => created.map_err(failed("created")),
        },
        Err(error) => Err(failed("read")(error)),
    }
}

fn read(file: File, path: &Path, allow_group_read: bool) -> Result<Secret, TokenError> {
    let failed = |error| TokenError::File { path: path.to_owned(), action: "read", error };
    let mode = file.metadata().map_err(failed)?.mode();
    check_secret_file(path, mode, allow_group_read).map_err(TokenError::Exposed)?;
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(failed)?;
    checked(&text, || format!("the file `{}`", path.display()))
}

fn create(path: &Path) -> io::Result<Secret> {
    let text = random_text()?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(format!("{text}\n").as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // Half a token must not be taken for a whole one at the next start.
        drop(std::fs::remove_file(path));
        return Err(error);
    }
    info!(path = %path.display(), "created a bearer token; clients need it");
    Ok(Secret::new(text))
}

fn random_text() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

fn checked(text: &str, place: impl FnOnce() -> String) -> Result<Secret, TokenError> {
    let text = text.trim_ascii();
    let usable =
        !text.is_empty() && text.len() as u64 <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic());
    if usable { Ok(Secret::new(text)) } else { Err(TokenError::Unusable { place: place() }) }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(listen: &str, token: TokenSource) -> HttpSettings {
        HttpSettings { listen: listen.parse().unwrap(), token, ..HttpSettings::default() }
    }

    fn env(value: &str) -> TokenSource {
        TokenSource::Env { name: "GATE_TOKEN".to_owned(), value: Secret::new(value) }
    }

    #[test]
    fn an_address_that_others_reach_needs_a_token() {
        for listen in ["127.0.0.1:4848", "127.3.2.1:0", "[::1]:4848"] {
            assert!(resolve_token(&settings(listen, TokenSource::None)).unwrap().is_none());
            check_reachable(listen.parse().unwrap(), false).unwrap();
        }
        for listen in ["0.0.0.0:4848", "192.168.1.2:4848", "[::]:4848"] {
            let error = check_reachable(listen.parse().unwrap(), false).unwrap_err().to_string();
            assert!(error.contains(listen) && error.contains("http.token_file"), "{error}");
            check_reachable(listen.parse().unwrap(), true).unwrap();
            assert!(resolve_token(&settings(listen, env("s3cret"))).unwrap().is_some());
        }
    }

    #[test]
    fn a_token_is_one_line_of_visible_characters() {
        let token = resolve_token(&settings("0.0.0.0:1", env(" s3cret\n"))).unwrap().unwrap();
        assert!(token.matches(b"s3cret"));
        assert!(!token.matches(b"s3cre") && !token.matches(b"s3creT") && !token.matches(b""));
        assert!(!format!("{token:?}").contains("s3cret"));
        for bad in ["", "  \n", "two words", "two\nlines", "gr\u{fc}n"] {
            let error = resolve_token(&settings("127.0.0.1:1", env(bad))).unwrap_err().to_string();
            assert!(error.contains("GATE_TOKEN"), "{error}");
            assert!(bad.trim().is_empty() || !error.contains(bad), "{error}");
        }
    }

    /// A token has a maximum length. A longer file is refused, because a part of it would be another token.
    #[test]
    fn a_longer_file_is_not_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let longest = usize::try_from(LONGEST).unwrap();
        for (length, end, usable) in
            [(longest, "", true), (longest, "\n", true), (longest + 1, "", false), (longest * 2, "\n", false)]
        {
            let text = "x".repeat(length);
            std::fs::write(&path, format!("{text}{end}")).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let found = resolve_token(&settings("0.0.0.0:1", TokenSource::File(path.clone())));
            match found {
                Ok(token) => assert!(usable && token.unwrap().matches(text.as_bytes()), "{length}"),
                Err(error) => assert!(!usable && matches!(error, TokenError::Unusable { .. }), "{length}"),
            }
        }
    }

    /// ACC-8: a token file that others can use is refused with the cure; with `allow_group_read`, its group may read it.
    #[test]
    fn a_file_that_others_can_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "s3cret").unwrap();
        for (mode, alone, with_group) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o640, false, true),
            (0o604, false, false),
            (0o620, false, false),
        ] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for (allow_group_read, usable) in [(false, alone), (true, with_group)] {
                let from_file = settings("0.0.0.0:1", TokenSource::File(path.clone()));
                match resolve_token(&HttpSettings { allow_group_read, ..from_file }) {
                    Ok(token) => assert!(usable && token.unwrap().matches(b"s3cret"), "{mode:o}"),
                    Err(error) => {
                        let told = error.to_string();
                        assert!(!usable && told.contains(&format!("(mode {mode:o})")), "{mode:o}: {told}");
                        assert!(told.contains(&format!("chmod 600 {}", path.display())), "{told}");
                        assert!(!told.contains("s3cret"), "{told}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_missing_file_is_created_once_and_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let from_file = settings("0.0.0.0:1", TokenSource::File(path.clone()));
        let created = resolve_token(&from_file).unwrap().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let minted = text.trim().strip_prefix(PREFIX).unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(minted).unwrap().len(), 32);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = resolve_token(&from_file).unwrap().unwrap();
        assert!(created.matches(text.trim().as_bytes()) && again.matches(text.trim().as_bytes()));
        std::fs::write(&path, "").unwrap();
        assert!(matches!(resolve_token(&from_file), Err(TokenError::Unusable { .. })));
        let nowhere = settings("0.0.0.0:1", TokenSource::File(directory.path().join("no/token")));
        assert!(matches!(resolve_token(&nowhere), Err(TokenError::File { action: "created", .. })));
    }
}
