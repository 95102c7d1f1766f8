//! What a confined program may reach. The name of a test carries the number of the case that it shows.
//!
//! The prisoner is this file's own program: it tries what its environment lists, and prints the results. A test that
//! needs Python or another missing feature is skipped with a message.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed expectation of a test")]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_process::{
    Child, Confined, Confinement, Files, Limits, Shim, SpawnError, Spec, base_environment, pretend_landlock,
    spawn, use_shim,
};
use bridgehead_testkit::{as_unprivileged, not_shown, soon};
use tokio::io::AsyncReadExt;

/// The attempts of the prisoner, one per line: a word and its argument.
const TRIES: &str = "BRIDGEHEAD_CONFINEMENT_TRIES";

/// The result of an attempt, as text.
fn word<T>(outcome: std::io::Result<T>) -> String {
    match outcome {
        Ok(_) => "ok".to_owned(),
        Err(error) => match error.kind() {
            ErrorKind::PermissionDenied => "denied".to_owned(),
            _ => format!("{error}"),
        },
    }
}

/// This file's program as the prisoner, which tries to break out. Does nothing unless [`TRIES`] is set.
#[test]
fn prisoner() {
    let Ok(tries) = std::env::var(TRIES) else { return };
    for line in tries.lines() {
        let (what, about) = line.split_once(' ').unwrap_or((line, ""));
        let pid = || rustix::process::Pid::from_raw(about.parse().unwrap()).unwrap();
        let outcome = match what {
            "read" => word(std::fs::read(about)),
            "write" => word(std::fs::write(about, "x")),
            "list" => word(std::fs::read_dir(about)),
            "bind" => word(TcpListener::bind("127.0.0.1:0")),
            "connect" => word(TcpStream::connect(about)),
            "datagram" => {
                word(UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", "127.0.0.1:9")))
            }
            "unix" => word(UnixStream::connect(about)),
            "abstract" => {
                word(SocketAddr::from_abstract_name(about).and_then(|name| UnixStream::connect_addr(&name)))
            }
            "pair" => {
                use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
                let (family, kind) = match about {
                    "stream" => (AddressFamily::UNIX, SocketType::STREAM),
                    "packets" => (AddressFamily::UNIX, SocketType::SEQPACKET),
                    "datagrams" => (AddressFamily::UNIX, SocketType::DGRAM),
                    "raw" => (AddressFamily::UNIX, SocketType::RAW),
                    _ => (AddressFamily::TIPC, SocketType::STREAM),
                };
                word(socketpair(family, kind, SocketFlags::CLOEXEC, None).map_err(Into::into))
            }
            "signal" => word(rustix::process::test_kill_process(pid()).map_err(Into::into)),
            "parent" => {
                let parent = rustix::process::getppid().unwrap();
                word(rustix::process::test_kill_process(parent).map_err(Into::into))
            }
            "memory_file" => {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                word(rustix::fs::memfd_create("x", flags).map_err(Into::into))
            }
            "limit" => {
                use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
                let same: Rlimit = getrlimit(Resource::Core);
                word(prlimit(other(about), Resource::Core, same).map_err(Into::into))
            }
            "nice" => {
                // Tests may themselves run with a low priority, and only the superuser may raise one.
                let niceness = rustix::process::getpriority_process(None).unwrap();
                word(rustix::process::setpriority_process(other(about), niceness + 1).map_err(Into::into))
            }
            "affinity" => {
                let set = rustix::thread::sched_getaffinity(None).unwrap();
                word(rustix::thread::sched_setaffinity(other(about), &set).map_err(Into::into))
            }
            "mode" => {
                word(std::fs::set_permissions(about, std::os::unix::fs::PermissionsExt::from_mode(0o600)))
            }
            "owner" => word(std::os::unix::fs::chown(about, None, None)),
            "times" => word(
                std::fs::File::open(about)
                    .and_then(|file| file.set_modified(std::time::SystemTime::UNIX_EPOCH)),
            ),
            "attribute" => {
                let flags = rustix::fs::XattrFlags::empty();
                word(rustix::fs::setxattr(about, "user.x", b"x", flags).map_err(Into::into))
            }
            "thread" => word(std::thread::Builder::new().spawn(|| {}).map(|thread| thread.join().unwrap())),
            "raise" => {
                use rustix::process::{Resource, Rlimit, setrlimit};
                let more = Rlimit { current: Some(4096), maximum: Some(4096) };
                word(setrlimit(Resource::Nofile, more).map_err(Into::into))
            }
            "privileges" => {
                let has = rustix::thread::capabilities(None).unwrap();
                let none = has.permitted.is_empty() && has.effective.is_empty();
                let bounded = rustix::thread::no_new_privs().unwrap();
                (if none && bounded { "none" } else { "some" }).to_owned()
            }
            "descriptors" => {
                // The numbers of the open descriptors. Listing the folder instead would open another one.
                let open = (0..256).filter(|&number| std::fs::metadata(format!("/dev/fd/{number}")).is_ok());
                format!("{:?}", open.collect::<Vec<_>>())
            }
            _ => panic!("{what}"),
        };
        println!("TRIED {what} {about}: {outcome}");
    }
}

/// A process by its number; `None`, which means this process, if there is no number.
fn other(number: &str) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(number.parse().unwrap_or_default())
}

fn spec(confinement: Confinement, tries: &[String]) -> Spec {
    let parent: BTreeMap<String, String> = std::env::vars().collect();
    let mut env = base_environment(&parent);
    env.insert(TRIES.to_owned(), tries.join("\n"));
    Spec {
        program: std::env::current_exe().unwrap().to_str().unwrap().to_owned(),
        args: ["--exact", "prisoner", "--nocapture"].map(str::to_owned).to_vec(),
        env,
        cwd: Some("/".into()),
        limits: Limits { open_files: Some(256), ..Limits::default() },
        confinement: Some(confinement),
    }
}

fn shim() {
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
}

async fn said(mut child: Child) -> Vec<String> {
    let mut output = String::new();
    let mut stdout = child.take_stdout().unwrap();
    let reading = stdout.read_to_string(&mut output);
    tokio::time::timeout(Duration::from_secs(60), reading).await.unwrap().unwrap();
    let exit = soon("the end of the program", child.wait()).await;
    assert!(exit.is_success(), "{exit}: {output} {}", child.stderr_tail());
    output.lines().filter_map(|line| line.split_once("TRIED ").map(|(_, said)| said.to_owned())).collect()
}

/// Lets the prisoner make each attempt, and compares the results with the expected ones.
async fn check(confinement: Confinement, expected: &[(String, &str)]) {
    shim();
    let tries: Vec<String> = expected.iter().map(|(what, _)| what.clone()).collect();
    let child = spawn(&spec(confinement, &tries), Box::new(|_| {})).unwrap();
    let said = said(child).await;
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (said, (what, outcome)) in said.iter().zip(expected) {
        let what = if what.contains(' ') { what.clone() } else { format!("{what} ") };
        assert_eq!(*said, format!("{what}: {outcome}"));
    }
}

fn offline(read: &[&Path], write: &[&Path]) -> Confinement {
    let owned = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
    let files = Some(Files { read: owned(read), write: owned(write) });
    Confinement { files, network: false, signals: false, degrade: false }
}

fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let (inside, outside) = (place.path().join("inside"), place.path().join("outside"));
    for folder in [&inside, &outside] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("file"), "x").unwrap();
    }
    (place, inside, outside)
}

/// Files that were not given cannot be read, even by root; neither can the environment of other processes.
#[tokio::test]
async fn box_33_other_files_cannot_be_read() {
    let (_place, inside, outside) = place();
    let read = |path: &Path| format!("read {}", path.display());
    let expected = [
        (read(&inside.join("file")), "ok"),
        (read(&outside.join("file")), "denied"),
        (format!("list {}", outside.display()), "denied"),
        ("read /proc/1/environ".to_owned(), "denied"),
        (format!("read /proc/{}/environ", std::process::id()), "denied"),
        ("read /etc/shadow".to_owned(), "denied"),
    ];
    check(offline(&[&inside], &[]), &expected).await;
}

/// Files outside the writable folders cannot be written, not even through links or `..`.
#[tokio::test]
async fn box_34_other_files_cannot_be_written() {
    let (_place, inside, outside) = place();
    std::os::unix::fs::symlink(outside.join("file"), inside.join("link")).unwrap();
    let write = |path: PathBuf| format!("write {}", path.display());
    let expected = [
        (write(inside.join("new")), "ok"),
        (write(outside.join("new")), "denied"),
        (write(inside.join("../outside/file")), "denied"),
        (write(inside.join("link")), "denied"),
        (write("/dev/null".into()), "ok"),
    ];
    check(offline(&[], &[&inside]), &expected).await;
    check(offline(&[&inside], &[]), &[(write(inside.join("newer")), "denied")]).await;
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "x");
}

/// Without the network no socket can be made, for any purpose.
#[tokio::test]
async fn box_35_there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = format!("connect {}", listener.local_addr().unwrap());
    let expected = [
        (connect.clone(), "denied"),
        ("bind".to_owned(), "denied"),
        ("datagram".to_owned(), "denied"),
        ("pair stream".to_owned(), "ok"),
    ];
    let no_network = Confinement { files: None, network: false, signals: false, degrade: false };
    check(no_network, &expected).await;
    let (_place, inside, _) = place();
    check(offline(&[&inside], &[]), &expected).await;
    // With the network, TCP and UDP work.
    let network = Confinement { network: true, ..offline(&[&inside], &[]) };
    check(network, &[(connect, "ok"), ("bind".to_owned(), "ok"), ("datagram".to_owned(), "ok")]).await;
}

/// A socket in the file system leads to a program that is not confined. It is refused with or without the network.
#[tokio::test]
async fn box_36_sockets_of_other_programs_are_out_of_reach() {
    let (_place, inside, _) = place();
    let path = inside.join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let connect = format!("unix {}", path.display());
    for network in [false, true] {
        let confinement = Confinement { network, ..offline(&[], &[&inside]) };
        check(confinement, &[(connect.clone(), "denied")]).await;
    }
}

/// WALL-3: a pair of sockets is of no use to reach anybody else. Only connected pairs can be made: an end of a pair of
/// datagrams could send to any named socket, and the kernel makes such a pair of a raw one.
#[tokio::test]
async fn pairs_of_sockets_lead_nowhere_else() {
    let (_place, inside, _) = place();
    for network in [false, true] {
        let expected = [
            ("pair stream".to_owned(), "ok"),
            ("pair packets".to_owned(), "ok"),
            ("pair datagrams".to_owned(), "denied"),
            ("pair raw".to_owned(), "denied"),
            ("pair of another family".to_owned(), "denied"),
        ];
        check(Confinement { files: None, network, signals: false, degrade: false }, &expected).await;
        check(Confinement { network, ..offline(&[], &[&inside]) }, &expected).await;
    }
}

/// The same for sockets that have no file.
#[tokio::test]
async fn box_37_abstract_sockets_are_out_of_reach() {
    let name = format!("bridgehead-confinement-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    for network in [false, true] {
        let confinement = Confinement { files: None, network, signals: false, degrade: false };
        if !network {
            check(confinement, &[(format!("abstract {name}"), "denied")]).await;
        } else {
            let (_place, inside, _) = place();
            let confinement = Confinement { network, ..offline(&[&inside], &[]) };
            check(confinement, &[(format!("abstract {name}"), "denied")]).await;
        }
    }
}

/// The version of Landlock that the shim found.
async fn landlock() -> u8 {
    shim();
    let nothing = Confinement { files: None, network: false, signals: false, degrade: true };
    let child = spawn(&spec(nothing, &[]), Box::new(|_| {})).unwrap();
    let version = child.effective().confined.unwrap().landlock;
    said(child).await;
    version
}

/// The gateway cannot be signalled from inside.
#[tokio::test]
async fn box_38_the_gateway_cannot_be_signalled() {
    if landlock().await < 6 {
        not_shown("box_38_the_gateway_cannot_be_signalled", "Landlock with scopes (version 6)");
        return;
    }
    let (_place, inside, _) = place();
    check(offline(&[&inside], &[]), &[(format!("signal {}", std::process::id()), "denied")]).await;
}

/// The shim, which is the parent, cannot be signalled from inside.
#[tokio::test]
async fn box_28_the_keeper_cannot_be_signalled() {
    if landlock().await < 6 {
        not_shown("box_28_the_keeper_cannot_be_signalled", "Landlock with scopes (version 6)");
        return;
    }
    let no_network = Confinement { files: None, network: false, signals: false, degrade: false };
    check(no_network, &[("parent".to_owned(), "denied")]).await;
}

/// Files in memory, which a sampled limit does not count, are refused.
#[tokio::test]
async fn box_22_files_in_memory_are_refused() {
    let no_network = Confinement { files: None, network: false, signals: false, degrade: false };
    check(no_network, &[("memory_file".to_owned(), "denied")]).await;
}

/// A limit cannot be raised from inside, not even by root.
#[tokio::test]
async fn box_39_limits_cannot_be_raised() {
    let no_network = Confinement { files: None, network: false, signals: false, degrade: false };
    check(no_network, &[("raise".to_owned(), "denied")]).await;
}

/// A confined program has no capabilities, not even as root, and executing another program brings none.
#[tokio::test]
async fn box_40_no_privilege_is_gained() {
    let no_network = Confinement { files: None, network: false, signals: false, degrade: false };
    check(no_network, &[("privileges".to_owned(), "none")]).await;
}

/// BOX-4: a program has its three pipes and no other descriptor, even if the gateway leaks one.
#[tokio::test]
async fn box_31_there_are_three_descriptors() {
    let leaked = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let everything = Confinement { files: None, network: false, signals: false, degrade: false };
    check(everything, &[("descriptors".to_owned(), "[0, 1, 2]")]).await;
    drop(leaked);
}

/// A program's environment is exactly what it was given. This uses `env`, because our own programs set a variable when
/// they are built with coverage counters.
#[tokio::test]
async fn box_32_the_environment_is_what_was_given() {
    shim();
    let mut spec = spec(Confinement { files: None, network: false, signals: false, degrade: false }, &[]);
    (spec.program, spec.args) = ("/usr/bin/env".to_owned(), Vec::new());
    spec.env = BTreeMap::from([("GIVEN".to_owned(), "this".to_owned())]);
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    soon("the end of the program", child.wait()).await;
    assert_eq!(output, "GIVEN=this\n", "{}", child.stderr_tail());
}

/// Calls that reach into other processes or the kernel are refused, also by their second numbers.
#[tokio::test]
async fn box_41_calls_that_lead_around_are_refused() {
    const SCRIPT: &str = "import ctypes,platform\n\
        c=ctypes.CDLL(None,use_errno=True)\n\
        def t(n,*a):\n c.syscall(n,*a)\n return ctypes.get_errno()\n\
        x=platform.machine()=='x86_64'\n\
        print(t(425,1,0), t(101 if x else 117,0,0,0,0), t(0x40000027) if x else 1)";
    let Some(python) = python() else {
        not_shown("box_41_calls_that_lead_around_are_refused", "python3, to make the calls with");
        return;
    };
    shim();
    let mut spec = spec(Confinement { files: None, network: false, signals: false, degrade: false }, &[]);
    (spec.program, spec.args) = (python, vec!["-c".to_owned(), SCRIPT.to_owned()]);
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    soon("the end of the program", child.wait()).await;
    assert_eq!(output, "1 1 1\n", "{}", child.stderr_tail());
}

/// WALL-3: a confined process can set limits, priority and CPU affinity only for itself, not for other processes. A
/// server once brought its gateway down with a limit.
#[tokio::test]
async fn other_processes_are_not_given_anything() {
    // This holds for a gateway that was started with a low priority, too.
    let niceness = rustix::process::getpriority_process(None).unwrap();
    rustix::process::setpriority_process(None, niceness + 3).unwrap();
    let gateway = std::process::id();
    let no_network = Confinement { network: false, ..Confinement::default() };
    let mut expected = Vec::new();
    for what in ["limit", "nice", "affinity"] {
        expected.push((format!("{what} {gateway}"), "denied"));
        expected.push((format!("{what} 1"), "denied"));
        expected.push((what.to_owned(), "ok"));
    }
    expected.push(("thread".to_owned(), "ok"));
    check(no_network, &expected).await;
}

/// WALL-3: no call can make a namespace, create an object that outlives its maker, or open a mount. `clone3`, whose flags
/// the filter cannot see, fails as if it did not exist, so that programs use `clone`.
#[tokio::test]
async fn calls_that_reach_out_are_refused() {
    const SCRIPT: &str = r#"
        my $x = `uname -m` eq "x86_64\n";
        sub try { my ($old, $new, @rest) = @_; $! = 0; my $got = syscall($x ? $old : $new, @rest);
                  exit 0 if $got == 0 && $old == 56; return $! + 0 }
        my @refused = map { try(56, 220, $_ | 17, 0, 0, 0, 0) }
            0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000;
        push @refused, try(29, 194, 0, 4096, 0600), try(68, 186, 0, 0600), try(64, 190, 0, 1, 0600);
        push @refused, try(467, 467, -100, "/", 0, 0, 0), try(251, 30, 3, 0, 0), try(251, 30, 1, 1, 0);
        push @refused, try(141, 140, 1, 0, 1), try(144, 119, 1, 0, 0), try(142, 118, 1, 0), try(314, 274, 1, 0, 0),
            try(300, 262, 0x200, 0);
        print join(" ", @refused), " and ", try(435, 435, 0, 0), " and ", system("true");
    "#;
    if !Path::new("/usr/bin/perl").is_file() {
        not_shown("calls_that_reach_out_are_refused", "perl, to make the calls with");
        return;
    }
    shim();
    let mut spec = spec(Confinement { network: false, ..Confinement::default() }, &[]);
    (spec.program, spec.args) = ("/usr/bin/perl".to_owned(), vec!["-e".to_owned(), SCRIPT.to_owned()]);
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    soon("the end of the program", child.wait()).await;
    let refused = ["1"; 18].join(" ");
    assert_eq!(output, format!("{refused} and 38 and 0"), "{}", child.stderr_tail());
}

/// WALL-3: the runtimes that servers are written for work under full confinement.
#[tokio::test]
async fn interpreters_run_within_the_walls() {
    const NODE: &str = "require('child_process').execFileSync('/bin/true'); \
        new (require('worker_threads').Worker)('1', {eval: true}).on('exit', () => console.log('fine'))";
    const PYTHON: &str = "import threading,subprocess\n\
        t=threading.Thread(target=lambda: subprocess.run(['/bin/true'],check=True))\n\
        t.start(); t.join(); print('fine')";
    let node = Path::new("/usr/bin/node").is_file().then(|| ("/usr/bin/node".to_owned(), "-e", NODE));
    let python = python().map(|python| (python, "-c", PYTHON));
    if node.is_none() || python.is_none() {
        not_shown("interpreters_run_within_the_walls", "node and python3");
    }
    shim();
    let (_place, inside, _) = place();
    for (program, option, script) in node.into_iter().chain(python) {
        for confinement in [offline(&[&inside], &[]), offline(&[], &[&inside])] {
            let mut spec = spec(confinement, &[]);
            spec.limits = Limits::default();
            (spec.program, spec.args) = (program.clone(), vec![option.to_owned(), script.to_owned()]);
            let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
            let mut output = String::new();
            soon(
                "the end of what the program prints",
                child.take_stdout().unwrap().read_to_string(&mut output),
            )
            .await
            .unwrap();
            soon("the end of the program", child.wait()).await;
            assert_eq!(output, "fine\n", "{program}: {}", child.stderr_tail());
        }
    }
}

/// WALL-4: where no file may be written, the metadata of files (mode, owner, times, attributes) cannot be changed either.
/// Where some file may be written it can, because no version of Landlock restricts that.
#[tokio::test]
async fn what_is_known_about_files_is_kept_where_nothing_may_be_written() {
    let (_place, inside, _) = place();
    let file = inside.join("file");
    let tries = |outcome: &'static str| {
        ["mode", "owner", "times"].map(|what| (format!("{what} {}", file.display()), outcome)).to_vec()
    };
    let mut expected = tries("denied");
    expected.push((format!("attribute {}", file.display()), "denied"));
    check(offline(&[&inside], &[]), &expected).await;
    check(offline(&[], &[&inside]), &tries("ok")).await;
}

/// WALL-4: a Landlock version that lets files be truncated does not count as enforcing `files`. A version without scopes
/// is reported as a gap; the start is refused only where signals are required, even with `degrade`.
#[tokio::test]
async fn an_old_landlock_is_not_counted_as_kept() {
    shim();
    let (_place, inside, outside) = place();
    let asked = offline(&[&inside], &[]);
    let tries = [format!("read {}", outside.join("file").display())];
    for version in [1, 2] {
        pretend_landlock(version);
        let error = spawn(&spec(asked.clone(), &[]), Box::new(|_| {})).unwrap_err();
        assert!(error.to_string().contains("lacks Landlock of version 3 or later (files)"), "{error}");
        let degraded = Confinement { degrade: true, ..asked.clone() };
        let child = spawn(&spec(degraded.clone(), &tries), Box::new(|_| {})).unwrap();
        let kept = child.effective().confined.unwrap();
        assert_eq!((kept.files, kept.landlock), (false, version));
        assert_eq!(kept.missing(&degraded), ["Landlock of version 3 or later (files)"]);
        assert_eq!(said(child).await, [format!("{}: denied", tries[0])], "it still enforces what it can");
        // A confinement without `files` needs no Landlock.
        check(Confinement::default(), &[("bind".to_owned(), "denied")]).await;
    }
    for version in [3, 5] {
        pretend_landlock(version);
        let child = spawn(&spec(asked.clone(), &tries), Box::new(|_| {})).unwrap();
        let kept = child.effective().confined.unwrap();
        assert!(kept.files && !kept.signals && kept.missing(&asked).is_empty(), "{kept:?}");
        let gap = "Landlock of version 6 or later (signals to other processes)";
        assert_eq!(kept.gaps(&asked), [gap]);
        said(child).await;
        for degrade in [false, true] {
            let required = Confinement { signals: true, degrade, ..asked.clone() };
            let error = spawn(&spec(required, &[]), Box::new(|_| {})).unwrap_err();
            assert!(matches!(&error, SpawnError::Confinement { feature, .. } if *feature == gap), "{error}");
            assert!(error.to_string().contains("take `signals` out of `require`"), "{error}");
        }
    }
    pretend_landlock(15);
    if landlock().await >= 6 {
        check(
            Confinement { signals: true, ..asked },
            &[(format!("signal {}", std::process::id()), "denied")],
        )
        .await;
    }
}

/// The path of a Python interpreter.
fn python() -> Option<String> {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|path| Path::new(path).is_file())
        .map(str::to_owned)
}

/// A path that does not exist is named, and nothing is started.
#[tokio::test]
async fn box_55_a_path_that_is_not_there_is_named() {
    shim();
    let confinement = offline(&[], &[Path::new("/no/such/place")]);
    let error = spawn(&spec(confinement, &[]), Box::new(|_| {})).unwrap_err();
    assert!(error.is_of_sandbox(), "{error}");
    assert!(error.to_string().contains("the path `/no/such/place` in its `files`"), "{error}");
}

/// WALL-2: a start follows no link in its paths, so that a server cannot place one for the next start. `degrade` does not
/// change that. A folder that was deleted and created again works like the old one.
#[tokio::test]
async fn a_path_that_became_a_link_is_refused() {
    shim();
    let (place, inside, outside) = place();
    let cache = inside.join("cache");
    std::fs::create_dir(&cache).unwrap();
    let write = |path: PathBuf| format!("write {}", path.display());
    let asked = || offline(&[], &[&inside, &cache]);
    check(asked(), &[(write(cache.join("new")), "ok")]).await;

    std::fs::remove_dir_all(&cache).unwrap();
    std::os::unix::fs::symlink("/", &cache).unwrap();
    for degrade in [false, true] {
        let asked = Confinement { degrade, ..asked() };
        let error = spawn(&spec(asked, &[]), Box::new(|_| {})).unwrap_err();
        assert!(error.is_of_sandbox(), "{error}");
        let told = error.to_string();
        assert!(told.contains(cache.to_str().unwrap()) && told.contains("a symbolic link"), "{told}");
    }
    std::fs::remove_file(&cache).unwrap();
    std::fs::create_dir(&cache).unwrap();
    check(asked(), &[(write(cache.join("new")), "ok"), (write(outside.join("new")), "denied")]).await;

    // A link further up in the path is refused too.
    std::os::unix::fs::symlink(&inside, place.path().join("by")).unwrap();
    let error =
        spawn(&spec(offline(&[&place.path().join("by/cache")], &[]), &[]), Box::new(|_| {})).unwrap_err();
    assert!(error.to_string().contains("a symbolic link"), "{error}");
}

/// WALL-2: a program may read its own file, but not a file that it links to in its own place.
#[tokio::test]
async fn a_program_that_can_replace_itself_gains_nothing_by_it() {
    shim();
    let (_place, inside, outside) = place();
    let secret = outside.join("script");
    std::fs::write(&secret, "#!/bin/sh\necho got out\n").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = inside.join("server");
    std::os::unix::fs::symlink(&secret, &program).unwrap();
    let mut spec = spec(offline(&[], &[&inside]), &[]);
    (spec.program, spec.args) = (program.to_str().unwrap().to_owned(), Vec::new());
    let error = spawn(&spec, Box::new(|_| {})).unwrap_err();
    assert!(matches!(error, SpawnError::NotExecutable { .. }), "{error}");
    // If the program cannot write to the folder, the link is the owner's choice and is followed.
    spec.confinement = Some(offline(&[&inside], &[]));
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert_eq!(output, "got out\n");
}

/// Disables Landlock for this thread and everything that it starts.
fn without_landlock() {
    use seccompiler::{SeccompAction, SeccompFilter};
    let refused = BTreeMap::from([(libc::SYS_landlock_create_ruleset, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let errno = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, errno, arch).unwrap();
    seccompiler::apply_filter(&TryInto::<seccompiler::BpfProgram>::try_into(filter).unwrap()).unwrap();
}

/// Where Landlock is missing, a server with `files` is not started. With `degrade` it starts, and what is missing is
/// reported. Blocking the network does not need Landlock.
#[tokio::test]
async fn box_53_what_cannot_be_kept_is_refused() {
    // Affects only this thread, which starts the nursery that everything else comes from.
    without_landlock();
    shim();
    let (_place, inside, outside) = place();
    let asked = offline(&[&inside], &[]);
    let error = spawn(&spec(asked.clone(), &[]), Box::new(|_| {})).unwrap_err();
    assert!(
        matches!(&error, SpawnError::Confinement { feature: "Landlock of version 3 or later (files)", .. }),
        "{error}"
    );
    assert!(error.to_string().contains("bridgehead doctor"), "{error}");

    let degraded = Confinement { degrade: true, ..asked };
    let tries = [format!("read {}", outside.join("file").display()), "bind".to_owned()];
    let child = spawn(&spec(degraded.clone(), &tries), Box::new(|_| {})).unwrap();
    let kept = child.effective().confined.unwrap();
    assert_eq!(kept.missing(&degraded), ["Landlock of version 3 or later (files)"]);
    assert!(!kept.files && kept.network && kept.calls && kept.landlock == 0, "{kept:?}");
    assert_eq!(child.view().effective().confined, Some(kept));
    let said = said(child).await;
    assert!(said[0].ends_with(": ok") && said[1].ends_with(": denied"), "{said:?}");

    check(
        Confinement { files: None, network: false, signals: false, degrade: false },
        &[("bind".to_owned(), "denied")],
    )
    .await;
}

/// Everything that was asked for is enforced and reported, and a missing interpreter is reported as without confinement.
#[tokio::test]
async fn what_is_kept_is_told() {
    shim();
    let (_place, inside, _) = place();
    let asked = offline(&[&inside], &[]);
    let child = spawn(&spec(asked.clone(), &[]), Box::new(|_| {})).unwrap();
    let kept: Confined = child.effective().confined.unwrap();
    assert_eq!(kept.missing(&asked), Vec::<&str>::new(), "{kept:?}");
    said(child).await;

    let script = inside.join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut broken = spec(asked, &[]);
    broken.program = script.to_str().unwrap().to_owned();
    let error = spawn(&broken, Box::new(|_| {})).unwrap_err();
    assert!(matches!(error, SpawnError::NoInterpreter { .. }), "{error}");
}

/// All tests of this file also hold for an unprivileged user; root runs them once more as one.
#[test]
fn all_holds_for_an_unprivileged_user() {
    let shim = Path::new(env!("CARGO_BIN_EXE_process-shim"));
    as_unprivileged("confinement_as_an_unprivileged_user", &[shim], |name| {
        name != "all_holds_for_an_unprivileged_user"
    });
}
