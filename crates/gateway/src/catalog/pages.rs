//! The results of a list of any kind: one page for most gateways, several for the largest.
//!
//! A page is encoded when a client first asks for it and reused from then on; catalogs with equal lists share
//! their pages. A cursor identifies its list by a hash of the content, not by a counter. It therefore stays
//! valid after a restart and on a replica, exactly as long as the list is the same.

use std::sync::{Arc, OnceLock};

use bridgehead_wire::{Era, Object, Raw, Revision, Spliced, key};
use bytes::{BufMut, Bytes, BytesMut};

use crate::relay::revise::definition;

/// How many entries a page holds. Many clients never ask for a second page.
pub(crate) const PAGE: usize = 1_000;
/// How long a modern client may keep a complete list.
const LIST_TTL_MS: u32 = 10_000;

/// The definitions of all pages, as JSON arrays.
#[derive(Debug)]
pub(crate) struct Pages {
    /// A hash that identifies the list.
    generation: u64,
    bodies: Box<[OnceLock<Raw>]>,
}

impl Pages {
    /// The pages of a list of `entries` entries.
    pub(crate) fn new(generation: u64, entries: usize) -> Self {
        Self { generation, bodies: (0..entries.div_ceil(PAGE).max(1)).map(|_| OnceLock::new()).collect() }
    }

    /// Whether both belong to the same list.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.generation == other.generation && self.bodies.len() == other.bodies.len()
    }

    /// The cursor that points to a page.
    fn cursor(&self, number: usize) -> String {
        format!("{:016x}{number:x}", self.generation)
    }

    /// The number of the page that a cursor of this list points to.
    fn find(&self, cursor: &str) -> Option<usize> {
        let number = usize::from_str_radix(cursor.get(16..)?, 16).ok()?;
        // Compared as text, to reject other spellings of the same number.
        (number > 0 && number < self.bodies.len() && self.cursor(number) == cursor).then_some(number)
    }
}

/// The results for clients, of each page and revision.
#[derive(Debug)]
pub(crate) struct Lists {
    /// The member that holds the entries.
    member: &'static str,
    pub(crate) pages: Arc<Pages>,
    /// By revision, oldest first.
    results: [Box<[OnceLock<Spliced>]>; Revision::ALL.len()],
    ttl_ms: u32,
    server_info: Raw,
}

impl Lists {
    /// Lists around `pages`; clients may not cache them unless they are `complete`.
    pub(crate) fn new(member: &'static str, pages: Arc<Pages>, complete: bool, server_info: Raw) -> Self {
        let results = Revision::ALL.map(|_| pages.bodies.iter().map(|_| OnceLock::new()).collect());
        Self { member, pages, results, ttl_ms: if complete { LIST_TTL_MS } else { 0 }, server_info }
    }

    pub(super) const fn member(&self) -> &'static str {
        self.member
    }

    pub(super) const fn server_info(&self) -> &Raw {
        &self.server_info
    }

    /// Whether no server was still starting.
    pub(crate) const fn is_complete(&self) -> bool {
        self.ttl_ms != 0
    }

    /// The page that `cursor` points to, or the first page; `None` if the cursor does not belong to this
    /// list. `listed` yields the definitions of the whole list.
    pub(crate) fn page<'a, I: Iterator<Item = &'a Raw>>(
        &self,
        revision: Revision,
        cursor: Option<&str>,
        listed: impl FnOnce() -> I,
    ) -> Option<Spliced> {
        let number = cursor.map_or(Some(0), |cursor| self.pages.find(cursor))?;
        let results = Revision::ALL.iter().position(|known| *known == revision)?;
        let result = self.results[results].get(number)?.get_or_init(|| {
            let listed: Vec<&Raw> = listed().skip(number * PAGE).take(PAGE).collect();
            let revised: Vec<Option<Raw>> =
                listed.iter().map(|one| definition(one, revision).map(|one| one.to_raw())).collect();
            let body = if revised.iter().any(Option::is_some) {
                joined(revised.iter().zip(listed).map(|(revised, whole)| revised.as_ref().unwrap_or(whole)))
            } else {
                // The same bytes for every revision that needs no change.
                self.pages.bodies[number].get_or_init(|| joined(listed.into_iter())).clone()
            };
            self.around(revision.era(), number, &body)
        });
        Some(result.clone())
    }

    fn around(&self, era: Era, number: usize, body: &Raw) -> Spliced {
        let next = match number + 1 < self.pages.bodies.len() {
            true => format!(r#""nextCursor":"{}""#, self.pages.cursor(number + 1)),
            false => String::new(),
        };
        let rest = match era {
            Era::Legacy => format!("{{{next}}}"),
            Era::Modern => format!(
                r#"{{{next}{}"ttlMs":{},"cacheScope":"private","resultType":"complete","_meta":{{"{}":{}}}}}"#,
                if next.is_empty() { "" } else { "," },
                self.ttl_ms,
                key::SERVER_INFO,
                self.server_info.as_str()
            ),
        };
        let rest = Raw::parse(rest).and_then(|rest| Object::parse(&rest)).unwrap_or_else(|_| Object::empty());
        let mut edit = rest.edit();
        edit.set(self.member, body.clone());
        edit.finish()
    }
}

fn joined<'a>(definitions: impl Iterator<Item = &'a Raw>) -> Raw {
    let mut out = BytesMut::from("[");
    for definition in definitions {
        if out.len() > 1 {
            out.put_u8(b',');
        }
        out.put_slice(definition.bytes());
    }
    out.put_u8(b']');
    Raw::parse(Bytes::from(out)).unwrap_or(Raw::literal("[]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tools: usize, cursor: &str, expected: Option<usize>) {
        assert_eq!(Pages::new(0xab, tools).find(cursor), expected, "{cursor}");
    }

    /// CAT-6: only cursors that were handed out for this exact list are accepted.
    #[test]
    fn cursors_are_checked() {
        check(2_001, "00000000000000ab1", Some(1));
        check(2_001, "00000000000000ab2", Some(2));
        check(2_000, "00000000000000ab2", None);
        check(1_000, "00000000000000ab1", None);
        for foreign in [
            "",
            "x",
            "1",
            "00000000000000ab",
            "00000000000000ab0",
            "00000000000000ab01",
            "00000000000000ab+1",
            "00000000000000AB1",
            "00000000000000ac1",
            "00000000000000ab-1",
            "00000000000000abffffffffffffffffffff",
            "äääääääääääääääääää",
        ] {
            check(9_000, foreign, None);
        }
    }
}
