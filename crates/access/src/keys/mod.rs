//! API keys: how one is made and recognised, which are known, and the file that `bridgehead key` writes.
//!
//! Only digests are kept, in memory as well as in files. A plain SHA-256 is enough, because a key has 256 random bits: there is
//! nothing to guess. A slow hash would make every request with a wrong key expensive for the gateway.

mod file;
mod key;
mod ring;
mod watch;

pub use self::file::{KeysFile, KeysFileError, Removed};
pub use self::key::{InvalidKey, Key, PREFIX, check_name, digest_text};
pub(crate) use self::key::{check, digest};
pub use self::ring::{KeyRing, Lookup};
pub(crate) use self::watch::watch;
