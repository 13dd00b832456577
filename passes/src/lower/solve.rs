//! The choice for one region: saturate, extract, explain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use egg::{FlatTerm, Id, Language, RecExpr, Rewrite, Runner, SimpleScheduler};
use symmc_ir::{
    BinaryOp, CollectiveKind, DType, Dim, Float, Numerics, Op, ReduceOp, Scalar, Type, Variant, infer,
};

use super::context::{Context, Surroundings};
use super::extract::{self, Cost, Taken, Traffic, Uses};
use super::imported::Imported;
use super::language::{self, Attr, Facts, Graph, Lang};
use super::region::Key;
use super::rules;

/// Where the e-graph of one region stops growing.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes.
    pub nodes: usize,
    /// Iterations of all rules.
    pub iterations: usize,
}

/// How a region is run.
pub struct Solution {
    /// The nodes, each after those that it uses.
    pub steps: Vec<Step>,
    /// For each result of each node of the region, the value that stands for it, if it is needed.
    pub results: Vec<Vec<Option<Operand>>>,
    /// For each collective of the region, how it was chosen.
    pub decisions: Vec<Decided>,
    /// The rules that changed the e-graph, and how often.
    pub fired: Vec<(String, usize)>,
}

/// A step that is an all-reduce, and a variant that is one step with the addition behind it.
pub type Credit = (usize, Variant);

impl Solution {
    /// The steps that are all-reduces where the region has none.
    pub fn new_all_reduces<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = usize> + 'a {
        let all_reduces = |op: &Op| {
            let kind = op.as_collective().map(|c| &c.kind);
            matches!(kind, Some(CollectiveKind::AllReduce(_)))
        };
        let is_new = move |step: &Step| {
            let stands_for = step.stands_for.and_then(|node| key.nodes.get(node));
            all_reduces(&step.op) && !stands_for.is_some_and(|node| all_reduces(&node.op))
        };
        self.steps.iter().enumerate().filter(move |(_, step)| is_new(step)).map(|(i, _)| i)
    }
}

/// A node of a solution.
pub struct Step {
    /// What it computes.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Operand>,
    /// Its result types.
    pub types: Vec<Type>,
    /// The node of the region whose value it gives, if it gives one.
    pub stands_for: Option<usize>,
}

/// A value of a solution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A leaf of the region.
    Leaf(usize),
    /// A result of an earlier step.
    Step(usize, usize),
}

/// How one collective of a region was chosen.
pub struct Decided {
    /// The node of the region.
    pub node: usize,
    /// The node of the region whose value the steps give: the same, or a sum of several collectives.
    pub root: usize,
    /// The steps that run it, of which each belongs to one decision: none if others make it unnecessary.
    pub steps: Vec<usize>,
    /// The name of the way taken.
    pub chosen: String,
    /// The bytes of the estimates.
    pub bytes: u64,
    /// The name and cost of every way, cheapest first.
    pub alternatives: Vec<(String, Cost)>,
    /// The names of the rules on the way, each with the microseconds of what it put in place, if that can be
    /// run.
    pub rules: Vec<(String, Option<f64>)>,
}

/// The way of a collective whose value nothing needs any more.
const ABSORBED: &str = "absorbed";
/// The way that every collective has.
const PLAIN: &str = "plain";
/// Nodes between a collective and the parts that it was taken apart into.
const MAX_DEPTH: usize = 16;

/// Chooses how a region is run; `None` if a collective has no way at all, which a profile with plain
/// excludes. The same again with credits, about steps of the solution without any, chooses their variants for the program that
/// the rules made.
pub fn solve(
    key: &Key,
    context: &Arc<Context>,
    rules: &RuleSets,
    limits: &Limits,
    credits: &[Credit],
) -> Option<Solution> {
    let saturate = |rules| Saturated::new(key, context, rules, limits);
    let extracted = |saturated: Saturated| saturated.cheapest(key).map(|ways| (saturated, ways));
    let with_classes = if rules.exact_alone() { None } else { extracted(saturate(&rules.all)?) };
    let found = with_classes.or_else(|| extracted(saturate(&rules.exact)?));
    let (saturated, (mut taken, best)) = match found {
        Some(found) => found,
        None => {
            let saturated = saturate(&rules.exact)?;
            let ways = saturated.by_variants(key)?;
            (saturated, ways)
        }
    };
    let Saturated { mut graph, imported, fired } = saturated;
    let mut uses = uses(&graph, &imported, key);
    let roots = imported.classes(&graph, key, |u| u.outside);
    if !credits.is_empty() {
        let at = place_all(&graph, &imported, &taken, &roots)?.at;
        let class_of =
            |step| at.iter().find(|(_, at)| **at == Operand::Step(step, 0)).map(|(&class, _)| class);
        let credited: Vec<(Id, Variant)> =
            credits.iter().filter_map(|&(step, variant)| Some((class_of(step)?, variant))).collect();
        uses.added.extend(credited.iter().copied());
        for (class, _) in credited {
            let node = extract::cheapest_variant(&graph, class, taken.get(&class)?, &uses);
            taken.insert(class, node);
        }
    }
    let unchanged = imported.plain(&graph);
    let chooser = Chooser {
        graph: &graph,
        imported: &imported,
        uses: &uses,
        taken: &taken,
        best: &best,
        plain: &unchanged,
    };
    let plan = place_all(&graph, &imported, &taken, &roots)?;
    let results = chooser.results(&plan);
    let mut decisions = chooser.decisions(key, &plan)?;
    let steps = plan.steps;
    for decision in decisions.iter_mut().filter(|d| d.chosen != ABSORBED) {
        let from = &imported.nodes[decision.root];
        if let Some(to) = imported.expression(&graph, graph.find(from.class), &taken) {
            decision.rules = explain(&mut graph, &from.expression, &to, &uses);
        }
    }
    Some(Solution { steps, results, decisions, fired })
}

/// The rules of a lowering.
pub struct RuleSets {
    /// All that the numerics classes of the plan allow.
    all: Vec<Rewrite<Lang, Facts>>,
    /// The rules whose two sides have equal bits.
    exact: Vec<Rewrite<Lang, Facts>>,
}

impl RuleSets {
    /// The rules for plans of these classes.
    ///
    /// # Errors
    /// A rule does not parse, which the tests exclude.
    pub fn compiled(numerics: Numerics) -> Result<RuleSets, String> {
        Ok(RuleSets { all: rules::compiled(numerics)?, exact: rules::compiled(Numerics::EXACT)? })
    }

    fn exact_alone(&self) -> bool {
        self.all.len() == self.exact.len()
    }
}

/// A region as an e-graph to which rules were applied.
struct Saturated {
    graph: Graph,
    imported: Imported,
    fired: Vec<(String, usize)>,
}

impl Saturated {
    fn new(
        key: &Key,
        context: &Arc<Context>,
        rules: &[Rewrite<Lang, Facts>],
        limits: &Limits,
    ) -> Option<Saturated> {
        let surroundings = Surroundings { beside_us: key.beside as f64, exit_kept: key.exit_kept };
        let facts = |leaves| Facts { context: context.clone(), leaves, surroundings };
        let mut graph = Graph::new(facts(key.leaves.clone())).with_explanations_enabled();
        let imported = Imported::new(&mut graph, key)?;
        graph.rebuild();
        let runner: Runner<Lang, Facts> = Runner::new(facts(Vec::new()))
            .with_egraph(graph)
            .with_scheduler(SimpleScheduler)
            .with_iter_limit(limits.iterations)
            .with_node_limit(limits.nodes)
            .with_time_limit(Duration::MAX)
            .run(rules);
        let applied = runner.iterations.iter().flat_map(|i| &i.applied);
        let fired = applied.map(|(rule, &times)| (rule.to_string(), times)).collect();
        Some(Saturated { graph: runner.egraph, imported, fired })
    }

    /// The cheapest nodes that neither have more collectives than the program nor cost more than plain everywhere, and for
    /// every class the cheapest by itself; `None` if none were found.
    fn cheapest(&self, key: &Key) -> Option<(Taken, Taken)> {
        let uses = uses(&self.graph, &self.imported, key);
        let mut roots = self.imported.classes(&self.graph, key, |u| u.outside);
        let plain = self.imported.plain(&self.graph);
        let allowed = Traffic::of(&self.graph, &plain, &roots)?;
        let mut least = extract::total(&self.graph, &plain, &uses)?;
        let mut found = None;
        for _ in 0..2 {
            let (taken, best) = extract::cheapest(&self.graph, &roots, &uses)?;
            let us = extract::total(&self.graph, &taken, &uses)?;
            let cheaper = if found.is_none() { us <= least } else { us < least };
            if cheaper && Traffic::of(&self.graph, &taken, &roots)?.is_within(&allowed) {
                least = us;
                found = Some((taken, best));
            }
            roots.reverse();
        }
        found
    }

    /// The region as it was imported, each collective run by its cheapest variant, and for every class the cheapest by itself.
    fn by_variants(&self, key: &Key) -> Option<(Taken, Taken)> {
        let uses = uses(&self.graph, &self.imported, key);
        let roots = self.imported.classes(&self.graph, key, |u| u.outside);
        let mut taken = self.imported.plain(&self.graph);
        for (&class, node) in &mut taken {
            *node = extract::cheapest_variant(&self.graph, class, node, &uses);
        }
        let (_, mut best) = extract::cheapest(&self.graph, &roots, &uses)?;
        best.extend(taken.clone());
        Some((taken, best))
    }
}

/// How the classes of a region are used.
fn uses(graph: &Graph, imported: &Imported, key: &Key) -> Uses {
    let outputs = imported.classes(graph, key, |u| u.output).into_iter().collect();
    let all = imported.classes(graph, key, |_| true);
    // Results that became equal have the readers of all of them.
    let single = |id: &Id| all.iter().filter(|a| *a == id).count() == 1;
    let added = symmc_dispatch::VARIANTS.into_iter().flat_map(|variant| {
        let classes = imported.classes(graph, key, |u| u.added.contains(&variant));
        classes.into_iter().filter(single).map(move |id| (id, variant)).collect::<Vec<_>>()
    });
    let added = added.collect();
    Uses { outputs, added }
}

/// The steps of a region, and the values that stand for its classes.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    at: BTreeMap<Id, Operand>,
}

impl Plan {
    /// Adds a step with one result.
    fn add(&mut self, op: Op, operands: Vec<Operand>, ty: &Type) -> Operand {
        self.steps.push(Step { op, operands, types: vec![ty.clone()], stands_for: None });
        Operand::Step(self.steps.len() - 1, 0)
    }

    /// A value of one type as one of another.
    fn cast(&mut self, value: Operand, from: &Type, to: &Type) -> Operand {
        if from.dtype == to.dtype { value } else { self.add(Op::Cast, vec![value], to) }
    }
}

/// What decides about one region.
struct Chooser<'a> {
    graph: &'a Graph,
    imported: &'a Imported,
    uses: &'a Uses,
    /// The nodes that are run.
    taken: &'a Taken,
    /// For every class the cheapest node.
    best: &'a Taken,
    /// The region as it was imported, run by plain.
    plain: &'a Taken,
}

/// The steps that give some classes.
fn place_all(graph: &Graph, imported: &Imported, taken: &Taken, roots: &[Id]) -> Option<Plan> {
    let placing = Placing { graph, imported, taken };
    let mut plan = Plan::default();
    for &root in roots {
        placing.place(graph.find(root), &mut plan)?;
    }
    Some(plan)
}

/// What turns taken nodes into steps.
struct Placing<'a> {
    graph: &'a Graph,
    imported: &'a Imported,
    taken: &'a Taken,
}

impl Placing<'_> {
    /// The value of a class, computed by steps that are added if they are missing.
    fn place(&self, class: Id, plan: &mut Plan) -> Option<Operand> {
        if let Some(&at) = plan.at.get(&class) {
            return Some(at);
        }
        let node = self.taken.get(&class)?;
        let source = match node {
            Lang::Leaf(i) => Operand::Leaf(*i),
            Lang::Attr(_) => return None,
            Lang::Result(i, [x]) => match self.place(self.graph.find(*x), plan)? {
                Operand::Step(step, 0) => Operand::Step(step, *i),
                _ => return None,
            },
            Lang::SumPieces(of) => self.place_sum_of_pieces(class, of, plan)?,
            Lang::Sum(terms) => self.place_sum(class, terms, plan)?,
            _ => {
                let (op, children) = match node {
                    Lang::Collective(..) => {
                        let (collective, operands) = language::as_collective(self.graph, node)?;
                        (Op::Collective(collective), operands)
                    }
                    Lang::Reshape(x) => (Op::Reshape, &x[1..]),
                    Lang::Cast(x) => (Op::Cast, &x[1..]),
                    _ => (Op::Binary(BinaryOp::Add), node.children()),
                };
                let operands = children.iter().map(|&c| self.place(self.graph.find(c), plan));
                let operands = operands.collect::<Option<Vec<_>>>()?;
                let types = language::value(self.graph, class)?.types.clone();
                let stands_for = self.imported.find(self.graph, class);
                plan.steps.push(Step { op, operands, types, stands_for });
                Operand::Step(plan.steps.len() - 1, 0)
            }
        };
        plan.at.insert(class, source);
        Some(source)
    }

    /// The sum of terms, by additions one after another.
    fn place_sum(&self, class: Id, terms: &[Id], plan: &mut Plan) -> Option<Operand> {
        let mut total: Option<(Operand, Type)> = None;
        for &term in terms {
            let own = self.place(self.graph.find(term), plan)?;
            let ty = language::value(self.graph, term)?.ty()?;
            total = Some(match total {
                None => (own, ty.clone()),
                Some((sum, of)) => {
                    let op = Op::Binary(BinaryOp::Add);
                    let ty = infer::infer(&op, &[&of, ty], None).ok()??.into_iter().next()?;
                    (plan.add(op, vec![sum, own], &ty), ty)
                }
            });
        }
        plan.steps.last_mut()?.stands_for = self.imported.find(self.graph, class);
        Some(total?.0)
    }

    /// The sum of the pieces of a value, by element-wise steps.
    fn place_sum_of_pieces(
        &self,
        class: Id,
        &[op, group, _, x]: &[Id; 4],
        plan: &mut Plan,
    ) -> Option<Operand> {
        let (Attr::Reduce(op), Attr::Group(group)) =
            (language::attr(self.graph, op)?, language::attr(self.graph, group)?)
        else {
            return None;
        };
        let ranks = i64::from(self.graph.analysis.context.ranks(*group));
        let ty = language::value(self.graph, class)?.ty()?.clone();
        let piece = Type::new(language::value(self.graph, x)?.ty()?.dtype, ty.shape.clone());
        let x = self.place(self.graph.find(x), plan)?;
        let rows = ty.shape.first()?.clone();
        let accumulated = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let wide = Type::new(accumulated, ty.shape.clone());
        let mut total: Option<Operand> = None;
        for rank in 0..ranks {
            let slice = Op::Slice { axis: 0, start: rows.clone() * Dim::from(rank), step: 1 };
            let own = plan.add(slice, vec![x], &piece);
            let own = plan.cast(own, &piece, &wide);
            total = Some(match total {
                Some(total) => plan.add(Op::Binary(BinaryOp::Add), vec![total, own], &wide),
                None => own,
            });
        }
        let mut total = total?;
        if *op == ReduceOp::Avg {
            let scalar = Scalar::Float(Float(ranks as f64));
            let op = Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false };
            total = plan.add(op, vec![total], &wide);
        }
        let total = plan.cast(total, &wide, &ty);
        plan.steps.last_mut()?.stands_for = self.imported.find(self.graph, class);
        Some(total)
    }
}

impl Chooser<'_> {
    fn results(&self, plan: &Plan) -> Vec<Vec<Option<Operand>>> {
        let of = |&id: &Id| plan.at.get(&self.graph.find(id)).copied();
        self.imported.nodes.iter().map(|n| n.results.iter().map(of).collect()).collect()
    }

    fn decisions(&self, key: &Key, plan: &Plan) -> Option<Vec<Decided>> {
        let mut out = Vec::new();
        let mut claimed: BTreeSet<usize> = BTreeSet::new();
        for (i, node) in key.nodes.iter().enumerate() {
            let Op::Collective(collective) = &node.op else { continue };
            let class = self.graph.find(self.imported.nodes[i].class);
            let x = self.imported.nodes[i].node.children().get(self.attributes(i))?;
            let operand = language::value(self.graph, *x)?.ty()?.clone();
            let result = node.types.first()?;
            let bytes = self.graph.analysis.context.collective_bytes(&collective.kind, &operand, result);
            let (name, steps) = match (plan.at.get(&class), self.taken.get(&class)) {
                (Some(_), Some(taken)) => {
                    let mut steps = Vec::new();
                    self.steps_of(class, plan, &mut steps);
                    // What an equal collective before it is run by counts with that one.
                    steps.retain(|&step| claimed.insert(step));
                    let way = self.way(i, class, taken)?.0;
                    (if steps.is_empty() { ABSORBED.to_string() } else { way }, steps)
                }
                _ => (ABSORBED.to_string(), Vec::new()),
            };
            let alternatives = self.alternatives(i, class, &name)?;
            out.push(Decided {
                node: i,
                root: i,
                steps,
                chosen: name,
                bytes,
                alternatives,
                rules: Vec::new(),
            });
        }
        self.claim(plan, &claimed, &mut out)?;
        Some(out)
    }

    /// Collectives that run several absorbed ones, as one of their sum does, count with the first of these. One that
    /// is absorbed by an equal one is not among them if there are others.
    fn claim(&self, plan: &Plan, claimed: &BTreeSet<usize>, decisions: &mut [Decided]) -> Option<()> {
        let mut names = Vec::new();
        let mut sum = Cost::default();
        let mut steps = Vec::new();
        let mut root = None;
        for (&class, &source) in &plan.at {
            let (Operand::Step(step, 0), Some(node)) = (source, self.taken.get(&class)) else { continue };
            let Lang::Collective(name, Some(variant), _) = node else { continue };
            if !claimed.contains(&step) {
                let own = extract::cost(self.graph, class, node, self.uses)?;
                sum += own;
                root = root.or_else(|| self.served(class));
                names.push(format!("{name}.{variant}"));
                steps.push(step);
            }
        }
        let equal = |d: &Decided| plan.at.contains_key(&self.graph.find(self.imported.nodes[d.node].class));
        let absorbed = decisions.iter_mut().filter(|d| d.chosen == ABSORBED);
        let Some(first) = absorbed.min_by_key(|d| equal(d)) else { return Some(()) };
        if !steps.is_empty() {
            first.root = root.unwrap_or(first.node);
            first.steps = steps;
            first.chosen = names.join(" + ");
            first.alternatives.retain(|(name, _)| name != ABSORBED);
            first.alternatives.push((first.chosen.clone(), sum));
            first.alternatives.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        }
        Some(())
    }

    /// The node of the region whose value a class is, or is needed for.
    fn served(&self, class: Id) -> Option<usize> {
        let mut open = vec![class];
        while let Some(class) = open.pop() {
            if let Some(node) = self.imported.find(self.graph, class) {
                return Some(node);
            }
            let reads = |node: &Lang| node.children().iter().any(|&child| self.graph.find(child) == class);
            open.extend(self.taken.iter().filter(|(_, node)| reads(node)).map(|(&reader, _)| reader));
        }
        None
    }

    fn attributes(&self, node: usize) -> usize {
        match &self.imported.nodes[node].node {
            Lang::Collective(name, ..) => language::attribute_count(*name),
            _ => 0,
        }
    }

    /// The collective steps that run a class, up to other nodes of the region.
    fn steps_of(&self, class: Id, plan: &Plan, out: &mut Vec<usize>) {
        let Some(node) = self.taken.get(&class) else { return };
        for child in node.children().iter().map(|&c| self.graph.find(c)) {
            if self.imported.find(self.graph, child).is_none() {
                self.steps_of(child, plan, out);
            }
        }
        if let (Lang::Collective(..), Some(Operand::Step(step, 0))) = (node, plan.at.get(&class))
            && !out.contains(step)
        {
            out.push(*step);
        }
    }

    /// The ways to run a collective of the region, cheapest first.
    fn alternatives(&self, node: usize, class: Id, chosen: &str) -> Option<Vec<(String, Cost)>> {
        let mut out: Vec<(String, Cost)> = Vec::new();
        if chosen == ABSORBED {
            out.push((ABSORBED.to_string(), Cost::default()));
        }
        let mut nodes: Vec<&Lang> = self.graph[class].nodes.iter().collect();
        nodes.sort_unstable();
        for n in nodes {
            self.ways(node, class, n, &mut out);
        }
        out.retain(|(name, _)| name != PLAIN);
        out.push((PLAIN.to_string(), self.as_imported(class, &self.imported.by_plain(self.graph, node))?));
        out.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        let mut names = BTreeSet::new();
        out.retain(|(name, _)| names.insert(name.clone()));
        out.iter().any(|(name, _)| name == chosen).then_some(out)
    }

    /// The cost of a collective of the region as it was imported, `node` by plain, with the collectives that it needs and
    /// nothing else does.
    fn as_imported(&self, class: Id, node: &Lang) -> Option<Cost> {
        let mut sum = extract::cost(self.graph, class, node, self.uses)?;
        for child in node.children().iter().map(|&c| self.graph.find(c)) {
            if !self.taken.contains_key(&child) {
                let below = self.as_imported(child, self.plain.get(&child)?)?;
                sum += below;
            }
        }
        Some(sum)
    }

    /// The ways that begin with a node of a class: one for a collective, for others one for each node of what
    /// they are computed from.
    fn ways(&self, imported: usize, class: Id, node: &Lang, out: &mut Vec<(String, Cost)>) {
        let Some((name, cost)) = self.way(imported, class, node) else { return };
        out.push((name, cost));
        let (Lang::Reshape([_, x]) | Lang::Cast([_, x]) | Lang::SumPieces([.., x])) = node else { return };
        let below = self.graph.find(*x);
        let Some(own) = extract::cost(self.graph, class, node, self.uses) else { return };
        let mut nodes: Vec<&Lang> = self.graph[below].nodes.iter().collect();
        nodes.sort_unstable();
        for n in nodes.into_iter().filter(|n| matches!(n, Lang::Collective(..))) {
            if let Some((name, mut cost)) = self.way(imported, below, n) {
                cost += own;
                out.push((name, cost));
            }
        }
    }

    /// The name and the cost of running a collective of the region by a node of its class, and what only that
    /// needs. `None` if the node cannot be run.
    fn way(&self, imported: usize, class: Id, node: &Lang) -> Option<(String, Cost)> {
        let mut parts = Vec::new();
        let mut sum = Cost::default();
        self.walk(class, node, 0, &mut parts, &mut sum)?;
        let own = match &self.imported.nodes[imported].node {
            Lang::Collective(name, ..) => name.name(),
            _ => "",
        };
        let name = match &parts[..] {
            [] => return None,
            [(kind, variant)] if *kind == own => variant.to_string(),
            _ => parts.iter().map(|(n, v)| format!("{n}.{v}")).collect::<Vec<_>>().join(" + "),
        };
        Some((name, sum))
    }

    fn walk(
        &self,
        class: Id,
        node: &Lang,
        depth: usize,
        parts: &mut Vec<(&'static str, &'static str)>,
        sum: &mut Cost,
    ) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        for child in node.children().iter().map(|&c| self.graph.find(c)) {
            let elsewhere =
                self.imported.find(self.graph, child).is_some() && self.taken.contains_key(&child);
            if !elsewhere {
                let below = self.taken.get(&child).or(self.best.get(&child))?;
                self.walk(child, below, depth + 1, parts, sum)?;
            }
        }
        if let Lang::Collective(name, Some(variant), _) = node {
            parts.push((name.name(), variant.name()));
        }
        let own = extract::cost(self.graph, class, node, self.uses)?;
        *sum += own;
        Some(())
    }
}

/// The rules on the way from one expression to an equal one, in order, with the time of what each put in place.
fn explain(
    graph: &mut Graph,
    from: &RecExpr<Lang>,
    to: &RecExpr<Lang>,
    uses: &Uses,
) -> Vec<(String, Option<f64>)> {
    if graph.lookup_expr(from).is_none() || graph.lookup_expr(from) != graph.lookup_expr(to) {
        return Vec::new();
    }
    let mut rules = Vec::new();
    for term in graph.explain_equivalence(from, to).make_flat_explanation() {
        collect_rules(graph, term, uses, &mut rules);
    }
    rules
}

fn collect_rules(graph: &Graph, term: &FlatTerm<Lang>, uses: &Uses, out: &mut Vec<(String, Option<f64>)>) {
    for rule in [term.forward_rule, term.backward_rule].into_iter().flatten() {
        out.push((rule.to_string(), time_of(graph, term, uses)));
    }
    term.children.iter().for_each(|child| collect_rules(graph, child, uses, out));
}

/// The estimate of the collective at the top of a term; `None` if there is none, or no variant runs it yet.
fn time_of(graph: &Graph, term: &FlatTerm<Lang>, uses: &Uses) -> Option<f64> {
    let Lang::Collective(..) = term.node else { return None };
    let (class, node) = node_of(graph, term)?;
    extract::cost(graph, class, &node, uses).map(|cost| cost.us)
}

/// The node at the top of a term, over the classes of what is below it, and its class.
fn node_of(graph: &Graph, term: &FlatTerm<Lang>) -> Option<(Id, Lang)> {
    let below = term.children.iter().map(|child| node_of(graph, child).map(|(class, _)| class));
    let mut below = below.collect::<Option<Vec<Id>>>()?.into_iter();
    let node = term.node.clone().map_children(|id| below.next().unwrap_or(id));
    Some((graph.lookup(node.clone())?, node))
}
