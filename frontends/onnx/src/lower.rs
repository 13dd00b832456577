//! A program on its way to a graph: what its names and symbols stand for, what it declares, and what it stores.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::{OpaqueOps, declared};
use symmc_ir::{Builder, DType, Dim, InputKind, Op, Tensor, Type, ValueId};

use crate::data::{self, Beside};
use crate::emit;
use crate::error::Reason;
use crate::known::{Known, type_of, uniform};
use crate::node::{display_name, label};
use crate::parameters::{MAX_CONSTANT, Parameters, is_constant};
use crate::proto;
use crate::ranks::Ranks;
use crate::scope::{Binding, Scope};
use crate::symbols::Symbols;

pub(crate) type Stop = symmc_import::Stop<Reason>;

pub(crate) type Lowered<T = ()> = symmc_import::Lowered<T, Reason>;

/// A value that was emitted, as rules give it.
pub(crate) type Emitted = Lowered<ValueId>;

impl From<Reason> for Stop {
    fn from(e: Reason) -> Self {
        Stop::Error(e)
    }
}

/// A function of the model, by domain, name and overload.
pub(crate) type FunctionKey<'p> = (&'p str, &'p str, &'p str);

pub(crate) struct Lowering<'p> {
    pub builder: Builder,
    pub symbols: Symbols,
    pub scope: Scope<'p>,
    /// The scopes around it, from the program's own on.
    pub outer: Vec<Scope<'p>>,
    pub functions: HashMap<FunctionKey<'p>, &'p proto::Function>,
    pub ranks: Ranks,
    pub beside: &'p Beside,
    pub parameters: &'p Parameters,
    /// The names of the tensors that the program's own graph stores: the sources of its parameters.
    pub initializers: HashSet<&'p str>,
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// Whether nodes are built to be evaluated: then nothing is kept of them.
    pub scratch: bool,
    pub opaque: OpaqueOps,
    pub nodes: usize,
    pub notes: Vec<String>,
}

impl<'p> Lowering<'p> {
    pub fn new(
        builder: Builder,
        symbols: Symbols,
        scope: Scope<'p>,
        ranks: Ranks,
        beside: &'p Beside,
        parameters: &'p Parameters,
    ) -> Self {
        Lowering {
            builder,
            symbols,
            scope,
            outer: Vec::new(),
            functions: HashMap::new(),
            ranks,
            beside,
            parameters,
            initializers: HashSet::new(),
            weights: IndexMap::new(),
            scratch: false,
            opaque: OpaqueOps::default(),
            nodes: 0,
            notes: Vec::new(),
        }
    }

    /// Lowers within a scope of its own; returns that with the names it has then.
    pub fn within(
        &mut self,
        scope: Scope<'p>,
        lower: impl FnOnce(&mut Self) -> Result<(), Reason>,
    ) -> Result<Scope<'p>, Reason> {
        let around = std::mem::replace(&mut self.scope, scope);
        self.outer.push(around);
        let lowered = lower(self);
        let around = self.outer.pop();
        let inner = match around {
            Some(around) => std::mem::replace(&mut self.scope, around),
            None => return Err(Reason::Graph("a scope is missing".into())),
        };
        lowered.map(|()| inner)
    }

    /// The type that the program declares for a value; `None` if it declares none that is known.
    pub fn declared(&self, name: &str) -> Result<Option<(DType, Vec<Option<Dim>>)>, Reason> {
        let error = |message: String| Reason::Value { value: name.into(), message };
        let Some(ty) = self.scope.declared.get(name) else { return Ok(None) };
        let Some(tensor) = &ty.tensor_type else {
            return Err(error("expected a tensor, found a sequence, a map or another type".into()));
        };
        if tensor.elem_type == 0 {
            return Ok(None);
        }
        let dtype = data::dtype(tensor.elem_type)
            .map_err(|found| error(format!("expected a dtype that the IR has, found {found}")))?;
        let Some(shape) = &tensor.shape else { return Ok(None) };
        let dims = shape.dim.iter().enumerate();
        let dims = dims.map(|(axis, d)| self.symbols.dim(name, axis, d)).collect::<Result<Vec<_>, _>>();
        Ok(Some((dtype, dims.map_err(error)?)))
    }

    pub fn declared_type(&self, name: &str) -> Result<Option<Type>, Reason> {
        let Some((dtype, dims)) = self.declared(name)? else { return Ok(None) };
        Ok(dims.into_iter().collect::<Option<Vec<Dim>>>().map(|shape| Type::new(dtype, shape)))
    }

    // Names.

    /// What a name stands for; a stored tensor is read first.
    pub fn resolve(&mut self, name: &str) -> Lowered<Binding<'p>> {
        let Some((level, key, binding)) = self.find(name) else {
            return Err(Stop::Broken(format!("expected a value that is defined before, found `{name}`")));
        };
        let Binding::Stored(tensor) = binding else { return Ok(binding) };
        let binding = self.stored(tensor, level)?;
        if !self.scratch || matches!(binding, Binding::Known(..)) {
            self.level(level).rebind(key, binding.clone());
        }
        Ok(binding)
    }

    /// The level of the scope that binds a name: as many as are around it.
    fn find(&self, name: &str) -> Option<(usize, &'p str, Binding<'p>)> {
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

    fn level(&mut self, level: usize) -> &mut Scope<'p> {
        self.outer.get_mut(level).unwrap_or(&mut self.scope)
    }

    /// A tensor that the graph at a level stores: a parameter, or a known constant.
    fn stored(&mut self, tensor: &'p proto::Tensor, level: usize) -> Lowered<Binding<'p>> {
        let name = tensor.name.as_str();
        let error = |message: String| Reason::Tensor { tensor: name.to_string(), message };
        let (dtype, shape) = data::layout(tensor).map_err(error)?;
        let constant = is_constant(dtype, &shape) && !self.parameters.contains(tensor);
        if constant {
            return Ok(Binding::Known(Known::Data(self.beside.read(tensor).map_err(error)?), None));
        }
        let data = Arc::new(self.beside.load(tensor).map_err(error)?);
        if self.scratch {
            return Err(Stop::Opaque("it reads a parameter".into()));
        }
        let source = match level {
            0 => name.to_string(),
            _ => self.free_source(&format!("{}{name}", self.outer.get(level).unwrap_or(&self.scope).prefix)),
        };
        Ok(Binding::Value(self.parameter(source, data)?))
    }

    /// A parameter that no initializer is.
    pub fn own_parameter(&mut self, label: &str, data: Arc<Tensor>) -> Emitted {
        self.parameter(self.free_source(label), data)
    }

    /// A parameter with its data. No other has its source.
    fn parameter(&mut self, source: String, data: Arc<Tensor>) -> Emitted {
        let ty = type_of(&data);
        symmc_ir::dim::check_size(&ty.shape).map_err(Stop::Broken)?;
        let value = self.builder.input(InputKind::Parameter, &source, &source, ty, None);
        self.weights.insert(source, data);
        Ok(value)
    }

    /// This name or, where a stored tensor of the program or another parameter has it, one with a number behind it.
    fn free_source(&self, name: &str) -> String {
        let taken = |s: &str| self.initializers.contains(s) || self.weights.contains_key(s);
        let numbered = (2usize..).map(|n| format!("{name}#{n}"));
        std::iter::once(name.to_string()).chain(numbered).find(|s| !taken(s)).unwrap_or_default()
    }

    pub fn value(&mut self, name: &str) -> Emitted {
        match self.resolve(name)? {
            Binding::Value(v) => Ok(v),
            Binding::Known(_, Some(v)) if !self.scratch => Ok(v),
            Binding::Known(known, _) => {
                let value = self.hold(name, &known)?;
                if let Some((level, key, _)) = self.find(name).filter(|_| !self.scratch) {
                    self.level(level).rebind(key, Binding::Known(known, Some(value)));
                }
                Ok(value)
            }
            Binding::Nothing(why) => Err(Stop::Broken(format!("`{name}` is {why}"))),
            Binding::Sequence(_) => Err(Stop::Opaque(format!("`{name}` is a sequence"))),
            Binding::Absent => Err(Stop::Broken(format!("`{name}` is left out by the call"))),
            Binding::Stored(_) => Err(Stop::Broken(format!("`{name}` is stored and was not read"))),
        }
    }

    /// The dtype of the tensor that a name stands for, if it is known, without reading the tensor.
    pub fn dtype_of(&self, name: &str) -> Option<DType> {
        match self.find(name)?.2 {
            Binding::Value(v) | Binding::Known(_, Some(v)) => Some(self.builder.graph().ty(v).dtype),
            Binding::Known(Known::Data(data), None) => Some(data.dtype()),
            Binding::Known(Known::Ints(ints), None) => Some(ints.dtype),
            Binding::Stored(tensor) => data::dtype(tensor.data_type).ok(),
            Binding::Sequence(_) | Binding::Absent | Binding::Nothing(_) => None,
        }
    }

    fn hold(&mut self, name: &str, known: &Known) -> Emitted {
        let label = format!("{}{name}", self.scope.prefix);
        match known {
            Known::Ints(ints) => emit::ints(&mut self.builder, &label, ints),
            Known::Data(data) => {
                let ty = type_of(data);
                if let Some(scalar) = uniform(data) {
                    return Ok(self.builder.op_as(&label, Op::Full(scalar), &[], ty)?);
                }
                if data.data().len() <= MAX_CONSTANT {
                    let data = Some(data.clone());
                    return Ok(self.builder.input(InputKind::Constant, &label, &label, ty, data));
                }
                self.own_parameter(&label, data.clone())
            }
        }
    }

    pub fn check_declared(&self, node: &proto::Node, name: &str, found: &Type) -> Result<(), Reason> {
        let Some((dtype, dims)) = self.declared(name)? else { return Ok(()) };
        declared::hold(found, dtype, &dims, &self.symbols.table).map_err(|differ| Reason::Node {
            node: label(node).to_string(),
            op: display_name(node),
            message: format!("the program declares {} for `{name}`, found {}", differ.expected, differ.found),
        })
    }
}
