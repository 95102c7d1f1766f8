//! What the tests of sampled limits and of hard limits share.

use bridgehead_process::Child;
use bridgehead_testkit::soon;
use tokio::io::AsyncReadExt;

/// A script that runs the test's own program four times, each taking 40 MB. It prints `survived` if it gets to its end.
pub(crate) fn four_takers(takes: &str, program: &str) -> String {
    let taker = format!("{takes}=40 \"${program}\" --exact taker --nocapture");
    format!("{taker} & {taker} & {taker} & {taker} & wait; echo survived")
}

/// Asserts that all four were killed, and the script with them.
pub(crate) async fn none_survived(child: &mut Child) {
    assert!(child.killed() >= 4, "{}", child.killed());
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert!(!output.contains("survived"), "{output}");
}
