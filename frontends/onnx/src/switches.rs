//! Arguments that select branches, such as a sampling rate.
//!
//! A condition or a number of iterations may depend on an argument of one integer and on constants only. If the caller
//! states the value of such an argument, or it is recorded, the import takes it for a constant. A run with another value
//! is an error: an output of the program is then read at a position that it does not have.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use symmc_import::Emit;
use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, Tensor, TensorType, ValueId};

use crate::control_flow;
use crate::emit::DetachedEmitter;
use crate::known_values::KnownValue;
use crate::lower::{EmitResult, ImportLowering, RuleFailure};
use crate::proto;
use crate::scope::NameBinding;

/// The values of arguments that the caller states, and the recorded ones.
#[derive(Clone, Default)]
pub(crate) struct ArgumentValues {
    stated: HashMap<String, i64>,
    recorded: HashMap<String, i64>,
    switches: HashSet<String>,
}

/// An argument that is taken for a constant.
pub(crate) struct FixedArgument {
    pub value: ValueId,
    pub number: i64,
}

/// Whether an argument is one integer or bool.
fn is_single_integer(argument: &proto::ValueInfoProto) -> bool {
    let ty = argument.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let dtype = ty.and_then(|t| crate::tensor_data::dtype_from_code(t.elem_type).ok());
    let is_single =
        ty.and_then(|t| t.shape.as_ref()).is_some_and(|s| s.dim.iter().all(|d| d.dim_value == Some(1)));
    dtype.is_some_and(|d| !d.is_float()) && is_single
}

impl ArgumentValues {
    /// Takes the constraints of integer arguments out of those of symbols. `recorded` are the values of the arguments of
    /// one integer, by their positions.
    pub fn new(
        graph: &proto::GraphProto,
        arguments: &[&proto::ValueInfoProto],
        recorded: &[Option<i64>],
        constraints: &mut SymbolConstraints,
    ) -> ArgumentValues {
        let mut values = ArgumentValues::default();
        for (i, argument) in arguments.iter().enumerate().filter(|(_, a)| is_single_integer(a)) {
            if let Some(Some(number)) = recorded.get(i) {
                values.recorded.insert(argument.name.clone(), *number);
            }
            constraints.constraints.retain(|(name, constraint)| match constraint {
                SymbolConstraint::Range { min: Some(min), max: Some(max) }
                    if min == max && *name == argument.name =>
                {
                    values.stated.insert(name.clone(), *min);
                    false
                }
                _ => true,
            });
        }
        values.switches = find_switches(graph, arguments);
        values
    }
}

impl<'p> ImportLowering<'p> {
    /// Binds an argument to the value that it is taken for, if there is one.
    pub fn fix_argument(&mut self, name: &'p str, value: ValueId) -> Result<NameBinding<'p>, String> {
        let values = &self.argument_values;
        let recorded = values.recorded.get(name).filter(|_| values.switches.contains(name));
        let Some(&number) = values.stated.get(name).or(recorded) else {
            return Ok(NameBinding::Value(value));
        };
        if !values.stated.contains_key(name) {
            self.notes
                .push(format!("assuming `{name}` is {number}, the recorded value: branches depend on it"));
        }
        let ty = self.builder.graph().ty(value);
        let shape = vec![1; ty.rank()];
        let data = Tensor::from_i64(ty.dtype, shape, &[number])
            .ok_or_else(|| format!("expected a value that {} has, found {number}", ty.dtype))?;
        self.fixed_arguments.push(FixedArgument { value, number });
        Ok(NameBinding::Known(KnownValue::Data(Arc::new(data)), Some(value)))
    }

    /// The output, read at a position that it has only if all arguments have the values that they were taken for.
    pub fn check_fixed_arguments(&mut self, output: ValueId) -> EmitResult {
        let mut differs: Option<ValueId> = None;
        let mut emitter = DetachedEmitter { builder: &mut self.builder, label: "fixed_arguments" };
        for FixedArgument { value, number } in &self.fixed_arguments {
            let argument = emitter.cast(*value, DType::I64)?;
            let argument = emitter.reshape(argument, vec![])?;
            let own = emitter.binary_scalar(BinaryOp::Ne, argument, Scalar::Int(*number))?;
            differs = Some(match differs {
                Some(others) => emitter.binary(BinaryOp::Or, others, own)?,
                None => own,
            });
        }
        let Some(differs) = differs else { return Ok(output) };
        let position = emitter.cast(differs, DType::I64)?;
        let ty = emitter.ty(output).clone();
        let stacked = [&[Dim::from(1)], ty.shape.as_slice()].concat();
        symmc_ir::dim::check_shape_complexity(&stacked).map_err(RuleFailure::Invalid)?;
        let output = emitter.reshape(output, stacked)?;
        emitter.emit_as(
            "take",
            Op::Take { axis: 0 },
            &[output, position],
            TensorType::new(ty.dtype, ty.shape),
        )
    }
}

/// The arguments of one integer on which, with constants, conditions and numbers of iterations depend.
fn find_switches(graph: &proto::GraphProto, arguments: &[&proto::ValueInfoProto]) -> HashSet<String> {
    let mut nodes = Vec::new();
    collect_nodes(graph, &mut nodes);
    let producers: HashMap<&str, &proto::NodeProto> =
        nodes.iter().flat_map(|n| n.output.iter().map(move |o| (o.as_str(), *n))).collect();
    let by_name: HashMap<&str, &proto::ValueInfoProto> =
        arguments.iter().map(|a| (a.name.as_str(), *a)).collect();
    let mut switches = HashSet::new();
    for node in nodes.iter().filter(|n| control_flow::is_control_flow(n)) {
        let count = if node.op_type == "If" { 1 } else { 2 };
        for condition in node.input.iter().take(count).filter(|n| !n.is_empty()) {
            let mut found = HashSet::new();
            let mut visited = HashSet::new();
            let mut open = vec![condition.as_str()];
            let mut depends_on_others = false;
            while let Some(name) = open.pop() {
                if !visited.insert(name) || name.is_empty() {
                    continue;
                }
                match (by_name.get(name), producers.get(name)) {
                    (Some(argument), _) if is_single_integer(argument) => {
                        found.insert(name.to_string());
                    }
                    (Some(_), _) => depends_on_others = true,
                    (None, Some(producer)) => open.extend(producer.input.iter().map(String::as_str)),
                    // A stored tensor.
                    (None, None) => {}
                }
            }
            if !depends_on_others {
                switches.extend(found);
            }
        }
    }
    switches
}

fn collect_nodes<'g>(graph: &'g proto::GraphProto, nodes: &mut Vec<&'g proto::NodeProto>) {
    for node in &graph.node {
        nodes.push(node);
        for inner in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
            collect_nodes(inner, nodes);
        }
    }
}
