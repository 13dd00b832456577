//! A view of one node for the rule that lowers it: operands by position and attributes by name.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use symmc_import::{Compositions, Emit, RuleCall, invalid, unsupported, unsupported_if};
use symmc_ir::{DType, Dim, GraphBuilder, InputKind, Op, Scalar, Tensor, TensorType, ValueDef, ValueId};

use crate::error::FailureReason;
use crate::known_values::{KnownValue, SizeCondition, SymbolicInts, type_of_tensor, uniform_scalar};
use crate::lower::{EmitResult, ImportLowering, RuleFailure, RuleResult};
use crate::node::{describe_attribute, node_label};
use crate::proto::{self, attribute_type as kind};
use crate::schemas::OpSchema;
use crate::scope::NameBinding;
use crate::tensor_data;

#[derive(Clone, Copy, Debug)]
pub(crate) enum CallOperand {
    Tensor(ValueId),
    Scalar(Scalar),
}

/// A rule: a function that emits the graph nodes of one call.
type RuleFn<T> = for<'a, 'c, 'p> fn(&'a mut OpCall<'c, 'p>) -> RuleResult<T>;

pub(crate) type OpRule = symmc_import::OpRule<RuleFn<ValueId>, RuleFn<()>>;

/// A rule, and the newest version of the op that it supports. A later version that
/// [`schemas`](crate::schemas) has is rejected.
pub(crate) struct VersionedRule {
    pub up_to: i64,
    pub rule: OpRule,
}

/// A row of a rule table. The name of an op outside ONNX's own domain starts with its domain and two colons.
pub(crate) type RuleRow = symmc_import::RuleRow<VersionedRule>;

pub(crate) const fn row(
    name: &'static str,
    up_to: i64,
    becomes: &'static str,
    value: RuleFn<ValueId>,
) -> RuleRow {
    RuleRow { names: name, becomes, rule: VersionedRule { up_to, rule: OpRule::Value(value) } }
}

pub(crate) const fn row_of_results(
    name: &'static str,
    up_to: i64,
    becomes: &'static str,
    results: RuleFn<()>,
) -> RuleRow {
    RuleRow { names: name, becomes, rule: VersionedRule { up_to, rule: OpRule::Results(results) } }
}

/// A node while its rule runs.
pub(crate) struct OpCall<'c, 'p> {
    pub lowering: &'c mut ImportLowering<'p>,
    pub node: &'p proto::NodeProto,
    /// The version of the operator set of the node's domain.
    pub version: i64,
    /// The prefix of the names of emitted values.
    pub label: String,
    schema: &'static OpSchema,
    results: Vec<Option<NameBinding<'p>>>,
    read: RefCell<ReadMarks>,
    /// Values from this index on were emitted by this call.
    first_new: usize,
}

/// The shortest decimal that parses to an f32, so that 1e-5 does not become the nearest f32 in f64.
fn shortest_decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn require_operand<T>(i: usize, found: Option<T>) -> RuleResult<T> {
    found.ok_or_else(|| RuleFailure::Invalid(format!("expected an operand {i}, found none")))
}

impl RuleCall for OpCall<'_, '_> {
    fn set_result(&mut self, result: usize, value: ValueId) {
        self.bind_result(result, NameBinding::Value(value));
    }

    fn compositions_mut(&mut self) -> &mut Compositions {
        &mut self.lowering.compositions
    }
}

impl Emit for OpCall<'_, '_> {
    type Error = FailureReason;

    fn builder(&self) -> &GraphBuilder {
        &self.lowering.builder
    }

    fn builder_mut(&mut self) -> &mut GraphBuilder {
        &mut self.lowering.builder
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn guard(&self) -> Option<ValueId> {
        self.lowering.guard
    }

    fn emit_adapted(
        &mut self,
        hint: &str,
        op: &Op,
        inputs: &[ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<Option<Vec<ValueId>>> {
        self.emit_counted(hint, op, inputs, types)
    }
}

/// The operands and attributes of a node that its rule has read, by position.
#[derive(Default)]
struct ReadMarks {
    operands: HashSet<usize>,
    attributes: HashSet<usize>,
}

impl<'c, 'p> OpCall<'c, 'p> {
    /// A call of a node that [`OpSchema::check_node`] accepts.
    pub fn new(
        lowering: &'c mut ImportLowering<'p>,
        node: &'p proto::NodeProto,
        version: i64,
        schema: &'static OpSchema,
    ) -> Self {
        let first_new = lowering.builder.graph().values.len();
        let label = format!("{}{}", lowering.scope.prefix, node_label(node));
        let results = vec![None; node.output.len()];
        let read = RefCell::default();
        OpCall { results, read, schema, version, label, first_new, lowering, node }
    }

    /// Forgets which operands and attributes were read, before another rule reads them.
    pub fn reset_reads(&self) {
        self.read.take();
    }

    /// Fails if the rule did not read an operand, or an attribute whose value is not the default.
    fn check_all_read(&self) -> RuleResult {
        let node = self.node;
        let read = self.read.take();
        for (i, name) in node.input.iter().enumerate() {
            unsupported_if!(
                !read.operands.contains(&i) && self.operand_name(i).is_some(),
                "operand {i} (`{name}`) is not supported"
            );
        }
        for (_, a) in node.attribute.iter().enumerate().filter(|(i, _)| !read.attributes.contains(i)) {
            let Some(attribute) = self.resolve_attribute(a) else { continue };
            unsupported_if!(
                !self.schema.attribute(&a.name).is_some_and(|s| s.is_default(attribute)),
                "the attribute {} is not supported",
                describe_attribute(attribute)
            );
        }
        Ok(())
    }

    // Operands.

    /// The name of an operand; `None` if it is omitted.
    pub fn operand_name(&self, i: usize) -> Option<&'p str> {
        let node = self.node;
        self.read.borrow_mut().operands.insert(i);
        let name = node.input.get(i).map(String::as_str).filter(|n| !n.is_empty());
        name.filter(|n| !matches!(self.lowering.scope.get(n), Some((_, NameBinding::Omitted))))
    }

    pub fn opt_tensor(&mut self, i: usize) -> RuleResult<Option<ValueId>> {
        self.operand_name(i).map(|name| self.lowering.resolve_value(name)).transpose()
    }

    pub fn tensor(&mut self, i: usize) -> EmitResult {
        require_operand(i, self.opt_tensor(i)?)
    }

    /// The first operands, which must be tensors.
    pub fn first_tensors<const N: usize>(&mut self) -> RuleResult<[ValueId; N]> {
        let values = (0..N).map(|i| self.tensor(i)).collect::<RuleResult<Vec<_>>>()?;
        values.try_into().map_err(|_| RuleFailure::Invalid(format!("expected {N} operands")))
    }

    pub fn tensors(&mut self) -> RuleResult<Vec<ValueId>> {
        let count = self.node.input.len();
        if count == 0 {
            return invalid!("expected at least one operand, found none");
        }
        (0..count).map(|i| self.tensor(i)).collect()
    }

    pub fn known_value(&mut self, i: usize) -> RuleResult<Option<KnownValue>> {
        let Some(name) = self.operand_name(i) else { return Ok(None) };
        Ok(match self.lowering.resolve_name(name)? {
            NameBinding::Known(value, _) => Some(value),
            _ => None,
        })
    }

    pub fn operand_type(&mut self, i: usize) -> RuleResult<TensorType> {
        let name = require_operand(i, self.operand_name(i))?;
        Ok(match self.lowering.resolve_name(name)? {
            NameBinding::Known(KnownValue::Data(data), None) => type_of_tensor(&data),
            NameBinding::Known(KnownValue::Ints(ints), None) => {
                let shape: Vec<Dim> = ints.shape.iter().map(|&d| Dim::from(d as i64)).collect();
                TensorType::new(ints.dtype, shape)
            }
            _ => {
                let v = self.lowering.resolve_value(name)?;
                self.ty(v).clone()
            }
        })
    }

    pub fn constant_data(&mut self, i: usize) -> RuleResult<Option<Arc<Tensor>>> {
        Ok(match self.known_value(i)? {
            Some(KnownValue::Data(data)) => Some(data),
            _ => None,
        })
    }

    /// The numbers in an optional operand. Fails if it is present and not known at import.
    pub fn opt_floats(&mut self, i: usize, what: &str) -> RuleResult<Option<Vec<f64>>> {
        let Some(name) = self.operand_name(i) else { return Ok(None) };
        let stored = self.lowering.stored_data(name)?;
        let data = match stored {
            Some(data) => Some(data),
            None => self.constant_data(i)?,
        };
        match data {
            Some(data) => Ok(Some(data.to_f64())),
            None if self.operand_type(i)?.numel().as_const() == Some(0) => Ok(None),
            None => unsupported!("`{name}` ({what}) is not known at import"),
        }
    }

    /// A tensor, or its number if that is known and the operand has at most `rank` axes.
    pub fn operand(&mut self, i: usize, rank: usize) -> RuleResult<CallOperand> {
        if let Some(data) = self.constant_data(i)?
            && data.numel() == 1
            && data.shape().len() <= rank
            && let Some(scalar) = uniform_scalar(&data)
        {
            return Ok(CallOperand::Scalar(scalar));
        }
        self.tensor(i).map(CallOperand::Tensor)
    }

    /// The number in a one-element operand, if it is known.
    pub fn scalar(&mut self, i: usize) -> RuleResult<Option<Scalar>> {
        let data = self.constant_data(i)?.filter(|d| d.numel() == 1);
        Ok(data.and_then(|d| uniform_scalar(&d)))
    }

    /// The elements of an integer operand. Fails if they are not known at import.
    pub fn ints(&mut self, i: usize, what: &str) -> RuleResult<SymbolicInts> {
        match self.opt_ints(i, what)? {
            Some(ints) => Ok(ints),
            None => invalid!("expected {what} as operand {i}, found none"),
        }
    }

    /// The elements of an optional integer operand. Fails if it is present and not known at import.
    pub fn opt_ints(&mut self, i: usize, what: &str) -> RuleResult<Option<SymbolicInts>> {
        let Some(name) = self.operand_name(i) else { return Ok(None) };
        if let Some(ints) = self.known_value(i)?.and_then(|k| k.as_ints()) {
            return Ok(Some(ints));
        }
        let is_parameter = match self.lowering.resolve_name(name)? {
            NameBinding::Value(v) => {
                let graph = self.lowering.builder.graph();
                matches!(graph.values[v].def, ValueDef::Input(i) if graph.inputs[i].kind == InputKind::Parameter)
            }
            _ => false,
        };
        let why = if is_parameter {
            "it is a parameter or differs between the ranks"
        } else {
            "it depends on data"
        };
        unsupported!("`{name}` ({what}) is not known at import: {why}")
    }

    /// The elements of an optional integer operand. Fails if they are not constants.
    pub fn opt_consts(&mut self, i: usize, what: &str) -> RuleResult<Option<Vec<i64>>> {
        let Some(ints) = self.opt_ints(i, what)? else { return Ok(None) };
        let consts = ints.dims.iter().map(Dim::as_const).collect::<Option<Vec<_>>>();
        consts.map(Some).ok_or_else(|| {
            RuleFailure::Opaque(format!("expected constants as {what}, found symbolic values"))
        })
    }

    /// An extent with the names of its symbols, for messages.
    pub fn display_dim(&self, dim: &Dim) -> String {
        dim.display(&self.lowering.symbols.table).to_string()
    }

    // Attributes.

    /// The attribute of this name. A reference to an attribute of the enclosing function is resolved.
    pub fn attribute(&self, name: &str) -> Option<&'p proto::AttributeProto> {
        let node = self.node;
        let (index, attribute) = node.attribute.iter().enumerate().find(|(_, a)| a.name == name)?;
        self.read.borrow_mut().attributes.insert(index);
        self.resolve_attribute(attribute)
    }

    /// The attribute itself, or the attribute of the enclosing function that it refers to.
    fn resolve_attribute(&self, a: &'p proto::AttributeProto) -> Option<&'p proto::AttributeProto> {
        self.lowering.scope.resolve_attribute(a)
    }

    /// Marks attributes as read that do not affect the emitted nodes.
    pub fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    fn typed_attribute(
        &self,
        name: &str,
        expected: i32,
        what: &str,
    ) -> RuleResult<Option<&'p proto::AttributeProto>> {
        match self.attribute(name) {
            Some(a) if a.r#type != expected => {
                invalid!("expected {what} as `{name}`, found {}", describe_attribute(a))
            }
            found => Ok(found),
        }
    }

    pub fn opt_int(&self, name: &str) -> RuleResult<Option<i64>> {
        Ok(self.typed_attribute(name, kind::INT, "an integer")?.map(|a| a.i))
    }

    pub fn int_or(&self, name: &str, default: i64) -> RuleResult<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    pub fn int(&self, name: &str) -> RuleResult<i64> {
        let value = self.opt_int(name)?;
        value.ok_or_else(|| RuleFailure::Invalid(format!("expected an attribute `{name}`, found none")))
    }

    pub fn flag(&self, name: &str) -> RuleResult<bool> {
        Ok(self.int_or(name, 0)? != 0)
    }

    pub fn opt_float(&self, name: &str) -> RuleResult<Option<f64>> {
        let attribute = self.typed_attribute(name, kind::FLOAT, "a number")?;
        Ok(attribute.map(|a| shortest_decimal(a.f)))
    }

    pub fn float_or(&self, name: &str, default: f64) -> RuleResult<f64> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    pub fn opt_attribute_ints(&self, name: &str) -> RuleResult<Option<&'p [i64]>> {
        Ok(self.typed_attribute(name, kind::INTS, "integers")?.map(|a| a.ints.as_slice()))
    }

    pub fn opt_attribute_floats(&self, name: &str) -> RuleResult<Option<Vec<f64>>> {
        let attribute = self.typed_attribute(name, kind::FLOATS, "numbers")?;
        Ok(attribute.map(|a| a.floats.iter().map(|f| shortest_decimal(*f)).collect()))
    }

    pub fn opt_string(&self, name: &str) -> RuleResult<Option<&'p str>> {
        let Some(a) = self.typed_attribute(name, kind::STRING, "a string")? else { return Ok(None) };
        let text = std::str::from_utf8(&a.s);
        text.map(Some).map_err(|_| RuleFailure::Invalid(format!("expected UTF-8 as `{name}`")))
    }

    pub fn attribute_data(&self, name: &str) -> RuleResult<Option<Arc<Tensor>>> {
        let Some(a) = self.typed_attribute(name, kind::TENSOR, "a tensor")? else { return Ok(None) };
        let Some(t) = a.t.as_deref() else { return invalid!("expected a tensor as `{name}`, found none") };
        let data = self.lowering.tensor_files.read_tensor(t);
        data.map(Some).map_err(|m| RuleFailure::Invalid(format!("`{name}`: {m}")))
    }

    pub fn opt_dtype(&self, name: &str) -> RuleResult<Option<DType>> {
        let Some(code) = self.opt_int(name)? else { return Ok(None) };
        match tensor_data::dtype_from_code(i32::try_from(code).unwrap_or(-1)) {
            Ok(d) => Ok(Some(d)),
            Err(found) => unsupported!("{found} is not supported"),
        }
    }

    /// The axis counted from 0. Negative axes count from the end of `rank` axes.
    pub fn resolve_axis(&self, axis: i64, rank: usize) -> RuleResult<usize> {
        self.axis_within(axis, rank)
    }

    pub fn axis_or(&self, name: &str, default: i64, rank: usize) -> RuleResult<usize> {
        self.resolve_axis(self.int_or(name, default)?, rank)
    }

    /// The ascending axes in operand `i` or, in older versions, in the attribute `axes`. `None` if neither is
    /// present.
    pub fn axes(&mut self, i: usize, rank: usize) -> RuleResult<Option<Vec<usize>>> {
        let axes = match self.opt_consts(i, "axes")? {
            Some(axes) => Some(axes),
            None => self.opt_attribute_ints("axes")?.map(<[i64]>::to_vec),
        };
        axes.map(|axes| self.axes_within(&axes, rank)).transpose()
    }

    // Results.

    pub fn result_count(&self) -> usize {
        self.results.len()
    }

    /// Whether the program reads a result.
    pub fn is_result_read(&self, result: usize) -> bool {
        let name = self.node.output.get(result).filter(|n| !n.is_empty());
        name.is_some_and(|n| self.lowering.scope.is_read(n))
    }

    /// The declared type of a result, if it is completely known.
    pub fn declared_result_type(&self, result: usize) -> RuleResult<Option<TensorType>> {
        match self.node.output.get(result) {
            Some(name) => Ok(self.lowering.declared_type(name)?),
            None => Ok(None),
        }
    }

    fn bind_result(&mut self, result: usize, binding: NameBinding<'p>) {
        if let Some(slot) = self.results.get_mut(result) {
            *slot = Some(binding);
        }
    }

    pub fn set_known(&mut self, result: usize, known: KnownValue) {
        self.bind_result(result, NameBinding::Known(known, None));
    }

    /// Records which condition on sizes the only result is.
    pub fn record_size_condition(&mut self, condition: SizeCondition) {
        if let Some(name) = self.node.output.first() {
            self.lowering.scope.size_conditions.insert(name, condition);
        }
    }

    pub fn sequence(&mut self, i: usize) -> RuleResult<Vec<ValueId>> {
        let name = require_operand(i, self.operand_name(i))?;
        match self.lowering.resolve_name(name)? {
            NameBinding::Sequence(tensors) => Ok(tensors),
            _ => invalid!("expected a sequence, found the tensor `{name}`"),
        }
    }

    /// Makes the only result a sequence.
    pub fn set_sequence(&mut self, parts: Vec<ValueId>) {
        self.bind_result(0, NameBinding::Sequence(parts));
    }

    /// Makes the only result the same value as an operand.
    pub fn forward_operand(&mut self, i: usize) -> RuleResult {
        let name = require_operand(i, self.operand_name(i))?;
        let binding = self.lowering.resolve_name(name)?;
        self.bind_result(0, binding);
        Ok(())
    }

    pub fn result_values(&self) -> Vec<Option<ValueId>> {
        let bindings = self.results.iter();
        let values = bindings.map(|binding| match binding {
            Some(NameBinding::Value(v)) => Some(*v),
            _ => None,
        });
        values.collect()
    }

    pub fn clear_result_values(&mut self) {
        for result in &mut self.results {
            result.take_if(|b| matches!(b, NameBinding::Value(_) | NameBinding::Sequence(_)));
        }
    }

    pub fn finish(self) -> RuleResult {
        self.check_all_read()?;
        let OpCall { lowering, node, results, first_new, .. } = self;
        for (name, binding) in node.output.iter().zip(results) {
            if name.is_empty() {
                continue;
            }
            let Some(binding) = binding else {
                let why = format!("a result of {} that is not supported", node.op_type);
                lowering.scope.bind(name, NameBinding::Unavailable(why)).map_err(RuleFailure::Invalid)?;
                continue;
            };
            let ty = match &binding {
                NameBinding::Value(v) => Some(lowering.builder.graph().ty(*v).clone()),
                NameBinding::Known(KnownValue::Data(data), _) => Some(type_of_tensor(data)),
                _ => None,
            };
            if let Some(ty) = ty {
                lowering.check_declared(node, name, &ty)?;
            }
            if let NameBinding::Value(v) = binding
                && symmc_ir::entity::Entity::index(v) >= first_new
                && lowering.builder.graph().value_name(v) != name
            {
                let shown = format!("{}{name}", lowering.scope.prefix);
                lowering.builder.rename(v, &shown)?;
            }
            lowering.scope.bind(name, binding).map_err(RuleFailure::Invalid)?;
        }
        Ok(())
    }
}
