//! What waits for a request, and what does not.

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

/// What waits, shortly: progress by its number, all else by its kind.
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

/// WIRE-4: progress replaces the progress before it and nothing else: a question that came behind much progress is
/// still there, in its place, and so is the answer.
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

/// WIRE-4: what waits stays bounded, whatever a server sends, and a question that there is no room for is refused at
/// once instead of being forgotten.
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
    assert_eq!(asked + refused, 2 * QUEUED_EVENTS, "each question waits or is answered");
    assert!(waiting(&slot).len() <= QUEUED_EVENTS, "{}", waiting(&slot).len());
    assert_eq!(slot.unseen().len(), asked);
}
