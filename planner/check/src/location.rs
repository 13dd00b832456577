//! Locations of base values: placements resolved to bytes, and the test whether two locations are disjoint.
//!
//! A [`ValueLocation`] describes a value on every rank under every binding at once. Its *span* holds all bytes
//! that the value can occupy on any rank under any binding of the bucket. Two values whose spans overlap are taken
//! to share bytes, unless [`are_disjoint`] proves them disjoint for every rank and binding.
//!
//! Two values of one run have the same binding. Two values of two runs of one bucket have independent bindings.
//! Two values of different buckets are compared by their spans only.

use symmc_ir::entity::Entity;
use symmc_ir::{
    Dim, EntityMap, Graph, GroupId, InputKind, OutputKind, SymbolId, SymbolTable, TensorType, ValueDef,
    ValueId,
};
use symmc_plan::{ArenaKind, Bucket, MemoryRef, Plan, ResolvedPlacement};

use super::error::CheckError;
use super::findings::Findings;
use super::program::{PlanPrograms, PlannedProgram};

/// A memory space that steps may write: one of the two arenas, or the memory of one output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(pub usize);

impl SpaceId {
    const ORDINARY_ARENA: SpaceId = SpaceId(0);
    const SYMMETRIC_ARENA: SpaceId = SpaceId(1);
    fn output(k: usize) -> SpaceId {
        SpaceId(2 + k)
    }
}

/// The part of a start that depends on the rank: `stride` times the number of the rank within its cell of the
/// group. The number is less than `size`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankDisplacement {
    /// An index of [`PlanPrograms::groups`].
    pub group: usize,
    /// The number of ranks in a cell.
    pub size: u32,
    /// Bytes per rank.
    pub stride: Dim,
}

/// A range of bytes of a memory that depends on the rank and the binding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolicRange {
    pub memory: MemoryRef,
    /// The first byte, on rank number 0 of the group that `rank` names.
    pub start: Dim,
    /// The exclusive end, on the same rank.
    pub end: Dim,
    /// The displacement of both on other ranks.
    pub rank: Option<RankDisplacement>,
}

#[derive(Clone, Debug)]
pub struct ValueLocation {
    pub range: SymbolicRange,
    /// The space that holds the value. `None` for the caller's memory of an input, which steps never write.
    pub space: Option<SpaceId>,
    /// The start of the span within the space.
    pub low: u64,
    /// The exclusive end of the span within the space.
    pub high: u64,
    /// Whether the value starts at the same byte on every rank under every binding.
    pub rigid: bool,
    pub symmetric: bool,
}

impl ValueLocation {
    pub fn spans_overlap(&self, other: &ValueLocation) -> bool {
        self.space.is_some() && self.space == other.space && self.low < other.high && other.low < self.high
    }

    /// Whether two values of one bucket, whose spans overlap, may share bytes if they belong to different runs. The
    /// bindings of the two runs are independent.
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
    /// The range with each symbol replaced by its duplicate in [`duplicate_symbols`].
    fn with_fresh_symbols(&self, symbols: &SymbolTable) -> SymbolicRange {
        let renamed = |dim: &Dim| dim.substitute(&|s| Dim::from(SymbolId::new(symbols.len() + s.index())));
        let rank = self.rank.as_ref().map(|n| RankDisplacement { stride: renamed(&n.stride), ..n.clone() });
        SymbolicRange { memory: self.memory, start: renamed(&self.start), end: renamed(&self.end), rank }
    }
}

/// The symbols of two runs of one bucket: `symbols`, followed by a duplicate of each.
fn duplicate_symbols(symbols: &SymbolTable) -> SymbolTable {
    let mut doubled = symbols.clone();
    for symbol in symbols.values() {
        doubled.push(symbol.clone());
    }
    doubled
}

/// Whether bounds of dims prove that two ranges of one memory are disjoint on every rank under every binding.
///
/// Only the lowest and the highest rank numbers are tried. Between these corners both ranges move linearly, so an
/// order that holds at all corners holds for all ranks. If both ranges depend on the same group, one rank has the
/// same number in both, and only equal numbers are compared.
pub fn are_disjoint(a: &SymbolicRange, b: &SymbolicRange, symbols: &SymbolTable) -> bool {
    if a.memory != b.memory {
        return false;
    }
    let same_group = match (&a.rank, &b.rank) {
        (Some(x), Some(y)) => x.group == y.group,
        _ => false,
    };
    let mut corners: Vec<(i64, i64)> = Vec::with_capacity(4);
    for i in extreme_numbers(&a.rank) {
        let numbers = extreme_numbers(&b.rank).into_iter().filter(|&j| !same_group || i == j);
        corners.extend(numbers.map(|j| (i, j)));
    }
    let a_before_b = corners.iter().all(|&(i, j)| ends_before(a, i, b, j, symbols));
    a_before_b || corners.iter().all(|&(i, j)| ends_before(b, j, a, i, symbols))
}

/// The lowest and the highest number of a rank within its cell.
fn extreme_numbers(rank: &Option<RankDisplacement>) -> Vec<i64> {
    match rank {
        Some(rank) => vec![0, i64::from(rank.size) - 1],
        None => vec![0],
    }
}

/// Whether the first range on rank number `i` provably ends before the second range on rank number `j` starts.
fn ends_before(first: &SymbolicRange, i: i64, second: &SymbolicRange, j: i64, symbols: &SymbolTable) -> bool {
    let end = first.end.clone() + displacement_of(first, i);
    let start = second.start.clone() + displacement_of(second, j);
    end.provably_le(&start, symbols)
}

fn displacement_of(range: &SymbolicRange, number: i64) -> Dim {
    match &range.rank {
        Some(rank) if number != 0 => rank.stride.clone() * Dim::from(number),
        _ => Dim::from(0),
    }
}

/// Resolves the placements of a bucket. A value whose placement is wrong has no location.
pub fn resolve_locations(
    plan: &Plan,
    programs: &PlanPrograms,
    index: usize,
    bucket: &Bucket,
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

/// An upper bound of the size in bytes of a value of this type. The bound by axis is cheap. The tighter bound of
/// the whole product is only computed if the cheap one exceeds `limit`. Both are sound.
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
        placement: &ResolvedPlacement,
        errors: &mut Findings,
    ) -> Option<ValueLocation> {
        let graph = &self.program.graph;
        let name = graph.value_name(value).to_string();
        let ty = graph.ty(value);
        let (space, origin, size) = self.memory(value, &name, placement.memory, errors)?;
        let start = placement.offset.clone();
        let rank = placement.by_rank.as_ref().map(|(group, stride)| self.rank_offset(*group, stride));
        let mut low = start.bounds(self.symbols).0;
        let limit = i64::try_from(size).unwrap_or(i64::MAX);
        let mut high = match start.as_const() {
            Some(c) => c.saturating_add(bytes_at_most(ty, limit.saturating_sub(c), self.symbols)),
            None => (start.clone() + ty.bytes()).upper_bound(self.symbols),
        };
        if let Some(n) = &rank {
            let last_offset = n.stride.clone() * Dim::from(i64::from(n.size) - 1);
            let (a, b) = last_offset.bounds(self.symbols);
            low = low.saturating_add(a.min(0));
            high = if start.as_const().is_some() && last_offset.as_const().is_some() {
                high.saturating_add(b.max(0))
            } else {
                high.max((start.clone() + ty.bytes() + last_offset).upper_bound(self.symbols))
            };
        }
        let memory = placement.memory;
        if low < 0 || high > limit || !self.within_output(value, memory, &start, &rank) {
            let bucket = self.index;
            errors.push(CheckError::PlaceOutside { bucket, value: name, memory, low, high, size });
            return None;
        }
        let element = ty.dtype.size() as i64;
        for dim in [Some(&start), rank.as_ref().map(|n| &n.stride)].into_iter().flatten() {
            if !dim.is_divisible_by(element) {
                errors.push(CheckError::PlaceMisaligned {
                    bucket: self.index,
                    value: name.clone(),
                    expected: element as u64,
                    found: dim.display(self.symbols).to_string(),
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
            symmetric: space == Some(SpaceId::SYMMETRIC_ARENA),
        })
    }

    /// Whether a value that shares the memory of an output lies within that output under every binding. In each
    /// run the memory of an output is exactly as large as the output. Other memories always pass.
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

    /// The space of a memory, its start within that space, and its size. Fails if the memory does not exist, or if
    /// a step writes the value and the memory may only be read.
    fn memory(
        &self,
        value: ValueId,
        name: &str,
        memory: MemoryRef,
        errors: &mut Findings,
    ) -> Option<(Option<SpaceId>, u64, u64)> {
        let graph = &self.program.graph;
        let bucket = self.index;
        let resolved = match memory {
            MemoryRef::Buffer(b) => self.bucket.buffers.get(b).map(|b| match b.arena {
                ArenaKind::Ordinary => (Some(SpaceId::ORDINARY_ARENA), b.offset, b.size),
                ArenaKind::Symmetric => (Some(SpaceId::SYMMETRIC_ARENA), b.offset, b.size),
            }),
            MemoryRef::Fixed(f) => {
                self.plan.fixed.get(f).map(|f| (Some(SpaceId::SYMMETRIC_ARENA), f.offset, f.size))
            }
            MemoryRef::Input(i) => graph.inputs.values().nth(i).map(|i| (None, 0, self.max_size(i.value))),
            MemoryRef::Output(k) => {
                graph.outputs.get(k).map(|o| (Some(SpaceId::output(k)), 0, self.max_size(o.value)))
            }
        };
        if resolved.is_none() {
            errors.push(CheckError::PlaceMemory { bucket, value: name.to_string(), found: memory });
            return None;
        }
        let written = matches!(graph.values[value].def, ValueDef::Node(..));
        // Landing zones and memory of inputs: the runtime gives the latter to callers and moves it to where theirs is.
        if written && matches!(memory, MemoryRef::Fixed(_) | MemoryRef::Input(_)) {
            errors.push(CheckError::PlaceReadOnly { bucket, value: name.to_string(), found: memory });
            return None;
        }
        resolved
    }

    fn max_size(&self, value: ValueId) -> u64 {
        let ty = self.program.graph.ty(value);
        u64::try_from(bytes_at_most(ty, 0, self.symbols)).unwrap_or(0)
    }

    fn rank_offset(&self, group: GroupId, stride: &Dim) -> RankDisplacement {
        let group = self.program.group_index(group);
        RankDisplacement { group, size: self.programs.groups[group].size.max(1), stride: stride.clone() }
    }

    /// Checks that inputs and outputs have the memory that the caller provides. An input lies in its own memory, in
    /// the fixed memory that it is bound to, or in the output that replaces it. An output lies in its own memory,
    /// is written by a step, and is returned once.
    fn check_inputs_and_outputs(
        &self,
        locations: &EntityMap<ValueId, Option<ValueLocation>>,
        errors: &mut Findings,
    ) {
        let graph = &self.program.graph;
        let bucket = self.index;
        for (id, input) in graph.inputs.iter() {
            let Some(location) = &locations[input.value] else { continue };
            let bound = self.programs.fixed.bound_input(id.index());
            let expected = bound.map_or(MemoryRef::Input(id.index()), MemoryRef::Fixed);
            let replaced = match location.range.memory {
                MemoryRef::Output(k) => {
                    let output = graph.outputs.get(k);
                    bound.is_none() && output.is_some_and(|o| o.kind == OutputKind::Mutates(id))
                }
                _ => false,
            };
            if (location.range.memory != expected && !replaced) || !starts_at_zero(location) {
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
            if location.range.memory != expected || !starts_at_zero(location) {
                let memory = location.range.memory;
                errors.push(CheckError::PlaceOfOutput { bucket, value, output: k, expected, found: memory });
            }
        }
    }
}

fn starts_at_zero(location: &ValueLocation) -> bool {
    location.range.start.as_const() == Some(0) && location.range.rank.is_none()
}

/// Whether the caller writes a bound input at the start of each run, and not only before the first. This holds if
/// the input is an argument, if its size is symbolic, or if an output replaces it. The source decides, because a
/// size may be constant in each bucket and still differ between two buckets.
pub fn written_each_run(source: &Graph, input: usize) -> bool {
    let varies = source.inputs.values().nth(input).is_some_and(|i| {
        i.kind == InputKind::Argument || source.ty(i.value).shape.iter().any(|d| d.as_const().is_none())
    });
    let is_replaced = source.outputs.iter().any(|o| match o.kind {
        OutputKind::Mutates(i) => i.index() == input,
        OutputKind::Returned | OutputKind::Length { .. } => false,
    });
    varies || is_replaced
}
