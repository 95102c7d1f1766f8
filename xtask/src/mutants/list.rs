//! The list of mutants that cargo-mutants finds, and the groups in which they are judged.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps;

/// One small change of the product's code that a test should notice.
#[derive(Debug, Clone)]
pub(super) struct Mutant {
    /// Its name in cargo-mutants: file, line, column and the change.
    pub(super) name: String,
    pub(super) package: String,
    /// Relative to the root of the repository.
    pub(super) file: String,
    pub(super) genre: Genre,
    pub(super) replacement: String,
    /// Line and column, counted from one.
    pub(super) start: (usize, usize),
    pub(super) end: (usize, usize),
}

/// The kinds of change that cargo-mutants knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// Mutants that are judged together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    RequestPath,
    Bridge,
    Registry,
    Audit,
    EventsAndConfig,
    Rest,
}

impl Group {
    pub(super) const ALL: [Self; 6] =
        [Self::RequestPath, Self::Bridge, Self::Registry, Self::Audit, Self::EventsAndConfig, Self::Rest];

    /// Its name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RequestPath => "request",
            Self::Bridge => "bridge",
            Self::Registry => "registry",
            Self::Audit => "audit",
            Self::EventsAndConfig => "config",
            Self::Rest => "rest",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::RequestPath => "chain and request path (`gateway`, `front`, `access`, `lines`)",
            Self::Bridge => "bridge and provider (with envelopes and casts)",
            Self::Registry => "registry, supervisor, policy and health",
            Self::Audit => "audit",
            Self::EventsAndConfig => "events and configuration",
            Self::Rest => "the rest (`wire`, `schema`, `process`, transports, the program)",
        }
    }

    /// The share in percent that must be caught. The group `rest` has no bar of its own and counts only in the total.
    pub(super) const fn bar(self) -> Option<f64> {
        match self {
            Self::Rest => None,
            _ => Some(90.0),
        }
    }

    /// The group of a file.
    pub(super) fn of(file: &str) -> Self {
        const PLACES: &[(&str, Group)] = &[
            ("crates/gateway/", Group::RequestPath),
            ("crates/front/", Group::RequestPath),
            ("crates/lines/", Group::RequestPath),
            ("crates/access/", Group::RequestPath),
            ("crates/upstream/src/bridge", Group::Bridge),
            ("crates/upstream/src/provider", Group::Bridge),
            ("crates/schema/src/envelope", Group::Bridge),
            ("crates/schema/src/content", Group::Bridge),
            ("crates/schema/src/cast", Group::Bridge),
            ("crates/upstream/src/transport", Group::Rest),
            ("crates/upstream/", Group::Registry),
            ("crates/audit/", Group::Audit),
            ("crates/call/", Group::Audit),
            ("crates/events/", Group::EventsAndConfig),
            ("crates/config/", Group::EventsAndConfig),
        ];
        PLACES.iter().find(|(place, _)| file.starts_with(place)).map_or(Self::Rest, |(_, group)| *group)
    }
}

/// Where every mutant is tried instead of a sample. For the chain and the bootstrap this replaces branch coverage, which
/// only a nightly compiler can measure.
pub(super) const EXHAUSTIVE: &[&str] = &[
    "crates/gateway/src/gate/",
    "crates/gateway/src/surface/tools/",
    "crates/upstream/src/server/policy.rs",
    "crates/upstream/src/server/health.rs",
    "crates/events/",
    "crates/bridgehead/src/server.rs",
    "crates/bridgehead/src/running.rs",
    "crates/bridgehead/src/transport.rs",
    "crates/bridgehead/src/handlers.rs",
];

/// The crates whose mutants are tried: the whole product, without its tools.
pub(super) const PACKAGES: &[&str] = &[
    "bridgehead-wire",
    "bridgehead-schema",
    "bridgehead-config",
    "bridgehead-call",
    "bridgehead-audit",
    "bridgehead-events",
    "bridgehead-lines",
    "bridgehead-process",
    "bridgehead-upstream",
    "bridgehead-gateway",
    "bridgehead-front",
    "bridgehead-access",
    "bridgehead",
    "bridgehead-cli",
];

/// All mutants of the product, or only those in the lines that a diff touches.
pub(super) fn all(root: &Path, difference: Option<&Path>) -> Result<Vec<Mutant>> {
    install(root)?;
    let mut arguments: Vec<String> = vec!["mutants".into(), "--list".into(), "--json".into()];
    arguments.extend(PACKAGES.iter().map(|package| format!("--package={package}")));
    if let Some(file) = difference {
        arguments.push(format!("--in-diff={}", file.display()));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let listed = steps::cargo_output(root, &arguments, &[])?;
    let listed = if listed.is_empty() { b"[]".to_vec() } else { listed };
    let listed: Vec<Value> = serde_json::from_slice(&listed).context("the list of mutants is not JSON")?;
    listed.iter().map(read).collect()
}

/// Installs cargo-mutants if it is missing.
pub(super) fn install(root: &Path) -> Result<()> {
    if steps::succeeds(root, &["mutants", "--version"]) {
        return Ok(());
    }
    eprintln!("installing cargo-mutants");
    steps::cargo(root, &["install", "cargo-mutants", "--locked"], &[])
}

fn read(listed: &Value) -> Result<Mutant> {
    let text = |member: &str| {
        listed[member].as_str().map(str::to_owned).with_context(|| format!("a mutant has no `{member}`"))
    };
    let place = |end: &str| {
        let number =
            |member: &str| listed["span"][end][member].as_u64().and_then(|number| number.try_into().ok());
        number("line").zip(number("column")).with_context(|| format!("a mutant has no `span.{end}`"))
    };
    let genre = match listed["genre"].as_str().unwrap_or_default() {
        "FnValue" => Genre::FnValue,
        "BinaryOperator" => Genre::BinaryOperator,
        "UnaryOperator" => Genre::UnaryOperator,
        "MatchArm" => Genre::MatchArm,
        "MatchArmGuard" => Genre::MatchArmGuard,
        "StructField" => Genre::StructField,
        unknown => bail!("cargo-mutants lists the genre `{unknown}`, which this chore does not support"),
    };
    Ok(Mutant {
        name: text("name")?,
        package: text("package")?,
        file: text("file")?,
        genre,
        replacement: text("replacement")?,
        start: place("start")?,
        end: place("end")?,
    })
}

/// Puts mutants in an order that depends only on the seed and their names, the same on every machine.
pub(super) fn shuffle(mutants: &mut [(u32, &Mutant)], seed: u64) {
    mutants.sort_by_cached_key(|(_, mutant)| digest(seed, mutant.name.bytes()));
}

/// FNV-1a, because the standard hasher may change with a compiler release.
pub(super) fn digest(seed: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
