//! Checks that confined servers cannot use the gateway's own HTTP endpoint.
//!
//! A confined server with network access reaches every port of this machine, including the gateway's own. Without credentials
//! it could call the tools of other servers there, and so gain their access. So the gateway does not start with such a
//! server if one of its listeners asks for no credentials, or if the server can read the token. The same holds for Unix sockets
//! that the server's file access covers. Keys are stored as digests, so reading them gains nothing. A server that is not confined
//! gains nothing this way either.

use std::path::{Path, PathBuf};

use bridgehead_config::{
    HttpSettings, ListenAddress, ListenerAuth, Network, ServerConfig, ServerName, TokenSource,
};

/// A confined server could call the gateway that it serves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Exposed {
    /// No credentials are required at a listener.
    #[error(
        "server `{server}` is confined but has the network, so it could call this gateway at {listen} and run the \
         tools of other servers: ask for a token with `http.token_file` (a missing file is created), \
         `http.token_env` or BRIDGEHEAD_HTTP_TOKEN, or for keys (`bridgehead key new NAME`), or give the server \
         `network = \"none\"`, or serve without HTTP (`serve --stdio`)"
    )]
    NoToken {
        /// The server.
        server: ServerName,
        /// The listener's address, or `unix:PATH`.
        listen: String,
    },
    /// The server may read the token.
    #[error(
        "server `{server}` is confined but has the network and may read the token of this gateway in `{}`, so it \
         could call it and run the tools of other servers: move the file, narrow the server's `files`, pass the \
         token by `http.token_env` instead, or give the server `network = \"none\"`",
        file.display()
    )]
    TokenReadable {
        /// The server.
        server: ServerName,
        /// The file with the token.
        file: PathBuf,
    },
}

/// Fails if a confined server could call the gateway. `asks` says whether `[auth]` refuses callers without credentials.
pub fn check_endpoint(servers: &[ServerConfig], http: &HttpSettings, asks: bool) -> Result<(), Exposed> {
    let confined = servers.iter().filter_map(|server| match &server.confinement {
        Some(confinement) if confinement.network == Network::Full => Some((server, confinement)),
        _ => None,
    });
    for (server, confinement) in confined {
        let reads = |file: &Path| match &confinement.files {
            None => true,
            Some(files) => files.read.iter().chain(&files.write).any(|path| covers(path, file)),
        };
        if let Some(listen) = open_listener(http, asks, reads) {
            return Err(Exposed::NoToken { server: server.name.clone(), listen });
        }
        // Servers do not get the variable of a token, and confined servers cannot read the gateway's memory.
        if let TokenSource::File(file) = &http.token
            && reads(file)
        {
            return Err(Exposed::TokenReadable { server: server.name.clone(), file: file.clone() });
        }
    }
    Ok(())
}

/// The first listener that asks for no credentials and can be reached by a program with the network and these files.
fn open_listener(http: &HttpSettings, asks: bool, reads: impl Fn(&Path) -> bool) -> Option<String> {
    let asks = asks || http.token != TokenSource::None;
    if !asks {
        return Some(http.listen.to_string());
    }
    http.listeners.iter().find_map(|listener| match (&listener.listen, listener.auth) {
        (_, None | Some(ListenerAuth::Required)) => None,
        (ListenAddress::Tcp(address), Some(ListenerAuth::Open)) => Some(address.to_string()),
        (ListenAddress::Unix(path), Some(ListenerAuth::Open)) => {
            reads(path).then(|| format!("unix:{}", path.display()))
        }
    })
}

/// Whether `file`, which may not exist yet, lies under `path`.
fn covers(path: &Path, file: &Path) -> bool {
    let real = |path: &Path| path.canonicalize();
    let file = real(file).or_else(|error| match (file.parent(), file.file_name()) {
        (Some(folder), Some(name)) => real(folder).map(|folder| folder.join(name)),
        _ => Err(error),
    });
    // A path that cannot be resolved counts as covering, to be safe.
    match (real(path), file) {
        (Ok(path), Ok(file)) => file.starts_with(path),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_config::{Confinement, FileAccess, GatewaySettings, Launch, Secret, Stdio};

    use super::*;

    fn server(confinement: Option<Confinement>) -> ServerConfig {
        let launch = Launch::Stdio(Stdio::new("x", ["y"]));
        let mut server = ServerConfig::new("walled".parse().unwrap(), launch, &GatewaySettings::default());
        server.confinement = confinement;
        server
    }

    fn confined(read: &[&Path], network: Network) -> Option<Confinement> {
        let read = read.iter().map(|path| path.to_path_buf()).collect();
        let files = Some(FileAccess { read, write: Vec::new() });
        Some(Confinement { files, network, ..Confinement::default() })
    }

    /// WALL-5: a confined server with network needs a token that it cannot read between itself and the endpoint.
    #[test]
    fn a_confined_server_with_network_must_not_reach_the_endpoint() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("project"), folder.path().join("secrets"));
        for folder in [&inside, &outside] {
            std::fs::create_dir(folder).unwrap();
        }
        std::os::unix::fs::symlink(inside.join("token"), outside.join("link")).unwrap();
        std::fs::write(inside.join("token"), "t").unwrap();
        let with = |token| HttpSettings { token, ..HttpSettings::default() };
        let check = |confinement: Option<Confinement>, token: TokenSource| {
            check_endpoint(&[server(None), server(confinement)], &with(token), false)
                .map_err(|error| error.to_string())
        };
        let variable = || TokenSource::Env { name: "T".to_owned(), value: Secret::new("t") };
        let file = |path: PathBuf| TokenSource::File(path);

        let refused = check(confined(&[&inside], Network::Full), TokenSource::None).unwrap_err();
        for part in ["`walled`", "127.0.0.1:4848", "http.token_file", "network = \"none\"", "--stdio"] {
            assert!(refused.contains(part), "{refused}");
        }
        assert_eq!(check(None, TokenSource::None), Ok(()), "not confined at all");
        assert_eq!(check(confined(&[&inside], Network::None), TokenSource::None), Ok(()));
        assert_eq!(check(confined(&[&inside], Network::Full), variable()), Ok(()));
        assert_eq!(check(confined(&[&inside], Network::Full), file(outside.join("token"))), Ok(()));
        for readable in [inside.join("token"), inside.join("new"), outside.join("link")] {
            let refused = check(confined(&[&inside], Network::Full), file(readable.clone())).unwrap_err();
            assert!(
                refused.contains("`walled`") && refused.contains(readable.to_str().unwrap()),
                "{refused}"
            );
        }
        assert!(check(confined(&[Path::new("/")], Network::Full), file(outside.join("token"))).is_err());
        assert_eq!(check(confined(&[Path::new("/")], Network::Full), variable()), Ok(()));
    }
    /// WALL-5, ACC-6: the rule holds for every listener, and credentials of `[auth]` count like a token.
    #[test]
    fn an_open_listener_must_not_be_reached_either() {
        use bridgehead_config::Listener;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("gate.sock");
        let check = |listen: Option<(ListenAddress, Option<ListenerAuth>)>, asks: bool| {
            let listeners = listen
                .map(|(listen, auth)| Listener { name: "extra".to_owned(), listen, auth, tls: None })
                .into_iter();
            let http = HttpSettings { listeners: listeners.collect(), ..HttpSettings::default() };
            let elsewhere = folder.path().join("other");
            std::fs::create_dir_all(&elsewhere).unwrap();
            [&*elsewhere, folder.path()]
                .map(|read| check_endpoint(&[server(confined(&[read], Network::Full))], &http, asks).is_ok())
        };
        let tcp = || ListenAddress::Tcp("127.0.0.1:1".parse().unwrap());
        let unix = || ListenAddress::Unix(socket.clone());
        assert_eq!(check(None, true), [true, true]);
        assert_eq!(check(None, false), [false, false]);
        for auth in [None, Some(ListenerAuth::Required)] {
            assert_eq!(check(Some((tcp(), auth)), true), [true, true]);
        }
        assert_eq!(check(Some((tcp(), Some(ListenerAuth::Open))), true), [false, false]);
        assert_eq!(check(Some((unix(), Some(ListenerAuth::Open))), true), [true, false]);
        assert_eq!(check(Some((unix(), None)), true), [true, true]);
    }
}
