//! Asks a legacy client the questions of a modern server, inside the client's open call.
//!
//! A modern server keeps no state: it answers with its questions and a state, and is called again with the
//! answers and that state, byte for byte. The client sees requests on the stream of its call and then one
//! result. Everything is bounded: the number of rounds, the questions in each round, and the time to answer.
//!
//! If the configuration has roots for a server, no client of either era is asked for roots. Other questions
//! of the same round still go to the client.

use std::time::Duration;

use bridgehead_call::Evicted;
use bridgehead_config::Roots;
use bridgehead_wire::{Method, Object, Raw, Revision, RpcError, Spliced};
use futures_util::future::join_all;
use tracing::debug;

use crate::caller::Caller;
use crate::dialogue::park::answers;
use crate::dialogue::questioner::Questioner;
use crate::dialogue::questions::{self, MOST, in_time};

/// The maximum number of rounds for one call.
const MOST_ROUNDS: u32 = 10;
/// The first pause before calling a server again that asked nothing new; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often such a server is called again: for about ten minutes.
const MOST_PAUSES: u32 = 120;

/// The rounds of one call.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    asked: u32,
    pauses: u32,
    visits: Vec<Visit>,
    /// The keys of questions that were answered with the configured roots.
    told: Vec<String>,
}

/// A page that the user agreed to open.
#[derive(Debug)]
struct Visit {
    key: String,
    url: String,
    id: String,
}

/// What the server is called with next.
#[derive(Debug)]
pub(crate) struct Next {
    responses: Option<Raw>,
    state: Option<Raw>,
    /// How long to wait before the call.
    pub(crate) pause: Option<Duration>,
}

/// What happens with a round that a modern client would be asked.
#[derive(Debug)]
pub(crate) enum Configured {
    /// The configuration answers none of its questions.
    Nothing,
    /// The server is called again; the client is not asked.
    Next(Next),
    /// The result without the questions that the configuration answers.
    Rest(Raw),
}

/// Why there is no next round.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The server's questions cannot be used.
    Unusable(String),
    /// The client did not answer a question that needs an answer.
    Unanswered(Method, RpcError),
    /// The call made way for another while it waited for its client.
    Evicted(Evicted),
}

/// One question of a round.
struct Question {
    key: String,
    method: Method,
    params: Option<Raw>,
    /// The page that the user is to open, for a question of that kind.
    url: Option<String>,
}

impl Rounds {
    /// Asks the questions of `result`, except for roots that the configuration has.
    pub(crate) async fn answer(
        &mut self,
        result: &Object,
        caller: &Caller,
        roots: Option<&Roots>,
        patience: Duration,
    ) -> Result<Next, Stop> {
        let questions = read(result)?;
        let state = state(result);
        if questions.is_empty() {
            if state.is_none() {
                return Err(Stop::Unusable(
                    "it asks for input but sends neither questions nor a state".into(),
                ));
            }
            return Ok(Next { responses: None, state, pause: Some(self.pause()?) });
        }
        let mut responses: Vec<(String, Raw)> = Vec::new();
        let mut questions = questions;
        if let Some(roots) = roots {
            let ours = questions.extract_if(.., |one| one.method == Method::RootsList);
            responses.extend(ours.map(|one| (one.key, told(roots))));
        }
        if questions.is_empty() {
            self.count()?;
            return Ok(Next { responses: Some(object_of(&responses)?), state, pause: None });
        }
        let Some(questioner) = &caller.questioner else {
            return Err(Stop::Unusable("it asks for input, which this client did not declare".into()));
        };
        let abilities = questioner.abilities();
        if let Some(question) =
            questions.iter().find(|question| !abilities.covers(&question.method, question.params.as_ref()))
        {
            let method = &question.method;
            return Err(Stop::Unusable(format!("it asks for `{method}`, which this client did not declare")));
        }
        let (known, new): (Vec<_>, Vec<_>) = questions.into_iter().partition(|one| self.was_visited(one));
        responses.extend(known.into_iter().map(|one| (one.key, Raw::literal(r#"{"action":"accept"}"#))));
        let pause = if new.is_empty() { Some(self.pause()?) } else { None };
        if !new.is_empty() {
            self.count()?;
            self.ask(new, questioner, caller.revision, patience, &mut responses).await?;
        }
        Ok(Next { responses: Some(object_of(&responses)?), state, pause })
    }

    /// Answers `result` for a modern client as far as the configuration can. `given` holds the answers in the
    /// client's request: a server that got them without the roots it also asked for asks again, and then gets
    /// both.
    pub(crate) fn configured(
        &mut self,
        result: &Object,
        roots: &Roots,
        given: Option<&Raw>,
    ) -> Result<Configured, Stop> {
        // The gateway does not judge what passes between modern sides: the client gets a result that cannot
        // be parsed.
        let Ok(questions) = read(result) else { return Ok(Configured::Nothing) };
        let (ours, rest): (Vec<_>, Vec<_>) =
            questions.into_iter().partition(|one| one.method == Method::RootsList);
        if ours.is_empty() {
            return Ok(Configured::Nothing);
        }
        let given = given.and_then(|given| Object::parse(given).ok()).unwrap_or_else(Object::empty);
        let is_new = ours.iter().any(|one| !self.told.contains(&one.key));
        let is_given = rest.iter().all(|one| given.get(&one.key).is_some());
        if !(rest.is_empty() || is_new && is_given) {
            return Ok(Configured::Rest(without(result, &ours)));
        }
        self.count()?;
        let mut responses: Vec<(String, Raw)> =
            given.members().filter(|(key, _)| !ours.iter().any(|one| one.key == *key)).collect();
        for one in ours {
            responses.push((one.key.clone(), told(roots)));
            self.told.push(one.key);
        }
        let responses = object_of(&responses)?;
        Ok(Configured::Next(Next { responses: Some(responses), state: state(result), pause: None }))
    }

    /// Counts one more round.
    fn count(&mut self) -> Result<(), Stop> {
        self.asked += 1;
        if self.asked > MOST_ROUNDS {
            return Err(Stop::Unusable(format!("it has asked {MOST_ROUNDS} times and asks again")));
        }
        Ok(())
    }

    async fn ask(
        &mut self,
        questions: Vec<Question>,
        questioner: &Questioner,
        revision: Revision,
        patience: Duration,
        responses: &mut Vec<(String, Raw)>,
    ) -> Result<(), Stop> {
        debug!(questions = questions.len(), round = self.asked, "the client is asked for a modern server");
        let asked = questions.into_iter().map(|question| {
            let visit = question.url.as_ref().map(|_| uuid::Uuid::new_v4().to_string());
            let params =
                questions::params_for(&question.method, question.params.as_ref(), revision, visit.as_deref());
            let answer =
                in_time(&question.method, questioner.ask(&question.method, &params, patience), patience);
            async move { (question, visit, answer.await) }
        });
        for (question, visit, answer) in join_all(asked).await {
            let answer = match answer {
                Ok(answer) if answers(&question.method, &answer) => answer,
                // A missing answer counts as "cancel", which a server accepts as an answer.
                _ if question.method == Method::Elicit => Raw::literal(r#"{"action":"cancel"}"#),
                Ok(_) => {
                    let reason = RpcError::new(
                        bridgehead_wire::code::INTERNAL_ERROR,
                        "the client's answer is malformed",
                    );
                    return Err(Stop::Unanswered(question.method, reason));
                }
                Err(error) => return Err(Stop::Unanswered(question.method, error)),
            };
            if let (Some(url), Some(id)) = (question.url, visit)
                && answer.decode::<Action>().is_ok_and(|answer| answer.action == "accept")
            {
                self.visits.push(Visit { key: question.key.clone(), url, id });
            }
            responses.push((question.key, answer));
        }
        Ok(())
    }

    /// The user is not asked twice to open a page: the server waits for what the user does there.
    fn was_visited(&self, question: &Question) -> bool {
        self.visits.iter().any(|visit| visit.key == question.key && Some(&visit.url) == question.url.as_ref())
    }

    fn pause(&mut self) -> Result<Duration, Stop> {
        self.pauses += 1;
        if self.pauses > MOST_PAUSES {
            return Err(Stop::Unusable("it keeps postponing the call".into()));
        }
        Ok((FIRST_PAUSE * 2_u32.saturating_pow(self.pauses.min(16) - 1)).min(LONGEST_PAUSE))
    }

    /// Tells the client that the pages it was sent to are done.
    pub(crate) fn done(&mut self, caller: &Caller) {
        let Some(questioner) = caller.questioner.as_ref().filter(|_| !self.visits.is_empty()) else { return };
        for visit in std::mem::take(&mut self.visits) {
            let params = Raw::encode(&serde_json::json!({"elicitationId": visit.id}));
            questioner.tell(&Method::ElicitationComplete, &params.into());
        }
    }
}

/// Asks the user to open the pages that a 2025-11-25 server named in its refusal. Returns whether the user
/// agreed to all of them, so that the call may be repeated. The error is for the client, if it cannot be
/// asked.
pub(crate) async fn visit(refusal: &RpcError, caller: &Caller, patience: Duration) -> Result<bool, RpcError> {
    #[derive(serde::Deserialize)]
    struct Pages {
        elicitations: Vec<serde_json::Value>,
    }
    let pages = refusal.data().and_then(|data| data.decode::<Pages>().ok()).map(|pages| pages.elicitations);
    let pages: Vec<Raw> = pages.unwrap_or_default().iter().map(Raw::encode).take(MOST).collect();
    if pages.is_empty() {
        return Err(RpcError::new(bridgehead_wire::code::INTERNAL_ERROR, &refusal.message()));
    }
    let url = Raw::literal(r#"{"mode":"url"}"#);
    let questioner =
        caller.questioner.as_ref().filter(|it| it.abilities().covers(&Method::Elicit, Some(&url)));
    let Some(questioner) = questioner else {
        return Err(questions::undeclared(&Method::Elicit, Some(&url)));
    };
    let asked = pages.iter().map(|page| {
        let params = questions::params_for(&Method::Elicit, Some(page), caller.revision, None);
        in_time(&Method::Elicit, questioner.ask(&Method::Elicit, &params, patience), patience)
    });
    let answers = join_all(asked).await;
    let accepted = |answer: &Raw| answer.decode::<Action>().is_ok_and(|answer| answer.action == "accept");
    Ok(answers.iter().all(|answer| answer.as_ref().is_ok_and(accepted)))
}

impl Next {
    /// The params of the call, with what this round adds to them.
    pub(crate) fn params(&self, params: &Spliced) -> Spliced {
        let Ok(object) = Object::parse(&params.to_raw()) else { return params.clone() };
        let mut edit = object.edit();
        match &self.responses {
            Some(responses) => edit.set("inputResponses", responses.clone()),
            None => edit.remove("inputResponses"),
        };
        match &self.state {
            Some(state) => edit.set("requestState", state.clone()),
            None => edit.remove("requestState"),
        };
        edit.finish()
    }
}

#[derive(serde::Deserialize)]
struct Action {
    action: String,
}

/// The state that goes back with the next call. Detached, to free the result that it came in.
fn state(result: &Object) -> Option<Raw> {
    result.get("requestState").filter(|state| !state.is_null()).map(|state| state.detached())
}

/// The configured roots, as an answer.
fn told(roots: &Roots) -> Raw {
    Raw::parse(roots.as_str().to_owned()).unwrap_or(Raw::literal(r#"{"roots":[]}"#))
}

fn object_of(responses: &[(String, Raw)]) -> Result<Raw, Stop> {
    let members: Vec<String> = responses
        .iter()
        .map(|(key, answer)| format!("{}:{}", Raw::string(key).as_str(), answer.as_str()))
        .collect();
    Raw::parse(format!("{{{}}}", members.join(",")))
        .map_err(|_| Stop::Unusable("its questions have no usable keys".into()))
}

/// A result without these questions.
fn without(result: &Object, questions: &[Question]) -> Raw {
    let requests = result.get("inputRequests").and_then(|requests| Object::parse(&requests).ok());
    let requests = requests.unwrap_or_else(Object::empty);
    let mut kept = requests.edit();
    kept.remove_if(|key| questions.iter().any(|one| one.key.as_bytes() == key));
    let mut edit = result.edit();
    edit.set("inputRequests", kept.finish());
    edit.finish().to_raw()
}

/// The questions of a result, in its order.
fn read(result: &Object) -> Result<Vec<Question>, Stop> {
    let unusable = |reason: &str| Stop::Unusable(format!("it asks for input: {reason}"));
    let Some(requests) = result.get("inputRequests").filter(|requests| !requests.is_null()) else {
        return Ok(Vec::new());
    };
    let requests = Object::parse(&requests).map_err(|_| unusable("`inputRequests` is not an object"))?;
    let mut questions = Vec::new();
    for (key, request) in requests.members() {
        let request =
            Object::parse(&request).map_err(|_| unusable("one of `inputRequests` is not an object"))?;
        let method = request.get("method").and_then(|method| method.to_text()).unwrap_or_default();
        let method = Method::from(method.as_str());
        if !matches!(method, Method::Elicit | Method::CreateMessage | Method::RootsList) {
            return Err(unusable("one of `inputRequests` is not a question for a client"));
        }
        let params = request.get("params");
        let url = params
            .as_ref()
            .filter(|_| method == Method::Elicit)
            .and_then(|params| Object::parse(params).ok())
            .filter(|params| params.get("mode").and_then(|mode| mode.to_text()).as_deref() == Some("url"))
            .and_then(|params| params.get("url")?.to_text());
        questions.push(Question { key, method, params, url });
    }
    if questions.len() > MOST {
        return Err(Stop::Unusable(format!("it asks more than {MOST} things at once")));
    }
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERA-1: a client is asked at most ten times for one call.
    #[test]
    fn rounds_are_counted() {
        let mut rounds = Rounds::default();
        for round in 1..=MOST_ROUNDS {
            assert!(rounds.count().is_ok(), "{round}");
        }
        assert!(matches!(rounds.count(), Err(Stop::Unusable(reason)) if reason.contains("10 times")));
    }

    /// ERA-1: the pause before a server that postpones its call is called again doubles each time, up to five
    /// seconds, and not for ever.
    #[test]
    fn pauses_grow_and_end() {
        let mut rounds = Rounds::default();
        let pauses: Vec<u128> = (0..MOST_PAUSES).map(|_| rounds.pause().unwrap().as_millis()).collect();
        assert_eq!(pauses[..8], [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert!(pauses[8..].iter().all(|pause| *pause == 5_000), "{pauses:?}");
        assert!(matches!(rounds.pause(), Err(Stop::Unusable(reason)) if reason.contains("keeps postponing")));
    }

    /// ERA-1: a server is called again with the params of the call, the answers of this round and its state,
    /// byte for byte, without anything from the previous round.
    #[test]
    fn the_params_of_the_next_call() {
        #[track_caller]
        fn check(params: &'static str, next: (Option<&'static str>, Option<&'static str>), expected: &str) {
            let [responses, state] = [next.0, next.1].map(|member| member.map(Raw::literal));
            let next = Next { responses, state, pause: None };
            assert_eq!(next.params(&Raw::literal(params).into()).to_raw().as_str(), expected);
        }
        let (answers, state) = (r#"{"k":1.0}"#, r#""\u0041b\/""#);
        check(
            r#"{"name":"t"}"#,
            (Some(answers), Some(state)),
            r#"{"inputResponses":{"k":1.0},"requestState":"\u0041b\/","name":"t"}"#,
        );
        let again = r#"{"name":"t","inputResponses":{"old":1},"requestState":"old"}"#;
        check(again, (Some("{}"), None), r#"{"name":"t","inputResponses":{}}"#);
        check(again, (None, Some(state)), r#"{"name":"t","requestState":"\u0041b\/"}"#);
        check(again, (None, None), r#"{"name":"t"}"#);
    }
}
