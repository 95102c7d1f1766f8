//! The names that a schema declares, for a quick look at every key of every call.

use bridgehead_wire::folded;

use super::Node;

/// The names of all properties declared anywhere in a schema.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// As spelled, sorted.
    exact: Vec<Box<str>>,
    /// Case-folded, sorted.
    folded: Vec<Box<str>>,
    /// Whether two of them fold alike.
    alike: bool,
}

impl Names {
    pub(super) fn of(nodes: &[Node]) -> Self {
        let mut exact: Vec<Box<str>> =
            nodes.iter().flat_map(|node| &node.properties).map(|(name, _)| name.clone()).collect();
        exact.sort_unstable();
        exact.dedup();
        let mut all: Vec<Box<str>> = exact.iter().map(|name| folded(name).into()).collect();
        all.sort_unstable();
        all.dedup();
        Self { alike: all.len() < exact.len(), exact, folded: all }
    }

    /// Whether `key` could be mistaken for a declared name that it is not. This runs for every key of every call: a
    /// declared key, or a short ASCII one, allocates no memory.
    pub(crate) fn resembled_by(&self, key: &str) -> bool {
        if self.exact.is_empty() {
            return false;
        }
        if self.exact.binary_search_by(|name| (**name).cmp(key)).is_ok() {
            return self.alike;
        }
        let mut room = [0; 64];
        if let Some(room) = room.get_mut(..key.len())
            && key.is_ascii()
        {
            room.copy_from_slice(key.as_bytes());
            room.make_ascii_lowercase();
            return self.folded.binary_search_by(|name| name.as_bytes().cmp(room)).is_ok();
        }
        let key = folded(key);
        self.folded.binary_search_by(|name| (**name).cmp(&*key)).is_ok()
    }
}
