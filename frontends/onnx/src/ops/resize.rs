//! Resampling of axes. See [`symmc_import::resampling`].

use symmc_import::emit::extent_product;
use symmc_import::grid_sampling::{GridConvention, GridFilter, GridPadding, GridSampling, sample_grid};
use symmc_import::resampling::{
    AxisResampling, CoordinateTransform, PositionRounding, Resampling, ResamplingFilter, ResamplingStep,
    resample,
};
use symmc_import::{Emit, EmitFormulas, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{Dim, Scalar, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Resize", 19, "reshape, expand; take, mul, add", resize),
    row("Upsample", 9, "reshape, expand; take, mul, add", upsample),
    row("AffineGrid", 20, "matmul", affine_grid),
    row("GridSample", 22, "gather, mul, add", grid_sample),
];

/// The coefficient of cubic filters by default.
const CUBIC_COEFFICIENT: f64 = -0.75;

/// The size of an axis of the result.
#[derive(Clone)]
enum ResizeTarget {
    Scale(f64),
    Size(Dim),
}

/// The part of an axis that is resized, as parts of the distance between its first and last element.
struct CropBounds {
    start: f64,
    end: f64,
}

/// The coordinates that the attributes state.
struct ResizeMode {
    filter: ResamplingFilter,
    transform: String,
    excludes_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

fn upsample(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let scales = match c.opt_attribute_floats("scales")? {
        Some(scales) => scales,
        None => c.opt_floats(1, "scales")?.unwrap_or_default(),
    };
    let targets = scales.into_iter().map(ResizeTarget::Scale).collect();
    let filter = match c.opt_string("mode")? {
        None | Some("nearest") => ResamplingFilter::Nearest(PositionRounding::Floor),
        Some("linear") => ResamplingFilter::Linear,
        Some(other) => return invalid!("expected mode nearest or linear, found `{other}`"),
    };
    let mode = ResizeMode {
        filter,
        transform: "asymmetric".into(),
        excludes_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };
    resize_axes(c, x, &all_axes(c, x), targets, None, &mode)
}

fn all_axes(c: &OpCall<'_, '_>, x: ValueId) -> Vec<usize> {
    (0..c.rank(x)).collect()
}

fn resize(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let rank = c.rank(x);
    let mode = resize_mode(c)?;
    let axes = match c.opt_attribute_ints("axes")? {
        Some(axes) => axes.iter().map(|&a| c.resolve_axis(a, rank)).collect::<RuleResult<Vec<_>>>()?,
        None => all_axes(c, x),
    };
    invalid_if!(
        (1..axes.len()).any(|i| axes[..i].contains(&axes[i])),
        "expected distinct axes, found {axes:?}"
    );
    let (scales, sizes, roi) = match c.version {
        ..11 => (c.opt_floats(1, "scales")?, None, None),
        _ => {
            let is_cropped = mode.transform == "tf_crop_and_resize";
            let roi = if is_cropped { c.opt_floats(1, "roi")? } else { None };
            // Other coordinates do not depend on it.
            c.operand_name(1);
            (c.opt_floats(2, "scales")?, c.opt_ints(3, "the sizes")?, roi)
        }
    };
    let scales = scales.filter(|scales| !scales.is_empty());
    let sizes = sizes.map(|sizes| sizes.dims).filter(|sizes| !sizes.is_empty());
    let targets: Vec<ResizeTarget> = match (scales, sizes) {
        (Some(scales), None) => scales.into_iter().map(ResizeTarget::Scale).collect(),
        (None, Some(sizes)) => keep_aspect_ratio(c, x, &axes, sizes)?,
        _ => return invalid!("expected either scales or sizes"),
    };
    resize_axes(c, x, &axes, targets, roi, &mode)
}

fn resize_mode(c: &OpCall<'_, '_>) -> RuleResult<ResizeMode> {
    let excludes_outside = c.flag("exclude_outside")?;
    let antialias = c.flag("antialias")?;
    // ONNX's reference repeats the elements at the borders, and ONNX Runtime leaves out those beyond.
    unsupported_if!(antialias && !excludes_outside, "antialias without exclude_outside is not supported");
    let rounding = match c.opt_string("nearest_mode")? {
        // Before version 11 a position is rounded towards the start.
        None if c.version < 11 => PositionRounding::Floor,
        None | Some("round_prefer_floor") => PositionRounding::HalfDown,
        Some("round_prefer_ceil") => PositionRounding::HalfUp,
        Some("floor") => PositionRounding::Floor,
        Some("ceil") => PositionRounding::Ceil,
        Some(other) => return invalid!("expected a mode of rounding as `nearest_mode`, found `{other}`"),
    };
    let a = c.float_or("cubic_coeff_a", CUBIC_COEFFICIENT)?;
    let filter = match c.opt_string("mode")? {
        None | Some("nearest") => ResamplingFilter::Nearest(rounding),
        Some("linear") => ResamplingFilter::Linear,
        Some("cubic") => ResamplingFilter::Cubic(a),
        Some(other) => return invalid!("expected mode nearest, linear or cubic, found `{other}`"),
    };
    let default = if c.version < 11 { "asymmetric" } else { "half_pixel" };
    Ok(ResizeMode {
        filter,
        transform: c.opt_string("coordinate_transformation_mode")?.unwrap_or(default).to_string(),
        // Nearest neighbours are within the operand.
        excludes_outside,
        antialias,
        extrapolation: c.float_or("extrapolation_value", 0.0)?,
    })
}

/// The sizes of axes, changed so that all have the same scale if the node requests that.
fn keep_aspect_ratio(
    c: &OpCall<'_, '_>,
    x: ValueId,
    axes: &[usize],
    sizes: Vec<Dim>,
) -> RuleResult<Vec<ResizeTarget>> {
    let is_larger = match c.opt_string("keep_aspect_ratio_policy")? {
        None | Some("stretch") => return Ok(sizes.into_iter().map(ResizeTarget::Size).collect()),
        Some("not_larger") => false,
        Some("not_smaller") => true,
        Some(other) => {
            return invalid!("expected stretch, not_larger or not_smaller, found `{other}`");
        }
    };
    let mut scale = None;
    for (&axis, size) in axes.iter().zip(&sizes) {
        let (Some(size), Some(extent)) = (size.as_const(), c.extent(x, axis).as_const()) else {
            return unsupported!("keep_aspect_ratio_policy with symbolic sizes is not supported");
        };
        let axis_scale = size as f64 / extent as f64;
        scale = Some(scale.map_or(axis_scale, |scale: f64| {
            if is_larger { scale.max(axis_scale) } else { scale.min(axis_scale) }
        }));
    }
    let scale = scale.unwrap_or(1.0);
    let sizes = axes.iter().map(|&axis| {
        let extent = c.extent(x, axis).as_const().unwrap_or(1);
        ResizeTarget::Size(Dim::from((scale * extent as f64 + 0.5).floor() as i64))
    });
    Ok(sizes.collect())
}

/// The largest denominator of a scale of a symbolic extent.
const MAX_DENOMINATOR: i64 = 1024;

/// An extent times a scale, rounded down.
fn scaled_extent(extent: &Dim, scale: f64) -> RuleResult<Dim> {
    if let Some(extent) = extent.as_const() {
        // Scales are f32, and products are rounded to f32.
        return Ok(Dim::from(f64::from((extent as f64 * scale) as f32).floor() as i64));
    }
    let fraction = (1..=MAX_DENOMINATOR).find_map(|denominator| {
        let numerator = (scale * denominator as f64).round();
        let is_exact = (numerator / denominator as f64) as f32 == scale as f32;
        (is_exact && numerator >= 1.0).then_some((numerator as i64, denominator))
    });
    match fraction {
        Some((numerator, denominator)) => {
            Ok((extent.clone() * Dim::from(numerator)).floor_div(&denominator.into()))
        }
        None => unsupported!("the scale {scale} of a symbolic extent is not supported"),
    }
}

fn resize_axes(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axes: &[usize],
    targets: Vec<ResizeTarget>,
    roi: Option<Vec<f64>>,
    mode: &ResizeMode,
) -> EmitResult {
    invalid_if!(targets.len() != axes.len(), "expected {} sizes, found {}", axes.len(), targets.len());
    let is_cropped = mode.transform == "tf_crop_and_resize";
    if is_cropped && roi.as_ref().is_none_or(|roi| roi.len() != 2 * axes.len()) {
        return invalid!("expected {} numbers as roi, found {roi:?}", 2 * axes.len());
    }
    let mut resampled = Vec::new();
    for (i, (&axis, target)) in axes.iter().zip(targets).enumerate() {
        let extent = c.extent(x, axis);
        let crop = roi.as_ref().filter(|_| is_cropped);
        let crop = crop.map(|roi| CropBounds { start: roi[i], end: roi[axes.len() + i] });
        let is_whole = crop.as_ref().is_none_or(|crop| crop.start == 0.0 && crop.end == 1.0);
        let (count, step) = match target.clone() {
            ResizeTarget::Scale(scale) => {
                invalid_if!(!(scale > 0.0 && scale.is_finite()), "expected a positive scale, found {scale}");
                let part = crop.as_ref().map_or(1.0, |crop| crop.end - crop.start);
                (scaled_extent(&extent, scale * part)?, ResamplingStep::Divisor(scale))
            }
            ResizeTarget::Size(size) => {
                let step = match (size.as_const(), extent.as_const()) {
                    (Some(size), Some(extent)) => {
                        ResamplingStep::Divisor(f64::from(size as f32 / extent as f32))
                    }
                    _ => match size.exact_div(&extent).and_then(|factor| factor.as_const()) {
                        Some(factor) => ResamplingStep::Divisor(factor as f64),
                        None => ResamplingStep::Extents,
                    },
                };
                (size, step)
            }
        };
        invalid_if!(
            c.dim_bounds(&count).1 < 1,
            "expected at least one element, found {}",
            c.display_dim(&count)
        );
        if count == extent && is_whole && !matches!(step, ResamplingStep::Divisor(step) if step != 1.0) {
            continue;
        }
        let transform = coordinate_transform(c, mode, &extent, &count, (&target, &step), crop)?;
        resampled.push(AxisResampling { axis, count, step, transform });
    }
    let resampling = Resampling {
        filter: mode.filter,
        excludes_outside: mode.excludes_outside,
        antialias: mode.antialias,
        extrapolation: is_cropped.then_some(mode.extrapolation),
    };
    resample(c, x, &resampled, resampling)
}

fn coordinate_transform(
    c: &OpCall<'_, '_>,
    mode: &ResizeMode,
    extent: &Dim,
    count: &Dim,
    (target, step): (&ResizeTarget, &ResamplingStep),
    crop: Option<CropBounds>,
) -> RuleResult<CoordinateTransform> {
    let half_pixel = CoordinateTransform::HalfPixel { offset: 0.0 };
    Ok(match mode.transform.as_str() {
        "half_pixel" => half_pixel,
        "pytorch_half_pixel" => match c.dim_bounds(count) {
            (2.., _) => half_pixel,
            // The only element is the first one of the operand.
            (_, ..=1) => CoordinateTransform::AlignCorners,
            _ => return unsupported!("pytorch_half_pixel with a result of one element or several"),
        },
        "half_pixel_symmetric" => {
            let offset = match (step, count.as_const(), extent.as_const()) {
                (ResamplingStep::Divisor(scale), Some(count), Some(extent)) => {
                    // ONNX Runtime computes it in f32.
                    let adjustment = count as f32 / (*scale as f32 * extent as f32);
                    f64::from(extent as f32 / 2.0 * (1.0 - adjustment))
                }
                (ResamplingStep::Divisor(scale), ..) if scale.fract() == 0.0 => 0.0,
                (ResamplingStep::Extents, ..) => 0.0,
                _ => return unsupported!("half_pixel_symmetric with symbolic extents is not supported"),
            };
            CoordinateTransform::HalfPixel { offset }
        }
        "align_corners" => {
            if let (ResizeTarget::Scale(scale), Some(extent), Some(count)) =
                (target, extent.as_const(), count.as_const())
            {
                unsupported_if!(
                    (extent as f64 * scale - count as f64).abs() > 1e-4,
                    "align_corners with {extent} elements times {scale}, which is no integer, is not supported: \
                     the last element is defined in two ways"
                );
            }
            CoordinateTransform::AlignCorners
        }
        "asymmetric" => CoordinateTransform::Asymmetric,
        "tf_half_pixel_for_nn" => CoordinateTransform::PixelCenters,
        "tf_crop_and_resize" => {
            let Some(CropBounds { start, end }) = crop else {
                return Err(RuleFailure::Invalid("expected a roi, found none".into()));
            };
            CoordinateTransform::Crop { start, end }
        }
        other => return invalid!("expected a coordinate transformation of ONNX, found `{other}`"),
    })
}

/// The elements of the operand at the coordinates of a grid.
fn grid_sample(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, grid] = c.first_tensors()?;
    let filter = match c.opt_string("mode")? {
        None | Some("linear" | "bilinear") => GridFilter::Linear,
        Some("nearest") => GridFilter::Nearest,
        Some("cubic" | "bicubic") => GridFilter::Cubic(CUBIC_COEFFICIENT),
        Some(other) => return invalid!("expected mode linear, nearest or cubic, found `{other}`"),
    };
    let padding = match c.opt_string("padding_mode")? {
        None | Some("zeros") => GridPadding::Zeros,
        Some("border") => GridPadding::Border,
        Some("reflection") => GridPadding::Reflection,
        Some(other) => return invalid!("expected padding_mode zeros, border or reflection, found `{other}`"),
    };
    let align_corners = c.flag("align_corners")?;
    sample_grid(c, x, grid, GridSampling { convention: GridConvention::Onnx, filter, padding, align_corners })
}

/// The coordinates, from -1 to 1, of the elements of images of the sizes in operand 1, moved by affine maps.
fn affine_grid(c: &mut OpCall<'_, '_>) -> EmitResult {
    let maps = c.tensor(0)?;
    let dtype = c.dtype(maps);
    let sizes = c.ints(1, "the sizes")?.dims;
    let align_corners = c.flag("align_corners")?;
    let (Some(batch), Some(spatial)) = (sizes.first(), sizes.get(2..).filter(|axes| !axes.is_empty())) else {
        return invalid!("expected the sizes of a batch of images, found {} numbers", sizes.len());
    };
    let mut columns = Vec::new();
    // The last axis is the first coordinate.
    for (axis, extent) in spatial.iter().enumerate().rev() {
        let Some(n) = extent.as_const() else {
            return unsupported!("coordinates of images of symbolic sizes are not supported");
        };
        let positions = c.iota(extent.clone(), 0, 1, dtype.compute_dtype())?;
        let mut shape = vec![Dim::from(1); spatial.len() + 1];
        shape[axis] = extent.clone();
        let mut whole = spatial.to_vec();
        whole.push(1.into());
        columns.push(c.formula([positions], |[i]| {
            let coordinate = if align_corners {
                i * (2.0 / (n - 1).max(1) as f64) - 1.0
            } else {
                (i * 2.0 + 1.0) / n as f64 - 1.0
            };
            coordinate.cast(dtype).reshape(shape).expand(whole)
        })?);
    }
    let mut ones = spatial.to_vec();
    ones.push(1.into());
    columns.push(c.full(Scalar::Int(1), dtype, ones)?);
    let grid = c.concat(&columns, spatial.len())?;
    let points = extent_product(spatial);
    let coordinates = i64::try_from(spatial.len()).unwrap_or(i64::MAX);
    let mut shape = vec![batch.clone()];
    shape.extend(spatial.iter().cloned().chain([Dim::from(coordinates)]));
    c.formula([grid, maps], |[grid, maps]| {
        let points = grid.reshape(vec![points, (coordinates + 1).into()]);
        points.matmul(maps.permute(&[0, 2, 1])).reshape(shape)
    })
}
