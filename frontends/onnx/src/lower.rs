//! The state of an import: the bindings of names and symbols, the declared types, and the stored tensors.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::{Compositions, UnsupportedOps, declared, invalid, unsupported, unsupported_if};
use symmc_ir::{DType, Dim, GraphBuilder, InputKind, Op, Tensor, TensorType, ValueId};

use crate::argument_values::{ArgumentValues, FixedArgument};
use crate::emit;
use crate::error::FailureReason;
use crate::known_values::{KnownValue, type_of_tensor, uniform_scalar};
use crate::node::{display_name, node_label};
use crate::parameters::{MAX_CONSTANT, ParameterSet, is_constant};
use crate::proto;
use crate::ranks::RankCount;
use crate::scope::{NameBinding, NameScope};
use crate::symbols::ProgramSymbols;
use crate::tensor_data::{self, TensorFiles};

pub(crate) type RuleFailure = symmc_import::RuleFailure<FailureReason>;

pub(crate) type RuleResult<T = ()> = symmc_import::RuleResult<T, FailureReason>;

/// The result of a rule that emits one value.
pub(crate) type EmitResult = RuleResult<ValueId>;

pub(crate) type Term<'f> = symmc_import::Term<'f, FailureReason>;

impl From<FailureReason> for RuleFailure {
    fn from(e: FailureReason) -> Self {
        RuleFailure::Error(e)
    }
}

/// The key of a function of the model: domain, name and overload.
pub(crate) type FunctionKey<'p> = (&'p str, &'p str, &'p str);

/// An axis of a value along which only the first elements count, and the number of these elements, an integer without axes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CountedAxis {
    pub axis: usize,
    pub count: ValueId,
}

pub(crate) struct ImportLowering<'p> {
    pub builder: GraphBuilder,
    pub compositions: Compositions,
    pub symbols: ProgramSymbols,
    pub scope: NameScope<'p>,
    /// The enclosing scopes, outermost first.
    pub outer: Vec<NameScope<'p>>,
    pub functions: HashMap<FunctionKey<'p>, &'p proto::FunctionProto>,
    pub ranks: RankCount,
    pub tensor_files: &'p TensorFiles,
    pub parameters: &'p ParameterSet,
    /// The names of the tensors that the program's top-level graph stores: the sources of its parameters.
    pub initializers: HashSet<&'p str>,
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// Whether nodes are emitted only to be evaluated. Their bindings and parameters are then not kept.
    pub scratch: bool,
    /// The ops that stay opaque.
    pub opaque: UnsupportedOps,
    /// The ops whose results have no types.
    pub untyped: UnsupportedOps,
    /// The known values of arguments.
    pub argument_values: ArgumentValues,
    /// The arguments that are taken for constants.
    pub fixed_arguments: Vec<FixedArgument>,
    /// Whether a branch was taken because of its sizes at the upper ends.
    pub has_assumed_branches: bool,
    /// The values with an axis whose number of elements depends on data.
    pub counted: HashMap<ValueId, CountedAxis>,
    /// The bool that holds where the branch of the present node runs.
    pub guard: Option<ValueId>,
    /// The number of attempts to lower nodes that run graphs.
    pub attempts: usize,
    pub nodes: usize,
    pub notes: Vec<String>,
    /// The values whose declared shapes differ from those that their operators compute.
    pub differing_shapes: Vec<String>,
}

impl<'p> ImportLowering<'p> {
    pub fn new(
        builder: GraphBuilder,
        symbols: ProgramSymbols,
        scope: NameScope<'p>,
        ranks: RankCount,
        tensor_files: &'p TensorFiles,
        parameters: &'p ParameterSet,
    ) -> Self {
        ImportLowering {
            builder,
            compositions: Compositions::default(),
            symbols,
            scope,
            outer: Vec::new(),
            functions: HashMap::new(),
            ranks,
            tensor_files,
            parameters,
            initializers: HashSet::new(),
            weights: IndexMap::new(),
            scratch: false,
            opaque: UnsupportedOps::default(),
            untyped: UnsupportedOps::default(),
            argument_values: ArgumentValues::default(),
            fixed_arguments: Vec::new(),
            has_assumed_branches: false,
            counted: HashMap::new(),
            guard: None,
            attempts: 0,
            nodes: 0,
            notes: Vec::new(),
            differing_shapes: Vec::new(),
        }
    }

    /// Lowers within a new scope, and returns the scope with the names that were bound in it.
    pub fn lower_in_scope(
        &mut self,
        scope: NameScope<'p>,
        lower: impl FnOnce(&mut Self) -> Result<(), FailureReason>,
    ) -> Result<NameScope<'p>, FailureReason> {
        let enclosing = std::mem::replace(&mut self.scope, scope);
        self.outer.push(enclosing);
        let lowered = lower(self);
        let inner = match self.outer.pop() {
            Some(enclosing) => std::mem::replace(&mut self.scope, enclosing),
            None => return Err(FailureReason::Graph("a scope is missing".into())),
        };
        lowered.map(|()| inner)
    }

    /// The type that the program declares for a value, with unknown extents as `None`. `None` if the dtype or
    /// the number of axes is not declared.
    pub fn partial_declared_type(
        &self,
        name: &str,
    ) -> Result<Option<(DType, Vec<Option<Dim>>)>, FailureReason> {
        let error = |message: String| FailureReason::Value { value: name.into(), message };
        let Some(ty) = self.scope.declared.get(name) else { return Ok(None) };
        if **ty == proto::TypeProto::default() {
            return Ok(None);
        }
        let Some(tensor) = &ty.tensor_type else {
            return Err(error("expected a tensor, found a sequence, a map or another type".into()));
        };
        if tensor.elem_type == 0 {
            return Ok(None);
        }
        let dtype = tensor_data::dtype_from_code(tensor.elem_type)
            .map_err(|dtype| error(format!("expected a supported dtype, found {dtype}")))?;
        let Some(shape) = &tensor.shape else { return Ok(None) };
        let dims = shape.dim.iter().enumerate();
        let dims =
            dims.map(|(axis, d)| self.symbols.resolve_extent(name, axis, d)).collect::<Result<Vec<_>, _>>();
        Ok(Some((dtype, dims.map_err(error)?)))
    }

    pub fn declared_type(&self, name: &str) -> Result<Option<TensorType>, FailureReason> {
        let Some((dtype, dims)) = self.partial_declared_type(name)? else { return Ok(None) };
        Ok(dims.into_iter().collect::<Option<Vec<Dim>>>().map(|shape| TensorType::new(dtype, shape)))
    }

    // Names.

    /// The binding of a name. A stored tensor is read first.
    pub fn resolve_name(&mut self, name: &str) -> RuleResult<NameBinding<'p>> {
        let Some((level, key, binding)) = self.find_binding(name) else {
            return invalid!("`{name}` is not defined before it is used");
        };
        let NameBinding::Stored(tensor) = binding else { return Ok(binding) };
        let binding = self.load_stored(tensor, level)?;
        if !self.scratch || matches!(binding, NameBinding::Known(..)) {
            self.scope_at_level(level).rebind(key, binding.clone());
        }
        Ok(binding)
    }

    /// The binding of a name, with the level of its scope: the number of enclosing scopes.
    pub fn find_binding(&self, name: &str) -> Option<(usize, &'p str, NameBinding<'p>)> {
        let mut scope = &self.scope;
        let mut level = self.outer.len();
        loop {
            if let Some((key, binding)) = scope.get(name) {
                return Some((level, key, binding.clone()));
            }
            level = level.checked_sub(1).filter(|_| scope.inner)?;
            scope = &self.outer[level];
        }
    }

    fn scope_at_level(&mut self, level: usize) -> &mut NameScope<'p> {
        self.outer.get_mut(level).unwrap_or(&mut self.scope)
    }

    /// Loads a tensor that the graph at a level stores: as a parameter, or as a known constant.
    fn load_stored(&mut self, tensor: &'p proto::TensorProto, level: usize) -> RuleResult<NameBinding<'p>> {
        let name = tensor.name.as_str();
        let error = |message: String| FailureReason::Tensor { tensor: name.to_string(), message };
        if tensor_data::is_unsupported_dtype(tensor.data_type)
            && let Err(found) = tensor_data::dtype_from_code(tensor.data_type)
        {
            return unsupported!("the stored tensor `{name}` has {found}, which is not supported");
        }
        let (dtype, shape) = tensor_data::stored_type(tensor).map_err(error)?;
        let constant = is_constant(dtype, &shape) && !self.parameters.contains(tensor);
        if constant {
            return Ok(NameBinding::Known(
                KnownValue::Data(self.tensor_files.read_tensor(tensor).map_err(error)?),
                None,
            ));
        }
        let data = Arc::new(self.tensor_files.load_tensor(tensor).map_err(error)?);
        unsupported_if!(self.scratch, "the node reads a parameter");
        let source = match level {
            0 => name.to_string(),
            _ => self.unused_source_name(&format!(
                "{}{name}",
                self.outer.get(level).unwrap_or(&self.scope).prefix
            )),
        };
        Ok(NameBinding::Value(self.add_parameter(source, data)?))
    }

    /// The data of a stored tensor that no node has read as a parameter, if it is the same on all ranks.
    pub fn stored_data(&self, name: &str) -> RuleResult<Option<Arc<Tensor>>> {
        let Some((.., NameBinding::Stored(tensor))) = self.find_binding(name) else { return Ok(None) };
        if self.parameters.contains(tensor) {
            return Ok(None);
        }
        let error = |message: String| FailureReason::Tensor { tensor: name.to_string(), message };
        Ok(Some(self.tensor_files.read_tensor(tensor).map_err(error)?))
    }

    /// Adds a parameter that is not an initializer, under an unused source name.
    pub fn add_renamed_parameter(&mut self, label: &str, data: Arc<Tensor>) -> EmitResult {
        self.add_parameter(self.unused_source_name(label), data)
    }

    /// Adds a parameter with its data. The source name must be unused.
    fn add_parameter(&mut self, source: String, data: Arc<Tensor>) -> EmitResult {
        let ty = type_of_tensor(&data);
        symmc_ir::dim::check_shape_complexity(&ty.shape).map_err(RuleFailure::Invalid)?;
        let value = self.builder.input(InputKind::Parameter, &source, &source, ty, None);
        self.weights.insert(source, data);
        Ok(value)
    }

    /// The name, or the name with a number appended if an initializer or another parameter has it.
    fn unused_source_name(&self, name: &str) -> String {
        let numbered = (2usize..).map(|n| format!("{name}#{n}"));
        let mut names = std::iter::once(name.to_string()).chain(numbered);
        let unused = names.find(|s| !self.initializers.contains(s.as_str()) && !self.weights.contains_key(s));
        unused.unwrap_or_default()
    }

    pub fn resolve_value(&mut self, name: &str) -> EmitResult {
        match self.resolve_name(name)? {
            NameBinding::Value(v) => Ok(v),
            NameBinding::Known(_, Some(v)) if !self.scratch => Ok(v),
            NameBinding::Known(known_value, _) => {
                let value = self.emit_known(name, &known_value)?;
                if let Some((level, key, _)) = self.find_binding(name).filter(|_| !self.scratch) {
                    self.scope_at_level(level).rebind(key, NameBinding::Known(known_value, Some(value)));
                }
                Ok(value)
            }
            NameBinding::Unavailable(why) => invalid!("`{name}` is {why}"),
            NameBinding::Sequence(_) => unsupported!("`{name}` is a sequence"),
            NameBinding::Untyped => unsupported!("the type of `{name}` is not known"),
            NameBinding::Omitted => {
                invalid!("`{name}` is an input that the function call omits")
            }
            NameBinding::Stored(_) => {
                invalid!("stored tensor `{name}` was not read")
            }
        }
    }

    /// The dtype of the tensor that a name is bound to, if it is known, without reading the tensor.
    pub fn dtype_of(&self, name: &str) -> Option<DType> {
        match self.find_binding(name)?.2 {
            NameBinding::Value(v) | NameBinding::Known(_, Some(v)) => Some(self.builder.graph().ty(v).dtype),
            NameBinding::Known(KnownValue::Data(data), None) => Some(data.dtype()),
            NameBinding::Known(KnownValue::Ints(ints), None) => Some(ints.dtype),
            NameBinding::Stored(tensor) => tensor_data::dtype_from_code(tensor.data_type).ok(),
            NameBinding::Sequence(_)
            | NameBinding::Omitted
            | NameBinding::Unavailable(_)
            | NameBinding::Untyped => None,
        }
    }

    pub fn emit_known(&mut self, name: &str, known: &KnownValue) -> EmitResult {
        let label = format!("{}{name}", self.scope.prefix);
        match known {
            KnownValue::Ints(ints) => emit::emit_ints(&mut self.builder, &label, ints),
            KnownValue::Data(data) => {
                let ty = type_of_tensor(data);
                if let Some(scalar) = uniform_scalar(data) {
                    return Ok(self.builder.op_as(&label, Op::Full(scalar), &[], ty)?);
                }
                if data.data().len() <= MAX_CONSTANT {
                    let data = Some(data.clone());
                    return Ok(self.builder.input(InputKind::Constant, &label, &label, ty, data));
                }
                self.add_renamed_parameter(&label, data.clone())
            }
        }
    }

    /// Fails if a value has another dtype than the program declares. Exporters leave declared shapes from before they changed a
    /// graph, and runtimes compute with those of the operators: another shape is noted.
    pub fn check_declared(
        &mut self,
        node: &proto::NodeProto,
        name: &str,
        found: &TensorType,
    ) -> Result<(), FailureReason> {
        let Some((dtype, dims)) = self.partial_declared_type(name)? else { return Ok(()) };
        if let Err(differ) = declared::check_declared_type(found, dtype, &dims, &self.symbols.table) {
            let declared::TypeMismatch { expected, found: computed } = differ;
            if dtype != found.dtype {
                return Err(FailureReason::Node {
                    node: node_label(node).to_string(),
                    op: display_name(node),
                    message: format!("the program declares {expected} for `{name}`, found {computed}"),
                });
            }
            self.differing_shapes.push(format!("{expected} for `{name}`, which is {computed}"));
            return Ok(());
        }
        let declared = self.scope.declared.get(name).and_then(|ty| ty.tensor_type.as_ref()?.shape.as_ref());
        if let Some(shape) = declared.filter(|_| !self.scratch) {
            self.symbols.record_extents(shape, &found.shape);
        }
        Ok(())
    }
}
