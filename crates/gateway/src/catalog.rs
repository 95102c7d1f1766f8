//! Everything the gateway offers, merged, named and rendered once per change.
//!
//! A catalog never changes: when an upstream does, a new one takes its place. Calls look names up in a map;
//! lists are bytes prepared here.

use std::collections::HashMap;
use std::sync::Arc;

use bridgehead_config::{Mode, Prefix};
use bridgehead_schema::{HeaderParameter, Validator};
use bridgehead_upstream::{Ready, State, Tool, Upstream};
use bridgehead_wire::{Era, Object, Raw, key};
use bytes::{BufMut, Bytes, BytesMut};
use tracing::debug;

use crate::names::{Wanted, expose};
use crate::native::NativeTool;

/// How long a modern client may keep a complete list.
const LIST_TTL_MS: u32 = 10_000;

/// A fair turn: whoever asks first goes first.
pub(crate) type Turn = Arc<tokio::sync::Mutex<()>>;

/// A Rust tool with its schema compiled.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) tool: NativeTool,
    pub(crate) validator: Validator,
    pub(crate) definition: Raw,
}

/// Who runs a tool.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Native(Arc<Registered>),
    Upstream { upstream: Upstream, tool: Arc<Tool> },
}

/// One offered name.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) server: Option<Arc<str>>,
    pub(crate) target: Target,
    /// Set where calls take turns.
    pub(crate) turn: Option<Turn>,
    /// Set where the mode does not admit the tool: it is not listed, and a call names the mode.
    pub(crate) excluded_by: Option<Mode>,
    /// Whether it stands in the lists; a tool of a server that is gone does not, but is still known.
    listed: bool,
}

impl Route {
    pub(crate) fn headers(&self) -> Option<&Arc<[HeaderParameter]>> {
        match &self.target {
            Target::Native(_) => None,
            Target::Upstream { tool, .. } => Some(&tool.headers),
        }
    }
}

/// What is offered at one time.
#[derive(Debug)]
pub(crate) struct Catalog {
    routes: HashMap<Arc<str>, Arc<Route>>,
    legacy_list: Raw,
    modern_list: Raw,
    /// How many servers are still starting.
    pub(crate) starting: usize,
    /// How many tools the mode hides.
    pub(crate) hidden: usize,
    /// Names that are not the plain ones: server, tool, name.
    pub(crate) renamed: Vec<(String, String, String)>,
}

/// The settings that shape names and lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) mode: Mode,
    pub(crate) prefix: Prefix,
    pub(crate) name_limit: usize,
}

impl Catalog {
    /// Merges the Rust tools and the upstreams as they are now, the upstreams first and in the order of the
    /// configuration. `before` lends the turns that calls may be waiting for, and the tools of servers that
    /// have failed since.
    pub(crate) fn merge(
        shape: Shape,
        natives: &[Arc<Registered>],
        upstreams: &[Upstream],
        server_info: &Raw,
        before: Option<&Self>,
    ) -> Self {
        let states: Vec<(Upstream, State)> =
            upstreams.iter().map(|upstream| (upstream.clone(), upstream.state())).collect();
        let mut offers: Vec<(&Upstream, Arc<Tool>, bool)> = Vec::new();
        for (upstream, state) in &states {
            match state {
                State::Ready(ready) => {
                    offers.extend(offered(upstream, ready).map(|tool| (upstream, tool, true)))
                }
                State::Restarting(outage) => {
                    let last = outage.last.iter().flat_map(|ready| offered(upstream, ready));
                    offers.extend(last.map(|tool| (upstream, tool, outage.listed)));
                }
                State::Failed(_) => {
                    offers
                        .extend(last_known(before, upstream).into_iter().map(|tool| (upstream, tool, false)));
                }
                State::Starting { .. } | State::Stopped => {}
            }
        }
        let wanted: Vec<Wanted<'_>> = offers
            .iter()
            .map(|(upstream, tool, _)| Wanted {
                server: upstream.name().as_ref(),
                tool: &tool.name,
                prefixed: is_prefixed(shape.prefix, upstream.config().prefix, upstreams.len()),
            })
            .collect();
        let built_in: Vec<&str> = natives.iter().map(|native| native.tool.name()).collect();
        let names = expose(&wanted, &built_in, shape.name_limit);
        let mut catalog = Self {
            routes: HashMap::with_capacity(offers.len() + natives.len()),
            legacy_list: Raw::literal("{}"),
            modern_list: Raw::literal("{}"),
            starting: states.iter().filter(|(_, state)| matches!(state, State::Starting { .. })).count(),
            hidden: 0,
            renamed: Vec::new(),
        };
        let mut order: Vec<Arc<Route>> = Vec::with_capacity(offers.len() + natives.len());
        for (((upstream, tool, listed), want), name) in offers.iter().zip(&wanted).zip(names) {
            if !name.ends_with(want.tool) {
                catalog.renamed.push((want.server.to_owned(), want.tool.to_owned(), name.clone()));
            }
            let admitted = shape.mode != Mode::Readonly || tool.read_only;
            catalog.hidden += usize::from(!admitted);
            let locked = upstream.config().tools.get(&tool.name).and_then(|tool| tool.lock).unwrap_or(false);
            order.push(Arc::new(Route {
                turn: locked.then(|| turn(before, &name)),
                name: name.into(),
                server: Some(want.server.into()),
                target: Target::Upstream { upstream: (*upstream).clone(), tool: Arc::clone(tool) },
                excluded_by: (!admitted).then_some(shape.mode),
                listed: *listed && admitted,
            }));
        }
        for native in natives {
            order.push(Arc::new(Route {
                name: native.tool.name().into(),
                server: None,
                target: Target::Native(Arc::clone(native)),
                turn: native.tool.locked().then(|| turn(before, native.tool.name())),
                excluded_by: None,
                listed: true,
            }));
        }
        catalog.render(&order, server_info);
        catalog.routes = order.into_iter().map(|route| (Arc::clone(&route.name), route)).collect();
        debug!(
            tools = catalog.routes.len(),
            starting = catalog.starting,
            hidden = catalog.hidden,
            "catalog merged"
        );
        catalog
    }

    /// The tool of that name.
    pub(crate) fn route(&self, name: &str) -> Option<&Arc<Route>> {
        self.routes.get(name)
    }

    /// The whole `tools/list` result for clients of an era.
    pub(crate) const fn list(&self, era: Era) -> &Raw {
        match era {
            Era::Legacy => &self.legacy_list,
            Era::Modern => &self.modern_list,
        }
    }

    /// Whether a client sees the same list in both.
    pub(crate) fn lists_the_same(&self, other: &Self) -> bool {
        self.legacy_list == other.legacy_list
    }

    fn render(&mut self, order: &[Arc<Route>], server_info: &Raw) {
        let mut tools = BytesMut::from("[");
        for route in order.iter().filter(|route| route.listed) {
            if tools.len() > 1 {
                tools.put_u8(b',');
            }
            put_definition(&mut tools, route);
        }
        tools.put_u8(b']');
        let tools = tools.freeze();
        let ttl = if self.starting == 0 { LIST_TTL_MS } else { 0 };
        let around = |before: &str, after: &str| {
            let whole = [before.as_bytes(), &tools, after.as_bytes()].concat();
            Raw::parse(Bytes::from(whole)).unwrap_or(Raw::literal("{\"tools\":[]}"))
        };
        self.legacy_list = around("{\"tools\":", "}");
        self.modern_list = around(
            "{\"tools\":",
            &format!(
                r#","ttlMs":{ttl},"cacheScope":"private","resultType":"complete","_meta":{{"{}":{}}}}}"#,
                key::SERVER_INFO,
                server_info.as_str()
            ),
        );
    }
}

/// Writes a definition under the offered name; every other byte is the server's.
fn put_definition(out: &mut BytesMut, route: &Route) {
    let definition = match &route.target {
        Target::Native(native) => return out.put_slice(native.definition.bytes()),
        Target::Upstream { tool, .. } if *tool.name == *route.name => {
            return out.put_slice(tool.definition.bytes());
        }
        Target::Upstream { tool, .. } => &tool.definition,
    };
    if let Ok(object) = Object::parse(definition) {
        let mut edit = object.edit();
        edit.set("name", Raw::string(&route.name));
        edit.finish().write_to(out);
    }
}

/// The tools of a server that its filter admits.
fn offered<'a>(upstream: &'a Upstream, ready: &'a Ready) -> impl Iterator<Item = Arc<Tool>> + 'a {
    ready.tools.iter().filter(|tool| upstream.config().filter.admits(&tool.name)).cloned()
}

/// The tools a failed server had, so that a call to one can say that its server is gone.
fn last_known(before: Option<&Catalog>, upstream: &Upstream) -> Vec<Arc<Tool>> {
    let tools = before.into_iter().flat_map(|before| before.routes.values()).filter_map(|route| match &route
        .target
    {
        Target::Upstream { upstream: owner, tool } if owner.name() == upstream.name() => {
            Some(Arc::clone(tool))
        }
        _ => None,
    });
    let mut tools: Vec<_> = tools.collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    tools
}

fn turn(before: Option<&Catalog>, name: &str) -> Turn {
    before.and_then(|before| before.route(name)).and_then(|route| route.turn.clone()).unwrap_or_default()
}

/// `auto` leaves the prefix out if and only if exactly one server is configured.
pub(crate) fn is_prefixed(prefix: Prefix, server: Option<bool>, servers: usize) -> bool {
    server.unwrap_or(match prefix {
        Prefix::Auto => servers != 1,
        Prefix::Always => true,
        Prefix::Never => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CAT-3: `auto`, `true`, `false`, and the server's own word over them.
    #[test]
    fn the_prefix_by_setting() {
        assert!(!is_prefixed(Prefix::Auto, None, 1));
        assert!(is_prefixed(Prefix::Auto, None, 2));
        assert!(is_prefixed(Prefix::Always, None, 1));
        assert!(!is_prefixed(Prefix::Never, None, 9));
        assert!(is_prefixed(Prefix::Never, Some(true), 9));
        assert!(!is_prefixed(Prefix::Always, Some(false), 9));
    }
}
