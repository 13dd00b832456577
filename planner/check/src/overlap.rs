//! Which values of a bucket share bytes in one run.
//!
//! Values of two memories do where their spans meet. In a memory whose values all start at constant bytes it is the
//! same; in others the dims may tell values apart. Ends of values are put in an order in which each is known to be no
//! less than the one before, as far as bounds show; from such a chain it follows for any two values, without looking
//! at every pair of dims.

use std::collections::HashMap;

use symmc_ir::{Dim, EntityMap, SymbolBindings, SymbolTable, ValueId};
use symmc_plan::MemoryRef;

use super::location::{SymbolicRange, ValueLocation, are_disjoint};

pub struct ValueOverlaps {
    /// The memory of each value, if dims tell some of its values apart, and the value's place there.
    place: EntityMap<ValueId, Option<(usize, usize)>>,
    memories: Vec<DistinctLocations>,
}

/// The places in a memory, each once.
struct DistinctLocations {
    count: usize,
    /// For each two places whether they are known to be apart.
    apart: Vec<bool>,
    /// Whether a place shares bytes with all whose spans meet its own.
    simple: Vec<bool>,
}

impl ValueOverlaps {
    pub fn new(locations: &EntityMap<ValueId, Option<ValueLocation>>, symbols: &SymbolTable) -> Self {
        let mut of_memory: Vec<Vec<ValueId>> = Vec::new();
        let mut known: HashMap<MemoryRef, usize> = HashMap::new();
        for (v, location) in locations.iter().filter_map(|(v, h)| Some((v, h.as_ref()?))) {
            let at = *known.entry(location.range.memory).or_insert(of_memory.len());
            match of_memory.get_mut(at) {
                Some(values) => values.push(v),
                None => of_memory.push(vec![v]),
            }
        }
        let mut place = EntityMap::filled(None, locations.len());
        let mut memories = Vec::new();
        for values in of_memory {
            let locations: Vec<(ValueId, &ValueLocation)> =
                values.iter().filter_map(|&v| Some((v, locations[v].as_ref()?))).collect();
            if locations.iter().all(|(_, h)| h.rigid) {
                continue;
            }
            let mut distinct: Vec<&ValueLocation> = Vec::new();
            let mut number: HashMap<(&Dim, &Dim, Option<(usize, &Dim)>), usize> = HashMap::new();
            for (v, h) in locations {
                let rank = h.range.rank.as_ref().map(|n| (n.group, &n.stride));
                let at = *number.entry((&h.range.start, &h.range.end, rank)).or_insert(distinct.len());
                if at == distinct.len() {
                    distinct.push(h);
                }
                place[v] = Some((memories.len(), at));
            }
            memories.push(DistinctLocations::new(&distinct, symbols));
        }
        ValueOverlaps { place, memories }
    }

    /// Whether two values with these locations share bytes, as far as is known.
    pub fn share_bytes(&self, (a, x): (ValueId, &ValueLocation), (b, y): (ValueId, &ValueLocation)) -> bool {
        x.spans_overlap(y)
            && match (self.place[a], self.place[b]) {
                (Some((m, i)), Some((n, j))) if m == n => !self.memories[m].are_disjoint(i, j),
                _ => true,
            }
    }

    /// Whether a value shares bytes with all values of its memory whose spans meet its own.
    pub fn is_simple(&self, value: ValueId) -> bool {
        self.place[value].is_none_or(|(m, i)| self.memories[m].simple[i])
    }
}

impl DistinctLocations {
    fn new(locations: &[&ValueLocation], symbols: &SymbolTable) -> Self {
        let count = locations.len();
        let chain = BoundaryChain::new(locations, symbols);
        let mut places =
            DistinctLocations { count, apart: vec![false; count * count], simple: vec![true; count] };
        for i in 0..count {
            for j in 0..i {
                let (x, y) = (locations[i], locations[j]);
                if x.spans_overlap(y) && !(x.rigid && y.rigid) && chain.are_disjoint((i, x), (j, y), symbols)
                {
                    (places.apart[i * count + j], places.apart[j * count + i]) = (true, true);
                    (places.simple[i], places.simple[j]) = (false, false);
                }
            }
        }
        places
    }

    fn are_disjoint(&self, i: usize, j: usize) -> bool {
        self.apart[i * self.count + j]
    }
}

/// The ends of all places that do not depend on the rank, in an ascending order.
struct BoundaryChain {
    /// The numbers of both ends of each place; `None` if it depends on the rank.
    ends: Vec<Option<(usize, usize)>>,
    /// For each end how many up to it are not known to be at least the one before.
    breaks: Vec<usize>,
    /// Each end with all symbols at their lower and at their upper bounds.
    samples: Vec<[Option<i64>; 2]>,
}

impl BoundaryChain {
    fn new(locations: &[&ValueLocation], symbols: &SymbolTable) -> Self {
        let bindings = [SymbolBindings::at_upper_bounds(symbols), SymbolBindings::at_lower_bounds(symbols)];
        let fixed = |h: &&ValueLocation| h.range.rank.is_none();
        let dims = locations.iter().filter(|h| fixed(h)).flat_map(|h| [&h.range.start, &h.range.end]);
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
        let ends = |h: &&ValueLocation| fixed(h).then(|| (number[&h.range.start], number[&h.range.end]));
        BoundaryChain {
            ends: locations.iter().map(ends).collect(),
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
        let by_dims = |x: &SymbolicRange, y: &SymbolicRange| are_disjoint(x, y, symbols);
        let (Some(a), Some(b)) = (self.ends[i], self.ends[j]) else { return by_dims(&x.range, &y.range) };
        let ascends = |from: usize, to: usize| from <= to && self.breaks[from] == self.breaks[to];
        if ascends(a.1, b.0) || ascends(b.1, a.0) {
            return true;
        }
        // Where they share bytes under one of two bindings, the dims cannot show that they do not.
        let shares = |at: usize| {
            let sample = |end: usize| self.samples[end][at];
            let ends = [a, b].map(|(start, end)| Some((sample(start)?, sample(end)?)));
            matches!(ends, [Some(a), Some(b)] if a.0.max(b.0) < a.1.min(b.1))
        };
        !shares(0) && !shares(1) && by_dims(&x.range, &y.range)
    }
}
