//! Checkpoints: statements of a segment's row count, root and head. A checkpoint kept outside of the
//! segment later shows that no row before it was changed or cut off.

use std::fmt;
use std::path::Path;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::Hash;
use crate::hash::{hex, unhex};

/// What a segment looked like after `count` rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The segment's name.
    pub segment: String,
    /// How many rows it had.
    pub count: u64,
    /// The root of the Merkle tree over them.
    pub root: Hash,
    /// The head after the last of them.
    pub head: Hash,
    /// When the statement was made, in UTC.
    pub time: String,
    /// Whether no row may follow.
    pub sealed: bool,
    /// The public key that signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Hash>,
    /// The signature over [`Checkpoint::statement`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl Checkpoint {
    /// The text that is stored, appended to the file and digested.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The text that is signed.
    #[must_use]
    pub fn statement(&self) -> String {
        let Self { segment, count, root, head, time, sealed, .. } = self;
        format!("bridgehead audit checkpoint 1\n{segment}\n{count}\n{root}\n{head}\n{time}\n{sealed}\n")
    }

    /// Checks that its key made the signature, and that this key is one of `expected` where any are given.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_signature(&self, expected: &[PublicKey]) -> Result<(), String> {
        check(&self.statement(), self.key, self.signature.as_deref(), expected)
    }
}

/// Checks that a statement is signed with its key, and that this key is one of the expected ones where there are any.
fn check(
    statement: &str,
    key: Option<Hash>,
    signature: Option<&str>,
    expected: &[PublicKey],
) -> Result<(), String> {
    let Some((key, signature)) = key.zip(signature) else {
        return if expected.is_empty() { Ok(()) } else { Err("it is not signed".to_owned()) };
    };
    if !expected.is_empty() && expected.iter().all(|expected| expected.0.to_bytes() != key.0) {
        return Err("it is signed with another key".to_owned());
    }
    let mut bytes = [0; 64];
    let verified = unhex(signature, &mut bytes)
        && VerifyingKey::from_bytes(&key.0)
            .is_ok_and(|key| key.verify_strict(statement.as_bytes(), &Signature::from_bytes(&bytes)).is_ok());
    if verified { Ok(()) } else { Err("its signature is wrong".to_owned()) }
}

/// A note that retention removed a segment: a line among the checkpoints, which tells a removal from a
/// theft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Removal {
    /// The segment's name.
    pub removed: String,
    /// When it was removed, in UTC.
    pub time: String,
    /// How many rows it had. Notes of older versions lack this field and those below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The head after the last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Hash>,
    /// When it was sealed, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
    /// `age` or `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The process instance that removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The public key that signed the note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Hash>,
    /// The signature over [`Removal::statement`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl Removal {
    pub(crate) fn of(seal: &Checkpoint, by: &str, reason: &str, time: String) -> Self {
        Self {
            removed: seal.segment.clone(),
            time,
            count: Some(seal.count),
            head: Some(seal.head),
            sealed: Some(seal.time.clone()),
            reason: Some(reason.to_owned()),
            by: Some(by.to_owned()),
            key: None,
            signature: None,
        }
    }

    /// The text that is appended to the file.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The text that is signed.
    #[must_use]
    pub fn statement(&self) -> String {
        let Self { removed, time, count, head, sealed, reason, by, .. } = self;
        let count = count.map(|count| count.to_string()).unwrap_or_default();
        let head = head.map(|head| head.to_string()).unwrap_or_default();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (sealed, reason, by) = (text(sealed), text(reason), text(by));
        format!("bridgehead audit removal 1\n{removed}\n{time}\n{count}\n{head}\n{sealed}\n{reason}\n{by}\n")
    }

    /// Checks that its key made the signature, and that this key is one of `expected` where any are given.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_signature(&self, expected: &[PublicKey]) -> Result<(), String> {
        check(&self.statement(), self.key, self.signature.as_deref(), expected)
    }
}

/// Signs checkpoints.
pub struct Signer(SigningKey);

/// Checks the signatures of checkpoints.
#[derive(Clone, Debug)]
pub struct PublicKey(VerifyingKey);

/// A key file that cannot be used; the text never shows its content.
#[derive(Debug, thiserror::Error)]
#[error("the key file {file} cannot be used: {reason}")]
pub struct KeyError {
    file: String,
    reason: String,
}

impl Signer {
    /// Reads a file with 64 hexadecimal digits, the 32 bytes of an Ed25519 secret key.
    ///
    /// # Errors
    /// When the file cannot be read or holds something else.
    pub fn read(file: &Path) -> Result<Self, KeyError> {
        key_bytes(file).map(|bytes| Self(SigningKey::from_bytes(&bytes)))
    }

    /// The key that checks its signatures, in hexadecimal.
    #[must_use]
    pub fn public(&self) -> Hash {
        Hash(self.0.verifying_key().to_bytes())
    }

    pub(crate) fn sign(&self, checkpoint: &mut Checkpoint) {
        checkpoint.signature = self.signature(&checkpoint.statement());
        checkpoint.key = Some(self.public());
    }

    pub(crate) fn sign_removal(&self, removal: &mut Removal) {
        removal.signature = self.signature(&removal.statement());
        removal.key = Some(self.public());
    }

    fn signature(&self, statement: &str) -> Option<String> {
        let mut text = Vec::with_capacity(128);
        hex(&self.0.sign(statement.as_bytes()).to_bytes(), &mut text);
        String::from_utf8(text).ok()
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Signer({})", self.public())
    }
}

impl PublicKey {
    /// Reads a file with 64 hexadecimal digits, the 32 bytes of an Ed25519 public key.
    ///
    /// # Errors
    /// When the file cannot be read or holds something else.
    pub fn read(file: &Path) -> Result<Self, KeyError> {
        let bytes = key_bytes(file)?;
        VerifyingKey::from_bytes(&bytes).map(Self).map_err(|_| bad(file, "it holds no Ed25519 public key"))
    }
}

fn bad(file: &Path, reason: impl fmt::Display) -> KeyError {
    KeyError { file: file.display().to_string(), reason: reason.to_string() }
}

fn key_bytes(file: &Path) -> Result<[u8; 32], KeyError> {
    let text = std::fs::read_to_string(file).map_err(|error| bad(file, error))?;
    let mut bytes = [0; 32];
    if unhex(&text.trim().to_ascii_lowercase(), &mut bytes) {
        return Ok(bytes);
    }
    Err(bad(file, "it must hold 64 hexadecimal digits; `openssl rand -hex 32` makes such a secret key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer() -> (tempfile::TempDir, Signer) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, format!("{}\n", "07".repeat(32))).unwrap();
        let signer = Signer::read(&file).unwrap();
        (folder, signer)
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            segment: "s".to_owned(),
            count: 3,
            root: Hash::of(b"root"),
            head: Hash::of(b"head"),
            time: "2026-11-15T12:00:00.000000Z".to_owned(),
            sealed: false,
            key: None,
            signature: None,
        }
    }

    /// AUD-3: a signature covers every member, and is required where a key is given.
    #[test]
    fn a_signature_covers_every_member() {
        let (folder, signer) = signer();
        let public = folder.path().join("public");
        std::fs::write(&public, signer.public().to_string()).unwrap();
        let public = PublicKey::read(&public).unwrap();
        let mut signed = checkpoint();
        assert_eq!(signed.check_signature(&[]), Ok(()));
        assert_eq!(signed.check_signature(std::slice::from_ref(&public)).unwrap_err(), "it is not signed");
        signer.sign(&mut signed);
        assert_eq!(signed.check_signature(&[]), Ok(()));
        assert_eq!(signed.check_signature(std::slice::from_ref(&public)), Ok(()));
        assert_eq!(serde_json::from_str::<Checkpoint>(&signed.text()).unwrap(), signed);
        let changes: [fn(&mut Checkpoint); 7] = [
            |it| it.segment.push('x'),
            |it| it.count += 1,
            |it| it.root = Hash::of(b"x"),
            |it| it.head = Hash::of(b"x"),
            |it| it.time.push('x'),
            |it| it.sealed = true,
            |it| it.signature = Some("00".repeat(64)),
        ];
        for change in changes {
            let mut changed = signed.clone();
            change(&mut changed);
            assert_eq!(changed.check_signature(&[]).unwrap_err(), "its signature is wrong");
        }
        signed.key = Some(Hash::of(b"another"));
        assert_eq!(
            signed.check_signature(std::slice::from_ref(&public)).unwrap_err(),
            "it is signed with another key"
        );
    }

    #[test]
    fn a_key_file_that_cannot_be_used_is_told_without_its_content() {
        let (folder, signer) = signer();
        assert!(!format!("{signer:?}").contains(&"07".repeat(32)));
        let file = folder.path().join("short");
        std::fs::write(&file, "hunter2").unwrap();
        let error = Signer::read(&file).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("hunter2"), "{error}");
        assert!(Signer::read(&folder.path().join("absent")).is_err());
    }
}
