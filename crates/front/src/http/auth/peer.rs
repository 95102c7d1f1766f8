//! Finds the local user that holds the other end of a connection over loopback.
//!
//! The kernel is asked for the one socket between the peer's address and ours (`sock_diag`). Where it has no such
//! interface, its table of all sockets is read (`/proc/net/tcp`). The kernel reports user 0 for a socket without an owner,
//! which was closed or is in `TIME_WAIT`. Such a socket counts as not found.

use std::net::{IpAddr, SocketAddr};

use bridgehead_config::{HttpSettings, LocalUsers};

/// Which local users may connect where no secret is required.
#[derive(Debug)]
pub struct LocalRule {
    /// `None` admits every user.
    admitted: Option<Vec<u32>>,
    /// The user id that all users share who are not mapped in this namespace.
    nobody: Option<u32>,
}

/// What is known of the peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address; `None` over a Unix socket. Never taken from a header.
    pub address: Option<IpAddr>,
    /// The local user at the other end.
    pub user: PeerUser,
}

/// The local user at the other end of a connection, as far as it was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerUser {
    /// It may call without a secret; `None` if the user was not looked up or cannot be determined.
    Admitted(Option<u32>),
    /// It may not call without a secret; `None` if the user cannot be determined.
    Refused(Option<u32>),
}

impl LocalRule {
    /// What `http.local_users` says.
    pub fn new(settings: &HttpSettings) -> Self {
        let admitted = match &settings.local_users {
            LocalUsers::Any => None,
            LocalUsers::These(users) => Some(users.clone()),
            LocalUsers::Same => {
                let own = own_user();
                // The user who became root with `sudo` counts as the same user.
                Some(own.into_iter().chain(settings.sudo_uid.filter(|_| own == Some(0))).collect())
            }
        };
        Self { admitted, nobody: unmapped_user() }
    }

    /// Looks the user of a TCP connection up. That costs a query to the kernel, so it is done once for each connection, not for
    /// each request. A peer that is not on loopback is no local user.
    pub fn judge(&self, peer: SocketAddr, ours: SocketAddr) -> PeerUser {
        if !peer.ip().to_canonical().is_loopback() {
            return PeerUser::Refused(None);
        }
        self.judge_user(owner(peer, ours))
    }

    /// Judges the user of a connection over a Unix socket, as the kernel names it.
    pub fn judge_user(&self, user: Option<u32>) -> PeerUser {
        let user = user.filter(|user| Some(*user) != self.nobody);
        match (&self.admitted, user) {
            (None, user) => PeerUser::Admitted(user),
            (Some(admitted), Some(user)) if admitted.contains(&user) => PeerUser::Admitted(Some(user)),
            (Some(_), user) => PeerUser::Refused(user),
        }
    }

    /// The users that are admitted by name; none if every user is.
    pub(crate) fn named(&self) -> &[u32] {
        self.admitted.as_deref().unwrap_or_default()
    }
}

#[cfg(target_os = "linux")]
use linux::{own_user, owner, unmapped_user};

#[cfg(not(target_os = "linux"))]
use elsewhere::{own_user, owner, unmapped_user};

/// No user can be determined here, so callers are admitted only if `http.local_users` is "any".
// Not mutated: no test runs where this is compiled.
#[cfg(not(target_os = "linux"))]
#[cfg_attr(false, mutants::skip)]
mod elsewhere {
    use std::net::SocketAddr;

    pub(super) fn own_user() -> Option<u32> {
        None
    }

    pub(super) fn unmapped_user() -> Option<u32> {
        None
    }

    pub(super) fn owner(_peer: SocketAddr, _ours: SocketAddr) -> Option<u32> {
        None
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fmt::Write as _;
    use std::net::{IpAddr, SocketAddr};

    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
    };

    /// `SOCK_DIAG_BY_FAMILY`, the type of the query and of its answer.
    const BY_FAMILY: u16 = 20;
    /// `NLM_F_REQUEST`
    const REQUEST: u16 = 1;
    const TCP: u8 = 6;
    const IPV4: u8 = 2;
    const IPV6: u8 = 10;
    /// A header and an `inet_diag_req_v2`.
    const QUESTION_BYTES: usize = 16 + 56;
    /// A header and an `inet_diag_msg`.
    const ANSWER_BYTES: usize = 16 + 72;
    /// The states of a socket that a process still holds: established, and closed for writing (`FIN_WAIT1`, `FIN_WAIT2`).
    const HELD: [u8; 3] = [1, 4, 5];

    pub(in super::super) fn own_user() -> Option<u32> {
        Some(rustix::process::geteuid().as_raw())
    }

    /// In a user namespace that does not map all users, the unmapped ones share one user id.
    pub(in super::super) fn unmapped_user() -> Option<u32> {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        unmapped(&map, &number)
    }

    /// `map` is the user map of the namespace, `number` the user id that all unmapped users share.
    pub(super) fn unmapped(map: &str, number: &str) -> Option<u32> {
        let knows_all = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
        (!knows_all).then(|| number.trim().parse().unwrap_or(65_534))
    }

    /// The user of the socket at `peer` that is connected to `ours`.
    pub(in super::super) fn owner(peer: SocketAddr, ours: SocketAddr) -> Option<u32> {
        asked(peer, ours).or_else(|| listed(peer, ours))
    }

    /// Asks `sock_diag`. `None` if there is no such socket, or no such interface.
    pub(super) fn asked(peer: SocketAddr, ours: SocketAddr) -> Option<u32> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        );
        let socket = socket.ok()?;
        let question = question(peer, ours);
        send(&socket, &question, SendFlags::empty()).ok()?;
        let mut answer = [0; 1024];
        // The kernel has answered by the time `send` returns.
        let (_, length) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
        told(&question, answer.get(..length)?)
    }

    /// The user that the kernel's answer to a query names.
    pub(super) fn told(question: &[u8; QUESTION_BYTES], answer: &[u8]) -> Option<u32> {
        let answer = answer.get(..ANSWER_BYTES)?;
        let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
        // It must be the requested socket: in place of a missing one the kernel returns one that listens.
        let the_one = kind == BY_FAMILY
            && answer.get(16) == question.get(16)
            && answer.get(17).is_some_and(|state| HELD.contains(state))
            && answer.get(20..56) == question.get(24..60);
        let (user, inode) = (number(80)?, number(84)?);
        (the_one && inode != 0).then_some(user)
    }

    pub(super) fn question(peer: SocketAddr, ours: SocketAddr) -> [u8; QUESTION_BYTES] {
        let mut out = [0; QUESTION_BYTES];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = out.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(0, &u32::try_from(QUESTION_BYTES).unwrap_or_default().to_ne_bytes());
        put(4, &BY_FAMILY.to_ne_bytes());
        put(6, &REQUEST.to_ne_bytes());
        put(16, &[if peer.is_ipv4() { IPV4 } else { IPV6 }, TCP]);
        put(20, &u32::MAX.to_ne_bytes());
        put(24, &peer.port().to_be_bytes());
        put(26, &ours.port().to_be_bytes());
        for (at, address) in [(28, peer.ip()), (44, ours.ip())] {
            match address {
                IpAddr::V4(address) => put(at, &address.octets()),
                IpAddr::V6(address) => put(at, &address.octets()),
            }
        }
        // No interface, and any cookie.
        put(64, &[u8::MAX; 8]);
        out
    }

    /// Searches the table of all sockets.
    pub(super) fn listed(peer: SocketAddr, ours: SocketAddr) -> Option<u32> {
        let table = if peer.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
        let table = std::fs::read_to_string(table).ok()?;
        found(&table, peer, ours)
    }

    /// Columns: number, ours, theirs, state, queues, timer, retransmissions, user, time-out, inode.
    pub(super) fn found(table: &str, peer: SocketAddr, ours: SocketAddr) -> Option<u32> {
        let (peer, ours) = (shown(peer), shown(ours));
        let lines = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        let mut held = lines.filter_map(|columns| match columns.as_slice() {
            [_, one, other, state, _, _, _, user, _, inode, ..] if *one == peer && *other == ours => {
                let state = u8::from_str_radix(state, 16).ok()?;
                let held = HELD.contains(&state) && *inode != "0";
                held.then(|| user.parse().ok()).flatten()
            }
            _ => None,
        });
        held.next()
    }

    /// An address as the table shows it: words in the machine's own byte order.
    fn shown(address: SocketAddr) -> String {
        let mut out = String::new();
        let octets: &[u8] = match address.ip() {
            IpAddr::V4(address) => &address.octets(),
            IpAddr::V6(address) => &address.octets(),
        };
        for word in octets.as_chunks::<4>().0 {
            let _ = write!(out, "{:08X}", u32::from_ne_bytes(*word));
        }
        let _ = write!(out, ":{:04X}", address.port());
        out
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::io::Read;
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::linux::{asked, found, listed, question, told, unmapped};
    use super::*;

    /// A connection: the client's end, the served end, and the addresses of both as the served end sees them.
    fn connected(listen: &str) -> (TcpStream, TcpStream, SocketAddr, SocketAddr) {
        let listener = TcpListener::bind(listen).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (served, peer) = listener.accept().unwrap();
        let ours = served.local_addr().unwrap();
        (client, served, peer, ours)
    }

    /// WALL-6: both ways to find a user give the same result, in both address families.
    #[test]
    fn the_user_of_a_connection_is_found_both_ways() {
        let own = own_user();
        for listen in ["127.0.0.1:0", "127.1.2.3:0", "[::1]:0"] {
            let Ok(_) = TcpListener::bind(listen) else { continue };
            let (client, _served, peer, ours) = connected(listen);
            // On a kernel without `sock_diag` only the table is tested.
            if asked(peer, ours).is_some() {
                assert_eq!(asked(peer, ours), own, "{listen}");
            }
            assert_eq!((listed(peer, ours), owner(peer, ours)), (own, own), "{listen}");
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(owner(peer, ours), own, "half closed is still held");
            let other = SocketAddr::new(peer.ip(), 1);
            assert_eq!((asked(other, ours), listed(other, ours)), (None, None));
        }
    }

    /// WALL-6: a socket that no process holds any more has no user, and above all not root.
    #[test]
    fn a_socket_that_was_closed_has_no_user() {
        let (client, mut served, peer, ours) = connected("127.0.0.1:0");
        drop(client);
        assert_eq!(served.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!((asked(peer, ours), listed(peer, ours)), (None, None));
    }

    /// WALL-6: a socket that listens at the peer's address is not the peer.
    #[test]
    fn a_listener_is_not_taken_for_the_peer() {
        let (listener, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), "127.0.0.1:9".parse().unwrap());
        let address = listener.local_addr().unwrap();
        assert_eq!((asked(address, other), listed(address, other)), (None, None));
    }

    /// WALL-6: the query, in the kernel's layout, names the one socket at the peer's address that is connected to ours.
    #[test]
    fn a_question_names_one_socket() {
        #[track_caller]
        fn check(peer: &str, ours: &str, family: u8, addresses: [&[u8]; 2]) {
            let found = question(peer.parse().unwrap(), ours.parse().unwrap());
            let mut expected = [0; 72];
            expected[..4].copy_from_slice(&72_u32.to_ne_bytes());
            expected[4..6].copy_from_slice(&20_u16.to_ne_bytes());
            expected[6..8].copy_from_slice(&1_u16.to_ne_bytes());
            expected[16..18].copy_from_slice(&[family, 6]);
            expected[20..24].fill(0xff);
            expected[24..28].copy_from_slice(&[0x90, 0x00, 0x12, 0xf0]);
            for (at, address) in [28, 44].into_iter().zip(addresses) {
                expected[at..at + address.len()].copy_from_slice(address);
            }
            expected[64..].fill(0xff);
            assert_eq!(found, expected);
        }
        check("127.0.0.1:36864", "127.1.2.3:4848", 2, [&[127, 0, 0, 1], &[127, 1, 2, 3]]);
        let mut loopback = [0; 16];
        loopback[15] = 1;
        check("[::1]:36864", "[::1]:4848", 10, [&loopback, &loopback]);
    }

    /// WALL-6: the kernel's answer counts only if it is about the requested socket, and a process holds that socket.
    #[test]
    fn an_answer_counts_only_for_the_socket_in_question() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut Vec<u8>), expected: Option<u32>) {
            let (peer, ours) = ("127.0.0.1:36864".parse().unwrap(), "127.0.0.1:4848".parse().unwrap());
            let asked = question(peer, ours);
            let mut answer = vec![0; 88];
            answer[4..6].copy_from_slice(&20_u16.to_ne_bytes());
            answer[16..18].copy_from_slice(&[asked[16], 1]);
            answer[20..56].copy_from_slice(&asked[24..60]);
            answer[80..84].copy_from_slice(&1000_u32.to_ne_bytes());
            answer[84..88].copy_from_slice(&77_u32.to_ne_bytes());
            change(&mut answer);
            assert_eq!(told(&asked, &answer), expected);
        }
        check(|_| (), Some(1000));
        check(|answer| answer.extend([9; 40]), Some(1000));
        check(|answer| answer.truncate(87), None);
        check(|answer| answer[17] = 4, Some(1000));
        check(|answer| answer[17] = 5, Some(1000));
        for state in [0, 2, 3, 6, 7, 10] {
            check(|answer| answer[17] = state, None);
        }
        check(|answer| answer[4] ^= 1, None);
        check(|answer| answer[16] = 10, None);
        for at in [20, 23, 24, 40, 55] {
            check(|answer| answer[at] ^= 1, None);
        }
        check(|answer| answer[84..88].fill(0), None);
    }

    /// WALL-6: users that the namespace does not map share one user id, which belongs to no user.
    #[test]
    fn a_user_that_the_namespace_does_not_know_is_nobody() {
        #[track_caller]
        fn check(map: &str, number: &str, expected: Option<u32>) {
            assert_eq!(unmapped(map, number), expected, "{map:?} {number:?}");
        }
        check("         0          0 4294967295\n", "65534\n", None);
        check("         0       1000          1\n", "65534\n", Some(65_534));
        check("         0       1000          1\n", "99\n", Some(99));
        check("0 0 1\n1 100000 65536\n", "", Some(65_534));
        check("", "7", Some(7));
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let expected = unmapped(&read("/proc/self/uid_map"), &read("/proc/sys/kernel/overflowuid"));
        assert_eq!(unmapped_user(), expected);
        // Even a listed user id admits nobody if it is the shared one.
        let (_client, _served, peer, ours) = connected("127.0.0.1:0");
        let own = own_user().unwrap();
        for (nobody, expected) in
            [(None, PeerUser::Admitted(Some(own))), (Some(own), PeerUser::Refused(None))]
        {
            assert_eq!(LocalRule { admitted: Some(vec![own]), nobody }.judge(peer, ours), expected);
        }
    }

    #[test]
    fn a_row_of_the_table_counts_only_while_it_is_held() {
        let (peer, ours) = ("127.0.0.1:36864".parse().unwrap(), "127.0.0.1:4848".parse().unwrap());
        let row = |state: &str, user: &str, inode: &str| {
            let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
            let (one, other) = if cfg!(target_endian = "little") {
                ("0100007F:9000", "0100007F:12F0")
            } else {
                ("7F000001:9000", "7F000001:12F0")
            };
            let rest = "00000000:00000000 00:00000000 00000000";
            format!(
                "{head}\n   0: {one} {other} {state} {rest}  {user}        0 {inode} 1 0000000000000000\n"
            )
        };
        assert_eq!(found(&row("01", "1000", "77"), peer, ours), Some(1000));
        assert_eq!(found(&row("05", "1000", "77"), peer, ours), Some(1000));
        assert_eq!(found(&row("01", "0", "0"), peer, ours), None, "orphaned");
        assert_eq!(found(&row("06", "0", "0"), peer, ours), None, "in TIME_WAIT");
        assert_eq!(found(&row("02", "0", "5"), peer, ours), None, "another one that is still connecting");
        assert_eq!(found(&row("01", "1000", "77"), ours, peer), None, "our own end");
    }

    /// WALL-6: for root by `sudo`, the user who ran `sudo` counts too; for any other user `SUDO_UID` means nothing.
    #[test]
    fn who_is_the_same_user() {
        let settings = HttpSettings { sudo_uid: Some(4711), ..HttpSettings::default() };
        let rule = LocalRule::new(&settings);
        let own = own_user().unwrap();
        let expected = if own == 0 { vec![0, 4711] } else { vec![own] };
        assert_eq!(rule.admitted, Some(expected));
        let any = HttpSettings { local_users: LocalUsers::Any, ..settings };
        let nowhere = "127.0.0.1:1".parse().unwrap();
        assert_eq!(LocalRule::new(&any).judge(nowhere, nowhere), PeerUser::Admitted(None));
        assert_eq!(rule.judge(nowhere, nowhere), PeerUser::Refused(None));
    }
    /// ACC-1: whoever connects is one local user by name, over TCP and over a Unix socket, even where all users may call. A
    /// peer elsewhere is no local user.
    #[test]
    fn a_local_user_is_named() {
        let own = own_user().unwrap();
        let any = HttpSettings { local_users: LocalUsers::Any, ..HttpSettings::default() };
        let any = LocalRule { nobody: None, ..LocalRule::new(&any) };
        let (_client, _served, peer, ours) = connected("127.0.0.1:0");
        assert_eq!(any.judge(peer, ours), PeerUser::Admitted(Some(own)));
        assert_eq!(any.judge_user(Some(7)), PeerUser::Admitted(Some(7)));
        assert_eq!(any.judge_user(None), PeerUser::Admitted(None));
        let remote = "192.0.2.1:1".parse().unwrap();
        assert_eq!(any.judge(remote, ours), PeerUser::Refused(None));
        let some = LocalRule { admitted: Some(vec![7]), nobody: None };
        assert_eq!(some.judge_user(Some(7)), PeerUser::Admitted(Some(7)));
        assert_eq!(some.judge_user(Some(8)), PeerUser::Refused(Some(8)));
        assert_eq!(some.judge_user(None), PeerUser::Refused(None));
        assert_eq!((some.named(), any.named()), (&[7][..], &[][..]));
    }
}
