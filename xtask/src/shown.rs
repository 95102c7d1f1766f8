//! Shows what programs print, through pipes of their own.
//!
//! A program may make its output non-blocking, and that would apply to everybody who prints to the same pipe: a chore that
//! prints into a full one would then fail, and lose what it had left to say. Therefore no program gets the output of a chore.
//! A test checks that no source hands it out.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the last words of a program that has ended may take, through a slow pipe too. A process that it left behind may
/// hold its output for ever.
const LAST_WORDS: Duration = Duration::from_secs(120);

/// Runs a program to its end, and shows what it prints.
pub(crate) fn status(program: &mut Command) -> io::Result<ExitStatus> {
    let child = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    finish(child)
}

/// Runs a program to its end, and shows what it prints as an error. Its other output is the result.
pub(crate) fn output(program: &mut Command) -> io::Result<Output> {
    let mut child = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let errors = copy(child.stderr.take(), io::stderr());
    let output = child.wait_with_output()?;
    last_words(errors);
    Ok(output)
}

/// Waits for the end of a program, and shows what it prints until then.
pub(crate) fn finish(mut child: Child) -> io::Result<ExitStatus> {
    let copies = [copy(child.stdout.take(), io::stdout()), copy(child.stderr.take(), io::stderr())];
    let status = child.wait()?;
    copies.into_iter().for_each(last_words);
    Ok(status)
}

/// Shows what a program prints as an error, for as long as it runs.
pub(crate) fn errors(child: &mut Child) {
    drop(copy(child.stderr.take(), io::stderr()));
}

fn copy(
    from: Option<impl Read + Send + 'static>,
    mut to: impl Write + Send + 'static,
) -> Option<JoinHandle<()>> {
    let mut from = from?;
    // If nobody reads this program's output any more, the copy ends, and with it the reason to print.
    Some(std::thread::spawn(move || drop(io::copy(&mut from, &mut to))))
}

fn last_words(copy: Option<JoinHandle<()>>) {
    let Some(copy) = copy else { return };
    let deadline = Instant::now() + LAST_WORDS;
    while !copy.is_finished() {
        if Instant::now() >= deadline {
            eprintln!("a process that a program left behind still holds its output after {LAST_WORDS:?}");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::steps;

    /// Whether a standard stream of this process blocks, as it should.
    fn blocks(stream: u8) -> bool {
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{stream}")).unwrap();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        i64::from_str_radix(flags.trim(), 8).unwrap() & 0o4000 == 0
    }

    /// QA-7: a program that makes its output non-blocking does not change the output of the chore that started it.
    #[test]
    fn a_program_does_not_change_the_output_of_a_chore() {
        const SCRIPT: &str = "import os, sys\n\
            for stream in 0, 1, 2: os.set_blocking(stream, False)\n\
            print('kept'); print('shown', file=sys.stderr)";
        let python = || {
            let mut python = steps::program_at(Path::new("."), "python3");
            python.args(["-c", SCRIPT]);
            python
        };
        assert!(status(&mut python()).unwrap().success());
        assert_eq!(output(&mut python()).unwrap().stdout, b"kept\n");
        let child = python().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        assert!(finish(child.unwrap()).unwrap().success());
        assert!([0, 1, 2].into_iter().all(blocks), "a program reached the output of this one");
    }

    /// What a program prints at length arrives before `status` returns.
    #[test]
    fn last_words_are_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        let (mut slow, all) = io::pipe().unwrap();
        let copying = copy(Some(reader), all);
        let words = vec![b'x'; 300_000];
        let printing = std::thread::spawn(move || {
            let mut writer = writer;
            writer.write_all(&words).unwrap();
        });
        let reading = std::thread::spawn(move || {
            let (mut read, mut part) = (0, [0; 4096]);
            loop {
                std::thread::sleep(Duration::from_millis(1));
                match slow.read(&mut part).unwrap() {
                    0 => return read,
                    more => read += more,
                }
            }
        });
        last_words(copying);
        printing.join().unwrap();
        assert_eq!(reading.join().unwrap(), 300_000);
    }

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// Why a piece of source would hand out the output of a chore. A piece ends with a semicolon.
    fn hands_out(piece: &str) -> bool {
        let set = piece.contains(".stdout(") && piece.contains(".stderr(");
        piece.contains(".status()") || piece.contains("Stdio::inherit") || piece.contains(".spawn()") && !set
    }

    /// QA-7: every chore starts its programs with outputs of their own.
    #[test]
    fn no_source_hands_out_the_output_of_a_chore() {
        assert!(hands_out("command.stdout(log).spawn()") && hands_out("command.status()"));
        assert!(!hands_out("command.stdout(log).stderr(log).spawn()"));
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        assert!(files.len() > 30, "{files:?}");
        for file in files.iter().filter(|file| !file.ends_with("shown.rs")) {
            let source = fs::read_to_string(file).unwrap();
            for piece in source.split(';') {
                assert!(!hands_out(piece), "{}: use `shown` here:\n{piece}", file.display());
            }
        }
    }
}
