//! Builds one bucket: packs the arenas, computes the waits, and writes the entries of the plan.

use std::collections::BTreeSet;
use std::collections::HashMap;

use indexmap::IndexMap;
use symmc_ir::entity::Entity;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{EntityMap, Graph, Op, SymbolTable, ValueId};
use symmc_pack::{Block, Packing};
use symmc_plan::{
    ALIGN, ArenaKind, Bucket, BucketTotals, Buffer, CopyReason, Decision, ExitBarrier, ForcedCopy, MemoryRef,
    PeerReach, PerRankOffset, Step, ValuePlacement,
};

use crate::barriers::{self, BarrierCosts};
use crate::error::{PlanError, Result};
use crate::fixed_memory::FixedMemoryLayout;
use crate::lanes::{self, LaneAssignment};
use crate::liveness::ExitChoice;
use crate::memory_classes::{BufferClass, ClassLocation, ClassMember, SharingReason};
use crate::scheduled::{ScheduledProgram, SizedClass, size_classes};
use crate::steps::symmetric_positions;
use crate::waits::{PlacedClass, waits};

/// The decision for a collective, with its consequences for the steps.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectiveChoice {
    pub decision: Decision,
    /// For each of its nodes the largest number of blocks of its kernel on GPUs, if the machine's profile gives
    /// one. Missing entries mean no limit.
    pub blocks: Vec<Option<u32>>,
}

pub fn build_bucket(
    program: &ScheduledProgram,
    index: usize,
    symbols: &SymbolTable,
    fixed: &FixedMemoryLayout,
    decisions: &[CollectiveChoice],
    config: &symmc_pack::Config,
    profile: Option<&MachineProfile>,
) -> Result<Bucket> {
    let sized = size_classes(&program.prepared, &program.placed, symbols)?;
    let ordinary = pack_arena(&sized, ArenaKind::Ordinary, 0, config)?;
    let symmetric = pack_arena(&sized, ArenaKind::Symmetric, fixed.end, config)?;
    let mut writer = BucketWriter {
        program,
        symbols,
        fixed,
        reach: reach(program),
        costs: barriers::compute_barrier_costs(&program.placed, &sized),
        buffer_of: vec![usize::MAX; program.placed.classes.list.len()],
    };
    let mut offsets = [ordinary.offsets.iter(), symmetric.offsets.iter()];
    let mut order: Vec<(&SizedClass, u64)> =
        sized.iter().map(|s| (s, offsets[s.arena as usize].next().copied().unwrap_or(0))).collect();
    order.sort_by_key(|(s, _)| (s.block.start, s.class));
    let buffers: Vec<Buffer> = order.iter().map(|(s, offset)| writer.buffer(s, *offset)).collect();
    for (b, (s, _)) in order.iter().enumerate() {
        writer.buffer_of[s.class] = b;
    }
    let extents: Vec<PlacedClass> = order
        .iter()
        .map(|(s, offset)| PlacedClass {
            class: s.class,
            arena: s.arena,
            start: *offset,
            end: offset + s.block.size,
            wraps: s.wraps,
        })
        .collect();
    let waits = waits(&program.placed.steps, &program.placed.live, &program.placed.classes, &extents);
    let laned = lanes::assign_lanes(&program.prepared, &program.placed.steps, waits, symbols, profile);
    let steps = writer.steps(laned, decisions);
    let copies = writer.copies()?;
    let totals = BucketTotals {
        barrier_bytes: writer.costs.dropped,
        ..totals(&ordinary, &symmetric, &steps, &copies)
    };
    let ranges = symbols.values().map(|s| (s.name.clone(), [s.min, s.max])).collect();
    Ok(Bucket {
        symbols: ranges,
        program: index,
        buffers,
        places: writer.write_placements(),
        decisions: writer.decisions(decisions),
        steps,
        copies,
        totals,
    })
}

fn totals(ordinary: &Packing, symmetric: &Packing, steps: &[Step], copies: &[ForcedCopy]) -> BucketTotals {
    BucketTotals {
        ordinary_peak: ordinary.peak,
        ordinary_bound: ordinary.bound,
        symmetric_peak: symmetric.peak,
        symmetric_bound: symmetric.bound,
        copies: copies.len() as u64,
        copied: copies.iter().map(|c| c.bytes).fold(0, u64::saturating_add),
        barriers_dropped: count_exits(steps, ExitBarrier::Dropped),
        barriers_kept: count_exits(steps, ExitBarrier::Kept),
        barrier_bytes: 0,
        workspace: 0,
    }
}

fn count_exits(steps: &[Step], exit: ExitBarrier) -> u64 {
    steps.iter().filter(|s| s.exit == Some(exit)).count() as u64
}

fn pack_arena(
    sized: &[SizedClass],
    arena: ArenaKind,
    fixed: u64,
    config: &symmc_pack::Config,
) -> Result<Packing> {
    let blocks: Vec<Block> = sized.iter().filter(|s| s.arena == arena).map(|s| s.block).collect();
    let mut packing = symmc_pack::pack(&blocks, config).map_err(|error| PlanError::Pack {
        arena: if arena == ArenaKind::Ordinary { "ordinary" } else { "symmetric" },
        error,
    })?;
    let fixed = fixed.next_multiple_of(ALIGN);
    packing
        .offsets
        .iter_mut()
        .chain([&mut packing.peak, &mut packing.bound])
        .for_each(|bytes| *bytes += fixed);
    Ok(packing)
}

fn reach(program: &ScheduledProgram) -> Vec<PeerReach> {
    let mut reach = vec![PeerReach::Local; program.placed.classes.list.len()];
    for step in &program.placed.steps.list {
        let (read, written) = step.peer_accesses(&program.prepared.graph, &program.prepared.base);
        for (values, to) in [(read, PeerReach::Read), (written, PeerReach::Written)] {
            for c in values.iter().filter_map(|&v| program.placed.classes.class_of[v]) {
                let class_reach = &mut reach[c as usize];
                if *class_reach == PeerReach::Local || to == PeerReach::Written {
                    *class_reach = to;
                }
            }
        }
    }
    reach
}

struct BucketWriter<'a> {
    program: &'a ScheduledProgram,
    symbols: &'a SymbolTable,
    fixed: &'a FixedMemoryLayout,
    reach: Vec<PeerReach>,
    costs: BarrierCosts,
    buffer_of: Vec<usize>,
}

impl BucketWriter<'_> {
    fn graph(&self) -> &Graph {
        &self.program.prepared.graph
    }

    fn buffer(&self, s: &SizedClass, offset: u64) -> Buffer {
        let end = self.program.placed.steps.list.len();
        let last_step = if s.block.end == 0 { end } else { s.block.end } - 1;
        Buffer {
            arena: s.arena,
            offset,
            size: s.block.size,
            first: s.block.start,
            last: last_step,
            reach: self.reach[s.class],
        }
    }

    fn steps(&self, laned: Vec<LaneAssignment>, decisions: &[CollectiveChoice]) -> Vec<Step> {
        let graph = self.graph();
        let placed = &self.program.placed;
        let decided = decisions.iter().flat_map(|d| d.decision.nodes.iter().zip(&d.blocks));
        let blocks: HashMap<&str, u32> = decided.filter_map(|(node, &b)| Some((node.as_str(), b?))).collect();
        let list = placed.steps.list.iter().zip(laned).zip(placed.live.exits.iter().zip(&self.costs.each));
        list.map(|((step, LaneAssignment { lane, waits }), (exit, &exit_bytes))| Step {
            node: graph.node_name(step.node).to_string(),
            lane,
            waits,
            blocks: step.nodes().find_map(|n| blocks.get(graph.node_name(n)).copied()),
            exit: match exit {
                ExitChoice::None => None,
                ExitChoice::Dropped(_) => Some(ExitBarrier::Dropped),
                ExitChoice::Kept | ExitChoice::Pending(_) => Some(ExitBarrier::Kept),
            },
            exit_bytes,
        })
        .collect()
    }

    fn write_placements(&self) -> IndexMap<String, ValuePlacement> {
        let graph = self.graph();
        let needs = self.symmetric_reasons();
        let mut places = IndexMap::with_capacity(graph.values.len());
        for (i, input) in graph.inputs.iter() {
            let (memory, why) = match self.fixed.bound.get(&i.index()) {
                Some(&f) => (
                    MemoryRef::Fixed(f),
                    "an input that the caller writes in the symmetric arena".to_string(),
                ),
                None => self.input_placement(i.index(), input.value),
            };
            let placement = ValuePlacement { memory, offset: "0".to_string(), by_rank: None, why };
            places.insert(graph.value_name(input.value).to_string(), placement);
        }
        let mut member_of: EntityMap<ValueId, Option<(usize, usize)>> =
            EntityMap::filled(None, graph.values.len());
        for (c, class) in self.program.placed.classes.iter() {
            for (m, member) in class.members.iter().enumerate() {
                member_of[member.value] = Some((c, m));
            }
        }
        for step in &self.program.placed.steps.list {
            for &v in &step.writes {
                if let Some((c, m)) = member_of[v] {
                    let class = &self.program.placed.classes.list[c];
                    let placement = self.member_placement(c, class, &class.members[m], needs.get(&v));
                    places.insert(graph.value_name(v).to_string(), placement);
                }
            }
        }
        places
    }

    /// The place of an input that is not bound, and the reason for it.
    fn input_placement(&self, input: usize, value: ValueId) -> (MemoryRef, String) {
        let classes = &self.program.placed.classes;
        match classes.class_of[value].map(|c| classes.list[c as usize].space) {
            Some(ClassLocation::Output(k)) => {
                (MemoryRef::Output(k), format!("an input, in one memory with output {k}, which replaces it"))
            }
            _ => (MemoryRef::Input(input), "an input".to_string()),
        }
    }

    fn member_placement(
        &self,
        c: usize,
        class: &BufferClass,
        member: &ClassMember,
        need: Option<&String>,
    ) -> ValuePlacement {
        let graph = self.graph();
        let memory = match class.space {
            ClassLocation::Arena(_) => MemoryRef::Buffer(self.buffer_of[c]),
            ClassLocation::Output(k) => MemoryRef::Output(k),
        };
        let mut why = match (member.shares, class.space) {
            (SharingReason::Over(v), _) => {
                format!("over %{}, which nothing needs any more", graph.value_name(v))
            }
            (SharingReason::Shard(v), _) => format!("this rank's piece of %{}", graph.value_name(v)),
            (SharingReason::Piece(v), _) => format!("a piece of %{}", graph.value_name(v)),
            (SharingReason::Nothing, ClassLocation::Output(k)) if class.top == member.value => {
                format!("output {k}")
            }
            (SharingReason::Nothing, ClassLocation::Output(k)) => {
                format!("in output {k}, which %{} becomes", graph.value_name(class.top))
            }
            (SharingReason::Nothing, ClassLocation::Arena(ArenaKind::Symmetric)) => String::new(),
            (SharingReason::Nothing, ClassLocation::Arena(ArenaKind::Ordinary)) => {
                "an intermediate value".to_string()
            }
        };
        if let Some(need) = need {
            why = if why.is_empty() { need.clone() } else { format!("{why}; {need}") };
        } else if why.is_empty() {
            why = format!("in the symmetric arena with %{}", graph.value_name(class.top));
        }
        let by_rank = member.by_rank.as_ref().map(|(group, stride)| PerRankOffset {
            group: graph.groups[*group].name.clone(),
            stride: stride.display(self.symbols).to_string(),
        });
        ValuePlacement { memory, offset: member.offset.display(self.symbols).to_string(), by_rank, why }
    }

    /// The reason, for people, why each base must be symmetric: the first node that requires it.
    fn symmetric_reasons(&self) -> HashMap<ValueId, String> {
        let graph = self.graph();
        let base = &self.program.prepared.base;
        let mut needs = HashMap::new();
        for step in &self.program.placed.steps.list {
            for id in step.nodes() {
                let node = &graph.nodes[id];
                let how = match &node.op {
                    Op::Collective(c) => c.variant.map_or("", |v| v.name()),
                    Op::Custom(_) => "a custom op",
                    _ => continue,
                };
                let (operands, results) = symmetric_positions(graph, id, step.peers.as_ref());
                for v in operands.iter().filter_map(|&i| node.inputs.get(i)) {
                    let name = graph.node_name(id);
                    needs
                        .entry(base[*v])
                        .or_insert_with(|| format!("symmetric as an operand of %{name} ({how})"));
                }
                for v in results.iter().filter_map(|&i| node.outputs.get(i)) {
                    needs.entry(*v).or_insert_with(|| format!("symmetric as a result of {how}"));
                }
            }
        }
        needs
    }

    /// The inserted copies that move data. Copies that are written over their operand move none.
    fn copies(&self) -> Result<Vec<ForcedCopy>> {
        let graph = self.graph();
        let classes = &self.program.placed.classes;
        let idle: BTreeSet<ValueId> = classes
            .iter()
            .flat_map(|(_, c)| &c.members)
            .filter(|m| matches!(m.shares, SharingReason::Over(_)))
            .map(|m| m.value)
            .collect();
        let mut copies: Vec<(u32, ForcedCopy)> = Vec::new();
        for c in &self.program.prepared.copies {
            if c.reason == CopyReason::Output && idle.contains(&c.value) {
                continue;
            }
            let name = graph.value_name(c.value).to_string();
            let bytes = graph.ty(c.value).bytes().upper_bound(self.symbols).max(0) as u64;
            let copy = ForcedCopy {
                of: graph.value_name(c.source).to_string(),
                node: name,
                bytes,
                reason: c.reason,
                bind: c.bind,
            };
            copies.push((self.program.placed.steps.def[c.value].unwrap_or(0), copy));
        }
        copies.sort_by_key(|(step, _)| *step);
        Ok(copies.into_iter().map(|(_, copy)| copy).collect())
    }

    /// The decisions in order of the steps. Estimates are rounded to nanoseconds.
    fn decisions(&self, decisions: &[CollectiveChoice]) -> Vec<Decision> {
        let graph = self.graph();
        let list = self.program.placed.steps.list.iter().enumerate();
        let step_of: HashMap<&str, usize> = list.map(|(s, step)| (graph.node_name(step.node), s)).collect();
        let mut out: Vec<Decision> = decisions.iter().map(|d| d.decision.clone()).collect();
        for a in out.iter_mut().flat_map(|d| &mut d.alternatives) {
            for us in [&mut a.us, &mut a.copy_us, &mut a.saved_us] {
                *us = (*us * 1000.0).round() / 1000.0;
            }
        }
        out.sort_by_cached_key(|d| {
            let steps = d.nodes.iter().filter_map(|n| step_of.get(n.as_str()));
            steps.min().copied().unwrap_or(usize::MAX)
        });
        out
    }
}
