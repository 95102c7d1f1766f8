//! Checks that the two rows of a call belong together: an exit names an existing enter that has no other exit, and both rows
//! have the same correlation id and tool.
//!
//! Rows are identified by their numbers alone. The correlation id and the tool are compared as well, because a record with
//! swapped exits chains just as well as a true one.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::row::{ENTER, Row};

/// The key of the hashes that are kept instead of ids and tool names, because a long record has many calls. It is random for
/// each process, so that no attacker can choose two texts with the same hash.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// What one row says about its call.
pub(crate) struct Half {
    /// `None` for an enter.
    exit: Option<Named>,
    id: u64,
    tool: u64,
}

/// Which enter an exit names.
#[derive(Clone, Copy)]
struct Named {
    number: Option<u64>,
    segment: Option<u32>,
}

impl Half {
    /// `None` if the text is not a row.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        plain(text).or_else(|| {
            // The slow path, for a row that another program wrote.
            let row: Row = serde_json::from_slice(text).ok()?;
            let quoted = serde_json::to_string(&row.tool).ok()?;
            let tool = quoted.get(1..quoted.len() - 1)?;
            let named = Named { number: row.enter, segment: row.enter_segment };
            Some(Self::of(row.kind == ENTER, named, row.correlation_id.as_bytes(), tool.as_bytes()))
        })
    }

    fn of(enters: bool, named: Named, id: &[u8], tool: &[u8]) -> Self {
        Self { exit: (!enters).then_some(named), id: KEY.hash_one(id), tool: KEY.hash_one(tool) }
    }
}

/// Reads a row as the store writes it, only up to the tool's name: the rest may be long.
fn plain(text: &[u8]) -> Option<Half> {
    let (_, rest) = number(text.strip_prefix(b"{\"seq\":")?)?;
    let (enter, rest) = member(rest, b",\"enter\":");
    let (segment, rest) = member(rest, b",\"enterSegment\":");
    let (kind, rest) = string(rest.strip_prefix(b",\"kind\":\"")?)?;
    let (_, rest) = string(rest.strip_prefix(b",\"time\":\"")?)?;
    let (id, rest) = string(rest.strip_prefix(b",\"correlationId\":\"")?)?;
    let (tool, _) = string(rest.strip_prefix(b",\"tool\":\"")?)?;
    let named = Named { number: enter, segment: segment.and_then(|segment| u32::try_from(segment).ok()) };
    Some(Half::of(kind == ENTER.as_bytes(), named, id, tool))
}

fn member<'a>(text: &'a [u8], name: &[u8]) -> (Option<u64>, &'a [u8]) {
    let found = text.strip_prefix(name).and_then(number);
    found.map_or((None, text), |(number, rest)| (Some(number), rest))
}

fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    Some((str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

/// Reads up to the closing quote, without decoding escapes.
fn string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    Some((&text[..end], &text[end + 1..]))
}

/// The calls of one instance, from the rows read so far.
pub(crate) struct Calls {
    /// Enters without an exit, by their numbers.
    open: HashMap<u64, Entered>,
    /// The number of the first row that was read. Rows before it were removed with their segment, or were not asked for.
    from: u64,
}

struct Entered {
    segment: u32,
    id: u64,
    tool: u64,
}

impl Calls {
    pub(crate) fn from(first: u64) -> Self {
        Self { open: HashMap::new(), from: first }
    }

    /// Takes the next row of a segment, which has this number; an error says what is wrong with the pair that it completes.
    pub(crate) fn take(&mut self, format: u32, segment: u32, seq: u64, half: &Half) -> Result<(), String> {
        let Half { exit, id, tool } = *half;
        let Some(named) = exit else {
            self.open.insert(seq, Entered { segment, id, tool });
            return Ok(());
        };
        let Some(enter) = named.number.filter(|enter| *enter >= self.from) else { return Ok(()) };
        let Some(entered) = self.open.remove(&enter) else {
            return Err(format!(
                "it is the exit of row {enter}, which is not an enter or already has an exit"
            ));
        };
        if format > 1 && named.segment != Some(entered.segment) {
            return Err(format!("it names another segment than the one that has its enter, row {enter}"));
        }
        match (entered.id == id, entered.tool == tool) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("it is the exit of row {enter}, which has another correlation id")),
            (true, false) if format == 1 => Err(format!(
                "it is the exit of row {enter}, which is of another tool: two calls with one correlation id got each \
                 other's exits, because format 1 could not tell them apart"
            )),
            (true, false) => Err(format!("it is the exit of row {enter}, which is of another tool")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(seq: u64, id: &str, tool: &str) -> Half {
        let text =
            format!(r#"{{"seq":{seq},"kind":"enter","time":"t","correlationId":"{id}","tool":"{tool}"}}"#);
        Half::read(text.as_bytes()).unwrap()
    }

    fn exit(seq: u64, enter: &str, id: &str, tool: &str) -> Half {
        let text = format!(
            r#"{{"seq":{seq},{enter}"kind":"exit","time":"t","correlationId":"{id}","tool":"{tool}"}}"#
        );
        Half::read(text.as_bytes()).unwrap()
    }

    /// WIRE-2: the fields that both rows of a pair have are compared, and a ticket is good for one exit.
    #[test]
    fn both_rows_of_a_pair_are_of_one_call() {
        #[track_caller]
        fn check(format: u32, end: &Half, wrong: Option<&str>) {
            let mut calls = Calls::from(3);
            calls.take(format, 1, 3, &enter(3, "a", "read")).unwrap();
            let said = calls.take(format, 1, 4, end);
            assert_eq!(said.is_ok(), wrong.is_none(), "{said:?}");
            assert!(wrong.is_none_or(|wrong| said.as_ref().unwrap_err().contains(wrong)), "{said:?}");
            if said.is_ok() && end.exit.unwrap().number == Some(3) {
                assert!(calls.take(format, 1, 5, end).unwrap_err().contains("already has an exit"));
            }
        }
        let named = r#""enter":3,"enterSegment":1,"#;
        check(2, &exit(4, named, "a", "read"), None);
        check(2, &exit(4, named, "b", "read"), Some("another correlation id"));
        check(2, &exit(4, named, "a", "write"), Some("another tool"));
        check(2, &exit(4, r#""enter":3,"enterSegment":2,"#, "a", "read"), Some("another segment"));
        check(2, &exit(4, r#""enter":3,"#, "a", "read"), Some("another segment"));
        check(2, &exit(4, r#""enter":9,"enterSegment":1,"#, "a", "read"), Some("not an enter"));
        check(1, &exit(4, r#""enter":3,"#, "a", "read"), None);
        check(1, &exit(4, r#""enter":3,"#, "a", "write"), Some("format 1"));
        // An exit without an enter, and one whose enter is no longer here.
        check(2, &exit(4, "", "a", "read"), None);
        check(2, &exit(4, r#""enter":2,"enterSegment":1,"#, "b", "write"), None);
    }

    /// A row means the same in any JSON spelling.
    #[test]
    fn a_row_that_is_written_otherwise_says_the_same() {
        let ours = enter(1, "a", r#"re\"ad\\"#);
        let other =
            br#"{ "kind": "enter", "tool": "re\u0022ad\\", "seq": 1, "time": "t", "correlationId": "a" }"#;
        let other = Half::read(other).unwrap();
        assert!((ours.id, ours.tool) == (other.id, other.tool) && other.exit.is_none());
        assert!(Half::read(br#"{"seq":1,"kind":"enter","time":"t","#).is_none());
    }

    /// WIRE-2: a row that the store wrote is read up to the tool's name and no further; any other text takes the slow path.
    #[test]
    fn a_row_of_the_store_is_read_up_to_the_name_of_its_tool() {
        #[track_caller]
        fn check(front: &str, tool: &str, expected: Option<(Option<u64>, Option<u32>)>) {
            let text =
                format!(r#"{{"seq":{front},"time":"t","correlationId":"a","tool":"{tool}", no more JSON"#);
            let half = plain(text.as_bytes()).unwrap();
            assert_eq!(half.exit.map(|named| (named.number, named.segment)), expected, "{text}");
            assert_eq!(
                (half.id, half.tool),
                (KEY.hash_one("a".as_bytes()), KEY.hash_one(tool.as_bytes())),
                "{text}"
            );
        }
        check(r#"7,"kind":"enter""#, "read", None);
        check(r#"12,"kind":"enter""#, r#"re\"ad\\"#, None);
        check(r#"7,"kind":"exit""#, "", Some((None, None)));
        check(r#"7,"enter":3,"kind":"exit""#, "read", Some((Some(3), None)));
        check(r#"7,"enter":3,"enterSegment":20,"kind":"exit""#, "read", Some((Some(3), Some(20))));
        check(r#"7,"enter":3,"enterSegment":4294967296,"kind":"exit""#, "read", Some((Some(3), None)));
        for other in [
            r#"{"seq":"#,
            r#"{"seq":x,"kind":"enter","time":"t","correlationId":"a","tool":"read"}"#,
            r#"{"seq":1, "kind":"enter","time":"t","correlationId":"a","tool":"read"}"#,
            r#"{"seq":1,"enter":"3","kind":"exit","time":"t","correlationId":"a","tool":"read"}"#,
            r#"{"seq":1,"kind":"enter","time":"t","correlationId":"a","tool":"read"#,
            r#"{"seq":1,"kind":"enter","time":"t","correlationId":"a","tool":"read\""#,
        ] {
            assert!(plain(other.as_bytes()).is_none(), "{other}");
        }
    }
}
