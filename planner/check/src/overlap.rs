//! Decides which values of a bucket may share bytes in one run.
//!
//! Values with disjoint spans share no bytes. If spans overlap, two cases remain:
//! - Values of different memories, and values that all start at constant bytes, are taken to share bytes.
//! - Other values of one memory may still be disjoint, because their dims have one binding.
//!
//! The starts and ends of the values of a memory are sorted into a chain. Bounds of dims show for most neighbours of
//! the chain that they ascend for all sizes. The order of any two ends between two breaks of the chain follows, so
//! that not every pair of dims has to be compared.

use std::collections::HashMap;

use symmc_ir::{Dim, EntityMap, SymbolBindings, SymbolTable, ValueId};
use symmc_plan::MemoryRef;

use super::location::{SymbolicRange, ValueLocation, are_disjoint};

pub struct ValueOverlaps {
    /// For each value its memory, as an index of `memories`, and its place there. `None` if all values of the
    /// memory start at constant bytes: their spans decide.
    place: EntityMap<ValueId, Option<(usize, usize)>>,
    memories: Vec<DistinctLocations>,
}

/// The distinct places of the values of one memory.
struct DistinctLocations {
    count: usize,
    /// For each pair of places whose spans overlap whether they are proven disjoint, at index `i * count + j`.
    disjoint: Vec<bool>,
    /// For each place whether it may share bytes with every place whose span overlaps its own.
    simple: Vec<bool>,
}

impl ValueOverlaps {
    pub fn new(locations: &EntityMap<ValueId, Option<ValueLocation>>, symbols: &SymbolTable) -> Self {
        let mut of_memory: Vec<Vec<ValueId>> = Vec::new();
        let mut index_of_memory: HashMap<MemoryRef, usize> = HashMap::new();
        for (v, location) in locations.iter().filter_map(|(v, location)| Some((v, location.as_ref()?))) {
            let index = *index_of_memory.entry(location.range.memory).or_insert(of_memory.len());
            match of_memory.get_mut(index) {
                Some(values) => values.push(v),
                None => of_memory.push(vec![v]),
            }
        }
        let mut places = EntityMap::filled(None, locations.len());
        let mut memories = Vec::new();
        for values in of_memory {
            let in_memory: Vec<(ValueId, &ValueLocation)> =
                values.iter().filter_map(|&v| Some((v, locations[v].as_ref()?))).collect();
            if in_memory.iter().all(|(_, location)| location.rigid) {
                continue;
            }
            let mut distinct: Vec<&ValueLocation> = Vec::new();
            let mut number: HashMap<(&Dim, &Dim, Option<(usize, &Dim)>), usize> = HashMap::new();
            for (v, location) in in_memory {
                let SymbolicRange { start, end, rank, .. } = &location.range;
                let rank = rank.as_ref().map(|n| (n.group, &n.stride));
                let position = *number.entry((start, end, rank)).or_insert(distinct.len());
                if position == distinct.len() {
                    distinct.push(location);
                }
                places[v] = Some((memories.len(), position));
            }
            memories.push(DistinctLocations::new(&distinct, symbols));
        }
        ValueOverlaps { place: places, memories }
    }

    /// Whether two values with these locations may share bytes.
    pub fn share_bytes(&self, (a, x): (ValueId, &ValueLocation), (b, y): (ValueId, &ValueLocation)) -> bool {
        x.spans_overlap(y)
            && match (self.place[a], self.place[b]) {
                (Some((m, i)), Some((n, j))) if m == n => !self.memories[m].are_disjoint(i, j),
                _ => true,
            }
    }

    /// Whether a value may share bytes with every value of its memory whose span overlaps its own.
    pub fn is_simple(&self, value: ValueId) -> bool {
        self.place[value].is_none_or(|(m, i)| self.memories[m].simple[i])
    }
}

impl DistinctLocations {
    fn new(locations: &[&ValueLocation], symbols: &SymbolTable) -> Self {
        let count = locations.len();
        let chain = BoundaryChain::new(locations, symbols);
        let mut disjoint = vec![false; count * count];
        let mut simple = vec![true; count];
        for i in 0..count {
            for j in 0..i {
                let x = locations[i];
                let y = locations[j];
                if x.spans_overlap(y) && !(x.rigid && y.rigid) && chain.are_disjoint((i, x), (j, y), symbols)
                {
                    disjoint[i * count + j] = true;
                    disjoint[j * count + i] = true;
                    simple[i] = false;
                    simple[j] = false;
                }
            }
        }
        DistinctLocations { count, disjoint, simple }
    }

    fn are_disjoint(&self, i: usize, j: usize) -> bool {
        self.disjoint[i * self.count + j]
    }
}

/// The boundaries of all places that do not depend on the rank: their starts and ends, in ascending order.
struct BoundaryChain {
    /// For each place the indices of its start and its end in the chain. `None` if the place depends on the rank.
    ends: Vec<Option<(usize, usize)>>,
    /// For each boundary the number of boundaries up to it that are not proven to be at least their predecessor.
    /// Between two boundaries with equal numbers the chain provably ascends.
    breaks: Vec<usize>,
    /// The value of each boundary with all symbols at their upper and at their lower bounds.
    samples: Vec<[Option<i64>; 2]>,
}

impl BoundaryChain {
    fn new(locations: &[&ValueLocation], symbols: &SymbolTable) -> Self {
        let bindings = [SymbolBindings::at_upper_bounds(symbols), SymbolBindings::at_lower_bounds(symbols)];
        let fixed = locations.iter().filter(|location| location.range.rank.is_none());
        let dims = fixed.flat_map(|location| [&location.range.start, &location.range.end]);
        let mut number: HashMap<&Dim, usize> = dims.map(|d| (d, 0)).collect();
        let mut order: Vec<([Option<i64>; 2], &Dim)> =
            number.keys().map(|&d| ([0, 1].map(|i| d.eval(&bindings[i])), d)).collect();
        order.sort_unstable();
        let mut breaks = Vec::with_capacity(order.len());
        for (i, (_, dim)) in order.iter().enumerate() {
            let broken = i.checked_sub(1).is_some_and(|p| !order[p].1.provably_le(dim, symbols));
            breaks.push(breaks.last().copied().unwrap_or(0) + usize::from(broken));
            number.insert(*dim, i);
        }
        let ends = locations.iter().map(|location| {
            let range = &location.range;
            range.rank.is_none().then(|| (number[&range.start], number[&range.end]))
        });
        BoundaryChain {
            ends: ends.collect(),
            breaks,
            samples: order.iter().map(|(sample, _)| *sample).collect(),
        }
    }

    fn are_disjoint(
        &self,
        (i, x): (usize, &ValueLocation),
        (j, y): (usize, &ValueLocation),
        symbols: &SymbolTable,
    ) -> bool {
        let (Some(a), Some(b)) = (self.ends[i], self.ends[j]) else {
            return are_disjoint(&x.range, &y.range, symbols);
        };
        if self.ascends(a.1, b.0) || self.ascends(b.1, a.0) {
            return true;
        }
        // If they share bytes under one of the two sampled bindings, a comparison of dims cannot succeed.
        for binding in 0..2 {
            let ends =
                [a, b].map(|(start, end)| Some((self.samples[start][binding]?, self.samples[end][binding]?)));
            if let [Some(a), Some(b)] = ends
                && a.0.max(b.0) < a.1.min(b.1)
            {
                return false;
            }
        }
        are_disjoint(&x.range, &y.range, symbols)
    }

    /// Whether a chain of comparisons shows that one boundary is at most the other.
    fn ascends(&self, from: usize, to: usize) -> bool {
        from <= to && self.breaks[from] == self.breaks[to]
    }
}
