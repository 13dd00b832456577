//! Several element-wise steps as one kernel.
//!
//! [`groups`] finds steps of the compute lane over one iteration space, and which of their results somebody else
//! reads. Other steps may stand between them if they neither touch what the group writes nor write what it
//! reads. [`lower_fused`] makes one kernel of such a group: a value passes from step to step in a register, rounded to
//! its dtype as if it had been stored, so the bits are those of the single steps.
//!
//! A group must not tell from single steps: what one step stores and another reads lies exactly in the same
//! places, or apart. Where memory was reused otherwise, the steps stay single.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundStep, Located, Work as StepWork};

use super::map::{Map, Val};
use super::space::Strides;
use super::spans::{self, Span};
use super::{Lowering, Machine, Sites, Step, element};
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::{Address, Work};

/// The most steps of a group: its operands are parameters of one kernel.
const MOST_STEPS: usize = 16;

/// Steps that become one kernel, by their places in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The steps, ascending; at least two. The work of all is done in place of the last.
    pub steps: Vec<usize>,
    /// Whether each one's result is read by somebody else.
    pub stored: Vec<bool>,
}

/// A step of a group, and whether its result must be stored.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The step.
    pub step: Step<'a>,
    /// Whether its result is read by somebody else.
    pub stored: bool,
}

/// Whether a step can be part of a group: what is the same everywhere needs no operand.
fn joins(op: &Op) -> bool {
    op.is_element_wise() || matches!(op, Op::Full(_))
}

/// A step of the closed set, as it is lowered.
pub fn compute_step(step: &BoundStep) -> Option<Step<'_>> {
    match &step.work {
        StepWork::Kernel { op, operands, results } => Some(Step { index: step.index, op, operands, results }),
        _ => None,
    }
}

/// The groups of all element-wise steps of a list that may be fused with another one.
pub fn groups(list: &[BoundStep]) -> Vec<Group> {
    let awaited = awaited(list);
    let mut out = Vec::new();
    let mut now: Vec<usize> = Vec::new();
    for (place, step) in list.iter().enumerate().filter(|(_, s)| s.lane == Lane::Compute) {
        let joins = fusible(step).is_some_and(|shape| {
            now.last().is_none_or(|&l| fusible(&list[l]) == Some(shape)) && now.len() < MOST_STEPS
        });
        if !joins && (awaited[place] || !passes(list, &now, step)) {
            close(list, &mut now, &mut out);
        }
        if fusible(step).is_some() && (joins || now.is_empty()) {
            now.push(place);
            // Another lane waits for exactly this step: the work may not be done later.
            if awaited[place] {
                close(list, &mut now, &mut out);
            }
        }
    }
    close(list, &mut now, &mut out);
    out
}

/// For each step of a list, whether a step of another lane waits for it.
pub fn awaited(list: &[BoundStep]) -> Vec<bool> {
    let mut out = vec![false; list.len()];
    for step in list {
        for &wait in &step.waits {
            out[wait] |= list[wait].lane != step.lane;
        }
    }
    out
}

/// Whether the steps of an open group may be done after this one, which is not of the group and which no other
/// lane takes as a sign that they are done: it touches nothing that they write, and writes nothing that they read.
fn passes(list: &[BoundStep], group: &[usize], step: &BoundStep) -> bool {
    fusible(step).is_none() && group.iter().all(|&member| spans::commute(&list[member], step))
}

/// The iteration space of a step that can be part of a group.
pub(super) fn fusible(step: &BoundStep) -> Option<&[usize]> {
    match &step.work {
        StepWork::Kernel { op, results, .. } if joins(op) => Some(&results.first()?.shape),
        _ => None,
    }
}

fn close(list: &[BoundStep], now: &mut Vec<usize>, out: &mut Vec<Group>) {
    let steps = std::mem::take(now);
    if steps.len() > 1 {
        let stored = steps.iter().map(|&s| is_read(list, s, &steps)).collect();
        out.push(Group { steps, stored });
    }
}

/// Whether a step that is not of the group, or the caller, may read the result of `place`.
pub(super) fn is_read(list: &[BoundStep], place: usize, group: &[usize]) -> bool {
    match &list[place].work {
        StepWork::Kernel { results, .. } => spans::is_read(list, place, &Span::of(&results[0]), group),
        _ => true,
    }
}

/// What a group of steps does on the device, as one kernel; `None` where their memory or their shapes do not
/// allow it.
///
/// # Errors
/// As [`super::lower`].
pub fn lower_fused(
    members: &[Member<'_>],
    at: &dyn Fn(&Located) -> Address,
    machine: &Machine,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Option<Vec<Work>>, CudaError> {
    let Some(first) = members.first() else { return Ok(Some(Vec::new())) };
    let Some(shape) = first.step.results.first().map(|r| &r.shape) else { return Ok(None) };
    if !fits(members, shape) {
        return Ok(None);
    }
    let mut lowering = Lowering::new(at, machine, source, sites);
    let l = &mut lowering;
    let mut map = Map::over(shape);
    let mut known: Vec<(&Located, Val)> = Vec::with_capacity(members.len());
    for member in members {
        evaluate(&mut map, member, &mut known, shape, l)?;
    }
    store(&mut map, members, &known, shape, l);
    Ok(Some(map.finish("fused", l).into_iter().collect()))
}

/// Whether members have one shape, and their memory is apart or the same places.
pub(super) fn fits(members: &[Member<'_>], shape: &[usize]) -> bool {
    let fits =
        |m: &Member<'_>| joins(m.step.op) && m.step.results.first().is_some_and(|r| *r.shape == *shape);
    members.iter().all(fits) && apart(members, shape)
}

/// Puts the value of a member behind those that are known, each with where it would be stored.
pub(super) fn evaluate<'a>(
    map: &mut Map,
    member: &Member<'a>,
    known: &mut Vec<(&'a Located, Val)>,
    shape: &[usize],
    l: &mut Lowering<'_>,
) -> Result<(), CudaError> {
    let Step { index, op, operands, results } = member.step;
    super::arity(op, operands.len(), results.len())?;
    l.step = index;
    let mut values: SmallVec<[_; 3]> = SmallVec::new();
    for x in operands {
        let passed = known.iter().rev().find(|(r, _)| same_places(r, x, shape));
        let value = match passed {
            Some((_, value)) => *value,
            None => element::load(map, x, shape, l)?,
        };
        values.push((value, x.dtype));
    }
    let value = element::value(map, op, &values, results[0].dtype, l)?;
    known.push((&results[0], value));
    Ok(())
}

/// Stores the values that somebody else reads, unless a later one takes the place.
pub(super) fn store(
    map: &mut Map,
    members: &[Member<'_>],
    known: &[(&Located, Val)],
    shape: &[usize],
    l: &Lowering<'_>,
) {
    for (k, (result, value)) in known.iter().enumerate() {
        let stored = members.iter().any(|m| m.stored && std::ptr::eq(&m.step.results[0], *result));
        let again = known[k + 1..].iter().any(|(r, _)| same_places(r, result, shape));
        if stored && !again {
            map.store(l.at(result), Strides::from_slice(&result.strides), *value);
        }
    }
}

/// Whether `x`, broadcast over the space, is the elements of the result `r` at the same positions.
pub(super) fn same_places(r: &Located, x: &Located, shape: &[usize]) -> bool {
    let strides = |v: &Located| super::space::broadcast(shape, &v.shape, &v.strides);
    r.home == x.home
        && (r.offset, r.by_rank) == (x.offset, x.by_rank)
        && r.dtype == x.dtype
        && strides(r) == strides(x)
        && x.shape.iter().product::<usize>() == r.shape.iter().product::<usize>()
}

/// Whether what one member stores and what another reads or stores is the same places, or apart.
fn apart(members: &[Member<'_>], shape: &[usize]) -> bool {
    members.iter().enumerate().all(|(i, m)| {
        let result = &m.step.results[0];
        let own = Span::of(result);
        let clean = |v: &Located| !Span::of(v).overlaps(&own) || same_places(result, v, shape);
        let others = members.iter().enumerate().filter(|(j, _)| *j != i);
        members.iter().flat_map(|o| o.step.operands).all(clean)
            && others.map(|(_, o)| &o.step.results[0]).all(clean)
    })
}
