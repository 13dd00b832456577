//! What ops do beside giving results.
//!
//! An exported program names its ops and holds no schemas. What the ops of PyTorch write is in `effects.txt`, which
//! `tools/effects.py` makes from the schemas that PyTorch registers; those of other ops may be declared
//! ([`crate::declared`]). In a program that says it is functional (the dialect `ATEN`, which `run_decompositions()`
//! gives and whose verifier refuses ops that write) no op writes its operands. An op of which none of this tells is
//! unknown: it may write any of its operands.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use crate::declared::Declared;
pub(crate) use crate::declared::Writes;
use crate::error::{ImportError, Result};
use crate::schema::{Argument, Graph, NamedArgument, Node, Str};
use crate::scope::tensor_names;

/// What an op does beside giving results.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    Pure,
    Writes(Writes),
    /// It changes the shape or the storage of an operand.
    Resizes,
    Draws,
    /// What no result shows.
    Outside,
    /// Its name says that it writes, and nothing what.
    Unclear,
    Unknown,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Pure,
    Resizes,
    Draws,
    Outside,
}

struct Row {
    writes: Writes,
    /// The argument without which it writes nothing.
    flag: Option<&'static str>,
}

struct Table {
    writes: HashMap<String, Row>,
    kinds: HashMap<&'static str, Kind>,
    views: HashSet<&'static str>,
}

/// Why an op that draws random numbers is refused.
pub(crate) const DRAWS: &str = "it draws random numbers, which a program cannot: export the model in evaluation mode, \
                                or make the numbers an argument";

/// Wrappers of graphs that have no effects but those of their graphs.
const WRAPPERS: [&str; 12] = [
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

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table { writes: HashMap::new(), kinds: HashMap::new(), views: HashSet::new() };
        for line in include_str!("effects.txt").lines() {
            let mut words = line.split(' ');
            let kind = match words.next() {
                Some("write") => {
                    write_row(&mut table, words);
                    continue;
                }
                Some("view") => {
                    table.views.extend(words);
                    continue;
                }
                Some("pure") => Kind::Pure,
                Some("resize") => Kind::Resizes,
                Some("random") => Kind::Draws,
                Some("effect") => Kind::Outside,
                _ => continue,
            };
            table.kinds.extend(words.map(|op| (op, kind)));
        }
        table
    })
}

/// A line `write OP OVERLOADS ARGUMENTS FUNCTIONAL [+N] [=ARGUMENTS] [?FLAG]`.
fn write_row(table: &mut Table, mut words: impl Iterator<Item = &'static str>) {
    let (Some(op), Some(overloads), Some(arguments), Some(functional)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return;
    };
    let (mut own, mut returned, mut flag) = (0, None, None);
    for word in words {
        match word.split_at_checked(1) {
            Some(("+", n)) => own = n.parse().unwrap_or(0),
            Some(("=", names)) => returned = Some(list(names)),
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
        let writes = Writes { arguments: list(arguments), functional, own, returned: returned.clone() };
        table.writes.insert(format!("{op}.{overload}"), Row { writes, flag });
    }
}

fn list(names: &str) -> Vec<String> {
    names.split(',').filter(|n| !n.is_empty()).map(str::to_string).collect()
}

/// A target without what all ops have in front.
pub(crate) fn bare(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

/// The op of a target, without its overload.
fn op_of(target: &str) -> &str {
    bare(target).rsplit_once('.').map_or(target, |(op, _)| op)
}

/// The op that a node calls in the form of [`crate::functionalised`], if it is such a call.
pub(crate) fn called<'p>(node: &'p Node<'p>) -> Option<&'p str> {
    let name = bare(&node.target).strip_prefix("higher_order.auto_functionalized")?;
    if !matches!(name.split('.').next(), Some("" | "_v2")) {
        return None;
    }
    node.inputs.iter().find_map(|i| match &i.arg {
        Argument::Operator(op) => Some(&**op),
        _ => None,
    })
}

/// What an op of PyTorch writes.
pub(crate) fn of_table(target: &str) -> Option<&'static Writes> {
    table().writes.get(bare(target)).map(|row| &row.writes)
}

/// Whether the results of an op share memory with its operands by its schema.
pub(crate) fn is_view(target: &str) -> bool {
    table().views.contains(op_of(target))
}

/// Whether an op draws random numbers, as far as its arguments let it. Attention and rrelu do only if they are told to.
pub(crate) fn draws(node: &Node<'_>) -> bool {
    let op = op_of(&node.target);
    let told = |name: &str| node.inputs.iter().any(|i| &*i.name == name);
    let off = |i: &NamedArgument<'_>| match (&*i.name, &i.arg) {
        ("train" | "training", Argument::Bool(on)) => !on,
        ("p" | "dropout" | "dropout_p", Argument::Float(p)) => *p == 0.0,
        ("p" | "dropout" | "dropout_p", Argument::Int(p)) => *p == 0,
        _ => false,
    };
    let silent = op.contains("scaled_dot_product") && !told("dropout_p")
        || matches!(op, "aten.rrelu" | "aten.rrelu_") && !told("training");
    table().kinds.get(op) == Some(&Kind::Draws) && !silent && !node.inputs.iter().any(off)
}

/// Whether the name of a target says that it writes an operand (`aten.add_.Tensor`, `aten.add.out`).
fn is_named_in_place(target: &str) -> bool {
    let (op, overload) = target.rsplit_once('.').unwrap_or((target, ""));
    (op.ends_with('_') && !op.ends_with("__")) || overload == "out" || overload.ends_with("_out")
}

#[derive(Debug, Default)]
pub(crate) struct Effects {
    declared: HashMap<String, Declared>,
    /// The program says that its ops write nothing.
    functional: bool,
}

impl Effects {
    /// Takes the schemas that the caller declares. Fails if one cannot be read, or two are of one op.
    pub fn new(schemas: &[String], verifiers: &[Str<'_>]) -> Result<Self> {
        let mut declared = HashMap::new();
        for text in schemas {
            let one = Declared::parse(text)
                .map_err(|message| ImportError::Declared { schema: text.clone(), message })?;
            if declared.insert(one.target.clone(), one).is_some() {
                let message = "expected one schema for the op, found two".into();
                return Err(ImportError::Declared { schema: text.clone(), message });
            }
        }
        let functional = !verifiers.is_empty() && verifiers.iter().all(|v| &**v == "ATEN");
        Ok(Effects { declared, functional })
    }

    pub fn all_used(&self, graph: &Graph<'_>) -> Result<()> {
        let mut found = HashSet::new();
        targets(graph, &mut found);
        match self.declared.values().find(|d| !found.contains(d.target.as_str())) {
            None => Ok(()),
            Some(unused) => Err(ImportError::Declared {
                schema: unused.text.clone(),
                message: format!("the program has no node of {}", unused.target),
            }),
        }
    }

    pub fn of(&self, node: &Node<'_>) -> Effect {
        let target = bare(&node.target);
        if let Some(declared) = self.declared.get(target) {
            let writes = declared.writes.clone();
            return match (writes.arguments.is_empty(), node.outputs.is_empty()) {
                (true, true) => Effect::Outside,
                (true, false) => Effect::Pure,
                (false, _) => Effect::Writes(writes),
            };
        }
        if let Some(row) = table().writes.get(target) {
            let off = |flag| {
                let set = node.inputs.iter().find(|i| &*i.name == flag).map(|i| &i.arg);
                matches!(set, Some(Argument::Bool(false)))
            };
            let nothing = row.flag.is_some_and(off);
            return if nothing { Effect::Pure } else { Effect::Writes(row.writes.clone()) };
        }
        if called(node).is_some() {
            return Effect::Pure;
        }
        if let Some(name) = target.strip_prefix("higher_order.") {
            return self.of_wrapper(name, node);
        }
        match table().kinds.get(op_of(target)) {
            Some(Kind::Pure) => Effect::Pure,
            Some(Kind::Resizes) => Effect::Resizes,
            Some(Kind::Outside) => Effect::Outside,
            Some(Kind::Draws) if draws(node) => Effect::Draws,
            Some(Kind::Draws) => Effect::Pure,
            None if is_named_in_place(target) => Effect::Unclear,
            None if self.functional => Effect::Pure,
            None if node.inputs.iter().all(|i| tensor_names(&i.arg).is_empty()) => Effect::Pure,
            None => Effect::Unknown,
        }
    }

    fn of_wrapper(&self, name: &str, node: &Node<'_>) -> Effect {
        let name = name.split('.').next().unwrap_or(name);
        if matches!(name, "with_effects" | "print" | "call_torchbind") {
            return Effect::Outside;
        }
        let graphs = node.inputs.iter().filter_map(|i| match &i.arg {
            Argument::Graph(g) => Some(&**g),
            _ => None,
        });
        let worst = graphs.flat_map(|g| &g.nodes).map(|n| self.of(n)).find(|e| *e != Effect::Pure);
        match worst {
            Some(Effect::Draws) => Effect::Draws,
            Some(Effect::Outside) => Effect::Outside,
            Some(_) => Effect::Unknown,
            None if WRAPPERS.contains(&name) => Effect::Pure,
            None => Effect::Unknown,
        }
    }

    pub fn writes_in(&self, graph: &Graph<'_>) -> bool {
        graph.nodes.iter().any(|n| {
            let inner = n.inputs.iter().any(|i| matches!(&i.arg, Argument::Graph(g) if self.writes_in(g)));
            inner || matches!(self.of(n), Effect::Writes(_))
        })
    }
}

fn targets<'a>(graph: &'a Graph<'_>, found: &mut HashSet<&'a str>) {
    for node in &graph.nodes {
        found.insert(bare(&node.target));
        for input in &node.inputs {
            match &input.arg {
                Argument::Graph(g) => targets(g, found),
                Argument::Operator(op) => {
                    found.insert(bare(op));
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
        let table = table();
        let lines = include_str!("effects.txt").lines().filter(|l| l.starts_with("write ")).count();
        assert!(lines > 1000 && table.writes.len() >= lines, "{lines} lines, {} rows", table.writes.len());
        let row = |target: &str| {
            let w = &table.writes[target].writes;
            (w.arguments.join(","), w.functional.clone().unwrap_or_default(), w.own)
        };
        assert_eq!(row("aten.add_.Tensor"), ("self".into(), "aten.add.Tensor".into(), 0));
        assert_eq!(row("aten.max.dim_max"), ("max,max_values".into(), "aten.max.dim".into(), 0));
        assert_eq!(row("aten._batch_norm_with_update.default").2, 4);
        let scatter = &table.writes["symm_mem.reduce_scatter_out.default"].writes;
        assert_eq!(scatter.returned.as_deref(), Some(["output".to_string()].as_slice()));
        assert!(table.kinds.contains_key("aten.rand") && is_view("torch.ops.aten.diagonal.default"));
    }
}
