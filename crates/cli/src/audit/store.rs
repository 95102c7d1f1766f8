//! Opens the store of the record as configured.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bridgehead::audit::{Archive, OnFailure, Payloads, Signer, StoreOptions, StoreSink};
use bridgehead::config::{AuditPayloads, AuditSettings, AuditStore};
use bridgehead::{Config, Gateway, Mode};
use bridgehead_events::Signal;

use crate::world::World;

/// An open store, and the gateway that emits its signals once it exists.
pub(crate) struct OpenRecord {
    pub(crate) sink: Arc<StoreSink>,
    gateway: Arc<OnceLock<Gateway>>,
}

impl OpenRecord {
    /// Emits the store's signals through this gateway from now on.
    pub(crate) fn tell(&self, gateway: &Gateway) {
        let _ = self.gateway.set(gateway.clone());
    }
}

/// The folder of the record: the configured one, or one in the user's state folder.
pub(crate) fn folder(settings: &AuditSettings, world: &World) -> Option<PathBuf> {
    let variable = |name: &str| {
        let path = PathBuf::from(world.variables.get(name)?);
        path.is_absolute().then_some(path)
    };
    settings
        .folder
        .clone()
        .or_else(|| variable("XDG_STATE_HOME").map(|state| state.join("bridgehead/audit")))
        .or_else(|| variable("HOME").map(|home| home.join(".local/state/bridgehead/audit")))
}

/// The archive that the `audit` verbs read: the store that `serve` writes in the same folder.
pub(super) fn archive(folder: PathBuf) -> Archive {
    Archive::in_folder(folder)
}

/// Opens the store that `serve` records in; `None` if nothing is to be recorded.
///
/// # Errors
/// A message, if the store cannot be opened and calls must not run without it.
pub(crate) fn open(config: &Config, world: &World) -> Result<Option<OpenRecord>, String> {
    let settings = &config.audit;
    if settings.store == AuditStore::None || config.gateway.mode == Mode::Test {
        return Ok(None);
    }
    match try_open(settings, world) {
        Ok(record) => Ok(Some(record)),
        Err(error) if settings.continue_on_failure => {
            tracing::warn!(error, "calls run without a record, because `audit.on_failure` is `continue`");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn try_open(settings: &AuditSettings, world: &World) -> Result<OpenRecord, String> {
    let folder = folder(settings, world)
        .ok_or("calls cannot be recorded: neither XDG_STATE_HOME nor HOME is set; write `audit.folder`, or `audit.store = \"none\"`")?;
    let gateway: Arc<OnceLock<Gateway>> = Arc::default();
    let sink = StoreSink::open(options(settings, folder, &gateway)?).map_err(|error| error.to_string())?;
    Ok(OpenRecord { sink: Arc::new(sink), gateway })
}

/// The options of the store. Its checkpoints and lag become signals of `gateway`, once that is set.
fn options(
    settings: &AuditSettings,
    folder: PathBuf,
    gateway: &Arc<OnceLock<Gateway>>,
) -> Result<StoreOptions, String> {
    let signer = settings.signing_key_file.as_deref().map(Signer::read).transpose();
    let (told, lagging) = (Arc::clone(gateway), Arc::clone(gateway));
    Ok(StoreOptions {
        payloads: match settings.payloads {
            AuditPayloads::Redacted => Payloads::Redacted,
            AuditPayloads::Digest => Payloads::Digest,
            AuditPayloads::None => Payloads::None,
        },
        on_failure: if settings.continue_on_failure { OnFailure::Continue } else { OnFailure::Refuse },
        signer: signer.map_err(|error| error.to_string())?,
        checkpoint_file: settings.checkpoint_file.clone(),
        on_checkpoint: Some(Box::new(move |checkpoint| {
            if let Some(gateway) = told.get() {
                gateway.signals().emit(&Signal::Checkpoint(bridgehead_events::CheckpointMade {
                    segment: &checkpoint.segment,
                    count: checkpoint.count,
                    root: &checkpoint.root,
                    head: &checkpoint.head,
                    sealed: checkpoint.sealed,
                }));
            }
        })),
        on_lag: Some(Box::new(move |behind| {
            if let Some(gateway) = lagging.get() {
                gateway.signals().emit(&Signal::AuditLag { behind });
            }
        })),
        segment_bytes: settings.segment_bytes,
        keep_for: Some(settings.keep_for),
        keep_bytes: Some(settings.keep_bytes),
        ..StoreOptions::new(folder)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bridgehead::audit::{Checkpoint, Hash};
    use bridgehead_events::Delivery;
    use bridgehead_gateway::Options;
    use serde_json::{Value, json};

    use super::*;

    /// AUD-2, AUD-3, AUD-6: the configuration decides the options of the store.
    #[test]
    fn a_store_is_kept_as_configured() {
        let place = tempfile::tempdir().unwrap();
        let key = place.path().join("key");
        std::fs::write(&key, "17".repeat(32)).unwrap();
        let settings = AuditSettings {
            payloads: AuditPayloads::Digest,
            continue_on_failure: true,
            checkpoint_file: Some("/checkpoints".into()),
            signing_key_file: Some(key.clone()),
            segment_bytes: 7,
            keep_for: Duration::from_secs(8),
            keep_bytes: 9,
            ..AuditSettings::default()
        };
        let kept = options(&settings, "/record".into(), &Arc::default()).unwrap();
        assert_eq!((kept.payloads, kept.on_failure), (Payloads::Digest, OnFailure::Continue));
        assert_eq!((kept.folder, kept.checkpoint_file), ("/record".into(), Some("/checkpoints".into())));
        assert_eq!(
            (kept.segment_bytes, kept.keep_for, kept.keep_bytes),
            (7, Some(Duration::from_secs(8)), Some(9))
        );
        let signer = Signer::read(&key).unwrap().public();
        assert_eq!(kept.signer.map(|kept| kept.public()), Some(signer));

        let usual = options(&AuditSettings::default(), "/record".into(), &Arc::default()).unwrap();
        assert_eq!((usual.payloads, usual.on_failure), (Payloads::Redacted, OnFailure::Refuse));
        assert!(usual.signer.is_none() && usual.checkpoint_file.is_none());
        let day = Duration::from_secs(24 * 60 * 60);
        assert_eq!(
            (usual.segment_bytes, usual.keep_for, usual.keep_bytes),
            (64 << 20, Some(day * 90), Some(1 << 30))
        );
        assert_eq!((usual.checkpoint_rows, usual.checkpoint_after), (1024, Duration::from_secs(60)));
        let none = AuditSettings { payloads: AuditPayloads::None, ..AuditSettings::default() };
        assert_eq!(options(&none, "/record".into(), &Arc::default()).unwrap().payloads, Payloads::None);
    }

    /// AUD-3: a checkpoint is an event on the gateway's bus, with everything that is needed to detect a later change.
    #[tokio::test]
    async fn checkpoints_are_told_as_events() {
        let gateway = Gateway::new(Options::default()).unwrap();
        let mut events = gateway.events().subscribe(8);
        let told: Arc<OnceLock<Gateway>> = Arc::default();
        let kept = options(&AuditSettings::default(), "/record".into(), &told).unwrap();
        let tell = kept.on_checkpoint.unwrap();
        let checkpoint = |count| Checkpoint {
            segment: "a.0001".to_owned(),
            count,
            root: Hash::of(b"root"),
            head: Hash::of(b"head"),
            time: String::new(),
            sealed: true,
            key: None,
            signature: None,
        };
        // Without a gateway the checkpoint emits no event.
        tell(&checkpoint(1));
        assert!(told.set(gateway).is_ok());
        tell(&checkpoint(2));
        let Some(Delivery::Event(event)) = events.next().await else { unreachable!() };
        let event: Value = serde_json::to_value(&*event).unwrap();
        assert_eq!(event["topic"], "audit.checkpoint", "{event}");
        let shown = ["segment", "count", "root", "head", "sealed"].map(|key| event[key].clone());
        let hash = |text: &[u8]| Hash::of(text).to_string();
        assert_eq!(json!(shown), json!(["a.0001", 2, hash(b"root"), hash(b"head"), true]));
        assert!(event["correlationId"].is_string(), "{event}");
    }
}
