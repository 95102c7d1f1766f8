//! Limit rules, ready to be asked: patterns compiled once, and what matches a tool found once per tool.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use bridgehead_audit::Hash;
use bridgehead_config::{LimitRule, OWN_SERVER, Rate, ServerConfig, ThingPattern, Who};
use globset::{GlobBuilder, GlobMatcher};
use parking_lot::RwLock;

use super::LimitError;
use super::gcra::Pace;

/// How many tools are remembered. At one more all are forgotten, and each is matched again when it is next called.
const MOST_TOOLS: usize = 65_536;
/// How many hexadecimal digits the id of a budget has.
const ID_DIGITS: usize = 16;

/// One rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) who: Vec<Who>,
    /// Whether it counts the calls of some tools only.
    pub(super) of_tools: bool,
    pub(super) rate: Option<(Rate, Pace)>,
    pub(super) concurrent: Option<NonZeroU32>,
    pub(super) budget: Option<Budget>,
    pub(super) line: usize,
}

/// A daily budget.
#[derive(Debug)]
pub(super) struct Budget {
    /// What it is called in the record: a digest of the configuration's name, and of whom and what the rule counts. A rule
    /// whose amount was changed has the same budget.
    pub(super) id: Arc<str>,
    pub(super) per_day: u64,
}

impl Rule {
    fn new(rule: &LimitRule, configuration: &str) -> Self {
        Self {
            who: rule.who.clone(),
            of_tools: !rule.tools.is_empty(),
            rate: rule.rate.map(|rate| (rate, Pace::new(rate))),
            concurrent: rule.concurrent,
            budget: rule.budget_per_day.map(|per_day| Budget { id: budget_id(rule, configuration), per_day }),
            line: rule.line,
        }
    }
}

/// The id of a rule's budget.
fn budget_id(rule: &LimitRule, configuration: &str) -> Arc<str> {
    let mut counted = configuration.to_owned();
    rule.who.iter().for_each(|who| counted.push_str(&format!("\nwho {who}")));
    rule.tools.iter().for_each(|tool| counted.push_str(&format!("\ntool {tool}")));
    Hash::of(counted.as_bytes()).to_string().chars().take(ID_DIGITS).collect::<String>().into()
}

/// What calls of tools cost, where that is not 1: by server and by the tool's name there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Costs(HashMap<String, HashMap<String, u64>>);

impl Costs {
    /// The costs that servers' settings name.
    pub fn of(servers: &[ServerConfig]) -> Self {
        let mut costs = Self::default();
        for server in servers {
            for (tool, settings) in &server.tools {
                if let Some(cost) = settings.cost {
                    costs.set(server.name.as_ref(), tool, u64::from(cost));
                }
            }
        }
        costs
    }

    /// Sets what a call of a tool costs. The gateway's own tools belong to the server `bridgehead`.
    pub fn set(&mut self, server: &str, tool: &str, cost: u64) {
        self.0.entry(server.to_owned()).or_default().insert(tool.to_owned(), cost);
    }

    fn get(&self, server: &str, tool: &str) -> u64 {
        self.0.get(server).and_then(|tools| tools.get(tool)).copied().unwrap_or(1)
    }
}

/// Everything that does not change with requests.
pub(super) struct Rules {
    pub(super) rules: Box<[Rule]>,
    /// Whether some rule speaks of a group, so that the groups of a principal matter.
    pub(super) by_group: bool,
    /// The patterns of rules on tools, each with its rule.
    patterns: Vec<(usize, [GlobMatcher; 2])>,
    costs: Costs,
    /// Whether the tool of a call matters.
    by_tool: bool,
    known: RwLock<KnownTools>,
}

#[derive(Default)]
struct KnownTools {
    servers: HashMap<Box<str>, HashMap<Box<str>, KnownTool>>,
    count: usize,
}

/// What is known of a tool.
#[derive(Debug, Clone)]
pub(super) struct KnownTool {
    /// The rules on tools that count it: one bit per rule.
    pub(super) marks: Arc<[u64]>,
    pub(super) cost: u64,
}

impl Rules {
    pub(super) fn new(written: &[LimitRule], costs: Costs, configuration: &str) -> Result<Self, LimitError> {
        let mut patterns = Vec::new();
        for (number, rule) in written.iter().enumerate() {
            for tool in &rule.tools {
                patterns.push((number, compile(tool, rule.line)?));
            }
        }
        let mut rules: Box<[Rule]> = written.iter().map(|rule| Rule::new(rule, configuration)).collect();
        // Two rules that count the same have two budgets.
        let mut ids = HashMap::new();
        for budget in rules.iter_mut().filter_map(|rule| rule.budget.as_mut()) {
            let count = ids.entry(Arc::clone(&budget.id)).or_insert(0);
            *count += 1;
            if *count > 1 {
                budget.id = format!("{}-{count}", budget.id).into();
            }
        }
        let by_group = rules.iter().flat_map(|rule| &rule.who).any(|who| matches!(who, Who::Group(_)));
        let by_tool = !patterns.is_empty() || rules.iter().any(|rule| rule.budget.is_some());
        Ok(Self { rules, by_group, patterns, costs, by_tool, known: RwLock::default() })
    }

    /// What is known of a called tool; `None` if no rule cares.
    pub(super) fn tool(&self, server: Option<&str>, name: &str) -> Option<KnownTool> {
        if !self.by_tool {
            return None;
        }
        let server = server.unwrap_or(OWN_SERVER);
        if let Some(known) = self.known.read().servers.get(server).and_then(|tools| tools.get(name)) {
            return Some(known.clone());
        }
        let tool = KnownTool { marks: self.matching(server, name), cost: self.costs.get(server, name) };
        let mut known = self.known.write();
        if known.count >= MOST_TOOLS {
            *known = KnownTools::default();
        }
        let before = known.servers.entry(server.into()).or_default().insert(name.into(), tool.clone());
        known.count += usize::from(before.is_none());
        Some(tool)
    }

    fn matching(&self, server: &str, name: &str) -> Arc<[u64]> {
        let mut marks = vec![0; self.rules.len().div_ceil(64)];
        for (rule, [of_server, of_name]) in &self.patterns {
            if of_server.is_match(server) && of_name.is_match(name) {
                marks[rule / 64] |= 1 << (rule % 64);
            }
        }
        marks.into()
    }

    /// Whether a rule counts a request with these marks.
    pub(super) fn counts(&self, rule: usize, marks: Option<&[u64]>) -> bool {
        let marked = || marks.and_then(|marks| marks.get(rule / 64)).copied().unwrap_or_default();
        !self.rules[rule].of_tools || marked() & (1 << (rule % 64)) != 0
    }
}

fn compile(tool: &ThingPattern, line: usize) -> Result<[GlobMatcher; 2], LimitError> {
    let glob = |pattern: &str| {
        let built = GlobBuilder::new(pattern).case_insensitive(true).backslash_escape(true).build();
        let refused = |error: globset::Error| LimitError::Pattern {
            line,
            pattern: tool.to_string(),
            reason: error.kind().to_string(),
        };
        built.map(|glob| glob.compile_matcher()).map_err(refused)
    };
    Ok([glob(&tool.server)?, glob(&tool.name)?])
}

#[cfg(test)]
mod tests {
    use super::super::tests::rule;
    use super::*;

    fn pattern(text: &str) -> ThingPattern {
        let (server, name) = text.split_once('/').unwrap();
        ThingPattern { server: server.to_owned(), name: name.to_owned() }
    }

    fn rules(tools: &[&[&str]]) -> Rules {
        let of =
            |tools: &&[&str]| LimitRule { tools: tools.iter().map(|text| pattern(text)).collect(), ..rule() };
        Rules::new(&tools.iter().map(of).collect::<Vec<_>>(), Costs::default(), "").unwrap()
    }

    /// ACC-5: a rule counts the tools that its patterns match, by server and by the name there, in any letter case; a rule
    /// without patterns counts everything.
    #[test]
    fn which_tools_a_rule_counts() {
        let mut of: Vec<&[&str]> = vec![&[]; 70];
        (of[1], of[2], of[69]) = (&["files/read_*", "git/*"], &["bridgehead/*"], &["*/Echo"]);
        let rules = rules(&of);
        #[track_caller]
        fn check(rules: &Rules, server: Option<&str>, name: &str, expected: &[usize]) {
            for _ in 0..2 {
                let tool = rules.tool(server, name).unwrap();
                let counted: Vec<usize> =
                    [1, 2, 69].into_iter().filter(|rule| rules.counts(*rule, Some(&tool.marks))).collect();
                assert_eq!(counted, expected, "{server:?} {name}");
                assert!(rules.counts(0, Some(&tool.marks)) && rules.counts(0, None));
            }
            assert!(!rules.counts(1, None), "a request that calls no tool");
        }
        check(&rules, Some("files"), "read_all", &[1]);
        check(&rules, Some("files"), "write", &[]);
        check(&rules, Some("Files"), "READ_one", &[1]);
        check(&rules, Some("git"), "a/b", &[1]);
        check(&rules, Some("git"), "echo", &[1, 69]);
        check(&rules, None, "server_ping", &[2]);
        check(&rules, Some("other"), "echo", &[69]);
    }

    /// ACC-5: what is known of tools is bounded, whatever servers offer over time.
    #[test]
    fn known_tools_are_bounded() {
        let rules = rules(&[&["m/*"]]);
        for number in 0..MOST_TOOLS + 10 {
            rules.tool(Some("m"), &number.to_string()).unwrap();
        }
        assert_eq!((rules.known.read().count, rules.known.read().servers["m"].len()), (10, 10));
        rules.tool(Some("m"), "65540").unwrap();
        assert_eq!(rules.known.read().count, 10, "known already");
        assert!(self::rules(&[&[]]).tool(Some("m"), "x").is_none(), "no rule cares");
    }

    /// ACC-5: a budget is the same as long as it counts the same for the same, in the same configuration.
    #[test]
    fn the_id_of_a_budget() {
        let of = |rule: &LimitRule, configuration| budget_id(rule, configuration);
        let first = rule();
        let same = LimitRule { budget_per_day: Some(7), line: 9, ..rule() };
        assert_eq!((of(&first, "a"), of(&first, "a").len()), (of(&same, "a"), ID_DIGITS));
        let tools = LimitRule { tools: vec![pattern("m/*")], ..rule() };
        let who = LimitRule { who: vec![Who::Token], ..rule() };
        for (other, configuration) in [(&first, "b"), (&tools, "a"), (&who, "a")] {
            assert_ne!(of(&first, "a"), of(other, configuration));
        }
    }

    /// ACC-5: the cost of a call comes from its tool's settings, and is 1 otherwise.
    #[test]
    fn what_a_call_costs() {
        let launch =
            bridgehead_config::Launch::Stdio(bridgehead_config::Stdio::new("true", Vec::<String>::new()));
        let mut server = ServerConfig::new("m".parse().unwrap(), launch, &Default::default());
        let costly = bridgehead_config::ToolOverride { cost: Some(5), ..Default::default() };
        server.tools = [("big".to_owned(), costly), ("plain".to_owned(), Default::default())].into();
        let mut costs = Costs::of(&[server]);
        costs.set(OWN_SERVER, "server_ping", 0);
        let budget = LimitRule { budget_per_day: Some(1), ..rule() };
        let rules = Rules::new(&[budget], costs, "").unwrap();
        let cost = |server, name| rules.tool(server, name).unwrap().cost;
        assert_eq!((cost(Some("m"), "big"), cost(Some("m"), "plain"), cost(Some("n"), "big")), (5, 1, 1));
        assert_eq!(cost(None, "server_ping"), 0);
    }
}
