//! Einsum: sums of products over labelled axes (`ik,kj->ij`), lowered to matrix products.

use symmc_ir::{Dim, ReductionKind, ValueId};

use crate::emit::{Emit, extent_product};
use crate::failure::{RuleFailure, RuleResult};

/// Lowers an einsum of one or two operands to one matrix product.
///
/// Labels of both operands are batch axes if the result has them, and inner axes otherwise. Labels of one
/// operand that the result lacks are summed first. Without an arrow the result has the labels that occur
/// once, in alphabetical order.
///
/// Operands with a repeated label or with dots are unsupported. Fails if an operand's number of axes is not
/// that of its labels, or extents do not agree.
pub fn einsum<E: Emit>(c: &mut E, equation: &str, tensors: &[ValueId]) -> RuleResult<ValueId, E::Error> {
    let compact = equation.replace(' ', "");
    let (inputs, output) = match compact.split_once("->") {
        Some((inputs, output)) => (inputs, output.chars().collect::<Vec<char>>()),
        None => (compact.as_str(), labels_occurring_once(&compact)),
    };
    let terms: Vec<Vec<char>> = inputs.split(',').map(|t| t.chars().collect()).collect();
    let labels_known = output.iter().all(|l| terms.iter().any(|t| t.contains(l)));
    let distinct = terms.iter().chain([&output]).all(|t| has_distinct_letters(t));
    if !labels_known || !distinct || terms.len() != tensors.len() {
        return Err(unsupported_equation(equation));
    }
    for (t, &x) in terms.iter().zip(tensors) {
        if c.rank(x) != t.len() {
            let expected = t.len();
            let rank = c.rank(x);
            return Err(c.invalid_node(format!("expected {expected} axes for `{compact}`, found {rank}")));
        }
    }
    let (z, labels) = match (terms.as_slice(), tensors) {
        ([t], [x]) => sum_out_labels(c, *x, t, |l| output.contains(&l))?,
        ([s, t], [x, y]) => {
            let (x, s) = sum_out_labels(c, *x, s, |l| output.contains(&l) || t.contains(&l))?;
            let (y, t) = sum_out_labels(c, *y, t, |l| output.contains(&l) || s.contains(&l))?;
            contract_operands(c, (x, &s), (y, &t), &output)?
        }
        _ => return Err(unsupported_equation(equation)),
    };
    let perm = label_positions(&output, &labels);
    c.permute(z, perm)
}

fn unsupported_equation<E>(equation: &str) -> RuleFailure<E> {
    RuleFailure::Opaque(format!("the equation `{equation}` is not supported"))
}

fn has_distinct_letters(labels: &[char]) -> bool {
    labels.iter().enumerate().all(|(i, l)| l.is_ascii_alphabetic() && !labels[..i].contains(l))
}

fn labels_occurring_once(equation: &str) -> Vec<char> {
    let mut labels: Vec<char> = equation.chars().filter(char::is_ascii_alphabetic).collect();
    labels.sort_unstable();
    let all_labels = labels.clone();
    labels.retain(|l| all_labels.iter().filter(|m| *m == l).count() == 1);
    labels
}

fn label_positions(wanted: &[char], labels: &[char]) -> Vec<usize> {
    wanted.iter().filter_map(|l| labels.iter().position(|m| m == l)).collect()
}

/// Sums `x` over the labels that `keep` rejects. Returns the result and its labels.
fn sum_out_labels<E: Emit>(
    c: &mut E,
    x: ValueId,
    labels: &[char],
    keep: impl Fn(char) -> bool,
) -> RuleResult<(ValueId, Vec<char>), E::Error> {
    let axes: Vec<usize> = (0..labels.len()).filter(|&i| !keep(labels[i])).collect();
    let kept_labels = labels.iter().copied().filter(|&l| keep(l)).collect();
    let x = if axes.is_empty() { x } else { c.reduce(ReductionKind::Sum, x, axes, false)? };
    Ok((x, kept_labels))
}

/// The product of two operands over the labels that the output lacks. Returns the result and its labels.
fn contract_operands<E: Emit>(
    c: &mut E,
    (x, s): (ValueId, &[char]),
    (y, t): (ValueId, &[char]),
    output: &[char],
) -> RuleResult<(ValueId, Vec<char>), E::Error> {
    let shared: Vec<char> = s.iter().copied().filter(|l| t.contains(l)).collect();
    let batch: Vec<char> = shared.iter().copied().filter(|l| output.contains(l)).collect();
    let inner: Vec<char> = shared.iter().copied().filter(|l| !output.contains(l)).collect();
    let left_labels: Vec<char> = s.iter().copied().filter(|l| !t.contains(l)).collect();
    let right: Vec<char> = t.iter().copied().filter(|l| !s.contains(l)).collect();
    let batch_extents = label_extents(c, x, s, &batch);
    let left_extents = label_extents(c, x, s, &left_labels);
    let right_extents = label_extents(c, y, t, &right);
    let inner_extents = label_extents(c, x, s, &inner);
    let left_rows = extent_product(&left_extents);
    let right_columns = extent_product(&right_extents);
    let inner_length = extent_product(&inner_extents);
    let x = c.permute(x, label_positions(&[&batch[..], &left_labels, &inner].concat(), s))?;
    let y = c.permute(y, label_positions(&[&batch[..], &inner, &right].concat(), t))?;
    let x = c.reshape(x, [&batch_extents[..], &[left_rows, inner_length.clone()]].concat())?;
    let y = c.reshape(y, [&batch_extents[..], &[inner_length, right_columns]].concat())?;
    let z = c.matmul(x, y)?;
    let z = c.reshape(z, [&batch_extents[..], &left_extents, &right_extents].concat())?;
    Ok((z, [&batch[..], &left_labels, &right].concat()))
}

/// The extents of `wanted` axes of a value whose axes have these labels.
fn label_extents<E: Emit>(c: &E, v: ValueId, labels: &[char], wanted: &[char]) -> Vec<Dim> {
    let extents = wanted.iter().map(|label| {
        let axis = labels.iter().position(|l| l == label);
        axis.and_then(|i| c.ty(v).shape.get(i).cloned()).unwrap_or(1.into())
    });
    extents.collect()
}
