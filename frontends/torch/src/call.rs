//! A view of one node for the rule that lowers it: access to its arguments by the names of PyTorch's op
//! schemas.
//!
//! The program omits arguments that have their default value. Every accessor of an optional argument
//! therefore returns `None` both for a missing argument and for an explicit none; rules supply the default.
//! An argument that the rule does not read is an error, because its effect would be lost.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use symmc_import::{Emit, invalid, unsupported};
use symmc_ir::{DType, Dim, Scalar, ValueId};

use crate::dtype;
use crate::lower::{EmitResult, ImportLowering, RuleFailure, RuleResult};
use crate::per_rank::{PerRankArgument, PerRankNumbers};
use crate::schema::{Argument, ExportedNode, NamedArgument, SymArgument, SymInt};
use crate::scope::{NameBinding, tensor_names};

#[derive(Clone, Debug)]
pub(crate) enum CallOperand {
    Tensor(ValueId),
    Scalar(Scalar),
    /// An integer that is an expression of the program's symbols.
    Dim(Dim),
    /// A float expression of the program's symbols, in PyTorch's notation.
    FloatExpr(String),
}

impl CallOperand {
    /// The operand with a number rounded to this dtype. Some kernels take a number only in the dtype of the
    /// tensor.
    pub fn rounded_to(&self, dtype: DType) -> CallOperand {
        match self {
            CallOperand::Scalar(s) => CallOperand::Scalar(dtype::round_scalar(*s, dtype)),
            other => other.clone(),
        }
    }
}

/// Arguments that affect how a tensor is stored, but not its value.
const IMMATERIAL: [&str; 6] =
    ["device", "layout", "memory_format", "non_blocking", "pin_memory", "requires_grad"];

/// A rule: a function that emits the graph nodes of one call.
type RuleFn<T> = for<'a, 'c, 'p> fn(&'a mut OpCall<'c, 'p>) -> RuleResult<T>;

pub(crate) type OpRule = symmc_import::OpRule<RuleFn<ValueId>, RuleFn<()>>;

/// A row of a rule table: the targets without `torch.ops.`, the ops that they become, and their rule.
pub(crate) type RuleRow = symmc_import::RuleRow<OpRule>;

pub(crate) const fn row(names: &'static str, becomes: &'static str, value: RuleFn<ValueId>) -> RuleRow {
    RuleRow { names, becomes, rule: OpRule::Value(value) }
}

pub(crate) const fn row_of_results(
    names: &'static str,
    becomes: &'static str,
    results: RuleFn<()>,
) -> RuleRow {
    RuleRow { names, becomes, rule: OpRule::Results(results) }
}

/// A node while its rule runs.
pub(crate) struct OpCall<'c, 'p> {
    pub lowering: &'c mut ImportLowering<'p>,
    pub node: &'p ExportedNode<'p>,
    /// The prefix of the names of emitted values.
    pub label: String,
    /// The arguments of the node, without those that a wrapper puts first.
    inputs: &'p [NamedArgument<'p>],
    /// Arguments that a wrapper passes in another form.
    overrides: Vec<(&'p str, ValueId)>,
    /// Values that replace tensors by name, while a rule is applied to components of complex tensors.
    parts: Option<HashMap<&'p str, ValueId>>,
    /// The element of list arguments to use, while an op is applied to one element after the other.
    element: Option<usize>,
    /// Pairs of the name that a rule asks for and the names that ops have for the argument.
    renamed: &'static [(&'static str, &'static str)],
    read: RefCell<HashSet<&'p str>>,
    /// Whether all results are wanted, even if the program does not name them.
    pub wants_all: bool,
    /// Whether integer arguments are extents, so that one that depends on data stands for its capacity.
    pub extent_arguments: bool,
    results: Vec<Option<&'p str>>,
    pub result_values: Vec<Option<ValueId>>,
    /// Values from this index on were emitted by this call.
    first_new: usize,
}

fn require_argument<T>(name: &str, found: Option<T>) -> RuleResult<T> {
    found.ok_or_else(|| RuleFailure::Invalid(format!("expected an argument `{name}`, found none")))
}

impl<'c, 'p> OpCall<'c, 'p> {
    pub fn new(lowering: &'c mut ImportLowering<'p>, node: &'p ExportedNode<'p>) -> Self {
        let results = node.results();
        let first_new = lowering.builder.graph().values.len();
        let label = format!("{}{}", lowering.scope.prefix, node.name());
        OpCall {
            result_values: vec![None; results.len()],
            results,
            label,
            first_new,
            lowering,
            node,
            inputs: &node.inputs,
            overrides: Vec::new(),
            parts: None,
            element: None,
            renamed: &[],
            read: RefCell::default(),
            wants_all: false,
            extent_arguments: false,
        }
    }

    /// Makes the arguments those after the first `skip`, with values for some that are missing among them.
    pub fn override_arguments(&mut self, skip: usize, given: Vec<(&'p str, ValueId)>) {
        self.inputs = self.node.inputs.get(skip..).unwrap_or_default();
        self.overrides = given;
    }

    /// Applies a rule to each element of list arguments. Returns the results; fails if the rule gives none
    /// for an element.
    pub fn apply_to_elements(
        &mut self,
        count: usize,
        renamed: &'static [(&'static str, &'static str)],
        rule: OpRule,
    ) -> RuleResult<Vec<ValueId>> {
        let mut values = Vec::with_capacity(count);
        self.renamed = renamed;
        for i in 0..count {
            self.element = Some(i);
            self.result_values.fill(None);
            rule.apply(self)?;
            match self.result(0) {
                Some(value) => values.push(value),
                None => return invalid!("expected a result for element {i}, found none"),
            }
        }
        self.element = None;
        self.renamed = &[];
        self.result_values.fill(None);
        Ok(values)
    }

    /// Applies a rule while `parts` replace tensors by name. The parts are the real or the imaginary
    /// components of complex tensors, and complex dtypes mean the dtype of a component.
    pub fn apply_to_components(
        &mut self,
        parts: HashMap<&'p str, ValueId>,
        rule: OpRule,
    ) -> RuleResult<Vec<Option<ValueId>>> {
        self.parts = Some(parts);
        let done = rule.apply(self);
        self.parts = None;
        done.map(|()| self.take_results())
    }

    // Arguments.

    /// The argument of this name. `None` if it is absent or an explicit none.
    pub fn get(&self, name: &str) -> Option<&'p Argument<'p>> {
        let argument = self.read_input(name).or_else(|| {
            let names = self.renamed.iter().filter(|(requested, _)| *requested == name);
            names.flat_map(|(_, others)| others.split(' ')).find_map(|other| self.read_input(other))
        });
        argument.filter(|a| !matches!(a, Argument::None))
    }

    /// The argument of this name as the program states it. `None` if the program omits it.
    pub fn stated_argument(&self, name: &str) -> Option<&'p Argument<'p>> {
        self.read_input(name)
    }

    fn read_input(&self, name: &str) -> Option<&'p Argument<'p>> {
        let input = self.inputs.iter().find(|i| &*i.name == name)?;
        self.read.borrow_mut().insert(&input.name);
        Some(&input.arg)
    }

    /// The argument at a position, for targets whose arguments have no names.
    pub fn argument_at(&self, index: usize) -> Option<&'p Argument<'p>> {
        let input = self.inputs.get(index)?;
        self.read.borrow_mut().insert(&input.name);
        Some(&input.arg)
    }

    /// Marks arguments as read that do not affect the results.
    pub fn ignore(&self, names: &[&str]) {
        for name in names {
            self.get(name);
        }
    }

    /// Marks all arguments as read.
    pub fn ignore_all(&self) {
        self.read.borrow_mut().extend(self.inputs.iter().map(|i| &*i.name));
    }

    /// Fails if the rule did not read an argument that the program passes.
    pub fn check_all_read(&self) -> RuleResult {
        let read = self.read.borrow();
        let passed = self.inputs.iter().filter(|i| !matches!(i.arg, Argument::None));
        match passed.into_iter().find(|i| !read.contains(&*i.name) && !IMMATERIAL.contains(&&*i.name)) {
            None => Ok(()),
            Some(i) => {
                let argument = i.arg.describe();
                invalid!("the argument `{}` is not supported, found {argument}", &*i.name)
            }
        }
    }

    /// The dtypes of the tensors in an argument. This does not mark the argument as read.
    pub fn dtypes(&self, name: &str) -> Vec<DType> {
        if let Some(value) = self.override_value(name) {
            return vec![self.dtype(value)];
        }
        let argument = self.inputs.iter().find(|i| &*i.name == name);
        let names = argument.map_or_else(Vec::new, |i| tensor_names(&i.arg));
        names.into_iter().filter_map(|n| self.lowering.scope.value(n).ok()).map(|v| self.dtype(v)).collect()
    }

    /// A number that the program states as an argument. This does not mark the argument as read.
    pub fn plain_number(&self, name: &str) -> Option<Scalar> {
        match self.inputs.iter().find(|i| &*i.name == name)?.arg {
            Argument::Int(i) => Some(Scalar::Int(i)),
            Argument::Float(x) => Some(Scalar::Float(symmc_ir::FloatAttribute(x))),
            Argument::Bool(b) => Some(Scalar::Bool(b)),
            _ => None,
        }
    }

    fn override_value(&self, name: &str) -> Option<ValueId> {
        self.overrides.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }

    /// A tensor, or the current element of a list of tensors.
    fn element_tensor(&self, arg: &Argument<'_>) -> Option<EmitResult> {
        let name = match (arg, self.element) {
            (Argument::Tensor(t), _) => t,
            (Argument::Tensors(list), Some(i)) => match list.get(i) {
                Some(t) => t,
                None => {
                    return Some(invalid!("expected a list of more than {i} tensors, found {}", list.len()));
                }
            },
            _ => return None,
        };
        Some(self.tensor_value(name))
    }

    fn required_argument(&self, name: &str) -> RuleResult<&'p Argument<'p>> {
        require_argument(name, self.get(name))
    }

    fn fail_argument_kind<T>(&self, name: &str, expected: &str, found: &Argument<'_>) -> RuleResult<T> {
        invalid!("expected {expected} as `{name}`, found {}", found.describe())
    }

    fn tensor_value(&self, name: &str) -> EmitResult {
        match self.parts.as_ref().and_then(|parts| parts.get(name)) {
            Some(value) => Ok(*value),
            None => self.lowering.scope.value(name).map_err(RuleFailure::Invalid),
        }
    }

    pub fn opt_tensor(&self, name: &str) -> RuleResult<Option<ValueId>> {
        if let Some(value) = self.override_value(name) {
            return Ok(Some(value));
        }
        let Some(arg) = self.get(name) else { return Ok(None) };
        match self.element_tensor(arg) {
            Some(value) => value.map(Some),
            None => self.fail_argument_kind(name, "a tensor", arg),
        }
    }

    pub fn tensor(&self, name: &str) -> EmitResult {
        require_argument(name, self.opt_tensor(name)?)
    }

    /// The tensors in the arguments of these names.
    pub fn tensors_named<const N: usize>(&self, names: [&str; N]) -> RuleResult<[ValueId; N]> {
        let values = names.into_iter().map(|name| self.tensor(name)).collect::<RuleResult<Vec<_>>>()?;
        values.try_into().map_err(|_| RuleFailure::Invalid(format!("expected {N} operands")))
    }

    /// The first argument, which must be a tensor, whatever its name.
    pub fn first_tensor(&self) -> EmitResult {
        if let Some(value) = self.override_value("self").or_else(|| self.override_value("input")) {
            return Ok(value);
        }
        let Some(arg) = self.argument_at(0) else {
            return invalid!("expected a tensor as first argument, found none");
        };
        match self.element_tensor(arg) {
            Some(value) => value,
            None => self.fail_argument_kind("argument 0", "a tensor", arg),
        }
    }

    pub fn is_list(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Argument::Tensors(_)))
    }

    pub fn tensors(&self, name: &str) -> RuleResult<Vec<ValueId>> {
        match self.required_argument(name)? {
            Argument::Tensors(list) => list.iter().map(|t| self.tensor_value(t)).collect(),
            Argument::Ints(v) if v.is_empty() => Ok(Vec::new()),
            other => self.fail_argument_kind(name, "a list of tensors", other),
        }
    }

    pub fn opt_tensors(&self, name: &str) -> RuleResult<Vec<Option<ValueId>>> {
        match self.required_argument(name)? {
            Argument::Tensors(list) => list.iter().map(|t| self.tensor_value(t).map(Some)).collect(),
            Argument::OptionalTensors(list) => {
                list.iter().map(|t| t.as_ref().map(|t| self.tensor_value(t)).transpose()).collect()
            }
            other => self.fail_argument_kind(name, "a list of tensors", other),
        }
    }

    pub fn operand(&mut self, name: &str) -> RuleResult<CallOperand> {
        require_argument(name, self.opt_operand(name)?)
    }

    pub fn opt_operand(&mut self, name: &str) -> RuleResult<Option<CallOperand>> {
        let Some(arg) = self.get(name) else { return Ok(self.override_value(name).map(CallOperand::Tensor)) };
        if let Some(value) = self.element_tensor(arg) {
            return Ok(Some(CallOperand::Tensor(value?)));
        }
        Ok(Some(match arg {
            Argument::ByRank(b) => CallOperand::Tensor(self.per_rank_input(b)?),
            Argument::SymInt(s) if self.depends_on_data(s)? => CallOperand::Tensor(self.emit_sym_size(s)?),
            Argument::SymInt(s) => match self.sym_int(s)? {
                d if d.as_const().is_some() => CallOperand::Scalar(Scalar::Int(d.as_const().unwrap_or(0))),
                d => CallOperand::Dim(d),
            },
            Argument::SymFloat(s) => match self.float_expr(s) {
                Some(text) => CallOperand::FloatExpr(text.to_string()),
                None => CallOperand::Scalar(self.element_scalar(name, arg)?),
            },
            other => CallOperand::Scalar(self.element_scalar(name, other)?),
        }))
    }

    /// The integers of all ranks in an argument, if they differ between ranks.
    pub fn ints_by_rank(&self, name: &str) -> Option<(&'p PerRankArgument, &'p [i64])> {
        let Some(Argument::ByRank(b)) = self.get(name) else { return None };
        let PerRankNumbers::Ints(numbers) = &b.numbers else { return None };
        Some((b, numbers))
    }

    /// The sizes of all ranks in an argument, if they differ between ranks and depend on symbols.
    pub fn dims_by_rank(&self, name: &str) -> RuleResult<Option<(&'p PerRankArgument, Vec<Dim>)>> {
        let Some(Argument::ByRank(b)) = self.get(name) else { return Ok(None) };
        let PerRankNumbers::Expressions(texts) = &b.numbers else { return Ok(None) };
        let dims = texts.iter().map(|text| self.lowering.symbols.resolve_expression(text));
        Ok(Some((b, dims.collect::<Result<_, _>>()?)))
    }

    /// The lists of all ranks in an argument, if they differ between ranks.
    pub fn lists_by_rank(&self, name: &str) -> Option<(&'p PerRankArgument, &'p [Vec<Option<i64>>])> {
        let Some(Argument::ByRank(b)) = self.get(name) else { return None };
        let PerRankNumbers::Lists(lists) = &b.numbers else { return None };
        Some((b, lists))
    }

    /// The input that holds a number that differs between ranks.
    pub fn per_rank_input(&self, by_rank: &PerRankArgument) -> EmitResult {
        let value = self.lowering.per_rank_inputs.get(&by_rank.name).copied();
        value.ok_or_else(|| RuleFailure::Invalid(format!("expected an input `{}`, found none", by_rank.name)))
    }

    fn element_scalar(&self, name: &str, arg: &Argument<'p>) -> RuleResult<Scalar> {
        let short = |n: usize| {
            RuleFailure::Invalid(format!("expected a number for each tensor as `{name}`, found {n}"))
        };
        Ok(match (arg, self.element) {
            (Argument::Ints(v), Some(i)) => Scalar::Int(*v.get(i).ok_or_else(|| short(v.len()))?),
            (Argument::Floats(v), Some(i)) => {
                Scalar::Float(symmc_ir::FloatAttribute(*v.get(i).ok_or_else(|| short(v.len()))?))
            }
            (Argument::SymFloats(v), Some(i)) => {
                let element = v.get(i).ok_or_else(|| short(v.len()))?;
                Scalar::Float(symmc_ir::FloatAttribute(self.sym_float(element)?))
            }
            (arg, _) => self.plain_scalar(name, arg)?,
        })
    }

    fn plain_scalar(&self, name: &str, arg: &Argument<'p>) -> RuleResult<Scalar> {
        Ok(match arg {
            Argument::Int(i) => Scalar::Int(*i),
            Argument::Float(x) => Scalar::Float(symmc_ir::FloatAttribute(*x)),
            Argument::Bool(b) => Scalar::Bool(*b),
            Argument::SymFloat(s) => Scalar::Float(symmc_ir::FloatAttribute(self.sym_float(s)?)),
            Argument::SymInt(s) => match self.sym_size(s)?.as_const() {
                Some(i) => Scalar::Int(i),
                None => return unsupported!("`{name}` is a symbolic number"),
            },
            other => return self.fail_argument_kind(name, "a number", other),
        })
    }

    pub fn opt_scalar(&self, name: &str) -> RuleResult<Option<Scalar>> {
        self.get(name).map(|a| self.element_scalar(name, a)).transpose()
    }

    pub fn scalar(&self, name: &str) -> RuleResult<Scalar> {
        self.element_scalar(name, self.required_argument(name)?)
    }

    pub fn float_or(&self, name: &str, default: f64) -> RuleResult<f64> {
        Ok(self.opt_scalar(name)?.map_or(default, Scalar::as_f64))
    }

    pub fn bool_or(&self, name: &str, default: bool) -> RuleResult<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(Argument::Bool(b)) => Ok(*b),
            Some(Argument::Int(i)) => Ok(*i != 0),
            Some(other) => self.fail_argument_kind(name, "a bool", other),
        }
    }

    pub fn opt_string(&self, name: &str) -> RuleResult<Option<&'p str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::String(s)) => Ok(Some(s)),
            Some(other) => self.fail_argument_kind(name, "a string", other),
        }
    }

    pub fn opt_dtype(&self, name: &str) -> RuleResult<Option<DType>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::ScalarType(code)) => match self.dtype_from_code(*code) {
                Ok(d) => Ok(Some(d)),
                Err(dtype) => invalid!("expected a supported dtype as `{name}`, found {dtype}"),
            },
            Some(other) => self.fail_argument_kind(name, "a dtype", other),
        }
    }

    /// The dtype of a `ScalarType`. While a rule is applied to components, a complex dtype becomes that of a
    /// component.
    fn dtype_from_code(&self, code: u32) -> Result<DType, String> {
        let component = self.parts.as_ref().and_then(|_| dtype::complex_component_dtype(code));
        component.map_or_else(|| dtype::from_schema(code), Ok)
    }

    /// An integer, which may be symbolic.
    pub fn opt_dim(&self, name: &str) -> RuleResult<Option<Dim>> {
        self.get(name).map(|a| self.dim_from_argument(name, a)).transpose()
    }

    pub fn dim(&self, name: &str) -> RuleResult<Dim> {
        self.dim_from_argument(name, self.required_argument(name)?)
    }

    pub fn dim_from_argument(&self, name: &str, arg: &Argument<'_>) -> RuleResult<Dim> {
        match arg {
            Argument::Int(i) => Ok(Dim::from(*i)),
            Argument::Bool(b) => Ok(Dim::from(i64::from(*b))),
            Argument::SymInt(s) => self.sym_int(s),
            other => self.fail_argument_kind(name, "an integer", other),
        }
    }

    pub fn opt_dims(&self, name: &str) -> RuleResult<Option<Vec<Dim>>> {
        Ok(Some(match self.get(name) {
            None => return Ok(None),
            Some(Argument::Int(i)) => vec![Dim::from(*i)],
            Some(Argument::SymInt(s)) => vec![self.sym_int(s)?],
            Some(Argument::Ints(v)) => v.iter().map(|&i| Dim::from(i)).collect(),
            Some(Argument::SymInts(v)) => v.iter().map(|s| self.sym_int(s)).collect::<RuleResult<_>>()?,
            Some(Argument::Tensors(v)) if v.is_empty() => Vec::new(),
            Some(other) => return self.fail_argument_kind(name, "integers", other),
        }))
    }

    /// A shape within the limits of [`symmc_ir::dim`].
    pub fn dims(&self, name: &str) -> RuleResult<Vec<Dim>> {
        let dims = require_argument(name, self.opt_dims(name)?)?;
        symmc_ir::dim::check_shape_complexity(&dims).map(|()| dims).map_err(RuleFailure::Invalid)
    }

    /// An integer that must be a constant.
    pub fn opt_int(&self, name: &str) -> RuleResult<Option<i64>> {
        match self.opt_dim(name)? {
            None => Ok(None),
            Some(d) => match d.as_const() {
                Some(i) => Ok(Some(i)),
                None => unsupported!("`{name}` is symbolic"),
            },
        }
    }

    pub fn int_or(&self, name: &str, default: i64) -> RuleResult<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    pub fn int(&self, name: &str) -> RuleResult<i64> {
        require_argument(name, self.opt_int(name)?)
    }

    pub fn opt_ints(&self, name: &str) -> RuleResult<Option<Vec<i64>>> {
        let Some(dims) = self.opt_dims(name)? else { return Ok(None) };
        let constants = dims.iter().map(Dim::as_const).collect::<Option<Vec<_>>>();
        constants.map(Some).ok_or_else(|| RuleFailure::Opaque(format!("`{name}` is symbolic")))
    }

    fn sym_int(&self, s: &SymArgument<'_>) -> RuleResult<Dim> {
        match (&s.as_name, s.as_int) {
            (Some(name), _) => match self.lowering.scope.graph.sym_int_values.get(&**name) {
                Some(value) if self.extent_arguments => Ok(self.lowering.symbols.resolve_capacity(value)?),
                Some(value) => {
                    let size = self.lowering.symbols.resolve_size(value)?;
                    if self.lowering.symbols.data.depends_on_data(&size) {
                        let size = self.lowering.symbols.data.display(&size);
                        return invalid!(
                            "expected integers that the caller fixes, found `{size}`, which depends on data"
                        );
                    }
                    Ok(size)
                }
                None => invalid!("expected an entry in sym_int_values for `{}`, found none", &**name),
            },
            (None, Some(i)) => Ok(Dim::from(i)),
            (None, None) => invalid!("expected `as_name` or `as_int` in a symbolic integer, found neither"),
        }
    }

    fn sym_value(&self, s: &SymArgument<'p>) -> Option<&'p SymInt<'p>> {
        self.lowering.scope.graph.sym_int_values.get(&**s.as_name.as_ref()?)
    }

    fn depends_on_data(&self, s: &SymArgument<'p>) -> RuleResult<bool> {
        let Some(value) = self.sym_value(s) else { return Ok(false) };
        let size = self.lowering.symbols.resolve_size(value)?;
        Ok(self.lowering.symbols.data.depends_on_data(&size))
    }

    fn emit_sym_size(&mut self, s: &SymArgument<'p>) -> EmitResult {
        let size = self.sym_size(s)?;
        self.emit_size(&size)
    }

    /// A symbolic integer over the symbols of [`crate::data_sizes`].
    fn sym_size(&self, s: &SymArgument<'p>) -> RuleResult<Dim> {
        match self.sym_value(s) {
            Some(value) => Ok(self.lowering.symbols.resolve_size(value)?),
            None => self.sym_int(s),
        }
    }

    /// An integer that may depend on data, over the symbols of [`crate::data_sizes`].
    pub fn opt_size(&self, name: &str) -> RuleResult<Option<Dim>> {
        match self.get(name) {
            Some(Argument::SymInt(s)) => self.sym_size(s).map(Some),
            _ => self.opt_dim(name),
        }
    }

    /// Integers that may depend on data, over the symbols of [`crate::data_sizes`].
    pub fn opt_sizes(&self, name: &str) -> RuleResult<Option<Vec<Dim>>> {
        match self.get(name) {
            Some(Argument::SymInts(list)) => {
                list.iter().map(|s| self.sym_size(s)).collect::<RuleResult<_>>().map(Some)
            }
            _ => self.opt_dims(name),
        }
    }

    /// Whether an integer argument depends on data.
    pub fn has_data_size(&self) -> RuleResult<bool> {
        for input in self.inputs {
            let depends = match &input.arg {
                Argument::SymInt(s) => self.depends_on_data(s)?,
                Argument::SymInts(list) => {
                    let dependent = list.iter().map(|s| self.depends_on_data(s));
                    dependent.collect::<RuleResult<Vec<_>>>()?.contains(&true)
                }
                _ => false,
            };
            if depends {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The declared extents of a result, over the symbols of [`crate::data_sizes`].
    pub fn declared_sizes(&self, result: usize) -> RuleResult<Vec<Dim>> {
        let name = self.results.get(result).copied().flatten();
        let meta = name.and_then(|name| self.lowering.scope.graph.tensor_values.get(name));
        let Some(meta) = meta else { return invalid!("expected a result {result} with a shape, found none") };
        let sizes = meta.sizes.iter().map(|size| self.lowering.symbols.resolve_size(size));
        Ok(sizes.collect::<Result<_, _>>()?)
    }

    /// The expression of a float that is not a constant.
    fn float_expr(&self, s: &SymArgument<'p>) -> Option<&'p str> {
        let value = self.lowering.scope.graph.sym_float_values.get(&**s.as_name.as_ref()?)?;
        value.as_expr.as_ref().map(|e| &*e.expr_str)
    }

    fn sym_float(&self, s: &SymArgument<'_>) -> RuleResult<f64> {
        let value = match &s.as_name {
            Some(name) => self.lowering.scope.graph.sym_float_values.get(&**name).and_then(|v| v.as_float),
            None => s.as_float,
        };
        value.map(|x| x.0).ok_or_else(|| RuleFailure::Opaque("an operand is a symbolic float".into()))
    }

    /// The axis counted from 0. Negative axes count from the end of `rank` axes. PyTorch addresses a tensor
    /// without axes as if it had one.
    pub fn resolve_axis(&self, axis: i64, rank: usize) -> RuleResult<usize> {
        self.axis_within(axis, rank.max(1))
    }

    pub fn axis_or(&self, name: &str, default: i64, rank: usize) -> RuleResult<usize> {
        self.resolve_axis(self.int_or(name, default)?, rank)
    }

    pub fn axis(&self, name: &str, rank: usize) -> RuleResult<usize> {
        self.resolve_axis(self.int(name)?, rank)
    }

    /// The axes of a reduction, ascending. A missing or empty list means all axes.
    pub fn axes(&self, name: &str, rank: usize) -> RuleResult<Vec<usize>> {
        let mut axes = match self.opt_ints(name)? {
            Some(list) if !list.is_empty() => self.axes_within(&list, rank.max(1))?,
            _ => (0..rank).collect(),
        };
        axes.retain(|&a| a < rank);
        Ok(axes)
    }

    // Results.

    /// The number of results that the program names, with lists flattened.
    pub fn result_count(&self) -> usize {
        self.results.len()
    }

    /// Whether the program reads a result.
    pub fn is_result_read(&self, result: usize) -> bool {
        self.wants_all
            || self.results.get(result).copied().flatten().is_some_and(|n| self.lowering.scope.is_read(n))
    }

    /// Fails as opaque if the program reads a result after the first `known` ones.
    pub fn require_results_unread_from(&self, known: usize) -> RuleResult {
        match (known..self.results.len()).find(|&i| self.is_result_read(i)) {
            None => Ok(()),
            Some(i) => unsupported!("result {i} is used, which is not supported"),
        }
    }

    pub fn declared_result_type(&self, result: usize) -> RuleResult<symmc_ir::TensorType> {
        match self.results.get(result).copied().flatten() {
            Some(name) if self.parts.is_some() && self.lowering.is_complex(name) => {
                let mut joined_type = self.lowering.component_type(name)?;
                joined_type.shape.pop();
                Ok(joined_type)
            }
            Some(name) => Ok(self.lowering.declared_type(name)?),
            None => invalid!("expected a result {result}, found none"),
        }
    }

    /// Takes the result values that were set.
    pub fn take_results(&mut self) -> Vec<Option<ValueId>> {
        let none = vec![None; self.results.len()];
        std::mem::replace(&mut self.result_values, none)
    }

    /// The names that the program gives to results, with lists flattened.
    pub fn result_names(&self) -> &[Option<&'p str>] {
        &self.results
    }

    /// The number of result slots, including results that the program does not name.
    pub fn result_slot_count(&self) -> usize {
        self.result_values.len()
    }

    pub fn result(&self, result: usize) -> Option<ValueId> {
        self.result_values.get(result).copied().flatten()
    }

    /// Whether a value existed before this call.
    pub fn existed_before(&self, value: ValueId) -> bool {
        symmc_ir::entity::Entity::index(value) < self.first_new
    }

    pub fn finish(self) -> RuleResult {
        let OpCall { lowering, node, results, result_values: bound, first_new, .. } = self;
        for (name, value) in results.into_iter().zip(bound) {
            let Some(name) = name else { continue };
            if !lowering.scope.graph.tensor_values.contains_key(name) {
                if value.is_some() {
                    return invalid!("expected an entry in tensor_values for `{name}`, found none");
                }
                continue;
            }
            let Some(value) = value else {
                let why = format!("a result of {} that is not supported", &*node.target);
                lowering.scope.bind(name, NameBinding::Unavailable(why)).map_err(RuleFailure::Invalid)?;
                continue;
            };
            lowering.check_declared(node, name, value)?;
            lowering.check_packed(node, name, value)?;
            lowering.scope.bind(name, NameBinding::Value(value)).map_err(RuleFailure::Invalid)?;
            let entry = &mut lowering.builder.graph_mut().values[value];
            // Helper values have a dot after the label; names of the program do not.
            let helper = entry.name.get(lowering.scope.prefix.len()..).is_some_and(|n| n.contains('.'));
            if symmc_ir::entity::Entity::index(value) >= first_new && helper {
                entry.name = format!("{}{name}", lowering.scope.prefix);
            }
        }
        Ok(())
    }
}
