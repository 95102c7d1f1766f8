//! The store as the configuration wishes it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bridgehead::audit::{CorrelationId, OnFailure, Payloads, Signer, SqliteSink, StoreOptions};
use bridgehead::config::{AuditPayloads, AuditSettings, AuditStore};
use bridgehead::{Config, Gateway, Mode};
use bridgehead_events::Detail;

use crate::cli::world::World;

/// A store, and where its checkpoints are told once there is a gateway.
pub(crate) struct Record {
    pub(crate) sink: Arc<SqliteSink>,
    gateway: Arc<OnceLock<Gateway>>,
}

impl Record {
    /// Has checkpoints told on the gateway's bus.
    pub(crate) fn tell(&self, gateway: &Gateway) {
        let _ = self.gateway.set(gateway.clone());
    }
}

/// The folder of the record: the configured one, else that of this user's state.
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

/// Opens the store that `serve` records in; none where nothing is to be recorded.
///
/// # Errors
/// In words, when it cannot be opened and calls must not be made without it.
pub(crate) fn open(config: &Config, world: &World) -> Result<Option<Record>, String> {
    let settings = &config.audit;
    if settings.store == AuditStore::None || config.gateway.mode == Mode::Test {
        return Ok(None);
    }
    match try_open(settings, world) {
        Ok(record) => Ok(Some(record)),
        Err(error) if settings.continue_on_failure => {
            tracing::warn!(error, "calls are made without a record, as `audit.on_failure` says");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn try_open(settings: &AuditSettings, world: &World) -> Result<Record, String> {
    let folder = folder(settings, world)
        .ok_or("calls cannot be recorded: neither XDG_STATE_HOME nor HOME is set; write `audit.folder`, or `audit.store = \"none\"`")?;
    let signer = settings.signing_key_file.as_deref().map(Signer::read).transpose();
    let gateway: Arc<OnceLock<Gateway>> = Arc::default();
    let told = Arc::clone(&gateway);
    let options = StoreOptions {
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
                gateway.events().tell(CorrelationId::mint(), None, || Detail::AuditCheckpoint {
                    segment: checkpoint.segment.clone(),
                    count: checkpoint.count,
                    root: checkpoint.root.to_string(),
                    head: checkpoint.head.to_string(),
                    sealed: checkpoint.sealed,
                });
            }
        })),
        segment_bytes: settings.segment_bytes,
        keep_for: Some(settings.keep_for),
        keep_bytes: Some(settings.keep_bytes),
        ..StoreOptions::new(folder)
    };
    let sink = SqliteSink::open(options).map_err(|error| error.to_string())?;
    Ok(Record { sink: Arc::new(sink), gateway })
}
