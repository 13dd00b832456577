//! Recurrent layers: RNN, LSTM and GRU in one or both directions.

use symmc_import::recurrent::{
    Activation, GruOrder, LstmOrder, RecurrentCell, RecurrentDirection, emit_direction,
};
use symmc_import::{Emit, RuleCall, invalid, invalid_if};
use symmc_ir::{Dim, ValueId};

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::node::describe_attribute;
use crate::proto::attribute_type as kind;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("RNN", 22, "matmul, add, tanh, concat for each step", |c| {
        recurrent(c, &["Tanh"], |_, functions| Ok(RecurrentCell::Rnn { state: functions[0] }))
    }),
    row_of_results("LSTM", 22, "matmul, add, sigmoid, tanh, mul, concat for each step", |c| {
        recurrent(c, &["Sigmoid", "Tanh", "Tanh"], |c, functions| {
            Ok(RecurrentCell::Lstm {
                gates: functions[0],
                candidate: functions[1],
                state: functions[2],
                coupled: c.flag("input_forget")?,
                order: LstmOrder { input: 0, output: 1, forget: 2, candidate: 3 },
            })
        })
    }),
    row_of_results("GRU", 22, "matmul, add, sigmoid, tanh, mul, concat for each step", |c| {
        recurrent(c, &["Sigmoid", "Tanh"], |c, functions| {
            Ok(RecurrentCell::Gru {
                gates: functions[0],
                candidate: functions[1],
                reset_after: c.flag("linear_before_reset")?,
                order: GruOrder { update: 0, reset: 1 },
            })
        })
    }),
];

/// Operands: input, weights of inputs, weights of states, biases, lengths, first states, first cell states, peepholes.
/// Results: all states, the last ones, the last cell states. `defaults` are the functions of one direction.
fn recurrent(
    c: &mut OpCall<'_, '_>,
    defaults: &[&str],
    cell_of: fn(&OpCall<'_, '_>, &[Activation]) -> RuleResult<RecurrentCell>,
) -> RuleResult {
    let [x, input_weights, state_weights] = c.first_tensors()?;
    invalid_if!(
        [x, input_weights, state_weights].iter().any(|v| c.rank(*v) != 3),
        "expected three axes of the input and of both weights"
    );
    let reversals: &[bool] = match c.opt_string("direction")?.unwrap_or("forward") {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return invalid!("expected direction forward, reverse or bidirectional, found `{other}`"),
    };
    let batch_first = c.flag("layout")?;
    let x = if batch_first { c.permute(x, vec![1, 0, 2])? } else { x };
    let functions = activations(c, defaults, reversals.len())?;
    let hidden = c.extent(state_weights, 2);
    if let Some(stated) = c.opt_int("hidden_size")? {
        c.require_equal("the hidden size", &hidden, &Dim::from(stated))?;
    }
    let clip = c.opt_float("clip")?.filter(|clip| *clip > 0.0);
    let lengths = sequence_lengths(c, &c.extent(x, 0))?;
    let biases = c.opt_tensor(3)?;
    let first_states = c.opt_tensor(5)?;
    let first_cells = c.opt_tensor(6)?;
    let peepholes = c.opt_tensor(7)?;
    let mut stacks: [Vec<ValueId>; 3] = Default::default();
    for (direction, &reverse) in reversals.iter().enumerate() {
        let functions = &functions[direction * defaults.len()..][..defaults.len()];
        let cell = cell_of(c, functions)?;
        let width = hidden.clone() * Dim::from(cell.gates());
        let (input_bias, state_bias) = match biases {
            Some(biases) => {
                let own = entry(c, biases, 0, direction)?;
                let parts = c.split_by_lengths(own, 0, vec![width.clone(), width])?;
                (Some(parts[0]), Some(parts[1]))
            }
            None => (None, None),
        };
        let state_axis = usize::from(batch_first);
        let layer = RecurrentDirection {
            cell,
            x,
            input_weight: entry(c, input_weights, 0, direction)?,
            state_weight: entry(c, state_weights, 0, direction)?,
            input_bias,
            state_bias,
            first_state: first_states.map(|s| entry(c, s, state_axis, direction)).transpose()?,
            first_cell: first_cells.map(|s| entry(c, s, state_axis, direction)).transpose()?,
            peepholes: match peepholes {
                Some(peepholes) => {
                    let own = entry(c, peepholes, 0, direction)?;
                    let parts = c.split_by_lengths(own, 0, vec![hidden.clone(); 3])?;
                    Some([parts[0], parts[1], parts[2]])
                }
                None => None,
            },
            lengths,
            clip,
            reverse,
        };
        let results = emit_direction(c, &layer)?;
        let states = if batch_first { c.permute(results.states, vec![1, 0, 2])? } else { results.states };
        // The axis of directions is before the batch or, if the batch is first, before the states.
        stacks[0].push(c.unsqueeze(states, if batch_first { 2 } else { 1 })?);
        stacks[1].push(c.unsqueeze(results.last_state, state_axis)?);
        if let Some(cell) = results.last_cell {
            stacks[2].push(c.unsqueeze(cell, state_axis)?);
        }
    }
    let state_axis = usize::from(batch_first);
    for (result, (parts, axis)) in
        stacks.iter().zip([if batch_first { 2 } else { 1 }, state_axis, state_axis]).enumerate()
    {
        if !parts.is_empty() && c.is_result_read(result) {
            let joined = c.concat(parts, axis)?;
            c.set_result(result, joined);
        }
    }
    Ok(())
}

/// An entry of an axis, without that axis.
fn entry(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize, index: usize) -> EmitResult {
    let part = c.slice(x, axis, Dim::from(index as i64), 1.into(), 1)?;
    c.drop_axis(part, axis)
}

/// The lengths of the sequences, if they may be shorter than all steps.
fn sequence_lengths(c: &mut OpCall<'_, '_>, steps: &Dim) -> RuleResult<Option<ValueId>> {
    let known = c.known_value(4)?.and_then(|k| k.as_ints());
    if known.is_some_and(|lengths| lengths.dims.iter().all(|length| length == steps)) {
        return Ok(None);
    }
    c.opt_tensor(4)
}

/// The functions of all directions.
fn activations(c: &OpCall<'_, '_>, defaults: &[&str], directions: usize) -> RuleResult<Vec<Activation>> {
    let mut names: Vec<String> = defaults.repeat(directions).iter().map(ToString::to_string).collect();
    if let Some(a) = c.attribute("activations") {
        invalid_if!(
            a.r#type != kind::STRINGS || a.strings.len() != names.len(),
            "expected {} texts as `activations`, found {}",
            names.len(),
            describe_attribute(a)
        );
        names = a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect();
    }
    let numbers = |name: &str| -> RuleResult<std::vec::IntoIter<f64>> {
        let floats = c.opt_attribute_floats(name)?.unwrap_or_default();
        Ok(floats.into_iter())
    };
    let mut alphas = numbers("activation_alpha")?;
    let mut betas = numbers("activation_beta")?;
    names.iter().map(|name| activation(name, &mut alphas, &mut betas)).collect()
}

/// A function by its name. It takes the next factors if it has factors.
fn activation(
    name: &str,
    alphas: &mut impl Iterator<Item = f64>,
    betas: &mut impl Iterator<Item = f64>,
) -> RuleResult<Activation> {
    let mut alpha = |default: f64| alphas.next().unwrap_or(default);
    let mut beta = |default: f64| betas.next().unwrap_or(default);
    Ok(match name.to_ascii_lowercase().as_str() {
        "affine" => Activation::Affine { alpha: alpha(1.0), beta: beta(0.0) },
        "elu" => Activation::Elu { alpha: alpha(1.0) },
        "hardsigmoid" => Activation::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) },
        "leakyrelu" => Activation::LeakyRelu { alpha: alpha(0.01) },
        "relu" => Activation::Relu,
        "scaledtanh" => Activation::ScaledTanh { alpha: alpha(1.0), beta: beta(1.0) },
        "sigmoid" => Activation::Sigmoid,
        "softplus" => Activation::Softplus,
        "softsign" => Activation::Softsign,
        "tanh" => Activation::Tanh,
        "thresholdedrelu" => Activation::ThresholdedRelu { alpha: alpha(1.0) },
        other => return Err(RuleFailure::Opaque(format!("the activation `{other}` is not supported"))),
    })
}
