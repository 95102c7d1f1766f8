//! How a conversation with a server works for each cell, a pair of eras (client, server): one small type
//! each. The embedding program has the cells of a legacy client, because it is asked during its call.

use std::time::Duration;

use bridgehead_config::Roots;
use bridgehead_upstream::{Ready, Upstream};
use bridgehead_wire::{Abilities, Method, Object, Raw, RpcError, Spliced};

use super::conversation::Clocks;
use super::rewrite::{Input, declares_tasks};
use crate::caller::{Caller, ClientRequest};
use crate::dialogue::park::not_valid;
use crate::dialogue::rounds::{Configured, Next, Rounds, Stop};

/// What happens with a result that asks its client something.
pub(super) enum Answered {
    /// The client gets it as its result.
    PassOn,
    /// The client gets this instead: questions that the configuration answers are removed.
    Rest(Raw),
    /// The server is called again.
    Again(Next),
}

/// A pair of eras.
pub(super) trait Cell: Send {
    /// What the server may ask during the exchange.
    fn abilities(&self, caller: &Caller) -> Abilities;

    /// The error for a request that is not sent at all.
    fn refuses(&self, _request: &ClientRequest) -> Option<RpcError> {
        None
    }

    /// The params in the form that such a server expects.
    fn params(&self, _request: &ClientRequest, params: Spliced) -> Spliced {
        params
    }

    /// Called after the request was sent.
    fn sent(
        &self,
        _caller: &Caller,
        _upstream: &Upstream,
        _ready: &Ready,
    ) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Which kinds of results are accepted besides complete ones.
    fn input(&self) -> Input;

    /// Answers a result that asks something. A legacy server has no such results.
    fn asked(
        &mut self,
        _asks: &Object,
        _caller: &Caller,
        _request: &ClientRequest,
        _clocks: &mut Clocks<'_, '_>,
    ) -> impl Future<Output = Result<Answered, Stop>> + Send {
        std::future::ready(Ok(Answered::PassOn))
    }

    /// Called when the request has its result.
    fn done(&mut self, _caller: &Caller) {}
}

/// Both modern: questions, states and tasks pass unchanged, except for roots that the configuration has.
pub(super) struct Modern<'a> {
    tasks: bool,
    roots: Option<&'a Roots>,
    rounds: Rounds,
}

impl<'a> Modern<'a> {
    pub(super) fn new(request: &ClientRequest, ready: &Ready, roots: Option<&'a Roots>) -> Self {
        let declared = request.meta.client_capabilities.as_ref();
        let tasks = ready.tools.features.tasks
            && request.method == Method::ToolsCall
            && declared.is_some_and(declares_tasks);
        Self { tasks, roots, rounds: Rounds::default() }
    }
}

impl Cell for Modern<'_> {
    fn abilities(&self, _caller: &Caller) -> Abilities {
        Abilities::NONE
    }

    fn input(&self) -> Input {
        if self.tasks { Input::Task } else { Input::Relayed }
    }

    async fn asked(
        &mut self,
        asks: &Object,
        _caller: &Caller,
        request: &ClientRequest,
        _clocks: &mut Clocks<'_, '_>,
    ) -> Result<Answered, Stop> {
        let Some(roots) = self.roots else { return Ok(Answered::PassOn) };
        let given = request.params.get("inputResponses");
        Ok(match self.rounds.configured(asks, roots, given.as_ref())? {
            Configured::Nothing => Answered::PassOn,
            Configured::Rest(rest) => Answered::Rest(rest),
            Configured::Next(next) => Answered::Again(next),
        })
    }
}

/// Both legacy: the server asks during the call, and so the client is asked during its call.
pub(super) struct Legacy;

impl Cell for Legacy {
    fn abilities(&self, caller: &Caller) -> Abilities {
        caller.abilities()
    }

    /// A change of roots is reported with the next call, because then the client is there to answer
    /// questions.
    async fn sent(&self, caller: &Caller, upstream: &Upstream, ready: &Ready) {
        if upstream.is_session() && caller.session.take_roots_changed(upstream) {
            Box::pin(ready.link.notify(&Method::RootsListChanged, None)).await;
        }
    }

    fn input(&self) -> Input {
        Input::Refused
    }
}

/// Legacy client, modern server: the server asks through its result, and the client is asked during its call.
pub(super) struct InRounds<'a> {
    pub(super) roots: Option<&'a Roots>,
    /// How long the client has for an answer.
    pub(super) patience: Duration,
    pub(super) rounds: Rounds,
}

impl Cell for InRounds<'_> {
    fn abilities(&self, _caller: &Caller) -> Abilities {
        Abilities::NONE
    }

    fn input(&self) -> Input {
        Input::Relayed
    }

    async fn asked(
        &mut self,
        asks: &Object,
        caller: &Caller,
        _request: &ClientRequest,
        clocks: &mut Clocks<'_, '_>,
    ) -> Result<Answered, Stop> {
        // The server waits for nothing meanwhile, so the clocks of the call stop.
        let round = Box::pin(self.rounds.answer(asks, caller, self.roots, self.patience));
        clocks.pause_clocks(round).await.map_err(Stop::Evicted)?.map(Answered::Again)
    }

    fn done(&mut self, caller: &Caller) {
        self.rounds.done(caller);
    }
}

/// Modern client, legacy server: the server asks during the call, and the client is asked through its result.
pub(super) struct Parking;

impl Cell for Parking {
    /// The gateway must hear every question, because one that the client did not declare ends the call.
    fn abilities(&self, caller: &Caller) -> Abilities {
        caller.abilities().hearing_all()
    }

    /// Legacy servers issue no states, and the gateway's own states were handled earlier.
    fn refuses(&self, request: &ClientRequest) -> Option<RpcError> {
        request.params.get("requestState").map(|_| not_valid())
    }

    /// Removes answers: this server never asked.
    fn params(&self, request: &ClientRequest, params: Spliced) -> Spliced {
        if request.params.get("inputResponses").is_none() {
            return params;
        }
        let Ok(object) = Object::parse(&params.to_raw()) else { return params };
        let mut edit = object.edit();
        edit.remove("inputResponses");
        edit.finish()
    }

    fn input(&self) -> Input {
        Input::Refused
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::{RequestMeta, Revision};

    use super::*;
    use crate::access::Principal;
    use crate::caller::ClientTransport;
    use crate::life::session::Session;

    /// GATE-8, ERA-1: what each pair of eras lets a server ask and answer, which requests it refuses, and what it takes out
    /// of them.
    #[test]
    fn each_pair_of_eras_has_its_own_way() {
        #[track_caller]
        fn check(cell: &impl Cell, abilities: Abilities, input: Input, parks: bool) {
            let caller = Caller {
                principal: Principal::local(),
                revision: Revision::MODERN,
                transport: ClientTransport::Memory,
                session: Session::new(),
                questioner: None,
            };
            assert_eq!(cell.abilities(&caller), abilities);
            assert_eq!(cell.input(), input);
            let request = |text: &'static str| {
                let params = Object::parse(&Raw::literal(text)).unwrap();
                let meta = RequestMeta::read(Some(&params)).unwrap();
                ClientRequest { method: Method::ToolsCall, params, meta, id: None }
            };
            assert!(cell.refuses(&request("{}")).is_none());
            assert_eq!(cell.refuses(&request(r#"{"requestState":"s"}"#)).is_some(), parks);
            let text = r#"{"name":"t","inputResponses":{}}"#;
            let sent = cell.params(&request(text), Raw::literal(text).into()).to_raw();
            let expected = if parks { r#"{"name":"t"}"# } else { text };
            assert_eq!(sent.as_str(), expected);
        }
        let modern = |tasks| Modern { tasks, roots: None, rounds: Rounds::default() };
        check(&modern(false), Abilities::NONE, Input::Relayed, false);
        check(&modern(true), Abilities::NONE, Input::Task, false);
        check(&Legacy, Abilities::NONE, Input::Refused, false);
        let in_rounds = InRounds { roots: None, patience: Duration::ZERO, rounds: Rounds::default() };
        check(&in_rounds, Abilities::NONE, Input::Relayed, false);
        check(&Parking, Abilities::NONE.hearing_all(), Input::Refused, true);
    }
}
