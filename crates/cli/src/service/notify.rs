//! Tells the service manager that the gateway serves (`NOTIFY_SOCKET`, as systemd reads it).

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;

/// The gateway serves at this place.
pub(crate) fn ready(place: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, &format!("READY=1\nSTATUS=serves MCP at {place}"))
    {
        tracing::warn!(%error, "the service manager cannot be told that this gateway serves");
    }
}

#[cfg(target_os = "linux")]
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::SocketAddr;

    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(not(target_os = "linux"))]
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to(message.as_bytes(), socket).map(drop)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    use super::*;

    #[test]
    fn messages_reach_both_kinds_of_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("bridgehead-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let abstract_name = format!("@{name}");
        for (socket, place) in [(&by_path, path.as_os_str()), (&by_name, OsStr::new(&abstract_name))] {
            send(place, "READY=1").unwrap();
            let mut read = [0; 16];
            let length = socket.recv(&mut read).unwrap();
            assert_eq!(&read[..length], b"READY=1");
        }
        assert!(send(OsStr::new("/no/such/socket"), "x").is_err());
    }
}
