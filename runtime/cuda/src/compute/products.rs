//! Products of few rows together with the element-wise steps that alone read their results, as one kernel.
//!
//! [`find`] looks for them in a list, [`lower`] makes the kernel: the products of one left matrix side by side, then
//! the steps on the sums of a position, each value rounded to its dtype as if it had been stored. A product of which
//! they read columns side by side, as halves of one weight are, counts as several. So the bits are
//! those of single steps with the same sums; products that the library or pairs of blocks would do by themselves may be
//! added up in another order here.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundStep, Home, Located, Work as StepWork};

use super::fuse::{self, Group, Member};
use super::map::{Map, Val};
use super::skinny::{self, MOST_PRODUCTS, Worth};
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
    let mut taken = 0;
    let lanes = group.steps.iter().all(|&s| list[s].lane == Lane::Compute);
    for place in (0..last).filter(|_| lanes) {
        let Some((operands, result)) = product(&list[place]) else { continue };
        let same_left = out.first().and_then(|&f| product(&list[f])).is_none_or(|(x, _)| {
            let place = |v: &Located| (v.home, v.offset);
            place(&x[0]) == place(&operands[0]) && x[0].strides == operands[0].strides
        });
        let readers = group.steps.iter().filter(|m| **m > place).flat_map(|&m| operands_of(&list[m]));
        let cuts = cuts(operands, result, readers, shape).len();
        let takes = same_left
            && (1..=MOST_PRODUCTS - taken).contains(&cuts)
            && !fuse::is_read(list, place, &group.steps)
            // A wait for a step in between stands for this one too.
            && !awaited[place..last].contains(&true)
            && may_be_done_later(list, group, place, last, operands);
        if takes {
            out.push(place);
            taken += cuts;
        }
    }
    out
}

fn operands_of(step: &BoundStep) -> &[Located] {
    match &step.work {
        StepWork::Kernel { operands, .. } => operands,
        _ => &[],
    }
}

/// Columns of a product that are read element by element.
struct Cut {
    /// Those of the right matrix.
    right: Located,
    /// Where they would be stored.
    result: Located,
}

/// The columns of a product that `readers` read at the positions of `shape`, each once, in ascending order: all of
/// them, or as many as `shape` has.
fn cuts<'a>(
    operands: &[Located],
    result: &Located,
    readers: impl Iterator<Item = &'a Located>,
    shape: &[usize],
) -> SmallVec<[Cut; MOST_PRODUCTS]> {
    let Some(right) = operands.get(1) else { return SmallVec::new() };
    let mut firsts: SmallVec<[Option<usize>; MOST_PRODUCTS]> = SmallVec::new();
    for x in readers {
        let first = match first_column(result, x, shape) {
            _ if fuse::same_places(result, x, shape) => None,
            Some(first) if right.shape.len() == 2 => Some(first),
            _ => continue,
        };
        if !firsts.contains(&first) {
            firsts.push(first);
        }
    }
    firsts.sort_unstable();
    let cut = |first: Option<usize>| {
        let mut cut = Cut { right: right.clone(), result: result.clone() };
        if let Some(first) = first {
            let size = result.dtype.size();
            (cut.right.shape[1], cut.result.shape[1]) = (shape[1], shape[1]);
            cut.right.offset =
                right.offset.wrapping_add_signed(first as isize * right.strides[1] * size as isize);
            cut.result.offset += first * size;
        }
        cut
    };
    firsts.into_iter().map(cut).collect()
}

/// The first of the columns of a matrix, stored row by row, that `x` is at the positions of `shape`.
fn first_column(matrix: &Located, x: &Located, shape: &[usize]) -> Option<usize> {
    let (&[rows, columns], &[m, n]) = (&matrix.shape[..], shape) else { return None };
    let bytes = x.offset.checked_sub(matrix.offset)?;
    let first = bytes / matrix.dtype.size();
    let fits = (x.home, x.dtype, x.by_rank, &x.strides)
        == (matrix.home, matrix.dtype, matrix.by_rank, &matrix.strides)
        && *x.shape == *shape
        && matrix.strides[..] == [columns as isize, 1]
        && rows == m
        && bytes.is_multiple_of(matrix.dtype.size())
        && first + n <= columns;
    fits.then_some(first)
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
        StepWork::Custom { .. } | StepWork::Collective(_) | StepWork::Dispatch(_) => false,
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
    lower_parts(&parts(list, whole), Worth::Asked, at, machine, source, sites)
}

/// The kernel of a dispatch, in whose steps each product and each element-wise one stands; `None` where their layouts do not
/// allow one.
///
/// # Errors
/// As [`super::lower`].
pub fn lower_dispatch(
    steps: &[Step<'_>],
    at: &dyn Fn(&Located) -> Address,
    machine: &Machine,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Option<Work>, CudaError> {
    fn part(step: Step<'_>) -> Option<Part<'_>> {
        Some(match step.op {
            Op::MatMul => Part::Product(step),
            _ => Part::Member(Member { step, stored: step.results.first()?.home != Home::Inner }),
        })
    }
    let parts: Vec<Part<'_>> = steps.iter().filter_map(|step| part(*step)).collect();
    lower_parts(&parts, Worth::Given, at, machine, source, sites)
}

fn lower_parts(
    parts: &[Part<'_>],
    worth: Worth,
    at: &dyn Fn(&Located) -> Address,
    machine: &Machine,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Option<Work>, CudaError> {
    let members: SmallVec<[Member<'_>; 8]> =
        parts.iter().filter_map(|p| if let Part::Member(m) = p { Some(*m) } else { None }).collect();
    let Some(shape) = members.first().and_then(|m| m.step.results.first()).map(|r| &r.shape) else {
        return Ok(None);
    };
    let readers = || members.iter().flat_map(|m| m.step.operands);
    let cut = |step: Step<'_>| cuts(step.operands, &step.results[0], readers(), shape);
    let cuts: SmallVec<[_; MOST_PRODUCTS]> = products_in(parts).map(cut).collect();
    if !fuse::fits(&members, shape) || !apart(parts, &cuts, shape) {
        return Ok(None);
    }
    let mut lowering = Lowering::new(at, machine, source, sites);
    let l = &mut lowering;
    let mut map = Map::over(shape);
    let mut known: Vec<(&Located, Val)> = Vec::with_capacity(parts.len());
    let mut gemms = SmallVec::<[_; MOST_PRODUCTS]>::new();
    let mut steady = true;
    let mut cut = cuts.iter();
    for part in parts {
        match part {
            Part::Product(step) => {
                super::arity(step.op, step.operands.len(), step.results.len())?;
                for Cut { right, result } in cut.next().into_iter().flatten() {
                    let Some(gemm) = matmul::one(&step.operands[0], right, result, l)? else {
                        return Ok(None);
                    };
                    let kind = stored(result.dtype);
                    known.push((result, map.compute(kind, format!("Put<{kind}>::of(sum[{}])", gemms.len()))));
                    steady &= l.is_steady(right);
                    gemms.push(gemm);
                }
            }
            Part::Member(member) => fuse::evaluate(&mut map, member, &mut known, shape, l)?,
        }
    }
    fuse::store(&mut map, &members, &known, shape, l);
    let Some(first) = gemms.first() else { return Ok(None) };
    match map.finish_products([first.m, first.n]) {
        Some(finish) => Ok(skinny::lower(&gemms, worth, steady, finish, l)),
        None => Ok(None),
    }
}

fn products_in<'a>(parts: &[Part<'a>]) -> impl Iterator<Item = Step<'a>> {
    parts.iter().filter_map(|p| if let Part::Product(step) = p { Some(*step) } else { None })
}

/// Whether what members read and write is columns of a product at the same positions, or apart from it. Columns of
/// which others are read as well may not be written.
fn apart(parts: &[Part<'_>], cuts: &[SmallVec<[Cut; MOST_PRODUCTS]>], shape: &[usize]) -> bool {
    products_in(parts).zip(cuts).all(|(product, cuts)| {
        let own = Span::of(&product.results[0]);
        let same = |v: &Located| cuts.iter().any(|c| fuse::same_places(&c.result, v, shape));
        let reads = |v: &Located| !Span::of(v).overlaps(&own) || same(v);
        let writes = |v: &Located| !Span::of(v).overlaps(&own) || cuts.len() == 1 && same(v);
        parts.iter().all(|other| match other {
            Part::Member(member) => {
                member.step.operands.iter().all(reads) && member.step.results.iter().all(writes)
            }
            Part::Product(_) => true,
        })
    })
}
