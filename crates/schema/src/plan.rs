//! Determines which parts of a schema apply to which parts of an instance, and what checking them costs.
//!
//! The plan follows a schema into an instance as a validator would, but does not judge anything. This answers two
//! questions. Which properties are declared for an object, so that a key that only resembles one is found? And how much
//! work is a check, before it begins? Work is counted in steps of about the same size (a comparison, a byte that a
//! pattern reads), never timed, so the answer is always the same.
//!
//! What must stay true: the counted work bounds the real work. If it is unknown which part applies (a pattern of keys,
//! a branch), all of them are counted.

mod names;
mod order;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bridgehead_wire::folds_alike;
use serde_json::{Map, Value};

use crate::complexity::{DEEPEST_INSTANCE, Document, IN_PLACE, IN_PLACE_MAPS, listed};
use crate::cost::{Cost, size, weight};
use crate::validator::{Issue, LONGEST_PATH, MOST_ISSUES};
use crate::{SchemaError, escaped_pointer, shortened};

pub(crate) use names::Names;
use order::{on_cycles, ranked};

/// How often, per path that leads there, the validator checks one array or object against the target of a recursive
/// reference before it caches the outcome.
const CHECKED_AGAIN: u64 = 16;
/// Above this much work for one byte of an instance, differences no longer matter.
const MOST_PER_BYTE: u64 = 1 << 20;

/// A schema as a graph; the root is the first node.
#[derive(Debug)]
pub(crate) struct Plan {
    nodes: Vec<Node>,
    /// The position of each node in an order in which it precedes the nodes that apply to the same value.
    rank: Vec<u32>,
    by_rank: Vec<u32>,
    pub(crate) names: Names,
    /// The most steps that one byte of an instance can cost.
    per_byte: u64,
    /// The most times that a recursive node is checked against one array or object.
    most_times: u64,
}

/// One subschema.
#[derive(Debug, Default)]
struct Node {
    /// Nodes that apply to the same value.
    same: Vec<u32>,
    /// Nodes that apply to members by name, sorted by name.
    properties: Vec<(Box<str>, u32)>,
    /// Nodes that may apply to any member.
    members: Vec<u32>,
    /// Nodes that apply to undeclared members.
    others: Vec<u32>,
    /// The node that applies to keys.
    keys: Vec<u32>,
    /// Nodes that apply to items by their position.
    prefix: Vec<u32>,
    /// Nodes that may apply to any item.
    items: Vec<u32>,
    /// Whether it must find out which parts the nodes beside it have evaluated, by evaluating them again.
    asks_again: bool,
    /// Whether it refers to itself through other nodes, and the validator caches its outcome.
    recursive: bool,
    cost: Cost,
}

impl Node {
    /// All nodes that apply to a part of the value.
    fn parts(&self) -> impl Iterator<Item = u32> + '_ {
        let declared = self.properties.iter().map(|(_, next)| *next);
        let others = [&self.members, &self.others, &self.keys, &self.prefix, &self.items];
        declared.chain(others.into_iter().flatten().copied())
    }

    fn property(&self, name: &str) -> Option<u32> {
        let at = self.properties.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(self.properties[at].1)
    }
}

/// How often a node is evaluated for a value.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// To check whether the value fits.
    checked: u64,
    /// To ask which parts of the value it evaluates.
    asked: u64,
}

impl Times {
    const ONCE: Self = Self { checked: 1, asked: 0 };

    fn add(&mut self, more: Self) {
        self.checked = self.checked.saturating_add(more.checked);
        self.asked = self.asked.saturating_add(more.asked);
    }

    const fn total(self) -> u64 {
        self.checked.saturating_add(self.asked)
    }

    /// The most times that its parts are checked for that.
    const fn for_parts(self) -> Self {
        Self { checked: self.total(), asked: 0 }
    }
}

/// Nodes that apply to one value, by their rank.
type Applied = BTreeMap<u32, Times>;

impl Plan {
    pub(crate) fn of(schema: &Value) -> Result<Self, SchemaError> {
        let document = Document::of(schema)?;
        let mut builder = Builder {
            document: &document,
            known: HashMap::new(),
            open: VecDeque::new(),
            targets: HashSet::new(),
        };
        builder.number(schema);
        let mut nodes = Vec::new();
        while let Some(schema) = builder.open.pop_front() {
            nodes.push(builder.node(schema)?);
        }
        for node in on_cycles(&nodes) {
            nodes[node as usize].recursive = builder.targets.contains(&node);
        }
        let by_rank = ranked(&nodes)?;
        let mut rank = vec![0; nodes.len()];
        for (at, &node) in by_rank.iter().enumerate() {
            rank[node as usize] = at as u32;
        }
        let names = Names::of(&nodes);
        let mut plan = Self { nodes, rank, by_rank, names, per_byte: 0, most_times: 0 };
        plan.per_byte = plan.work(DEEPEST_INSTANCE, |node| node.cost.per_byte());
        plan.most_times = plan.work(1, |_| 1).saturating_mul(CHECKED_AGAIN);
        Ok(plan)
    }

    /// Whether checking any instance of this many bytes is little work.
    pub(crate) fn is_little(&self, bytes: usize, limit: u64) -> bool {
        self.per_byte.saturating_mul(bytes as u64) <= limit
    }

    /// The steps of a check; `None` if they exceed `limit`.
    pub(crate) fn steps(&self, instance: &Value, limit: u64) -> Option<u64> {
        self.count(instance, limit, self.most_times)
    }

    /// The steps of a check without a cache, such as an explanation.
    pub(crate) fn steps_explained(&self, instance: &Value, limit: u64) -> Option<u64> {
        self.count(instance, limit, u64::MAX)
    }

    fn count(&self, instance: &Value, limit: u64, most_times: u64) -> Option<u64> {
        let mut counting = Counting { plan: self, steps: 0, limit, most_times };
        counting.value(instance, self.root())?;
        Some(counting.steps)
    }

    /// Keys that are not declared at their place but resemble a declared one. `None` if the search takes more than
    /// `limit` steps.
    pub(crate) fn lookalikes(&self, instance: &Value, limit: u64) -> Option<Vec<Issue>> {
        let mut search = Search { plan: self, left: limit, path: String::new(), found: Vec::new() };
        search.value(instance, self.root())?;
        Some(search.found)
    }

    fn root(&self) -> Applied {
        Applied::from([(self.rank[0], Times::ONCE)])
    }

    fn node(&self, rank: u32) -> &Node {
        &self.nodes[self.by_rank[rank as usize] as usize]
    }

    fn apply(&self, nodes: &[u32], times: Times, applied: &mut Applied) {
        for &node in nodes {
            applied.entry(self.rank[node as usize]).or_default().add(times);
        }
    }

    /// Adds the nodes that apply to the same value, in rank order: a node is visited once all its times are known.
    /// `visit` may stop this.
    fn spread(
        &self,
        applied: &mut Applied,
        most_times: u64,
        mut visit: impl FnMut(&Node, Times) -> Option<()>,
    ) -> Option<()> {
        let mut next = 0;
        while let Some((&rank, times)) = applied.range_mut(next..).next() {
            let node = self.node(rank);
            if node.recursive {
                times.checked = times.checked.min(most_times);
                times.asked = times.asked.min(most_times);
            }
            let times = *times;
            visit(node, times)?;
            let again = match node.asks_again {
                true => times.total(),
                false => times.asked,
            };
            let times = Times { checked: times.checked.saturating_add(again), asked: again };
            self.apply(&node.same, times, applied);
            next = rank + 1;
        }
        Some(())
    }

    /// The nodes that apply to the member `key`, given those that apply to its object.
    fn of_member(&self, applied: &Applied, key: &str) -> Applied {
        let mut parts = Applied::new();
        for (&rank, times) in applied {
            let (node, times) = (self.node(rank), times.for_parts());
            match node.property(key) {
                Some(declared) => self.apply(&[declared], times, &mut parts),
                None => self.apply(&node.others, times, &mut parts),
            }
            self.apply(&node.members, times, &mut parts);
        }
        parts
    }

    /// The nodes that apply to an item, given those that apply to its array.
    fn of_item(&self, applied: &Applied, at: usize) -> Applied {
        let mut parts = Applied::new();
        for (&rank, times) in applied {
            let (node, times) = (self.node(rank), times.for_parts());
            if let Some(own) = node.prefix.get(at) {
                self.apply(&[*own], times, &mut parts);
            }
            self.apply(&node.items, times, &mut parts);
        }
        parts
    }

    /// The most that the root costs on one path into an instance: level by level, until a deeper level adds nothing or
    /// `levels` is reached.
    fn work(&self, levels: usize, own: impl Fn(&Node) -> u64) -> u64 {
        let mut work = vec![0_u64; self.nodes.len()];
        for _ in 0..=levels {
            let shallower = work.clone();
            for &number in self.by_rank.iter().rev() {
                let node = &self.nodes[number as usize];
                let again = if node.asks_again { 64 } else { 1 };
                let same = node.same.iter().map(|&next| work[next as usize].saturating_mul(again));
                let parts = node.parts().map(|next| shallower[next as usize]);
                work[number as usize] = same.chain(parts).fold(own(node), u64::saturating_add);
            }
            if work[0] > MOST_PER_BYTE {
                return u64::MAX;
            }
            if work == shallower {
                break;
            }
        }
        work[0]
    }
}

/// Counts the steps of a check.
struct Counting<'p> {
    plan: &'p Plan,
    steps: u64,
    limit: u64,
    most_times: u64,
}

impl Counting<'_> {
    fn take(&mut self, steps: u64) -> Option<()> {
        self.steps = self.steps.saturating_add(steps);
        (self.steps <= self.limit).then_some(())
    }

    fn value(&mut self, value: &Value, mut applied: Applied) -> Option<()> {
        let plan = self.plan;
        // Computed only if needed: for a large value it takes a while.
        let mut whole = None;
        let remembered = value.is_array() || value.is_object();
        let most_times = if remembered { self.most_times } else { u64::MAX };
        plan.spread(&mut applied, most_times, |node, times| {
            let cost = &node.cost;
            let whole = if cost.whole > 0 { *whole.get_or_insert_with(|| weight(value)) } else { 0 };
            let steps = cost.of(value).saturating_add(cost.whole.saturating_mul(whole));
            self.take(steps.saturating_mul(times.total()))
        })?;
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.value(item, plan.of_item(&applied, at))?;
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    self.key(key, &applied)?;
                    self.value(member, plan.of_member(&applied, key))?;
                }
            }
            _ => {}
        }
        Some(())
    }

    fn key(&mut self, key: &str, applied: &Applied) -> Option<()> {
        let mut parts = Applied::new();
        for (&rank, &times) in applied {
            let node = self.plan.node(rank);
            self.take(node.cost.of_key(key).saturating_mul(times.total()))?;
            self.plan.apply(&node.keys, times.for_parts(), &mut parts);
        }
        if parts.is_empty() {
            return Some(());
        }
        self.plan.spread(&mut parts, u64::MAX, |node, times| {
            self.take(node.cost.of_text(key).saturating_mul(times.total()))
        })
    }
}

/// Looks for keys that resemble declared ones.
struct Search<'p> {
    plan: &'p Plan,
    left: u64,
    path: String,
    found: Vec<Issue>,
}

impl Search<'_> {
    fn take(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.checked_sub(steps as u64)?;
        Some(())
    }

    fn value(&mut self, value: &Value, mut applied: Applied) -> Option<()> {
        if self.found.len() >= MOST_ISSUES || !(value.is_array() || value.is_object()) {
            return Some(());
        }
        let plan = self.plan;
        plan.spread(&mut applied, 1, |_, _| Some(()))?;
        self.take(1 + applied.len())?;
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.within(&at.to_string(), item, plan.of_item(&applied, at))?;
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    self.take(1 + applied.len())?;
                    if let Some(declared) = self.resembled(key, &applied)? {
                        self.report(key, declared);
                    }
                    self.within(&escaped_pointer(key), member, plan.of_member(&applied, key))?;
                }
            }
            _ => {}
        }
        Some(())
    }

    fn within(&mut self, step: &str, value: &Value, applied: Applied) -> Option<()> {
        let end = self.path.len();
        self.path.push('/');
        self.path.push_str(step);
        self.value(value, applied)?;
        self.path.truncate(end);
        Some(())
    }

    /// The declared property that an undeclared key resembles.
    fn resembled<'s>(&mut self, key: &str, applied: &Applied) -> Option<Option<&'s str>>
    where
        Self: 's,
    {
        let plan = self.plan;
        let nodes = || applied.keys().map(|&rank| plan.node(rank));
        if !plan.names.resembled_by(key) || nodes().any(|node| node.property(key).is_some()) {
            return Some(None);
        }
        self.take(nodes().map(|node| node.properties.len()).sum())?;
        let mut declared = nodes().flat_map(|node| &node.properties);
        Some(declared.find(|(name, _)| folds_alike(name, key)).map(|(name, _)| &**name))
    }

    fn report(&mut self, key: &str, declared: &str) {
        let path = format!("{}/{}", self.path, escaped_pointer(key));
        self.found.push(Issue {
            instance_path: shortened(&path, LONGEST_PATH),
            schema_path: String::new(),
            message: format!(
                "the key is spelled nearly like the declared `{}`, and some readers would treat it as that key",
                shortened(&declared, 64)
            ),
        });
    }
}

/// Numbers the subschemas.
struct Builder<'d, 'a> {
    document: &'d Document<'a>,
    /// Subschemas have no names, so their address identifies them.
    known: HashMap<*const Value, u32>,
    open: VecDeque<&'a Value>,
    /// Subschemas that are the target of a reference.
    targets: HashSet<u32>,
}

impl<'a> Builder<'_, 'a> {
    fn number(&mut self, schema: &'a Value) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(std::ptr::from_ref(schema)).or_insert_with(|| {
            self.open.push_back(schema);
            next
        })
    }

    /// Skips boolean schemas, which cost nothing and declare nothing.
    fn numbers(&mut self, schemas: Vec<&'a Value>) -> Vec<u32> {
        schemas.into_iter().filter(|schema| schema.is_object()).map(|schema| self.number(schema)).collect()
    }

    fn node(&mut self, schema: &'a Value) -> Result<Node, SchemaError> {
        let Some(members) = schema.as_object() else { return Ok(Node::default()) };
        let mut cost = Cost::of_schema(members);
        let mut same = listed(schema, &IN_PLACE, &IN_PLACE_MAPS);
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            if let Some(reference) = members.get(keyword).and_then(Value::as_str) {
                let targets = self.document.resolve(reference)?;
                if targets.is_empty() {
                    cost.is_a_schema_of_schemas();
                }
                for target in &targets {
                    let number = self.number(target);
                    self.targets.insert(number);
                }
                same.extend(targets);
            }
        }
        let one = |keywords: &[&str]| listed(schema, keywords, &[]);
        let by_name = |keyword| members.get(keyword).and_then(Value::as_object);
        let mut properties: Vec<(Box<str>, u32)> = Vec::new();
        for (name, part) in by_name("properties").into_iter().flatten() {
            properties.push((name.as_str().into(), self.number(part)));
        }
        properties.sort_unstable();
        let positional = |items: &&Value| items.is_array();
        let in_order = members.get("prefixItems").or_else(|| members.get("items").filter(positional));
        let prefix = in_order.and_then(Value::as_array).map_or(Vec::new(), |all| all.iter().collect());
        // The position matters, so none may be skipped here.
        let prefix = prefix.into_iter().map(|part| self.number(part)).collect();
        let any_item = match members.get("items").is_some_and(Value::is_array) {
            true => one(&["additionalItems", "unevaluatedItems", "contains"]),
            false => one(&["items", "additionalItems", "unevaluatedItems", "contains"]),
        };
        let any_member: Vec<&Value> =
            by_name("patternProperties").map_or(Vec::new(), |all| all.values().collect());
        Ok(Node {
            same: self.numbers(same),
            properties,
            members: self.numbers(any_member),
            others: self.numbers(one(&["additionalProperties", "unevaluatedProperties"])),
            keys: self.numbers(one(&["propertyNames"])),
            prefix,
            items: self.numbers(any_item),
            asks_again: asks_again(members),
            recursive: false,
            cost,
        })
    }
}

fn asks_again(members: &Map<String, Value>) -> bool {
    members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems")
}

/// About how many bytes an instance has as JSON, without serializing it.
pub(crate) fn bytes(instance: &Value) -> usize {
    usize::try_from(size(instance)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
