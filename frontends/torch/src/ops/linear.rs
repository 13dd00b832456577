//! Matrix products in PyTorch's many forms, as batched `matmul` with views around it.

use symmc_ir::{BinaryOp, Dim, Emit, Reduction, ValueId};

use super::{Row, row};
use crate::call::{Call, Operand};
use crate::lower::{Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
    row("aten.linear", "matmul, add", linear),
    row("aten.mm", "matmul", |c| product(c, "mat2")),
    row("aten.bmm", "matmul", |c| product(c, "mat2")),
    row("aten.mv", "matmul, reshape", |c| product(c, "vec")),
    row("aten.dot", "matmul, reshape", |c| product(c, "tensor")),
    row("aten.vdot", "matmul, reshape", |c| product(c, "other")),
    row("aten.matmul", "matmul, reshape", |c| product(c, "other")),
    row("aten.linalg_matmul", "matmul, reshape", |c| product(c, "other")),
    row("aten.addmm", "matmul, add", |c| add_product(c, "mat1", "mat2")),
    row("aten.addmv", "matmul, add", |c| add_product(c, "mat", "vec")),
    row("aten.baddbmm", "matmul, add", |c| add_product(c, "batch1", "batch2")),
    row("aten.outer", "matmul", |c| {
        let (x, y) = (c.tensor("self")?, c.tensor("vec2")?);
        let (x, y) = (c.unsqueeze(x, 1)?, c.unsqueeze(y, 0)?);
        let z = c.matmul(x, y)?;
        c.done(z)
    }),
    row("aten.einsum", "permute, reshape, matmul", einsum),
];

fn linear(c: &mut Call<'_, '_>) -> Lowered {
    let (x, w) = (c.tensor("input")?, c.tensor("weight")?);
    let bias = c.opt_tensor("bias")?;
    let y = match c.rank(w) {
        1 => c.product(x, w)?,
        _ => {
            let w = c.transposed(w)?;
            c.product(x, w)?
        }
    };
    let y = match bias {
        Some(b) => c.binary(BinaryOp::Add, y, b)?,
        None => y,
    };
    c.done(y)
}

fn product(c: &mut Call<'_, '_>, other: &str) -> Lowered {
    let (x, y) = (c.first()?, c.tensor(other)?);
    let z = c.product(x, y)?;
    c.done(z)
}

/// `beta * self + alpha * (x @ y)`.
fn add_product(c: &mut Call<'_, '_>, x: &str, y: &str) -> Lowered {
    let (bias, x, y) = (c.first()?, c.tensor(x)?, c.tensor(y)?);
    let (beta, alpha) = (c.float_or("beta", 1.0)?, c.float_or("alpha", 1.0)?);
    let mut z = c.product(x, y)?;
    if alpha != 1.0 {
        z = c.with_float(BinaryOp::Mul, z, alpha)?;
    }
    if beta != 0.0 {
        let bias = if beta == 1.0 { bias } else { c.with_float(BinaryOp::Mul, bias, beta)? };
        let dtype = c.dtype(z);
        z = c.apply(BinaryOp::Add, &Operand::Tensor(z), &Operand::Tensor(bias), dtype)?;
    }
    c.done(z)
}

/// One or two operands without repeated labels or dots, as one matrix product: labels of both operands are
/// batch axes if the result has them and inner axes if not; labels of one operand that the result lacks
/// are summed first.
fn einsum(c: &mut Call<'_, '_>) -> Lowered {
    let equation = c.opt_string("equation")?.unwrap_or("").replace(' ', "");
    let unsupported = || Stop::Opaque(format!("the equation {equation}"));
    let (inputs, output) = equation.split_once("->").ok_or_else(unsupported)?;
    let terms: Vec<Vec<char>> = inputs.split(',').map(|t| t.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    let tensors = c.tensors("tensors")?;
    let distinct =
        |t: &Vec<char>| t.iter().enumerate().all(|(i, l)| l.is_ascii_alphabetic() && !t[..i].contains(l));
    let known = output.iter().all(|l| terms.iter().any(|t| t.contains(l)));
    if !known || !terms.iter().all(distinct) || !distinct(&output) || terms.len() != tensors.len() {
        return Err(unsupported());
    }
    for (t, &x) in terms.iter().zip(&tensors) {
        if c.rank(x) != t.len() {
            return Err(Stop::Broken(format!(
                "expected {} axes for `{equation}`, found {}",
                t.len(),
                c.rank(x)
            )));
        }
    }
    let (z, labels) = match (terms.as_slice(), tensors.as_slice()) {
        ([t], [x]) => sum_out(c, *x, t, |l| output.contains(&l))?,
        ([s, t], [x, y]) => {
            let (x, s) = sum_out(c, *x, s, |l| output.contains(&l) || t.contains(&l))?;
            let (y, t) = sum_out(c, *y, t, |l| output.contains(&l) || s.contains(&l))?;
            contract(c, (x, &s), (y, &t), &output)?
        }
        _ => return Err(unsupported()),
    };
    let perm = positions(&output, &labels);
    let z = c.permute(z, perm)?;
    c.done(z)
}

fn positions(wanted: &[char], labels: &[char]) -> Vec<usize> {
    wanted.iter().filter_map(|l| labels.iter().position(|m| m == l)).collect()
}

/// `x` summed over the labels that are not kept.
fn sum_out(
    c: &mut Call<'_, '_>,
    x: ValueId,
    labels: &[char],
    keep: impl Fn(char) -> bool,
) -> Lowered<(ValueId, Vec<char>)> {
    let axes: Vec<usize> = (0..labels.len()).filter(|&i| !keep(labels[i])).collect();
    let left = labels.iter().copied().filter(|&l| keep(l)).collect();
    let x = if axes.is_empty() { x } else { c.reduce(Reduction::Sum, x, axes, false)? };
    Ok((x, left))
}

/// The product of two operands over the labels that the output lacks.
fn contract(
    c: &mut Call<'_, '_>,
    (x, s): (ValueId, &[char]),
    (y, t): (ValueId, &[char]),
    output: &[char],
) -> Lowered<(ValueId, Vec<char>)> {
    let pick = |from: &[char], holds: &dyn Fn(char) -> bool| -> Vec<char> {
        from.iter().copied().filter(|&l| holds(l)).collect()
    };
    let batch = pick(s, &|l| t.contains(&l) && output.contains(&l));
    let inner = pick(s, &|l| t.contains(&l) && !output.contains(&l));
    let left = pick(s, &|l| !t.contains(&l));
    let right = pick(t, &|l| !s.contains(&l));
    let extent = |c: &Call<'_, '_>, v: ValueId, labels: &[char], l: char| -> Dim {
        labels.iter().position(|m| *m == l).and_then(|i| c.ty(v).shape.get(i).cloned()).unwrap_or(1.into())
    };
    let dims = |c: &Call<'_, '_>, v, from: &[char], which: &[char]| -> Vec<Dim> {
        which.iter().map(|&l| extent(c, v, from, l)).collect()
    };
    let count = |dims: &[Dim]| dims.iter().cloned().fold(Dim::from(1), |a, b| a * b);
    let (b, l, r, k) =
        (dims(c, x, s, &batch), dims(c, x, s, &left), dims(c, y, t, &right), dims(c, x, s, &inner));
    let x = c.permute(x, positions(&[&batch[..], &left, &inner].concat(), s))?;
    let y = c.permute(y, positions(&[&batch[..], &inner, &right].concat(), t))?;
    let x = c.reshape(x, [&b[..], &[count(&l), count(&k)]].concat())?;
    let y = c.reshape(y, [&b[..], &[count(&k), count(&r)]].concat())?;
    let z = c.matmul(x, y)?;
    let z = c.reshape(z, [&b[..], &l, &r].concat())?;
    Ok((z, [&batch[..], &left, &right].concat()))
}
