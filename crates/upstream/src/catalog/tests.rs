//! Reading a list, the findings about it, and comparing two lists.

use bridgehead_wire::Revision;

use super::*;
use crate::testing;

#[test]
fn a_tool_is_prepared_once() {
    let text = r#"{"name":"a","x": 1.50,"inputSchema":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"annotations":{"readOnlyHint":true}}"#;
    let tool = Tool::read(text, false, &mut Findings::default()).unwrap();
    assert_eq!(tool.definition.as_str(), text, "the definition is kept byte for byte");
    assert!(tool.read_only);
    assert!(tool.validator.as_ref().unwrap().check(&serde_json::json!({"n": "x"})).is_err());
    assert_eq!(tool.headers.len(), 1);
}

/// LINK-2: over HTTP a tool with an invalid annotation is left out; elsewhere only the annotation is.
#[test]
fn invalid_annotations() {
    let text = r#"{"name":"a","inputSchema":{"properties":{"n":{"type":"number","x-mcp-header":"N"}}}}"#;
    assert!(Tool::read(text, true, &mut Findings::default()).is_none());
    assert!(Tool::read(text, false, &mut Findings::default()).unwrap().headers.is_empty());
}

/// CAT-5: where a tool's own instructions are found.
#[test]
fn instructions_of_a_tool() {
    #[track_caller]
    fn check(definition: &str, expected: Option<&str>) {
        assert_eq!(
            Tool::read(definition, false, &mut Findings::default()).unwrap().instructions.as_deref(),
            expected
        );
    }
    check(r#"{"name":"a"}"#, None);
    check(r#"{"name":"a","instructions":"x"}"#, Some("x"));
    check(r#"{"name":"a","_meta":{"instructions":"y"}}"#, Some("y"));
    check(r#"{"name":"a","instructions":"x","_meta":{"instructions":"y"}}"#, Some("x"));
    check(r#"{"name":"a","instructions":5,"_meta":{"instructions":"y"}}"#, Some("y"));
    check(r#"{"name":"a","instructions":{},"_meta":7}"#, None);
}

/// PIPE-3: a tool whose schema does not compile is kept, unvalidated.
#[test]
fn a_tool_with_a_broken_schema_is_kept() {
    let tool =
        Tool::read(r#"{"name":"a","inputSchema":{"type":5}}"#, false, &mut Findings::default()).unwrap();
    assert!(tool.validator.is_none());
    assert!(Tool::read(r#"{"title":"no name"}"#, false, &mut Findings::default()).is_none());
    assert!(Tool::read("5", false, &mut Findings::default()).is_none());
}

/// The findings of a list beyond the first twenty are counted.
#[test]
fn findings_are_bounded() {
    for (count, last) in [
        (0, None),
        (1, Some("tool `t0` is odd")),
        (20, Some("tool `t19` is odd")),
        (21, Some("1 more of its tools have problems")),
        (25, Some("5 more of its tools have problems")),
    ] {
        let mut findings = Findings::default();
        for number in 0..count {
            findings.add(&format!("t\n{number}"), "is odd");
        }
        let words = findings.finish();
        assert_eq!(words.len(), count.min(21));
        assert_eq!(words.last().map(String::as_str), last);
    }
}

fn item(list: ItemList, text: &str) -> Items {
    vec![Arc::new(list.read(text).unwrap())].into()
}

/// CAT-2: two listings are the same if all their contents are, regardless of where they were read from.
#[test]
fn any_difference_makes_another_offer() {
    let listing = |change: fn(&mut Listing)| {
        let tool = Tool::read(r#"{"name":"a"}"#, false, &mut Findings::default()).unwrap();
        let mut listing = Listing { tools: vec![Arc::new(tool)], ..Listing::default() };
        change(&mut listing);
        listing
    };
    let one = listing(|_| ());
    assert!(one.offers_the_same(&listing(|_| ())));
    assert!(one.offers_the_same(&listing(|listing| listing.cached = true)));
    let differences: [fn(&mut Listing); 8] = [
        |listing| listing.instructions = Some("x".to_owned()),
        |listing| listing.features.prompts = true,
        |listing| listing.experimental = Some(Raw::literal("{}")),
        |listing| listing.tools.clear(),
        |listing| {
            let other = Tool::read(r#"{"name":"a","x":1}"#, false, &mut Findings::default()).unwrap();
            listing.tools = vec![Arc::new(other)];
        },
        |listing| listing.prompts = item(ItemList::Prompts, r#"{"name":"p"}"#),
        |listing| listing.resources = item(ItemList::Resources, r#"{"uri":"a://b"}"#),
        |listing| listing.templates = item(ItemList::Templates, r#"{"uriTemplate":"a://{b}"}"#),
    ];
    for (number, change) in differences.into_iter().enumerate() {
        let other = listing(change);
        assert!(!one.offers_the_same(&other) && !other.offers_the_same(&one), "difference {number}");
        assert!(other.offers_the_same(&listing(change)), "difference {number}, twice");
    }
}

/// Reads a tool list of these pages, and returns it with the memory held for it. Each page names the next.
async fn read_pages(pages: Vec<Value>) -> (Result<Vec<String>, String>, usize) {
    let (link, mut far) = testing::link();
    let peer = testing::peer(Revision::V2025_11_25, "{}");
    let answering = async {
        for (number, page) in pages.into_iter().enumerate() {
            let asked = far.next().await;
            assert_eq!(asked["params"]["cursor"].as_str().is_some(), number > 0, "{asked}");
            let mut answer = page;
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = asked["id"].clone();
            far.say(answer).await;
        }
    };
    let (read, ()) = tokio::join!(list_tools(&link, &peer), answering);
    let held = link.account().held();
    let names = |(tools, _): (Vec<Arc<Tool>>, _)| tools.iter().map(|tool| tool.name.clone()).collect();
    (read.map(names).map_err(|error| error.to_string()), held)
}

fn page(tools: &Value, next: Option<&str>) -> Value {
    json!({"result": {"tools": tools, "nextCursor": next}})
}

/// CAT-1: all pages of a list are read, in order; a list that never ends, is refused or is malformed is a fault.
#[tokio::test(start_paused = true)]
async fn a_list_is_read_page_by_page() {
    let entry = |name: &str| json!([{"name": name}]);
    let refused = |code: i64| json!({"error": {"code": code, "message": "no"}});
    let (read, held) = read_pages(vec![page(&entry("a"), Some("1")), page(&entry("b"), None)]).await;
    assert_eq!(read, Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(held, 2 * ENTRY_WEIGHT * r#"{"name":"a"}"#.len(), "three times the size of its entries");
    let cases = [
        (vec![refused(-32601)], Ok(vec![])),
        (vec![page(&json!([]), Some("1")), refused(-32601)], Ok(vec![])),
        (vec![page(&entry("a"), Some("1")), refused(-32601)], Err("refused `tools/list`: no (code -32601)")),
        (vec![refused(-32000)], Err("refused `tools/list`: no (code -32000)")),
        (vec![page(&entry("a"), Some("1")), page(&entry("b"), Some("1"))], Err("the list never ends")),
        (vec![json!({"result": {}})], Err("it has no `tools`")),
        (vec![json!({"result": {"tools": [], "nextCursor": 5}})], Err("`nextCursor` is not a string")),
    ];
    for (pages, expected) in cases {
        let (read, _) = read_pages(pages).await;
        match expected {
            Ok(names) => assert_eq!(read, Ok(names)),
            Err(words) => {
                let error = read.unwrap_err();
                assert!(error.contains(words), "{error}");
            }
        }
    }
}

/// CAT-1: a list may have 50 000 entries on a thousand pages, and no more.
#[tokio::test(start_paused = true)]
async fn a_list_is_bounded() {
    // Entries without a name are counted but not kept, which keeps the test fast.
    let entries = |count: usize| json!(vec![0; count]);
    let (read, _) = read_pages(vec![page(&entries(MAX_ENTRIES), None)]).await;
    assert_eq!(read, Ok(vec![]));
    let (read, _) = read_pages(vec![page(&entries(MAX_ENTRIES), Some("1")), page(&entries(1), None)]).await;
    assert!(read.unwrap_err().contains("more than 50000 entries"));
    for (count, fits) in [(MAX_PAGES, true), (MAX_PAGES + 1, false)] {
        let cursor = |number: usize| (number < count).then(|| number.to_string());
        let pages = (1..=count.min(MAX_PAGES)).map(|number| page(&json!([]), cursor(number).as_deref()));
        let (read, _) = read_pages(pages.collect()).await;
        assert_eq!(read.is_ok(), fits, "{count} pages: {read:?}");
    }
}
