//! The questions of a server that are open at the client of one call.
//!
//! A call that is asked nothing carries an empty list and pays nothing for it. While a question is open, the
//! exchange with the server is looked at too: it may take the question back, ask another, answer the call or end.

use std::future::poll_fn;
use std::task::Poll;

use bridgehead_upstream::{Event, Exchange};
use bridgehead_wire::{Id, Object, Raw, Request, Revision, RpcError, Spliced, code, key};
use futures_util::future::BoxFuture;
use tracing::debug;

use crate::caller::Caller;

/// How many may be open at once for one call.
const MOST: usize = 16;

/// Those of one call.
#[derive(Default)]
pub(crate) struct Questions {
    open: Vec<(Id, BoxFuture<'static, Result<Raw, RpcError>>)>,
}

impl Questions {
    /// Whether the client is being asked.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Puts a question of the server to the client.
    pub(crate) fn put(&mut self, asked: &Request, caller: &Caller, exchange: &mut Exchange) {
        let refusal = match &caller.questioner {
            Some(questioner) if self.open.len() < MOST => {
                let params = params_for(asked.params.as_ref(), caller.revision);
                debug!(method = %asked.method, "the client is asked");
                return self.open.push((asked.id.clone(), questioner.ask(&asked.method, &params)));
            }
            Some(_) => RpcError::new(
                code::INTERNAL_ERROR,
                &format!("the client is being asked {MOST} things already; ask again when it has answered"),
            ),
            None => RpcError::new(code::METHOD_NOT_FOUND, "this client answers no questions"),
        };
        exchange.reply(&asked.id, Err(&refusal));
    }

    /// The server no longer wants to know.
    pub(crate) fn withdraw(&mut self, id: &Id) {
        self.open.retain(|(open, _)| open != id);
    }

    /// What comes next from the server; none when the client has answered everything first.
    pub(crate) async fn next(&mut self, exchange: &mut Exchange) -> Option<Event> {
        poll_fn(|context| {
            let mut at = 0;
            while at < self.open.len() {
                match self.open[at].1.as_mut().poll(context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(answer) => {
                        let (id, _) = self.open.swap_remove(at);
                        let answer = answer.map(Spliced::from);
                        exchange.reply(&id, answer.as_ref());
                    }
                }
            }
            if self.open.is_empty() {
                return Poll::Ready(None);
            }
            exchange.poll_next(context).map(Some)
        })
        .await
    }
}

/// The params of a question as a client of `revision` knows them. A token for progress is the server's own affair:
/// none is relayed from clients.
fn params_for(params: Option<&Raw>, revision: Revision) -> Spliced {
    let Some(object) = params.and_then(|params| Object::parse(params).ok()) else {
        return Raw::literal("{}").into();
    };
    let meta = object.get(key::META).and_then(|meta| Object::parse(&meta).ok());
    let mut edit = object.edit();
    if revision < Revision::V2025_11_25 {
        edit.remove("mode");
    }
    if let Some(meta) = meta.filter(|meta| meta.get(key::PROGRESS_TOKEN).is_some()) {
        let mut meta = meta.edit();
        meta.remove(key::PROGRESS_TOKEN);
        edit.set(key::META, meta.finish());
    }
    edit.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_is_asked() {
        #[track_caller]
        fn check(params: Option<&'static str>, revision: Revision, expected: &str) {
            let params = params.map(Raw::literal);
            assert_eq!(params_for(params.as_ref(), revision).to_raw().as_str(), expected);
        }
        let form = r#"{"mode":"form", "message":"?","n":1.0}"#;
        check(Some(form), Revision::V2025_11_25, form);
        check(Some(form), Revision::V2025_06_18, r#"{"message":"?","n":1.0}"#);
        let meta = r#"{"_meta":{"progressToken":1,"a/b":2},"message":"?"}"#;
        check(Some(meta), Revision::V2025_11_25, r#"{"_meta":{"a/b":2},"message":"?"}"#);
        check(None, Revision::V2025_11_25, "{}");
        check(Some("[]"), Revision::V2025_11_25, "{}");
    }
}
