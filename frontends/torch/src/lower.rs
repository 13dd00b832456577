//! Turns the nodes of a program into nodes of a graph, one after another.
//!
//! Each target has a rule ([`crate::ops`]) that emits nodes for it. Around the rules, this module resolves
//! names, keeps PyTorch's names for results, and holds each result against the type that the program
//! declares for it: where the two only look different (`2*(s0//2)` for a known even `s0`), the type that
//! the operands give stands; a real difference is an error. A target without a rule becomes an opaque op.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::builder::BuildError;
use symmc_ir::{Builder, Dim, GroupId, InputId, Op, Tensor, Type, ValueId};

use crate::call::Call;
use crate::dtype;
use crate::error::ImportError;
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
    /// The data of constants that became parameters.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// The names of the parameters that are buffers and have data in the archive.
    pub buffers: Vec<String>,
    /// Inputs that in-place ops wrote, with their current values.
    pub written: IndexMap<InputId, ValueId>,
    /// Whether the program has in-place ops; copies matter then.
    pub in_place: bool,
    /// Opaque ops with why and how often.
    opaque: IndexMap<String, (String, usize)>,
    pub notes: Vec<String>,
}

impl<'p> Lowering<'p> {
    pub fn new(builder: Builder, graph: &'p schema::Graph<'p>, symbols: Symbols<'p>) -> Self {
        Lowering {
            builder,
            scope: Scope::new(graph, String::new(), 0),
            symbols,
            groups: IndexMap::new(),
            weights: IndexMap::new(),
            buffers: Vec::new(),
            written: IndexMap::new(),
            in_place: inplace::occurs_in(graph),
            opaque: IndexMap::new(),
            notes: Vec::new(),
        }
    }

    /// The type that the program declares for a value.
    pub fn declared(&self, name: &str) -> Result<Type, ImportError> {
        let error = |message: String| ImportError::Signature { name: name.into(), message };
        let meta = self.scope.graph.tensor_values.get(name);
        let meta = meta.ok_or_else(|| error("expected an entry in tensor_values, found none".into()))?;
        if meta.layout != STRIDED {
            return Err(error(format!("expected the strided layout, found layout {}", meta.layout)));
        }
        let dtype = dtype::from_schema(meta.dtype)
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
        let mut call = Call::new(self, node);
        let lowered = if let Some(rule) = ops::find(&node.target) {
            rule(&mut call).and_then(|()| call.separate_results())
        } else if inplace::is_in_place(&node.target) {
            match ops::find_functional(&node.target) {
                Some(rule) => inplace::lower(&mut call, rule),
                None => Err(Stop::Broken("it writes its operand, and there is no rule for it".into())),
            }
        } else if let Some(graph) = inline::body(node) {
            inline::lower(&mut call, graph)
        } else {
            Err(Stop::Opaque("no rule for it".into()))
        };
        let lowered = lowered.and_then(|()| call.finish());
        match lowered {
            Ok(()) => Ok(()),
            Err(Stop::Error(e)) => Err(e),
            Err(Stop::Broken(message)) => Err(error(message)),
            Err(Stop::Opaque(why)) if inplace::is_in_place(&node.target) => {
                Err(error(format!("it writes its operand and cannot be opaque: {why}")))
            }
            Err(Stop::Opaque(why)) => match self.opaque(node, &why) {
                Ok(()) => Ok(()),
                Err(Stop::Error(e)) => Err(e),
                Err(Stop::Broken(message) | Stop::Opaque(message)) => Err(error(message)),
            },
        }
    }

    /// Represents a node as an opaque op with its declared results.
    fn opaque(&mut self, node: &'p Node<'p>, why: &str) -> Lowered {
        let target = node.target.strip_prefix("torch.ops.").unwrap_or(&node.target).to_string();
        let mut operands = Vec::new();
        let mut attributes = Vec::new();
        for input in &node.inputs {
            let names = tensor_names(&input.arg);
            for name in &names {
                operands.push(self.scope.value(name).map_err(Stop::Broken)?);
            }
            if names.is_empty() && !matches!(&input.arg, Argument::None | Argument::Other(_)) {
                attributes.push(format!("{}={}", &*input.name, input.arg));
            }
        }
        let tensors: Vec<&'p str> = node
            .results()
            .into_iter()
            .flatten()
            .filter(|n| self.scope.graph.tensor_values.contains_key(*n))
            .collect();
        self.opaque.entry(target.clone()).or_insert((why.to_string(), 0)).1 += 1;
        if tensors.is_empty() {
            // Without a tensor result nothing in a functional graph depends on it; integer results have
            // their expressions in the program.
            return Ok(());
        }
        let types = tensors.iter().map(|n| self.declared(n)).collect::<Result<Vec<_>, _>>()?;
        let op = Op::Opaque { name: target, attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, node.name());
        let results = self.builder.node_as(&label, op, &operands, types)?;
        for (name, value) in tensors.into_iter().zip(results) {
            self.builder.graph_mut().values[value].name = format!("{}{name}", self.scope.prefix);
            self.scope.bind(name, Binding::Value(value)).map_err(Stop::Broken)?;
        }
        Ok(())
    }

    /// Holds a value against the type declared for a name.
    pub fn check_declared(&self, node: &Node<'_>, name: &str, value: ValueId) -> Result<(), ImportError> {
        let declared = self.declared(name)?;
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
