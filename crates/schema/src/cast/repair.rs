//! Mends a value from within: the parts that fit stay.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::walk::{DEEPEST, Fitted, Node, View, Walk, below, list};
use super::{Cast, CastChange};

/// Lists that need more elements are not filled.
const LONGEST_LIST: u64 = 1_000;

impl<'s> Walk<'s> {
    /// One round over the whole value. Changes nothing if the work exceeds the budget.
    pub(super) fn cast(mut self, value: &Value) -> Cast {
        let fitted = self.fit(self.root, value, "", 0);
        if self.exhausted() && !fitted.fits {
            return Cast { value: value.clone(), changes: Vec::new(), issues: Vec::new() };
        }
        Cast { value: fitted.value, changes: fitted.changes, issues: Vec::new() }
    }

    /// Makes `found` fit `node` with the fewest changes; leaves it as it is if nothing fits.
    fn fit(&mut self, node: Node<'s>, found: &Value, path: &str, depth: usize) -> Fitted {
        let kept = |fits| Fitted { value: found.clone(), changes: Vec::new(), fits };
        if self.fits(node, found) {
            return kept(true);
        }
        if depth > DEEPEST || self.exhausted() {
            return kept(false);
        }
        let mut best: Option<Fitted> = None;
        let mut partly: Option<Fitted> = None;
        let views = self.views(node);
        let only = views.len() == 1;
        for view in views {
            let Some(mended) = self.mend(&view, found, path, depth) else { continue };
            if best.as_ref().is_some_and(|best| best.changes.len() <= mended.changes.len()) {
                continue;
            }
            if self.fits(node, &mended.value) {
                best = Some(Fitted { fits: true, ..mended });
            } else if only {
                partly = Some(mended);
            }
        }
        if let Some(best) = best {
            return best;
        }
        if let Some((value, source)) = self.fill(node, depth) {
            let change = CastChange::Replace { path: path.to_owned(), value: value.clone(), source };
            return Fitted { value, changes: vec![change], fits: true };
        }
        partly.unwrap_or_else(|| kept(false))
    }

    /// Mends the parts of `found` as `view` describes them; `None` if it has no parts.
    pub(super) fn mend(
        &mut self,
        view: &View<'s>,
        found: &Value,
        path: &str,
        depth: usize,
    ) -> Option<Fitted> {
        match found {
            Value::Object(members) => Some(self.mend_object(view, members, path, depth)),
            Value::Array(items) => Some(self.mend_list(view, items, path, depth)),
            _ => None,
        }
    }

    fn mend_object(
        &mut self,
        view: &View<'s>,
        found: &Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Fitted {
        let (mut members, mut changes) = (Map::new(), Vec::new());
        let mut required: BTreeSet<&'s str> =
            view.iter().flat_map(|node| list(node, "required")).filter_map(Value::as_str).collect();
        for (name, value) in found {
            let schemas = self.of_member(view, name);
            let refused = schemas.contains(&&Value::Bool(false)) || !self.may_be_named(view, name);
            let mended =
                if refused { None } else { self.fit_all(&schemas, value, &below(path, name), depth) };
            match mended {
                Some(mended) if mended.fits || required.contains(name.as_str()) => {
                    changes.extend(mended.changes);
                    members.insert(name.clone(), mended.value);
                }
                // Surplus, or beyond repair and not required.
                _ => changes.push(CastChange::Remove { path: below(path, name) }),
            }
        }
        for node in view {
            let dependent = node.get("dependentRequired").and_then(Value::as_object);
            for (name, needed) in dependent.into_iter().flatten() {
                if members.contains_key(name) || required.contains(name.as_str()) {
                    required.extend(needed.as_array().into_iter().flatten().filter_map(Value::as_str));
                }
            }
        }
        for name in required {
            if members.contains_key(name) {
                continue;
            }
            let schemas = self.of_member(view, name);
            if let Some(change) = self.filled(&schemas, &below(path, name), depth)
                && let CastChange::Add { value, .. } = &change
            {
                members.insert(name.to_owned(), value.clone());
                changes.push(change);
            }
        }
        Fitted { value: Value::Object(members), changes, fits: false }
    }

    fn mend_list(&mut self, view: &View<'s>, found: &[Value], path: &str, depth: usize) -> Fitted {
        let (mut items, mut changes): (Vec<Value>, Vec<CastChange>) = Default::default();
        let number = |keyword| view.iter().filter_map(move |node| node.get(keyword).and_then(Value::as_u64));
        let most = number("maxItems").min().unwrap_or(u64::MAX);
        let mut closed = false;
        for item in found {
            let at = below(path, &items.len().to_string());
            let schemas = self.of_item(view, items.len());
            closed |= schemas.contains(&&Value::Bool(false)) || items.len() as u64 >= most;
            let mended = if closed { None } else { self.fit_all(&schemas, item, &at, depth) };
            match mended {
                Some(mended) if mended.fits || self.is_placed(view, items.len()) => {
                    changes.extend(mended.changes);
                    items.push(mended.value);
                }
                _ => changes.push(CastChange::Remove { path: at }),
            }
        }
        let least = number("minItems").max().unwrap_or(0);
        while least <= LONGEST_LIST && (items.len() as u64) < least {
            let schemas = self.of_item(view, items.len());
            let filled = self.filled(&schemas, &below(path, &items.len().to_string()), depth);
            let Some(CastChange::Add { path, value, source }) = filled else { break };
            items.push(value.clone());
            changes.push(CastChange::Add { path, value, source });
        }
        for node in view {
            let Some(wanted) = node.get("contains") else { continue };
            let least = node.get("minContains").and_then(Value::as_u64).unwrap_or(1);
            let mut contained = items.iter().filter(|item| self.fits(wanted, item)).count() as u64;
            while least <= LONGEST_LIST && contained < least {
                let filled = self.filled(&[wanted], &below(path, &items.len().to_string()), depth);
                let Some(CastChange::Add { path, value, source }) = filled else { break };
                items.push(value.clone());
                changes.push(CastChange::Add { path, value, source });
                contained += 1;
            }
        }
        Fitted { value: Value::Array(items), changes, fits: false }
    }

    /// Makes `found` fit all of `schemas`, one after the other.
    fn fit_all(&mut self, schemas: &[Node<'s>], found: &Value, path: &str, depth: usize) -> Option<Fitted> {
        let mut fitted = Fitted { value: found.clone(), changes: Vec::new(), fits: true };
        for node in schemas {
            let next = self.fit(node, &fitted.value, path, depth + 1);
            fitted.changes.extend(next.changes);
            fitted.fits &= next.fits;
            fitted.value = next.value;
        }
        Some(fitted)
    }

    /// Makes a value that fits all of `schemas`, for an empty place.
    fn filled(&mut self, schemas: &[Node<'s>], path: &str, depth: usize) -> Option<CastChange> {
        let mut made = None;
        for node in schemas {
            // The value made for one schema may fit the next one too.
            if let Some((value, _)) = &made
                && self.fits(node, value)
            {
                continue;
            }
            made = Some(self.fill(node, depth + 1)?);
        }
        let (value, source) = made.unwrap_or((json!(null), super::CastSource::Smallest));
        self.afford(super::walk::weight(&value)).then(|| CastChange::Add {
            path: path.to_owned(),
            value,
            source,
        })
    }

    /// The schemas for a member. `unevaluatedProperties` considers the whole view, the other keywords only those
    /// beside them.
    fn of_member(&mut self, view: &View<'s>, name: &str) -> Vec<Node<'s>> {
        let mut schemas = Vec::new();
        for node in view {
            let before = schemas.len();
            schemas.extend(node.get("properties").and_then(|properties| properties.get(name)));
            let patterns = node.get("patternProperties").and_then(Value::as_object);
            for (pattern, schema) in patterns.into_iter().flatten() {
                if self.meets(pattern, name) {
                    schemas.push(schema);
                }
            }
            if schemas.len() == before {
                schemas.extend(node.get("additionalProperties"));
            }
        }
        if schemas.is_empty() {
            schemas.extend(view.iter().filter_map(|node| node.get("unevaluatedProperties")));
        }
        schemas
    }

    /// Whether a member may have this name at all.
    fn may_be_named(&mut self, view: &View<'s>, name: &str) -> bool {
        view.iter().filter_map(|node| node.get("propertyNames")).all(|names| self.fits(names, &json!(name)))
    }

    /// The schemas for an element. In older dialects `items` may be a list, with `additionalItems` for the rest.
    fn of_item(&mut self, view: &View<'s>, at: usize) -> Vec<Node<'s>> {
        let mut schemas = Vec::new();
        for node in view {
            let (placed, rest) = match node.get("items") {
                Some(Value::Array(placed)) => (placed.as_slice(), node.get("additionalItems")),
                rest => (list(node, "prefixItems"), rest),
            };
            schemas.extend(placed.get(at).or(rest));
        }
        if schemas.is_empty() {
            schemas.extend(view.iter().filter_map(|node| node.get("unevaluatedItems")));
        }
        schemas
    }

    /// Whether an element has a meaning by its position, so that it cannot be removed.
    fn is_placed(&self, view: &View<'s>, at: usize) -> bool {
        view.iter().any(|node| {
            let placed =
                node.get("items").filter(|items| items.is_array()).or_else(|| node.get("prefixItems"));
            placed.and_then(Value::as_array).is_some_and(|placed| at < placed.len())
        })
    }
}
