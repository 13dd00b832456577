//! stub
use std::collections::BTreeSet;

use indexmap::IndexMap;
use symmc_ir::machine::Profile;
use symmc_ir::{Graph, InputId, Op, SymbolId, Variant};

use crate::error::PassError;

/// How to lower.
#[derive(Clone, Debug)]
pub struct LowerConfig {
    /// The machine.
    pub profile: Profile,
    /// The inclusive range of each symbol in this bucket; a symbol that is missing keeps its own.
    pub symbols: IndexMap<SymbolId, (i64, i64)>,
    /// Inputs that the caller writes into the symmetric arena.
    pub bound: BTreeSet<InputId>,
    /// The variants that the backend runs; `None` for all that have a contract and a curve.
    pub variants: Option<Vec<Variant>>,
    /// Whether rules that change rounding are used.
    pub allow_rounding_changes: bool,
}

impl LowerConfig {
    /// For the whole range of all symbols, nothing bound.
    pub fn new(profile: Profile) -> Self {
        LowerConfig {
            profile,
            symbols: IndexMap::new(),
            bound: BTreeSet::new(),
            variants: None,
            allow_rounding_changes: false,
        }
    }
}

/// A way to run a collective.
#[derive(Clone, PartialEq, Debug)]
pub struct Alternative {
    /// Its name: a variant, or two joined with ` + `.
    pub name: String,
    /// Estimated microseconds, copies included.
    pub us: f64,
    /// The part of `us` that copies cost.
    pub copy_us: f64,
}

/// How a collective was chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The collective of the program before: the name of its first result.
    pub collective: String,
    /// The nodes of the lowered program that run it.
    pub nodes: Vec<String>,
    /// The name of what was chosen, as in `alternatives`.
    pub chosen: String,
    /// The bytes that the estimates are for (see [`symmc_ir::machine`]).
    pub bytes: u64,
    /// Every way that was considered, cheapest first, the chosen one among them; plain always is.
    pub alternatives: Vec<Alternative>,
    /// The names of the rules that led to the chosen form.
    pub rules: Vec<String>,
}

/// Chooses how each collective runs.
///
/// # Errors
/// See [`PassError`].
pub fn lower(graph: &Graph, config: &LowerConfig) -> Result<(Graph, Vec<Choice>), PassError> {
    let mut out = graph.clone();
    for (&s, &(min, max)) in &config.symbols {
        out.symbols[s].min = min;
        out.symbols[s].max = max;
    }
    let mut choices = Vec::new();
    for node in out.nodes.values_mut() {
        if let Op::Collective(c) = &mut node.op {
            c.variant = Some(Variant::Plain);
            let name = graph.name_of(node.outputs[0]).to_string();
            choices.push(Choice {
                collective: name.clone(),
                nodes: vec![name],
                chosen: "plain".into(),
                bytes: 0,
                alternatives: vec![Alternative { name: "plain".into(), us: 1.0, copy_us: 0.0 }],
                rules: vec![],
            });
        }
    }
    Ok((out, choices))
}
