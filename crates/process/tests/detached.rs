//! Detached programs: shell scripts that outlive their handle.
#![cfg(target_os = "linux")]

use std::os::fd::AsRawFd;
use std::path::Path;

use bridgehead_process::detach;
use bridgehead_testkit::soon;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

/// JOIN-4: a detached program has the environment and the folder it was given, no input, and no descriptor that its starter has
/// left open; it goes on when its handle is dropped.
#[tokio::test]
async fn a_detached_program_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    // Without the flag that closes it, as a careless parent leaves it.
    let leaked = std::fs::File::open("/dev/zero").unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let script = format!(
        "pwd; echo \"$PATH\"; cat; ls -l /proc/$$/fd | grep -c /dev/zero; test -e /proc/$$/fd/{} || echo closed; \
         echo said >&2; exec sleep 600",
        leaked.as_raw_fd()
    );
    let mut program = detach(Path::new("/bin/sh"), ["-c", &script], &folder).unwrap();
    let pid = program.pid().unwrap();
    let mut lines = BufReader::new(program.take_stdout().unwrap()).lines();
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(lines.next_line().await.unwrap().unwrap());
    }
    let expected = [folder.to_str().unwrap(), &std::env::var("PATH").unwrap(), "0", "closed"];
    assert_eq!(heard, expected);
    let mut said = [0; 5];
    program.take_stderr().unwrap().read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"said\n");
    drop((program, lines));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(!stat.contains(") Z"), "it still runs: {stat}");
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// JOIN-4: the end of a detached program is told with its exit code, and a program that does not exist is an error.
#[tokio::test]
async fn its_end_is_told() {
    let mut program = detach(Path::new("/bin/sh"), ["-c", "exit 78"], Path::new("/")).unwrap();
    assert_eq!(soon("the end of the program", program.wait()).await.unwrap().code, Some(78));
    assert_eq!(program.pid(), None);
    assert!(detach(Path::new("/no/such/program"), [""], Path::new("/")).is_err());
}
