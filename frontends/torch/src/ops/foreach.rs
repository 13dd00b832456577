//! Ops over lists of tensors. `_foreach_add` and similar ops apply the op of one tensor to each element. The
//! fused optimizers have formulas.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::{DType, ValueId};

use super::{OpRule, RuleRow, activations, create, elementwise, normalize, row_of_results};
use crate::call::OpCall;
use crate::effects::bare_target;
use crate::lower::{EmitResult, RuleFailure, RuleResult, Term};

/// The tables with the ops of one tensor.
const SINGLE_TENSOR_TABLES: [&[RuleRow]; 4] =
    [elementwise::RULE_ROWS, activations::RULE_ROWS, normalize::RULE_ROWS, create::RULE_ROWS];

/// Pairs of the argument name that a rule of one tensor asks for and the names that ops over lists have for it.
const RENAMED_ARGUMENTS: &[(&str, &str)] = &[
    ("other", "scalar scalars"),
    ("exponent", "scalar scalars"),
    ("min", "scalar scalars other"),
    ("max", "scalar scalars other"),
    ("value", "scalar scalars"),
    ("end", "tensors1"),
    ("weight", "scalars weights"),
];

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results(
        "aten._foreach_add aten._foreach_sub aten._foreach_mul aten._foreach_div aten._foreach_maximum \
         aten._foreach_minimum aten._foreach_clamp_min aten._foreach_clamp_max aten._foreach_pow \
         aten._foreach_addcmul aten._foreach_addcdiv aten._foreach_lerp aten._foreach_copy \
         aten._foreach_zero aten._foreach_norm aten._foreach_abs aten._foreach_neg aten._foreach_sign \
         aten._foreach_exp aten._foreach_log aten._foreach_sqrt aten._foreach_rsqrt \
         aten._foreach_reciprocal aten._foreach_sigmoid aten._foreach_tanh aten._foreach_floor \
         aten._foreach_ceil aten._foreach_trunc",
        "as the operator of one tensor, for each",
        for_each,
    ),
    row_of_results("aten._fused_adam", "mul, add, sqrt, div", |c| adam(c, Decay::Gradient)),
    row_of_results("aten._fused_adamw", "mul, add, sqrt, div", |c| adam(c, Decay::Parameter)),
    row_of_results("aten._fused_sgd", "mul, add", sgd),
];

fn for_each(c: &mut OpCall<'_, '_>) -> RuleResult {
    let target = bare_target(&c.node.target);
    let op = target.strip_prefix("aten._foreach_").and_then(|op| op.split('.').next()).unwrap_or(target);
    let one = format!("aten.{}", op.trim_end_matches('_'));
    // For powers of one number, the list of exponents determines the number of elements.
    let list = if c.is_list("exponent") && !c.is_list("self") { "exponent" } else { "self" };
    let count = c.tensors(list)?.len();
    let single: Option<OpRule> =
        SINGLE_TENSOR_TABLES.into_iter().flatten().find(|r| r.has_name(&one)).map(|r| r.rule);
    let rule = single.ok_or_else(|| RuleFailure::Opaque(format!("{one} is not supported")))?;
    if count == 0 {
        c.ignore_all();
    }
    let results = c.apply_to_elements(count, RENAMED_ARGUMENTS, rule)?;
    c.set_results(results)
}

/// The target of weight decay.
#[derive(Clone, Copy, PartialEq)]
enum Decay {
    Gradient,
    /// Only the parameter decays, not the gradient.
    Parameter,
}

/// The state of a fused optimizer for each parameter. Each list is as long as that of the parameters, or
/// empty.
fn optimizer_state<const N: usize>(
    c: &OpCall<'_, '_>,
    names: [&str; N],
) -> RuleResult<Vec<[Option<ValueId>; N]>> {
    let mut lists = Vec::with_capacity(N);
    for name in names {
        lists.push(if c.get(name).is_some() { c.tensors(name)? } else { Vec::new() });
    }
    let count = lists.first().map_or(0, Vec::len);
    for (name, list) in names.iter().zip(&lists) {
        invalid_if!(
            !list.is_empty() && list.len() != count,
            "expected {count} tensors as `{name}`, found {}",
            list.len()
        );
    }
    Ok((0..count).map(|i| std::array::from_fn(|n| lists.get(n).and_then(|l| l.get(i)).copied())).collect())
}

/// Rejects the arguments of fused optimizers that only mixed precision uses.
fn require_no_scaling(c: &OpCall<'_, '_>) -> RuleResult {
    for name in ["grad_scale", "found_inf"] {
        unsupported_if!(c.opt_tensor(name)?.is_some(), "`{name}` is not supported");
    }
    Ok(())
}

/// The gradient that the optimizer uses: negated to maximize, plus the decay of the parameter if the decay
/// applies to the gradient.
fn effective_gradient<'f>(x: Term<'f>, g: Term<'f>, maximize: bool, decay: f64) -> Term<'f> {
    let g = if maximize { -g } else { g };
    if decay == 0.0 { g } else { g + x * decay }
}

/// Adam and AdamW. Results: parameters, gradients, first moments, second moments, their maxima.
fn adam(c: &mut OpCall<'_, '_>, decay: Decay) -> RuleResult {
    require_no_scaling(c)?;
    let names = ["self", "grads", "exp_avgs", "exp_avg_sqs", "state_steps", "max_exp_avg_sqs"];
    let rows = optimizer_state(c, names)?;
    let amsgrad = c.bool_or("amsgrad", false)?;
    let maximize = c.bool_or("maximize", false)?;
    let beta1 = c.float_or("beta1", 0.9)?;
    let beta2 = c.float_or("beta2", 0.999)?;
    let weight_decay = c.float_or("weight_decay", 0.0)?;
    let eps = c.float_or("eps", 1e-8)?;
    let count = rows.len();
    for (i, row) in rows.into_iter().enumerate() {
        let [Some(x), Some(g), Some(m), Some(v), Some(step), largest] = row else {
            return invalid!("expected the state of each parameter, found none");
        };
        let dtype = c.dtype(x);
        unsupported_if!(
            [g, m, v].iter().any(|&t| c.dtype(t) != dtype) || !matches!(dtype, DType::F32 | DType::F64),
            "expected tensors that are all f32 or all f64"
        );
        let lr = learning_rate(c, dtype)?;
        invalid_if!(amsgrad && largest.is_none(), "expected `max_exp_avg_sqs` for amsgrad, found none");
        let [x, m, v, spread] = c.formulas([x, g, m, v, step, lr], |[x, g, m, v, step, lr]| {
            let decays = decay == Decay::Parameter && weight_decay != 0.0;
            let x = if decays { x - x * (lr * weight_decay) } else { x };
            let gradient_decay = if decay == Decay::Gradient { weight_decay } else { 0.0 };
            let effective = effective_gradient(x, g, maximize, gradient_decay);
            let m = m * beta1 + effective * (1.0 - beta1);
            let square = effective.square();
            let v = v * beta2 + square * (1.0 - beta2);
            let step = step.cast(DType::F64);
            let first = 1.0 - step.power_of(beta1);
            let second = (1.0 - step.power_of(beta2)).sqrt();
            let first = first.cast(dtype);
            let second = second.cast(dtype);
            let spread = largest.filter(|_| amsgrad).map_or(v, |largest| v.term(largest).max(v));
            let root = spread.sqrt() / second + eps;
            let size = lr / first;
            [x - m / root * size, m, v, spread]
        })?;
        if let Some(largest) = largest {
            c.set_result(4 * count + i, if amsgrad { spread } else { largest });
        }
        for (result, value) in [(0, x), (1, g), (2, m), (3, v)] {
            c.set_result(result * count + i, value);
        }
    }
    Ok(())
}

/// The learning rate, a number or a tensor, as a tensor without axes.
fn learning_rate(c: &mut OpCall<'_, '_>, dtype: DType) -> EmitResult {
    let lr = c.operand("lr")?;
    let lr = c.as_tensor(&lr, dtype)?;
    c.reshape(lr, vec![])
}

/// SGD. Results: parameters, gradients, momenta.
fn sgd(c: &mut OpCall<'_, '_>) -> RuleResult {
    require_no_scaling(c)?;
    let rows = optimizer_state(c, ["self", "grads", "momentum_buffer_list"])?;
    let momentum = c.float_or("momentum", 0.0)?;
    let dampening = c.float_or("dampening", 0.0)?;
    let weight_decay = c.float_or("weight_decay", 0.0)?;
    let nesterov = c.bool_or("nesterov", false)?;
    let maximize = c.bool_or("maximize", false)?;
    let first = c.bool_or("is_first_step", false)?;
    let count = rows.len();
    for (i, [x, g, buffer]) in rows.into_iter().enumerate() {
        let (Some(x), Some(g)) = (x, g) else {
            return invalid!("expected a gradient for each parameter, found none");
        };
        let lr = learning_rate(c, c.dtype(x))?;
        let [x, new_buffer] = c.formulas([x, g, lr], |[x, g, lr]| {
            let effective = effective_gradient(x, g, maximize, weight_decay);
            let buffer = buffer.filter(|_| momentum != 0.0).map(|buffer| {
                if first { effective } else { x.term(buffer) * momentum + effective * (1.0 - dampening) }
            });
            let direction = match buffer {
                Some(buffer) if nesterov => effective * 1.0 + buffer * momentum,
                Some(buffer) => buffer,
                None => effective,
            };
            [x - direction * lr, buffer.unwrap_or(effective)]
        })?;
        if let Some(buffer) = buffer {
            c.set_result(2 * count + i, if momentum == 0.0 { buffer } else { new_buffer });
        }
        c.set_result(i, x);
        c.set_result(count + i, g);
    }
    Ok(())
}
