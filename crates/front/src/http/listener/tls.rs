//! TLS for a listener: certificate and key from files, which are read again when they change.
//!
//! A new pair that cannot be used is logged, and the old one stays: a renewal that went wrong must not end a service.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_config::{SecretFileError, TlsFiles, read_secret_file};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// How long a client may take for its handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A longer file is neither a certificate chain nor a key.
const LONGEST: u64 = 1024 * 1024;

/// Why a certificate and its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate file cannot be read.
    #[error("the certificate file `{}` cannot be read: {error}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The key file cannot be read, or others can read it.
    #[error("the TLS key: {0}")]
    Key(#[from] SecretFileError),
    /// A file does not hold what it should.
    #[error("`{}` does not hold {what} in PEM", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// The certificate and the key do not fit together, or TLS cannot use them.
    #[error("`{}` and `{}` cannot be used together: {reason}", certificate.display(), key.display())]
    Refused {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
        /// What TLS says.
        reason: String,
    },
}

/// The TLS of one listener. The files are watched for as long as it lives.
#[derive(Debug)]
pub(crate) struct Tls {
    current: Arc<ArcSwap<ServerConfig>>,
    _watch: AbortOnDropHandle<()>,
}

impl Tls {
    /// Reads the files.
    pub(crate) async fn load(files: TlsFiles, allow_group_read: bool) -> Result<Self, TlsError> {
        let reading = files.clone();
        let unread = |error| TlsError::Certificate { path: files.cert_file.clone(), error };
        let (stamp, config) = spawn_blocking(move || (Stamp::of(&reading), read(&reading, allow_group_read)))
            .await
            .map_err(|error| unread(io::Error::other(error)))?;
        let current = Arc::new(ArcSwap::from_pointee(config?));
        let watching = watch(files, allow_group_read, stamp, Arc::clone(&current));
        Ok(Self { current, _watch: AbortOnDropHandle::new(tokio::spawn(watching)) })
    }

    /// Makes the handshake with the current certificate.
    pub(crate) fn acceptor(&self) -> Handshake {
        Handshake(TlsAcceptor::from(self.current.load_full()))
    }
}

/// One handshake to come.
pub(crate) struct Handshake(TlsAcceptor);

impl Handshake {
    /// Makes it, if the client is quick enough.
    pub(crate) async fn with<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) -> io::Result<TlsStream<S>> {
        tokio::time::timeout(HANDSHAKE_WITHIN, self.0.accept(stream)).await?
    }
}

/// Reads the files again whenever they have changed.
async fn watch(
    files: TlsFiles,
    allow_group_read: bool,
    mut seen: Stamp,
    current: Arc<ArcSwap<ServerConfig>>,
) {
    let certificate = files.cert_file.display().to_string();
    loop {
        sleep(LOOK_EVERY).await;
        let (files, before) = (files.clone(), seen);
        let looking = spawn_blocking(move || {
            let stamp = Stamp::of(&files);
            (stamp != before).then(|| (stamp, read(&files, allow_group_read)))
        });
        let Ok(Some((stamp, read))) = looking.await else { continue };
        seen = stamp;
        match read {
            Ok(config) => {
                info!(certificate, "the certificate has changed; new connections get the new one");
                current.store(Arc::new(config));
            }
            Err(error) => {
                warn!(certificate, %error, "the certificate has changed, but cannot be used; the old one stays");
            }
        }
    }
}

/// What tells one state of the files from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([Option<(u64, u64, i64, i64)>; 2]);

impl Stamp {
    fn of(files: &TlsFiles) -> Self {
        let stamp = |path: &Path| {
            let file = std::fs::metadata(path).ok()?;
            Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
        };
        Self([stamp(&files.cert_file), stamp(&files.key_file)])
    }
}

fn read(files: &TlsFiles, allow_group_read: bool) -> Result<ServerConfig, TlsError> {
    let TlsFiles { cert_file, key_file } = files;
    let unusable = |path: &PathBuf, what| TlsError::Unusable { path: path.clone(), what };
    let text =
        std::fs::read(cert_file).map_err(|error| TlsError::Certificate { path: cert_file.clone(), error })?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|_| unusable(cert_file, "certificates"))?;
    if chain.is_empty() {
        return Err(unusable(cert_file, "a certificate"));
    }
    let text = read_secret_file(key_file, allow_group_read, LONGEST)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|_| unusable(key_file, "a private key"))?;
    let refused = |error: rustls::Error| TlsError::Refused {
        certificate: cert_file.clone(),
        key: key_file.clone(),
        reason: error.to_string(),
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(refused)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A certificate and its key, for `localhost`.
    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// ACC-6, ACC-8: a key that others can read is refused with its cure, and so is everything that TLS cannot use.
    #[test]
    fn what_cannot_be_used_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let files =
            TlsFiles { cert_file: folder.path().join("cert.pem"), key_file: folder.path().join("key.pem") };
        let ((certificate, key), (_, other_key)) = (pair(), pair());
        let check = |certificate: &str, key: &str, mode: u32, expected: &[&str]| {
            write(&files.cert_file, certificate, 0o644);
            write(&files.key_file, key, mode);
            let error = read(&files, false).unwrap_err().to_string();
            for part in expected {
                assert!(error.contains(part), "{error}");
            }
            assert!(!error.contains("PRIVATE"), "{error}");
        };
        check(&certificate, &key, 0o644, &["key.pem", "chmod 600"]);
        check(&certificate, &key, 0o640, &["key.pem", "chmod 600"]);
        assert!(read(&files, true).is_ok(), "the group may read mounted secrets");
        check("nothing", &key, 0o600, &["cert.pem", "a certificate in PEM"]);
        check(&certificate, "nothing", 0o600, &["key.pem", "a private key in PEM"]);
        check(&certificate, &other_key, 0o600, &["cannot be used together"]);
        fs::remove_file(&files.cert_file).unwrap();
        let error = read(&files, false).unwrap_err().to_string();
        assert!(error.contains("cert.pem") && error.contains("cannot be read"), "{error}");
    }

    /// ACC-6: new files take effect within seconds, and broken ones leave the old pair in use.
    #[tokio::test]
    async fn changed_files_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let files =
            TlsFiles { cert_file: folder.path().join("cert.pem"), key_file: folder.path().join("key.pem") };
        let put = |(certificate, key): &(String, String)| {
            write(&files.key_file, key, 0o600);
            write(&files.cert_file, certificate, 0o644);
        };
        put(&pair());
        let tls = Tls::load(files.clone(), false).await.unwrap();
        let first = tls.current.load_full();
        tokio::time::pause();
        let changed = async |expected: bool| {
            let before = tls.current.load_full();
            for _ in 0..3 {
                sleep(LOOK_EVERY).await;
                // The files are read on another thread.
                spawn_blocking(|| ()).await.unwrap();
            }
            assert_eq!(!Arc::ptr_eq(&before, &tls.current.load_full()), expected);
        };
        changed(false).await;
        fs::write(&files.cert_file, "broken").unwrap();
        changed(false).await;
        assert!(Arc::ptr_eq(&first, &tls.current.load_full()));
        put(&pair());
        changed(true).await;
    }
    /// ACC-6: a client that does not make its handshake is let go.
    #[tokio::test]
    async fn a_handshake_has_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let files =
            TlsFiles { cert_file: folder.path().join("cert.pem"), key_file: folder.path().join("key.pem") };
        let (certificate, key) = pair();
        write(&files.cert_file, &certificate, 0o644);
        write(&files.key_file, &key, 0o600);
        let tls = Tls::load(files, false).await.unwrap();
        tokio::time::pause();
        let (_silent, stream) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        assert_eq!(tls.acceptor().with(stream).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), HANDSHAKE_WITHIN.as_secs());
    }
}
