//! Turns the nodes of a program into nodes of a graph, one after another.
//!
//! Each op has a rule ([`crate::ops`]) that emits nodes for it. Around the rules, this module resolves names, follows
//! known values, puts the bodies of functions and of decided branches in the place of their calls, keeps ONNX's names
//! for results, and holds each result against the type that the program declares for it. An op without a rule becomes
//! opaque if its result types are declared.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::builder::BuildError;
use symmc_ir::text::with_symbol_names;
use symmc_ir::{Builder, DType, Dim, InputKind, Op, Scalar, Tensor, Type, ValueId};

use crate::call::Call;
use crate::data::{self, Beside};
use crate::error::Reason;
use crate::known::Known;
use crate::ops;
use crate::proto;
use crate::ranks::Ranks;
use crate::scope::{Binding, Scope};
use crate::signature::Parameters;
use crate::symbols::Symbols;
use crate::{evaluate, fold, inline};

/// Why a rule does not lower a node.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The node is a valid use of the op that the rule does not cover: it becomes opaque.
    Opaque(String),
    /// The node is broken: one sentence with what was expected and found.
    Broken(String),
    /// The program is broken elsewhere.
    Error(Reason),
}

impl From<BuildError> for Stop {
    fn from(e: BuildError) -> Self {
        Stop::Broken(e.message)
    }
}

impl From<Reason> for Stop {
    fn from(e: Reason) -> Self {
        Stop::Error(e)
    }
}

/// The result of a rule, and of what rules call.
pub(crate) type Lowered<T = ()> = Result<T, Stop>;

/// The largest constant that becomes part of the program, in bytes.
pub(crate) const MAX_CONSTANT: usize = 1 << 20;

/// The most nodes that calls of functions may expand to.
const MAX_NODES: usize = 1 << 18;

/// A function of the model, by domain, name and overload.
pub(crate) type FunctionKey<'p> = (&'p str, &'p str, &'p str);

/// A program on its way to a graph.
pub(crate) struct Lowering<'p> {
    pub builder: Builder,
    pub symbols: Symbols,
    /// The scope of the node that is being lowered.
    pub scope: Scope<'p>,
    /// The scopes around it, from the program's own on.
    pub outer: Vec<Scope<'p>>,
    pub functions: HashMap<FunctionKey<'p>, &'p proto::Function>,
    pub ranks: Ranks,
    pub beside: &'p Beside,
    pub parameters: &'p Parameters,
    /// The names of the tensors that the program's own graph stores: the sources of its parameters.
    pub initializers: HashSet<&'p str>,
    /// The data of the parameters by source.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// Whether nodes are built to be evaluated: then nothing is kept of them.
    pub scratch: bool,
    /// Opaque ops with why and how often.
    opaque: IndexMap<String, (String, usize)>,
    nodes: usize,
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
            opaque: IndexMap::new(),
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

    /// The declared type, if all of it is known.
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
        let data = Arc::new(self.beside.load(tensor).map_err(error)?);
        let constant = is_constant(dtype, &shape) && !self.parameters.contains(tensor);
        if constant {
            return Ok(Binding::Known(Known::Data(data), None));
        }
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
    pub fn own_parameter(&mut self, label: &str, data: Arc<Tensor>) -> Lowered<ValueId> {
        self.parameter(self.free_source(label), data)
    }

    /// A parameter with its data. No other has its source.
    fn parameter(&mut self, source: String, data: Arc<Tensor>) -> Lowered<ValueId> {
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

    /// The value of the graph that a name stands for.
    pub fn value(&mut self, name: &str) -> Lowered<ValueId> {
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

    /// A value of the graph that holds a known one.
    fn hold(&mut self, name: &str, known: &Known) -> Lowered<ValueId> {
        let label = format!("{}{name}", self.scope.prefix);
        match known {
            Known::Ints(ints) => crate::emit::ints(self, &label, ints),
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

    // Nodes.

    /// Lowers the nodes of the program.
    pub fn run(&mut self, nodes: &'p [proto::Node]) -> Result<(), Reason> {
        self.run_nodes(nodes)?;
        for (op, (why, count)) in std::mem::take(&mut self.opaque) {
            let nodes = if count == 1 { "node" } else { "nodes" };
            self.notes.push(format!("{op} stays opaque ({count} {nodes}): {why}"));
        }
        Ok(())
    }

    /// Lowers nodes in the current scope.
    pub fn run_nodes(&mut self, nodes: &'p [proto::Node]) -> Result<(), Reason> {
        self.scope.mark_read(nodes);
        nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &'p proto::Node) -> Result<(), Reason> {
        let error = |message: String| Reason::Node {
            node: label(node).to_string(),
            op: ops::display_name(node),
            message,
        };
        self.nodes += 1;
        if self.nodes > MAX_NODES && !self.outer.is_empty() {
            return Err(error(format!("functions expand to more than {MAX_NODES} nodes")));
        }
        let lowered = match inline::body(self, node) {
            Ok(Some(body)) => inline::lower(self, node, body),
            Ok(None) => self.by_rule(node),
            Err(stop) => Err(stop),
        };
        let lowered = match lowered {
            Err(Stop::Opaque(why)) => self.opaque(node, &why),
            other => other,
        };
        match lowered {
            Ok(()) => Ok(()),
            Err(Stop::Error(e)) => Err(e),
            // Messages of the IR have ids of symbols.
            Err(Stop::Broken(message) | Stop::Opaque(message)) => {
                Err(error(with_symbol_names(&message, &self.symbols.table)))
            }
        }
    }

    fn by_rule(&mut self, node: &'p proto::Node) -> Lowered {
        let Some(row) = ops::find(&node.domain, &node.op_type) else {
            let standard =
                ops::normalised(&node.domain).is_empty() && ops::schemas::is_standard(&node.op_type);
            let why = if standard { "this op of ONNX is not supported" } else { "no rule for it" };
            return Err(Stop::Opaque(why.into()));
        };
        let Some(version) = self.scope.opsets.get(ops::normalised(&node.domain)).copied() else {
            return Err(Stop::Broken(format!(
                "expected an import of the operators of `{}`, found none",
                node.domain
            )));
        };
        let schema = ops::definition(row, version).map_err(Stop::Broken)?;
        schema.check(row.name, node, |a| self.scope.attribute(a)).map_err(Stop::Broken)?;
        let mut call = Call::new(self, node, version, schema);
        if fold::ints(&mut call)? || evaluate::constants(&mut call, row.rule)? {
            return call.finish();
        }
        call.start();
        (row.rule)(&mut call)?;
        call.finish()
    }

    /// Represents a node as an opaque op with its declared results.
    fn opaque(&mut self, node: &'p proto::Node, why: &str) -> Lowered {
        let op = ops::display_name(node);
        if self.scratch {
            return Err(Stop::Opaque(why.to_string()));
        }
        let mut operands = Vec::new();
        for name in node.input.iter().filter(|n| !n.is_empty()) {
            operands.push(self.value(name)?);
        }
        let wanted: Vec<&'p str> =
            node.output.iter().map(String::as_str).filter(|n| self.scope.is_read(n)).collect();
        let mut types = Vec::new();
        for name in &wanted {
            let declared = self.declared_type(name)?;
            types.push(declared.ok_or_else(|| {
                Stop::Broken(format!(
                    "{why}, and the program does not declare the type of its result `{name}`; onnx.shape_inference declares those of ONNX's own ops"
                ))
            })?);
        }
        let why = &with_symbol_names(why, &self.symbols.table);
        self.opaque.entry(op.clone()).or_insert((why.to_string(), 0)).1 += 1;
        if wanted.is_empty() {
            return Ok(());
        }
        let attributes: Vec<String> = node.attribute.iter().map(crate::call::describe).collect();
        let op = Op::Opaque { name: op, attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, label(node));
        let results = self.builder.node_as(&label, op, &operands, types)?;
        for (name, value) in wanted.into_iter().zip(results) {
            let shown = format!("{}{name}", self.scope.prefix);
            self.builder.rename(value, &shown)?;
            self.scope.bind(name, Binding::Value(value)).map_err(Stop::Broken)?;
        }
        Ok(())
    }

    /// Holds a type against the one that is declared for a name.
    pub fn check_declared(&self, node: &proto::Node, name: &str, found: &Type) -> Result<(), Reason> {
        let Some((dtype, dims)) = self.declared(name)? else { return Ok(()) };
        let symbols = &self.symbols.table;
        let may_agree = |a: &Dim, b: &Dim| {
            let (low, high) = (a.clone() - b.clone()).bounds(symbols);
            low <= 0 && high >= 0
        };
        let agree = found.dtype == dtype
            && found.rank() == dims.len()
            && found.shape.iter().zip(&dims).all(|(a, b)| b.as_ref().is_none_or(|b| may_agree(a, b)));
        if agree {
            return Ok(());
        }
        let show = |d: &Dim| d.display(symbols).to_string();
        let extents = |dims: Vec<String>| dims.join(", ");
        let expected = dims.iter().map(|d| d.as_ref().map_or("?".into(), show)).collect();
        let (expected, found_dims) = (extents(expected), extents(found.shape.iter().map(show).collect()));
        Err(Reason::Node {
            node: label(node).to_string(),
            op: ops::display_name(node),
            message: format!(
                "the program declares {dtype}[{expected}] for `{name}`, found {}[{found_dims}]",
                found.dtype
            ),
        })
    }
}

/// The name of a node, or else of its first result.
pub(crate) fn label(node: &proto::Node) -> &str {
    let first = node.output.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
    if node.name.is_empty() { first } else { &node.name }
}

/// Whether a stored tensor of this type is a constant unless it is known to be a parameter: integers, which are
/// shapes, positions and masks, and single numbers.
pub(crate) fn is_constant(dtype: DType, shape: &[usize]) -> bool {
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    let bytes = elements.saturating_mul(dtype.size());
    if dtype.is_float() { elements <= 1 } else { bytes <= MAX_CONSTANT }
}

/// The type of data.
pub(crate) fn type_of(data: &Tensor) -> Type {
    let shape: Vec<Dim> =
        data.shape().iter().map(|&d| Dim::from(i64::try_from(d).unwrap_or(i64::MAX))).collect();
    Type::new(data.dtype(), shape)
}

/// The one number that all elements are.
pub(crate) fn uniform(data: &Tensor) -> Option<Scalar> {
    let size = data.dtype().size();
    let first = data.data().get(..size)?;
    if !data.data().chunks(size).all(|element| element == first) {
        return None;
    }
    let scalar = match data.dtype() {
        d if d.is_float() => Scalar::Float(symmc_ir::Float(data.get_f64(0))),
        _ => Scalar::Int(symmc_ir::tensor::read_i64(data.dtype(), data.data(), 0)),
    };
    Some(scalar.converted(data.dtype()))
}
