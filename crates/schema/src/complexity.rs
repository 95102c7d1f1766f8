//! Bounds the cost of a schema before it is compiled.
//!
//! A schema of a few hundred bytes can make any validator work for hours: in a chain of definitions where
//! each refers twice to the next, every link doubles the work. So this module follows the references first
//! and builds a graph with two kinds of edges: to schemas that apply to the same value, and to schemas that
//! apply to a part of it. The number of paths through this graph bounds the work, and its longest path bounds
//! the stack.
//!
//! Only references within the document are accepted, so that no full resolver is needed. This is also the
//! first of two guards against network access; the second is the compiler's own.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::{SchemaError, shortened};

/// JSON nesting of a schema.
const DEEPEST: usize = 64;
/// Objects in a schema: every subschema is one.
const MOST_OBJECTS: usize = 8192;
/// Patterns in a schema: each is compiled and may take up to the compiler's size limit.
const MOST_PATTERNS: usize = 128;
/// The longest chain of schemas that apply to the same value.
const LONGEST_CHAIN: usize = 64;
/// The most schemas that may be evaluated for one value, or on one path into an instance.
const MOST_WORK: u64 = 20_000;
/// The most schemas under evaluation at the same time: a worker thread's stack holds this many with room to
/// spare.
const DEEPEST_STACK: usize = 1024;
/// The deepest possible instance: the JSON parser refuses deeper ones.
pub(crate) const DEEPEST_INSTANCE: usize = 128;

/// Keywords whose value is one schema, or a list of them, for the same value.
pub(crate) const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];
/// Keywords whose value maps names to schemas for the same value.
pub(crate) const IN_PLACE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords whose value is one schema, or a list of them, for a part of the value.
const INTO_PARTS: [&str; 8] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
/// Keywords whose value maps names to schemas for a part of the value.
const INTO_PARTS_MAPS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords whose value is data and contains no keywords.
pub(crate) const DATA: [&str; 5] = ["const", "enum", "default", "example", "examples"];
/// The meta-schemas that are built into the compiler.
const META_SCHEMAS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// How deep an instance may be; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Deeper instances are refused unchecked: the check could exhaust the stack.
    pub(crate) checked: Option<usize>,
    /// Deeper instances are checked but not explained: collecting the issues could take too long.
    pub(crate) explained: Option<usize>,
}

/// Measures `schema`, and refuses it if no instance could be checked safely.
pub(crate) fn measure(schema: &Value) -> Result<Bounds, SchemaError> {
    Graph::of(&Document::of(schema)?)?.bounds()
}

/// Levels of nesting in `instance`; a scalar has none.
pub(crate) fn depth(instance: &Value) -> usize {
    let mut deepest = 0;
    let mut open = vec![(instance, 0)];
    while let Some((value, level)) = open.pop() {
        deepest = deepest.max(level);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(members) => open.extend(members.values().map(|member| (member, level + 1))),
            _ => {}
        }
    }
    deepest
}

/// A schema document and the names that references in it may use.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    root: &'a Value,
    anchors: HashMap<&'a str, Vec<&'a Value>>,
    pub(crate) objects: usize,
    patterns: usize,
}

impl<'a> Document<'a> {
    pub(crate) fn of(root: &'a Value) -> Result<Self, SchemaError> {
        let mut document = Self { root, anchors: HashMap::new(), objects: 0, patterns: 0 };
        document.survey(root, 0, false)?;
        Ok(document)
    }

    /// Counts everything that is bounded and collects the anchors, also in unused parts.
    fn survey(&mut self, value: &'a Value, level: usize, data: bool) -> Result<(), SchemaError> {
        if level > DEEPEST {
            return Err(SchemaError::TooLarge { what: "levels of nesting", limit: DEEPEST });
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.survey(item, level + 1, data)),
            Value::Object(members) => {
                self.objects += 1;
                if self.objects > MOST_OBJECTS {
                    return Err(SchemaError::TooLarge { what: "subschemas", limit: MOST_OBJECTS });
                }
                for (key, member) in members {
                    // A list of data has no identifiers in it. An object may also be a property that happens
                    // to be called `default`, so it is searched: refusing one schema too many is better.
                    let data = data || DATA.contains(&key.as_str()) && member.is_array();
                    if !data {
                        self.name(key, member, value)?;
                    }
                    self.count_patterns(key, member)?;
                    self.survey(member, level + 1, data)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn name(&mut self, key: &str, member: &'a Value, owner: &'a Value) -> Result<(), SchemaError> {
        match (key, member) {
            ("$anchor" | "$dynamicAnchor", Value::String(name)) => {
                self.anchors.entry(name).or_default().push(owner);
            }
            ("$id" | "id", Value::String(id)) => {
                if let Some(name) = id.strip_prefix('#') {
                    self.anchors.entry(name).or_default().push(owner);
                } else if !std::ptr::eq(owner, self.root) && (key == "$id" || self.is_draft4()) {
                    return Err(SchemaError::EmbeddedSchema(shortened(id, 128)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn count_patterns(&mut self, key: &str, member: &Value) -> Result<(), SchemaError> {
        self.patterns += match (key, member) {
            ("pattern", Value::String(_)) => 1,
            ("patternProperties", Value::Object(patterns)) => patterns.len(),
            _ => 0,
        };
        if self.patterns > MOST_PATTERNS {
            return Err(SchemaError::TooLarge { what: "patterns", limit: MOST_PATTERNS });
        }
        Ok(())
    }

    fn is_draft4(&self) -> bool {
        self.root.get("$schema").and_then(Value::as_str).is_some_and(|dialect| dialect.contains("draft-04"))
    }

    /// The targets of `reference`. Empty for the built-in meta-schemas, whose cost is counted separately.
    pub(crate) fn resolve(&self, reference: &str) -> Result<Vec<&'a Value>, SchemaError> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let own = ["$id", "id"].iter().find_map(|key| self.root.get(key)?.as_str());
        if !document.is_empty() && own.is_none_or(|own| own.trim_end_matches('#') != document) {
            if META_SCHEMAS.contains(&document) && fragment.is_empty() {
                return Ok(Vec::new());
            }
            return Err(SchemaError::RemoteReference(shortened(&reference, 256)));
        }
        let fragment = percent_decoded(fragment);
        let found = if fragment.is_empty() || fragment.starts_with('/') {
            self.root.pointer(&fragment).map(|target| vec![target])
        } else {
            self.anchors.get(fragment.as_str()).cloned()
        };
        found.ok_or_else(|| SchemaError::DanglingReference(shortened(&reference, 256)))
    }
}

/// The schemas reachable from the root, as indices; the root is the first.
struct Graph {
    in_place: Vec<Vec<usize>>,
    into_parts: Vec<Vec<usize>>,
}

impl Graph {
    fn of(document: &Document<'_>) -> Result<Self, SchemaError> {
        let mut graph = Self { in_place: Vec::new(), into_parts: Vec::new() };
        // Subschemas have no names, so their address identifies them.
        let mut known = HashMap::from([(std::ptr::from_ref(document.root), 0)]);
        let mut open = VecDeque::from([document.root]);
        while let Some(schema) = open.pop_front() {
            let mut number = |targets: Vec<_>| {
                let mut numbers = Vec::with_capacity(targets.len());
                for target in targets {
                    let next = known.len();
                    numbers.push(*known.entry(std::ptr::from_ref(target)).or_insert_with(|| {
                        open.push_back(target);
                        next
                    }));
                }
                numbers
            };
            let mut same = listed(schema, &IN_PLACE, &IN_PLACE_MAPS);
            for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
                if let Some(reference) = schema.get(keyword).and_then(Value::as_str) {
                    same.extend(document.resolve(reference)?);
                }
            }
            graph.in_place.push(number(same));
            graph.into_parts.push(number(listed(schema, &INTO_PARTS, &INTO_PARTS_MAPS)));
        }
        Ok(graph)
    }

    fn bounds(&self) -> Result<Bounds, SchemaError> {
        let order = self.in_place_last_first()?;
        let mut chains = vec![1; order.len()];
        for &node in &order {
            chains[node] = 1 + self.in_place[node].iter().map(|&next| chains[next]).max().unwrap_or(0);
        }
        let chain = chains.into_iter().max().unwrap_or(1);
        if chain > LONGEST_CHAIN {
            return Err(SchemaError::TooLarge {
                what: "schemas in a row for one value",
                limit: LONGEST_CHAIN,
            });
        }

        // Computes the work for an instance without parts, then for one level deeper, and so on, until a
        // level adds nothing (the schema does not recurse), the work is too much, or no instance can be
        // deeper.
        let mut work = vec![0_u64; order.len()];
        let mut bounds = Bounds::default();
        for level in 0..=DEEPEST_INSTANCE {
            let shallower = work.clone();
            for &node in &order {
                let same = self.in_place[node].iter().map(|&next| work[next]);
                let parts = self.into_parts[node].iter().map(|&next| shallower[next]);
                work[node] = same.chain(parts).fold(1, u64::saturating_add);
            }
            if level == 0 && work.iter().any(|&work| work > MOST_WORK) {
                return Err(SchemaError::TooLarge {
                    what: "schemas for one value",
                    limit: MOST_WORK as usize,
                });
            }
            if bounds.explained.is_none() && work[0] > MOST_WORK {
                bounds.explained = level.checked_sub(1);
            }
            if work == shallower {
                return Ok(bounds);
            }
            if bounds.checked.is_none() && chain * (level + 1) > DEEPEST_STACK {
                bounds.checked = level.checked_sub(1);
            }
        }
        Ok(bounds)
    }

    /// All nodes, each after its `in_place` targets.
    fn in_place_last_first(&self) -> Result<Vec<usize>, SchemaError> {
        let mut used_by = vec![Vec::new(); self.in_place.len()];
        let mut waits_for: Vec<usize> = self.in_place.iter().map(Vec::len).collect();
        for (node, nexts) in self.in_place.iter().enumerate() {
            for &next in nexts {
                used_by[next].push(node);
            }
        }
        let mut order: Vec<usize> = (0..waits_for.len()).filter(|&node| waits_for[node] == 0).collect();
        let mut done = 0;
        while let Some(&node) = order.get(done) {
            done += 1;
            for &user in &used_by[node] {
                waits_for[user] -= 1;
                if waits_for[user] == 0 {
                    order.push(user);
                }
            }
        }
        if done == waits_for.len() { Ok(order) } else { Err(SchemaError::Endless) }
    }
}

/// The schemas directly under `keywords` (one or a list) and `maps` (by name) of `schema`.
pub(crate) fn listed<'a>(schema: &'a Value, keywords: &[&str], maps: &[&str]) -> Vec<&'a Value> {
    let mut found = Vec::new();
    for value in keywords.iter().filter_map(|keyword| schema.get(keyword)) {
        match value {
            Value::Array(several) => found.extend(several),
            one => found.push(one),
        }
    }
    for value in maps.iter().filter_map(|keyword| schema.get(keyword)?.as_object()) {
        found.extend(value.values());
    }
    found
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |digit: Option<&u8>| digit.and_then(|&digit| char::from(digit).to_digit(16));
        match (first, hex(tail.first()), hex(tail.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_schemas_have_no_bounds() {
        for schema in [
            json!(true),
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/b"}},
                   "$defs": {"b": {"type": "integer"}}}),
            json!({"properties": {"next": {"$ref": "#"}}}),
            json!({"properties": {"$id": {"type": "string"}, "id": {"type": "string"}, "$ref": true}}),
            json!({"$defs": {"a b/c": true}, "items": {"$ref": "#/$defs/a%20b~1c"}}),
            json!({"$id": "https://example.com/own", "items": {"$ref": "https://example.com/own#"}}),
            json!({"$defs": {"x": {"$anchor": "here"}}, "items": {"$ref": "#here"}}),
            json!({"items": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}),
            json!({"default": [{"$id": "data"}], "const": "$id"}),
        ] {
            assert_eq!(measure(&schema).unwrap(), Bounds::default(), "{schema}");
        }
    }

    #[test]
    fn what_a_schema_may_not_be() {
        #[track_caller]
        fn check(schema: &Value, expected: &str) {
            let message = measure(schema).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let mut deep = json!({});
        for _ in 0..DEEPEST {
            deep = json!({"not": deep});
        }
        check(&json!({"not": deep}), "64 levels of nesting");
        check(&json!({"enum": [], "anyOf": vec![json!({}); MOST_OBJECTS]}), "8192 subschemas");
        check(&json!({"allOf": vec![json!({"pattern": "a"}); MOST_PATTERNS + 1]}), "128 patterns");
        check(&json!({"$ref": "#"}), "refers to itself");
        check(&json!({"anyOf": [{"not": {"$ref": "#/anyOf/0"}}]}), "refers to itself");
        check(&json!({"items": {"$id": "inner", "$ref": "#"}}), "embeds another one");
        check(&json!({"items": {"$ref": "other.json"}}), "`other.json`, which is outside of it");
        check(&json!({"items": {"$dynamicRef": "https://example.com/#a"}}), "outside of it");
        check(&json!({"items": {"$ref": "#/$defs/none"}}), "does not contain");
        check(&json!({"items": {"$ref": "#none"}}), "does not contain");

        let chain = |links: usize, refers: &dyn Fn(&str) -> Value| {
            let mut definitions = serde_json::Map::new();
            for link in 0..links {
                definitions.insert(link.to_string(), refers(&format!("#/$defs/{}", link + 1)));
            }
            definitions.insert(links.to_string(), json!({"type": "string"}));
            json!({"$ref": "#/$defs/0", "$defs": definitions})
        };
        check(&chain(70, &|next| json!({"$ref": next})), "64 schemas in a row");
        check(
            &chain(20, &|next| json!({"anyOf": [{"$ref": next}, {"$ref": next}]})),
            "20000 schemas for one value",
        );
    }

    #[test]
    fn branching_recursion_is_explained_only_where_that_is_cheap() {
        let again = json!({"properties": {"a": {"$ref": "#"}}});
        let bounds = measure(&json!({"anyOf": [again, again]})).unwrap();
        assert_eq!(bounds.checked, None);
        assert!(matches!(bounds.explained, Some(8..=14)), "{bounds:?}");
    }

    #[test]
    fn depth_counts_levels() {
        assert_eq!(depth(&json!(1)), 0);
        assert_eq!(depth(&json!([])), 0);
        assert_eq!(depth(&json!({"a": [1, {"b": 2}], "c": 3})), 3);
    }
}
