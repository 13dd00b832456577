//! The orders in which blocks are placed.

use crate::block::{Block, BlockSpans};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FitRule {
    /// The lowest gap.
    First,
    Best,
}

pub struct PlacementOrder {
    pub name: &'static str,
    pub fit: FitRule,
    keys: Vec<Key>,
}

type Key = (u8, u64, u64, u32);

impl PlacementOrder {
    pub fn sequence(mut self) -> Vec<u32> {
        self.keys.sort_unstable();
        self.keys.iter().map(|k| k.3).collect()
    }
}

/// The orders to try, the most promising first. They are made one by one, on demand.
pub fn portfolio<'a>(
    blocks: &'a [Block],
    spans: &'a BlockSpans,
    loads: &'a [u64],
) -> impl Iterator<Item = PlacementOrder> + 'a {
    let last_instant = blocks.iter().map(|b| b.start.max(b.end)).max().unwrap_or(0);
    let lengths: Vec<u64> = blocks
        .iter()
        .map(|b| if b.start < b.end { b.end - b.start } else { last_instant - b.start + b.end } as u64)
        .collect();
    // For each instant the number of instants of the bound before it.
    let bound = loads.iter().max();
    let mut before = vec![0u32];
    before.extend(loads.iter().scan(0, |sum, load| {
        *sum += u32::from(Some(load) == bound);
        Some(*sum)
    }));
    let on_peak: Vec<u8> = (0..blocks.len())
        .map(|b| u8::from(spans.ranges_of(b).all(|(from, to)| before[from] == before[to])))
        .collect();
    type Make<'m> = Box<dyn Fn(usize) -> (u8, u64, u64) + 'm>;
    let size = |b: usize| blocks[b].size;
    let recipes: [(&'static str, FitRule, u8); 8] = [
        ("alive at the bound by lifetime, then by size", FitRule::First, 0),
        ("alive at the bound by birth, then by size", FitRule::First, 1),
        ("by contention", FitRule::First, 2),
        ("by size", FitRule::First, 3),
        ("by area", FitRule::First, 4),
        ("by lifetime", FitRule::First, 5),
        ("by birth, best fit", FitRule::Best, 6),
        ("by size, best fit", FitRule::Best, 3),
    ];
    recipes.into_iter().map(move |(name, fit, recipe)| {
        let contention: Vec<u64> =
            if recipe == 2 { contention(spans, loads, blocks.len()) } else { Vec::new() };
        let key: Make<'_> = match recipe {
            0 => Box::new(|b| match on_peak[b] {
                0 => (0, descending(lengths[b]), descending(size(b))),
                _ => (1, descending(size(b)), descending(lengths[b])),
            }),
            1 => Box::new(|b| match on_peak[b] {
                0 => (0, blocks[b].start as u64, descending(size(b))),
                _ => (1, descending(size(b)), descending(lengths[b])),
            }),
            2 => Box::new(|b| (0, descending(contention[b]), descending(lengths[b]))),
            3 => Box::new(|b| (0, descending(size(b)), descending(lengths[b]))),
            4 => Box::new(|b| (0, descending(size(b).saturating_mul(lengths[b])), descending(size(b)))),
            5 => Box::new(|b| (0, descending(lengths[b]), descending(size(b)))),
            _ => Box::new(|b| (0, blocks[b].start as u64, descending(size(b)))),
        };
        let keys = (0..blocks.len())
            .map(|b| {
                let (class, first, second) = key(b);
                (class, first, second, b as u32)
            })
            .collect();
        PlacementOrder { name, fit, keys }
    })
}

/// A key that sorts larger numbers first.
fn descending(number: u64) -> u64 {
    u64::MAX - number
}

/// The largest load during each block's lifetime, by a tree of maxima over time.
pub fn contention(spans: &BlockSpans, loads: &[u64], blocks: usize) -> Vec<u64> {
    let leaves = loads.len();
    let mut tree = [&vec![0; leaves], loads].concat();
    for node in (1..leaves).rev() {
        tree[node] = tree[2 * node].max(tree[2 * node + 1]);
    }
    (0..blocks)
        .map(|b| spans.ranges_of(b).map(|(from, to)| max_in_range(&tree, from, to)).max().unwrap_or(0))
        .collect()
}

/// The largest of a range of leaves of a segment tree.
fn max_in_range(tree: &[u64], from: usize, to: usize) -> u64 {
    let leaves = tree.len() / 2;
    let mut low = from + leaves;
    let mut high = to + leaves;
    let mut largest = 0;
    while low < high {
        if low % 2 == 1 {
            largest = largest.max(tree[low]);
            low += 1;
        }
        if high % 2 == 1 {
            high -= 1;
            largest = largest.max(tree[high]);
        }
        low /= 2;
        high /= 2;
    }
    largest
}

/// A peak, its offsets, and the name of the order that gave them.
pub(crate) type FoundPacking = (u64, Vec<u64>, &'static str);
