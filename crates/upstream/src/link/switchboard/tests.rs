//! Which messages are queued for a request, and which are not.

use super::slot::{QUEUED_EVENTS, QUEUED_PROGRESS};
use super::*;

fn say(board: &Switchboard, text: String) -> Option<BytesMut> {
    board.accept(&text.into())
}

fn progress(board: &Switchboard, steps: std::ops::Range<usize>) {
    for step in steps {
        let params = format!(r#"{{"progressToken":1,"progress":{step}}}"#);
        let told = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
        assert!(say(board, told).is_none());
    }
}

fn ask(board: &Switchboard, id: usize) -> Option<BytesMut> {
    say(board, format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#))
}

fn board() -> (Switchboard, Arc<Slot>) {
    let board = Switchboard::new("s");
    let slot = board.register(board.next_id(), Purpose::Ordinary);
    slot.can_answer(Abilities::declared(&Raw::literal(r#"{"roots":{}}"#)));
    (board, slot)
}

/// The queue in short: progress by its value, everything else by its kind.
fn waiting(slot: &Slot) -> Vec<String> {
    let shown = |event: &Event| match event {
        Event::Progress(params) => reached(params).map_or_else(String::new, |(_, step)| step.to_string()),
        Event::Asked(asked) => format!("asked {}", asked.id),
        Event::Withdrawn(id) => format!("withdrawn {id}"),
        Event::Answer(_) => "answer".to_owned(),
        other => format!("{other:?}"),
    };
    slot.state.lock().queue.iter().map(shown).collect()
}

/// WIRE-4: progress replaces only the progress before it: a question behind much progress keeps its place, and so
/// does the answer.
#[test]
fn progress_displaces_no_question() {
    let (board, slot) = board();
    progress(&board, 0..QUEUED_PROGRESS - 1);
    assert!(ask(&board, 7).is_none());
    progress(&board, 300..900);
    assert!(ask(&board, 8).is_none());
    progress(&board, 900..1500);
    assert!(say(&board, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned()).is_none());
    let waiting = waiting(&slot);
    assert_eq!(waiting[QUEUED_PROGRESS - 2..], ["254", "asked 7", "899", "asked 8", "1499", "answer"]);
}

/// WIRE-4: the queue stays bounded whatever a server sends; a question that finds no room is refused at once and
/// not lost.
#[test]
fn what_waits_is_bounded() {
    let (board, slot) = board();
    let mut refused = 0;
    for round in 0..2 * QUEUED_EVENTS {
        progress(&board, round..round + 1);
        refused += usize::from(ask(&board, round).is_some());
        let params = format!(r#"{{"requestId":{}}}"#, round + 5000);
        say(&board, format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#));
    }
    let asked = waiting(&slot).iter().filter(|event| event.starts_with("asked")).count();
    assert_eq!(asked + refused, 2 * QUEUED_EVENTS, "each question is queued or answered");
    assert!(waiting(&slot).len() <= QUEUED_EVENTS, "{}", waiting(&slot).len());
    assert_eq!(slot.unseen().len(), asked);
}

/// ERA-1: a legacy server is asked for log lines the first time, and again only for a lower level.
#[test]
fn a_level_is_asked_for_where_it_brings_more() {
    let board = Switchboard::new("s");
    for (level, asks) in [
        (Level::Error, true),
        (Level::Error, false),
        (Level::Emergency, false),
        (Level::Warning, true),
        (Level::Error, false),
        (Level::Debug, true),
        (Level::Debug, false),
        (Level::Info, false),
    ] {
        assert_eq!(board.wants_level(level), asks, "{level:?}");
    }
    let board = Switchboard::new("s");
    assert!(board.wants_level(Level::Debug), "the first request counts even at the lowest level");
    assert!(!board.wants_level(Level::Debug));
}

fn asked(method: &str) -> Request {
    let text = format!(r#"{{"jsonrpc":"2.0","id":"q","method":"{method}"}}"#);
    match Message::parse(&text.into()) {
        Ok(Message::Request(asked)) => asked,
        other => panic!("{other:?}"),
    }
}

/// ERA-1, HOUR-1: a `ping` and configured roots are answered without a client. Everything else is refused according
/// to the abilities of the clients that could have been meant.
#[test]
fn what_is_answered_for_nobody() {
    #[track_caller]
    fn check(roots: Option<&Roots>, known: Abilities, method: &str, expected: &str) {
        let board = Switchboard::new("s");
        board.answer_roots(roots);
        let answer = board.answer_alone(&asked(method), known);
        let answer = String::from_utf8(answer.to_vec()).unwrap();
        assert!(answer.contains(r#""id":"q""#) && answer.contains(expected), "{method}: {answer}");
        assert_eq!(board.knows_answer(&asked(method).method), roots.is_some() && method == "roots/list");
    }
    let fixed = Roots::of(["file:///fixed".to_owned()]);
    let roots = Abilities::declared(&Raw::literal(r#"{"roots":{}}"#));
    check(None, Abilities::NONE, "ping", r#""result":{}"#);
    check(Some(&fixed), Abilities::NONE, "ping", r#""result":{}"#);
    check(Some(&fixed), Abilities::NONE, "roots/list", r#""result":{"roots":[{"uri":"file:///fixed"}]}"#);
    check(None, Abilities::NONE, "roots/list", r#""code":-32601"#);
    check(None, roots, "roots/list", r#""code":-32602"#);
    check(None, roots, "sampling/createMessage", r#""code":-32601"#);
    check(Some(&fixed), Abilities::NONE, "sampling/createMessage", r#""code":-32601"#);
    check(None, Abilities::NONE, "no/such", r#""code":-32601"#);
}

/// HOUR-1: a question for configured roots is answered at once, without asking a client.
#[test]
fn configured_roots_reach_no_call() {
    let (board, slot) = board();
    board.answer_roots(Some(&Roots::of(["file:///fixed".to_owned()])));
    assert!(ask(&board, 7).is_some());
    assert!(waiting(&slot).is_empty() && !board.has_asked_roots());
}

/// ERA-1: a withdrawal reaches every request that may hold the question, and no other.
#[test]
fn a_question_is_taken_back() {
    let (board, slot) = board();
    let other = board.register(board.next_id(), Purpose::Ordinary);
    assert!(ask(&board, 7).is_none());
    for params in [r#"{"requestId":7}"#, r#"{"reason":"of nothing"}"#] {
        say(&board, format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#));
    }
    assert_eq!(waiting(&slot), ["asked 7", "withdrawn 7"]);
    assert!(waiting(&other).is_empty());
}

/// Bytes are hashed like ids, though none of our keys consists of bytes.
#[test]
fn ids_are_spread() {
    use std::hash::BuildHasher;
    let spread = BuildHasherDefault::<OwnIds>::default();
    let all = [spread.hash_one(1_u64), spread.hash_one(2_u64), spread.hash_one("a"), spread.hash_one("b")];
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 4, "{all:?}");
}

/// An error with an unknown id answers the only request of a handshake, and nothing else.
#[test]
fn a_foreign_error_ends_a_handshake_only() {
    #[track_caller]
    fn check(purposes: &[Purpose], outcome: &str, taken: bool) {
        let board = Switchboard::new("s");
        let slots: Vec<_> =
            purposes.iter().map(|purpose| board.register(board.next_id(), *purpose)).collect();
        say(&board, format!(r#"{{"jsonrpc":"2.0","id":"odd",{outcome}}}"#));
        let answered = slots.iter().any(|slot| slot.has_event());
        assert_eq!(answered, taken, "{purposes:?} {outcome}");
    }
    let (error, result) = (r#""error":{"code":-32600,"message":"no"}"#, r#""result":{}"#);
    check(&[Purpose::Handshake], error, true);
    check(&[Purpose::Handshake], result, false);
    check(&[Purpose::Ordinary], error, false);
    check(&[Purpose::Ordinary], result, false);
    check(&[Purpose::Handshake, Purpose::Handshake], error, false);
}

/// ERA-1: what a server says outside of any request is passed on, each message with its kind.
#[test]
fn notices_are_handed_on() {
    let board = Switchboard::new("s");
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    board.on_notice({
        let told = Arc::clone(&told);
        move |notice| {
            told.lock().push(match notice {
                Notice::Updated(params) => format!("updated {}", params.as_str()),
                Notice::Task(params) => format!("task {}", params.as_str()),
                Notice::Log(params) => format!("log {}", params.as_str()),
            });
        }
    });
    for method in ["resources/updated", "tasks", "message", "no/such"] {
        say(&board, format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{"n":1}}}}"#));
        say(&board, format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}"}}"#));
    }
    assert_eq!(*told.lock(), [r#"updated {"n":1}"#, r#"task {"n":1}"#, r#"log {"n":1}"#]);
}

/// CAT-2: changed lists are reported once, together, and only if there are any.
#[test]
fn changed_lists_are_told_once() {
    use futures_util::FutureExt;
    let board = Switchboard::new("s");
    let changed = || board.lists_changed().now_or_never();
    assert_eq!(changed(), None);
    for list in ["tools", "resources"] {
        say(&board, format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed"}}"#));
    }
    assert_eq!(changed(), Some(Lists::TOOLS | Lists::RESOURCES));
    assert_eq!(changed(), None);
    board.doubt(Lists::PROMPTS | Lists::TOOLS);
    assert!(board.take_changed(Lists::TOOLS) && !board.take_changed(Lists::TOOLS));
    assert_eq!(changed(), Some(Lists::PROMPTS));
}
