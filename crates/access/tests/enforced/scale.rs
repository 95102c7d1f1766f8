//! Many principals, many classes.

use std::time::Instant;

use bridgehead_config::{PolicyRule, Who};
use bridgehead_gateway::NativeTool;
use serde_json::json;

use crate::world::{Client, LEGACY, World, on, rule, user};

fn grouped(group: usize, line: usize, tools: &[&str]) -> PolicyRule {
    PolicyRule { who: vec![Who::Group(format!("g{group}"))], tools: on(tools), ..rule("*", line) }
}

fn tool(number: usize) -> NativeTool {
    let name = format!("t{}_{number}", number % 8);
    NativeTool::new(&name, "", json!({"type": "object"}), |_, _| async { Ok(json!("done")) })
}

/// ACC-3 (case 25): more classes than are kept at once are served all the same, each with its own list; 10 000 principals of
/// eight classes get eight lists.
#[tokio::test]
async fn more_classes_than_views() {
    let rules = (0..400).map(|group| grouped(group, group, &[&format!("bridgehead/t?_{group}")]));
    let world =
        World::start_with(&[], rules.collect(), |options| options.tools = (0..400).map(tool).collect());
    for round in 0..2 {
        for group in 0..400 {
            let who = user(&format!("u{group}")).in_groups([format!("g{group}").as_str()]);
            let seen = Client::new(&who, LEGACY).list(&world, "tools/list", "tools", "name").await;
            assert_eq!(seen, [format!("t{}_{group}", group % 8)], "round {round}");
        }
    }
    for number in 0..10_000 {
        let group = number % 8;
        let who = user(&format!("n{number}")).in_groups([format!("g{group}").as_str()]);
        let client = Client::new(&who, LEGACY);
        let own = client
            .ask(&world, "tools/call", json!({"name": format!("t{group}_{group}"), "arguments": {}}))
            .await;
        let other = client
            .ask(&world, "tools/call", json!({"name": format!("t{group}_{}", group + 8), "arguments": {}}))
            .await;
        assert!(own.is_ok() && other.is_err(), "{number}");
    }
    world.end().await;
}

/// ACC-3 (case 26): with 20 000 tools and 1 000 rules a class is prepared soon, and its lists hold what it may use. This build is
/// not optimised, so the time must only not be absurd.
#[tokio::test]
async fn many_tools_are_prepared_for_a_class() {
    let rules = (0..1_000).map(|number| {
        grouped(
            number % 8,
            number,
            &[&format!("bridgehead/t{}_{}*", number % 8, number), &format!("s{number}/*")],
        )
    });
    let world =
        World::start_with(&[], rules.collect(), |options| options.tools = (0..20_000).map(tool).collect());
    let mut took = Vec::new();
    for group in 0..8 {
        let who = user("u").in_groups([format!("g{group}").as_str()]);
        let began = Instant::now();
        let seen = world.gateway.list_tools_for(&who);
        took.push(began.elapsed());
        assert!(
            seen.len() > 100 && seen.iter().all(|tool| tool.name.starts_with(&format!("t{group}_"))),
            "{}",
            seen.len()
        );
    }
    assert!(took.iter().all(|took| took.as_millis() < 2_000), "{took:?}");
    world.end().await;
}
