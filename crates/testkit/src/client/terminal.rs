//! A program on a terminal, as a person runs it: what it shows is read all the time, and lines are typed into it.
//!
//! The terminal is the program's controlling one, so that a typed Ctrl-C is a signal. Dropping it kills the program.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};

use super::{PATIENCE, patiently};

/// A started program and its terminal.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
    /// How much of what was shown a wait has already seen.
    seen: usize,
}

impl Terminal {
    /// Starts a program on a terminal of this many columns, with the test's environment plus these variables. With
    /// `output`, its stdout goes to that file, as if a person had redirected it.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests from outside start the program under test as a user does"
    )]
    pub fn start<N: AsRef<str>, V: AsRef<str>>(
        program: &Path,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (N, V)>,
        columns: u16,
        output: Option<&Path>,
    ) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudoterminal");
        grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("a usable pseudoterminal");
        let name = ptsname(&keys, Vec::new()).expect("the name of a pseudoterminal");
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keys, size).expect("a size for a pseudoterminal");
        let open = || {
            let name = name.to_str().expect("a printable name");
            File::options().read(true).write(true).open(name).expect("the other end of a pseudoterminal")
        };
        let stdout = match output {
            Some(file) => Stdio::from(File::create(file).expect("a file for the output")),
            None => Stdio::from(open()),
        };
        // It makes its stdin the controlling terminal, and then becomes the program.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).args(arguments).env_remove("COLUMNS");
        for (name, value) in variables {
            command.env(name.as_ref(), value.as_ref());
        }
        let child = command
            .stdin(open())
            .stdout(stdout)
            .stderr(open())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let keys = File::from(keys);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let mut screen = keys.try_clone().expect("a second handle on a pseudoterminal");
        let kept = Arc::clone(&shown);
        // It ends with the last process that has the terminal open.
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut buffer) {
                kept.lock().extend_from_slice(&buffer[..read]);
            }
        });
        Self { child, keys, shown, reading, seen: 0 }
    }

    /// The process id; `None` once the program was waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Everything shown so far, with the typed lines that the terminal echoed.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock()).replace("\r\n", "\n")
    }

    /// Waits until the program shows a text after what earlier waits found.
    pub async fn until(&mut self, text: &str) {
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let found = {
                    let shown = self.shown.lock();
                    let new = &shown[self.seen..];
                    new.windows(text.len()).position(|window| window == text.as_bytes())
                };
                match found {
                    Some(at) => break at + text.len(),
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        match found.await {
            Ok(end) => self.seen += end,
            Err(_) => panic!("`{text}` was not shown within {PATIENCE:?}; this was:\n{}", self.shown()),
        }
    }

    /// Types a line.
    pub fn type_line(&mut self, line: &str) {
        self.press(format!("{line}\n").as_bytes());
    }

    /// Presses keys, such as `\x03` for Ctrl-C and `\x04` for Ctrl-D.
    pub fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("a terminal that takes keys");
    }

    /// Waits for the end of the program, and then for all that it showed.
    pub async fn wait(&mut self) -> ExitStatus {
        let status = patiently("the end of a program on a terminal", self.child.wait()).await;
        // Its last words may still be on their way. A process that it left behind would keep the terminal open.
        patiently("the end of what a program shows", async {
            while !self.reading.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        status.expect("a program that can be waited for")
    }
}
