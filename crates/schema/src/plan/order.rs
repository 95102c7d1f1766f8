//! Orders the nodes of a plan, and finds those on a cycle.

use super::Node;
use crate::SchemaError;

/// All nodes, each before its `same` nodes.
pub(super) fn ranked(nodes: &[Node]) -> Result<Vec<u32>, SchemaError> {
    let mut waits_for = vec![0_usize; nodes.len()];
    for &next in nodes.iter().flat_map(|node| &node.same) {
        waits_for[next as usize] += 1;
    }
    let mut order: Vec<u32> = (0..nodes.len() as u32).filter(|&node| waits_for[node as usize] == 0).collect();
    let mut done = 0;
    while let Some(&node) = order.get(done) {
        done += 1;
        for &next in &nodes[node as usize].same {
            waits_for[next as usize] -= 1;
            if waits_for[next as usize] == 0 {
                order.push(next);
            }
        }
    }
    if done == nodes.len() { Ok(order) } else { Err(SchemaError::Endless) }
}

/// The nodes on a cycle. Two searches find them: the second goes against the edges, in the reverse order in which the
/// first one left the nodes.
pub(super) fn on_cycles(nodes: &[Node]) -> Vec<u32> {
    let next = |node: u32| {
        let node = &nodes[node as usize];
        node.same.iter().copied().chain(node.parts())
    };
    let mut before = vec![Vec::new(); nodes.len()];
    for node in 0..nodes.len() as u32 {
        next(node).for_each(|next| before[next as usize].push(node));
    }
    let (mut seen, mut left) = (vec![false; nodes.len()], Vec::with_capacity(nodes.len()));
    let mut open = vec![(0, next(0).collect::<Vec<_>>())];
    seen[0] = true;
    while let Some((node, ahead)) = open.last_mut() {
        match ahead.pop() {
            Some(other) if !std::mem::replace(&mut seen[other as usize], true) => {
                open.push((other, next(other).collect()));
            }
            Some(_) => {}
            None => {
                left.push(*node);
                open.pop();
            }
        }
    }
    let (mut found, mut taken) = (Vec::new(), vec![false; nodes.len()]);
    for &first in left.iter().rev() {
        let (mut circle, mut open) = (Vec::new(), vec![first]);
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut taken[node as usize], true) {
                circle.push(node);
                open.extend(before[node as usize].iter().filter(|&&other| !taken[other as usize]));
            }
        }
        if circle.len() > 1 || next(first).any(|next| next == first) {
            found.extend(circle);
        }
    }
    found
}
