//! A gateway with rules and scripted servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bridgehead_access::policy::Policy;
use bridgehead_config::{
    GatewaySettings, Launch, PolicyRule, Secret, ServerConfig, Stdio, ThingPattern, Who,
};
use bridgehead_gateway::{
    Authorizer, Caller, ClientRequest, ClientTransport, Feed, Gateway, Options, Principal, PrincipalKind,
    ProgressSink, Session,
};
use bridgehead_testkit::client::modern_params;
use bridgehead_testkit::{LeakCheck, Mock, Recorder};
use bridgehead_wire::{Id, Object, Raw, RequestMeta, Revision};
use bytes::Bytes;
use serde_json::{Value, json};

pub(crate) const LEGACY: Revision = Revision::V2025_11_25;
pub(crate) const MODERN: Revision = Revision::MODERN;

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) policy: Arc<Policy>,
    pub(crate) recorder: Recorder,
    leaks: LeakCheck,
}

impl World {
    pub(crate) fn start(servers: &[(&str, Mock)], rules: Vec<PolicyRule>) -> Self {
        Self::start_with(servers, rules, |_| ())
    }

    pub(crate) fn start_with(
        servers: &[(&str, Mock)],
        rules: Vec<PolicyRule>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
        let policy = Arc::new(Policy::new(rules).unwrap());
        let mut options = Options {
            servers: servers.iter().map(|(name, mock)| server(name, mock, &leaks)).collect(),
            audit: Arc::new(recorder.clone()),
            environment: Some(BTreeMap::new()),
            authorizer: Some(Arc::clone(&policy) as Arc<dyn Authorizer>),
            ..Options::default()
        };
        change(&mut options);
        let gateway = Gateway::new(options).unwrap();
        gateway.start();
        Self { gateway, policy, recorder, leaks }
    }

    /// Replaces the rules as a reload does.
    pub(crate) fn reload(&self, rules: Vec<PolicyRule>) {
        assert_eq!(self.policy.replace(rules), Ok(true));
        self.gateway.policy_changed();
    }

    /// The code and the message of the last exit in the record.
    pub(crate) fn last_failure(&self) -> (String, String) {
        match self.recorder.exits().last().unwrap().outcome() {
            bridgehead_call::Outcome::Error { code, message, .. } => (code.to_string(), message.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until no server is starting any more.
    #[track_caller]
    pub(crate) fn settled(&self) -> impl Future<Output = ()> {
        bridgehead_testkit::soon("the end of all starts", self.gateway.settled())
    }

    pub(crate) async fn end(self) {
        let Self { gateway, leaks, recorder, .. } = self;
        bridgehead_testkit::soon("the end of the gateway", gateway.stop()).await;
        drop(gateway);
        leaks.assert_clean().await;
        recorder.assert_paired();
    }
}

fn server(name: &str, mock: &Mock, leaks: &LeakCheck) -> ServerConfig {
    let (program, args) = mock.command();
    let mut stdio = Stdio::new(program.to_str().unwrap(), args);
    let marker = leaks.marker();
    for (name, value) in mock.env().into_iter().chain([marker]) {
        stdio.env.insert(name, Secret::new(value));
    }
    ServerConfig::new(name.parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
}

/// A client of a principal.
pub(crate) struct Client {
    pub(crate) principal: Principal,
    pub(crate) revision: Revision,
    pub(crate) session: Session,
    pub(crate) capabilities: Value,
}

impl Client {
    pub(crate) fn new(principal: &Principal, revision: Revision) -> Self {
        Self { principal: principal.clone(), revision, session: Session::new(), capabilities: json!({}) }
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller {
            principal: self.principal.clone(),
            revision: self.revision,
            transport: ClientTransport::Memory,
            session: self.session.clone(),
            questioner: None,
        }
    }

    pub(crate) fn request(&self, method: &str, mut params: Value, id: Option<&str>) -> ClientRequest {
        if self.revision == MODERN {
            params["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities": self.capabilities});
            params = modern_params(params);
        }
        let params = Object::parse(&Raw::encode(&params)).unwrap();
        let meta = RequestMeta::read(Some(&params)).unwrap();
        ClientRequest { method: method.into(), params, meta, id: id.and_then(|id| Id::new(Raw::string(id))) }
    }

    /// The result, or the whole error.
    pub(crate) async fn ask(&self, world: &World, method: &str, params: Value) -> Result<Value, Value> {
        let request = self.request(method, params, None);
        let caller = self.caller();
        let answer = world.gateway.answer(&caller, &request, None);
        match bridgehead_testkit::soon(&format!("the answer to {method}"), answer).await {
            Ok(result) => Ok(result.to_raw().decode().unwrap()),
            Err(error) => Err(error.body().decode().unwrap()),
        }
    }

    /// The names in a list.
    pub(crate) async fn list(&self, world: &World, method: &str, member: &str, name: &str) -> Vec<String> {
        let list = self.ask(world, method, json!({})).await.unwrap();
        list[member].as_array().unwrap().iter().map(|one| one[name].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn feed(&self, world: &World) -> Feed {
        world.gateway.feed(&self.principal, &self.session)
    }

    /// Opens a `subscriptions/listen`.
    pub(crate) fn listen(
        &self,
        world: &World,
        filter: &Value,
    ) -> (tokio::sync::mpsc::Receiver<Bytes>, tokio::task::JoinHandle<bool>) {
        let (sink, notes) = ProgressSink::channel(8);
        let (gateway, caller) = (world.gateway.clone(), self.caller());
        let request = self.request("subscriptions/listen", json!({"notifications": filter}), Some("l"));
        (notes, tokio::spawn(async move { gateway.answer(&caller, &request, Some(sink)).await.is_ok() }))
    }
}

pub(crate) fn user(name: &str) -> Principal {
    Principal::new(&format!("corp/{name}"), PrincipalKind::Issuer)
}

/// A rule for one user that says nothing yet.
pub(crate) fn rule(user: &str, line: usize) -> PolicyRule {
    let who = match user {
        "*" => Who::Everyone,
        subject => Who::Subject { issuer: "corp".to_owned(), subject: subject.to_owned() },
    };
    PolicyRule {
        who: vec![who],
        tools: Vec::new(),
        prompts: Vec::new(),
        resources: Vec::new(),
        deny_tools: Vec::new(),
        deny_prompts: Vec::new(),
        deny_resources: Vec::new(),
        scopes: Vec::new(),
        read_only: false,
        line,
    }
}

pub(crate) fn on(written: &[&str]) -> Vec<ThingPattern> {
    let pattern = |written: &&str| {
        let (server, name) = written.split_once('/').unwrap();
        ThingPattern { server: server.to_owned(), name: name.to_owned() }
    };
    written.iter().map(pattern).collect()
}

/// A rule that allows everything of a colour, of every kind.
pub(crate) fn colour(user: &str, line: usize, colour: &str) -> PolicyRule {
    let all = on(&[&format!("m/{colour}*")]);
    PolicyRule { tools: all.clone(), prompts: all.clone(), resources: all, ..rule(user, line) }
}

#[track_caller]
pub(crate) fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    bridgehead_testkit::soon("what follows here", what)
}

pub(crate) fn decoded(message: &Bytes) -> Value {
    serde_json::from_slice(message).unwrap()
}
