//! Draws the elements of leaves of regions by their position in the class, so that both programs read the same
//! elements.
//!
//! Several kinds of draws are needed ([`DrawKind`]), because values that usual numbers hide show with others:
//! added constants with small numbers, guards with NaN and infinities, bounds with integers at and outside of
//! the ends of an axis. Ranks that hold the same bits of a value ([`symmc_ir::Replication`]) draw the same
//! elements.
//!
//! Elements of a *row*, all positions that ops may read together, are drawn together: in each row another rank
//! has the largest elements, or NaN, or equal ones. Rows are divided by the axes of a leaf whose positions the
//! region computes independently.

use std::collections::BTreeMap;

use symmc_ir::entity::Entity;
use symmc_ir::interp::{SeedConfig, SeedScope, SeededInputs};
use symmc_ir::{DType, Graph, InputId, Op, SymbolBindings, Tensor};
use symmc_support::random::SplitMix;

use crate::concrete::{ConcreteRegion, RegionLeaf, RowAxis, concrete_shape};
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
    /// Floats with few large magnitudes. In most rows these are on one rank, and ranks alternate. Elements of a
    /// replaced leaf are the largest.
    Spread,
    /// Rows with NaN, infinities, zeros of both signs, or ties; bools that are equal along rows.
    Special,
    /// Integers at the ends of the axes that they index and near the constants of the programs. With odd seeds
    /// some indices are outside of their axis.
    Edges,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Draw {
    pub kind: DrawKind,
    pub seed: u64,
}

impl Draw {
    pub fn new(kind: DrawKind, seed: u64) -> Draw {
        Draw { kind, seed }
    }
}

/// Changes of drawn elements.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DrawChange {
    /// Floats move by up to this fraction of themselves.
    pub shift: f64,
    /// This class has other elements on this rank, and on all ranks that hold the same bits.
    pub replaced: Option<(ElementClass, u32)>,
}

/// What both regions say about the leaves of a class.
#[derive(Clone, Debug, Default)]
struct ClassUse {
    /// The position in the order of first reads.
    number: u64,
    /// The exclusive upper limit of integers that are indices.
    limit: Option<u64>,
    /// The regions that read the class, and those in which it has a limit.
    read_by: [bool; 2],
    limited_by: [bool; 2],
    /// The number of elements, if they are ends of groups and ascend.
    ends: Option<u64>,
    /// The last position that a leaf reads.
    last_position: i64,
    row_axes: Vec<RowAxis>,
}

impl ClassUse {
    /// Whether an index outside of the limit is an error in both programs.
    fn is_limited(&self) -> bool {
        self.limit.is_some() && self.read_by == self.limited_by
    }

    fn row(&self, position: i64) -> u64 {
        let indices =
            self.row_axes.iter().map(|axis| position.rem_euclid(axis.period).div_euclid(axis.stride));
        indices.sum::<i64>().unsigned_abs()
    }
}

/// The draws for the leaves of a pair of regions.
pub struct LeafDraws {
    classes: BTreeMap<ElementClass, ClassUse>,
    /// The constants of the programs, and the middle between each two of them.
    critical: Vec<f64>,
    /// The integers among the constants.
    critical_integers: Vec<i64>,
    ranks: u64,
}

/// An element to draw.
#[derive(Clone, Copy)]
struct ElementSite {
    draw: Draw,
    row: u64,
    rank: u32,
    is_replaced: bool,
}

/// The largest number of constants of the programs near which values are drawn.
const MAX_CRITICAL_CONSTANTS: usize = 12;
/// The share of elements of a row that are NaN or infinite is 1 in this number.
const SPECIAL_SHARE: usize = 8;

impl LeafDraws {
    /// The draws for both regions at some sizes.
    pub fn new(pair: [&ConcreteRegion; 2]) -> Result<LeafDraws, String> {
        let mut classes: BTreeMap<ElementClass, ClassUse> = BTreeMap::new();
        let unbound = SymbolBindings::new();
        let config = SeedConfig { seed: 0, arguments: SeedScope::PerRank, parameters: SeedScope::PerRank };
        for (side, concrete) in pair.into_iter().enumerate() {
            let seeds = SeededInputs::new(&concrete.graph, &unbound, config);
            for (k, leaf) in concrete.leaves.iter().enumerate() {
                let id = InputId::new(k);
                let number = classes.len() as u64;
                let class = classes.entry(leaf.class).or_insert_with(|| ClassUse {
                    number,
                    row_axes: leaf.row_axes.clone(),
                    ..ClassUse::default()
                });
                class.read_by[side] = true;
                if leaf.dtype.is_float() || leaf.dtype == DType::Bool {
                    continue;
                }
                if let Some(limit) = seeds.index_limit(id).map_err(|e| e.to_string())? {
                    class.limited_by[side] = true;
                    class.limit = Some(class.limit.map_or(limit, |current| current.min(limit)));
                }
                let shape = concrete_shape(&concrete.graph, concrete.graph.inputs[id].value);
                let max_position = positions(leaf, &shape).into_iter().max().unwrap_or(0);
                class.last_position = class.last_position.max(max_position);
                if seeds.holds_group_ends(id) {
                    let count = max_position.max(0).unsigned_abs() + 1;
                    class.ends = Some(class.ends.map_or(count, |current| current.max(count)));
                }
            }
        }
        let ranks = u64::from(pair[0].graph.ranks.unwrap_or(1).max(1));
        let constants = program_constants(pair);
        let integers = constants.iter().filter(|x| x.fract() == 0.0).map(|x| *x as i64);
        let critical_integers = integers.collect();
        Ok(LeafDraws { classes, critical: with_middles(constants), critical_integers, ranks })
    }

    /// The tensor of a leaf on a rank. Fails if the data of a constant do not have the elements that are read.
    pub fn tensor(
        &self,
        graph: &Graph,
        leaf: &RegionLeaf,
        k: usize,
        draw: Draw,
        rank: u32,
        change: DrawChange,
    ) -> Result<Tensor, String> {
        let id = InputId::new(k);
        let ty = graph.ty(graph.inputs[id].value);
        let shape = concrete_shape(graph, graph.inputs[id].value);
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
        let class = self.classes.get(&leaf.class).cloned().unwrap_or_default();
        let rank = leaf.representative_rank(rank);
        let is_replaced = change.replaced == Some((leaf.class, rank));
        let own_seed = if is_replaced { draw.seed ^ 0x00c4_a26e << 16 } else { draw.seed };
        let stream = SplitMix(own_seed ^ class.number << 48 ^ u64::from(rank) << 32).next();
        let site = |position| ElementSite { draw, row: class.row(position), rank, is_replaced };
        if ty.dtype.is_float() {
            let together = 2.0 + (class.number % 4) as f64;
            let floats = positions.iter().map(|&position| {
                let mut random = element_random(stream, position);
                let x = round_to_dtype(leaf.dtype, self.float(site(position), &mut random));
                // Shifts each element separately, and all elements of a leaf together, as rounded factors do.
                x * (1.0 + change.shift * (random.symmetric_unit() + together))
            });
            return Tensor::from_f64(ty.dtype, shape, &floats.collect::<Vec<_>>())
                .ok_or_else(describe_missing_data);
        }
        let ends = class.ends.map(|count| ascending_ends(stream, count, class.limit));
        let integers = positions.iter().map(|&position| {
            let mut random = element_random(stream, position);
            match &ends {
                Some(ends) => {
                    let end = usize::try_from(position).ok().and_then(|p| ends.get(p));
                    end.or(ends.last()).copied().unwrap_or(0)
                }
                None if leaf.dtype == DType::Bool => self.bool(site(position), &mut random),
                None => self.integer(draw, leaf.dtype, &class, &mut random),
            }
        });
        Tensor::from_i64(ty.dtype, shape, &integers.collect::<Vec<_>>()).ok_or_else(describe_missing_data)
    }

    fn float(&self, site: ElementSite, random: &mut SplitMix) -> f64 {
        match site.draw.kind {
            DrawKind::Moderate | DrawKind::Edges => random.symmetric_unit(),
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
            DrawKind::Spread => self.spread(site, random),
            DrawKind::Special => self.special(site, random),
        }
    }

    /// A float whose magnitude has an exponential distribution, so that the largest of many differ clearly in
    /// every dtype.
    fn spread(&self, site: ElementSite, random: &mut SplitMix) -> f64 {
        let unit = random.symmetric_unit();
        let magnitude = -(1.0 - unit.abs()).max(1e-12).ln() / 2.0;
        let x = magnitude.copysign(unit);
        let ElementSite { draw, row, rank, is_replaced } = site;
        let is_even = row_random(draw.seed, row).one_in(4);
        let largest = (row + draw.seed.wrapping_mul(rank_stride(self.ranks))) % self.ranks;
        if is_replaced {
            2.0 * x
        } else if is_even || u64::from(rank) == largest {
            x
        } else {
            x / 4.0
        }
    }

    fn special(&self, site: ElementSite, random: &mut SplitMix) -> f64 {
        let ElementSite { draw, row, rank, .. } = site;
        let mode = row_random(draw.seed, row).below(6);
        // Some ranks have the special values of a row.
        let is_marked = row_random(draw.seed ^ (u64::from(rank) + 1) << 40, row).one_in(2);
        let is_rare = random.one_in(SPECIAL_SHARE);
        match mode {
            0 if is_marked && is_rare => f64::NAN,
            1 if is_rare => {
                if is_marked {
                    f64::INFINITY
                } else {
                    f64::NEG_INFINITY
                }
            }
            2 => random.pick(&[if is_marked { 2.0 } else { 1.0 }, 1.0, 0.5, -1.0]),
            3 => random.pick(&[0.0, -0.0, 0.0, -0.0, if is_marked { -1.0 } else { 1.0 }]),
            4 => {
                let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 1e-40];
                if is_rare && !self.critical.is_empty() {
                    random.pick(&self.critical)
                } else {
                    random.pick(&specials)
                }
            }
            _ => self.spread(site, random),
        }
    }

    fn bool(&self, site: ElementSite, random: &mut SplitMix) -> i64 {
        let drawn = random.below(2) as i64;
        if site.draw.kind != DrawKind::Special {
            return drawn;
        }
        match row_random(site.draw.seed, site.row).below(4) {
            0 => 0,
            1 => 1,
            _ => drawn,
        }
    }

    fn integer(&self, draw: Draw, dtype: DType, class: &ClassUse, random: &mut SplitMix) -> i64 {
        let below =
            |random: &mut SplitMix, end: u64| random.below(usize::try_from(end.max(1)).unwrap_or(1)) as i64;
        // Sums and products of a few wide integers do not wrap.
        let (low, high) = match dtype.integer_bounds() {
            Some(bounds) if dtype.size() <= 2 => bounds,
            Some((least, _)) if dtype.size() == 4 => (least.max(-(1 << 30)), 1 << 30),
            _ => (-(1 << 40), 1 << 40),
        };
        if draw.kind == DrawKind::Edges {
            return self.edge(draw.seed, class, random).clamp(low, high);
        }
        if class.limit.is_some() || draw.kind != DrawKind::Wide {
            return below(random, class.limit.unwrap_or(8));
        }
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

    /// An integer at or near an edge. It depends on the class alone, so that both programs draw the same. Integers
    /// that are not indices lie around one origin, at the distances at which the programs compare them.
    fn edge(&self, seed: u64, class: &ClassUse, random: &mut SplitMix) -> i64 {
        let limit = i64::try_from(class.limit.unwrap_or(8)).unwrap_or(i64::MAX);
        let last_position = (limit - 1).max(0);
        let within = random.below(usize::try_from(limit.max(1)).unwrap_or(1)) as i64;
        let small = random.below(8) as i64;
        let origin: i64 = row_random(seed, 0).pick(&[0, 0, 2, 5, -3, 16]);
        let constant =
            if self.critical_integers.is_empty() { 1 } else { random.pick(&self.critical_integers) };
        let near_constant = constant.saturating_add(random.pick(&[-1, 0, 0, 1]));
        let is_outside = seed % 2 == 1 && random.one_in(SPECIAL_SHARE);
        if class.is_limited() && is_outside {
            random.pick(&[-1, -1 - small, limit, limit.saturating_add(small), 2 * last_position + 1])
        } else if class.is_limited() {
            random.pick(&[0, last_position, within, near_constant.clamp(0, last_position)])
        } else if class.limit.is_some() {
            random.pick(&[small, -1 - small, near_constant, within, last_position, limit + small])
        } else if class.last_position == 0 && !random.one_in(4) {
            origin
        } else {
            let distance = random.pick(&[0, small, -1 - small, near_constant, near_constant, -near_constant]);
            origin.saturating_add(distance)
        }
    }
}

/// The ascending ends of groups of rows. All rows, or only some, belong to groups.
fn ascending_ends(stream: u64, count: u64, limit: Option<u64>) -> Vec<i64> {
    let mut random = SplitMix(stream);
    let limit = usize::try_from(limit.unwrap_or(8).max(1)).unwrap_or(1);
    let mut ends: Vec<i64> = (0..count).map(|_| random.below(limit) as i64).collect();
    ends.sort_unstable();
    if let Some(last) = ends.last_mut().filter(|_| random.one_in(2)) {
        *last = limit as i64 - 1;
    }
    ends
}

fn describe_missing_data() -> String {
    "the data of a constant lack elements that the part reads".to_string()
}

fn element_random(stream: u64, position: i64) -> SplitMix {
    SplitMix(stream ^ (position as u64).wrapping_mul(0x2545_f491_4f6c_dd1d))
}

/// Random numbers that all leaves have in common in a row.
fn row_random(seed: u64, row: u64) -> SplitMix {
    SplitMix(SplitMix(seed.wrapping_mul(0x9e6c_63d0_876a_46ad) ^ row).next())
}

/// A distance of about half the ranks such that its multiples reach all of them.
fn rank_stride(ranks: u64) -> u64 {
    let is_coprime = |n: &u64| {
        let (mut a, mut b) = (*n, ranks);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    (ranks.div_ceil(2)..=ranks).find(is_coprime).unwrap_or(1)
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

fn program_constants(pair: [&ConcreteRegion; 2]) -> Vec<f64> {
    let mut constants: Vec<f64> = Vec::new();
    for node in pair.iter().flat_map(|c| c.graph.nodes.values()) {
        let x = match &node.op {
            Op::Full(s) | Op::BinaryScalar { scalar: s, .. } | Op::Pad { value: s, .. } => s.as_f64(),
            _ => continue,
        };
        if x.is_finite()
            && x != 0.0
            && x.abs() < 1e15
            && !constants.contains(&x)
            && constants.len() < MAX_CRITICAL_CONSTANTS
        {
            constants.push(x);
        }
    }
    constants
}

fn with_middles(mut constants: Vec<f64>) -> Vec<f64> {
    let pairs =
        constants.iter().enumerate().flat_map(|(i, a)| constants[..i].iter().map(move |b| (a + b) / 2.0));
    let middles: Vec<f64> = pairs.collect();
    constants.extend(middles);
    constants
}
