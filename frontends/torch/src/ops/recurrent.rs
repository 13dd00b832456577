//! Recurrent layers: RNN, LSTM and GRU with several layers, in one or both directions.

use symmc_import::recurrent::{
    Activation, GruOrder, LstmOrder, RecurrentCell, RecurrentDirection, emit_direction,
};
use symmc_import::{Emit, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::ValueId;

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("aten.lstm.input", "matmul, add, sigmoid, tanh, mul, concat for each step", |c| {
        let states = c.tensors("hx")?;
        let [states, cells] = states.as_slice() else {
            return invalid!("expected two first states, found {}", states.len());
        };
        let order = LstmOrder { input: 0, forget: 1, candidate: 2, output: 3 };
        let (gates, tanh) = (Activation::Sigmoid, Activation::Tanh);
        let cell = RecurrentCell::Lstm { gates, candidate: tanh, state: tanh, coupled: false, order };
        layers(c, cell, *states, Some(*cells))
    }),
    row_of_results("aten.gru.input", "matmul, add, sigmoid, tanh, mul, concat for each step", |c| {
        let states = c.tensor("hx")?;
        let order = GruOrder { reset: 0, update: 1 };
        let (gates, candidate) = (Activation::Sigmoid, Activation::Tanh);
        layers(c, RecurrentCell::Gru { gates, candidate, reset_after: true, order }, states, None)
    }),
    row_of_results("aten.rnn_tanh.input", "matmul, add, tanh, concat for each step", |c| {
        let states = c.tensor("hx")?;
        layers(c, RecurrentCell::Rnn { state: Activation::Tanh }, states, None)
    }),
    row_of_results("aten.rnn_relu.input", "matmul, add, relu, concat for each step", |c| {
        let states = c.tensor("hx")?;
        layers(c, RecurrentCell::Rnn { state: Activation::Relu }, states, None)
    }),
];

/// All layers. `states` and `cells` have an entry for each layer and direction. Results: the states after each step, the
/// last states, and the last cell states of an LSTM. Random numbers, which dropout draws, are refused before.
fn layers(
    c: &mut OpCall<'_, '_>,
    cell: RecurrentCell,
    states: ValueId,
    cells: Option<ValueId>,
) -> RuleResult {
    c.ignore(&["dropout", "train"]);
    let input = c.tensor("input")?;
    invalid_if!(c.rank(input) != 3, "expected three axes of the input, found {}", c.rank(input));
    let weights = c.tensors("params")?;
    let has_biases = c.bool_or("has_biases", true)?;
    let count = c.int("num_layers")?;
    let directions: &[bool] = if c.bool_or("bidirectional", false)? { &[false, true] } else { &[false] };
    let batch_first = c.bool_or("batch_first", false)?;
    let each = if has_biases { 4 } else { 2 };
    let entries = usize::try_from(count).unwrap_or(0).saturating_mul(directions.len());
    unsupported_if!(
        weights.len() == entries.saturating_mul(each + 1) && entries > 0,
        "projections of states are not supported"
    );
    invalid_if!(
        entries == 0 || entries.checked_mul(each) != Some(weights.len()),
        "expected {each} weights for each of {entries} directions of layers, found {}",
        weights.len()
    );
    let mut x = if batch_first { c.permute(input, vec![1, 0, 2])? } else { input };
    let (mut last_states, mut last_cells) = (Vec::new(), Vec::new());
    let mut weights = weights.chunks(each);
    for layer in 0..entries / directions.len() {
        let mut outputs = Vec::new();
        for (i, &reverse) in directions.iter().enumerate() {
            let Some([input_weight, state_weight, biases @ ..]) = weights.next() else { break };
            let position = layer * directions.len() + i;
            let direction = RecurrentDirection {
                cell,
                x,
                input_weight: *input_weight,
                state_weight: *state_weight,
                input_bias: biases.first().copied(),
                state_bias: biases.get(1).copied(),
                first_state: Some(entry(c, states, position)?),
                first_cell: cells.map(|cells| entry(c, cells, position)).transpose()?,
                peepholes: None,
                lengths: None,
                clip: None,
                reverse,
            };
            let results = emit_direction(c, &direction)?;
            outputs.push(results.states);
            last_states.push(c.unsqueeze(results.last_state, 0)?);
            if let Some(last) = results.last_cell {
                last_cells.push(c.unsqueeze(last, 0)?);
            }
        }
        x = c.concat(&outputs, 2)?;
    }
    let y = if batch_first { c.permute(x, vec![1, 0, 2])? } else { x };
    c.set_result(0, y);
    let last = c.concat(&last_states, 0)?;
    c.set_result(1, last);
    if !last_cells.is_empty() {
        let last = c.concat(&last_cells, 0)?;
        c.set_result(2, last);
    }
    Ok(())
}

/// An entry of the first axis, without that axis.
fn entry(c: &mut OpCall<'_, '_>, x: ValueId, position: usize) -> EmitResult {
    let part = c.slice(x, 0, (position as i64).into(), 1.into(), 1)?;
    c.drop_axis(part, 0)
}
