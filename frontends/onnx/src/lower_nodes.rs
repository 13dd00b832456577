//! Lowers the nodes of a program to graph nodes, in order.
//!
//! Each op has a rule ([`crate::ops`]) that emits graph nodes for it. Around the rules, this module folds
//! known values, inlines functions, branches and loops, keeps ONNX's names for results, and
//! checks each result against its declared type. An op without a rule becomes opaque ([`crate::opaque`]).

use symmc_import::invalid;
use symmc_ir::DType;
use symmc_ir::text::with_symbol_names;

use crate::call::OpCall;
use crate::error::FailureReason;
use crate::lower::{ImportLowering, RuleFailure, RuleResult};
use crate::node::{display_name, is_control_flow, node_label, normalize_domain};
use crate::ops;
use crate::proto;
use crate::{evaluate, fold, inline, schemas};

/// The largest number of nodes that function calls may expand to.
const MAX_NODES: usize = 1 << 18;

impl<'p> ImportLowering<'p> {
    pub fn lower_program_nodes(&mut self, nodes: &'p [proto::NodeProto]) -> Result<(), FailureReason> {
        self.lower_nodes(nodes)?;
        self.report_unsupported()
    }

    pub fn lower_nodes(&mut self, nodes: &'p [proto::NodeProto]) -> Result<(), FailureReason> {
        self.scope.mark_read(nodes);
        nodes.iter().try_for_each(|node| self.lower_node(node))
    }

    fn lower_node(&mut self, node: &'p proto::NodeProto) -> Result<(), FailureReason> {
        self.nodes += 1;
        if self.nodes > MAX_NODES && !self.outer.is_empty() {
            return Err(node_error(node, format!("functions expand to more than {MAX_NODES} nodes")));
        }
        if self.skip_untyped(node) {
            return Ok(());
        }
        let lowered = match inline::find_function(self, node) {
            Some(function) => self.lower_function(node, function),
            None if is_control_flow(node) => self.lower_control_flow(node),
            None => self.lower_by_rule(node),
        };
        let lowered = match lowered {
            Err(RuleFailure::Opaque(why)) => self.lower_opaque(node, &why),
            // The extents of opaque results, and the branches that were assumed, may not be those that the node expects.
            Err(RuleFailure::Invalid(why)) if self.has_assumptions() => self.lower_opaque(node, &why),
            Err(RuleFailure::Error(FailureReason::Node { message, .. })) if self.has_assumptions() => {
                self.lower_opaque(node, &message)
            }
            other => other,
        };
        // Messages of the IR contain ids of symbols, which are replaced by names.
        lowered.map_err(|stop| {
            stop.into_error(|message| node_error(node, with_symbol_names(&message, &self.symbols.table)))
        })
    }

    fn has_assumptions(&self) -> bool {
        self.symbols.has_symbols_of_results || self.has_assumed_branches
    }

    fn lower_by_rule(&mut self, node: &'p proto::NodeProto) -> RuleResult {
        let Some(row) = ops::find_rule(&node.domain, &node.op_type) else {
            let standard = normalize_domain(&node.domain).is_empty() && schemas::is_standard(&node.op_type);
            let why = if standard {
                "this ONNX operator is not supported"
            } else {
                "this operator is not supported"
            };
            return Err(RuleFailure::Opaque(why.into()));
        };
        let Some(version) = self.scope.opsets.get(normalize_domain(&node.domain)).copied() else {
            let domain = match normalize_domain(&node.domain) {
                "" => "ai.onnx",
                domain => domain,
            };
            return invalid!("expected an opset_import for the domain `{domain}`, found none");
        };
        let schema = ops::find_definition(row, version).map_err(RuleFailure::Invalid)?;
        schema
            .check_node(row.names, node, |a| self.scope.resolve_attribute(a))
            .map_err(RuleFailure::Invalid)?;
        let dtypes: Vec<Option<DType>> = node.input.iter().map(|name| self.dtype_of(name)).collect();
        schema.check_dtypes(row.names, &dtypes).map_err(RuleFailure::Invalid)?;
        let mut call = OpCall::new(self, node, version, schema);
        call.check_counted_operands()?;
        if fold::fold_ints(&mut call)? || evaluate::fold_constants(&mut call, row.rule.rule)? {
            return call.finish();
        }
        call.reset_reads();
        row.rule.rule.apply(&mut call)?;
        call.finish()
    }
}

fn node_error(node: &proto::NodeProto, message: String) -> FailureReason {
    FailureReason::Node { node: node_label(node).to_string(), op: display_name(node), message }
}
