//! Decides which values share memory, and in which memory they lie.
//!
//! Every base that a node defines starts in a [`BufferClass`] of its own. Classes merge if a result may
//! overwrite or enclose an operand of its node. A class becomes one buffer, or lies in the caller's memory of
//! an output.
//!
//! A class has a *top*: the value that fills the class and is written last. Only a top that fills its class can
//! be overwritten. A class is therefore a chain of values at one place, together with the parts of gathered or
//! concatenated values.

use std::collections::BTreeSet;

use symmc_ir::entity::Entity;
use symmc_ir::{CollectiveKind, Dim, DispatchForm, EntityMap, GroupId, Op, OutputKind, ValueId};
use symmc_plan::{ArenaKind, PEER_ALIGN};

use crate::liveness::Liveness;
use crate::prepare::PreparedGraph;
use crate::steps::{StepList, StepOperand};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassLocation {
    /// A buffer in this arena.
    Arena(ArenaKind),
    Output(usize),
}

#[derive(Clone, Debug)]
pub struct BufferClass {
    pub space: ClassLocation,
    /// The size in bytes.
    pub size: Dim,
    /// The value that fills the class and is written last.
    pub top: ValueId,
    /// The values of the class, the top among them. A class that was merged into another has none.
    pub members: Vec<ClassMember>,
    pub first: u32,
    top_step: u32,
    /// The latest release of all members except the top.
    others: u32,
}

#[derive(Clone, Debug)]
pub struct ClassMember {
    /// The value, which is a base.
    pub value: ValueId,
    /// The distance in bytes from the start of the class.
    pub offset: Dim,
    /// The bytes to add for each rank before this one in its cell of the group.
    pub by_rank: Option<(GroupId, Dim)>,
    /// The reason for the place of the value.
    pub shares: SharingReason,
}

/// The reason why a value shares memory with another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharingReason {
    /// The value has the memory from the start and shares it with no earlier value.
    Nothing,
    /// The value is written over this operand.
    Over(ValueId),
    /// The value is this rank's piece of a gathered result.
    Shard(ValueId),
    Piece(ValueId),
}

/// The steps, by position, whose larger results in an arena are written separately from their parts. The parts
/// of all other larger results are produced inside of the result. That saves the copy and the parts' own bytes,
/// but occupies the whole result from its first part on. Parts of outputs are always produced inside.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SeparateResults(pub BTreeSet<u32>);

#[derive(Clone, Debug)]
pub struct BufferClasses {
    /// Merged classes are empty.
    pub list: Vec<BufferClass>,
    /// The index of the class of each value. Views have none, and inputs have one only if an output replaces
    /// them in place.
    pub class_of: EntityMap<ValueId, Option<u32>>,
}

impl BufferClasses {
    pub fn new(
        program: &PreparedGraph,
        steps: &StepList,
        live: &Liveness,
        apart: &SeparateResults,
    ) -> BufferClasses {
        let (classes, windows, level) =
            (singleton_classes(program, steps), window_values(program, steps), uniform_offset_bases(steps));
        let mut placing = ClassMerger { program, steps, live, apart, classes, windows, level };
        for s in 0..steps.list.len() {
            placing.merge_all_gather(s);
            placing.merge_concat(s);
        }
        for s in 0..steps.list.len() {
            placing.merge_overwritten(s);
        }
        placing.merge_replaced_inputs();
        placing.classes
    }

    /// The larger results in an arena that enclose their parts, each with the index of its class.
    pub fn enclosing_results(&self) -> impl Iterator<Item = (ValueId, usize)> {
        let arenas = self.iter().filter(|(_, c)| matches!(c.space, ClassLocation::Arena(_)));
        let members = arenas.flat_map(|(i, c)| c.members.iter().map(move |m| (m, i)));
        members.filter_map(|(m, i)| match m.shares {
            SharingReason::Shard(result) | SharingReason::Piece(result) => Some((result, i)),
            SharingReason::Nothing | SharingReason::Over(_) => None,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &BufferClass)> {
        self.list.iter().enumerate().filter(|(_, c)| !c.members.is_empty())
    }
}

impl BufferClass {
    /// The first step that may write other values into the bytes of the class.
    pub fn release_step(&self, live: &Liveness) -> u32 {
        live.release_step(self.top, self.top_step).max(self.others)
    }
}

fn singleton_classes(program: &PreparedGraph, steps: &StepList) -> BufferClasses {
    let graph = &program.graph;
    let mut output = vec![None; graph.values.len()];
    for (k, o) in graph.outputs.iter().enumerate() {
        output[o.value.index()] = Some(k);
    }
    let mut list = Vec::with_capacity(steps.list.len());
    let mut class_of = EntityMap::filled(None, graph.values.len());
    for (s, step) in steps.list.iter().enumerate() {
        for &value in &step.writes {
            let space = match (output[value.index()], program.symmetric[value]) {
                (Some(k), _) => ClassLocation::Output(k),
                (None, true) => ClassLocation::Arena(ArenaKind::Symmetric),
                (None, false) => ClassLocation::Arena(ArenaKind::Ordinary),
            };
            class_of[value] = Some(list.len() as u32);
            let member =
                ClassMember { value, offset: Dim::from(0), by_rank: None, shares: SharingReason::Nothing };
            let size = program.bytes[value].clone();
            let members = vec![member];
            let first = s as u32;
            list.push(BufferClass { space, size, top: value, members, first, top_step: first, others: 0 });
        }
    }
    BufferClasses { list, class_of }
}

struct ClassMerger<'a> {
    program: &'a PreparedGraph,
    steps: &'a StepList,
    live: &'a Liveness,
    apart: &'a SeparateResults,
    classes: BufferClasses,
    windows: Vec<WindowValue>,
    /// The bases that must have the same place on all ranks.
    level: BTreeSet<ValueId>,
}

/// The bases that kernels of dispatches expect at the same place on all ranks: those of reductions and of
/// products.
fn uniform_offset_bases(steps: &StepList) -> BTreeSet<ValueId> {
    let forms = [DispatchForm::Reduction, DispatchForm::Product].map(Some);
    let uniform_steps = steps.list.iter().filter(|step| forms.contains(&step.dispatch.map(|d| d.form)));
    uniform_steps.flat_map(|step| step.reads.iter().chain(&step.writes)).copied().collect()
}

/// A value that the library accesses through a window.
struct WindowValue {
    /// Its base.
    value: ValueId,
    group: GroupId,
    /// Whether the value is the operand of an all-gather.
    gathered: bool,
}

/// The operands and results of collectives that use windows.
fn window_values(program: &PreparedGraph, steps: &StepList) -> Vec<WindowValue> {
    let mut out = Vec::new();
    for step in &steps.list {
        let node = &program.graph.nodes[step.node];
        let Some(c) = node.op.as_collective().filter(|c| c.variant.is_some_and(|v| v.uses_nccl_window()))
        else {
            continue;
        };
        let gathers = c.kind == CollectiveKind::AllGather;
        for &operand in &node.inputs {
            out.push(WindowValue { value: program.base[operand], group: c.group, gathered: gathers });
        }
        for &result in &node.outputs {
            out.push(WindowValue { value: result, group: c.group, gathered: false });
        }
    }
    out
}

impl ClassMerger<'_> {
    /// The base of `operand`, if all other users of its class let a result of step `s` take its bytes. The operand
    /// must be all of its class. Steps before `s` that use the class must have released it. Later readers must
    /// be in the lane of `s`, so that they start after `s` ends.
    fn released_base(&self, operand: ValueId, s: usize) -> Option<ValueId> {
        let base = self.program.base[operand];
        let class = &self.classes.list[self.classes.class_of[base]? as usize];
        // Peers may still read a piece of a gathered value after the rank itself has finished with the whole
        // value.
        let owns_memory = class.top == base && self.program.covers_base[operand] && class.others <= s as u32;
        let lane = self.steps.list[s].lane;
        let mut later =
            self.live.readers.steps_reading(base).iter().rev().map(|&r| r as usize).take_while(|&r| r > s);
        let follow = later.all(|r| self.steps.list[r].lane == lane);
        (owns_memory && follow && self.live.earlier_reads_released_at(base, s as u32)).then_some(base)
    }

    /// [`released_base`](Self::released_base), if no step after `s` needs the base.
    fn dying_base(&self, operand: ValueId, s: usize) -> Option<ValueId> {
        self.released_base(operand, s).filter(|&base| self.live.dies_at(base, s as u32))
    }

    /// Places the operand of an all-gather at its piece of the result. The operand's bytes stay the same.
    fn merge_all_gather(&mut self, s: usize) {
        let step = &self.steps.list[s];
        let Op::Collective(c) = &self.program.graph.nodes[step.node].op else { return };
        if step.dispatch.is_some() {
            return;
        }
        let in_place = step.peers.is_some_and(|p| p.contract.in_place);
        if c.kind != CollectiveKind::AllGather || !in_place {
            return;
        }
        let node = &self.program.graph.nodes[step.node];
        let operand = node.inputs[0];
        let result = node.outputs[0];
        let Some(base) = self.released_base(operand, s) else { return };
        let stride = self.program.bytes[base].clone();
        self.merge_into_result(base, result, Dim::from(0), Some((c.group, stride)));
    }

    /// Places the operands of a concatenation at their pieces of the result. The operands' bytes stay the same.
    fn merge_concat(&mut self, s: usize) {
        let graph = &self.program.graph;
        let node = &graph.nodes[self.steps.list[s].node];
        let Op::Concat { axis } = node.op else { return };
        let result = node.outputs[0];
        if graph.ty(result).shape[..axis].iter().any(|d| d.as_const() != Some(1)) {
            return;
        }
        let mut offset = Dim::from(0);
        for &operand in &node.inputs {
            if let Some(base) = self.released_base(operand, s) {
                self.merge_into_result(base, result, offset.clone(), None);
            }
            offset = offset + graph.ty(operand).bytes();
        }
    }

    /// Moves the class of `part` into the class of `whole`. A part that peers access moves only into memory
    /// that peers can reach. The whole never moves because of a part.
    fn merge_into_result(
        &mut self,
        part: ValueId,
        whole: ValueId,
        offset: Dim,
        by_rank: Option<(GroupId, Dim)>,
    ) {
        let (Some(p), Some(w)) = (self.classes.class_of[part], self.classes.class_of[whole]) else { return };
        let p = p as usize;
        let w = w as usize;
        let from = &self.classes.list[p];
        let into = &self.classes.list[w];
        let symmetric = ClassLocation::Arena(ArenaKind::Symmetric);
        let fits = match (from.space, into.space) {
            (ClassLocation::Output(_), _) => false,
            (ClassLocation::Arena(_), ClassLocation::Output(_)) => {
                from.space != symmetric && self.fits_within(from, &offset, by_rank.as_ref(), whole)
            }
            (ClassLocation::Arena(_), space) => {
                let is_separate = self.steps.def[whole].is_some_and(|s| self.apart.0.contains(&s));
                !is_separate && (from.space != symmetric || space == symmetric)
            }
        };
        let nested = by_rank.is_some() && from.members.iter().any(|m| m.by_rank.is_some());
        // Peers access aligned bytes only.
        let step = by_rank.as_ref().map_or(&offset, |(_, stride)| stride);
        let aligned = step.is_divisible_by(PEER_ALIGN) || from.space != symmetric;
        // The bounds of an offset must show that it is not negative.
        let begins =
            |m: &ClassMember| (m.offset.clone() + offset.clone()).bounds(&self.program.graph.symbols).0 >= 0;
        let fits = fits && from.members.iter().all(begins);
        if p == w || !fits || nested || !aligned || into.top != whole {
            return;
        }
        let level = from.members.iter().any(|m| self.level.contains(&m.value));
        if by_rank.as_ref().is_some_and(|(group, _)| level || self.window_breaks(from, *group)) {
            return;
        }
        let release = from.release_step(self.live);
        let moved = std::mem::take(&mut self.classes.list[p].members);
        let first = self.classes.list[p].first;
        let shares =
            if by_rank.is_some() { SharingReason::Shard(whole) } else { SharingReason::Piece(whole) };
        let into = &mut self.classes.list[w];
        into.first = into.first.min(first);
        into.others = into.others.max(release);
        for mut m in moved {
            self.classes.class_of[m.value] = Some(w as u32);
            m.offset = m.offset + offset.clone();
            m.by_rank = by_rank.clone().or(m.by_rank);
            if m.value == part {
                m.shares = shares;
            }
            into.members.push(m);
        }
    }

    /// Whether all members of a class lie within `whole` at this offset, for all sizes. In each run the memory
    /// of an output is exactly as large as the output.
    fn fits_within(
        &self,
        class: &BufferClass,
        offset: &Dim,
        by_rank: Option<&(GroupId, Dim)>,
        whole: ValueId,
    ) -> bool {
        let graph = &self.program.graph;
        let bytes = &self.program.bytes;
        class.members.iter().all(|m| {
            let mut end = m.offset.clone() + offset.clone() + bytes[m.value].clone();
            if let Some((group, stride)) = by_rank.or(m.by_rank.as_ref()) {
                let ranks = graph.group_size(*group).map_or(1, i64::from);
                end = end + stride.clone() * Dim::from(ranks.max(1) - 1);
            }
            end.provably_le(&bytes[whole], &graph.symbols)
        })
    }

    /// Whether ranks would find a value of a class at different places in a window, if the class were placed by
    /// rank in a group.
    fn window_breaks(&self, class: &BufferClass, group: GroupId) -> bool {
        let graph = &self.program.graph;
        for window in &self.windows {
            if !class.members.iter().any(|m| m.value == window.value) {
                continue;
            }
            let is_own_piece = window.gathered && graph.cells(window.group) == graph.cells(group);
            if !is_own_piece && !graph.has_equal_rank_within(group, window.group) {
                return true;
            }
        }
        false
    }

    /// Places results of a step over operands that the step reads last, if the op allows it.
    fn merge_overwritten(&mut self, s: usize) {
        let program = self.program;
        let step = &self.steps.list[s];
        let operands = step.operands(&program.graph, &program.base);
        for &result in &step.writes {
            let Some(r) = self.classes.class_of[result] else { continue };
            let single = self.classes.list[r as usize].members.len() == 1;
            let mut able: Vec<&StepOperand> =
                operands.iter().filter(|o| o.may_be_overwritten_by(&program.graph, result)).collect();
            // Prefer an operand of the node that defines the result. A value to which nodes add repeatedly then
            // stays in one place.
            able.sort_by_key(|o| program.graph.defining_node(result) != Some(o.node));
            let over = able.into_iter().find_map(|o| {
                let base = self.dying_base(o.value, s)?;
                let class = self.classes.class_of[base]?;
                let mut bases = operands.iter().map(|o| program.base[o.value]);
                let no_other_in_class = bases.all(|b| b == base || self.classes.class_of[b] != Some(class));
                let covers = self.uses_match_result(&operands, base, result);
                (no_other_in_class && covers && self.mergeable(class, r)).then_some(base)
            });
            if let (Some(base), true) = (over, single) {
                self.merge_over_operand(base, result);
            }
        }
    }

    /// Whether every operand that uses bytes of `base` has exactly the elements of the result, and may be
    /// overwritten by the result.
    fn uses_match_result(&self, operands: &[StepOperand], base: ValueId, result: ValueId) -> bool {
        let graph = &self.program.graph;
        let ty = graph.ty(result);
        operands.iter().filter(|operand| self.program.base[operand.value] == base).all(|operand| {
            let operand_type = graph.ty(operand.value);
            operand.may_be_overwritten_by(graph, result)
                && self.program.covers_base[operand.value]
                && operand_type.shape == ty.shape
                && operand_type.dtype.size() == ty.dtype.size()
        })
    }

    /// Places inputs in the memory of the outputs that replace them, if no step reads the input after the first
    /// value is written there.
    fn merge_replaced_inputs(&mut self) {
        let graph = &self.program.graph;
        for output in &graph.outputs {
            let OutputKind::Mutates(input) = output.kind else { continue };
            let old = graph.inputs[input].value;
            let Some(c) = self.classes.class_of[output.value] else { continue };
            let first = self.classes.list[c as usize].first;
            let last_reader = self.live.readers.steps_reading(old).last().copied();
            let reads = last_reader == Some(first);
            if self.program.symmetric[old]
                || last_reader > Some(first)
                || !self.live.earlier_reads_released_at(old, first)
            {
                continue;
            }
            if reads {
                let step = &self.steps.list[first as usize];
                let operands = step.operands(graph, &self.program.base);
                // The value that this step writes, if it lies at the start of the memory.
                let begins =
                    |m: &ClassMember| self.steps.def[m.value] == Some(first) && m.offset == Dim::from(0);
                let members = &self.classes.list[c as usize].members;
                let over = members.iter().position(begins).filter(|&m| {
                    members[m].by_rank.is_none() && self.uses_match_result(&operands, old, members[m].value)
                });
                match over {
                    Some(m) => self.classes.list[c as usize].members[m].shares = SharingReason::Over(old),
                    None => continue,
                }
            }
            let shares = SharingReason::Nothing;
            let class = &mut self.classes.list[c as usize];
            class.members.push(ClassMember { value: old, offset: Dim::from(0), by_rank: None, shares });
            self.classes.class_of[old] = Some(c);
        }
    }

    /// Whether the class `r` of a result may take over the class `x` of an operand. Both must be in one arena,
    /// or the result in its output.
    fn mergeable(&self, x: u32, r: u32) -> bool {
        let x = &self.classes.list[x as usize];
        let r = &self.classes.list[r as usize];
        let sizes = x.size == r.size;
        sizes
            && match (x.space, r.space) {
                (ClassLocation::Output(_), _) => false,
                (space, ClassLocation::Output(_)) => {
                    space == ClassLocation::Arena(ArenaKind::Ordinary)
                        && self.fits_within(x, &Dim::from(0), None, r.top)
                }
                (a, b) => a == b,
            }
    }

    fn merge_over_operand(&mut self, base: ValueId, result: ValueId) {
        let (Some(x), Some(r)) = (self.classes.class_of[base], self.classes.class_of[result]) else { return };
        let x = x as usize;
        let r = r as usize;
        let space = self.classes.list[r].space;
        let step = self.classes.list[r].top_step;
        let mut moved = std::mem::take(&mut self.classes.list[r].members);
        if let Some(m) = moved.first_mut() {
            m.shares = SharingReason::Over(base);
        }
        let class = &mut self.classes.list[x];
        class.space = space;
        (class.top, class.top_step) = (result, step);
        // The operand has no later use, so its bytes are released with this step.
        class.others = class.others.max(self.live.joined[step as usize]);
        class.members.append(&mut moved);
        self.classes.class_of[result] = Some(x as u32);
    }
}
