//! The results of a list of any kind: one page for most gateways, several for the largest.
//!
//! A page is encoded when a client first asks for it and reused from then on; catalogs with equal lists share
//! their pages. A cursor identifies its list by a hash of the content, not by a counter. It therefore stays
//! valid after a restart and on a replica, exactly as long as the list is the same.
//!
//! The pages of views share a [`Room`]: principals of many classes must not make memory grow.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use bridgehead_wire::{Era, Object, Raw, Revision, Spliced, key};
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use crate::relay::revise::definition;

/// How many entries a page holds. Many clients never ask for a second page.
pub(crate) const PAGE: usize = 1_000;
/// A result copies a body up to this size, so that its bytes are held twice.
const COPIED: usize = 16 * 1024;
/// How long a modern client may keep a complete list.
const LIST_TTL_MS: u32 = 10_000;

/// A list of any kind, in pages.
#[derive(Debug)]
pub(crate) struct Pages {
    /// A hash that identifies the list.
    generation: u64,
    /// How many there are.
    count: usize,
    /// Those that were asked for. Replaced by none when others need the room.
    kept: ArcSwap<Kept>,
    /// The room that they share with those of other views; `None` for the whole catalog, which keeps all.
    room: Option<Arc<Room>>,
    /// When they were last used, in the time of the room.
    used: AtomicU64,
}

/// The pages that were asked for.
#[derive(Debug)]
struct Kept {
    /// The definitions of each page, as a JSON array.
    bodies: Box<[OnceLock<Raw>]>,
    /// The results around them: of incomplete and of complete lists, by revision, oldest first.
    results: [[Box<[OnceLock<Spliced>]>; Revision::ALL.len()]; 2],
    /// What they take of the room.
    bytes: AtomicUsize,
    room: Option<Arc<Room>>,
}

impl Kept {
    fn new(count: usize, room: Option<Arc<Room>>) -> Self {
        let empty = || Revision::ALL.map(|_| (0..count).map(|_| OnceLock::new()).collect());
        let bodies = (0..count).map(|_| OnceLock::new()).collect();
        Self { bodies, results: [empty(), empty()], bytes: AtomicUsize::new(0), room }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.give_back(*self.bytes.get_mut());
        }
    }
}

/// The bytes that the prepared pages of all views may take together. If they do not suffice, the pages that were unused for
/// longest go first; what does not fit at all is assembled for each request.
#[derive(Debug)]
pub(crate) struct Room {
    limit: usize,
    taken: AtomicUsize,
    /// How often pages were asked for: the time by which they are used or unused.
    time: AtomicU64,
    holders: Mutex<Vec<Weak<Pages>>>,
}

impl Room {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0), time: AtomicU64::new(0), holders: Mutex::new(Vec::new()) }
    }

    /// Takes room for pages, from others if there is not enough. Returns whether there is.
    fn take(&self, bytes: usize, by: &Arc<Pages>) -> bool {
        if bytes > self.limit {
            return false;
        }
        let mut holders = self.holders.lock();
        holders.retain(|holder| holder.strong_count() > 0);
        if !holders.iter().any(|holder| std::ptr::eq(holder.as_ptr(), Arc::as_ptr(by))) {
            holders.push(Arc::downgrade(by));
        }
        let fits = || self.taken.load(Ordering::Relaxed).saturating_add(bytes) <= self.limit;
        if !fits() {
            let mut others: Vec<Arc<Pages>> = holders.iter().filter_map(Weak::upgrade).collect();
            others.retain(|other| !Arc::ptr_eq(other, by));
            others.sort_by_key(|other| other.used.load(Ordering::Relaxed));
            for other in others {
                other.forget();
                if fits() {
                    break;
                }
            }
        }
        let fits = fits();
        if fits {
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How many bytes are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Pages {
    /// The pages of a list of `entries` entries.
    pub(crate) fn new(generation: u64, entries: usize) -> Self {
        Self::within(generation, entries, None)
    }

    /// The same for a view, whose prepared pages share a room with those of others.
    pub(crate) fn within(generation: u64, entries: usize, room: Option<Arc<Room>>) -> Self {
        let count = entries.div_ceil(PAGE).max(1);
        let kept = ArcSwap::from_pointee(Kept::new(count, room.clone()));
        Self { generation, count, kept, room, used: AtomicU64::new(0) }
    }

    /// Whether both belong to the same list.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.generation == other.generation && self.count == other.count
    }

    /// The cursor that points to a page.
    fn cursor(&self, number: usize) -> String {
        format!("{:016x}{number:x}", self.generation)
    }

    /// The number of the page that a cursor of this list points to.
    fn find(&self, cursor: &str) -> Option<usize> {
        let number = usize::from_str_radix(cursor.get(16..)?, 16).ok()?;
        // Compared as text, to reject other spellings of the same number.
        (number > 0 && number < self.count && self.cursor(number) == cursor).then_some(number)
    }

    fn touch(&self) {
        if let Some(room) = &self.room {
            self.used.store(room.time.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Drops what is prepared.
    fn forget(&self) {
        self.kept.store(Arc::new(Kept::new(self.count, self.room.clone())));
    }
}

/// The results for clients, of each page and revision.
#[derive(Debug)]
pub(crate) struct Lists {
    /// The member that holds the entries.
    member: &'static str,
    pub(crate) pages: Arc<Pages>,
    ttl_ms: u32,
    server_info: Raw,
}

impl Lists {
    /// Lists around `pages`; clients may not cache them unless they are `complete`.
    pub(crate) const fn new(
        member: &'static str,
        pages: Arc<Pages>,
        complete: bool,
        server_info: Raw,
    ) -> Self {
        Self { member, pages, ttl_ms: if complete { LIST_TTL_MS } else { 0 }, server_info }
    }

    /// The same kind of list with other pages.
    pub(crate) fn around_pages(&self, pages: Arc<Pages>) -> Self {
        Self::new(self.member, pages, self.is_complete(), self.server_info.clone())
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
        let by_revision = Revision::ALL.iter().position(|known| *known == revision)?;
        self.pages.touch();
        let kept = self.pages.kept.load();
        let slot = kept.results[usize::from(self.is_complete())][by_revision].get(number)?;
        if let Some(result) = slot.get() {
            return Some(result.clone());
        }
        let listed: Vec<&Raw> = listed().skip(number * PAGE).take(PAGE).collect();
        let revised: Vec<Option<Raw>> =
            listed.iter().map(|one| definition(one, revision).map(|one| one.to_raw())).collect();
        let page = Page { number, era: revision.era(), listed, revised };
        let Some(room) = &self.pages.room else {
            return Some(slot.get_or_init(|| self.result(&kept, &page)).clone());
        };
        // Taken before the page is prepared. At most one of several requests for it keeps what it took.
        let bytes = page.needs(&kept);
        if !room.take(bytes, &self.pages) {
            return Some(self.result(&Kept::new(self.pages.count, None), &page));
        }
        let mut mine = false;
        let result = slot.get_or_init(|| {
            mine = true;
            self.result(&kept, &page)
        });
        match mine {
            true => drop(kept.bytes.fetch_add(bytes, Ordering::Relaxed)),
            false => room.give_back(bytes),
        }
        Some(result.clone())
    }

    /// The result with a page.
    fn result(&self, kept: &Kept, page: &Page<'_>) -> Spliced {
        let body = match page.is_revised() {
            true => joined(page.definitions()),
            // The same bytes for every revision that needs no change.
            false => kept.bodies[page.number].get_or_init(|| joined(page.definitions())).clone(),
        };
        self.around(page.era, page.number, &body)
    }

    fn around(&self, era: Era, number: usize, body: &Raw) -> Spliced {
        let next = match number + 1 < self.pages.count {
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

/// A page that is about to be prepared for a revision.
struct Page<'a> {
    number: usize,
    era: Era,
    /// Its definitions, as the server gives them.
    listed: Vec<&'a Raw>,
    /// What clients of the revision get instead.
    revised: Vec<Option<Raw>>,
}

impl Page<'_> {
    fn is_revised(&self) -> bool {
        self.revised.iter().any(Option::is_some)
    }

    fn definitions(&self) -> impl Iterator<Item = &Raw> {
        self.revised.iter().zip(&self.listed).map(|(revised, whole)| revised.as_ref().unwrap_or(whole))
    }

    /// How many bytes more it takes to keep this page.
    fn needs(&self, kept: &Kept) -> usize {
        let body: usize = self.definitions().map(|one| one.bytes().len() + 1).sum();
        // A short body is copied into the result.
        let copied = if body <= COPIED { body } else { 0 };
        match self.is_revised() {
            true => body,
            false if kept.bodies.get(self.number).is_some_and(|body| body.get().is_some()) => copied,
            false => body + copied,
        }
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

    /// A list of a view, whose pages hold `bytes` bytes each.
    fn list(room: &Arc<Room>, generation: u64) -> Lists {
        let pages = Arc::new(Pages::within(generation, 1, Some(Arc::clone(room))));
        Lists::new("tools", pages, true, Raw::literal("{}"))
    }

    fn ask(list: &Lists, definition: &Raw, revision: Revision) -> String {
        list.page(revision, None, || std::iter::once(definition)).unwrap().to_raw().as_str().to_owned()
    }

    fn is_kept(list: &Lists) -> bool {
        let kept = list.pages.kept.load();
        kept.results.iter().flatten().flatten().any(|slot| slot.get().is_some())
    }

    /// ACC-3: the prepared pages of all views stay within their room: those that were unused for longest go first, what does
    /// not fit at all is not kept, and everything is served all the same.
    #[test]
    fn pages_of_views_share_a_room() {
        let definition = |size: usize| Raw::encode(&serde_json::json!({"name": "x".repeat(size)}));
        let (large, huge) = (definition(40_000), definition(110_000));
        let room = Arc::new(Room::new(100_000));
        let [first, second, third] = [1, 2, 3].map(|generation| list(&room, generation));
        let answer = ask(&first, &large, Revision::MODERN);
        assert!(answer.contains(&"x".repeat(40_000)));
        ask(&second, &large, Revision::MODERN);
        assert!(is_kept(&first) && is_kept(&second));
        let taken = room.taken();
        assert!((80_000..81_000).contains(&taken), "{taken}");

        assert_eq!(ask(&first, &large, Revision::MODERN), answer, "from what is kept");
        ask(&first, &large, Revision::LATEST_LEGACY);
        assert_eq!(room.taken(), taken, "both revisions share the bytes");
        ask(&third, &large, Revision::MODERN);
        assert!(is_kept(&first) && !is_kept(&second) && is_kept(&third), "the second was unused for longest");
        assert_eq!(room.taken(), taken);

        let refused = list(&room, 4);
        assert!(ask(&refused, &huge, Revision::MODERN).contains(&"x".repeat(110_000)));
        assert!(
            !is_kept(&refused) && is_kept(&first) && is_kept(&third),
            "it cannot fit, so nothing goes for it"
        );
        assert_eq!(room.taken(), taken);
        drop((first, third));
        assert_eq!(room.taken(), 0);
        ask(&second, &definition(100), Revision::MODERN);
        assert!((200..300).contains(&room.taken()), "a short page is kept twice: {}", room.taken());
    }

    /// The whole catalog keeps all pages, and takes no room from views.
    #[test]
    fn the_whole_catalog_keeps_its_pages() {
        let list = Lists::new("tools", Arc::new(Pages::new(1, 1)), true, Raw::literal("{}"));
        let answer = ask(&list, &Raw::literal(r#"{"name":"a"}"#), Revision::MODERN);
        assert_eq!(ask(&list, &Raw::literal(r#"{"name":"b"}"#), Revision::MODERN), answer);
    }
}
