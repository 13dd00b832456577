//! Where base values lie: places resolved to bytes, and which of them can share bytes.
//!
//! A [`Location`] is resolved for every rank and every binding at once. Its *span* holds all bytes that the
//! value can occupy on any rank under any binding of the bucket; two values whose spans meet are taken to
//! share bytes, unless [`apart`] proves them disjoint for every rank and binding. Within a run both have one
//! binding; values of two runs of a bucket have two that differ, and values of two buckets are told apart by
//! their spans alone.

use symmc_ir::entity::Entity;
use symmc_ir::{
    Dim, EntityMap, Graph, GroupId, InputKind, OutputKind, SymbolId, SymbolTable, TensorType, ValueDef,
    ValueId,
};
use symmc_plan::{ArenaKind, Bucket, MemoryRef, Plan, ResolvedPlacement};

use super::error::CheckError;
use super::findings::Findings;
use super::program::{PlanPrograms, PlannedProgram};

/// Memory that steps write, numbered: the two arenas, then one for each output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(pub usize);

impl SpaceId {
    const ORDINARY: SpaceId = SpaceId(0);
    const SYMMETRIC: SpaceId = SpaceId(1);
    fn output(k: usize) -> SpaceId {
        SpaceId(2 + k)
    }
}

/// The part of a start that depends on the rank: `stride` times the number within the group, which is
/// less than `size`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankDisplacement {
    /// The group, an index of [`Programs::groups`].
    pub group: usize,
    /// The number of ranks in a cell.
    pub size: u32,
    /// Bytes per rank.
    pub stride: Dim,
}

/// Bytes of a memory, by rank and binding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolicRange {
    pub memory: MemoryRef,
    /// The first byte on rank 0 of the group that `rank` names.
    pub start: Dim,
    /// The byte behind the last, on the same rank.
    pub end: Dim,
    /// What other ranks add to both.
    pub rank: Option<RankDisplacement>,
}

#[derive(Clone, Debug)]
pub struct ValueLocation {
    pub range: SymbolicRange,
    /// The memory that steps write, if it is not the caller's memory of an input.
    pub space: Option<SpaceId>,
    /// The span: the first byte that it can occupy in the space.
    pub low: u64,
    /// The span: the byte behind the last that it can occupy in the space.
    pub high: u64,
    /// Whether it starts at the same byte on every rank under every binding.
    pub rigid: bool,
    pub symmetric: bool,
}

impl ValueLocation {
    pub fn spans_overlap(&self, other: &ValueLocation) -> bool {
        self.space.is_some() && self.space == other.space && self.low < other.high && other.low < self.high
    }
    /// Whether two values whose spans meet may share bytes when each is of a run of its own of one bucket, under bindings
    /// that have nothing to do with each other.
    pub fn overlaps_in_other_run(&self, other: &ValueLocation, symbols: &SymbolTable) -> bool {
        (self.rigid && other.rigid)
            || !are_disjoint(
                &self.range,
                &other.range.with_fresh_symbols(symbols),
                &duplicate_symbols(symbols),
            )
    }
}

impl SymbolicRange {
    /// The range with every symbol replaced by one that stands behind all of `symbols`.
    fn with_fresh_symbols(&self, symbols: &SymbolTable) -> SymbolicRange {
        let other = |dim: &Dim| dim.substitute(&|s| Dim::from(SymbolId::new(symbols.len() + s.index())));
        let rank = self.rank.as_ref().map(|n| RankDisplacement { stride: other(&n.stride), ..n.clone() });
        SymbolicRange { memory: self.memory, start: other(&self.start), end: other(&self.end), rank }
    }
}

/// The symbols of two runs of one bucket.
fn duplicate_symbols(symbols: &SymbolTable) -> SymbolTable {
    let mut both = symbols.clone();
    for symbol in symbols.values() {
        both.push(symbol.clone());
    }
    both
}

/// Whether two ranges of one memory are disjoint on every rank under every binding, as far as bounds of
/// dims show. Both ends of the numbers of the ranks are tried; between them both ranges move linearly.
pub fn are_disjoint(a: &SymbolicRange, b: &SymbolicRange, symbols: &SymbolTable) -> bool {
    if a.memory != b.memory {
        return false;
    }
    let together = match (&a.rank, &b.rank) {
        (Some(x), Some(y)) => x.group == y.group,
        _ => false,
    };
    let ends = |n: &Option<RankDisplacement>| match n {
        Some(n) => vec![0, i64::from(n.size) - 1],
        None => vec![0],
    };
    let mut corners: Vec<(i64, i64)> = Vec::with_capacity(4);
    for i in ends(&a.rank) {
        corners.extend(ends(&b.rank).into_iter().filter(|&j| !together || i == j).map(|j| (i, j)));
    }
    let shift = |n: &Option<RankDisplacement>, i: i64| match n {
        Some(n) if i != 0 => n.stride.clone() * Dim::from(i),
        _ => Dim::from(0),
    };
    let below = |x: &SymbolicRange, y: &SymbolicRange, swap: bool| {
        corners.iter().all(|&(i, j)| {
            let (i, j) = if swap { (j, i) } else { (i, j) };
            let (end, start) = (x.end.clone() + shift(&x.rank, i), y.start.clone() + shift(&y.rank, j));
            end.provably_le(&start, symbols)
        })
    };
    below(a, b, false) || below(b, a, true)
}

/// Resolves the places of a bucket. Values whose place is wrong have none.
pub fn resolve_locations(
    (plan, programs): (&Plan, &PlanPrograms),
    (index, bucket): (usize, &Bucket),
    program: &PlannedProgram,
    symbols: &SymbolTable,
    errors: &mut Findings,
) -> EntityMap<ValueId, Option<ValueLocation>> {
    let mut locations: EntityMap<ValueId, Option<ValueLocation>> =
        EntityMap::filled(None, program.graph.values.len());
    let resolver = LocationResolver { plan, programs, index, bucket, program, symbols };
    let (places, unresolved) = program.resolve_placements(bucket, symbols);
    for (value, placed) in places.iter() {
        locations[value] = placed.as_ref().and_then(|placed| resolver.location(value, placed, errors));
    }
    errors.extend(unresolved.into_iter().map(|error| CheckError::Unresolved { bucket: index, error }));
    resolver.check_inputs_and_outputs(&locations, errors);
    locations
}

/// An upper bound of the bytes of a value of this type. Both ways to bound are sound; the first is cheap.
fn bytes_at_most(ty: &TensorType, limit: i64, symbols: &SymbolTable) -> i64 {
    let by_axis =
        ty.shape.iter().fold(ty.dtype.size() as i64, |n, d| n.saturating_mul(d.bounds(symbols).1.max(0)));
    if by_axis <= limit { by_axis } else { by_axis.min(ty.bytes().upper_bound(symbols)) }
}

struct LocationResolver<'a> {
    plan: &'a Plan,
    programs: &'a PlanPrograms,
    index: usize,
    bucket: &'a Bucket,
    program: &'a PlannedProgram,
    symbols: &'a SymbolTable,
}

impl LocationResolver<'_> {
    fn location(
        &self,
        value: ValueId,
        place: &ResolvedPlacement,
        errors: &mut Findings,
    ) -> Option<ValueLocation> {
        let graph = &self.program.graph;
        let (name, ty) = (graph.value_name(value).to_string(), graph.ty(value));
        let (space, origin, size) = self.memory(value, &name, place.memory, errors)?;
        let start = place.offset.clone();
        let rank = place.by_rank.as_ref().map(|(group, stride)| self.rank_offset(*group, stride));
        let mut low = start.bounds(self.symbols).0;
        let limit = i64::try_from(size).unwrap_or(i64::MAX);
        let mut high = match start.as_const() {
            Some(c) => c.saturating_add(bytes_at_most(ty, limit.saturating_sub(c), self.symbols)),
            None => (start.clone() + ty.bytes()).upper_bound(self.symbols),
        };
        if let Some(n) = &rank {
            let last = n.stride.clone() * Dim::from(i64::from(n.size) - 1);
            let (a, b) = last.bounds(self.symbols);
            low = low.saturating_add(a.min(0));
            high = if start.as_const().is_some() && last.as_const().is_some() {
                high.saturating_add(b.max(0))
            } else {
                high.max((start.clone() + ty.bytes() + last).upper_bound(self.symbols))
            };
        }
        let memory = place.memory;
        if low < 0 || high > limit || !self.within_output(value, memory, &start, &rank) {
            let bucket = self.index;
            errors.push(CheckError::PlaceOutside { bucket, value: name, memory, low, high, size });
            return None;
        }
        let element = ty.dtype.size() as i64;
        for found in [Some(&start), rank.as_ref().map(|n| &n.stride)].into_iter().flatten() {
            if !found.is_divisible_by(element) {
                errors.push(CheckError::PlaceMisaligned {
                    bucket: self.index,
                    value: name.clone(),
                    expected: element as u64,
                    found: found.display(self.symbols).to_string(),
                });
                return None;
            }
        }
        let rigid = start.as_const().is_some() && rank.is_none();
        let end = start.clone() + ty.bytes();
        Some(ValueLocation {
            range: SymbolicRange { memory, start, end, rank },
            space,
            low: origin.saturating_add(low as u64),
            high: origin.saturating_add(high as u64),
            rigid,
            symmetric: space == Some(SpaceId::SYMMETRIC),
        })
    }

    /// Whether a value that is not the output itself lies within its output under every binding. The memory
    /// of an output is exactly as large as the output is in that run.
    fn within_output(
        &self,
        value: ValueId,
        memory: MemoryRef,
        start: &Dim,
        rank: &Option<RankDisplacement>,
    ) -> bool {
        let graph = &self.program.graph;
        let MemoryRef::Output(k) = memory else { return true };
        let Some(output) = graph.outputs.get(k).filter(|o| o.value != value) else { return true };
        let mut end = start.clone() + graph.ty(value).bytes();
        if let Some(n) = rank {
            end = end + n.stride.clone() * Dim::from(i64::from(n.size) - 1);
        }
        end.provably_le(&graph.ty(output.value).bytes(), self.symbols)
    }

    /// The space of a memory, where it starts there, and its size.
    fn memory(
        &self,
        value: ValueId,
        name: &str,
        memory: MemoryRef,
        errors: &mut Findings,
    ) -> Option<(Option<SpaceId>, u64, u64)> {
        let graph = &self.program.graph;
        let bucket = self.index;
        let unknown = CheckError::PlaceMemory { bucket, value: name.to_string(), found: memory };
        let whole = |value| {
            let ty = graph.ty(value);
            u64::try_from(bytes_at_most(ty, 0, self.symbols)).unwrap_or(0)
        };
        let found = match memory {
            MemoryRef::Buffer(b) => self.bucket.buffers.get(b).map(|b| match b.arena {
                ArenaKind::Ordinary => (Some(SpaceId::ORDINARY), b.offset, b.size),
                ArenaKind::Symmetric => (Some(SpaceId::SYMMETRIC), b.offset, b.size),
            }),
            MemoryRef::Fixed(f) => {
                self.plan.fixed.get(f).map(|f| (Some(SpaceId::SYMMETRIC), f.offset, f.size))
            }
            MemoryRef::Input(i) => graph.inputs.values().nth(i).map(|i| (None, 0, whole(i.value))),
            MemoryRef::Output(k) => {
                graph.outputs.get(k).map(|o| (Some(SpaceId::output(k)), 0, whole(o.value)))
            }
        };
        if found.is_none() {
            errors.push(unknown);
            return None;
        }
        let written = matches!(graph.values[value].def, ValueDef::Node(..));
        // Landing zones and memory of inputs: the runtime gives the latter to callers and moves it to where theirs is.
        if written && matches!(memory, MemoryRef::Fixed(_) | MemoryRef::Input(_)) {
            errors.push(CheckError::PlaceReadOnly { bucket, value: name.to_string(), found: memory });
            return None;
        }
        found
    }

    fn rank_offset(&self, group: GroupId, stride: &Dim) -> RankDisplacement {
        let group = self.program.group_index(group);
        RankDisplacement { group, size: self.programs.groups[group].size.max(1), stride: stride.clone() }
    }

    /// Inputs and outputs must lie where the caller puts and finds them.
    fn check_inputs_and_outputs(
        &self,
        locations: &EntityMap<ValueId, Option<ValueLocation>>,
        errors: &mut Findings,
    ) {
        let (graph, bucket) = (&self.program.graph, self.index);
        let at_zero = |location: &ValueLocation| {
            location.range.start.as_const() == Some(0) && location.range.rank.is_none()
        };
        for (id, input) in graph.inputs.iter() {
            let Some(location) = &locations[input.value] else { continue };
            let bound = self.programs.fixed.bound_input(id.index());
            let expected = bound.map_or(MemoryRef::Input(id.index()), MemoryRef::Fixed);
            let replaces = |k: usize| graph.outputs.get(k).is_some_and(|o| o.kind == OutputKind::Mutates(id));
            let replaced =
                matches!(location.range.memory, MemoryRef::Output(k) if replaces(k)) && bound.is_none();
            if (location.range.memory != expected && !replaced) || !at_zero(location) {
                errors.push(CheckError::PlaceOfInput {
                    bucket,
                    value: graph.value_name(input.value).to_string(),
                    input: id.index(),
                    expected,
                    found: location.range.memory,
                });
            }
        }
        for (k, output) in graph.outputs.iter().enumerate() {
            let value = graph.value_name(output.value).to_string();
            let is_input = matches!(graph.values[output.value].def, ValueDef::Input(_));
            if is_input || self.program.base(output.value) != output.value {
                errors.push(CheckError::OutputNotBase { bucket, value, output: k });
                continue;
            }
            if let Some(first) = graph.outputs[..k].iter().position(|o| o.value == output.value) {
                errors.push(CheckError::OutputTwice { bucket, value, first, second: k });
                continue;
            }
            let Some(location) = &locations[output.value] else { continue };
            let expected = MemoryRef::Output(k);
            if location.range.memory != expected || !at_zero(location) {
                let found = location.range.memory;
                errors.push(CheckError::PlaceOfOutput { bucket, value, output: k, expected, found });
            }
        }
    }
}

/// Whether the caller writes a bound input at the start of each run, not only before the first: it is an
/// argument, its size differs between runs, or an output replaces it between them. Asked of the source: its size may
/// be constant within one bucket and differ between two.
pub fn written_each_run(source: &Graph, input: usize) -> bool {
    let graph = source;
    let varies = |i: &symmc_ir::GraphInput| {
        i.kind == InputKind::Argument || graph.ty(i.value).shape.iter().any(|d| d.as_const().is_none())
    };
    graph.inputs.values().nth(input).is_some_and(varies)
        || graph.outputs.iter().any(|o| match o.kind {
            OutputKind::Mutates(i) => i.index() == input,
            OutputKind::Returned => false,
        })
}
