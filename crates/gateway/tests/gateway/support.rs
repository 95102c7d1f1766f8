//! A gateway with scripted servers behind it, called as a front calls it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{EraChoice, GatewaySettings, Launch, Remote, Secret, ServerConfig, Stdio};
use bridgehead_gateway::{
    Caller, ClientRequest, ClientTransport, Gateway, Options, Principal, ProgressSink, Session,
};
use bridgehead_testkit::{Carrier, LeakCheck, Mock, Recorder, Served, soon};
use bridgehead_wire::{Object, Raw, RequestMeta, Revision, RpcError};
use serde_json::{Value, json};

/// A started gateway. It ends by [`Fixture::end`], which also checks for leftovers; a test that forgets to call it
/// fails.
pub(crate) struct Fixture {
    pub(crate) gateway: Gateway,
    pub(crate) recorder: Recorder,
    leaks: LeakCheck,
}

/// A server entry that runs a mock.
pub(crate) fn server(name: &str, mock: &Mock, leaks: &LeakCheck) -> ServerConfig {
    let (program, args) = mock.command();
    let mut stdio = Stdio::new(program.to_str().unwrap(), args);
    let (mark, value) = leaks.marker();
    let marker = (mark, value);
    for (name, value) in mock.env().into_iter().chain([marker]) {
        stdio.env.insert(name, Secret::new(value));
    }
    ServerConfig::new(name.parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
}

/// A server entry for a legacy server at an address.
pub(crate) fn at(name: &str, url: &str) -> ServerConfig {
    let launch = Launch::Remote(Remote::new(url.parse().unwrap()));
    let mut server = ServerConfig::new(name.parse().unwrap(), launch, &GatewaySettings::default());
    server.era = EraChoice::Legacy;
    server
}

/// The names of the servers of [`everywhere`], by transport.
pub(crate) const TRANSPORTS: [&str; 4] = ["stdio", "http", "sse", "ws"];

/// A gateway with the same legacy mock on every transport.
pub(crate) async fn everywhere(
    mock: impl Fn() -> Mock,
    change: impl Fn(&mut ServerConfig),
) -> (Fixture, [Served; 3]) {
    let served = [Carrier::Http, Carrier::Sse, Carrier::WebSocket].map(|carrier| mock().serve(carrier));
    let fixture = Fixture::start(&[("stdio", mock())], |options| {
        for (name, served) in TRANSPORTS[1..].iter().zip(&served) {
            let mut server = at(name, &served.url());
            if let ("sse", Launch::Remote(remote)) = (*name, &mut server.launch) {
                remote.transport = bridgehead_config::RemoteTransport::Sse;
            }
            options.servers.push(server);
        }
        options.servers.iter_mut().for_each(change);
    });
    fixture.settled().await;
    (fixture, served)
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn until(fits: impl Fn() -> bool) -> impl Future<Output = ()> {
    soon("the condition here", async move {
        while !fits() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
}

impl Fixture {
    pub(crate) fn start(servers: &[(&str, Mock)], change: impl FnOnce(&mut Options)) -> Self {
        let leaks = LeakCheck::start().required();
        let recorder = Recorder::new();
        let mut options = Options {
            servers: servers.iter().map(|(name, mock)| server(name, mock, &leaks)).collect(),
            audit: Arc::new(recorder.clone()),
            // Nothing of the machine: no list of a lazy server is cached.
            environment: Some(BTreeMap::new()),
            ..Options::default()
        };
        change(&mut options);
        let gateway = Gateway::new(options).unwrap();
        gateway.start();
        Self { gateway, recorder, leaks }
    }

    /// Waits until no server is starting any more.
    #[track_caller]
    pub(crate) fn settled(&self) -> impl Future<Output = ()> {
        soon("the end of all starts", self.gateway.settled())
    }

    pub(crate) async fn ask(&self, revision: Revision, method: &str, params: Value) -> Result<Raw, RpcError> {
        self.ask_with(revision, method, params, None).await
    }

    pub(crate) async fn ask_with(
        &self,
        revision: Revision,
        method: &str,
        params: Value,
        progress: Option<ProgressSink>,
    ) -> Result<Raw, RpcError> {
        ask(&self.gateway, revision, method, params, progress).await
    }

    /// Sends a request as a modern client of a principal; returns the decoded result.
    pub(crate) async fn ask_as(&self, principal: &str, method: &str, params: Value) -> Value {
        let params = Object::parse(&Raw::encode(&params)).unwrap();
        let meta = RequestMeta::read(Some(&params)).unwrap();
        let caller = Caller {
            principal: Principal::named(principal),
            revision: Revision::MODERN,
            transport: ClientTransport::Memory,
            session: Session::new(),
            questioner: None,
        };
        let request = ClientRequest { method: method.into(), params, meta, id: None };
        let answer = self.gateway.answer(&caller, &request, None);
        let result = soon(&format!("the answer to {method}"), answer).await;
        result.unwrap_or_else(|error| panic!("{}", error.body().as_str())).to_raw().decode().unwrap()
    }

    /// Calls a tool as a legacy client; returns the decoded answer.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<Value, Value> {
        let params = json!({"name": tool, "arguments": arguments});
        match self.ask(Revision::V2025_11_25, "tools/call", params).await {
            Ok(result) => Ok(result.decode().unwrap()),
            Err(error) => Err(error.body().decode().unwrap()),
        }
    }

    /// Calls a tool as a client of a session; returns the text of the answer, or the error.
    pub(crate) async fn call_as(
        &self,
        session: &Session,
        revision: Revision,
        tool: &str,
    ) -> Result<String, Value> {
        call_as(&self.gateway, session, revision, tool).await
    }

    /// The tool names that a legacy client sees.
    pub(crate) async fn names(&self) -> Vec<String> {
        let list: Value =
            self.ask(Revision::V2025_11_25, "tools/list", json!({})).await.unwrap().decode().unwrap();
        list["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) async fn end(self) {
        let recorder = self.recorder.clone();
        self.end_unpaired().await;
        recorder.assert_paired();
    }

    /// The same after the sink has failed, which leaves events without their counterpart.
    pub(crate) async fn end_unpaired(self) {
        let Self { gateway, leaks, .. } = self;
        soon("the end of the gateway", gateway.stop()).await;
        drop(gateway);
        leaks.assert_clean().await;
    }
}

pub(crate) async fn ask(
    gateway: &Gateway,
    revision: Revision,
    method: &str,
    params: Value,
    progress: Option<ProgressSink>,
) -> Result<Raw, RpcError> {
    let params = Raw::encode(&params);
    soon(&format!("the answer to {method}"), ask_raw(gateway, revision, method, &params, progress)).await
}

pub(crate) async fn ask_raw(
    gateway: &Gateway,
    revision: Revision,
    method: &str,
    params: &Raw,
    progress: Option<ProgressSink>,
) -> Result<Raw, RpcError> {
    let params = Object::parse(params).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    let caller = Caller {
        principal: Principal::local(),
        revision,
        transport: ClientTransport::Memory,
        session: Session::new(),
        questioner: None,
    };
    let request = ClientRequest { method: method.into(), params, meta, id: None };
    gateway.answer(&caller, &request, progress).await.map(|result| result.to_raw())
}

/// Calls a tool as a client of a session; returns the text of the answer, or the error.
pub(crate) async fn call_as(
    gateway: &Gateway,
    session: &Session,
    revision: Revision,
    tool: &str,
) -> Result<String, Value> {
    let params = Object::parse(&Raw::encode(&json!({"name": tool, "arguments": {}}))).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    let caller = Caller {
        principal: Principal::local(),
        revision,
        transport: ClientTransport::Memory,
        session: session.clone(),
        questioner: None,
    };
    let request = ClientRequest { method: "tools/call".into(), params, meta, id: None };
    match soon(&format!("the answer of {tool}"), gateway.answer(&caller, &request, None)).await {
        Ok(result) => {
            let result: Value = result.to_raw().decode().unwrap();
            Ok(result["content"][0]["text"].as_str().unwrap_or_default().to_owned())
        }
        Err(error) => Err(error.body().decode().unwrap()),
    }
}
