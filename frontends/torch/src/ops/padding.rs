//! Padding, and other arrangements of the elements of images. See [`symmc_import::padding`].

use symmc_import::padding::{AxisPadding, PaddingMode, pad_with_elements, pad_with_number, padding_gradient};
use symmc_import::{Emit, invalid, invalid_if, unsupported_if};
use symmc_ir::{Dim, Scalar, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.constant_pad_nd", "pad", pad_with_value),
    row("aten.pad", "pad; take", |c| match c.opt_string("mode")? {
        None | Some("constant") => pad_with_value(c),
        Some("reflect") => pad_axes(c, "pad", PaddingMode::Reflect),
        Some("replicate") => pad_axes(c, "pad", PaddingMode::Edge),
        Some("circular") => pad_axes(c, "pad", PaddingMode::Wrap),
        Some(other) => invalid!("expected mode constant, reflect, replicate or circular, found `{other}`"),
    }),
    row("aten.reflection_pad1d aten.reflection_pad2d aten.reflection_pad3d", "take", |c| {
        pad_axes(c, "padding", PaddingMode::Reflect)
    }),
    row("aten.replication_pad1d aten.replication_pad2d aten.replication_pad3d", "take", |c| {
        pad_axes(c, "padding", PaddingMode::Edge)
    }),
    row("aten._pad_circular", "take", |c| pad_axes(c, "pad", PaddingMode::Wrap)),
    row(
        "aten.reflection_pad1d_backward.default aten.reflection_pad2d_backward.default \
         aten.reflection_pad3d_backward.default",
        "index_put",
        |c| pad_backward(c, PaddingMode::Reflect),
    ),
    row(
        "aten.replication_pad1d_backward.default aten.replication_pad2d_backward.default \
         aten.replication_pad3d_backward.default",
        "index_put",
        |c| pad_backward(c, PaddingMode::Edge),
    ),
    row("aten.pixel_shuffle", "reshape, permute, reshape", |c| {
        let factor = c.int("upscale_factor")?;
        let block = ImageBlock::from_last_axes(c, factor)?;
        let channels = divide_exactly(&block.channels, factor.saturating_mul(factor))?;
        let split =
            [channels.clone(), factor.into(), factor.into(), block.height.clone(), block.width.clone()];
        let factor = Dim::from(factor);
        let joined = [channels, block.height.clone() * factor.clone(), block.width.clone() * factor];
        block.rearrange(c, &split, &[0, 3, 1, 4, 2], &joined)
    }),
    row("aten.pixel_unshuffle", "reshape, permute, reshape", |c| {
        let factor = c.int("downscale_factor")?;
        let block = ImageBlock::from_last_axes(c, factor)?;
        let height = divide_exactly(&block.height, factor)?;
        let width = divide_exactly(&block.width, factor)?;
        let split = [block.channels.clone(), height.clone(), factor.into(), width.clone(), factor.into()];
        let channels = block.channels.clone() * Dim::from(factor) * Dim::from(factor);
        block.rearrange(c, &split, &[0, 2, 4, 1, 3], &[channels, height, width])
    }),
    row("aten.channel_shuffle aten.native_channel_shuffle", "reshape, permute, reshape", channel_shuffle),
    row("aten.rot90", "take, permute", rotate),
];

/// Pairs of numbers (before, after), from the last axis on. Negative numbers remove elements.
fn read_paddings(c: &OpCall<'_, '_>, name: &str, rank: usize) -> RuleResult<Vec<AxisPadding>> {
    let pads = c.dims(name)?;
    invalid_if!(
        pads.len() % 2 != 0 || pads.len() / 2 > rank,
        "expected pairs for at most {rank} axes, found {pads:?}"
    );
    let pairs = pads.chunks(2).zip((0..rank).rev());
    Ok(pairs
        .map(|(pair, axis)| AxisPadding { axis, before: pair[0].clone(), after: pair[1].clone() })
        .collect())
}

fn pad_with_value(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let value = c.opt_scalar("value")?.unwrap_or(Scalar::Int(0));
    let paddings = read_paddings(c, "pad", c.rank(x))?;
    pad_with_number(c, x, &paddings, value)
}

/// Rejects paddings that read more than all elements of an axis.
fn check_reach(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    paddings: &[AxisPadding],
    mode: PaddingMode,
) -> RuleResult {
    for AxisPadding { axis, before, after } in paddings {
        let n = c.extent(x, *axis);
        let most = match mode {
            PaddingMode::Edge => continue,
            PaddingMode::Reflect => n - Dim::from(1),
            PaddingMode::Wrap => n,
        };
        for (removed, added) in [(before, after), (after, before)] {
            // The reflection is of the axis with all its elements.
            let room = most.clone() + removed.clone() - added.clone();
            unsupported_if!(
                mode == PaddingMode::Reflect
                    && c.dim_bounds(removed).0 < 0
                    && c.dim_bounds(added).1 > 0
                    && c.dim_bounds(&room).0 < 0,
                "a reflection of elements that are removed on the other side is not supported"
            );
        }
        for padding in [before, after] {
            c.require_at_most("padding", padding, &most)?;
        }
    }
    Ok(())
}

fn pad_axes(c: &mut OpCall<'_, '_>, name: &str, mode: PaddingMode) -> EmitResult {
    // Only constants have a value.
    c.ignore(&["value"]);
    let x = c.first_tensor()?;
    let paddings = read_paddings(c, name, c.rank(x))?;
    check_reach(c, x, &paddings, mode)?;
    pad_with_elements(c, x, &paddings, mode)
}

fn pad_backward(c: &mut OpCall<'_, '_>, mode: PaddingMode) -> EmitResult {
    let [gradient, x] = c.tensors_named(["grad_output", "self"])?;
    let shape = c.shape(x);
    let paddings = read_paddings(c, "padding", shape.len())?;
    padding_gradient(c, gradient, &shape, &paddings, mode)
}

fn divide_exactly(extent: &Dim, divisor: i64) -> RuleResult<Dim> {
    let quotient = extent.exact_div(&divisor.into());
    quotient
        .ok_or_else(|| RuleFailure::Invalid(format!("expected a multiple of {divisor}, found {extent:?}")))
}

/// An operand with channels, height and width as its last axes.
struct ImageBlock {
    x: ValueId,
    outer: Vec<Dim>,
    channels: Dim,
    height: Dim,
    width: Dim,
}

impl ImageBlock {
    fn from_last_axes(c: &OpCall<'_, '_>, factor: i64) -> RuleResult<ImageBlock> {
        let x = c.first_tensor()?;
        invalid_if!(!(1..1 << 31).contains(&factor), "expected a factor of at least 1, found {factor}");
        match c.shape(x).as_slice() {
            [outer @ .., channels, height, width] => Ok(ImageBlock {
                x,
                outer: outer.to_vec(),
                channels: channels.clone(),
                height: height.clone(),
                width: width.clone(),
            }),
            shape => invalid!("expected at least three axes, found {}", shape.len()),
        }
    }

    /// Splits the last axes, permutes the parts and joins them.
    fn rearrange(
        &self,
        c: &mut OpCall<'_, '_>,
        split: &[Dim],
        order: &[usize],
        joined: &[Dim],
    ) -> EmitResult {
        let n = self.outer.len();
        let y = c.reshape(self.x, [&self.outer, split].concat())?;
        let order = (0..n).chain(order.iter().map(|axis| n + axis)).collect();
        let y = c.permute(y, order)?;
        c.reshape(y, [&self.outer, joined].concat())
    }
}

/// Interleaves the channels of groups.
fn channel_shuffle(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let groups = c.int("groups")?;
    let shape = c.shape(x);
    invalid_if!(shape.len() < 3, "expected at least three axes, found {}", shape.len());
    invalid_if!(groups < 1, "expected at least one group, found {groups}");
    let each = divide_exactly(&shape[1], groups)?;
    let mut split = shape.clone();
    split.splice(1..2, [Dim::from(groups), each]);
    let y = c.reshape(x, split)?;
    let mut order: Vec<usize> = (0..=shape.len()).collect();
    order.swap(1, 2);
    let y = c.permute(y, order)?;
    c.reshape(y, shape)
}

/// Rotates the plane of two axes by `k` quarters of a turn, from the first axis towards the second.
fn rotate(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let dims = c.opt_ints("dims")?.unwrap_or_else(|| vec![0, 1]);
    let [first, second] = dims.as_slice() else {
        return invalid!("expected two axes to rotate, found {dims:?}");
    };
    let first = c.resolve_axis(*first, rank)?;
    let second = c.resolve_axis(*second, rank)?;
    invalid_if!(first == second || rank < 2, "expected two distinct axes to rotate, found {dims:?}");
    let quarters = c.int_or("k", 1)?.rem_euclid(4);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(first, second);
    match quarters {
        0 => Ok(x),
        1 => {
            let y = c.reverse_axis(x, second)?;
            c.permute(y, order)
        }
        2 => {
            let y = c.reverse_axis(x, first)?;
            c.reverse_axis(y, second)
        }
        _ => {
            let y = c.permute(x, order)?;
            c.reverse_axis(y, second)
        }
    }
}
