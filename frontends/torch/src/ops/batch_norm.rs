//! Batch and instance norms. See [`symmc_import::normalize`].

use symmc_import::normalize::{
    channel_moments, channel_norm_gradients, channel_numel, instance_norm, normalize_channels,
    unbiased_variance, updated_statistic,
};
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if};
use symmc_ir::{Dim, ReductionKind, Scalar, ValueId};

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("aten.batch_norm", "sub, mul, add", |c| {
        let training = c.bool_or("training", false)?;
        batch_norm(c, training, 1)
    }),
    row_of_results(
        "aten.native_batch_norm aten._native_batch_norm_legit aten._native_batch_norm_legit_functional",
        "sub, mul, add",
        |c| {
            let training = c.bool_or("training", false)?;
            batch_norm(c, training, 3)
        },
    ),
    row_of_results("aten._native_batch_norm_legit_no_training", "sub, mul, add", |c| batch_norm(c, false, 3)),
    row_of_results("aten.cudnn_batch_norm", "sub, mul, add", |c| {
        let training = c.bool_or("training", false)?;
        batch_norm(c, training, 4)
    }),
    row_of_results(
        "aten._batch_norm_with_update aten._batch_norm_with_update_functional",
        "sub, mul, add",
        |c| batch_norm(c, true, 4),
    ),
    row_of_results("aten._batch_norm_no_update", "sub, mul, add", |c| batch_norm(c, false, 4)),
    row_of_results("aten.native_batch_norm_backward", "mul, sum, sub", |c| {
        let training = c.bool_or("train", false)?;
        batch_norm_backward(c, training, "grad_out", "save_invstd")
    }),
    row_of_results("aten.batch_norm_backward", "mul, sum, sub", |c| {
        let training = c.bool_or("update", false)?;
        batch_norm_backward(c, training, "grad_out", "save_var")
    }),
    row_of_results("aten.cudnn_batch_norm_backward", "mul, sum, sub", |c| {
        batch_norm_backward(c, true, "grad_output", "save_var")
    }),
    row_of_results("aten.instance_norm", "layer_norm of channels, mul, add", instance_norm_with_statistics),
];

/// An argument that operators name in two ways.
fn float_of_either(c: &OpCall<'_, '_>, name: &str, other: &str, default: f64) -> RuleResult<f64> {
    if c.get(name).is_some() { c.float_or(name, default) } else { c.float_or(other, default) }
}

fn epsilon(c: &OpCall<'_, '_>) -> RuleResult<f64> {
    float_of_either(c, "eps", "epsilon", 1e-5)
}

fn inverse_std(c: &mut OpCall<'_, '_>, variance: ValueId, eps: f64) -> EmitResult {
    c.formula([variance], |[variance]| (variance + eps).rsqrt())
}

/// Normalizes by the moments of the operand in training, and by the given statistics otherwise. In training, the
/// results from `own_results` on are the new statistics.
fn batch_norm(c: &mut OpCall<'_, '_>, training: bool, own_results: usize) -> RuleResult {
    c.ignore(&["cudnn_enabled", "momentum", "exponential_average_factor"]);
    let x = c.first_tensor()?;
    let eps = epsilon(c)?;
    let affine = [c.opt_tensor("weight")?, c.opt_tensor("bias")?];
    let statistics = [c.opt_tensor("running_mean")?, c.opt_tensor("running_var")?];
    let [mean, variance] = match statistics {
        _ if training => channel_moments(c, x)?,
        [Some(mean), Some(variance)] => [mean, variance],
        _ => return invalid!("expected running_mean and running_var outside of training, found none"),
    };
    let scale = inverse_std(c, variance, eps)?;
    for (result, saved) in [(1, mean), (2, scale)].into_iter().filter(|(result, _)| *result < own_results) {
        if c.is_result_read(result) {
            set_saved(c, result, Some(saved))?;
        }
    }
    if own_results > 3 && c.is_result_read(3) {
        set_saved(c, 3, None)?;
    }
    let y = normalize_channels(c, x, [mean, scale], affine)?;
    c.set_result(0, y);
    if training {
        let momentum = float_of_either(c, "momentum", "exponential_average_factor", 0.1)?;
        let numel = channel_numel(&c.shape(x));
        let variance = unbiased_variance(c, variance, &numel)?;
        set_statistics(c, statistics, [mean, variance], momentum, own_results)?;
    } else if c.result_slot_count() > own_results {
        // Functional forms return the statistics that they are given.
        for (i, statistic) in statistics.into_iter().enumerate() {
            statistic.into_iter().for_each(|statistic| c.set_result(own_results + i, statistic));
        }
    }
    Ok(())
}

/// Sets a value that is saved for the gradient: empty, or the statistic that was used.
fn set_saved(c: &mut OpCall<'_, '_>, result: usize, saved: Option<ValueId>) -> RuleResult {
    let declared = c.declared_result_type(result)?;
    let saved = saved.filter(|_| declared.numel().as_const() != Some(0));
    let value = match saved {
        Some(saved) => c.cast(saved, declared.dtype)?,
        None => c.full(Scalar::Int(0), declared.dtype, declared.shape)?,
    };
    c.set_result(result, value);
    Ok(())
}

/// Sets the results from `first` on to the statistics after a step of training.
fn set_statistics(
    c: &mut OpCall<'_, '_>,
    statistics: [Option<ValueId>; 2],
    moments: [ValueId; 2],
    momentum: f64,
    first: usize,
) -> RuleResult {
    for (i, (statistic, moment)) in statistics.into_iter().zip(moments).enumerate() {
        if let Some(statistic) = statistic {
            let updated = updated_statistic(c, statistic, moment, momentum)?;
            c.set_result(first + i, updated);
        }
    }
    Ok(())
}

fn batch_norm_backward(
    c: &mut OpCall<'_, '_>,
    training: bool,
    gradient: &str,
    saved_scale: &str,
) -> RuleResult {
    // Results that the mask leaves out are not read. The reserved memory is for kernels of cuDNN.
    c.ignore(&["output_mask", "reserve", "reserveSpace"]);
    c.ignore(&["save_mean", saved_scale, "running_mean", "running_var"]);
    let eps = epsilon(c)?;
    let [gradient, x] = c.tensors_named([gradient, "input"])?;
    let rank = c.rank(x);
    invalid_if!(rank < 2, "expected at least two axes, found {rank}");
    let weight = c.opt_tensor("weight")?;
    let (mean, scale) = if training {
        (c.tensor("save_mean")?, c.tensor(saved_scale)?)
    } else {
        let variance = c.tensor("running_var")?;
        (c.tensor("running_mean")?, inverse_std(c, variance, eps)?)
    };
    let gradients = channel_norm_gradients(c, gradient, x, [mean, scale], weight, training)?;
    for (result, value) in gradients.into_iter().enumerate() {
        if c.is_result_read(result) {
            let value = c.cast(value, c.declared_result_type(result)?.dtype)?;
            c.set_result(result, value);
        }
    }
    Ok(())
}

/// An instance norm. If it uses the moments of the operand, the second and third result are the new statistics.
fn instance_norm_with_statistics(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["cudnn_enabled"]);
    let momentum = c.float_or("momentum", 0.1)?;
    if !c.bool_or("use_input_stats", true)? {
        return batch_norm(c, false, 1);
    }
    let x = c.first_tensor()?;
    let eps = epsilon(c)?;
    let affine = [c.opt_tensor("weight")?, c.opt_tensor("bias")?];
    let statistics = [c.opt_tensor("running_mean")?, c.opt_tensor("running_var")?];
    let y = instance_norm(c, x, affine, eps)?;
    c.set_result(0, y);
    if statistics.iter().all(Option::is_none) {
        return Ok(());
    }
    let shape = c.shape(x);
    let axes: Vec<usize> = (2..shape.len()).collect();
    let numel = shape.iter().skip(2).cloned().fold(Dim::from(1), |a, b| a * b);
    let [mean, variance] = c.formulas([x], |[x]| {
        let x = x.cast(x.dtype().compute_dtype());
        let mean = x.mean(&axes, true);
        let variance = (x - mean).square().mean(&axes, false).mean(&[0], false);
        [mean.reshape(shape[..2].to_vec()).reduce(ReductionKind::Mean, &[0], false), variance]
    })?;
    let variance = unbiased_variance(c, variance, &numel)?;
    set_statistics(c, statistics, [mean, variance], momentum, 1)
}
