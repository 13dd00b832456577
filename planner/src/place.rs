//! Which values share memory, and which memory that is.
//!
//! Every base that a node defines starts in a [`Class`] of its own. Classes merge where a result may lie on
//! or around an operand of its node (the cases are listed at [`crate::plan`]). A class becomes
//! one buffer, or lies in the caller's memory of an output.
//!
//! A class has a *top*: the value that fills all of it and is the last to be written. Only a top that fills
//! its class can be written over, so a class is always a chain of values at one place, with the parts of a
//! gathered or concatenated value below it.

use std::collections::BTreeSet;

use symmc_ir::entity::Entity;
use symmc_ir::{CollectiveKind, Dim, Form, GroupId, Op, OutputKind, Table, ValueId};
use symmc_plan::{ArenaKind, PEER_ALIGN};

use crate::liveness::Liveness;
use crate::prepare::Prepared;
use crate::steps::{Operand, Steps};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemorySpace {
    /// A buffer in this arena.
    Arena(ArenaKind),
    Output(usize),
}

#[derive(Clone, Debug)]
pub struct Class {
    pub space: MemorySpace,
    /// Bytes.
    pub size: Dim,
    /// The value that fills all of it and is written last.
    pub top: ValueId,
    /// Its values, the top among them; none in a class that was merged into another.
    pub members: Vec<Member>,
    pub first: u32,
    top_step: u32,
    /// The release of all members but the top.
    others: u32,
}

#[derive(Clone, Debug)]
pub struct Member {
    /// The value, a base.
    pub value: ValueId,
    /// Bytes from the start of the class.
    pub offset: Dim,
    /// Bytes to add for each rank before this one in its cell of the group.
    pub by_rank: Option<(GroupId, Dim)>,
    /// What it lies on or in: the result that it is a part of, or the operand that it overwrites.
    pub shares: Shares,
}

/// Why a value lies where others lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shares {
    /// It has the memory from its start on.
    Nothing,
    /// It is written over this operand.
    Over(ValueId),
    /// It is this rank's piece of a gathered result.
    Shard(ValueId),
    Piece(ValueId),
}

/// Which larger results in an arena are written apart from their parts: these steps, by their positions. All others have
/// their parts produced inside of them, which saves the copy and the parts' own bytes, but occupies the whole from its
/// first part on. Parts of outputs always are inside.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Apart(pub BTreeSet<u32>);

#[derive(Clone, Debug)]
pub struct Classes {
    /// Merged classes are empty.
    pub list: Vec<Class>,
    /// The index of the class of each value; none for views, and for inputs but those that an output replaces in place.
    pub of: Table<ValueId, Option<u32>>,
}

impl Classes {
    pub fn new(program: &Prepared, steps: &Steps, live: &Liveness, apart: &Apart) -> Classes {
        let (classes, windows, level) = (singles(program, steps), windows(program, steps), level(steps));
        let mut placing = Placing { program, steps, live, apart, classes, windows, level };
        for s in 0..steps.list.len() {
            placing.gather(s);
            placing.concat(s);
        }
        for s in 0..steps.list.len() {
            placing.overwrite(s);
        }
        placing.replace();
        placing.classes
    }

    /// The larger results in an arena that have parts inside of them, each with the index of its class.
    pub fn wholes(&self) -> impl Iterator<Item = (ValueId, usize)> {
        let arenas = self.iter().filter(|(_, c)| matches!(c.space, MemorySpace::Arena(_)));
        let members = arenas.flat_map(|(i, c)| c.members.iter().map(move |m| (m, i)));
        members.filter_map(|(m, i)| match m.shares {
            Shares::Shard(whole) | Shares::Piece(whole) => Some((whole, i)),
            Shares::Nothing | Shares::Over(_) => None,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Class)> {
        self.list.iter().enumerate().filter(|(_, c)| !c.members.is_empty())
    }
}

impl Class {
    /// The first step that may write other values into its bytes.
    pub fn release(&self, live: &Liveness) -> u32 {
        live.release(self.top, self.top_step).max(self.others)
    }
}

fn singles(program: &Prepared, steps: &Steps) -> Classes {
    let graph = &program.graph;
    let mut output = vec![None; graph.values.len()];
    for (k, o) in graph.outputs.iter().enumerate() {
        output[o.value.index()] = Some(k);
    }
    let mut list = Vec::with_capacity(steps.list.len());
    let mut of = Table::filled(None, graph.values.len());
    for (s, step) in steps.list.iter().enumerate() {
        for &value in &step.writes {
            let space = match (output[value.index()], program.symmetric[value]) {
                (Some(k), _) => MemorySpace::Output(k),
                (None, true) => MemorySpace::Arena(ArenaKind::Symmetric),
                (None, false) => MemorySpace::Arena(ArenaKind::Ordinary),
            };
            of[value] = Some(list.len() as u32);
            let member = Member { value, offset: Dim::from(0), by_rank: None, shares: Shares::Nothing };
            let (size, members, first) = (program.bytes[value].clone(), vec![member], s as u32);
            list.push(Class { space, size, top: value, members, first, top_step: first, others: 0 });
        }
    }
    Classes { list, of }
}

struct Placing<'a> {
    program: &'a Prepared,
    steps: &'a Steps,
    live: &'a Liveness,
    apart: &'a Apart,
    classes: Classes,
    windows: Vec<InWindow>,
    /// Bases that lie at one place on all ranks.
    level: BTreeSet<ValueId>,
}

/// The bases that kernels of dispatches find at one place on all ranks: those of reductions and of products.
fn level(steps: &Steps) -> BTreeSet<ValueId> {
    let forms = [Form::Reduction, Form::Product].map(Some);
    let of = steps.list.iter().filter(|step| forms.contains(&step.dispatch.map(|d| d.form)));
    of.flat_map(|step| step.reads.iter().chain(&step.writes)).copied().collect()
}

/// A value that the library looks for in a window.
struct InWindow {
    /// Its base.
    value: ValueId,
    group: GroupId,
    /// Whether it is the operand of an all-gather.
    gathered: bool,
}

/// The operands and results of collectives in windows.
fn windows(program: &Prepared, steps: &Steps) -> Vec<InWindow> {
    let mut out = Vec::new();
    for step in &steps.list {
        let node = &program.graph.nodes[step.node];
        let Some(c) = node.op.as_collective().filter(|c| c.variant.is_some_and(|v| v.in_window())) else {
            continue;
        };
        let gathers = c.kind == CollectiveKind::AllGather;
        let of = |value, gathered| InWindow { value, group: c.group, gathered };
        out.extend(node.inputs.iter().map(|&x| of(program.base[x], gathers)));
        out.extend(node.outputs.iter().map(|&r| of(r, false)));
    }
    out
}

impl Placing<'_> {
    /// The base of `operand`, if the operand is all of its class, steps before `s` that use the class have released it by
    /// then, and later ones that read it come after the end of `s` because they are in its lane.
    fn settled(&self, operand: ValueId, s: usize) -> Option<ValueId> {
        let base = self.program.base[operand];
        let class = &self.classes.list[self.classes.of[base]? as usize];
        // Peers may still read a piece of a gathered value when the rank itself is done with all of it.
        let whole = class.top == base && self.program.whole[operand] && class.others <= s as u32;
        let lane = |s: usize| self.steps.list[s].lane;
        let mut later = self.live.readers.of(base).iter().rev().map(|&r| r as usize).take_while(|&r| r > s);
        let follow = later.all(|r| lane(r) == lane(s));
        (whole && follow && self.live.settled_at(base, s as u32)).then_some(base)
    }

    /// [`settled`](Self::settled), if nothing needs the base after step `s` either.
    fn dying(&self, operand: ValueId, s: usize) -> Option<ValueId> {
        self.settled(operand, s).filter(|&base| self.live.dies_at(base, s as u32))
    }

    /// An all-gather's operand at its piece of the result, which holds the same bytes afterwards.
    fn gather(&mut self, s: usize) {
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
        let (operand, result) = (node.inputs[0], node.outputs[0]);
        let Some(base) = self.settled(operand, s) else { return };
        let stride = self.program.bytes[base].clone();
        self.put_inside(base, result, Dim::from(0), Some((c.group, stride)));
    }

    /// The operands of a concatenation at their pieces of the result, where they stay as well.
    fn concat(&mut self, s: usize) {
        let graph = &self.program.graph;
        let node = &graph.nodes[self.steps.list[s].node];
        let Op::Concat { axis } = node.op else { return };
        let result = node.outputs[0];
        if graph.ty(result).shape[..axis].iter().any(|d| d.as_const() != Some(1)) {
            return;
        }
        let mut offset = Dim::from(0);
        for &operand in &node.inputs {
            if let Some(base) = self.settled(operand, s) {
                self.put_inside(base, result, offset.clone(), None);
            }
            offset = offset + graph.ty(operand).bytes();
        }
    }

    /// Moves the class of `part` into the class of `whole`. A part that peers touch only goes where they
    /// reach; the whole does not move for it.
    fn put_inside(&mut self, part: ValueId, whole: ValueId, offset: Dim, by_rank: Option<(GroupId, Dim)>) {
        let (Some(p), Some(w)) = (self.classes.of[part], self.classes.of[whole]) else { return };
        let (p, w) = (p as usize, w as usize);
        let (from, into) = (&self.classes.list[p], &self.classes.list[w]);
        let symmetric = MemorySpace::Arena(ArenaKind::Symmetric);
        let fits = match (from.space, into.space) {
            (MemorySpace::Output(_), _) => false,
            (MemorySpace::Arena(_), MemorySpace::Output(_)) => {
                from.space != symmetric && self.within(from, &offset, by_rank.as_ref(), whole)
            }
            (MemorySpace::Arena(_), space) => {
                let apart = self.steps.def[whole].is_some_and(|s| self.apart.0.contains(&s));
                !apart && (from.space != symmetric || space == symmetric)
            }
        };
        let nested = by_rank.is_some() && from.members.iter().any(|m| m.by_rank.is_some());
        // Peers touch aligned bytes only.
        let step = by_rank.as_ref().map_or(&offset, |(_, stride)| stride);
        let aligned = step.divisible_by(PEER_ALIGN) || from.space != symmetric;
        // A place begins within its memory as far as its bounds show.
        let begins =
            |m: &Member| (m.offset.clone() + offset.clone()).bounds(&self.program.graph.symbols).0 >= 0;
        let fits = fits && from.members.iter().all(begins);
        if p == w || !fits || nested || !aligned || into.top != whole {
            return;
        }
        let level = from.members.iter().any(|m| self.level.contains(&m.value));
        if by_rank.as_ref().is_some_and(|(group, _)| level || self.window_breaks(from, *group)) {
            return;
        }
        let release = from.release(self.live);
        let moved = std::mem::take(&mut self.classes.list[p].members);
        let first = self.classes.list[p].first;
        let shares = if by_rank.is_some() { Shares::Shard(whole) } else { Shares::Piece(whole) };
        let into = &mut self.classes.list[w];
        into.first = into.first.min(first);
        into.others = into.others.max(release);
        for mut m in moved {
            self.classes.of[m.value] = Some(w as u32);
            m.offset = m.offset + offset.clone();
            m.by_rank = by_rank.clone().or(m.by_rank);
            if m.value == part {
                m.shares = shares;
            }
            into.members.push(m);
        }
    }

    /// Whether all of a class lies within a value, at this offset of it, whatever the sizes. The memory of an output is as
    /// large as the output is in that run.
    fn within(&self, class: &Class, offset: &Dim, by_rank: Option<&(GroupId, Dim)>, whole: ValueId) -> bool {
        let (graph, bytes) = (&self.program.graph, &self.program.bytes);
        class.members.iter().all(|m| {
            let mut end = m.offset.clone() + offset.clone() + bytes[m.value].clone();
            if let Some((group, stride)) = by_rank.or(m.by_rank.as_ref()) {
                let ranks = graph.group_size(*group).map_or(1, i64::from);
                end = end + stride.clone() * Dim::from(ranks.max(1) - 1);
            }
            end.provably_le(&bytes[whole], &graph.symbols)
        })
    }

    /// Whether a value of a class would lie elsewhere on ranks that find it in a window, if the class lay by rank in a
    /// group.
    fn window_breaks(&self, class: &Class, group: GroupId) -> bool {
        let graph = &self.program.graph;
        let uses = |w: &&InWindow| class.members.iter().any(|m| m.value == w.value);
        let own = |w: &InWindow| w.gathered && graph.cells(w.group) == graph.cells(group);
        self.windows.iter().filter(uses).any(|w| !own(w) && !graph.level(group, w.group))
    }

    /// The results of a step that allows it over operands that it reads last.
    fn overwrite(&mut self, s: usize) {
        let (program, step) = (self.program, &self.steps.list[s]);
        let operands = step.operands(&program.graph, &program.base);
        for &result in &step.writes {
            let Some(r) = self.classes.of[result] else { continue };
            let single = self.classes.list[r as usize].members.len() == 1;
            let mut able: Vec<&Operand> =
                operands.iter().filter(|o| o.allows(&program.graph, result)).collect();
            // A value that nodes add to one after another stays in one place.
            able.sort_by_key(|o| program.graph.def_node(result) != Some(o.node));
            let over = able.into_iter().find_map(|o| {
                let base = self.dying(o.value, s)?;
                let class = self.classes.of[base]?;
                let mut bases = operands.iter().map(|o| program.base[o.value]);
                let apart = bases.all(|b| b == base || self.classes.of[b] != Some(class));
                let covers = self.covers(&operands, base, result);
                (apart && covers && self.mergeable(class, r)).then_some(base)
            });
            if let (Some(base), true) = (over, single) {
                self.write_over(base, result);
            }
        }
    }

    /// Whether every operand that has bytes of `base` has exactly the elements of the result, and is one that the result may
    /// lie on.
    fn covers(&self, operands: &[Operand], base: ValueId, result: ValueId) -> bool {
        let graph = &self.program.graph;
        let ty = graph.ty(result);
        let same = |v: ValueId| {
            let of = graph.ty(v);
            self.program.whole[v] && of.shape == ty.shape && of.dtype.size() == ty.dtype.size()
        };
        let on = |o: &Operand| o.allows(graph, result) && same(o.value);
        operands.iter().all(|o| self.program.base[o.value] != base || on(o))
    }

    /// Inputs in the memory of the outputs that replace them, where nothing reads the input any more once the first value
    /// is written there.
    fn replace(&mut self) {
        let graph = &self.program.graph;
        for output in &graph.outputs {
            let OutputKind::Mutates(input) = output.kind else { continue };
            let old = graph.inputs[input].value;
            let Some(c) = self.classes.of[output.value] else { continue };
            let first = self.classes.list[c as usize].first;
            let last = self.live.readers.of(old).last().copied();
            let reads = last == Some(first);
            if self.program.symmetric[old] || last > Some(first) || !self.live.settled_at(old, first) {
                continue;
            }
            if reads {
                let step = &self.steps.list[first as usize];
                let operands = step.operands(graph, &self.program.base);
                // The value that this step writes, at the start of the memory.
                let begins = |m: &Member| self.steps.def[m.value] == Some(first) && m.offset == Dim::from(0);
                let members = &self.classes.list[c as usize].members;
                let over = members.iter().position(begins).filter(|&m| {
                    members[m].by_rank.is_none() && self.covers(&operands, old, members[m].value)
                });
                match over {
                    Some(m) => self.classes.list[c as usize].members[m].shares = Shares::Over(old),
                    None => continue,
                }
            }
            let shares = Shares::Nothing;
            let class = &mut self.classes.list[c as usize];
            class.members.push(Member { value: old, offset: Dim::from(0), by_rank: None, shares });
            self.classes.of[old] = Some(c);
        }
    }

    /// Whether the class `r` of a result may take over the class `x` of an operand: both in one arena, or
    /// the result in its output.
    fn mergeable(&self, x: u32, r: u32) -> bool {
        let (x, r) = (&self.classes.list[x as usize], &self.classes.list[r as usize]);
        let sizes = x.size == r.size;
        sizes
            && match (x.space, r.space) {
                (MemorySpace::Output(_), _) => false,
                (space, MemorySpace::Output(_)) => {
                    space == MemorySpace::Arena(ArenaKind::Ordinary)
                        && self.within(x, &Dim::from(0), None, r.top)
                }
                (a, b) => a == b,
            }
    }

    fn write_over(&mut self, base: ValueId, result: ValueId) {
        let (Some(x), Some(r)) = (self.classes.of[base], self.classes.of[result]) else { return };
        let (x, r) = (x as usize, r as usize);
        let (space, step) = (self.classes.list[r].space, self.classes.list[r].top_step);
        let mut moved = std::mem::take(&mut self.classes.list[r].members);
        if let Some(m) = moved.first_mut() {
            m.shares = Shares::Over(base);
        }
        let class = &mut self.classes.list[x];
        class.space = space;
        (class.top, class.top_step) = (result, step);
        // The operand has no later use, so what it occupied is released with this step.
        class.others = class.others.max(self.live.joined[step as usize]);
        class.members.append(&mut moved);
        self.classes.of[result] = Some(x as u32);
    }
}
