//! A program on its way to a graph: what its names, symbols and groups stand for, and what it declares.

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::{OpaqueOps, declared};
use symmc_ir::{Builder, DType, Dim, GroupId, InputId, NodeId, Op, Tensor, Type, ValueId};

use crate::dtype;
use crate::effects::{self, Effects};
use crate::error::{ImportError, Result};
use crate::schema::{self, Argument, Node, STRIDED};
use crate::scope::{Scope, tensor_names};
use crate::shards::RankPiece;
use crate::symbols::Symbols;

pub(crate) type Stop = symmc_import::Stop<ImportError>;

pub(crate) type Lowered<T = ()> = symmc_import::Lowered<T, ImportError>;

/// A value that was emitted, as rules give it.
pub(crate) type Emitted = Lowered<ValueId>;

impl From<ImportError> for Stop {
    fn from(e: ImportError) -> Self {
        Stop::Error(e)
    }
}

pub(crate) struct Lowering<'p> {
    pub builder: Builder,
    pub scope: Scope<'p>,
    pub symbols: Symbols<'p>,
    pub groups: IndexMap<String, GroupId>,
    /// The inputs that hold numbers which differ between ranks, by name.
    pub by_rank: IndexMap<String, ValueId>,
    /// The nodes whose results are views of their first operand although their op is none: parts that ranks take.
    pub parts: HashSet<NodeId>,
    pub rank_pieces: Vec<RankPiece>,
    /// The data of constants that became parameters.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// The names of the parameters that are buffers and have data in the archive.
    pub buffers: Vec<String>,
    /// Inputs that in-place ops wrote, with their current values.
    pub written: IndexMap<InputId, ValueId>,
    /// Whether the program has ops that write; copies matter then.
    pub in_place: bool,
    pub effects: Effects,
    /// Pairs of values that may share memory although the graph does not show it.
    pub entangled: Vec<(ValueId, ValueId)>,
    pub opaque: OpaqueOps,
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
            parts: HashSet::new(),
            rank_pieces: Vec::new(),
            weights: IndexMap::new(),
            buffers: Vec::new(),
            written: IndexMap::new(),
            in_place: effects.writes_in(graph),
            effects,
            entangled: Vec::new(),
            opaque: OpaqueOps::default(),
            notes: Vec::new(),
        }
    }

    pub fn declared(&self, name: &str) -> Result<Type> {
        self.typed(name, dtype::from_schema)
    }

    /// The type of what is held for a value: complex numbers are their parts ([`crate::ops::complex`]).
    pub fn held(&self, name: &str) -> Result<Type> {
        if !self.is_complex(name) {
            return self.declared(name);
        }
        let part = |code| dtype::part_of_complex(code).ok_or_else(|| "no complex numbers".to_string());
        let mut ty = self.typed(name, part)?;
        ty.shape.push(2.into());
        Ok(ty)
    }

    pub fn is_complex(&self, name: &str) -> bool {
        let meta = self.scope.graph.tensor_values.get(name);
        meta.is_some_and(|m| dtype::part_of_complex(m.dtype).is_some())
    }

    fn typed(&self, name: &str, of: impl Fn(u32) -> Result<DType, String>) -> Result<Type> {
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

    pub fn opaque_op(&mut self, node: &'p Node<'p>, why: &str, types: Vec<Type>) -> Lowered<Vec<ValueId>> {
        let target = effects::called(node).unwrap_or(&node.target);
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
        self.opaque.count(&target, why);
        if types.is_empty() {
            // Without a tensor result nothing depends on it; integer results have their expressions in the program.
            return Ok(Vec::new());
        }
        let op = Op::Opaque { name: target, attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, node.name());
        Ok(self.builder.node_as(&label, op, &operands, types)?)
    }

    pub fn check_declared(&self, node: &Node<'_>, name: &str, value: ValueId) -> Result<()> {
        let Type { dtype, shape } = self.held(name)?;
        let extents: Vec<Option<Dim>> = shape.into_iter().map(Some).collect();
        let found = self.builder.graph().ty(value);
        declared::hold(found, dtype, &extents, &self.symbols.table).map_err(|differ| ImportError::Type {
            node: node.name().into(),
            op: node.target.to_string(),
            value: name.into(),
            expected: differ.expected,
            found: differ.found,
        })
    }

    pub fn show(&self, ty: &Type) -> String {
        declared::shown(ty, &self.symbols.table)
    }
}
