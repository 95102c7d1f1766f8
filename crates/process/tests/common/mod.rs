//! What tests of limits share, whoever keeps them.

use bridgehead_process::Child;
use tokio::io::AsyncReadExt;

/// A script of four that take so much together, each by itself as the file's own program; it says so if they survive.
pub(crate) fn four_takers(takes: &str, program: &str) -> String {
    let taker = format!("{takes}=40 \"${program}\" --exact taker --nocapture");
    format!("{taker} & {taker} & {taker} & {taker} & wait; echo survived")
}

/// Of the four none is left to say that it went well.
pub(crate) async fn none_survived(child: &mut Child) {
    assert!(child.killed() >= 4, "{}", child.killed());
    let mut output = String::new();
    child.take_stdout().unwrap().read_to_string(&mut output).await.unwrap();
    assert!(!output.contains("survived"), "{output}");
}
