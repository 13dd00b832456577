//! Nodes that no rule lowers. They become opaque ops with the types that the program declares for their results, or
//! that the schema of the op gives ([`crate::result_types`]). If there is none, the results are untyped, and so are
//! the results of all nodes that read them. Such a program is rejected with all ops that caused this.

use symmc_import::unsupported;
use symmc_ir::text::with_symbol_names;
use symmc_ir::{DType, Dim, Op, TensorType, ValueId};

use crate::error::FailureReason;
use crate::lower::{ImportLowering, RuleFailure, RuleResult};
use crate::node::{describe_attribute, display_name, node_label};
use crate::ops;
use crate::proto;
use crate::result_types::{PartialType, schema_result_type};
use crate::scope::NameBinding;
use crate::tensor_data;

/// The names of the operands of a node, and the names that its graphs read.
fn names_read(node: &proto::NodeProto) -> Vec<&str> {
    let operands = node.input.iter().map(String::as_str).filter(|n| !n.is_empty());
    operands.chain(names_read_in_graphs(node)).collect()
}

/// The names that the graphs of a node read, their own among them.
fn names_read_in_graphs(node: &proto::NodeProto) -> Vec<&str> {
    let mut names = Vec::new();
    for graph in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
        names.extend(graph.node.iter().flat_map(names_read));
        names.extend(graph.output.iter().map(|o| o.name.as_str()));
    }
    names
}

/// The type of a stored tensor whose dtype the IR does not have, with bytes in its place.
fn stand_in_type(tensor: &proto::TensorProto) -> Option<TensorType> {
    let shape = tensor
        .dims
        .iter()
        .map(|&d| Some(d).filter(|d| *d >= 0).map(Dim::from))
        .collect::<Option<Vec<_>>>()?;
    (shape.len() <= symmc_ir::dim::MAX_RANK).then(|| TensorType::new(DType::U8, shape))
}

impl<'p> ImportLowering<'p> {
    /// Lowers a node to an opaque op, or makes its results untyped.
    pub fn lower_opaque(&mut self, node: &'p proto::NodeProto, why: &str) -> RuleResult {
        if self.scratch {
            return Err(RuleFailure::Opaque(why.to_string()));
        }
        let why = with_symbol_names(why, &self.symbols.table);
        match self.opaque_types(node) {
            Ok((operands, wanted, types)) => {
                self.opaque.record(&display_name(node), node_label(node), &why);
                self.emit_opaque(node, &operands, wanted, types)
            }
            Err(RuleFailure::Opaque(missing)) => {
                let why = if why == missing { why } else { format!("{why}; {missing}") };
                self.record_untyped(node, &why);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the results of a node untyped, and records its op.
    pub fn record_untyped(&mut self, node: &'p proto::NodeProto, why: &str) {
        self.untyped.record(&display_name(node), node_label(node), why);
        self.bind_untyped(node);
    }

    /// If a node reads an untyped value, makes its results untyped. An op without a rule is recorded.
    pub fn skip_untyped(&mut self, node: &'p proto::NodeProto) -> bool {
        if self.untyped.is_empty() {
            return false;
        }
        let is_untyped = |name: &&str| matches!(self.find_binding(name), Some((.., NameBinding::Untyped)));
        if !names_read(node).iter().any(is_untyped) {
            return false;
        }
        if ops::find_rule(&node.domain, &node.op_type).is_none() && !self.is_inlined(node) {
            self.record_untyped(node, "this operator is not supported");
        } else {
            self.bind_untyped(node);
        }
        true
    }

    /// Whether the nodes of a body take the place of this node.
    fn is_inlined(&self, node: &proto::NodeProto) -> bool {
        let key =
            (crate::node::normalize_domain(&node.domain), node.op_type.as_str(), node.overload.as_str());
        node.attribute.iter().any(|a| a.g.is_some()) || self.functions.contains_key(&key)
    }

    fn bind_untyped(&mut self, node: &'p proto::NodeProto) {
        for name in node.output.iter().filter(|n| !n.is_empty()) {
            if self.scope.get(name).is_none() {
                self.scope.rebind(name, NameBinding::Untyped);
            }
        }
    }

    /// The operands of an opaque op, and the results that are read with their types.
    fn opaque_types(
        &mut self,
        node: &'p proto::NodeProto,
    ) -> RuleResult<(Vec<ValueId>, Vec<&'p str>, Vec<TensorType>)> {
        let mut operands = Vec::new();
        let mut operand_types = Vec::new();
        for name in &node.input {
            let values = if name.is_empty() { Vec::new() } else { self.opaque_operand(name)? };
            if let Some((.., NameBinding::Stored(tensor))) = self.find_binding(name) {
                operand_types.push(stand_in_type(tensor));
                continue;
            }
            operand_types.push(match values.as_slice() {
                [value] => Some(self.builder.graph().ty(*value).clone()),
                _ => None,
            });
            operands.extend(values);
        }
        for name in names_read_in_graphs(node) {
            if self.find_binding(name).is_some() {
                let values = self.opaque_operand(name)?;
                operands.extend(values);
            }
        }
        let mut seen = std::collections::HashSet::new();
        operands.retain(|v| seen.insert(*v));
        let mut wanted: Vec<&'p str> = Vec::new();
        let mut types = Vec::new();
        for (i, name) in node.output.iter().enumerate() {
            if !self.scope.is_read(name) {
                continue;
            }
            let by_schema = schema_result_type(node, &operand_types, i);
            types.push(self.result_type(name, by_schema)?);
            wanted.push(name);
        }
        Ok((operands, wanted, types))
    }

    /// The values of an operand of an opaque op: the elements, if it is a sequence. A stored tensor whose dtype the IR does
    /// not have is left out.
    fn opaque_operand(&mut self, name: &str) -> RuleResult<Vec<ValueId>> {
        if let Some((.., NameBinding::Stored(tensor))) = self.find_binding(name)
            && tensor_data::is_unsupported_dtype(tensor.data_type)
        {
            return Ok(Vec::new());
        }
        match self.resolve_name(name)? {
            NameBinding::Sequence(values) => Ok(values),
            NameBinding::Omitted => Ok(Vec::new()),
            _ => Ok(vec![self.resolve_value(name)?]),
        }
    }

    /// The declared type of a result. The schema and new symbols complete it.
    fn result_type(&mut self, name: &'p str, by_schema: Option<PartialType>) -> RuleResult<TensorType> {
        let declared = match self.scope.declared.get(name).filter(|ty| ***ty != proto::TypeProto::default()) {
            Some(ty) => match &ty.tensor_type {
                Some(tensor) => Some(tensor),
                None => return unsupported!("its result `{name}` is no tensor"),
            },
            None => None,
        };
        let dtype = match declared.filter(|t| t.elem_type != 0) {
            Some(tensor) => match tensor_data::dtype_from_code(tensor.elem_type) {
                Ok(dtype) => Some(dtype),
                // Bytes take the place of 8-bit dtypes that the IR does not have.
                Err(_) if tensor_data::is_byte(tensor.elem_type) => Some(DType::U8),
                Err(found) => return unsupported!("its result `{name}` has {found}, which is not supported"),
            },
            None => by_schema.as_ref().map(|ty| ty.dtype),
        };
        let declared_shape = declared.and_then(|t| t.shape.as_ref());
        let expected = by_schema.map(|ty| ty.shape);
        let rank = declared_shape.map(|s| s.dim.len()).or(expected.as_ref().map(Vec::len));
        let (Some(dtype), Some(rank)) = (dtype, rank) else {
            let declared = match (declared, dtype) {
                (None, _) => "no type",
                (Some(_), None) => "a type without a dtype",
                (Some(_), Some(_)) => "a type without a number of axes",
            };
            return unsupported!("the program declares {declared} for its result `{name}`");
        };
        let expected = expected.filter(|e| e.len() == rank).unwrap_or_else(|| vec![None; rank]);
        let shape = self.symbols.resolve_result_extents(name, declared_shape, expected)?;
        self.builder.graph_mut().symbols = self.symbols.table.clone();
        symmc_ir::dim::check_shape_complexity(&shape).map_err(RuleFailure::Invalid)?;
        Ok(TensorType::new(dtype, shape))
    }

    fn emit_opaque(
        &mut self,
        node: &'p proto::NodeProto,
        operands: &[ValueId],
        wanted: Vec<&'p str>,
        types: Vec<TensorType>,
    ) -> RuleResult {
        if wanted.is_empty() {
            return Ok(());
        }
        let attributes: Vec<String> = node.attribute.iter().map(describe_attribute).collect();
        let op = Op::Opaque { name: display_name(node), attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, node_label(node));
        let results = self.builder.node_as(&label, op, operands, types)?;
        for (name, value) in wanted.into_iter().zip(results) {
            let shown = format!("{}{name}", self.scope.prefix);
            self.builder.rename(value, &shown)?;
            self.scope.rebind(name, NameBinding::Value(value));
        }
        Ok(())
    }

    /// Fails if values have no types. Notes the opaque ops otherwise.
    pub fn report_unsupported(&mut self) -> Result<(), FailureReason> {
        if let Some(ops) = self.untyped.describe() {
            return Err(FailureReason::Unsupported(ops));
        }
        if let [first, others @ ..] = self.differing_shapes.as_slice() {
            let more = if others.is_empty() {
                String::new()
            } else {
                format!(", and {} more such shapes", others.len())
            };
            self.notes
                .push(format!("the program declares {first}{more}; the shapes of the operators are used"));
        }
        self.notes.extend(self.opaque.opaque_note());
        Ok(())
    }
}
