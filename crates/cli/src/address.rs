//! The addresses of this gateway, and the servers that lead back to them.
//!
//! A gateway that served itself would list its own tools again with every change, without end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use bridgehead::config::{HttpSettings, Launch, ListenAddress, ServerConfig, Url};

/// The addresses that a configuration listens on.
pub(crate) fn listening(http: &HttpSettings) -> Vec<SocketAddr> {
    let others = http.listeners.iter().filter_map(|listener| match listener.listen {
        ListenAddress::Tcp(address) => Some(address),
        ListenAddress::Unix(_) => None,
    });
    std::iter::once(http.listen).chain(others).collect()
}

/// Makes each server unusable whose address is one that this gateway listens on.
pub(crate) fn refuse_own(servers: &mut [ServerConfig], listening: &[SocketAddr]) {
    for server in servers {
        let Launch::Remote(remote) = &server.launch else { continue };
        let Some(own) = listening.iter().find(|own| leads_to(&remote.url, **own)) else { continue };
        let reason = format!(
            "its address leads back to this gateway, which listens on {own}; remove it with `bridgehead remove {}`",
            server.name
        );
        server.launch = Launch::Unusable { reason };
    }
}

fn leads_to(url: &Url, own: SocketAddr) -> bool {
    let host = match url.host().trim_end_matches('.').to_ascii_lowercase().as_str() {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => match host.parse() {
            Ok(host) => host,
            Err(_) => return false,
        },
    };
    // A connection to the unspecified address reaches this machine.
    let here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    let same_host = host == own.ip() || here(host) && here(own.ip()) || host == reachable(own).ip();
    url.port() == own.port() && same_host
}

/// Whether two listeners cannot be at these places at once.
pub(crate) fn same_place(one: SocketAddr, other: SocketAddr) -> bool {
    let anywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (anywhere || one.ip() == other.ip())
}

/// The address at which others reach a listener; an address of this machine if it listens on all of them.
pub(crate) fn reachable(listening: SocketAddr) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    // The system chooses the address it would send from. Nothing is sent; the targets are documentation addresses.
    let towards = |own: &str, other: &str| {
        let socket = UdpSocket::bind(own).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    };
    let by_v4 = || towards("0.0.0.0:0", "192.0.2.1:9");
    let by_v6 = || towards("[::]:0", "[2001:db8::1]:9");
    // A listener on all IPv6 addresses usually accepts IPv4 too.
    let found = by_v4().or_else(|| listening.is_ipv6().then(by_v6).flatten()).or_else(listed_address);
    let loopback = match listening {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(found.unwrap_or(loopback), listening.port())
}

/// The first non-loopback address of this machine, for a machine without a route to the outside.
fn listed_address() -> Option<IpAddr> {
    let routes = std::fs::read_to_string("/proc/net/fib_trie").ok()?;
    first_local(&routes)
}

/// The first local address in the kernel's table. An address has its own line, above the line with its type.
fn first_local(routes: &str) -> Option<IpAddr> {
    let lines: Vec<&str> = routes.lines().map(str::trim).collect();
    let mut local = lines.windows(2).filter_map(|pair| match pair {
        [address, "/32 host LOCAL"] => address.strip_prefix("|-- ")?.parse().ok(),
        _ => None,
    });
    local.find(|address: &IpAddr| !address.is_loopback())
}

/// What follows `--listen`: an address with a port, or a port alone, which is one of 127.0.0.1.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
    if let Ok(port) = port.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(address) => format!("it needs a port too, such as {}", SocketAddr::new(address, 4848)),
        Err(_) => "write an address and a port, such as 127.0.0.1:4849, or only the port".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use bridgehead::config::Config;

    use super::*;

    /// HOUR-10: a client can connect to the printed address, even if the gateway listens on all addresses.
    #[test]
    fn the_banner_shows_an_address_that_works() {
        for listen in ["0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let shown = reachable(listener.local_addr().unwrap());
            assert!(!shown.ip().is_unspecified(), "{shown}");
            std::net::TcpStream::connect(shown).unwrap();
        }
        let routes = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.1.2.0\n        \
                      /24 link UNICAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n";
        assert_eq!(first_local(routes), Some("10.1.2.3".parse().unwrap()));
        assert_eq!(first_local("Main:\n"), None);
        let exact: SocketAddr = "192.0.2.7:4848".parse().unwrap();
        assert_eq!(reachable(exact), exact);
    }

    /// JOIN-3: a server that leads back to this gateway is known by its address, in every way to write it.
    #[test]
    fn a_gateway_knows_its_own_address() {
        #[track_caller]
        fn check(url: &str, listen: &str, expected: bool) {
            assert_eq!(leads_to(&url.parse().unwrap(), listen.parse().unwrap()), expected, "{url} {listen}");
        }
        check("http://127.0.0.1:4848/mcp", "127.0.0.1:4848", true);
        check("http://LOCALHOST.:4848/mcp", "127.0.0.1:4848", true);
        check("ws://[::1]:4848/mcp", "[::1]:4848", true);
        check("http://0.0.0.0:4848/mcp", "127.0.0.1:4848", true);
        check("https://127.0.0.1/mcp", "0.0.0.0:443", true);
        check("http://192.0.2.7:4848/mcp", "192.0.2.7:4848", true);
        check("http://127.0.0.1:4849/mcp", "127.0.0.1:4848", false);
        check("http://192.0.2.8:4848/mcp", "192.0.2.7:4848", false);
        check("http://192.0.2.8:4848/mcp", "127.0.0.1:4848", false);
        check("http://127.0.0.1:4848/mcp", "192.0.2.7:4848", false);
        check("http://gateway.example:4848/mcp", "127.0.0.1:4848", false);
    }

    #[test]
    fn every_listener_counts() {
        let text = "[http]\nlisten = \"127.0.0.1:1\"\n[http.listeners.two]\nlisten = \"127.0.0.1:2\"\n\
                    [http.listeners.three]\nlisten = \"unix:/run/b.sock\"\n";
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        let environment = bridgehead::config::Environment::default();
        let config: Config =
            bridgehead::config::load(Some(file.path()), &environment, std::path::Path::new("/")).unwrap();
        let ports: Vec<u16> = listening(&config.http).iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [1, 2]);
    }

    /// JOIN-8: a port alone is one of 127.0.0.1, and an address without a port is told to have one.
    #[test]
    fn what_listen_takes() {
        for (text, expected) in [
            ("4849", Some("127.0.0.1:4849")),
            (":4849", Some("127.0.0.1:4849")),
            ("localhost:4849", Some("127.0.0.1:4849")),
            ("0.0.0.0:1", Some("0.0.0.0:1")),
            ("[::1]:0", Some("[::1]:0")),
            ("70000", None),
            ("example.com:1", None),
            ("", None),
        ] {
            let read = listen_address(text).ok().map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
        assert_eq!(listen_address("10.0.0.1").unwrap_err(), "it needs a port too, such as 10.0.0.1:4848");
        assert_eq!(listen_address("::1").unwrap_err(), "it needs a port too, such as [::1]:4848");
    }
}
