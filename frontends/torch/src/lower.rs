//! The state of an import: the bindings of names, symbols and groups, and the declared types.

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::{Compositions, UnsupportedOps, declared, invalid, invalid_if};
use symmc_ir::{DType, Dim, GraphBuilder, GroupId, InputId, NodeId, Op, Tensor, TensorType, ValueId};

use crate::definition::OpDefinitions;
use crate::dtype;
use crate::effects::{self, EffectAnalysis};
use crate::error::{ImportError, Result};
use crate::packed_rows::{self, PackedRows, PackedValues};
use crate::schema::{self, Argument, ExportedNode, STRIDED};
use crate::scope::{NameScope, tensor_names};
use crate::shards::RankShard;
use crate::symbols::ProgramSymbols;

pub(crate) type RuleFailure = symmc_import::RuleFailure<ImportError>;

pub(crate) type RuleResult<T = ()> = symmc_import::RuleResult<T, ImportError>;

pub(crate) type Term<'f> = symmc_import::Term<'f, ImportError>;

/// The result of a rule that emits one value.
pub(crate) type EmitResult = RuleResult<ValueId>;

impl From<ImportError> for RuleFailure {
    fn from(e: ImportError) -> Self {
        RuleFailure::Error(e)
    }
}

pub(crate) struct ImportLowering<'p> {
    pub builder: GraphBuilder,
    pub compositions: Compositions,
    pub scope: NameScope<'p>,
    pub symbols: ProgramSymbols<'p>,
    pub groups: IndexMap<String, GroupId>,
    /// The inputs that hold numbers that differ between ranks, by name.
    pub per_rank_inputs: IndexMap<String, ValueId>,
    /// Nodes whose result is a view of their first operand, although their op is not a view: slices that
    /// ranks take.
    pub rank_slice_nodes: HashSet<NodeId>,
    pub rank_shards: Vec<RankShard>,
    /// The data of constants that became parameters.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// The names of the parameters that are buffers and have data in the archive.
    pub buffers: Vec<String>,
    /// Inputs that in-place ops wrote, with their current values.
    pub written_inputs: IndexMap<InputId, ValueId>,
    /// Whether the program has ops that write, so that copies matter.
    pub in_place: bool,
    pub effects: EffectAnalysis,
    pub definitions: OpDefinitions,
    /// Pairs of values that may share memory although the graph does not show it.
    pub possible_aliases: Vec<(ValueId, ValueId)>,
    /// The values with rows whose number depends on data.
    pub packed: PackedValues,
    pub opaque: UnsupportedOps,
    /// The bool that holds where the branch of the present node runs.
    pub guard: Option<ValueId>,
    /// The number of branches that were lowered.
    pub branch_count: usize,
    pub notes: Vec<String>,
}

impl<'p> ImportLowering<'p> {
    pub fn new(
        builder: GraphBuilder,
        graph: &'p schema::ExportedGraph<'p>,
        symbols: ProgramSymbols<'p>,
        effects: EffectAnalysis,
    ) -> Self {
        ImportLowering {
            builder,
            compositions: Compositions::default(),
            scope: NameScope::new(graph, String::new(), 0),
            symbols,
            groups: IndexMap::new(),
            per_rank_inputs: IndexMap::new(),
            rank_slice_nodes: HashSet::new(),
            rank_shards: Vec::new(),
            weights: IndexMap::new(),
            buffers: Vec::new(),
            written_inputs: IndexMap::new(),
            in_place: effects.has_writes(graph),
            effects,
            definitions: OpDefinitions::default(),
            possible_aliases: Vec::new(),
            packed: PackedValues::default(),
            opaque: UnsupportedOps::default(),
            guard: None,
            branch_count: 0,
            notes: Vec::new(),
        }
    }

    pub fn declared_type(&self, name: &str) -> Result<TensorType> {
        self.type_with_dtype(name, dtype::from_schema)
    }

    /// The type of the value that represents a tensor. Complex tensors are stored as their components
    /// ([`crate::ops::complex`]).
    pub fn component_type(&self, name: &str) -> Result<TensorType> {
        if !self.is_complex(name) {
            return self.declared_type(name);
        }
        let component_dtype =
            |code| dtype::complex_component_dtype(code).ok_or_else(|| "no complex numbers".to_string());
        let mut ty = self.type_with_dtype(name, component_dtype)?;
        ty.shape.push(2.into());
        Ok(ty)
    }

    pub fn is_complex(&self, name: &str) -> bool {
        let meta = self.scope.graph.tensor_values.get(name);
        meta.is_some_and(|m| dtype::complex_component_dtype(m.dtype).is_some())
    }

    fn type_with_dtype(
        &self,
        name: &str,
        resolve_dtype: impl Fn(u32) -> Result<DType, String>,
    ) -> Result<TensorType> {
        let error = |message: String| ImportError::Signature { name: name.into(), message };
        let meta = self.scope.graph.tensor_values.get(name);
        let meta = meta.ok_or_else(|| error("expected an entry in tensor_values, found none".into()))?;
        if meta.layout != STRIDED {
            return Err(error(format!("expected the strided layout, found layout {}", meta.layout)));
        }
        let dtype = resolve_dtype(meta.dtype)
            .map_err(|dtype| error(format!("expected a supported dtype, found {dtype}")))?;
        let shape =
            meta.sizes.iter().map(|s| self.symbols.resolve_capacity(s)).collect::<Result<Vec<Dim>, _>>()?;
        symmc_ir::dim::check_shape_complexity(&shape).map_err(error)?;
        Ok(TensorType::new(dtype, shape))
    }

    pub fn emit_opaque(
        &mut self,
        node: &'p ExportedNode<'p>,
        why: &str,
        types: Vec<TensorType>,
    ) -> RuleResult<Vec<ValueId>> {
        let target = effects::functionalized_op(node).unwrap_or(&node.target);
        let target = effects::bare_target(target).to_string();
        let mut operands = Vec::new();
        let mut attributes = Vec::new();
        for input in &node.inputs {
            if let Argument::ByRank(b) = &input.arg {
                let name = &*input.name;
                let numbers = b.numbers.describe();
                return invalid!("{why}: expected the same `{name}` on all ranks, found {numbers}");
            }
            let names = tensor_names(&input.arg);
            for name in &names {
                operands.push(self.scope.value(name).map_err(RuleFailure::Invalid)?);
            }
            let silent = matches!(&input.arg, Argument::None | Argument::Operator(_) | Argument::Other(_));
            if names.is_empty() && !silent {
                attributes.push(format!("{}={}", &*input.name, input.arg));
            }
        }
        if let Some(rows) = operands.iter().find_map(|v| self.packed.rows(*v)) {
            let rows = self.symbols.data.display(&rows.length);
            return invalid!("{why}, and an operand has `{rows}` rows, which depend on data");
        }
        self.opaque.record(&target, node.name(), why);
        if types.is_empty() {
            // Nothing depends on a node without a tensor result: integer results have expressions in the
            // program.
            return Ok(Vec::new());
        }
        let op = Op::Opaque { name: target, attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, node.name());
        Ok(self.builder.node_as(&label, op, &operands, types)?)
    }

    pub fn check_declared(&self, node: &ExportedNode<'_>, name: &str, value: ValueId) -> Result<()> {
        let TensorType { dtype, shape } = self.component_type(name)?;
        let extents: Vec<Option<Dim>> = shape.into_iter().map(Some).collect();
        let actual = self.builder.graph().ty(value);
        declared::check_declared_type(actual, dtype, &extents, &self.symbols.table).map_err(|differ| {
            ImportError::Type {
                node: node.name().into(),
                op: node.target.to_string(),
                value: name.into(),
                expected: differ.expected,
                found: differ.found,
            }
        })
    }

    /// Compares the rows that depend on data with those of the declaration. Operators that create tensors
    /// give their first rows whatever the number.
    pub fn check_packed(&mut self, node: &ExportedNode<'_>, name: &str, value: ValueId) -> RuleResult {
        let Some(meta) = self.scope.graph.tensor_values.get(name) else { return Ok(()) };
        let mut declared = None;
        for (axis, size) in meta.sizes.iter().enumerate() {
            let length = self.symbols.data.normalize(&self.symbols.resolve_size(size)?);
            if self.symbols.data.depends_on_data(&length) {
                invalid_if!(
                    declared.is_some(),
                    "two axes of `{name}` depend on data, which is not supported"
                );
                declared = Some(PackedRows { axis, length });
            }
        }
        match (declared, self.packed.rows(value)) {
            (Some(declared), Some(rows)) if declared == *rows => Ok(()),
            (Some(declared), None) if packed_rows::creates_rows(&node.target) => {
                self.packed.set(value, declared);
                Ok(())
            }
            // The result has all rows of the operand, those after the rows of the program as well.
            (Some(_), None) if packed_rows::op_of(&node.target) == "symmc.whole_rows" => Ok(()),
            (Some(declared), rows) => {
                let expected = self.symbols.data.display(&declared.length);
                let axis = declared.axis;
                let actual = match rows {
                    Some(rows) => {
                        format!("`{}` along axis {}", self.symbols.data.display(&rows.length), rows.axis)
                    }
                    None => "a fixed number".to_string(),
                };
                invalid!(
                    "the number of elements of `{name}` along axis {axis} depends on data, which this operator does \
                     not support: expected `{expected}`, found {actual}"
                )
            }
            (None, Some(rows)) => {
                let row_text = self.symbols.data.display(&rows.length);
                invalid!("expected fixed extents of `{name}`, found `{row_text}` rows, which depend on data")
            }
            (None, None) => Ok(()),
        }
    }

    pub fn display_type(&self, ty: &TensorType) -> String {
        declared::display_type(ty, &self.symbols.table)
    }
}
