//! Products of few rows together with the element-wise steps that alone read their results, as one kernel.
//!
//! [`find`] looks for them in a list, [`lower`] makes the kernel: the products of one left matrix side by side, then
//! the steps on the sums of a position, each value rounded to its dtype as if it had been stored. So the bits are
//! those of single steps with the same sums; products that the library would do by themselves may be added up in
//! another order here.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_planner::plan::Lane;
use symmc_runtime::exec::{BoundStep, Located, Work as StepWork};

use super::fuse::{self, Group, Member};
use super::map::{Map, Val};
use super::skinny::{self, MOST_PRODUCTS};
use super::spans::Span;
use super::text::stored;
use super::{Lowering, Machine, Sites, Step, matmul};
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::{Address, Work};

/// Products and what is done with their results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The products, by their places in the list, ascending. Their results are stored nowhere.
    pub products: Vec<usize>,
    /// The element-wise steps. The work of all is done in place of the last.
    pub group: Group,
}

/// Products that may be done together with element-wise steps: those of `groups`, and single ones.
pub fn find(list: &[BoundStep], groups: &[Group]) -> Vec<Finished> {
    let awaited = fuse::awaited(list);
    let grouped = |place: &usize| groups.iter().any(|g| g.steps.contains(place));
    let single = |place: usize| Group { steps: vec![place], stored: vec![true] };
    let singles = (0..list.len()).filter(|p| !grouped(p) && fuse::fusible(&list[*p]).is_some()).map(single);
    let of = |group: Group| {
        let products = products_of(list, &group, &awaited);
        (!products.is_empty()).then_some(Finished { products, group })
    };
    groups.iter().cloned().chain(singles).filter_map(of).collect()
}

fn product(step: &BoundStep) -> Option<(&[Located], &Located)> {
    match &step.work {
        StepWork::Kernel { op: Op::MatMul, operands, results } if step.lane == Lane::Compute => {
            Some((operands, results.first()?))
        }
        _ => None,
    }
}

/// The products whose results only this group reads, as many as fit one kernel.
fn products_of(list: &[BoundStep], group: &Group, awaited: &[bool]) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::new();
    let (Some(&last), Some(shape)) =
        (group.steps.last(), group.steps.first().and_then(|&s| fuse::fusible(&list[s])))
    else {
        return out;
    };
    let lanes = group.steps.iter().all(|&s| list[s].lane == Lane::Compute);
    for place in (0..last).filter(|_| lanes) {
        let Some((operands, result)) = product(&list[place]) else { continue };
        let same_left = out.first().and_then(|&f| product(&list[f])).is_none_or(|(x, _)| {
            let place = |v: &Located| (v.home, v.offset);
            place(&x[0]) == place(&operands[0]) && x[0].strides == operands[0].strides
        });
        let takes = same_left
            && out.len() < MOST_PRODUCTS
            && is_read_by(list, group, place, result, shape)
            && !fuse::is_read(list, place, &group.steps)
            // A wait for a step in between stands for this one too.
            && !awaited[place..last].contains(&true)
            && may_be_done_later(list, group, place, last, operands);
        if takes {
            out.push(place);
        }
    }
    out
}

/// Whether a member after `place` reads the result there element by element.
fn is_read_by(list: &[BoundStep], group: &Group, place: usize, result: &Located, shape: &[usize]) -> bool {
    let reads = |&member: &usize| match &list[member].work {
        StepWork::Kernel { operands, .. } => operands.iter().any(|x| fuse::same_places(result, x, shape)),
        _ => false,
    };
    group.steps.iter().filter(|m| **m > place).any(reads)
}

/// Whether the product at `place` gives the same after the group's last step: nothing in between but the group
/// writes what it reads, and the group itself stores nothing there.
fn may_be_done_later(
    list: &[BoundStep],
    group: &Group,
    place: usize,
    last: usize,
    operands: &[Located],
) -> bool {
    let spans: SmallVec<[Span; 2]> = operands.iter().map(Span::of).collect();
    let clean = |results: &[Located]| {
        results.iter().all(|r| {
            let own = Span::of(r);
            !spans.iter().any(|s| s.overlaps(&own))
        })
    };
    (place + 1..=last).all(|other| match &list[other].work {
        StepWork::Kernel { results, .. } => clean(results),
        StepWork::Custom { .. } | StepWork::Collective(_) => false,
    }) && group.steps.iter().filter(|s| **s < place).all(|&s| match &list[s].work {
        StepWork::Kernel { results, .. } => clean(results),
        _ => false,
    })
}

impl Finished {
    /// All steps, by their places in the list, ascending.
    pub fn places(&self) -> Vec<usize> {
        let mut out: Vec<usize> = self.products.iter().chain(&self.group.steps).copied().collect();
        out.sort_unstable();
        out
    }
}

/// A step of the whole.
#[derive(Clone, Copy)]
enum Part<'a> {
    Product(Step<'a>),
    Member(Member<'a>),
}

/// The steps, in the order of the list.
fn parts<'a>(list: &'a [BoundStep], whole: &Finished) -> Vec<Part<'a>> {
    let part = |place: usize| {
        let step = fuse::compute_step(list.get(place)?)?;
        let member = whole.group.steps.iter().position(|s| *s == place);
        Some(match member {
            Some(m) => Part::Member(Member { step, stored: whole.group.stored[m] }),
            None => Part::Product(step),
        })
    };
    whole.places().into_iter().filter_map(part).collect()
}

/// The kernel of products and their element-wise steps; `None` where their memory, shapes or layouts do not allow
/// one.
///
/// # Errors
/// As [`super::lower`].
pub fn lower(
    list: &[BoundStep],
    whole: &Finished,
    at: &dyn Fn(&Located) -> Address,
    machine: &Machine,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Option<Work>, CudaError> {
    let parts = &parts(list, whole)[..];
    let members: SmallVec<[Member<'_>; 8]> =
        parts.iter().filter_map(|p| if let Part::Member(m) = p { Some(*m) } else { None }).collect();
    let Some(shape) = members.first().and_then(|m| m.step.results.first()).map(|r| &r.shape) else {
        return Ok(None);
    };
    if !fuse::fits(&members, shape) || !apart(parts, shape) {
        return Ok(None);
    }
    let mut lowering = Lowering::new(at, machine, source, sites);
    let l = &mut lowering;
    let mut map = Map::over(shape);
    let mut known: Vec<(&Located, Val)> = Vec::with_capacity(parts.len());
    let mut gemms = SmallVec::<[_; MOST_PRODUCTS]>::new();
    let mut steady = true;
    for part in parts {
        match part {
            Part::Product(step) => {
                super::arity(step.op, step.operands.len(), step.results.len())?;
                let (x, y, result) = (&step.operands[0], &step.operands[1], &step.results[0]);
                let Some(gemm) = matmul::one(x, y, result, l)? else { return Ok(None) };
                let kind = stored(result.dtype);
                known.push((result, map.compute(kind, format!("Put<{kind}>::of(sum[{}])", gemms.len()))));
                steady &= l.is_steady(y);
                gemms.push(gemm);
            }
            Part::Member(member) => fuse::evaluate(&mut map, member, &mut known, shape, l)?,
        }
    }
    fuse::store(&mut map, &members, &known, shape, l);
    let Some(first) = gemms.first() else { return Ok(None) };
    match map.finish_products([first.m, first.n]) {
        Some(finish) => Ok(skinny::lower(&gemms, steady, finish, l)),
        None => Ok(None),
    }
}

/// Whether what members read is the result of a product at the same positions, or apart from it.
fn apart(parts: &[Part<'_>], shape: &[usize]) -> bool {
    parts.iter().all(|part| {
        let Part::Product(product) = part else { return true };
        let result = &product.results[0];
        let own = Span::of(result);
        parts.iter().all(|other| {
            let Part::Member(member) = other else { return true };
            let clean = |v: &Located| !Span::of(v).overlaps(&own) || fuse::same_places(result, v, shape);
            member.step.operands.iter().chain(member.step.results).all(clean)
        })
    })
}
