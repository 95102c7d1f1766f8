//! What a client subscribes to: log lines, changes of resources, a `subscriptions/listen`.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::ResourceUris;
use bridgehead_upstream::{Lists, Notice, NoticeSink, UpstreamState, Watch};
use bridgehead_wire::{Era, Level, Method, Object, Raw, RpcError, Spliced, code, key, notification};
use bytes::BytesMut;
use serde_json::json;

use crate::access::views::resource;
use crate::access::{Action, Authorizer, Decision, Principal};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::ResourceOwner;
use crate::feeds::{Feed, tagged};
use crate::gate::CallRecord;
use crate::gateway::{Gateway, Inner};
use crate::life::session::Session;
use crate::relay::rewrite::{declares_tasks, log_for, takes_levels};
use crate::relay::uris::with_uri;
use crate::surface::named;
use crate::surface::resources::{NO_SUCH_RESOURCE, resource_not_found};

/// How long the answer waits for servers to be told of a new log level.
const LEVEL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the answer waits for servers to accept a watch on resources.
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);

impl Gateway {
    /// The feed of a principal's legacy session; always the same one for a session. What it tells from now on is what this
    /// principal may hear.
    #[doc(hidden)]
    pub fn feed(&self, principal: &Principal, session: &Session) -> Feed {
        let feed = session.feed_or(|number| self.inner().feeds.open_session_of(principal, number));
        feed.shown(principal);
        feed
    }

    /// Legacy: sends log lines of this level and above from now on.
    pub(crate) async fn set_level(
        &self,
        caller: &Caller,
        request: &ClientRequest,
    ) -> Result<Spliced, RpcError> {
        let level = request.params.get("level").and_then(|level| level.to_text());
        let Some(level) = level.as_deref().and_then(Level::named) else {
            let names = Level::ALL.map(Level::as_str).join(", ");
            return Err(RpcError::new(code::INVALID_PARAMS, &format!("`level` must be one of {names}")));
        };
        self.feed(&caller.principal, &caller.session).set_level(level);
        // Modern servers, and those that start later, are told with the next request.
        let telling = self.upstreams().into_iter().map(|upstream| async move {
            if let UpstreamState::Ready(ready) = upstream.state()
                && takes_levels(ready.peer.revision.era(), ready.tools.features)
            {
                ready.link.want_level(level).await;
            }
        });
        let _ = tokio::time::timeout(LEVEL_TIMEOUT, futures_util::future::join_all(telling)).await;
        Ok(Raw::literal("{}").into())
    }

    /// Legacy: subscribes to a resource.
    pub(crate) async fn subscribe(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        record: &mut CallRecord,
    ) -> Result<Spliced, RpcError> {
        let uri = named(&request.params, "uri", "resource")?;
        let (inner, principal) = (self.inner(), &caller.principal);
        let mut owner = inner.resource_owner(principal, &uri);
        // Under an authorizer, what is denied and what is not listed wait alike.
        let is_policed = inner.views.authorizer().is_some();
        if owner.is_nobody() || is_policed && inner.view(principal).known_owner(&uri).is_none() {
            self.wait_for_servers().await;
            owner = inner.resource_owner(principal, &uri);
        }
        let servers = match owner {
            ResourceOwner::Servers(servers) if servers.is_empty() => {
                if let Some(why) = inner.why_unreadable(principal, &uri) {
                    record.denied(why);
                }
                return Err(resource_not_found(Era::Legacy, NO_SUCH_RESOURCE, None, &uri));
            }
            ResourceOwner::Servers(servers) => servers,
            ResourceOwner::Native(_) => {
                return match self.feed(&caller.principal, &caller.session).subscribe(&uri, None, record) {
                    true => Ok(Raw::literal("{}").into()),
                    false => Err(too_many()),
                };
            }
        };
        let Some(owner) = servers.into_iter().find(|owner| owner.features.subscribe) else {
            let message = "the server of this resource does not support subscriptions";
            return Err(RpcError::with_data(code::INVALID_PARAMS, message, &json!({"uri": uri})));
        };
        let own = caller.session.uses(&owner.upstream, Era::Legacy, principal.id()).ok().flatten();
        let watch =
            own.as_ref().unwrap_or(&owner.upstream).watch_resource(self.inner().catalog.load().own_uri(&uri));
        let settled = watch.settled();
        match self.feed(&caller.principal, &caller.session).subscribe(&uri, Some(watch), record) {
            true => {
                // Every change after the answer is reported. If the server takes longer, only changes after
                // it has accepted the watch are.
                let _ = tokio::time::timeout(WATCH_TIMEOUT, settled).await;
                Ok(Raw::literal("{}").into())
            }
            false => Err(too_many()),
        }
    }

    /// Legacy: ends a subscription. An unknown one is not an error.
    pub(crate) fn unsubscribe(&self, caller: &Caller, request: &ClientRequest) -> Result<Spliced, RpcError> {
        let uri = named(&request.params, "uri", "resource")?;
        self.feed(&caller.principal, &caller.session).leave(&uri);
        Ok(Raw::literal("{}").into())
    }

    /// Modern: reports changes until the client stops reading, and then returns the result.
    pub(crate) async fn listen(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        sink: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Filter {
            tools_list_changed: bool,
            prompts_list_changed: bool,
            resources_list_changed: bool,
            resource_subscriptions: Vec<String>,
            task_ids: Vec<String>,
        }
        let (Some(id), Some(sink)) = (&request.id, sink) else {
            return Err(RpcError::new(code::INVALID_REQUEST, "this request has no stream for notifications"));
        };
        let filter: Option<Filter> =
            request.params.get("notifications").and_then(|filter| filter.decode().ok());
        let Some(filter) = filter else {
            let message = "`notifications` must be an object that names the notifications that you want";
            return Err(RpcError::new(code::INVALID_PARAMS, message));
        };
        if !(filter.resource_subscriptions.is_empty() && filter.task_ids.is_empty()) {
            // Only a server that has started says whose a resource or a task is.
            self.wait_for_servers().await;
        }
        let mut lists = Lists::NONE;
        let mut honoured = json!({});
        for (wanted, list, name) in [
            (filter.tools_list_changed, Lists::TOOLS, "toolsListChanged"),
            (filter.prompts_list_changed, Lists::PROMPTS, "promptsListChanged"),
            (filter.resources_list_changed, Lists::RESOURCES, "resourcesListChanged"),
        ] {
            if wanted {
                lists = lists | list;
                honoured[name] = json!(true);
            }
        }
        let id = id.raw().clone();
        let feed = self.inner().feeds.open_listen(&caller.principal, id.clone(), lists);
        let (mut followed, mut settled) = (Vec::new(), Vec::new());
        for uri in filter.resource_subscriptions {
            let watch = match self.inner().resource_owner(&caller.principal, &uri) {
                ResourceOwner::Native(_) => None,
                owner @ ResourceOwner::Servers(_) => match self.inner().watch(owner, &uri) {
                    Some(watch) => Some(watch),
                    None => continue,
                },
            };
            settled.extend(watch.as_ref().map(Watch::settled));
            if feed.follow(&uri, watch) {
                followed.push(uri);
            }
        }
        let mut tasks = Vec::new();
        // A client that did not declare tasks is told of none.
        if request.meta.client_capabilities.as_ref().is_some_and(declares_tasks) {
            for offered in filter.task_ids {
                let Some((owner, tool, watch)) = self.watch_task(caller, &offered) else { continue };
                settled.push(watch.settled());
                if feed.follow_task(owner, tool, &offered, watch) {
                    tasks.push(offered);
                }
            }
        }
        if !settled.is_empty() {
            let _ = tokio::time::timeout(WATCH_TIMEOUT, futures_util::future::join_all(settled)).await;
        }
        for (names, name) in [(followed, "resourceSubscriptions"), (tasks, "taskIds")] {
            if !names.is_empty() {
                honoured[name] = json!(names);
            }
        }
        let mut acknowledged = BytesMut::new();
        let params = tagged(Some(&Raw::encode(&json!({"notifications": honoured}))), &id);
        notification(&mut acknowledged, Method::Acknowledged.as_str(), Some(&params));
        let mut message = acknowledged.freeze();
        while sink.deliver(message).await {
            message = tokio::select! {
                biased;
                () = sink.closed() => break,
                () = feed.ended() => break,
                message = feed.next() => message,
            };
        }
        let marks = json!({
            "resultType": "complete",
            "_meta": {key::SERVER_INFO: {"name": "bridgehead", "version": self.inner().version}},
        });
        let Ok(result) = Object::parse(&Raw::encode(&marks)) else { return Ok(Raw::literal("{}").into()) };
        let meta = result.get(key::META).and_then(|meta| Object::parse(&meta).ok());
        let meta = meta.unwrap_or_else(Object::empty);
        let mut meta = meta.edit();
        meta.set(key::SUBSCRIPTION_ID, id);
        let mut edit = result.edit();
        edit.set(key::META, meta.finish());
        Ok(edit.finish())
    }
}

impl Inner {
    /// Has the server that owns a resource report its changes; `None` if no such server can. This program reports
    /// the changes of its own resources.
    fn watch(&self, owner: ResourceOwner, uri: &str) -> Option<Watch> {
        let ResourceOwner::Servers(servers) = owner else { return None };
        let owner = servers.into_iter().find(|owner| owner.features.subscribe)?;
        Some(owner.upstream.watch_resource(self.catalog.load().own_uri(uri)))
    }

    /// The same for an existing subscription.
    pub(crate) fn watch_again(&self, principal: Option<&Principal>, uri: &str) -> Option<Watch> {
        let owner = match principal {
            Some(principal) => self.resource_owner(principal, uri),
            None => self.catalog.load().resource_owner(uri),
        };
        self.watch(owner, uri)
    }

    /// Whether a principal may be told of a change of a resource, by the server's URI.
    pub(crate) fn may_read(&self, principal: &Principal, server: Option<&str>, uri: &str) -> bool {
        let decide = |it: &Arc<dyn Authorizer>| it.decide(principal, Action::Read, resource(server, uri));
        self.views.authorizer().is_none_or(|authorizer| decide(authorizer) != Decision::Deny)
    }

    /// Whether a principal may be shown a log line of a server: something of the server, and nothing that the line names, is
    /// hidden from it.
    fn may_hear(&self, principal: &Principal, server: &str, line: &Raw) -> bool {
        if self.views.authorizer().is_none() {
            return true;
        }
        let view = self.view(principal);
        view.shows(server) && !view.leaves_unsaid(server, line.as_str())
    }

    /// Receives what servers say outside of any request.
    pub(crate) fn notices(self: &Arc<Self>) -> NoticeSink {
        let gateway = Arc::downgrade(self);
        NoticeSink::new(move |origin, notice| {
            let Some(gateway) = gateway.upgrade() else { return };
            match notice {
                Notice::Updated(params) => {
                    let uri = Object::parse(params).ok().and_then(|params| params.get("uri")?.to_text());
                    let uri = uri.unwrap_or_default();
                    let may_read =
                        |principal: &Principal| gateway.may_read(principal, Some(origin.server), &uri);
                    match gateway.settings.resource_uris {
                        ResourceUris::Keep => gateway.feeds.updated(origin.session, params, may_read),
                        ResourceUris::Rewrite => {
                            let params = with_uri(origin.server, params);
                            gateway.feeds.updated(origin.session, &params, may_read);
                        }
                    }
                }
                Notice::Task(params) => gateway.task_changed(origin, params),
                Notice::Log(params) => {
                    let several = gateway.upstreams.try_read().is_none_or(|all| all.len() > 1);
                    if let Some((level, params)) = log_for(params, several.then_some(origin.server)) {
                        gateway.feeds.logged(origin.session, level, &params, |principal| {
                            gateway.may_hear(principal, origin.server, &params)
                        });
                    }
                }
            }
        })
    }
}

fn too_many() -> RpcError {
    RpcError::new(code::INVALID_PARAMS, "this session has too many subscriptions already")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With several servers, a log line names its server.
    #[test]
    fn lines_name_their_server() {
        #[track_caller]
        fn check(params: &'static str, server: Option<&str>, expected: Option<(Level, &str)>) {
            let told = log_for(&Raw::literal(params), server);
            let told = told.as_ref().map(|(level, params)| (*level, params.as_str()));
            assert_eq!(told, expected);
        }
        check(r#"{"level":"info","data":1.0}"#, None, Some((Level::Info, r#"{"level":"info","data":1.0}"#)));
        check(
            r#"{"level":"info","data":1}"#,
            Some("a"),
            Some((Level::Info, r#"{"logger":"a","level":"info","data":1}"#)),
        );
        check(
            r#"{"level":"alert","logger":"x"}"#,
            Some("a"),
            Some((Level::Alert, r#"{"level":"alert","logger":"a/x"}"#)),
        );
        check(r#"{"level":"loud"}"#, None, None);
        check("[]", None, None);
    }
}
