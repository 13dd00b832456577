//! Recurrent layers (RNN, LSTM, GRU), unrolled. A number of steps that depends on sizes is unrolled up to its bound: the
//! steps beyond it have no effect.
//!
//! The products of all inputs with their weights are one product. Each step then multiplies the state with the recurrent
//! weights. The gates of a layer lie next to each other in its weights, in an order that each framework chooses.

use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, TensorType, ValueId};

use crate::emit::Emit;
use crate::failure::{RuleFailure, RuleResult};
use crate::formula::{EmitFormulas, Term};

/// The most steps of a layer that are unrolled.
pub const MAX_STEPS: i64 = 1024;

/// The function of a gate or a state.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    Affine { alpha: f64, beta: f64 },
    Elu { alpha: f64 },
    HardSigmoid { alpha: f64, beta: f64 },
    LeakyRelu { alpha: f64 },
    Relu,
    ScaledTanh { alpha: f64, beta: f64 },
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu { alpha: f64 },
}

impl Activation {
    fn apply<E>(self, x: Term<'_, E>) -> Term<'_, E> {
        match self {
            Activation::Affine { alpha, beta } => x * alpha + beta,
            Activation::Elu { alpha } => x.gt(0.0).select(x, x.expm1() * alpha),
            Activation::HardSigmoid { alpha, beta } => (x * alpha + beta).max(0.0).min(1.0),
            Activation::LeakyRelu { alpha } => x.ge(0.0).select(x, x * alpha),
            Activation::Relu => x.relu(),
            Activation::ScaledTanh { alpha, beta } => (x * beta).tanh() * alpha,
            Activation::Sigmoid => x.sigmoid(),
            Activation::Softplus => x.relu() + (-x.abs()).exp().log1p(),
            Activation::Softsign => x / (x.abs() + 1.0),
            Activation::Tanh => x.tanh(),
            Activation::ThresholdedRelu { alpha } => x.gt(alpha).select(x, 0.0),
        }
    }
}

/// The kind of a layer with its functions, and the positions of its gates in the weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RecurrentCell {
    Rnn {
        state: Activation,
    },
    Lstm {
        gates: Activation,
        candidate: Activation,
        state: Activation,
        /// The forget gate is one minus the input gate.
        coupled: bool,
        order: LstmOrder,
    },
    Gru {
        gates: Activation,
        candidate: Activation,
        /// The reset gate multiplies the product of the state instead of the state.
        reset_after: bool,
        order: GruOrder,
    },
}

/// The positions of the gates of an LSTM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LstmOrder {
    pub input: i64,
    pub output: i64,
    pub forget: i64,
    pub candidate: i64,
}

/// The positions of the gates of a GRU. The candidate comes after them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GruOrder {
    pub update: i64,
    pub reset: i64,
}

/// The position of the candidate of a GRU.
const CANDIDATE: i64 = 2;

impl RecurrentCell {
    /// The number of gates.
    pub fn gates(self) -> i64 {
        match self {
            RecurrentCell::Rnn { .. } => 1,
            RecurrentCell::Lstm { .. } => 4,
            RecurrentCell::Gru { .. } => 3,
        }
    }
}

/// One direction of a layer. `x` is `[steps, batch, inputs]`, the weights are `[gates * hidden, inputs]` and
/// `[gates * hidden, hidden]`, biases are `[gates * hidden]`, and states are `[batch, hidden]`.
pub struct RecurrentDirection {
    pub cell: RecurrentCell,
    pub x: ValueId,
    pub input_weight: ValueId,
    pub state_weight: ValueId,
    pub input_bias: Option<ValueId>,
    pub state_bias: Option<ValueId>,
    /// Zeros by default.
    pub first_state: Option<ValueId>,
    /// The first cell state of an LSTM; zeros by default.
    pub first_cell: Option<ValueId>,
    /// The factors of the cell state in the input, output and forget gate of an LSTM, each `[hidden]`.
    pub peepholes: Option<[ValueId; 3]>,
    /// The number of steps of each sequence, `[batch]`. Later steps keep the state, and have zeros as results.
    pub lengths: Option<ValueId>,
    /// The bound of the magnitude of the operands of functions.
    pub clip: Option<f64>,
    pub reverse: bool,
}

/// The results of one direction of a layer.
pub struct RecurrentResults {
    /// The states after each step, `[steps, batch, hidden]`.
    pub states: ValueId,
    /// The last state, `[batch, hidden]`.
    pub last_state: ValueId,
    /// The last cell state of an LSTM.
    pub last_cell: Option<ValueId>,
}

/// Emits one direction of a layer.
pub fn emit_direction<C: Emit>(
    c: &mut C,
    layer: &RecurrentDirection,
) -> RuleResult<RecurrentResults, C::Error> {
    let [steps, batch, _] = c.shape(layer.x).try_into().map_err(|shape: Vec<Dim>| {
        RuleFailure::Invalid(format!("expected three axes of the operand, found {}", shape.len()))
    })?;
    let most = c.dim_bounds(&steps).1;
    if most > MAX_STEPS {
        let bound = if steps.as_const().is_some() { "" } else { "up to " };
        let why = format!("{bound}{most} steps are not supported, at most {MAX_STEPS} are");
        return Err(RuleFailure::Opaque(why));
    }
    let is_variable = steps.as_const().is_none();
    let hidden = c.extent(layer.state_weight, 1);
    let dtype = c.dtype(layer.x);
    let state_type = vec![batch.clone(), hidden.clone()];
    let mut state = match layer.first_state {
        Some(state) => state,
        None => c.full(Scalar::Int(0), dtype, state_type.clone())?,
    };
    let is_lstm = matches!(layer.cell, RecurrentCell::Lstm { .. });
    let mut cell = match layer.first_cell.filter(|_| is_lstm) {
        None if is_lstm => Some(c.full(Scalar::Int(0), dtype, state_type.clone())?),
        cell => cell,
    };
    if most == 0 {
        let states = c.full(Scalar::Int(0), dtype, vec![0.into(), batch, hidden])?;
        return Ok(RecurrentResults { states, last_state: state, last_cell: cell });
    }
    let weight = c.transposed(layer.input_weight)?;
    let mut inputs = c.matmul(layer.x, weight)?;
    let mut state_bias = layer.state_bias;
    let adds_state_bias_later = matches!(layer.cell, RecurrentCell::Gru { reset_after: true, .. });
    for bias in [layer.input_bias, state_bias.take_if(|_| !adds_state_bias_later)].into_iter().flatten() {
        inputs = c.binary(BinaryOp::Add, inputs, bias)?;
    }
    let mut length = None;
    if is_variable {
        let mut shape = c.shape(inputs);
        shape[0] = Dim::from(most);
        let ty = TensorType::new(dtype, shape);
        let op = Op::Pad { low: vec![Dim::from(0); 3], value: Scalar::Int(0).convert_to(dtype) };
        inputs = c.emit_as("pad", op, &[inputs], ty)?;
        length = Some(c.emit_dim(&steps, DType::I64)?);
    }
    let state_weight = c.transposed(layer.state_weight)?;
    let step = RecurrentStep { layer, hidden: &hidden, state_weight, state_bias };
    let mut states = Vec::new();
    for i in 0..most {
        let position = if layer.reverse { most - 1 - i } else { i };
        let input = c.slice(inputs, 0, position.into(), 1.into(), 1)?;
        let input = c.drop_axis(input, 0)?;
        let (mut next, mut next_cell) = step.emit(c, input, state, cell)?;
        let mut result = next;
        if let Some(running) = is_running(c, layer.lengths, length, position)? {
            let zero = c.full(Scalar::Int(0), dtype, vec![])?;
            result = c.select(running, next, zero)?;
            next = c.select(running, next, state)?;
            if let (Some(new), Some(old)) = (next_cell, cell) {
                next_cell = Some(c.select(running, new, old)?);
            }
        }
        state = next;
        cell = next_cell;
        states.push(c.unsqueeze(result, 0)?);
    }
    if layer.reverse {
        states.reverse();
    }
    let mut states = c.concat(&states, 0)?;
    if is_variable {
        states = c.slice(states, 0, 0.into(), steps, 1)?;
    }
    Ok(RecurrentResults { states, last_state: state, last_cell: cell })
}

/// Whether a step is within the sequences, if it may be beyond. `length` is the number of all steps, and `lengths` are
/// those of the sequences.
fn is_running<C: Emit>(
    c: &mut C,
    lengths: Option<ValueId>,
    length: Option<ValueId>,
    position: i64,
) -> RuleResult<Option<ValueId>, C::Error> {
    let mut running = None;
    if let Some(lengths) = lengths {
        let within = c.binary_scalar(BinaryOp::Gt, lengths, Scalar::Int(position))?;
        running = Some(c.unsqueeze(within, 1)?);
    }
    if let Some(length) = length {
        let within = c.binary_scalar(BinaryOp::Gt, length, Scalar::Int(position))?;
        running = Some(match running {
            Some(running) => c.binary(BinaryOp::And, running, within)?,
            None => within,
        });
    }
    Ok(running)
}

struct RecurrentStep<'a> {
    layer: &'a RecurrentDirection,
    hidden: &'a Dim,
    /// `[hidden, gates * hidden]`.
    state_weight: ValueId,
    /// The bias that the gates of a GRU add to the product of the state.
    state_bias: Option<ValueId>,
}

impl RecurrentStep<'_> {
    /// The next state and cell state. `input` is the product of the input, `[batch, gates * hidden]`.
    fn emit<C: Emit>(
        &self,
        c: &mut C,
        input: ValueId,
        state: ValueId,
        cell: Option<ValueId>,
    ) -> RuleResult<(ValueId, Option<ValueId>), C::Error> {
        match (self.layer.cell, cell) {
            (RecurrentCell::Lstm { gates, candidate, state: function, coupled, order }, Some(cell)) => {
                let product = c.matmul(state, self.state_weight)?;
                let sums = c.binary(BinaryOp::Add, input, product)?;
                let peepholes = self.layer.peepholes;
                let [input_factor, output_factor, forget_factor] = peepholes.unwrap_or([cell; 3]);
                let values = [sums, cell, input_factor, output_factor, forget_factor];
                let [state, cell] = c.formulas(values, |[sums, cell, input, output, forget]| {
                    let with_cell = |gate: i64, factor, cell| {
                        let sum = self.gate(sums, gate);
                        if peepholes.is_some() { sum + factor * cell } else { sum }
                    };
                    let input = gates.apply(self.clip(with_cell(order.input, input, cell)));
                    let forget = if coupled {
                        1.0 - input
                    } else {
                        gates.apply(self.clip(with_cell(order.forget, forget, cell)))
                    };
                    let new = candidate.apply(self.clip(self.gate(sums, order.candidate)));
                    let next = forget * cell + input * new;
                    let output = gates.apply(self.clip(with_cell(order.output, output, next)));
                    [output * function.apply(next), next]
                })?;
                Ok((state, Some(cell)))
            }
            (RecurrentCell::Gru { gates, candidate, reset_after, order }, _) => {
                let state = self.emit_gru(c, input, state, (gates, candidate), reset_after, order)?;
                Ok((state, None))
            }
            (RecurrentCell::Rnn { state: function }, _) => {
                let product = c.matmul(state, self.state_weight)?;
                let state = c.formula([input, product], |[input, product]| {
                    function.apply(self.clip(input + product))
                })?;
                Ok((state, None))
            }
            (RecurrentCell::Lstm { .. }, None) => {
                Err(RuleFailure::Invalid("expected a cell state, found none".into()))
            }
        }
    }

    fn emit_gru<C: Emit>(
        &self,
        c: &mut C,
        input: ValueId,
        state: ValueId,
        (gates, candidate): (Activation, Activation),
        reset_after: bool,
        order: GruOrder,
    ) -> RuleResult<ValueId, C::Error> {
        let mut product = if reset_after {
            c.matmul(state, self.state_weight)?
        } else {
            // The weight of the candidate multiplies another value.
            let gates = self.hidden.clone() * Dim::from(CANDIDATE);
            let weight = c.slice(self.state_weight, 1, 0.into(), gates, 1)?;
            c.matmul(state, weight)?
        };
        if let Some(bias) = self.state_bias {
            product = c.binary(BinaryOp::Add, product, bias)?;
        }
        let [update, reset] = c.formulas([input, product], |[input, product]| {
            let gate = |position: i64| {
                let sum = self.gate(input, position) + self.gate(product, position);
                gates.apply(self.clip(sum))
            };
            [gate(order.update), gate(order.reset)]
        })?;
        let product = if reset_after {
            c.formula([product, reset], |[product, reset]| reset * self.gate(product, CANDIDATE))?
        } else {
            let start = self.hidden.clone() * Dim::from(CANDIDATE);
            let weight = c.slice(self.state_weight, 1, start, self.hidden.clone(), 1)?;
            let kept = c.binary(BinaryOp::Mul, reset, state)?;
            c.matmul(kept, weight)?
        };
        c.formula([input, product, update, state], |[input, product, update, state]| {
            let new = candidate.apply(self.clip(self.gate(input, CANDIDATE) + product));
            (1.0 - update) * new + update * state
        })
    }

    /// The part of `sums` that belongs to a gate.
    fn gate<'f, E>(&self, sums: Term<'f, E>, position: i64) -> Term<'f, E> {
        sums.slice(1, self.hidden.clone() * Dim::from(position), self.hidden.clone())
    }

    fn clip<'f, E>(&self, x: Term<'f, E>) -> Term<'f, E> {
        match self.layer.clip {
            Some(bound) => x.max(-bound).min(bound),
            None => x,
        }
    }
}
