//! Values that are functions of one integer, element by element: evaluated for all integers of a range.

use std::collections::HashMap;
use std::sync::Arc;

use symmc_ir::closed_form::{ClosedForm, ClosedFormContext};
use symmc_ir::{
    DType, Dim, Graph, GraphOutput, InputKind, Op, OutputKind, Scalar, SymbolBindings, Tensor, TensorType,
    ValueId, interp,
};

/// The most nodes of a function that is evaluated.
const MAX_FUNCTION_NODES: usize = 12;

pub fn is_integer(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::Bool
}

/// The one element of all positions, if a value is full of it.
pub fn full_element(cx: ClosedFormContext<'_>, value: ValueId) -> Option<Scalar> {
    cx.known[value].as_ref().and_then(ClosedForm::as_full)
}

/// Nodes that compute a value from one integer, element by element.
pub struct IntegerFunction {
    /// The integer.
    of: Option<ValueId>,
    /// The nodes in an order in which they can be evaluated.
    nodes: Vec<ValueId>,
}

impl IntegerFunction {
    /// A function of the nearest integers from which the values are computed in other types.
    pub fn of_nearest_integer(cx: ClosedFormContext<'_>, values: &[ValueId]) -> Option<(Self, ValueId)> {
        let mut function = IntegerFunction { of: None, nodes: Vec::new() };
        for &value in values {
            function.collect(cx, value, false)?;
        }
        let source = function.of?;
        Some((function, source))
    }

    /// The value as a function of this integer.
    fn of_integer(cx: ClosedFormContext<'_>, value: ValueId, of: ValueId) -> Option<Self> {
        let mut function = IntegerFunction { of: Some(of), nodes: Vec::new() };
        function.collect(cx, value, true)?;
        Some(function)
    }

    /// Collects the nodes that compute `value`, all of whose elements are in the same order. Without
    /// `through_integers` the nearest integers are where the function starts.
    fn collect(&mut self, cx: ClosedFormContext<'_>, value: ValueId, through_integers: bool) -> Option<()> {
        let is_known = self.nodes.contains(&value) || full_element(cx, value).is_some();
        if is_known || (through_integers && self.of == Some(value)) {
            return Some(());
        }
        let defined = cx.graph.definition(value);
        let is_view = matches!(defined, Some((Op::Reshape, _)));
        let ty = cx.graph.ty(value);
        if is_integer(ty.dtype) && !is_view && !through_integers {
            return (*self.of.get_or_insert(value) == value).then_some(());
        }
        let (op, inputs) = defined?;
        let keeps_order = op.is_element_wise() || *op == Op::Reshape;
        let count = ty.numel();
        if !keeps_order || self.nodes.len() == MAX_FUNCTION_NODES {
            return None;
        }
        for &input in inputs {
            let is_full = full_element(cx, input).is_some();
            (is_full || cx.graph.ty(input).numel() == count).then_some(())?;
            self.collect(cx, input, through_integers)?;
        }
        self.nodes.push(value);
        Some(())
    }

    /// The results of a node over values of the function, for these integers.
    pub fn evaluate_node(
        &self,
        cx: ClosedFormContext<'_>,
        integers: &[i64],
        (op, inputs, dtype): (&Op, &[ValueId], DType),
    ) -> Option<Vec<f64>> {
        let (mut graph, new, data) = self.build(cx, integers)?;
        let ty = TensorType::new(dtype, vec![Dim::from(i64::try_from(integers.len()).ok()?)]);
        let value = add_over(&mut graph, cx, &new, op, inputs, ty)?;
        run(graph, value, data).map(|values| values.to_f64())
    }

    /// The last value of the function for these integers.
    pub fn evaluate(&self, cx: ClosedFormContext<'_>, integers: &[i64]) -> Option<Tensor> {
        let (graph, new, data) = self.build(cx, integers)?;
        let &last = new.get(self.nodes.last()?)?;
        run(graph, last, data)
    }

    /// A graph of the nodes over these integers, and its value for each value of the function.
    fn build(
        &self,
        cx: ClosedFormContext<'_>,
        integers: &[i64],
    ) -> Option<(Graph, HashMap<ValueId, ValueId>, Arc<Tensor>)> {
        let source = self.of?;
        let shape = vec![Dim::from(i64::try_from(integers.len()).ok()?)];
        let mut graph = Graph { ranks: Some(1), ..Graph::new("function") };
        let dtype = cx.graph.ty(source).dtype;
        let data = Arc::new(Tensor::from_i64(dtype, vec![integers.len()], integers)?);
        let ty = TensorType::new(dtype, shape.clone());
        let x = graph.add_input(InputKind::Constant, "x", "", ty, Some(data.clone()));
        let mut new = HashMap::from([(source, x)]);
        for &value in &self.nodes {
            let (op, inputs) = cx.graph.definition(value)?;
            let ty = TensorType::new(cx.graph.ty(value).dtype, shape.clone());
            let added = add_over(&mut graph, cx, &new, op, inputs, ty)?;
            new.insert(value, added);
        }
        Some((graph, new, data))
    }
}

fn run(mut graph: Graph, value: ValueId, data: Arc<Tensor>) -> Option<Tensor> {
    graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
    let outputs = interp::run(&graph, &SymbolBindings::new(), &[vec![data]]).ok()?;
    outputs.into_iter().next()?.into_iter().next()
}

/// Adds a node with operands that stand in `new` or are full of one element.
fn add_over(
    graph: &mut Graph,
    cx: ClosedFormContext<'_>,
    new: &HashMap<ValueId, ValueId>,
    op: &Op,
    inputs: &[ValueId],
    ty: TensorType,
) -> Option<ValueId> {
    let mut add = |op: Op, operands: Vec<ValueId>, ty: TensorType| {
        let name = format!("v{}", graph.values.len());
        let node = graph.add_node(op, operands, vec![(name, ty)]);
        graph.nodes[node].outputs[0]
    };
    let mut operands = Vec::with_capacity(inputs.len());
    for operand in inputs {
        operands.push(match new.get(operand) {
            Some(&value) => value,
            None => {
                let full = TensorType::new(cx.graph.ty(*operand).dtype, ty.shape.clone());
                add(Op::Full(full_element(cx, *operand)?), vec![], full)
            }
        });
    }
    Some(add(op.clone(), operands, ty))
}

/// The least and the greatest element of an integer value, from evaluating it as a function of an integer from
/// which it is computed. `range` returns all integers that such a value can be, if they are few. Of several
/// integers, the one whose evaluation shows most counts.
pub fn evaluated_bounds(
    cx: ClosedFormContext<'_>,
    value: ValueId,
    mut range: impl FnMut(ValueId) -> Option<Vec<i64>>,
) -> Option<[i64; 2]> {
    let mut candidates = vec![value];
    let mut next = 0;
    let mut best: Option<[i64; 2]> = None;
    while let Some(&candidate) = candidates.get(next).filter(|_| next <= MAX_FUNCTION_NODES) {
        next += 1;
        if candidate != value
            && is_integer(cx.graph.ty(candidate).dtype)
            && let Some(function) = IntegerFunction::of_integer(cx, value, candidate)
            && let Some(integers) = range(candidate)
            && let Some(values) = function.evaluate(cx, &integers).map(|values| values.to_i64())
            && let (Some(&least), Some(&greatest)) = (values.iter().min(), values.iter().max())
        {
            let [low, high] = best.unwrap_or([least, greatest]);
            best = Some([low.max(least), high.min(greatest)]);
        }
        let operands =
            cx.graph.definition(candidate).filter(|(op, _)| op.is_element_wise() || **op == Op::Reshape);
        for &operand in operands.map_or(&[][..], |(_, inputs)| inputs) {
            if !candidates.contains(&operand) {
                candidates.push(operand);
            }
        }
    }
    best
}
