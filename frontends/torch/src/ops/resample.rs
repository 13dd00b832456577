//! Upsampling and sampling at given coordinates. See [`symmc_import::resampling`].

use symmc_import::grid_sampling::{GridConvention, GridFilter, GridPadding, GridSampling, sample_grid};
use symmc_import::resampling::{
    AxisResampling, CoordinateTransform, PositionRounding, Resampling, ResamplingFilter, ResamplingStep,
    resample, resample_gradient,
};
use symmc_import::{Emit, invalid, invalid_if, unsupported};
use symmc_ir::{Dim, Scalar};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};
use crate::schema::Argument;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row(
        "aten.upsample_nearest1d aten.upsample_nearest2d aten.upsample_nearest3d",
        "reshape, expand; take",
        |c| upsample(c, NEAREST),
    ),
    row(
        "aten._upsample_nearest_exact1d aten._upsample_nearest_exact2d aten._upsample_nearest_exact3d",
        "reshape, expand; take",
        |c| upsample(c, NEAREST_EXACT),
    ),
    row("aten.upsample_linear1d aten.upsample_bilinear2d aten.upsample_trilinear3d", "take, mul, add", |c| {
        upsample(c, LINEAR)
    }),
    row("aten.upsample_bicubic2d", "take, mul, add", |c| upsample(c, CUBIC)),
    row("aten._upsample_bilinear2d_aa", "matmul", |c| upsample(c, LINEAR.antialiased())),
    row("aten._upsample_bicubic2d_aa", "matmul", |c| upsample(c, SMOOTH_CUBIC)),
    row(
        "aten.upsample_nearest1d_backward aten.upsample_nearest2d_backward aten.upsample_nearest3d_backward",
        "sum; matmul",
        |c| upsample_backward(c, NEAREST),
    ),
    row(
        "aten._upsample_nearest_exact1d_backward aten._upsample_nearest_exact2d_backward \
         aten._upsample_nearest_exact3d_backward",
        "sum; matmul",
        |c| upsample_backward(c, NEAREST_EXACT),
    ),
    row(
        "aten.upsample_linear1d_backward aten.upsample_bilinear2d_backward aten.upsample_trilinear3d_backward",
        "matmul",
        |c| upsample_backward(c, LINEAR),
    ),
    row("aten.upsample_bicubic2d_backward", "matmul", |c| upsample_backward(c, CUBIC)),
    row("aten._upsample_bilinear2d_aa_backward", "matmul", |c| upsample_backward(c, LINEAR.antialiased())),
    row("aten._upsample_bicubic2d_aa_backward", "matmul", |c| upsample_backward(c, SMOOTH_CUBIC)),
    row("aten.grid_sampler aten.grid_sampler_2d aten.grid_sampler_3d", "gather, mul, add", grid_sample),
];

/// The coefficient of cubic filters, and that of cubic filters with antialiasing.
const CUBIC_COEFFICIENT: f64 = -0.75;
const SMOOTH_CUBIC_COEFFICIENT: f64 = -0.5;

/// What the name of an operator says.
#[derive(Clone, Copy)]
struct UpsamplingKind {
    filter: ResamplingFilter,
    transform: CoordinateTransform,
    antialias: bool,
}

impl UpsamplingKind {
    const fn antialiased(self) -> Self {
        UpsamplingKind { antialias: true, ..self }
    }

    fn resampling(self) -> Resampling {
        Resampling { antialias: self.antialias, ..Resampling::new(self.filter) }
    }
}

const HALF_PIXEL: CoordinateTransform = CoordinateTransform::HalfPixel { offset: 0.0 };
const NEAREST: UpsamplingKind = UpsamplingKind {
    filter: ResamplingFilter::Nearest(PositionRounding::Floor),
    transform: CoordinateTransform::Asymmetric,
    antialias: false,
};
const NEAREST_EXACT: UpsamplingKind =
    UpsamplingKind { transform: CoordinateTransform::PixelCenters, ..NEAREST };
const LINEAR: UpsamplingKind =
    UpsamplingKind { filter: ResamplingFilter::Linear, transform: HALF_PIXEL, antialias: false };
const CUBIC: UpsamplingKind = UpsamplingKind { filter: ResamplingFilter::Cubic(CUBIC_COEFFICIENT), ..LINEAR };
const SMOOTH_CUBIC: UpsamplingKind =
    UpsamplingKind { filter: ResamplingFilter::Cubic(SMOOTH_CUBIC_COEFFICIENT), antialias: true, ..LINEAR };

/// The factors by which the call multiplies extents, for each of `n` axes.
fn stated_scales(c: &OpCall<'_, '_>, n: usize) -> RuleResult<Vec<Option<f64>>> {
    if let Some(argument) = c.get("scale_factors") {
        return match argument {
            Argument::Floats(factors) if factors.len() == n => {
                Ok(factors.iter().map(|&factor| Some(factor)).collect())
            }
            Argument::Ints(factors) if factors.len() == n => {
                Ok(factors.iter().map(|&factor| Some(factor as f64)).collect())
            }
            Argument::SymFloats(_) | Argument::SymInts(_) => unsupported!("`scale_factors` is symbolic"),
            other => invalid!("expected {n} numbers as `scale_factors`, found {}", other.describe()),
        };
    }
    let names: &[&str] = if n == 1 { &["scales"] } else { &["scales_d", "scales_h", "scales_w"] };
    let scales = names[names.len() - n..].iter().map(|name| c.opt_scalar(name));
    let scales = scales.collect::<RuleResult<Vec<_>>>()?;
    Ok(scales.into_iter().map(|scale| scale.map(Scalar::as_f64)).collect())
}

/// The resampling of the last axes of an operand of the shape `from` to these extents.
fn resampled_axes(
    c: &OpCall<'_, '_>,
    kind: UpsamplingKind,
    from: &[Dim],
    to: &[Dim],
) -> RuleResult<Vec<AxisResampling>> {
    let n = to.len();
    let scales = stated_scales(c, n)?;
    let align_corners = c.bool_or("align_corners", false)?;
    let is_aligned = align_corners && !kind.antialias;
    let transform = if is_aligned { CoordinateTransform::AlignCorners } else { kind.transform };
    let mut axes = Vec::with_capacity(n);
    for (i, (count, scale)) in to.iter().zip(scales).enumerate() {
        let axis = from.len() - n + i;
        let extent = &from[axis];
        invalid_if!(
            c.dim_bounds(count).1 < 1 || c.dim_bounds(extent).1 < 1,
            "expected at least one element, found {extent:?} and {count:?}"
        );
        // PyTorch ignores scales if the extents are equal, and with a double number of nearest neighbours.
        let is_nearest = matches!(kind.filter, ResamplingFilter::Nearest(_));
        let is_identity = count == extent && (is_nearest || scale.is_none_or(|scale| scale == 1.0));
        if is_identity && !kind.antialias {
            continue;
        }
        let is_double = is_nearest && *count == extent.clone() * Dim::from(2);
        let step = match scale.filter(|scale| *scale > 0.0 && !is_double) {
            // PyTorch's kernels with antialiasing take the distance of aligned corners, and centers of pixels.
            _ if align_corners && kind.antialias => match (extent.as_const(), count.as_const()) {
                (Some(extent), Some(count)) => {
                    ResamplingStep::Factor((extent - 1) as f64 / (count - 1).max(1) as f64)
                }
                _ => return unsupported!("align_corners with antialiasing and symbolic extents"),
            },
            Some(scale) => ResamplingStep::Factor(1.0 / scale),
            None => ResamplingStep::Extents,
        };
        axes.push(AxisResampling { axis, count: count.clone(), step, transform });
    }
    Ok(axes)
}

/// The number of axes that an operator on `[batch, channels, ...]` resamples.
fn resampled_rank(c: &OpCall<'_, '_>, rank: usize) -> RuleResult<usize> {
    let n = super::windows::axes_in_name(c);
    invalid_if!(n == 0 || rank != n + 2, "expected {} axes, found {rank}", n + 2);
    Ok(n)
}

fn upsample(c: &mut OpCall<'_, '_>, kind: UpsamplingKind) -> EmitResult {
    let x = c.first_tensor()?;
    let shape = c.shape(x);
    let n = resampled_rank(c, shape.len())?;
    // The sizes are those of the result, also where the call has factors.
    c.ignore(&["output_size"]);
    let mut to = c.declared_result_type(0)?.shape;
    invalid_if!(
        to.len() != n + 2 || to[..2] != shape[..2],
        "expected a result with the batch and the channels of {shape:?}, found {to:?}"
    );
    let to = to.split_off(2);
    let axes = resampled_axes(c, kind, &shape, &to)?;
    resample(c, x, &axes, kind.resampling())
}

fn upsample_backward(c: &mut OpCall<'_, '_>, kind: UpsamplingKind) -> EmitResult {
    let gradient = c.first_tensor()?;
    let shape = c.dims("input_size")?;
    let n = resampled_rank(c, shape.len())?;
    let to = c.dims("output_size")?;
    invalid_if!(
        to.len() != n || c.shape(gradient).get(2..) != Some(to.as_slice()),
        "expected a gradient with the extents {to:?}, found {:?}",
        c.shape(gradient)
    );
    let axes = resampled_axes(c, kind, &shape, &to)?;
    resample_gradient(c, gradient, &shape, &axes, kind.resampling())
}

/// The elements of the operand at the coordinates of a grid.
fn grid_sample(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, grid] = c.tensors_named(["input", "grid"])?;
    let filter = match c.int("interpolation_mode")? {
        0 => GridFilter::Linear,
        1 => GridFilter::Nearest,
        2 => GridFilter::Cubic(CUBIC_COEFFICIENT),
        other => return invalid!("expected interpolation_mode 0, 1 or 2, found {other}"),
    };
    let padding = match c.int("padding_mode")? {
        0 => GridPadding::Zeros,
        1 => GridPadding::Border,
        2 => GridPadding::Reflection,
        other => return invalid!("expected padding_mode 0, 1 or 2, found {other}"),
    };
    let align_corners = c.bool_or("align_corners", false)?;
    sample_grid(
        c,
        x,
        grid,
        GridSampling { convention: GridConvention::PyTorch, filter, padding, align_corners },
    )
}
