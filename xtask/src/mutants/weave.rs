//! Writes all mutants of one source file into it at once, each behind a switch that a test run turns on.
//!
//! Building the workspace once per mutant would take days. With weaving, thousands of mutants are built at once, and trying
//! one costs only the time of its tests. A mutant that cannot be written this way (in a `const`, or in a condition with
//! `let`) is left out and reported.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::list::{Genre, Mutant};

/// The function that says whether a mutant is on. It is added to the root of every crate.
const ON: &str = "crate::mutant_switch::on";

/// A file with its mutants in it.
pub(super) struct Woven {
    pub(super) text: String,
    /// The regions of the text that belong to a mutant; a mutant may have several.
    pub(super) regions: Vec<(Range<usize>, u32)>,
    /// The mutants that could not be woven in.
    pub(super) left_out: Vec<u32>,
}

/// Weaves mutants of one file into its text.
pub(super) fn weave(source: &str, mutants: &[(u32, &Mutant)]) -> Result<Woven> {
    let file = syn::parse_file(source).context("it is not valid Rust")?;
    let lines = Lines::of(source);
    let mut map = Map::new(&lines);
    map.visit_file(&file);
    let mut edits = Edits::default();
    let mut left_out = Vec::new();
    for (id, mutant) in mutants {
        let range = lines.offset(mutant.start)..lines.offset(mutant.end);
        if !edits.add(*id, mutant, range, &map, source) {
            left_out.push(*id);
        }
    }
    let edits = edits.sorted();
    let mut out = Out { source, edits: &edits, text: String::new(), regions: Vec::new() };
    out.render(0..source.len(), 0);
    Ok(Woven { text: out.text, regions: out.regions, left_out })
}

/// The offsets at which lines begin.
struct Lines<'a> {
    source: &'a str,
    begins: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(source: &'a str) -> Self {
        let breaks = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { source, begins: std::iter::once(0).chain(breaks).collect() }
    }

    /// The offset of a line and column. Both count from one; the column counts characters.
    fn offset(&self, (line, column): (usize, usize)) -> usize {
        let begin = self.begins.get(line - 1).copied().unwrap_or(self.source.len());
        let rest = &self.source[begin..];
        begin + rest.char_indices().nth(column - 1).map_or(rest.len(), |(at, _)| at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        let offset = |at: LineColumn| self.offset((at.line, at.column + 1));
        offset(span.start())..offset(span.end())
    }
}

/// The places of a file that mutants may change.
struct Map<'a> {
    lines: &'a Lines<'a>,
    /// By the start of the operator.
    binary: BTreeMap<usize, Binary>,
    unary: BTreeMap<usize, (Range<usize>, Range<usize>)>,
    /// Arms by their start: the end of the pattern, and the guard. `guards` has the guards by their start.
    arms: BTreeMap<usize, (usize, Option<Range<usize>>)>,
    guards: BTreeMap<usize, Range<usize>>,
    /// By the start of the field: the whole expression, and the field with its comma.
    fields: BTreeMap<usize, (Range<usize>, Range<usize>)>,
    /// What is evaluated at compile time.
    constant: Vec<Range<usize>>,
    /// Functions with `impl` in their return type: the body decides the type, so they cannot return another value early.
    opaque: Vec<Range<usize>>,
}

#[derive(Clone)]
struct Binary {
    whole: Range<usize>,
    left: Range<usize>,
    right: Range<usize>,
    /// Whether it is part of a condition with `let`.
    lets: bool,
}

impl<'a> Map<'a> {
    const fn new(lines: &'a Lines<'a>) -> Self {
        Self {
            lines,
            binary: BTreeMap::new(),
            unary: BTreeMap::new(),
            arms: BTreeMap::new(),
            guards: BTreeMap::new(),
            fields: BTreeMap::new(),
            constant: Vec::new(),
            opaque: Vec::new(),
        }
    }

    fn function(&mut self, signature: &syn::Signature, whole: Range<usize>) {
        if signature.constness.is_some() {
            self.constant.push(whole.clone());
        }
        let mut result = Opaque(false);
        result.visit_return_type(&signature.output);
        if result.0 {
            self.opaque.push(whole);
        }
    }

    fn of(&self, node: &impl Spanned) -> Range<usize> {
        self.lines.range(node.span())
    }
}

impl<'ast> Visit<'ast> for Map<'_> {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let lets = has_let(&node.left) || has_let(&node.right);
        let binary =
            Binary { whole: self.of(node), left: self.of(&node.left), right: self.of(&node.right), lets };
        self.binary.insert(self.of(&node.op).start, binary);
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        self.unary.insert(self.of(&node.op).start, (self.of(node), self.of(&node.expr)));
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        // Without a wildcard arm, a `match` that lacks one of its arms does not compile.
        let rest = |arm: &syn::Arm| arm.guard.is_none() && matches!(arm.pat, syn::Pat::Wild(_));
        let may_go = node.arms.iter().any(rest);
        for arm in &node.arms {
            let guard = arm.guard.as_ref().map(|(_, guard)| self.of(guard));
            if let Some(guard) = &guard {
                self.guards.insert(guard.start, guard.clone());
            }
            if may_go {
                self.arms.insert(self.of(arm).start, (self.of(&arm.pat).end, guard));
            }
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        for field in node.fields.pairs() {
            let whole = field.punct().map_or_else(|| self.of(field.value()).end, |comma| self.of(comma).end);
            let begin = self.of(field.value()).start;
            self.fields.insert(begin, (self.of(node), begin..whole));
        }
        visit::visit_expr_struct(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.sig, self.of(node));
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.sig, self.of(node));
        visit::visit_impl_item_fn(self, node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.constant.push(self.of(node));
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.constant.push(self.of(node));
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.constant.push(self.of(node));
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.constant.push(self.of(node));
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.constant.push(self.of(&node.len));
        visit::visit_expr_repeat(self, node);
    }
}

/// Whether a type contains `impl`.
struct Opaque(bool);

impl<'ast> Visit<'ast> for Opaque {
    fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
        self.0 = true;
    }
}

fn is_within(range: &Range<usize>, places: &[Range<usize>]) -> bool {
    places.iter().any(|place| place.start <= range.start && range.end <= place.end)
}

fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// One change of the text.
enum Edit {
    /// A function returns another value at its first line.
    Return {
        at: usize,
        id: u32,
        value: String,
    },
    Binary {
        place: Binary,
        operator: String,
        others: Vec<(u32, String)>,
    },
    Unary {
        whole: Range<usize>,
        operand: Range<usize>,
        operator: String,
        id: u32,
    },
    /// An arm of a `match`. Without a guard the range is empty and lies behind the pattern.
    Arm {
        guard: Range<usize>,
        deleted: Option<u32>,
        always: Option<u32>,
        never: Option<u32>,
    },
    Fields {
        whole: Range<usize>,
        fields: Vec<(u32, Range<usize>)>,
    },
}

impl Edit {
    fn range(&self) -> Range<usize> {
        match self {
            Self::Return { at, .. } => *at..*at,
            Self::Binary { place, .. } => place.whole.clone(),
            Self::Unary { whole, .. } | Self::Fields { whole, .. } => whole.clone(),
            Self::Arm { guard, .. } => guard.clone(),
        }
    }
}

#[derive(Default)]
struct Edits {
    returns: Vec<Edit>,
    /// By their range and genre: mutants of one place share an edit.
    places: BTreeMap<(usize, usize, Genre), Edit>,
}

impl Edits {
    /// Adds a mutant; returns whether it can be woven in.
    fn add(&mut self, id: u32, mutant: &Mutant, range: Range<usize>, map: &Map<'_>, source: &str) -> bool {
        if is_within(&range, &map.constant) {
            return false;
        }
        match mutant.genre {
            Genre::FnValue if is_within(&range, &map.opaque) => return false,
            Genre::FnValue => {
                self.returns.push(Edit::Return { at: range.start, id, value: mutant.replacement.clone() });
            }
            Genre::BinaryOperator => {
                let Some(place) = map.binary.get(&range.start).filter(|place| !place.lets) else {
                    return false;
                };
                let operator = source[range].to_owned();
                let key = (place.whole.start, place.whole.end, mutant.genre);
                let edit = self.places.entry(key).or_insert_with(|| Edit::Binary {
                    place: place.clone(),
                    operator,
                    others: Vec::new(),
                });
                if let Edit::Binary { others, .. } = edit {
                    others.push((id, mutant.replacement.clone()));
                }
            }
            Genre::UnaryOperator => {
                let Some((whole, operand)) = map.unary.get(&range.start).cloned() else { return false };
                let operator = source[range].to_owned();
                self.places.insert(
                    (whole.start, whole.end, mutant.genre),
                    Edit::Unary { whole, operand, operator, id },
                );
            }
            Genre::MatchArm => {
                let Some((pattern, guard)) = map.arms.get(&range.start).cloned() else { return false };
                let guard = guard.unwrap_or(pattern..pattern);
                if let Edit::Arm { deleted, .. } = self.arm(guard) {
                    *deleted = Some(id);
                }
            }
            Genre::MatchArmGuard => {
                let Some(guard) = map.guards.get(&range.start).cloned() else { return false };
                if let Edit::Arm { always, never, .. } = self.arm(guard) {
                    *(if mutant.replacement == "true" { always } else { never }) = Some(id);
                }
            }
            Genre::StructField => {
                let Some((whole, field)) = map.fields.get(&range.start).cloned() else { return false };
                let key = (whole.start, whole.end, mutant.genre);
                let edit =
                    self.places.entry(key).or_insert_with(|| Edit::Fields { whole, fields: Vec::new() });
                if let Edit::Fields { fields, .. } = edit {
                    fields.push((id, field));
                }
            }
        }
        true
    }

    fn arm(&mut self, guard: Range<usize>) -> &mut Edit {
        self.places.entry((guard.start, guard.end, Genre::MatchArmGuard)).or_insert(Edit::Arm {
            guard,
            deleted: None,
            always: None,
            never: None,
        })
    }

    /// Sorted by their start, an outer edit before the edits inside it.
    fn sorted(self) -> Vec<Edit> {
        let mut all: Vec<Edit> = self.returns.into_iter().chain(self.places.into_values()).collect();
        all.sort_by_key(|edit| {
            let range = edit.range();
            // A return comes before the expression that begins at the same place; a guard is outside its own parts.
            let inside = !matches!(edit, Edit::Return { .. });
            (range.start, inside, std::cmp::Reverse(range.end), !matches!(edit, Edit::Arm { .. }))
        });
        all
    }
}

struct Out<'a> {
    source: &'a str,
    edits: &'a [Edit],
    text: String,
    regions: Vec<(Range<usize>, u32)>,
}

impl Out<'_> {
    /// Writes a part of the source with all edits in it, from edit number `from` on.
    fn render(&mut self, range: Range<usize>, from: usize) {
        let mut at = range.start;
        let edits = self.edits;
        for (index, edit) in edits.iter().enumerate().skip(from) {
            let place = edit.range();
            if place.start >= range.end {
                break;
            }
            if place.start >= at && place.end <= range.end {
                self.text.push_str(&self.source[at..place.start]);
                at = place.end;
                self.edit(edit, index + 1);
            }
        }
        self.text.push_str(&self.source[at..range.end]);
    }

    fn edit(&mut self, edit: &Edit, next: usize) {
        match edit {
            Edit::Return { id, value, .. } => self.region(*id, |out| {
                out.push(&format!("if {ON}({id}) {{ return {value}; }}\n"));
            }),
            Edit::Binary { place, operator, others } => self.binary(place, operator, others, next),
            Edit::Unary { operand, operator, id, .. } => {
                self.push(&format!("(if {ON}({id}) {{ "));
                self.region(*id, |out| out.group(operand, next));
                self.push(&format!(" }} else {{ {operator}"));
                self.group(operand, next);
                self.push(" })");
            }
            Edit::Arm { guard, deleted, always, never } => self.arm(guard, [*deleted, *always, *never], next),
            Edit::Fields { whole, fields } => {
                self.push("(");
                for (id, field) in fields {
                    self.push(&format!("if {ON}({id}) {{ "));
                    self.region(*id, |out| {
                        out.render(whole.start..field.start, next);
                        out.render(field.end..whole.end, next);
                    });
                    self.push(" } else ");
                }
                self.push("{ ");
                self.render(whole.clone(), next);
                self.push(" })");
            }
        }
    }

    fn binary(&mut self, place: &Binary, operator: &str, others: &[(u32, String)], next: usize) {
        match (operator, others) {
            ("==" | "!=", [(id, _)]) => self.region(*id, |out| {
                out.push(&format!("({ON}({id}) != ("));
                out.group(&place.left, next);
                out.push(operator);
                out.group(&place.right, next);
                out.push("))");
            }),
            ("&&" | "||", [(id, _)]) => self.region(*id, |out| {
                let ends = if operator == "&&" { "==" } else { "!=" };
                out.push("({ let __left: bool = ");
                out.group(&place.left, next);
                out.push(&format!("; if __left {ends} {ON}({id}) {{ __left }} else {{ "));
                out.group(&place.right, next);
                out.push(" } })");
            }),
            _ => {
                self.push("(");
                for (id, other) in others {
                    self.push(&format!("if {ON}({id}) {{ "));
                    self.region(*id, |out| out.operation(place, other, next));
                    self.push(" } else ");
                }
                self.push("{ ");
                self.operation(place, operator, next);
                self.push(" })");
            }
        }
    }

    fn operation(&mut self, place: &Binary, operator: &str, next: usize) {
        self.group(&place.left, next);
        self.push(&format!(" {operator} "));
        self.group(&place.right, next);
    }

    fn arm(&mut self, guard: &Range<usize>, [deleted, always, never]: [Option<u32>; 3], next: usize) {
        let is_new = guard.is_empty();
        if is_new {
            self.push(" if ");
        }
        let off: Vec<String> =
            [deleted, never].into_iter().flatten().map(|id| format!("!{ON}({id})")).collect();
        let ids: Vec<u32> = [deleted, always, never].into_iter().flatten().collect();
        let begin = self.text.len();
        self.push(&off.join(" && "));
        if !is_new {
            if !off.is_empty() {
                self.push(" && ");
            }
            if let Some(always) = always {
                self.push(&format!("({ON}({always}) || "));
            }
            self.group(guard, next);
            if always.is_some() {
                self.push(")");
            }
        }
        let end = self.text.len();
        self.regions.extend(ids.into_iter().map(|id| (begin..end, id)));
    }

    fn group(&mut self, range: &Range<usize>, next: usize) {
        self.push("(");
        self.render(range.clone(), next);
        self.push(")");
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn region(&mut self, id: u32, write: impl FnOnce(&mut Self)) {
        let begin = self.text.len();
        write(self);
        self.regions.push((begin..self.text.len(), id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weaves one change, given by the text that it replaces, and compares the resulting line.
    #[track_caller]
    fn check(line: &str, genre: Genre, from: &str, to: &str, expected: &str) {
        let source = format!("fn f(a: u8, b: u8, c: bool) -> bool {{\n{line}\n}}\n");
        let column = line.find(from).expect("the change is in the line") + 1;
        let mutant = Mutant {
            name: String::new(),
            package: String::new(),
            file: String::new(),
            genre,
            replacement: to.to_owned(),
            start: (2, column),
            end: (2, column + from.len()),
        };
        let woven = weave(&source, &[(7, &mutant)]).expect("the source is Rust");
        assert!(woven.left_out.is_empty(), "the mutant was left out");
        let end = woven.text.len() - "\n}\n".len();
        assert_eq!(&woven.text[source.find('\n').map_or(0, |at| at + 1)..end], expected);
        let regions: Vec<_> = woven.regions.iter().map(|(_, id)| *id).collect();
        assert!(!regions.is_empty() && regions.iter().all(|id| *id == 7), "{regions:?}");
        syn::parse_file(&woven.text).expect("the result is valid Rust");
    }

    /// QA-6: every kind of change is put behind its switch, beside the original code.
    #[test]
    fn each_kind_of_change_is_woven_behind_its_switch() {
        use Genre::{BinaryOperator, FnValue, MatchArm, MatchArmGuard, StructField, UnaryOperator};
        check("c", FnValue, "c", "true", "if crate::mutant_switch::on(7) { return true; }\nc");
        check("a == b", BinaryOperator, "==", "!=", "(crate::mutant_switch::on(7) != ((a)==(b)))");
        check(
            "a < b",
            BinaryOperator,
            "<",
            ">",
            "(if crate::mutant_switch::on(7) { (a) > (b) } else { (a) < (b) })",
        );
        check(
            "c && a < b",
            BinaryOperator,
            "&&",
            "||",
            "({ let __left: bool = (c); if __left == crate::mutant_switch::on(7) { __left } else { (a < b) } })",
        );
        check("!c", UnaryOperator, "!", "", "(if crate::mutant_switch::on(7) { (c) } else { !(c) })");
        check(
            "match a { 1 => c, _ => false }",
            MatchArm,
            "1 => c,",
            "",
            "match a { 1 if !crate::mutant_switch::on(7) => c, _ => false }",
        );
        check(
            "match a { 1 if c => true, _ => false }",
            MatchArmGuard,
            "c ",
            "true",
            "match a { 1 if (crate::mutant_switch::on(7) || (c)) => true, _ => false }",
        );
        check(
            "S { x: a, ..S::default() }.y",
            StructField,
            "x: a",
            "",
            "(if crate::mutant_switch::on(7) { S {  ..S::default() } } else { S { x: a, ..S::default() } }).y",
        );
    }

    /// QA-6: a change in code that runs at compile time, or in a condition with `let`, is left out.
    #[test]
    fn what_cannot_be_woven_is_left_out() {
        let source = "const A: bool = 1 == 2;\nfn f(a: Option<u8>, c: bool) -> bool {\nif let Some(_) = a && c { c } else { c }\n}\n";
        let at = |line: usize, operator: &str, replacement: &str| {
            let column =
                source.lines().nth(line - 1).and_then(|text| text.find(operator)).map_or(0, |at| at + 1);
            Mutant {
                name: String::new(),
                package: String::new(),
                file: String::new(),
                genre: Genre::BinaryOperator,
                replacement: replacement.to_owned(),
                start: (line, column),
                end: (line, column + operator.len()),
            }
        };
        let (constant, condition) = (at(1, "==", "!="), at(3, "&&", "||"));
        let woven = weave(source, &[(1, &constant), (2, &condition)]).expect("the source is Rust");
        assert_eq!(woven.left_out, [1, 2]);
        assert_eq!(woven.text, source);
    }

    /// QA-6: changes inside a changed expression are kept, in each of its copies.
    #[test]
    fn changes_nest() {
        let source = "fn f(a: u8, b: u8) -> bool {\na + 1 < b\n}\n";
        let mutant = |column: usize, replacement: &str| Mutant {
            name: String::new(),
            package: String::new(),
            file: String::new(),
            genre: Genre::BinaryOperator,
            replacement: replacement.to_owned(),
            start: (2, column),
            end: (2, column + 1),
        };
        let woven = weave(source, &[(1, &mutant(3, "-")), (2, &mutant(7, ">"))]).expect("the source is Rust");
        let inner = "((if crate::mutant_switch::on(1) { (a) - (1) } else { (a) + (1) }))";
        let expected =
            format!("(if crate::mutant_switch::on(2) {{ {inner} > (b) }} else {{ {inner} < (b) }})");
        assert_eq!(woven.text.lines().nth(1), Some(expected.as_str()));
    }
}
