//! What is kept of a server, for how long, and the text of its lines.

use bridgehead_events::Excerpt;

use super::*;

fn texts(record: &ServerRecord) -> Vec<String> {
    record.tail(usize::MAX).iter().map(|line| line.text.to_string()).collect()
}

/// POOL-9: a line names its server as `mcp:{server}`, for people and for programs, and shows no secret.
#[test]
fn a_line_names_its_server() {
    let record = ServerRecords::default().of("files");
    record.line(LineSource::Stderr, "password=hunter2 and more");
    let line = &record.tail(1)[0];
    let shown = line.to_string();
    assert!(shown.ends_with("Z mcp:files stderr: password=[redacted] and more"), "{shown}");
    let written = serde_json::to_value(&**line).unwrap();
    assert_eq!((&written["label"], &written["server"]), (&"mcp:files".into(), &"files".into()));
    assert_eq!(
        (&written["source"], &written["text"]),
        (&"stderr".into(), &"password=[redacted] and more".into())
    );
}

/// POOL-9: embedders receive the lines by callback.
#[test]
fn every_line_is_shown_to_the_sink() {
    let shown: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = LineSink::new({
        let shown = Arc::clone(&shown);
        move |line| shown.lock().push(format!("{} {}", line.server, line.text))
    });
    let records = ServerRecords::new(Arc::new(SystemClock::default()), Some(sink));
    records.of("a").line(LineSource::Stderr, "one");
    records.of("b").note(&Detail::InitStarted);
    assert_eq!(*shown.lock(), ["a one", "b is being started"]);
}

#[test]
fn what_is_kept_is_bounded_and_shared_by_name() {
    let records = ServerRecords::default();
    for number in 0..KEPT_LINES + 5 {
        records.of("a").line(LineSource::Stderr, &number.to_string());
    }
    let lines = texts(&records.of("a"));
    assert_eq!((lines.len(), lines[0].as_str()), (KEPT_LINES, "5"));
    for _ in 0..40 {
        records.of("a").line(LineSource::Stderr, &"x".repeat(8 * 1024));
    }
    assert_eq!(texts(&records.of("a")).len(), KEPT_BYTES / (8 * 1024));
    assert!(texts(&records.of("b")).is_empty());
    records.forget("a");
    assert!(texts(&records.of("a")).is_empty());
}

#[tokio::test]
async fn a_follower_gets_all_lines_or_learns_what_it_missed() {
    let record = ServerRecords::default().of("a");
    for text in ["1", "2", "3"] {
        record.line(LineSource::Stderr, text);
    }
    let mut follower = record.follow(2);
    let mut texts = Vec::new();
    for _ in 0..2 {
        let Followed::Line(line) = follower.next().await else { panic!("a line") };
        texts.push(line.text.to_string());
    }
    assert_eq!(texts, ["2", "3"]);
    let waiting = tokio::spawn(async move {
        let next = follower.next().await;
        (next, follower)
    });
    tokio::task::yield_now().await;
    record.line(LineSource::Stderr, "4");
    let (Followed::Line(line), mut follower) = waiting.await.unwrap() else { panic!("a line") };
    assert_eq!(&*line.text, "4");
    for number in 0..KEPT_LINES + 7 {
        record.line(LineSource::Stderr, &number.to_string());
    }
    assert_eq!(follower.next().await, Followed::Missed(7));
    let Followed::Line(line) = follower.next().await else { panic!("a line") };
    assert_eq!(&*line.text, "7");
}

/// POOL-14: per initialisation the time, outcome, tool count and error.
#[test]
fn the_facts_follow_what_happens() {
    let excerpt = |text: &str| Excerpt::new(&Redactor::default(), text);
    let record = ServerRecords::default().of("a");
    assert_eq!(record.facts(), Facts::default());
    record.note(&Detail::InitFinished {
        outcome: InitOutcome::Failed,
        tools: 0,
        duration_ms: 7,
        error: Some(excerpt("no answer")),
    });
    record.note(&Detail::Restart { attempt: 1, delay_ms: 0, reason: excerpt("no answer") });
    record.note(&Detail::InitFinished { outcome: InitOutcome::Ready, tools: 3, duration_ms: 5, error: None });
    let facts = record.facts();
    let init = facts.last_init.unwrap();
    assert_eq!((init.outcome, init.tools, init.duration_ms, init.error), (InitOutcome::Ready, 3, 5, None));
    assert_eq!(facts.restarts, 1);
    assert_eq!(facts.last_error.unwrap().1, "no answer");
    assert_eq!(
        texts(&record)[..2],
        ["did not come up: no answer", "is started again in 0 ms (attempt 1): no answer"]
    );
    record.note(&Detail::Probe {
        kind: bridgehead_events::ProbeKind::Ping,
        duration_ms: 3_000,
        error: Some(excerpt("late")),
    });
    assert_eq!(record.facts().last_error.unwrap().1, "late");
    record.lost("gone, token=abc");
    assert_eq!(record.facts().last_error.unwrap().1, "gone, token=[redacted]");
}

/// Each problem of a tool list gets a line, and is kept until the next list.
#[test]
fn findings_are_kept_until_the_next_list() {
    let record = ServerRecords::default().of("a");
    record.found(vec!["one".to_owned(), "two".to_owned()]);
    assert_eq!(record.facts().findings, ["one", "two"]);
    record.found(Vec::new());
    assert!(record.facts().findings.is_empty());
    assert_eq!(texts(&record), ["one", "two"]);
    assert!(record.tail(2).iter().all(|line| line.source == LineSource::Gateway));
}

/// The debug output of a record names its server and shows none of its lines.
#[test]
fn a_record_is_shown_without_its_lines() {
    let records = ServerRecords::default();
    records.of("a").line(LineSource::Stderr, "said");
    assert_eq!(format!("{:?}", records.of("a")), r#"Record { server: "a", .. }"#);
    assert_eq!(format!("{records:?}"), "Records { servers: 1, .. }");
    assert_eq!(format!("{:?}", LineSink::new(|_| ())), "LineSink");
}

#[test]
fn everything_worth_a_line_gets_one() {
    let none = || Vec::<Arc<str>>::new();
    #[track_caller]
    fn check(detail: &Detail, expected: Option<&str>) {
        assert_eq!(told(detail).as_deref(), expected);
    }
    check(&Detail::Disconnected, Some("is disconnected"));
    check(&Detail::Reconnected, Some("is back"));
    check(&Detail::ReconnectExhausted, Some("will not be started again"));
    check(&Detail::ToolsDiscovered { names: none() }, None);
    check(&Detail::ToolsRefreshed { added: none(), removed: none(), unchanged: 2 }, None);
    check(
        &Detail::ToolsRefreshed { added: vec!["a".into()], removed: none(), unchanged: 2 },
        Some("changed its tools: 1 added, 0 removed, 2 unchanged"),
    );
    let cancelled =
        Detail::InitFinished { outcome: InitOutcome::Cancelled, tools: 0, duration_ms: 1, error: None };
    check(&cancelled, Some("did not come up: cancelled"));
    let serves =
        |tools| Detail::InitFinished { outcome: InitOutcome::Ready, tools, duration_ms: 7, error: None };
    check(&serves(1), Some("serves 1 tool, after 7 ms"));
    check(&serves(2), Some("serves 2 tools, after 7 ms"));
    let probe = |error: Option<&str>| Detail::Probe {
        kind: bridgehead_events::ProbeKind::Ping,
        duration_ms: 3,
        error: error.map(|text| Excerpt::new(&Redactor::default(), text)),
    };
    check(&probe(Some("late")), Some("is unhealthy: late"));
    check(&probe(None), None);
    let reason = Excerpt::new(&Redactor::default(), "");
    let exited = Detail::ProcessExited { pid: 5, status: "exit status 3".to_owned(), reason };
    check(&exited, Some("its process 5 ended with exit status 3"));
}

#[test]
fn noise_is_kept_in_part_and_its_beginning_for_good() {
    let record = ServerRecords::default().of("a");
    for number in 0..100 {
        record.noisy(&format!("line {number}"));
    }
    assert_eq!(record.noise().as_deref(), Some("line 0"));
    assert_eq!(texts(&record).len(), KEPT_NOISE as usize);
    record.line(LineSource::Stderr, "bye");
    assert_eq!(record.last_words(), ["bye"]);
}
