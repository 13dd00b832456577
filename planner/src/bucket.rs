//! One bucket: packing, waits, and all of it written down.

use std::collections::BTreeSet;
use std::collections::HashMap;

use indexmap::IndexMap;
use symmc_ir::entity::Entity;
use symmc_ir::machine::Profile;
use symmc_ir::{Graph, Op, Symbols, Table, ValueId};
use symmc_pack::{Block, Packing};
use symmc_plan::{
    ALIGN, ArenaKind, Bucket, Buffer, ByRank, CopyReason, Decision, ExitBarrier, ForcedCopy, Memory, Place,
    Reach, Step, Totals,
};

use crate::barriers::{self, Costs};
use crate::error::{PlanError, Result};
use crate::fixed::FixedMemory;
use crate::lanes::{self, Laned};
use crate::liveness::ExitChoice;
use crate::place::{Class, Member, MemorySpace, Shares};
use crate::placed::{ScheduledProgram, Sized, sized};
use crate::steps::{StepInfo, symmetric_positions};
use crate::waits::{Extent, waits};

/// How a collective was chosen, and what follows for its steps.
#[derive(Clone, PartialEq, Debug)]
pub struct Decided {
    pub decision: Decision,
    /// Of each of its nodes the most blocks of its kernel on GPUs, if the machine's profile says so; missing ones are none.
    pub blocks: Vec<Option<u32>>,
}

pub fn bucket(
    program: &ScheduledProgram,
    index: usize,
    symbols: &Symbols,
    fixed: &FixedMemory,
    decisions: &[Decided],
    config: &symmc_pack::Config,
    profile: Option<&Profile>,
) -> Result<Bucket> {
    let sized = sized(&program.prepared, &program.placed, symbols)?;
    let ordinary = pack_arena(&sized, ArenaKind::Ordinary, 0, config)?;
    let symmetric = pack_arena(&sized, ArenaKind::Symmetric, fixed.end, config)?;
    let mut writer = Writer {
        program,
        symbols,
        fixed,
        reach: reach(program),
        costs: barriers::costs(&program.placed, &sized),
        buffer_of: vec![usize::MAX; program.placed.classes.list.len()],
    };
    let mut offsets = [ordinary.offsets.iter(), symmetric.offsets.iter()];
    let mut order: Vec<(&Sized, u64)> =
        sized.iter().map(|s| (s, offsets[s.arena as usize].next().copied().unwrap_or(0))).collect();
    order.sort_by_key(|(s, _)| (s.block.start, s.class));
    let buffers: Vec<Buffer> = order.iter().map(|(s, offset)| writer.buffer(s, *offset)).collect();
    for (b, (s, _)) in order.iter().enumerate() {
        writer.buffer_of[s.class] = b;
    }
    let extents: Vec<Extent> = order
        .iter()
        .map(|(s, offset)| Extent {
            class: s.class,
            arena: s.arena,
            start: *offset,
            end: offset + s.block.size,
            wraps: s.wraps,
        })
        .collect();
    let waits = waits(&program.placed.steps, &program.placed.live, &program.placed.classes, &extents);
    let laned = lanes::assign(&program.prepared, &program.placed.steps, waits, symbols, profile);
    let steps = writer.steps(laned, decisions);
    let copies = writer.copies()?;
    let totals =
        Totals { barrier_bytes: writer.costs.dropped, ..totals(&ordinary, &symmetric, &steps, &copies) };
    let ranges = symbols.values().map(|s| (s.name.clone(), [s.min, s.max])).collect();
    Ok(Bucket {
        symbols: ranges,
        program: index,
        buffers,
        places: writer.places(),
        decisions: writer.decisions(decisions),
        steps,
        copies,
        totals,
    })
}

fn totals(ordinary: &Packing, symmetric: &Packing, steps: &[Step], copies: &[ForcedCopy]) -> Totals {
    let exits = |which| steps.iter().filter(|s| s.exit == Some(which)).count() as u64;
    Totals {
        ordinary_peak: ordinary.peak,
        ordinary_bound: ordinary.bound,
        symmetric_peak: symmetric.peak,
        symmetric_bound: symmetric.bound,
        copies: copies.len() as u64,
        copied: copies.iter().map(|c| c.bytes).fold(0, u64::saturating_add),
        barriers_dropped: exits(ExitBarrier::Dropped),
        barriers_kept: exits(ExitBarrier::Kept),
        barrier_bytes: 0,
        workspace: 0,
    }
}

fn pack_arena(sized: &[Sized], arena: ArenaKind, fixed: u64, config: &symmc_pack::Config) -> Result<Packing> {
    let blocks: Vec<Block> = sized.iter().filter(|s| s.arena == arena).map(|s| s.block).collect();
    let mut packing = symmc_pack::pack(&blocks, config).map_err(|error| PlanError::Pack {
        arena: if arena == ArenaKind::Ordinary { "ordinary" } else { "symmetric" },
        error,
    })?;
    let fixed = fixed.next_multiple_of(ALIGN);
    packing.offsets.iter_mut().chain([&mut packing.peak, &mut packing.bound]).for_each(|at| *at += fixed);
    Ok(packing)
}

fn reach(program: &ScheduledProgram) -> Vec<Reach> {
    let mut reach = vec![Reach::Local; program.placed.classes.list.len()];
    for step in &program.placed.steps.list {
        let (read, written) = step.touched(&program.prepared.graph, &program.prepared.base);
        for (values, to) in [(read, Reach::Read), (written, Reach::Written)] {
            for c in values.iter().filter_map(|&v| program.placed.classes.of[v]) {
                let known = &mut reach[c as usize];
                if *known == Reach::Local || to == Reach::Written {
                    *known = to;
                }
            }
        }
    }
    reach
}

struct Writer<'a> {
    program: &'a ScheduledProgram,
    symbols: &'a Symbols,
    fixed: &'a FixedMemory,
    reach: Vec<Reach>,
    costs: Costs,
    buffer_of: Vec<usize>,
}

impl Writer<'_> {
    fn graph(&self) -> &Graph {
        &self.program.prepared.graph
    }

    fn buffer(&self, s: &Sized, offset: u64) -> Buffer {
        let end = self.program.placed.steps.list.len();
        let last = if s.block.end == 0 { end } else { s.block.end } - 1;
        Buffer {
            arena: s.arena,
            offset,
            size: s.block.size,
            first: s.block.start,
            last,
            reach: self.reach[s.class],
        }
    }

    fn steps(&self, laned: Vec<Laned>, decisions: &[Decided]) -> Vec<Step> {
        let (graph, placed) = (self.graph(), &self.program.placed);
        let decided = decisions.iter().flat_map(|d| d.decision.nodes.iter().zip(&d.blocks));
        let blocks: HashMap<&str, u32> = decided.filter_map(|(node, &b)| Some((node.as_str(), b?))).collect();
        let list = placed.steps.list.iter().zip(laned).zip(placed.live.exits.iter().zip(&self.costs.each));
        list.map(|((step, Laned { lane, waits }), (exit, &exit_bytes))| Step {
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

    fn places(&self) -> IndexMap<String, Place> {
        let graph = self.graph();
        let needs = self.needs();
        let mut places = IndexMap::with_capacity(graph.values.len());
        for (i, input) in graph.inputs.iter() {
            let (memory, why) = match self.fixed.bound.get(&i.index()) {
                Some(&f) => {
                    (Memory::Fixed(f), "an input that the caller writes in the symmetric arena".to_string())
                }
                None => self.input(i.index(), input.value),
            };
            let place = Place { memory, offset: "0".to_string(), by_rank: None, why };
            places.insert(graph.name_of(input.value).to_string(), place);
        }
        let mut member_of: Table<ValueId, Option<(usize, usize)>> = Table::filled(None, graph.values.len());
        for (c, class) in self.program.placed.classes.iter() {
            for (m, member) in class.members.iter().enumerate() {
                member_of[member.value] = Some((c, m));
            }
        }
        for step in &self.program.placed.steps.list {
            for &v in &step.writes {
                if let Some((c, m)) = member_of[v] {
                    let class = &self.program.placed.classes.list[c];
                    let place = self.place(c, class, &class.members[m], needs.get(&v));
                    places.insert(graph.name_of(v).to_string(), place);
                }
            }
        }
        places
    }

    /// Where an input lies that is not bound, and why.
    fn input(&self, input: usize, value: ValueId) -> (Memory, String) {
        let classes = &self.program.placed.classes;
        match classes.of[value].map(|c| classes.list[c as usize].space) {
            Some(MemorySpace::Output(k)) => {
                (Memory::Output(k), format!("an input, in one memory with output {k}, which replaces it"))
            }
            _ => (Memory::Input(input), "an input".to_string()),
        }
    }

    fn place(&self, c: usize, class: &Class, member: &Member, need: Option<&String>) -> Place {
        let graph = self.graph();
        let memory = match class.space {
            MemorySpace::Arena(_) => Memory::Buffer(self.buffer_of[c]),
            MemorySpace::Output(k) => Memory::Output(k),
        };
        let mut why = match (member.shares, class.space) {
            (Shares::Over(v), _) => format!("over %{}, which nothing needs any more", graph.name_of(v)),
            (Shares::Shard(v), _) => format!("this rank's piece of %{}", graph.name_of(v)),
            (Shares::Piece(v), _) => format!("a piece of %{}", graph.name_of(v)),
            (Shares::Nothing, MemorySpace::Output(k)) => match class.top == member.value {
                true => format!("output {k}"),
                false => format!("in output {k}, which %{} becomes", graph.name_of(class.top)),
            },
            (Shares::Nothing, MemorySpace::Arena(ArenaKind::Symmetric)) => String::new(),
            (Shares::Nothing, MemorySpace::Arena(ArenaKind::Ordinary)) => "an intermediate value".to_string(),
        };
        if let Some(need) = need {
            why = if why.is_empty() { need.clone() } else { format!("{why}; {need}") };
        } else if why.is_empty() {
            why = format!("in the symmetric arena with %{}", graph.name_of(class.top));
        }
        let by_rank = member.by_rank.as_ref().map(|(group, stride)| ByRank {
            group: graph.groups[*group].name.clone(),
            stride: stride.display(self.symbols).to_string(),
        });
        Place { memory, offset: member.offset.display(self.symbols).to_string(), by_rank, why }
    }

    /// Why bases must be symmetric, for people: the first node that needs each.
    fn needs(&self) -> HashMap<ValueId, String> {
        let (graph, base) = (self.graph(), &self.program.prepared.base);
        let mut needs = HashMap::new();
        let nodes = |step: &StepInfo| step.nodes().map(|n| (n, step.peers)).collect::<Vec<_>>();
        for (id, peers) in self.program.placed.steps.list.iter().flat_map(nodes) {
            let node = &graph.nodes[id];
            let how = match &node.op {
                Op::Collective(c) => c.variant.map_or("", |v| v.name()),
                Op::Custom(_) => "a custom op",
                _ => continue,
            };
            let (operands, results) = symmetric_positions(graph, id, peers.as_ref());
            for v in operands.iter().filter_map(|&i| node.inputs.get(i)) {
                let of = graph.node_name(id);
                needs.entry(base[*v]).or_insert_with(|| format!("symmetric as an operand of %{of} ({how})"));
            }
            for v in results.iter().filter_map(|&i| node.outputs.get(i)) {
                needs.entry(*v).or_insert_with(|| format!("symmetric as a result of {how}"));
            }
        }
        needs
    }

    /// The inserted copies that move something.
    fn copies(&self) -> Result<Vec<ForcedCopy>> {
        let (graph, classes) = (self.graph(), &self.program.placed.classes);
        let idle: BTreeSet<ValueId> = classes
            .iter()
            .flat_map(|(_, c)| &c.members)
            .filter(|m| matches!(m.shares, Shares::Over(_)))
            .map(|m| m.value)
            .collect();
        let mut copies: Vec<(u32, ForcedCopy)> = Vec::new();
        for c in &self.program.prepared.copies {
            if c.reason == CopyReason::Output && idle.contains(&c.value) {
                continue;
            }
            let name = graph.name_of(c.value).to_string();
            let bytes = graph.ty(c.value).bytes().upper(self.symbols).max(0) as u64;
            let copy = ForcedCopy {
                of: graph.name_of(c.of).to_string(),
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

    /// The decisions in order of the steps. Estimates are kept to the nanosecond.
    fn decisions(&self, decisions: &[Decided]) -> Vec<Decision> {
        let graph = self.graph();
        let list = self.program.placed.steps.list.iter().enumerate();
        let step_of: HashMap<&str, usize> = list.map(|(s, step)| (graph.node_name(step.node), s)).collect();
        let first = |d: &Decision| {
            let steps = d.nodes.iter().filter_map(|n| step_of.get(n.as_str()));
            steps.min().copied().unwrap_or(usize::MAX)
        };
        let nanoseconds = |us: f64| (us * 1000.0).round() / 1000.0;
        let mut out: Vec<Decision> = decisions.iter().map(|d| d.decision.clone()).collect();
        for a in out.iter_mut().flat_map(|d| &mut d.alternatives) {
            for us in [&mut a.us, &mut a.copy_us, &mut a.saved_us] {
                *us = nanoseconds(*us);
            }
        }
        out.sort_by_cached_key(first);
        out
    }
}
