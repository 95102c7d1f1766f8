//! What a configuration gets that needs a feature which is not built in. `cargo xtask features` builds and runs these tests: a
//! usual run of the tests has every feature.
#![cfg(not(any(feature = "http", feature = "sandbox")))]

use std::sync::Arc;

use bridgehead_call::SystemClock;
use bridgehead_config::{Confinement, Isolation, Launch, Network, OnMissing, Remote, Stdio};
use bridgehead_events::Bus;
use bridgehead_upstream::bridge::{ConnectOptions, connect_to_server};
use bridgehead_upstream::provider::{McpProvider, ProviderAdapter, ProviderConfig, ProviderError};
use bridgehead_wire::Code;

async fn init(change: impl FnOnce(&mut ProviderConfig), endpoint: Launch) -> ProviderError {
    let mut config = ProviderConfig::new("far".parse().unwrap(), endpoint);
    change(&mut config);
    let provider = McpProvider::new(Bus::new(Arc::new(SystemClock::default())));
    provider.init(config).await.unwrap_err()
}

/// LIB-3: without the feature `http` a `url` is refused at once, over every transport and in every isolation. The error names
/// the address and the feature.
#[tokio::test]
async fn a_url_needs_http() {
    for scheme in ["http", "https", "ws"] {
        let url = &format!("{scheme}://127.0.0.1:1/mcp");
        let error = connect_to_server(url, ConnectOptions::default()).await.unwrap_err();
        let cure = format!(
            "the `url` {scheme}://127.0.0.1:1/… cannot be reached, because this program is built without connections to \
             remote servers: build it with the feature `http`"
        );
        assert!(error.to_string().ends_with(&cure) && !error.retryable(), "{error}");
        for isolation in [Isolation::Call, Isolation::Shared, Isolation::Session] {
            let remote = Launch::Remote(Remote::new(url.parse().unwrap()));
            let error = init(|config| config.isolation = isolation, remote).await;
            assert_eq!(error.code, Code::ProviderInitFailed, "{error}");
            assert!(error.message.starts_with("server `far` ") && error.message.contains(&cure), "{error}");
        }
    }
}

/// LIB-3: without the feature `sandbox` a server that must be confined does not start, not even with `on_missing = "degrade"`.
/// The error names the program and the feature.
#[tokio::test]
async fn a_confinement_needs_sandbox() {
    for on_missing in [OnMissing::Refuse, OnMissing::Degrade] {
        let asked = Confinement { network: Network::None, on_missing, ..Confinement::default() };
        let program = Launch::Stdio(Stdio::new("/bin/cat", [""; 0]));
        let error = init(|config| config.confinement = Some(asked), program).await;
        assert_eq!(error.code, Code::SandboxUnavailable, "{error}");
        for part in
            ["server `far`", "program `/bin/cat` was not started", "build it with the feature `sandbox`"]
        {
            assert!(error.message.contains(part), "{error}");
        }
    }
}
