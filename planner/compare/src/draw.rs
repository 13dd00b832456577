//! Draws the elements of leaves of regions by their position in the class, so that both programs read the same
//! elements.
//!
//! Three kinds of draws are needed: values of moderate size; small values, which reveal added constants; and
//! wide draws with large magnitudes and with values near the constants of the programs. Ranks that hold the
//! same bits of a value ([`symmc_ir::Replication`]) draw the same elements.

use std::collections::BTreeMap;

use symmc_ir::entity::Entity;
use symmc_ir::interp::{SeedConfig, SeedScope, SeededInputs};
use symmc_ir::{DType, Graph, InputId, Op, SymbolBindings, Tensor};
use symmc_support::random::SplitMix;

use crate::concrete::{ConcreteRegion, RegionLeaf};
use crate::elements::ElementClass;
use crate::number::round_to_dtype;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrawKind {
    /// Floats between -1 and 1; integers that may be indices.
    Moderate,
    /// Floats between -1/1024 and 1/1024.
    Small,
    /// Floats up to 8192, integers up to 2^40, and numbers near the constants of the programs.
    Wide,
}

/// The draws for the leaves of a pair of regions.
pub struct LeafDraws {
    /// The number of each class, in the order of first reads.
    number: BTreeMap<ElementClass, u64>,
    /// The exclusive upper limit of a class whose integers are indices.
    limits: BTreeMap<ElementClass, u64>,
    ascending: BTreeMap<ElementClass, u64>,
    critical: Vec<f64>,
}

/// The largest number of constants of the programs near which values are drawn.
const MOST_CRITICAL: usize = 12;

impl LeafDraws {
    /// The draws for both regions at some sizes.
    pub fn new(pair: [&ConcreteRegion; 2]) -> Result<LeafDraws, String> {
        let mut number = BTreeMap::new();
        let mut limits = BTreeMap::new();
        let mut ascending = BTreeMap::new();
        let unbound = SymbolBindings::new();
        let config = SeedConfig { seed: 0, arguments: SeedScope::PerRank, parameters: SeedScope::PerRank };
        for concrete in pair {
            let seeds = SeededInputs::new(&concrete.graph, &unbound, config);
            for (k, leaf) in concrete.leaves.iter().enumerate() {
                let next = number.len() as u64;
                number.entry(leaf.class).or_insert(next);
                if leaf.dtype.is_float() || leaf.dtype == DType::Bool {
                    continue;
                }
                let id = InputId::new(k);
                if let Some(limit) = seeds.index_limit(id).map_err(|e| e.to_string())? {
                    let known = limits.entry(leaf.class).or_insert(limit);
                    *known = limit.min(*known);
                }
                if seeds.holds_group_ends(id) {
                    let shape = &concrete.graph.ty(concrete.graph.inputs[id].value).shape;
                    let numel = shape.iter().filter_map(symmc_ir::Dim::as_const).product::<i64>();
                    let known = ascending.entry(leaf.class).or_insert(1);
                    *known = numel.max(1).max(*known as i64) as u64;
                }
            }
        }
        Ok(LeafDraws { number, limits, ascending, critical: critical_values(pair) })
    }

    /// The tensor of a leaf on a rank. `shift` moves floats by up to this fraction of themselves. Fails if the
    /// data of a constant do not have the elements that are read.
    pub fn tensor(
        &self,
        graph: &Graph,
        leaf: &RegionLeaf,
        k: usize,
        (kind, seed): (DrawKind, u64),
        rank: u32,
        shift: f64,
    ) -> Result<Tensor, String> {
        let ty = graph.ty(graph.inputs[InputId::new(k)].value);
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|d| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0))
            .collect();
        let positions = positions(leaf, &shape);
        if let Some(data) = &leaf.data {
            let indices: Option<Vec<usize>> = positions
                .iter()
                .map(|&position| usize::try_from(position).ok().filter(|&index| index < data.numel()))
                .collect();
            let indices = indices.ok_or_else(describe_missing_data)?;
            let tensor = if ty.dtype.is_float() {
                let floats: Vec<f64> = indices.iter().map(|&p| data.get_f64(p)).collect();
                Tensor::from_f64(ty.dtype, shape, &floats)
            } else {
                let integers: Vec<i64> = indices.iter().map(|&p| data.get_i64(p)).collect();
                Tensor::from_i64(ty.dtype, shape, &integers)
            };
            return tensor.ok_or_else(describe_missing_data);
        }
        let rank = leaf.replication.as_ref().map_or(rank, |held| held.representative_rank(rank));
        let together = 2.0 + (self.number.get(&leaf.class).copied().unwrap_or(0) % 4) as f64;
        let stream = self.class_seed(leaf.class, seed, rank);
        if ty.dtype.is_float() {
            let floats = positions.iter().map(|&position| {
                let mut random = element_random(stream, position);
                let x = round_to_dtype(leaf.dtype, self.float(kind, &mut random));
                // Shifts each element separately, and all elements of a leaf together, as rounded factors do.
                x * (1.0 + shift * (random.symmetric_unit() + together))
            });
            return Tensor::from_f64(ty.dtype, shape, &floats.collect::<Vec<_>>())
                .ok_or_else(describe_missing_data);
        }
        let integers = positions
            .iter()
            .map(|&position| self.integer(kind, leaf, position, &mut element_random(stream, position)));
        Tensor::from_i64(ty.dtype, shape, &integers.collect::<Vec<_>>()).ok_or_else(describe_missing_data)
    }

    /// The seed of the random numbers of a class.
    fn class_seed(&self, class: ElementClass, seed: u64, rank: u32) -> u64 {
        let class = self.number.get(&class).copied().unwrap_or(0);
        SplitMix(seed ^ class << 48 ^ u64::from(rank) << 32).next()
    }

    fn float(&self, kind: DrawKind, random: &mut SplitMix) -> f64 {
        match kind {
            DrawKind::Moderate => random.symmetric_unit(),
            DrawKind::Small => random.symmetric_unit() / 1024.0,
            DrawKind::Wide => match random.below(4) {
                0 => random.symmetric_unit(),
                1 if !self.critical.is_empty() => {
                    let c = random.pick(&self.critical);
                    let near = [0.0, 1e-7, -1e-7, 1e-3, -1e-3, 0.05, -0.05, 0.5];
                    c * (1.0 + random.pick(&near))
                }
                _ => {
                    let magnitude = (random.below(25 << 20) as f64 / f64::from(1 << 20) - 12.0).exp2();
                    if random.one_in(2) { -magnitude } else { magnitude }
                }
            },
        }
    }

    fn integer(&self, kind: DrawKind, leaf: &RegionLeaf, position: i64, random: &mut SplitMix) -> i64 {
        if leaf.dtype == DType::Bool {
            return random.below(2) as i64;
        }
        let limit = self.limits.get(&leaf.class).copied();
        if let (Some(&n), Some(limit)) = (self.ascending.get(&leaf.class), limit) {
            let last = limit.saturating_sub(1);
            let at = (position.max(0) as u64).min(n - 1) + 1;
            return (u128::from(last) * u128::from(at) / u128::from(n)) as i64;
        }
        let below =
            |random: &mut SplitMix, end: u64| random.below(usize::try_from(end.max(1)).unwrap_or(1)) as i64;
        if limit.is_some() || kind != DrawKind::Wide {
            return below(random, limit.unwrap_or(8));
        }
        let (low, high) = match leaf.dtype {
            DType::U8 => (0, 255),
            DType::I32 => (-(1 << 30), 1 << 30),
            _ => (-(1 << 40), 1 << 40),
        };
        let x = match random.below(4) {
            0 => below(random, 8),
            1 if !self.critical.is_empty() => {
                let c = random.pick(&self.critical) as i64;
                let times = random.pick(&[1, 1, 1, -1, 2, 1000]);
                c.saturating_mul(times).saturating_add(random.pick(&[-1, 0, 1]))
            }
            _ => {
                let magnitude = 1i64 << random.below(40);
                let x = magnitude.saturating_add(below(random, magnitude as u64));
                if random.one_in(2) { -x } else { x }
            }
        };
        x.clamp(low, high)
    }
}

fn describe_missing_data() -> String {
    "the data of a constant lack elements that the part reads".to_string()
}

fn element_random(stream: u64, position: i64) -> SplitMix {
    SplitMix(stream ^ (position as u64).wrapping_mul(0x2545_f491_4f6c_dd1d))
}

/// The position in its class of each element of a leaf, in row-major order.
fn positions(leaf: &RegionLeaf, shape: &[usize]) -> Vec<i64> {
    let mut out = vec![leaf.offset];
    for (extent, stride) in shape.iter().zip(&leaf.strides) {
        let along =
            |&from: &i64| (0..*extent).map(move |i| from.wrapping_add((i as i64).wrapping_mul(*stride)));
        out = out.iter().flat_map(along).collect();
    }
    out
}

/// The constants of the programs, and the middle between each two of them.
fn critical_values(pair: [&ConcreteRegion; 2]) -> Vec<f64> {
    let mut found: Vec<f64> = Vec::new();
    for node in pair.iter().flat_map(|c| c.graph.nodes.values()) {
        let x = match &node.op {
            Op::Full(s) | Op::BinaryScalar { scalar: s, .. } | Op::Pad { value: s, .. } => s.as_f64(),
            _ => continue,
        };
        if x.is_finite() && x != 0.0 && x.abs() < 1e15 && !found.contains(&x) && found.len() < MOST_CRITICAL {
            found.push(x);
        }
    }
    let middles: Vec<f64> =
        found.iter().enumerate().flat_map(|(i, a)| found[..i].iter().map(move |b| (a + b) / 2.0)).collect();
    found.extend(middles);
    found
}
