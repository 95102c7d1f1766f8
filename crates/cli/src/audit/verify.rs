//! Implements `audit verify`, `prove` and `verify-proof`.

use std::path::PathBuf;

use bridgehead::audit::{
    Archive, CHECKPOINT_AFTER, CHECKPOINT_FILE, Expected, Hash, Proof, ProofError, PublicKey, Verified,
    Verifier, read_calls, read_checkpoints,
};
use bridgehead::config::AuditSettings;
use clap::Args;
use serde_json::json;

use super::read::{readable, whole_id};
use crate::exit::Exit;
use crate::output;

/// Check that nothing was changed, removed or reordered
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bridgehead audit verify\n  bridgehead audit verify --head SEGMENT:COUNT:HEAD\n  bridgehead audit verify --key audit.pub"
)]
pub(crate) struct Verify {
    /// Segments (*.sqlite) or exports (*.jsonl), instead of the whole folder
    files: Vec<PathBuf>,
    /// A head that you saved earlier; detects rows that were cut off since; may be repeated
    #[arg(long, value_name = "SEGMENT:COUNT:HEAD", value_parser = head)]
    head: Vec<Expected>,
    /// A saved copy of the checkpoint file; may be repeated
    #[arg(long, value_name = "FILE")]
    checkpoints: Vec<PathBuf>,
    /// File with a public key: every checkpoint must be signed with one of these; may be repeated
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,
}

/// Prove that a row is in the record
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bridgehead audit prove ID > proof.json")]
pub(crate) struct Prove {
    /// The call's correlation id, or a unique beginning of it
    id: String,
    /// Prove the end of the call instead of its beginning
    #[arg(long)]
    exit: bool,
}

/// Check a proof, without the record
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bridgehead audit verify-proof proof.json")]
pub(crate) struct VerifyProof {
    /// The proof that `audit prove` printed
    file: PathBuf,
    /// The root that you saved earlier
    #[arg(long, value_name = "ROOT", value_parser = root)]
    root: Option<Hash>,
    /// File with the public key that the checkpoint must be signed with
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

fn head(text: &str) -> Result<Expected, String> {
    Expected::parse(text).ok_or_else(|| "write SEGMENT:COUNT:HEAD as `audit verify` prints it".to_owned())
}

fn root(text: &str) -> Result<Hash, String> {
    Hash::parse(text).ok_or_else(|| "a root has 64 lower-case hexadecimal digits".to_owned())
}

fn public_key(file: Option<&PathBuf>) -> Result<Option<PublicKey>, String> {
    file.map(|file| PublicKey::read(file)).transpose().map_err(|error| error.to_string())
}

pub(super) fn verify(
    verify: &Verify,
    archive: &Archive,
    settings: &AuditSettings,
    json: bool,
) -> Result<Exit, String> {
    let keys = verify.key.iter().map(|file| PublicKey::read(file)).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|error| error.to_string())?;
    let has_keys = !keys.is_empty();
    let mut verifier = Verifier::new(keys);
    verify.head.iter().for_each(|head| verifier.expect(head.clone()));
    let whole = verify.files.is_empty();
    let beside = settings.checkpoint_file.clone().unwrap_or_else(|| archive.folder().join(CHECKPOINT_FILE));
    for file in verify.checkpoints.iter().chain(whole.then_some(&beside)) {
        let read = read_checkpoints(file).map_err(|error| error.to_string())?;
        read.checkpoints.iter().for_each(|checkpoint| verifier.keep(checkpoint));
        read.removed.into_iter().for_each(|removal| verifier.explain(removal));
        for line in read.unknown {
            verifier.report(&file.display().to_string(), format!("line {line} is not a checkpoint"));
        }
    }
    if whole {
        verifier.read(archive.segments().map_err(|error| error.to_string())?);
    } else {
        verifier.read(&verify.files);
    }
    let (verified, problems) = if whole {
        verifier.finish_folder()
    } else {
        let (verified, problems, _) = verifier.finish();
        (verified, problems)
    };
    let exit = if problems.is_empty() { Exit::Success } else { Exit::Failure };
    if json {
        let segments = verified.iter().map(|segment| json!({"segment": segment}).to_string());
        let wrong = problems.iter().map(|problem| json!({"problem": problem}).to_string());
        let end = json!({"ok": problems.is_empty(), "segments": verified.len(), "problems": problems.len()});
        let lines: Vec<String> = segments.chain(wrong).chain([end.to_string()]).collect();
        return Ok(output::raw_data(&lines.join("\n"), exit));
    }
    let mut text = String::new();
    for segment in &verified {
        let state = if segment.sealed { "sealed" } else { "open" };
        let uncovered = match segment.uncovered {
            0 => String::new(),
            rows => format!(", {} uncovered", output::counted(rows, "row")),
        };
        let Verified { segment, count, head, .. } = segment;
        text.push_str(&format!("{segment}:{count}:{head}  {state}{uncovered}\n"));
    }
    for problem in &problems {
        text.push_str(&format!("PROBLEM {}\n", output::one_line(&problem.to_string(), usize::MAX)));
    }
    let uncovered: u64 = verified.iter().map(|segment| segment.uncovered).sum();
    if uncovered > 0 && has_keys {
        let rows = output::counted(uncovered, "row");
        text.push_str(&format!("{rows} uncovered: no checkpoint that a key signed proves them\n"));
    }
    text.push_str(&match (problems.len(), verified.len()) {
        (0, 0) => format!("there is no record in {}", archive.folder().display()),
        (0, 1) => "1 segment is unchanged".to_owned(),
        (0, count) => format!("{count} segments are unchanged"),
        (count, _) => output::counted(count as u64, "problem"),
    });
    Ok(output::data(&text, exit))
}

pub(super) fn prove(prove: &Prove, archive: &Archive) -> Result<Exit, String> {
    let mut found = None;
    let id = whole_id(archive, &readable(archive)?, &prove.id)?;
    let mut segments = archive.segments().map_err(|error| error.to_string())?;
    read_calls(&segments, |call| {
        if call.first.correlation_id == id {
            let row = if prove.exit { call.exit() } else { call.enter() };
            found = found.take().or(row.map(|row| row.seq).map(|seq| (call.segment.clone(), seq)));
        }
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    let (segment, seq) =
        found.ok_or_else(|| format!("call {id} has no such row in {}", archive.folder().display()))?;
    // An exit may be in a later segment of the instance than its enter.
    let instance = segment.split('.').next().unwrap_or_default();
    segments.retain(|later| later.name().starts_with(instance) && later.name() >= segment.as_str());
    let mut refused = String::new();
    for segment in &segments {
        match Proof::of(segment, seq) {
            Ok(proof) => {
                let text = serde_json::to_string(&proof).map_err(|error| error.to_string())?;
                return Ok(output::raw_data(&text, Exit::Success));
            }
            Err(ProofError::NotCovered { row, since: Some(since) }) => {
                return Err(not_covered(row, since, jiff::Timestamp::now()));
            }
            Err(error) => refused = error.to_string(),
        }
    }
    Err(refused)
}

/// Says when a row without a checkpoint can be proved.
fn not_covered(row: u64, since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let due = since.checked_add(CHECKPOINT_AFTER).unwrap_or(since);
    let left = due.duration_since(now).as_secs();
    // On a busy machine, the keeper may be this late with a checkpoint.
    if left < -30 {
        return format!(
            "no checkpoint covers row {row}, although one was due at {due:.0}: its gateway has ended or cannot write; the \
             next gateway that starts with this folder writes it"
        );
    }
    let left = output::counted(left.max(1).unsigned_abs() + 1, "second");
    format!(
        "no checkpoint covers row {row} yet; its gateway writes one at {due:.0} (try again in {left}), or when it ends"
    )
}

pub(super) fn verify_proof(proof: &VerifyProof, json: bool) -> Result<Exit, String> {
    let text = std::fs::read(&proof.file)
        .map_err(|error| format!("cannot read {}: {error}", proof.file.display()))?;
    let read: Proof = serde_json::from_slice(&text)
        .map_err(|error| format!("{} is not a proof: {error}", proof.file.display()))?;
    let key = public_key(proof.key.as_ref())?;
    read.check(key.as_ref(), proof.root).map_err(|error| error.to_string())?;
    if json {
        let row: serde_json::Value = serde_json::from_str(&read.row).unwrap_or_default();
        return Ok(output::raw_data(&json!({"ok": true, "row": row}).to_string(), Exit::Success));
    }
    let checkpoint = &read.checkpoint;
    let trusted = match (proof.root.is_some(), key.is_some()) {
        (false, false) => "pass --root or --key to check that the root is genuine",
        (true, _) => "the root is the one you gave",
        (false, true) => "the root is signed",
    };
    let text = format!(
        "{}\nis row {} of {} under the root {}; {trusted}",
        read.row, read.index, checkpoint.segment, checkpoint.root
    );
    Ok(output::data(&text, Exit::Success))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOUR-4: the message about a row that cannot be proved yet says when it can be.
    #[test]
    fn a_proof_that_comes_later_says_when() {
        let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let since = time("2026-11-15T12:00:00.5Z");
        let early = not_covered(7, since, time("2026-11-15T12:00:10Z"));
        assert!(
            early.contains("row 7 yet") && early.contains("12:01:0") && early.contains("in 51 seconds"),
            "{early}"
        );
        let late = not_covered(7, since, time("2026-11-15T12:05:00Z"));
        assert!(late.contains("was due") && late.contains("next gateway that starts"), "{late}");
    }
}
