//! The Merkle tree over the rows of a segment, as RFC 6962 builds it: a root for a checkpoint, and the path
//! that proves that a row is under it.
//!
//! [`Frontier`] grows a tree row by row and remembers only the roots of its complete subtrees: a checkpoint
//! then costs a handful of hashes, no matter how long the segment is.

use crate::Hash;

/// A tree that can grow: the roots of its complete subtrees, the largest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frontier {
    count: u64,
    roots: Vec<Hash>,
}

impl Frontier {
    /// How many leaves it has.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Adds a leaf. Each set bit of the count is a complete subtree; adding one carries like addition.
    pub(crate) fn push(&mut self, leaf: Hash) {
        let mut top = leaf;
        for _ in 0..self.count.trailing_ones() {
            if let Some(left) = self.roots.pop() {
                top = Hash::node(&left, &top);
            }
        }
        self.roots.push(top);
        self.count += 1;
    }

    /// The root; without leaves, the hash of empty input.
    pub(crate) fn root(&self) -> Hash {
        let mut roots = self.roots.iter().rev().copied();
        let Some(last) = roots.next() else { return Hash::of(b"") };
        roots.fold(last, |right, left| Hash::node(&left, &right))
    }

    /// Copies another tree into the memory that this one already has.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.count = other.count;
        self.roots.clone_from(&other.roots);
    }
}

/// The root of a list of leaves.
pub(crate) fn root(leaves: &[Hash]) -> Hash {
    let mut tree = Frontier::default();
    leaves.iter().for_each(|leaf| tree.push(*leaf));
    tree.root()
}

/// The siblings on the way from the leaf at `index` up to the root, the nearest first; `None` if there is
/// no such leaf.
pub(crate) fn path(leaves: &[Hash], index: usize) -> Option<Vec<Hash>> {
    if index >= leaves.len() {
        return None;
    }
    let mut siblings = Vec::new();
    let (mut leaves, mut index) = (leaves, index);
    while leaves.len() > 1 {
        // The largest power of two that is smaller than the number of leaves.
        let split = leaves.len().next_power_of_two() / 2;
        let (left, right) = leaves.split_at(split);
        if index < split {
            siblings.push(root(right));
            leaves = left;
        } else {
            siblings.push(root(left));
            leaves = right;
            index -= split;
        }
    }
    siblings.reverse();
    Some(siblings)
}

/// The root that `leaf` at `index` of `count` has with these siblings; `None` if they do not fit (RFC 9162,
/// section 2.1.3.2).
pub(crate) fn root_from(leaf: Hash, index: u64, count: u64, siblings: &[Hash]) -> Option<Hash> {
    if index >= count {
        return None;
    }
    let (mut here, mut last) = (index, count - 1);
    let mut top = leaf;
    for sibling in siblings {
        if last == 0 {
            return None;
        }
        if here & 1 == 1 || here == last {
            top = Hash::node(sibling, &top);
            while here & 1 == 0 && here != 0 {
                here >>= 1;
                last >>= 1;
            }
        } else {
            top = Hash::node(&top, sibling);
        }
        here >>= 1;
        last >>= 1;
    }
    (last == 0).then_some(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: u64) -> Vec<Hash> {
        (0..count).map(|number| Hash::leaf(&number.to_be_bytes())).collect()
    }

    /// The tree by its definition.
    fn defined(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => Hash::of(b""),
            [leaf] => *leaf,
            _ => {
                let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
                Hash::node(&defined(left), &defined(right))
            }
        }
    }

    /// AUD-3: at every size the growing tree has the root that RFC 6962 defines.
    #[test]
    fn every_size_has_the_root_of_the_definition() {
        let all = leaves(130);
        let mut tree = Frontier::default();
        assert_eq!(
            tree.root().to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        for (at, leaf) in all.iter().enumerate() {
            tree.push(*leaf);
            assert_eq!(tree.root(), defined(&all[..=at]), "{} leaves", at + 1);
            assert_eq!(tree.count(), at as u64 + 1);
        }
        let mut copy = Frontier::default();
        copy.copy_from(&tree);
        assert_eq!((copy.root(), copy.count()), (tree.root(), 130));
    }

    /// AUD-3: in every small tree each row can be proved to be under the root, and nothing else can.
    #[test]
    fn paths_show_their_leaf_and_no_other() {
        for count in 1..=33_u64 {
            let all = leaves(count);
            let top = root(&all);
            for index in 0..count {
                let siblings = path(&all, usize::try_from(index).unwrap()).unwrap();
                let leaf = all[usize::try_from(index).unwrap()];
                let found =
                    |leaf, index, siblings: &[Hash]| root_from(leaf, index, count, siblings) == Some(top);
                assert!(found(leaf, index, &siblings), "{index} of {count}");
                assert!(!found(Hash::leaf(b"another"), index, &siblings));
                assert!(count == 1 || !found(leaf, (index + 1) % count, &siblings));
                assert!(!found(leaf, count, &siblings));
                assert!(!found(leaf, index, &[siblings.clone(), vec![top]].concat()));
                if let Some((_, fewer)) = siblings.split_last() {
                    assert!(!found(leaf, index, fewer));
                }
            }
            assert_eq!(path(&all, all.len()), None);
        }
    }
}
