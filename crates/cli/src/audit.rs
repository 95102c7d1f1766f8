//! `bridgehead audit`: reads and checks the record of calls, even while gateways write it.

mod read;
mod store;
mod top;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(crate) use self::store::{folder, open};
use super::exit::Exit;
use super::world::World;
use super::{Chosen, Run, output};

/// Read and check the record of calls
#[derive(Debug, Args)]
#[command(
    after_help = "`folder` in [audit] names the folder of the record; `bridgehead explain audit` describes its format.
Exit codes: 0 done, 1 the record was changed, or there is no such call.

Examples:
  bridgehead audit list --since 1h --outcome error
  bridgehead audit list --principal ada --client claude-code
  bridgehead audit top --since 24h                      who called what, and how often
  bridgehead audit show 0199d0a5-6f2b-7c3e-8d4f-0123456789ab
  bridgehead audit verify
  bridgehead audit verify --head SEGMENT:COUNT:HEAD     against a head that you saved
  bridgehead audit prove ID > proof.json && bridgehead audit verify-proof proof.json
  bridgehead audit export --output record.jsonl"
)]
pub(crate) struct Audit {
    #[command(flatten)]
    chosen: Chosen,
    /// Folder of the record, instead of the configured one
    #[arg(long, global = true, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(read::List),
    Top(top::Top),
    Show(read::Show),
    Export(read::Export),
    Verify(verify::Verify),
    Prove(verify::Prove),
    VerifyProof(verify::VerifyProof),
}

impl Run for Audit {
    fn json(&self) -> bool {
        self.json
    }

    fn only_reads(&self) -> bool {
        true
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(audit: &Audit, world: &World) -> Exit {
    if let Verb::VerifyProof(proof) = &audit.verb {
        // A proof is checked without the record, so no configuration is needed.
        return told(verify::verify_proof(proof, audit.json));
    }
    let settings = match world.to_look_up(audit.chosen.config.as_deref(), &["audit"]) {
        Ok(found) => found.config.audit,
        Err(error) => return output::configuration_error(&error, audit.json),
    };
    let archive = match audit.folder.clone().or_else(|| folder(&settings, world)) {
        Some(folder) => store::archive(folder),
        None => {
            output::talk(
                "error: neither XDG_STATE_HOME nor HOME is set; name the record's folder with --folder",
            );
            return Exit::Usage;
        }
    };
    told(match &audit.verb {
        Verb::List(list) => read::list(list, &archive, audit.json),
        Verb::Top(top) => top::top(top, &archive, audit.json),
        Verb::Show(show) => read::show(show, &archive, audit.json),
        Verb::Export(export) => read::export(export, &archive),
        Verb::Verify(verify) => verify::verify(verify, &archive, &settings, audit.json),
        Verb::Prove(prove) => verify::prove(prove, &archive),
        Verb::VerifyProof(_) => Ok(Exit::Success),
    })
}

fn told(done: Result<Exit, String>) -> Exit {
    done.unwrap_or_else(|error| {
        output::talk(&format!("error: {error}"));
        Exit::Failure
    })
}
