//! Makes new values: one that the schema itself offers, else the smallest that fits it.

use serde_json::{Number, Value, json};

use super::CastSource;
use super::walk::{DEEPEST, Node, View, Walk, list, weight};

/// How many offered values are tried.
const MOST_VALUES: usize = 64;
/// The longest text that is made.
const LONGEST_TEXT: u64 = 64 * 1024;
/// 2^53: up to here a float represents every whole number exactly.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

/// The kinds of values, the smallest first.
const KINDS: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// A text for each format that the older dialects check; the newer ones check none.
const FORMATS: [(&str, &str); 9] = [
    ("date-time", "1970-01-01T00:00:00Z"),
    ("date", "1970-01-01"),
    ("time", "00:00:00Z"),
    ("email", "a@b.c"),
    ("hostname", "a"),
    ("ipv4", "0.0.0.0"),
    ("ipv6", "::"),
    ("uri", "a:"),
    ("iri", "a:"),
];

impl<'s> Walk<'s> {
    /// Makes a value that fits `node`; returns it with its source.
    pub(super) fn fill(&mut self, node: Node<'s>, depth: usize) -> Option<(Value, CastSource)> {
        if depth > DEEPEST || self.exhausted() || !self.making.insert(std::ptr::from_ref(node)) {
            return None;
        }
        let views = self.views(node);
        let filled = self.offered(node, &views).or_else(|| {
            let made = views.iter().find_map(|view| self.smallest(node, view, depth));
            made.map(|value| (value, CastSource::Smallest))
        });
        self.making.remove(&std::ptr::from_ref(node));
        filled
    }

    /// A value that the schema itself offers.
    fn offered(&mut self, node: Node<'s>, views: &[View<'s>]) -> Option<(Value, CastSource)> {
        let one = |keyword: &'static str, source| {
            views.iter().flatten().filter_map(move |part| part.get(keyword)).map(move |value| (value, source))
        };
        let several =
            views.iter().flatten().flat_map(|part| list(part, "enum")).map(|value| (value, CastSource::Enum));
        let offers: Vec<_> = one("default", CastSource::Default)
            .chain(one("const", CastSource::Const))
            .chain(several)
            .take(MOST_VALUES)
            .collect();
        let fitting = offers.into_iter().find(|(value, _)| self.fits(node, value));
        fitting.and_then(|(value, source)| self.afford(weight(value)).then(|| (value.clone(), source)))
    }

    fn smallest(&mut self, node: Node<'s>, view: &View<'s>, depth: usize) -> Option<Value> {
        let allowed = |kind: &str| {
            let named = |stated: &Value| stated == kind || (stated == "number" && kind == "integer");
            view.iter().filter_map(|part| part.get("type")).all(|stated| match stated {
                Value::Array(several) => several.iter().any(named),
                one => named(one),
            })
        };
        KINDS.into_iter().filter(|kind| allowed(kind)).find_map(|kind| {
            let candidates = match kind {
                "null" => vec![Value::Null],
                "boolean" => vec![json!(false), json!(true)],
                "integer" => numbers(view, true),
                "number" => numbers(view, false),
                "string" => texts(view),
                "array" => {
                    self.mend(view, &json!([]), "", depth).map(|made| made.value).into_iter().collect()
                }
                _ => self.mend(view, &json!({}), "", depth).map(|made| made.value).into_iter().collect(),
            };
            candidates.into_iter().find(|candidate| self.fits(node, candidate))
        })
    }
}

/// Numbers close to the bounds and steps in the schemas, the closest to zero first.
fn numbers(view: &View<'_>, whole: bool) -> Vec<Value> {
    let stated = |keywords: &[&str]| -> Vec<&Number> {
        let all =
            view.iter().flat_map(|part| keywords.iter().filter_map(|keyword| part.get(keyword)?.as_number()));
        all.collect()
    };
    let bounds = stated(&["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]);
    let steps: Vec<f64> = stated(&["multipleOf"]).iter().filter_map(|step| step.as_f64()).collect();
    let edges: Vec<f64> = bounds.iter().filter_map(|bound| bound.as_f64()).collect();
    let mut near = vec![0.0];
    for &edge in &edges {
        near.extend([edge, edge.ceil(), edge.floor(), edge.ceil() + 1.0, edge.floor() - 1.0]);
        near.extend(edges.iter().map(|other| f64::midpoint(edge, *other)));
        for step in &steps {
            let times = edge / step;
            near.extend(
                [times.ceil(), times.floor(), times.ceil() + 1.0, times.floor() - 1.0]
                    .map(|times| times * step),
            );
        }
    }
    near.extend(&steps);
    near.retain(|number| !whole || number.fract() == 0.0);
    near.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    near.dedup();
    let exact = |&number: &f64| match number {
        whole if whole.fract() == 0.0 && whole.abs() <= LARGEST_EXACT => Some(Number::from(whole as i64)),
        other => Number::from_f64(other),
    };
    // The integer bounds themselves come last: they are exact where a float is not.
    let whole_bounds = bounds.into_iter().filter(|bound| !bound.is_f64()).cloned();
    near.iter().filter_map(exact).chain(whole_bounds).map(Value::Number).collect()
}

fn texts(view: &View<'_>) -> Vec<Value> {
    let least = view.iter().filter_map(|part| part.get("minLength")?.as_u64()).max().unwrap_or(0);
    let Some(least) = usize::try_from(least).ok().filter(|_| least <= LONGEST_TEXT) else {
        return Vec::new();
    };
    let mut texts = vec!["a".repeat(least), "0".repeat(least), "A".repeat(least)];
    if least == 0 {
        texts.extend(["a", "0", "A"].map(str::to_owned));
    }
    for part in view {
        if let Some(format) = part.get("format").and_then(Value::as_str) {
            let known = FORMATS.iter().filter(|(name, _)| *name == format);
            texts.extend(known.map(|(_, text)| (*text).to_owned()));
        }
        // A pattern that is only literal text matches that text.
        if let Some(pattern) = part.get("pattern").and_then(Value::as_str) {
            texts.push(pattern.trim_start_matches('^').trim_end_matches('$').replace('\\', ""));
        }
    }
    texts.into_iter().map(Value::from).collect()
}
