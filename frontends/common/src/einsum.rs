//! Sums of products by labels of axes (`ik,kj->ij`), as matrix products.

use symmc_ir::{Dim, ReductionKind, ValueId};

use crate::emit::{Emit, extent_product};
use crate::rule::{RuleFailure, RuleResult};

/// One or two operands without repeated labels or dots, as one matrix product: labels of both operands are
/// batch axes if the result has them and inner axes if not; labels of one operand that the result lacks
/// are summed first. Without an arrow the result has the labels that occur once, in alphabetical order. Fails if it is
/// another equation, an operand has another number of axes than its labels, or extents do not agree.
pub fn einsum<E: Emit>(c: &mut E, equation: &str, tensors: &[ValueId]) -> RuleResult<ValueId, E::Error> {
    let other = || Err(RuleFailure::Opaque(format!("the equation {equation}")));
    let equation = equation.replace(' ', "");
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, output.chars().collect::<Vec<char>>()),
        None => (equation.as_str(), labels_occurring_once(&equation)),
    };
    let terms: Vec<Vec<char>> = inputs.split(',').map(|t| t.chars().collect()).collect();
    let distinct =
        |t: &Vec<char>| t.iter().enumerate().all(|(i, l)| l.is_ascii_alphabetic() && !t[..i].contains(l));
    let known = output.iter().all(|l| terms.iter().any(|t| t.contains(l)));
    if !known || !terms.iter().all(distinct) || !distinct(&output) || terms.len() != tensors.len() {
        return other();
    }
    for (t, &x) in terms.iter().zip(tensors) {
        if c.rank(x) != t.len() {
            let (expected, found) = (t.len(), c.rank(x));
            return Err(c.invalid_node(format!("expected {expected} axes for `{equation}`, found {found}")));
        }
    }
    let (z, labels) = match (terms.as_slice(), tensors) {
        ([t], [x]) => sum_out_labels(c, *x, t, |l| output.contains(&l))?,
        ([s, t], [x, y]) => {
            let (x, s) = sum_out_labels(c, *x, s, |l| output.contains(&l) || t.contains(&l))?;
            let (y, t) = sum_out_labels(c, *y, t, |l| output.contains(&l) || s.contains(&l))?;
            contract_operands(c, (x, &s), (y, &t), &output)?
        }
        _ => return other(),
    };
    let perm = label_positions(&output, &labels);
    c.permute(z, perm)
}

/// The labels that occur once.
fn labels_occurring_once(equation: &str) -> Vec<char> {
    let mut labels: Vec<char> = equation.chars().filter(char::is_ascii_alphabetic).collect();
    labels.sort_unstable();
    let all = labels.clone();
    labels.retain(|l| all.iter().filter(|m| *m == l).count() == 1);
    labels
}

fn label_positions(wanted: &[char], labels: &[char]) -> Vec<usize> {
    wanted.iter().filter_map(|l| labels.iter().position(|m| m == l)).collect()
}

/// `x` summed over the labels that are not kept.
fn sum_out_labels<E: Emit>(
    c: &mut E,
    x: ValueId,
    labels: &[char],
    keep: impl Fn(char) -> bool,
) -> RuleResult<(ValueId, Vec<char>), E::Error> {
    let axes: Vec<usize> = (0..labels.len()).filter(|&i| !keep(labels[i])).collect();
    let left = labels.iter().copied().filter(|&l| keep(l)).collect();
    let x = if axes.is_empty() { x } else { c.reduce(ReductionKind::Sum, x, axes, false)? };
    Ok((x, left))
}

/// The product of two operands over the labels that the output lacks.
fn contract_operands<E: Emit>(
    c: &mut E,
    (x, s): (ValueId, &[char]),
    (y, t): (ValueId, &[char]),
    output: &[char],
) -> RuleResult<(ValueId, Vec<char>), E::Error> {
    let pick = |from: &[char], holds: &dyn Fn(char) -> bool| -> Vec<char> {
        from.iter().copied().filter(|&l| holds(l)).collect()
    };
    let batch = pick(s, &|l| t.contains(&l) && output.contains(&l));
    let inner = pick(s, &|l| t.contains(&l) && !output.contains(&l));
    let left = pick(s, &|l| !t.contains(&l));
    let right = pick(t, &|l| !s.contains(&l));
    let extent = |c: &E, v: ValueId, labels: &[char], l: char| -> Dim {
        labels.iter().position(|m| *m == l).and_then(|i| c.ty(v).shape.get(i).cloned()).unwrap_or(1.into())
    };
    let dims = |c: &E, v, from: &[char], which: &[char]| -> Vec<Dim> {
        which.iter().map(|&l| extent(c, v, from, l)).collect()
    };
    let (b, l, r, k) =
        (dims(c, x, s, &batch), dims(c, x, s, &left), dims(c, y, t, &right), dims(c, x, s, &inner));
    let x = c.permute(x, label_positions(&[&batch[..], &left, &inner].concat(), s))?;
    let y = c.permute(y, label_positions(&[&batch[..], &inner, &right].concat(), t))?;
    let x = c.reshape(x, [&b[..], &[extent_product(&l), extent_product(&k)]].concat())?;
    let y = c.reshape(y, [&b[..], &[extent_product(&k), extent_product(&r)]].concat())?;
    let z = c.matmul(x, y)?;
    let z = c.reshape(z, [&b[..], &l, &r].concat())?;
    Ok((z, [&batch[..], &left, &right].concat()))
}
