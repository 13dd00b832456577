//! The effects of ops besides their results.
//!
//! An exported program names its ops and contains no schemas. `effects.txt` lists what PyTorch's ops write;
//! `tools/effects.py` generates it from the schemas that PyTorch registers. Callers may declare schemas of
//! other ops ([`crate::custom_schema`]). A program may state that it is functional: the dialect `ATEN`, which
//! `run_decompositions()` produces and whose verifier rejects ops that write. No op of such a program writes
//! its operands. An op that none of this covers is unknown: it may write any of its operands.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use crate::custom_schema::DeclaredOp;
pub(crate) use crate::custom_schema::{OpWrites, bare_target};
use crate::definition::OpDefinitions;
use crate::error::{ImportError, Result};
use crate::schema::{Argument, ExportedGraph, ExportedNode, JsonStr};
use crate::scope::tensor_names;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OpEffect {
    Pure,
    Writes(OpWrites),
    /// The op changes the shape or the storage of an operand.
    Resizes,
    Draws,
    /// An effect that no result shows.
    External,
    /// The name says that the op writes, but nothing says what.
    UnclearWrites,
    Unknown,
}

#[derive(Clone, Copy, PartialEq)]
enum EffectKind {
    Pure,
    Resizes,
    Draws,
    External,
}

struct WriteRow {
    writes: OpWrites,
    /// The argument that enables the write, if it is optional.
    flag: Option<&'static str>,
}

struct EffectTable {
    writes: HashMap<String, WriteRow>,
    kinds: HashMap<&'static str, EffectKind>,
    views: HashSet<&'static str>,
}

/// The error for an op that draws random numbers.
pub(crate) const DRAWS_ERROR: &str = "random numbers are not supported: export the model in evaluation mode, \
                                or pass the numbers as an argument";

/// Wrappers of graphs that have no effects except those of their graphs.
const WRAPPER_OPS: [&str; 16] = [
    "wrap",
    "wrap_activation_checkpoint",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
    "cond",
    "while_loop",
    "scan",
    "map",
    "map_impl",
    "associative_scan",
    "flex_attention",
    "flex_attention_backward",
    "hints_wrapper",
    "strict_mode",
    "invoke_quant",
    "triton_kernel_wrapper_functional",
];

fn effect_table() -> &'static EffectTable {
    static EFFECT_TABLE: OnceLock<EffectTable> = OnceLock::new();
    EFFECT_TABLE.get_or_init(|| {
        let mut table = EffectTable { writes: HashMap::new(), kinds: HashMap::new(), views: HashSet::new() };
        for line in include_str!("effects.txt").lines() {
            let mut words = line.split(' ');
            let kind = match words.next() {
                Some("write") => {
                    parse_write_row(&mut table, words);
                    continue;
                }
                Some("view") => {
                    table.views.extend(words);
                    continue;
                }
                Some("pure") => EffectKind::Pure,
                Some("resize") => EffectKind::Resizes,
                Some("random") => EffectKind::Draws,
                Some("effect") => EffectKind::External,
                _ => continue,
            };
            table.kinds.extend(words.map(|op| (op, kind)));
        }
        table
    })
}

/// Parses a line `write OP OVERLOADS ARGUMENTS FUNCTIONAL [+N] [=ARGUMENTS] [?FLAG]`.
fn parse_write_row(table: &mut EffectTable, mut words: impl Iterator<Item = &'static str>) {
    let (Some(op), Some(overloads), Some(arguments), Some(functional)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return;
    };
    let mut own_results = 0;
    let mut returned = None;
    let mut flag = None;
    for word in words {
        match word.split_at_checked(1) {
            Some(("+", n)) => own_results = n.parse().unwrap_or(0),
            Some(("=", names)) => returned = Some(split_names(names)),
            Some(("?", name)) => flag = Some(name),
            _ => {}
        }
    }
    for overload in overloads.split(',') {
        let functional = match functional {
            "-" => None,
            same_op if same_op.starts_with('.') => Some(format!("{op}{same_op}")),
            other if other.matches('.').count() > 1 => Some(other.to_string()),
            other => Some(format!("{other}.{overload}")),
        };
        let writes = OpWrites {
            arguments: split_names(arguments),
            functional,
            own_results,
            returned: returned.clone(),
        };
        table.writes.insert(format!("{op}.{overload}"), WriteRow { writes, flag });
    }
}

fn split_names(names: &str) -> Vec<String> {
    names.split(',').filter(|n| !n.is_empty()).map(str::to_string).collect()
}

/// The op of a target, without its overload.
fn op_name(target: &str) -> &str {
    bare_target(target).rsplit_once('.').map_or(target, |(op, _)| op)
}

/// The op that a node calls in the form of [`crate::auto_functionalized`], if it is such a call.
pub(crate) fn functionalized_op<'p>(node: &'p ExportedNode<'p>) -> Option<&'p str> {
    let name = bare_target(&node.target).strip_prefix("higher_order.auto_functionalized")?;
    if !matches!(name.split('.').next(), Some("" | "_v2")) {
        return None;
    }
    node.inputs.iter().find_map(|i| match &i.arg {
        Argument::Operator(op) => Some(&**op),
        _ => None,
    })
}

/// The arguments that an op of PyTorch writes.
pub(crate) fn find_op_writes(target: &str) -> Option<&'static OpWrites> {
    effect_table().writes.get(bare_target(target)).map(|row| &row.writes)
}

/// Whether the results of an op share memory with its operands according to its schema.
pub(crate) fn returns_views(target: &str) -> bool {
    effect_table().views.contains(op_name(target))
}

/// Whether an op draws random numbers with these arguments. Attention and rrelu only do on request.
pub(crate) fn draws_random_numbers(node: &ExportedNode<'_>) -> bool {
    let op = op_name(&node.target);
    let has_dropout = node.inputs.iter().any(|i| &*i.name == "dropout_p");
    let has_training = node.inputs.iter().any(|i| &*i.name == "training");
    let is_off_by_default = op.contains("scaled_dot_product") && !has_dropout
        || matches!(op, "aten.rrelu" | "aten.rrelu_") && !has_training;
    let is_off = node.inputs.iter().any(|i| match (&*i.name, &i.arg) {
        ("train" | "training", Argument::Bool(on)) => !on,
        ("p" | "dropout" | "dropout_p", Argument::Float(p)) => *p == 0.0,
        ("p" | "dropout" | "dropout_p", Argument::Int(p)) => *p == 0,
        _ => false,
    });
    let may_draw = effect_table().kinds.get(op) == Some(&EffectKind::Draws);
    may_draw && !is_off_by_default && !is_off
}

/// Whether the name of a target says that it writes an operand (`aten.add_.Tensor`, `aten.add.out`).
fn is_named_in_place(target: &str) -> bool {
    let (op, overload) = target.rsplit_once('.').unwrap_or((target, ""));
    (op.ends_with('_') && !op.ends_with("__")) || overload == "out" || overload.ends_with("_out")
}

#[derive(Debug, Default)]
pub(crate) struct EffectAnalysis {
    declared: HashMap<String, DeclaredOp>,
    /// Whether the program states that its ops write nothing.
    functional: bool,
}

impl EffectAnalysis {
    /// Parses the schemas that the caller declares. Fails if one is invalid, or an op has two.
    pub fn new(schemas: &[String], definitions: &OpDefinitions, verifiers: &[JsonStr<'_>]) -> Result<Self> {
        let mut declared: HashMap<String, DeclaredOp> = HashMap::new();
        for op in definitions.declared_ops() {
            match declared.insert(op.target.clone(), op.clone()) {
                Some(other) if other.writes != op.writes => {
                    let message = "expected that all definitions of the op write the same arguments".into();
                    return Err(ImportError::Definition { op: op.target.clone(), message });
                }
                _ => {}
            }
        }
        for text in schemas {
            let error = |message: String| ImportError::Declared { schema: text.clone(), message };
            let op = DeclaredOp::parse(text).map_err(error)?;
            if let Some(argument) = op.arguments.iter().find(|a| a.accepted.is_some()) {
                let name = &argument.name;
                return Err(error(format!("`== …` of `{name}` is for definitions, and this is a schema")));
            }
            if declared.insert(op.target.clone(), op).is_some() {
                return Err(error("expected one schema for the op, found two".into()));
            }
        }
        let functional = !verifiers.is_empty() && verifiers.iter().all(|v| &**v == "ATEN");
        Ok(EffectAnalysis { declared, functional })
    }

    pub fn check_all_used(&self, graph: &ExportedGraph<'_>) -> Result<()> {
        let mut targets = HashSet::new();
        collect_targets(graph, &mut targets);
        match self.declared.values().find(|d| !targets.contains(d.target.as_str())) {
            None => Ok(()),
            Some(unused) => Err(ImportError::Declared {
                schema: unused.text.clone(),
                message: format!("the program has no node of {}", unused.target),
            }),
        }
    }

    pub fn classify_node(&self, node: &ExportedNode<'_>) -> OpEffect {
        let target = bare_target(&node.target);
        if let Some(declared) = self.declared.get(target) {
            let writes = declared.writes.clone();
            return match (writes.arguments.is_empty(), node.outputs.is_empty()) {
                (true, true) => OpEffect::External,
                (true, false) => OpEffect::Pure,
                (false, _) => OpEffect::Writes(writes),
            };
        }
        if let Some(row) = effect_table().writes.get(target) {
            let nothing = row.flag.is_some_and(|flag| {
                let set = node.inputs.iter().find(|i| &*i.name == flag).map(|i| &i.arg);
                matches!(set, Some(Argument::Bool(false)))
            });
            return if nothing { OpEffect::Pure } else { OpEffect::Writes(row.writes.clone()) };
        }
        if functionalized_op(node).is_some() {
            return OpEffect::Pure;
        }
        if let Some(name) = target.strip_prefix("higher_order.") {
            return self.classify_wrapper(name, node);
        }
        match effect_table().kinds.get(op_name(target)) {
            Some(EffectKind::Pure) => OpEffect::Pure,
            Some(EffectKind::Resizes) => OpEffect::Resizes,
            Some(EffectKind::External) => OpEffect::External,
            Some(EffectKind::Draws) if draws_random_numbers(node) => OpEffect::Draws,
            Some(EffectKind::Draws) => OpEffect::Pure,
            None if is_named_in_place(target) => OpEffect::UnclearWrites,
            None if self.functional => OpEffect::Pure,
            None if node.inputs.iter().all(|i| tensor_names(&i.arg).is_empty()) => OpEffect::Pure,
            None => OpEffect::Unknown,
        }
    }

    fn classify_wrapper(&self, name: &str, node: &ExportedNode<'_>) -> OpEffect {
        let name = name.split('.').next().unwrap_or(name);
        if matches!(name, "with_effects" | "print" | "call_torchbind") {
            return OpEffect::External;
        }
        let graphs = node.inputs.iter().filter_map(|i| match &i.arg {
            Argument::Graph(g) => Some(&**g),
            _ => None,
        });
        let worst =
            graphs.flat_map(|g| &g.nodes).map(|n| self.classify_node(n)).find(|e| *e != OpEffect::Pure);
        match worst {
            Some(OpEffect::Draws) => OpEffect::Draws,
            Some(OpEffect::External) => OpEffect::External,
            Some(_) => OpEffect::Unknown,
            None if WRAPPER_OPS.contains(&name) => OpEffect::Pure,
            None => OpEffect::Unknown,
        }
    }

    pub fn has_writes(&self, graph: &ExportedGraph<'_>) -> bool {
        graph.nodes.iter().any(|n| {
            let inner = n.inputs.iter().any(|i| matches!(&i.arg, Argument::Graph(g) if self.has_writes(g)));
            inner || matches!(self.classify_node(n), OpEffect::Writes(_))
        })
    }
}

fn collect_targets<'a>(graph: &'a ExportedGraph<'_>, targets: &mut HashSet<&'a str>) {
    for node in &graph.nodes {
        targets.insert(bare_target(&node.target));
        for input in &node.inputs {
            match &input.arg {
                Argument::Graph(g) => collect_targets(g, targets),
                Argument::Operator(op) => {
                    targets.insert(bare_target(op));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_whole() {
        let table = effect_table();
        let lines = include_str!("effects.txt").lines().filter(|l| l.starts_with("write ")).count();
        assert!(lines > 1000 && table.writes.len() >= lines, "{lines} lines, {} rows", table.writes.len());
        let row = |target: &str| {
            let w = &table.writes[target].writes;
            (w.arguments.join(","), w.functional.clone().unwrap_or_default(), w.own_results)
        };
        assert_eq!(row("aten.add_.Tensor"), ("self".into(), "aten.add.Tensor".into(), 0));
        assert_eq!(row("aten.max.dim_max"), ("max,max_values".into(), "aten.max.dim".into(), 0));
        assert_eq!(row("aten._batch_norm_with_update.default").2, 4);
        let scatter = &table.writes["symm_mem.reduce_scatter_out.default"].writes;
        assert_eq!(scatter.returned.as_deref(), Some(["output".to_string()].as_slice()));
        assert!(table.kinds.contains_key("aten.rand") && returns_views("torch.ops.aten.diagonal.default"));
    }
}
