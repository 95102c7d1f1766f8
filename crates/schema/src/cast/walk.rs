//! Walks through a schema and a value together, within a work budget.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::CastChange;
use crate::complexity::Document;
use crate::validator::options;

/// How many levels of a value are examined; deeper parts are kept or replaced as a whole.
pub(super) const DEEPEST: usize = 48;
/// How many choices of a schema's alternatives are tried for one value.
const MOST_VIEWS: usize = 16;
/// The work that is always allowed, and how much more each part of the value adds.
const WORK: u64 = 400_000;
const WORK_PER_PART: u64 = 64;
/// The work of compiling a part of a schema, for each object in the whole schema.
const WORK_TO_COMPILE: u64 = 10;
/// The base URI of the schema here, whatever its own identifier is: relative references resolve against it.
const BASE: &str = "bridgehead:///schema";

/// A schema, as a part of the document.
pub(super) type Node<'s> = &'s Value;

/// The schemas that apply together to one value, for one choice of the alternatives.
pub(super) type View<'s> = Vec<Node<'s>>;

/// A value after mending, and whether it fits now.
pub(super) struct Fitted {
    pub(super) value: Value,
    pub(super) changes: Vec<CastChange>,
    pub(super) fits: bool,
}

pub(super) struct Walk<'s> {
    pub(super) root: Node<'s>,
    document: Document<'s>,
    places: HashMap<*const Value, String>,
    registry: jsonschema::Registry<'s>,
    parts: &'s Mutex<HashMap<String, Arc<jsonschema::Validator>>>,
    /// The parts whose compilation this walk has paid for. An earlier compilation by another walk must not change
    /// the outcome.
    paid: HashMap<*const Value, Arc<jsonschema::Validator>>,
    patterns: HashMap<&'s str, Option<jsonschema::Validator>>,
    left: u64,
    /// Schemas for which a value is being made: the smallest value of a schema does not contain itself.
    pub(super) making: HashSet<*const Value>,
}

impl<'s> Walk<'s> {
    pub(super) fn over(
        root: Node<'s>,
        parts: &'s Mutex<HashMap<String, Arc<jsonschema::Validator>>>,
        value: &Value,
    ) -> Option<Self> {
        let registry = jsonschema::Registry::new().add(BASE, root).ok()?.prepare().ok()?;
        let mut places = HashMap::new();
        locate(root, &mut String::new(), &mut places);
        Some(Self {
            root,
            document: Document::of(root).ok()?,
            places,
            registry,
            parts,
            paid: HashMap::new(),
            patterns: HashMap::new(),
            left: WORK.saturating_add(WORK_PER_PART.saturating_mul(weight(value))),
            making: HashSet::new(),
        })
    }

    /// Spends work; false if the budget is too small.
    pub(super) fn afford(&mut self, work: u64) -> bool {
        let affordable = self.left >= work;
        self.left = self.left.saturating_sub(work);
        affordable
    }

    pub(super) const fn exhausted(&self) -> bool {
        self.left == 0
    }

    /// Whether `value` fits `node`; false if that cannot be determined.
    pub(super) fn fits(&mut self, node: Node<'s>, value: &Value) -> bool {
        if let Value::Bool(flag) = node {
            return *flag;
        }
        if !self.afford(weight(value)) {
            return false;
        }
        self.compiled(node).is_some_and(|compiled| compiled.is_valid(value))
    }

    fn compiled(&mut self, node: Node<'s>) -> Option<Arc<jsonschema::Validator>> {
        let key = std::ptr::from_ref(node);
        if let Some(paid) = self.paid.get(&key) {
            return Some(Arc::clone(paid));
        }
        if !self.afford(WORK_TO_COMPILE * self.document.objects as u64) {
            return None;
        }
        let place = self.places.get(&key)?;
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = match parts.get(place) {
            Some(known) => Arc::clone(known),
            None => {
                let built = Arc::new(self.build(place)?);
                parts.insert(place.clone(), Arc::clone(&built));
                built
            }
        };
        self.paid.insert(key, Arc::clone(&compiled));
        Some(compiled)
    }

    fn build(&self, place: &str) -> Option<jsonschema::Validator> {
        // The dialect is that of the referenced document.
        let part = json!({"$ref": format!("{BASE}#{}", fragment(place))});
        options().with_registry(&self.registry).build(&part).ok()
    }

    /// Whether a name matches a pattern of `patternProperties`.
    pub(super) fn meets(&mut self, pattern: &'s str, name: &str) -> bool {
        if !self.afford(1) {
            return false;
        }
        let build = || options().build(&json!({"pattern": pattern})).ok();
        let compiled = self.patterns.entry(pattern).or_insert_with(build);
        compiled.as_ref().is_some_and(|compiled| compiled.is_valid(&Value::from(name)))
    }

    /// The views of `node`: the schemas that apply to its value, for each choice of the alternatives.
    pub(super) fn views(&mut self, node: Node<'s>) -> Vec<View<'s>> {
        self.extended(vec![View::new()], node)
    }

    fn extended(&mut self, mut views: Vec<View<'s>>, node: Node<'s>) -> Vec<View<'s>> {
        if !self.afford(views.len() as u64) {
            return views;
        }
        views.iter_mut().for_each(|view| view.push(node));
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(reference) = node.get(keyword).and_then(Value::as_str) else { continue };
            for target in self.document.resolve(reference).unwrap_or_default() {
                views = self.extended(views, target);
            }
        }
        for part in list(node, "allOf") {
            views = self.extended(views, part);
        }
        for keyword in ["anyOf", "oneOf"] {
            let branches = list(node, keyword);
            if !branches.is_empty() {
                views = self.branched(&views, branches.iter().map(|branch| vec![branch]));
            }
        }
        if let Some(condition) = node.get("if") {
            let then = std::iter::once(condition).chain(node.get("then")).collect();
            views =
                self.branched(&views, [then, node.get("else").into_iter().collect::<Vec<_>>()].into_iter());
        }
        views
    }

    fn branched(
        &mut self,
        views: &[View<'s>],
        branches: impl Iterator<Item = Vec<Node<'s>>>,
    ) -> Vec<View<'s>> {
        let mut all = Vec::new();
        for branch in branches {
            let chosen = branch.into_iter().fold(views.to_vec(), |views, node| self.extended(views, node));
            all.extend(chosen);
            if all.len() >= MOST_VIEWS {
                all.truncate(MOST_VIEWS);
                break;
            }
        }
        all
    }
}

/// The schemas of a list under `keyword`.
pub(super) fn list<'s>(node: Node<'s>, keyword: &str) -> &'s [Value] {
    node.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How many parts a value has, including itself.
pub(super) fn weight(value: &Value) -> u64 {
    let mut parts = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        parts += 1;
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => open.extend(members.values()),
            // A long text takes more time.
            Value::String(text) => parts += text.len() as u64 / 64,
            _ => {}
        }
    }
    parts
}

/// The path, extended by one step.
pub(super) fn below(path: &str, step: &str) -> String {
    format!("{path}/{}", crate::escaped_pointer(step))
}

fn locate(value: &Value, place: &mut String, places: &mut HashMap<*const Value, String>) {
    places.insert(std::ptr::from_ref(value), place.clone());
    let mut step = |name: &str, part: &Value| {
        let here = place.len();
        place.push_str(&below("", name));
        locate(part, place, places);
        place.truncate(here);
    };
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| step(&at.to_string(), item)),
        Value::Object(members) => members.iter().for_each(|(name, member)| step(name, member)),
        _ => {}
    }
}

/// A JSON pointer as the fragment of a URI.
fn fragment(pointer: &str) -> String {
    let mut encoded = String::with_capacity(pointer.len());
    for byte in pointer.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ENV-5: the weight of a value in the budget.
    #[test]
    fn the_weight_of_a_value() {
        #[track_caller]
        fn check(value: &Value, expected: u64) {
            assert_eq!(weight(value), expected, "{value}");
        }
        for scalar in [json!(null), json!(true), json!(1), json!(""), json!([]), json!({})] {
            check(&scalar, 1);
        }
        check(&json!("a".repeat(63)), 1);
        check(&json!("a".repeat(64)), 2);
        check(&json!("a".repeat(640)), 11);
        check(&json!([1, 2, [3]]), 5);
        check(&json!({"a": 1, "b": {"c": [2]}}), 5);
        check(&json!(["a".repeat(128), {"a": "a".repeat(64)}]), 7);
    }

    /// ENV-5: the budget of a walk grows with the value. Checks, first compilations of a schema and views of a
    /// schema spend it, and without budget no check succeeds.
    #[test]
    fn the_budget_of_a_walk() {
        let schema = json!({"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["b"]}, true]});
        let part = &schema["properties"]["a"];
        let parts = Mutex::default();
        let value = json!({"a": [1, 2]});
        let mut walk = Walk::over(&schema, &parts, &value).unwrap();
        assert_eq!(walk.left, 400_000 + 64 * 4);

        // Four objects in the schema.
        walk.left = 1_000;
        assert!(walk.fits(part, &json!(1)));
        assert_eq!(walk.left, 1_000 - 1 - 4 * 10);
        assert!(!walk.fits(part, &json!([1, 2])));
        assert_eq!(walk.left, 959 - 3, "it is already compiled");
        assert!(walk.fits(&schema["anyOf"][1], &value));
        assert_eq!(walk.left, 956, "this needs no check");
        let views: Vec<usize> = walk.views(&schema).iter().map(Vec::len).collect();
        assert_eq!((views, walk.left), (vec![2, 2], 956 - 3));

        let either = json!({"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "array"}]});
        let choices = json!({"allOf": [either, either, either]});
        let mut many = Walk::over(&choices, &parts, &value).unwrap();
        assert_eq!(many.views(&choices["allOf"][0]).len(), 3);
        assert_eq!(many.views(&choices).len(), MOST_VIEWS, "not all 27");

        // Another walk has compiled it, which changes nothing.
        let mut another = Walk::over(&schema, &parts, &value).unwrap();
        another.left = 40;
        assert!(!another.fits(part, &json!(1)));
        assert!(another.exhausted());
        assert!(!another.fits(part, &json!(1)));
        assert_eq!(another.views(&schema), [View::new()]);

        walk.left = 3;
        assert!(walk.afford(3));
        assert!(walk.exhausted());
        assert!(!walk.afford(1));
        walk.left = 3;
        assert!(!walk.afford(4));
        assert!(walk.exhausted(), "work beyond the budget takes all that is left");
    }
}
