//! Turns the nodes of a program into nodes of a graph, one after another.
//!
//! Each target has a rule ([`crate::ops`]) that emits nodes for it. Around the rules, this module resolves
//! names, keeps PyTorch's names for results, and holds each result against the type that the program
//! declares for it: where the two only look different (`2*(s0//2)` for a known even `s0`), the type that
//! the operands give stands; a real difference is an error. A target without a rule becomes an opaque op.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::builder::BuildError;
use symmc_ir::{Builder, DType, Dim, GroupId, InputId, Op, Tensor, Type, ValueId};

use crate::call::Call;
use crate::dtype;
use crate::effects::{self, Effect, Effects};
use crate::error::ImportError;
use crate::functionalised;
use crate::inline;
use crate::inplace;
use crate::ops;
use crate::schema::{self, Argument, Node, STRIDED};
use crate::scope::{Binding, Scope, tensor_names};
use crate::symbols::Symbols;

/// Why a rule does not lower a node.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The node is a valid use of the target that the rule does not cover: it becomes opaque.
    Opaque(String),
    /// The node is broken: one sentence with what was expected and found.
    Broken(String),
    /// The program is broken elsewhere.
    Error(ImportError),
}

impl From<BuildError> for Stop {
    fn from(e: BuildError) -> Self {
        Stop::Broken(e.message)
    }
}

impl From<ImportError> for Stop {
    fn from(e: ImportError) -> Self {
        Stop::Error(e)
    }
}

/// The result of a rule, and of what rules call.
pub(crate) type Lowered<T = ()> = Result<T, Stop>;

/// A program on its way to a graph.
pub(crate) struct Lowering<'p> {
    pub builder: Builder,
    pub scope: Scope<'p>,
    pub symbols: Symbols<'p>,
    pub groups: IndexMap<String, GroupId>,
    /// The inputs that hold numbers which differ between ranks, by name.
    pub by_rank: IndexMap<String, ValueId>,
    /// The data of constants that became parameters.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// The names of the parameters that are buffers and have data in the archive.
    pub buffers: Vec<String>,
    /// Inputs that in-place ops wrote, with their current values.
    pub written: IndexMap<InputId, ValueId>,
    /// Whether the program has ops that write; copies matter then.
    pub in_place: bool,
    /// What tells what ops write.
    pub effects: Effects,
    /// Pairs of values that may share memory although the graph does not show it.
    pub entangled: Vec<(ValueId, ValueId)>,
    /// Opaque ops with why and how often.
    opaque: IndexMap<String, (String, usize)>,
    pub notes: Vec<String>,
}

impl<'p> Lowering<'p> {
    pub fn new(
        builder: Builder,
        graph: &'p schema::Graph<'p>,
        symbols: Symbols<'p>,
        effects: Effects,
    ) -> Self {
        Lowering {
            builder,
            scope: Scope::new(graph, String::new(), 0),
            symbols,
            groups: IndexMap::new(),
            by_rank: IndexMap::new(),
            weights: IndexMap::new(),
            buffers: Vec::new(),
            written: IndexMap::new(),
            in_place: effects.writes_in(graph),
            effects,
            entangled: Vec::new(),
            opaque: IndexMap::new(),
            notes: Vec::new(),
        }
    }

    /// The type that the program declares for a value.
    pub fn declared(&self, name: &str) -> Result<Type, ImportError> {
        self.typed(name, dtype::from_schema)
    }

    /// The type of what is held for a value: complex numbers are their parts ([`ops::complex`]).
    pub fn held(&self, name: &str) -> Result<Type, ImportError> {
        if !self.is_complex(name) {
            return self.declared(name);
        }
        let part = |code| dtype::part_of_complex(code).ok_or_else(|| "no complex numbers".to_string());
        let mut ty = self.typed(name, part)?;
        ty.shape.push(2.into());
        Ok(ty)
    }

    /// Whether the program declares a value as complex.
    pub fn is_complex(&self, name: &str) -> bool {
        let meta = self.scope.graph.tensor_values.get(name);
        meta.is_some_and(|m| dtype::part_of_complex(m.dtype).is_some())
    }

    fn typed(&self, name: &str, of: impl Fn(u32) -> Result<DType, String>) -> Result<Type, ImportError> {
        let error = |message: String| ImportError::Signature { name: name.into(), message };
        let meta = self.scope.graph.tensor_values.get(name);
        let meta = meta.ok_or_else(|| error("expected an entry in tensor_values, found none".into()))?;
        if meta.layout != STRIDED {
            return Err(error(format!("expected the strided layout, found layout {}", meta.layout)));
        }
        let dtype = of(meta.dtype)
            .map_err(|found| error(format!("expected a dtype that the IR has, found {found}")))?;
        let shape = meta.sizes.iter().map(|s| self.symbols.dim(s)).collect::<Result<Vec<Dim>, _>>()?;
        symmc_ir::dim::check_size(&shape).map_err(error)?;
        Ok(Type::new(dtype, shape))
    }

    /// Lowers the nodes of the current scope.
    pub fn run_scope(&mut self) -> Result<(), ImportError> {
        let graph = self.scope.graph;
        for (position, node) in graph.nodes.iter().enumerate() {
            self.scope.position = position;
            self.node(node)?;
        }
        Ok(())
    }

    /// Lowers all nodes.
    pub fn run(&mut self) -> Result<(), ImportError> {
        self.run_scope()?;
        for (target, (why, count)) in std::mem::take(&mut self.opaque) {
            let nodes = if count == 1 { "node" } else { "nodes" };
            self.notes.push(format!("{target} stays opaque ({count} {nodes}): {why}"));
        }
        Ok(())
    }

    fn node(&mut self, node: &'p Node<'p>) -> Result<(), ImportError> {
        let error = |message: String| ImportError::Node {
            node: node.name().into(),
            op: node.target.to_string(),
            message,
        };
        let effect = self.effects.of(node);
        let mut call = Call::new(self, node);
        let lowered = lowered(&mut call, &effect).and_then(|()| call.finish());
        let lowered = match lowered {
            Err(Stop::Opaque(why)) => self.opaque(node, &effect, &why),
            other => other,
        };
        match lowered {
            Ok(()) => Ok(()),
            Err(Stop::Error(e)) => Err(e),
            Err(Stop::Broken(message) | Stop::Opaque(message)) => Err(error(message)),
        }
    }

    /// Represents a node that writes nothing as an opaque op with its declared results.
    fn opaque(&mut self, node: &'p Node<'p>, effect: &Effect, why: &str) -> Lowered {
        if let Some(refusal) = self.unrepresented(node, effect) {
            return Err(Stop::Broken(refusal));
        }
        let tensors: Vec<&'p str> = node
            .results()
            .into_iter()
            .flatten()
            .filter(|n| self.scope.graph.tensor_values.contains_key(*n))
            .collect();
        let types = tensors.iter().map(|n| self.declared(n)).collect::<Result<Vec<_>, _>>()?;
        let results = self.opaque_op(node, why, types)?;
        if self.in_place && effects::is_view(&node.target) {
            let operand = node.inputs.iter().flat_map(|i| tensor_names(&i.arg)).next();
            if let Some(operand) = operand {
                let operand = self.scope.value(operand).map_err(Stop::Broken)?;
                self.entangled.extend(results.iter().map(|&r| (r, operand)));
            }
        }
        for (name, value) in tensors.into_iter().zip(results) {
            self.builder.graph_mut().values[value].name = format!("{}{name}", self.scope.prefix);
            self.scope.bind(name, Binding::Value(value)).map_err(Stop::Broken)?;
        }
        Ok(())
    }

    /// Why an opaque op would not do all that a node does.
    fn unrepresented(&mut self, node: &'p Node<'p>, effect: &Effect) -> Option<String> {
        let advice = inplace::ADVICE;
        match effect {
            Effect::Pure => None,
            Effect::Writes(_) => Some(format!("it writes its operand; {advice}")),
            Effect::Resizes => {
                Some(format!("it changes the shape or the storage of its operand in place; {advice}"))
            }
            Effect::Draws => Some(ops::DRAWS.into()),
            Effect::Outside => {
                Some("it has an effect besides its results, which a program cannot have".into())
            }
            Effect::Unclear => {
                Some(format!("it writes its operand by its name, and there is no rule for it; {advice}"))
            }
            Effect::Unknown => {
                let call = Call::new(self, node);
                let operands = call.node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
                let noticed = operands
                    .filter_map(|n| call.lowering.scope.value(n).ok())
                    .find_map(|v| inplace::would_notice(&call, v));
                let what = match (node.results().is_empty(), noticed) {
                    (true, _) => "it gives no result, so it must have an effect".into(),
                    (false, Some(who)) => format!("it may write {who}"),
                    (false, None) => return None,
                };
                Some(format!(
                    "{what}: the program does not tell what this op writes, and neither does a declared schema \
                     (such as {}, with Tensor(a!) for what it writes); {advice}",
                    example(node)
                ))
            }
        }
    }

    /// Adds an opaque op for a node, with results of these types.
    pub fn opaque_op(&mut self, node: &'p Node<'p>, why: &str, types: Vec<Type>) -> Lowered<Vec<ValueId>> {
        let target = functionalised::called(node).unwrap_or(&node.target);
        let target = effects::bare(target).to_string();
        let mut operands = Vec::new();
        let mut attributes = Vec::new();
        for input in &node.inputs {
            if let Argument::ByRank(b) = &input.arg {
                let (name, found) = (&*input.name, b.numbers.describe());
                return Err(Stop::Broken(format!(
                    "{why}: expected one `{name}` for all ranks, found {found}"
                )));
            }
            let names = tensor_names(&input.arg);
            for name in &names {
                operands.push(self.scope.value(name).map_err(Stop::Broken)?);
            }
            let silent = matches!(&input.arg, Argument::None | Argument::Operator(_) | Argument::Other(_));
            if names.is_empty() && !silent {
                attributes.push(format!("{}={}", &*input.name, input.arg));
            }
        }
        self.opaque.entry(target.clone()).or_insert((why.to_string(), 0)).1 += 1;
        if types.is_empty() {
            // Without a tensor result nothing depends on it; integer results have their expressions in the program.
            return Ok(Vec::new());
        }
        let op = Op::Opaque { name: target, attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, node.name());
        Ok(self.builder.node_as(&label, op, &operands, types)?)
    }

    /// Holds a value against the type declared for a name.
    pub fn check_declared(&self, node: &Node<'_>, name: &str, value: ValueId) -> Result<(), ImportError> {
        let declared = self.held(name)?;
        let found = self.builder.graph().ty(value);
        if *found == declared {
            return Ok(());
        }
        let symbols = &self.symbols.table;
        let may_agree = |a: &Dim, b: &Dim| {
            let (low, high) = (a.clone() - b.clone()).bounds(symbols);
            low <= 0 && high >= 0
        };
        let agree = found.dtype == declared.dtype
            && found.rank() == declared.rank()
            && found.shape.iter().zip(&declared.shape).all(|(a, b)| may_agree(a, b));
        if agree {
            return Ok(());
        }
        Err(ImportError::Type {
            node: node.name().into(),
            op: node.target.to_string(),
            value: name.into(),
            expected: self.show(&declared),
            found: self.show(found),
        })
    }

    /// A type for messages, with the names of the symbols.
    pub fn show(&self, ty: &Type) -> String {
        let dims: Vec<String> = ty.shape.iter().map(|d| d.display(&self.symbols.table).to_string()).collect();
        format!("{}[{}]", ty.dtype, dims.join(", "))
    }
}

/// Lowers a node by what is known of its target.
fn lowered(call: &mut Call<'_, '_>, effect: &Effect) -> Lowered {
    if let Some(graph) = inline::body(call.node) {
        return inline::lower(call, graph);
    }
    if ops::complex::touches(call) {
        return ops::complex::lower(call, effect);
    }
    if let Some(op) = functionalised::called(call.node) {
        return functionalised::lower(call, op);
    }
    match effect {
        Effect::Writes(writes) => inplace::lower(call, writes),
        Effect::Resizes | Effect::Unclear => Err(Stop::Opaque("no rule for it".into())),
        _ => match ops::find(&call.node.target) {
            Some(rule) => {
                rule(call)?;
                call.all_read()?;
                call.separate_results()
            }
            None => Err(Stop::Opaque("no rule for it".into())),
        },
    }
}

/// What the schema of a node's op may be, if it is pure.
fn example(node: &Node<'_>) -> String {
    let target = effects::bare(&node.target);
    let (op, overload) = target.rsplit_once('.').unwrap_or((target, ""));
    let overload = if matches!(overload, "default" | "") { String::new() } else { format!(".{overload}") };
    let ty = |arg: &Argument<'_>| match arg {
        Argument::Tensor(_) => "Tensor",
        Argument::Tensors(_) => "Tensor[]",
        Argument::OptionalTensors(_) => "Tensor?[]",
        Argument::Int(_) | Argument::SymInt(_) => "int",
        Argument::Ints(_) | Argument::SymInts(_) => "int[]",
        Argument::Float(_) | Argument::SymFloat(_) => "float",
        Argument::Floats(_) => "float[]",
        Argument::Bool(_) | Argument::SymBool(_) => "bool",
        Argument::String(_) => "str",
        _ => "Any",
    };
    let arguments: Vec<String> = node.inputs.iter().map(|i| format!("{} {}", ty(&i.arg), &*i.name)).collect();
    let results: Vec<&str> = node.outputs.iter().map(ty).collect();
    let results = match results.as_slice() {
        [one] => one.to_string(),
        many => format!("({})", many.join(", ")),
    };
    format!("`{}{overload}({}) -> {results}`", op.replacen('.', "::", 1), arguments.join(", "))
}
