//! What must hold for any input: bytes that are not ours survive, hostile bytes do no harm, and no
//! planted secret gets out.

#![expect(clippy::expect_used, reason = "what the generators promise is checked where it is used")]

use std::borrow::Cow;

use bridgehead_wire::{
    EventBuffer, Incoming, Line, LineBuffer, MAX_DEPTH, Message, Object, Raw, Redactor, Spliced,
    decode_header_value, encode_header_value, notification, request, response, too_deep,
};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use serde_json::value::RawValue;

/// Names that an edit may set; few, so that they often match existing members.
const NAMES: [&str; 5] = ["a", "b", "_meta", "name", "progressToken"];

fn blank() -> impl Strategy<Value = String> {
    "[ \t\n\r]{0,2}"
}

/// A JSON string as peers may write it: plain, escaped without need, or with a surrogate pair.
fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z0-9 _./{}\\[\\],:é日-]{0,6}",
        1 => Just(r#"\""#.to_owned()),
        1 => Just(r"\\".to_owned()),
        1 => Just(r"\/".to_owned()),
        1 => Just(r"\n".to_owned()),
        1 => Just(r"\u0041".to_owned()),
        1 => Just(r"\ud83d\ude00".to_owned()),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(&NAMES[..]).prop_map(|name| format!("\"{name}\"")),
        1 => Just(r#""\u0061""#.to_owned()),
        2 => string(),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,8})?([eE][+-]?[0-9]{1,2})?",
        string(),
    ]
}

/// The text of any JSON value, with any white space, order, number text and repeated names.
fn json() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 5, |inner| prop_oneof![array(inner.clone()), object(inner)])
}

fn array(inner: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let item = (blank(), inner, blank()).prop_map(|(before, item, after)| before + &item + &after);
    (prop::collection::vec(item, 0..4), blank()).prop_map(|(items, space)| match items.as_slice() {
        [] => format!("[{space}]"),
        _ => format!("[{}]", items.join(",")),
    })
}

fn object(inner: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let member = (blank(), name(), blank(), blank(), inner, blank())
        .prop_map(|(a, name, b, c, value, d)| format!("{a}{name}{b}:{c}{value}{d}"));
    (prop::collection::vec(member, 0..6), blank()).prop_map(|(members, space)| match members.as_slice() {
        [] => format!("{{{space}}}"),
        _ => format!("{{{}}}", members.join(",")),
    })
}

fn raw(text: &str) -> Raw {
    Raw::parse(text.to_owned()).expect("generated JSON")
}

fn written(write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    write(&mut out);
    out.freeze()
}

/// One member: its name, and its bytes from the key's first quote up to the value and from there on.
#[derive(Debug, Clone, PartialEq)]
struct Member {
    name: String,
    key: String,
    value: String,
}

/// The members of an object, sliced out of its text.
fn members(text: &str) -> Vec<Member> {
    let source = raw(text);
    let object = Object::parse(&source).expect("an object");
    let mut end = 1;
    let slice = |(name, value): (String, Raw)| {
        let start = value.bytes().as_ptr() as usize - source.bytes().as_ptr() as usize;
        let key = source.as_str()[end..start].trim_start_matches([',', ' ', '\t', '\n', '\r']).to_owned();
        end = start + value.bytes().len();
        Member { name, key, value: value.as_str().to_owned() }
    };
    object.members().map(slice).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Set(&'static str, String),
    Remove(&'static str),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || prop::sample::select(&NAMES[..]);
    let step = prop_oneof![
        (name(), scalar()).prop_map(|(name, value)| Step::Set(name, value)),
        name().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..5)
}

fn apply(text: &str, steps: &[Step]) -> Spliced {
    let object = Object::parse(&raw(text)).expect("an object");
    let mut edit = object.edit();
    for step in steps {
        match step {
            Step::Set(name, value) => edit.set(name, raw(value)),
            Step::Remove(name) => edit.remove(name),
        };
    }
    edit.finish()
}

/// What [`apply`] must do, on a list of members. Members that the edit adds come first, in the order in
/// which they were first set. Existing members keep every byte, except for a replaced value.
fn model(text: &str, steps: &[Step]) -> Vec<Member> {
    let mut there: Vec<(Member, bool)> = members(text).into_iter().map(|member| (member, true)).collect();
    let mut added: Vec<Member> = Vec::new();
    for step in steps {
        let (name, value) = match step {
            Step::Set(name, value) => (*name, Some(value)),
            Step::Remove(name) => (*name, None),
        };
        let mut pending = value;
        for (member, kept) in there.iter_mut().filter(|(member, _)| member.name == name) {
            *kept = pending.is_some();
            if let Some(value) = pending.take() {
                member.value.clone_from(value);
            }
        }
        match (added.iter().position(|member| member.name == name), pending) {
            (Some(at), Some(value)) => added[at].value.clone_from(value),
            (Some(at), None) => drop(added.remove(at)),
            (None, Some(value)) => {
                added.push(Member {
                    name: name.to_owned(),
                    key: format!("\"{name}\":"),
                    value: value.clone(),
                });
            }
            (None, None) => {}
        }
    }
    let kept = there.into_iter().filter_map(|(member, kept)| kept.then_some(member));
    added.into_iter().chain(kept).collect()
}

/// Over raw values, because a decoded map forgets all but the last of repeated names.
fn depth(value: &Raw) -> usize {
    let inner = |values: &mut dyn Iterator<Item = Raw>| values.map(|value| depth(&value)).max();
    match value.bytes()[0] {
        b'{' => {
            let object = Object::parse(value).expect("an object");
            1 + inner(&mut object.members().map(|(_, value)| value)).unwrap_or_default()
        }
        b'[' => {
            let items: Vec<&RawValue> = value.decode().expect("an array");
            1 + inner(&mut items.iter().map(|item| raw(item.get()))).unwrap_or_default()
        }
        _ => 0,
    }
}

fn lines(limit: usize, chunks: &[&[u8]]) -> Vec<Line> {
    let mut buffer = LineBuffer::new(limit);
    let mut found = Vec::new();
    for chunk in chunks {
        buffer.space().extend_from_slice(chunk);
        while let Some(line) = buffer.next_line() {
            found.push(line);
        }
    }
    found.extend(buffer.finish());
    found
}

fn events(pieces: &[&[u8]]) -> Vec<Bytes> {
    let mut buffer = EventBuffer::new();
    let mut found = Vec::new();
    for piece in pieces {
        buffer.push(Bytes::copy_from_slice(piece));
        found.extend(std::iter::from_fn(|| buffer.next_event()).map(|event| event.data));
    }
    found
}

/// Cuts `text` into pieces that together are all of it.
fn cut<'t>(text: &'t [u8], cuts: &[usize]) -> Vec<&'t [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.min(&text.len())).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect()
}

/// Text that sets off no rule: no separator, no flag, no scheme.
fn harmless() -> impl Strategy<Value = String> {
    "([c-dj-mo-vz]{1,6}[ .,!/é]{1,2}){0,4}"
}

/// A value that no harmless text contains.
fn secret() -> impl Strategy<Value = String> {
    "Q[A-Za-z0-9]{8,20}"
}

fn secret_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &[
            "password",
            "DB_PASSWORD",
            "apiKey",
            "X-Api-Key",
            "accessToken",
            "client_secret",
            "credentials",
            "Authorization",
            "Set-Cookie",
            "sessionId",
            "private-key",
        ][..],
    )
}

/// A sentence-like stretch with one secret in it, and the secret.
fn planted() -> impl Strategy<Value = (String, String)> {
    let notations =
        ["%n=%v", "%n: %v", "%n = '%v'", "{\"%n\":\"%v\"}", "{\\\"%n\\\": \\\"%v\\\"}", "--%n %v"];
    let pair = (secret_name(), secret(), prop::sample::select(notations.to_vec()))
        .prop_map(|(name, value, notation)| (notation.replace("%n", name).replace("%v", &value), value));
    let shape = prop_oneof![
        "sk-[A-Za-z0-9]{8}[0-9][A-Za-z0-9]{20}",
        "gh[pos]_[A-Za-z0-9]{36}",
        "github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{20}",
        "xox[abp]-[0-9]{10}-[A-Za-z0-9]{12}",
        "AKIA[A-Z0-9]{16}",
        "AIza[A-Za-z0-9_-]{35}",
        "glpat-[A-Za-z0-9_-]{20}",
        "eyJ[A-Za-z0-9_-]{10,20}\\.eyJ[A-Za-z0-9_-]{10,20}\\.[A-Za-z0-9_-]{10,20}",
    ]
    .prop_map(|shape| (shape.clone(), shape));
    let framed = (secret(), 0..3_usize).prop_map(|(value, frame)| {
        let text = match frame {
            0 => format!("Bearer {value}"),
            1 => format!("postgres://user:{value}@host/db"),
            _ => format!("-----BEGIN EC PRIVATE KEY-----\n{value}\n-----END EC PRIVATE KEY-----"),
        };
        (text, value)
    });
    (harmless(), prop_oneof![pair, shape, framed], harmless())
        .prop_map(|(before, (text, secret), after)| (format!("{before} {text} {after}"), secret))
}

/// Fragments of every rule in any order, so that rules meet text that other rules have changed.
fn tangle() -> impl Strategy<Value = String> {
    let pieces = [
        "token",
        "password",
        "authorization",
        "cookie",
        "Bearer ",
        "Basic ",
        "=",
        ": ",
        "://",
        "@",
        "/",
        "\"",
        "'",
        "\\",
        "\\\"",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        "[redacted]",
        " ",
        "\n",
        ",",
        "&",
        ">",
        "--",
        "a:b",
        "x1",
        "é",
        "sk-",
        "0123456789abcdefghij",
        "AKIA",
        "IOSFODNN7EXAMPLE",
        "eyJhbGciOiJ",
        ".",
        "ghp_",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "dXNlcjpwYXNz",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    // A failing case is printed whole; no file is left behind.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_request_keeps_its_id_and_params(
        id in prop_oneof![string(), "-?(0|[1-9][0-9]{0,30})"],
        method in string(),
        params in prop_oneof![object(json()), array(json())],
        space in blank(),
    ) {
        let text = format!(r#"{space}{{"id"{space}:{id},"params":{space}{params},"method":{method},"jsonrpc":"2.0"}}"#);
        let Ok(Message::Request(first)) = Message::parse(&Bytes::from(text)) else { panic!("a request") };
        prop_assert_eq!(first.id.raw().as_str(), &id);
        let first_params = first.params.expect("params");
        prop_assert_eq!(first_params.as_str(), &params);

        let spliced = Spliced::from(first_params);
        let sent = written(|out| request(out, 7, first.method.as_str(), &spliced));
        let Ok(Message::Request(second)) = Message::parse(&sent) else { panic!("a request") };
        prop_assert_eq!(&second.method, &first.method);
        prop_assert_eq!(second.id.as_u64(), Some(7));
        prop_assert_eq!(second.params, Some(raw(&params)));

        let sent = written(|out| notification(out, first.method.as_str(), Some(&spliced)));
        let Ok(Message::Notification(told)) = Message::parse(&sent) else { panic!("a notification") };
        prop_assert_eq!(&told.method, &first.method);
        prop_assert_eq!(told.params, Some(raw(&params)));

        let sent = written(|out| response(out, &first.id, Ok(&spliced)));
        let Ok(Message::Response(answer)) = Message::parse(&sent) else { panic!("a response") };
        prop_assert_eq!(answer.id, Some(first.id));
        prop_assert_eq!(answer.outcome, Ok(raw(&params)));
    }

    #[test]
    fn an_edit_does_what_it_says_and_no_more(text in object(json()), steps in steps()) {
        let spliced = apply(&text, &steps);
        let edited = spliced.to_raw();
        prop_assert_eq!(spliced.len(), edited.bytes().len());
        prop_assert_eq!(members(edited.as_str()), model(&text, &steps), "{}", edited.as_str());
    }

    #[test]
    fn an_edit_of_nested_meta_leaves_the_rest(
        before in json(), meta in object(json()), after in json(), steps in steps(),
    ) {
        let (head, tail) = (format!(r#"{{ "x" : {before} ,"_meta": "#), format!(r#" , "y":{after}}}"#));
        let object = Object::parse(&raw(&format!("{head}{meta}{tail}"))).expect("an object");
        let inner = apply(object.get("_meta").expect("_meta").as_str(), &steps);
        let mut edit = object.edit();
        edit.set("_meta", inner.clone());
        let expected = format!("{head}{}{tail}", inner.to_raw().as_str());
        let edited = edit.finish().to_raw();
        prop_assert_eq!(edited.as_str(), expected);
    }

    #[test]
    fn depth_agrees_with_a_recursive_count(text in json(), wrapped in 0..130_usize) {
        let inner = depth(&raw(&text));
        let text = format!("{}{text}{}", "[".repeat(wrapped), "]".repeat(wrapped));
        prop_assert_eq!(too_deep(text.as_bytes()), wrapped + inner > MAX_DEPTH);
    }

    #[test]
    fn lines_do_not_depend_on_how_they_arrive(
        text in "([a-z\"{}:, ]{0,12}\r?\n|\\{\"id\":[0-9]{1,3},\"a\":\"[a-z]{0,60}\"\\}\n){0,8}[a-z]{0,30}",
        cuts in prop::collection::vec(0..400_usize, 0..12),
        limit in 1..80_usize,
    ) {
        let chunks = cut(text.as_bytes(), &cuts);
        prop_assert_eq!(lines(limit, &chunks), lines(limit, &[text.as_bytes()]));
    }

    #[test]
    fn lines_are_what_stands_between_line_breaks(text in "[ab\\r\n ]{0,60}", limit in 1..20_usize) {
        let expected: Vec<Result<&str, u64>> = text
            .split('\n')
            .map(|line| if line.len() > limit { Err(line.len() as u64) } else { Ok(line.strip_suffix('\r').unwrap_or(line)) })
            .filter(|line| line.map_or(true, |line| !line.trim_matches([' ', '\r']).is_empty()))
            .collect();
        let found = lines(limit, &[text.as_bytes()]);
        let found: Vec<Result<&str, u64>> = found
            .iter()
            .map(|line| match line {
                Line::Text(text) => Ok(std::str::from_utf8(text).expect("UTF-8")),
                Line::TooLong { bytes, .. } => Err(*bytes),
            })
            .collect();
        prop_assert_eq!(found, expected);
    }

    /// Whatever else is in the stream, and however it is cut, the messages come out unchanged.
    #[test]
    fn events_carry_their_messages_through(
        messages in prop::collection::vec(object(json()), 0..4),
        noise in prop::sample::select(&["", ": alive", "id: 7", "event: message", "retry: 10", "data-x: y", "é"][..]),
        end in prop::sample::select(&["\n", "\r", "\r\n"][..]),
        cuts in prop::collection::vec(0..400_usize, 0..12),
    ) {
        let mut stream = String::new();
        for message in &messages {
            stream.push_str(&format!("{noise}{end}"));
            // A raw line break in a message is white space, and starts another data line.
            for line in message.split(['\n', '\r']) {
                stream.push_str(&format!("data: {line}{end}"));
            }
            stream.push_str(end);
        }
        let expected: Vec<String> = messages.iter().map(|message| message.replace('\r', "\n")).collect();
        prop_assert_eq!(events(&cut(stream.as_bytes(), &cuts)), expected);
    }

    #[test]
    fn events_do_not_depend_on_how_they_arrive(
        text in "(data|id|:|: |\r|\n|\r\n|x|\u{feff}){0,40}",
        cuts in prop::collection::vec(0..80_usize, 0..12),
    ) {
        prop_assert_eq!(events(&cut(text.as_bytes(), &cuts)), events(&[text.as_bytes()]));
    }

    #[test]
    fn no_bytes_make_a_reader_panic(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..80),
            "[\\[\\]{}\",:\\\\a-f0-9 .eE+-]{0,80}".prop_map(String::into_bytes),
        ],
    ) {
        let bytes = Bytes::from(bytes);
        let parsed = Incoming::parse(&bytes);
        let valid = serde_json::from_slice::<&RawValue>(&bytes).is_ok();
        prop_assert!(parsed.is_err() || valid, "text that is not JSON is not a message");
        let _ = decode_header_value(&bytes);
        let _ = events(&[&bytes[..]]);
        if let Ok(raw) = Raw::parse(bytes) {
            let redacted = Redactor::default().raw(&raw);
            prop_assert!(Raw::parse(redacted.bytes().clone()).is_ok());
        }
    }

    #[test]
    fn header_values_round_trip(
        value in prop_oneof![any::<String>(), "[ -~\t]{0,20}", "(=\\?base64\\?)?[A-Za-z0-9+/=?]{0,8}(\\?=)?"],
    ) {
        let header = encode_header_value(&value);
        prop_assert!(header.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')));
        prop_assert_eq!(header.trim(), &header);
        prop_assert_eq!(decode_header_value(header.as_bytes()), Ok(value.into()));
    }

    /// AUD-4: in free text, and in a JSON string that holds it.
    #[test]
    fn a_planted_secret_never_gets_out((text, secret) in planted()) {
        prop_assert!(text.contains(&secret));
        let redacted = Redactor::default().text(&text);
        prop_assert!(!redacted.contains(&secret), "{redacted}");
        let redacted = Redactor::default().raw(&Raw::encode(&serde_json::json!({ "x": [text] })));
        prop_assert!(!redacted.as_str().contains(&secret), "{}", redacted.as_str());
    }

    /// AUD-4: under a secret name, whatever the value's type, and nothing else changes.
    #[test]
    fn a_secret_member_is_hidden_and_the_rest_kept(
        name in secret_name(), secret in secret(), inner in json(), space in blank(),
    ) {
        let value = format!(r#"[{inner},{{"a":"{secret}"}}]"#);
        let text = format!(r#"{{"n":1.50{space},"{name}"{space}:{space}{value}{space},"z":"\u0041"}}"#);
        let expected = text.replace(&value, "\"[redacted]\"");
        let redacted = Redactor::default().raw(&raw(&text));
        prop_assert_eq!(redacted.as_str(), expected);
    }

    #[test]
    fn redacting_twice_is_redacting_once(
        text in prop_oneof![4 => tangle(), 1 => any::<String>(), 1 => planted().prop_map(|(text, _)| text)],
    ) {
        let redactor = Redactor::default();
        let once = redactor.text(&text);
        prop_assert_eq!(redactor.text(&once), once.as_ref());
        let once = redactor.raw(&Raw::encode(&serde_json::json!({ &text: [&text] })));
        prop_assert_eq!(redactor.raw(&once), once);
    }

    #[test]
    fn what_holds_no_secret_is_not_touched(text in harmless(), json in json()) {
        prop_assert!(matches!(Redactor::default().text(&text), Cow::Borrowed(same) if same == text));
        let raw = raw(&json);
        prop_assert_eq!(Redactor::default().raw(&raw), raw);
    }
}
