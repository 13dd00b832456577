//! Exact extraction from a small e-graph, by branch and bound.
//!
//! The greedy search of `extract` charges a shared part to the class that needs it first. This search
//! compares all extractions. A needed class without a node tries each of its nodes in turn, cheapest first.
//! A branch ends when its cost plus the least cost of the open classes is no less than the best extraction
//! found. If several nodes are one collective of the same operands with different variants, only the
//! cheapest can be part of the best extraction. The search gives up after [`MAX_TRIED_NODES`] and returns the
//! best extraction so far.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use egg::{Id, Language};

use super::extract::{self, CostModel, EQUAL_TIME_US, Extraction, is_plain};
use super::language::{Lang, LangEGraph};

/// The most nodes that are tried.
const MAX_TRIED_NODES: usize = 1 << 14;

/// Finds an extraction for these roots that costs less than `least` and that `is_allowed` accepts. It is the
/// cheapest one if the search ends within its limit.
pub fn find_cheaper_extraction(
    graph: &LangEGraph,
    roots: &[Id],
    uses: &CostModel,
    least: f64,
    is_allowed: &dyn Fn(&Extraction) -> bool,
) -> Option<Extraction> {
    let mut search = ExtractionSearch {
        graph,
        uses,
        options: HashMap::new(),
        chosen: BTreeMap::new(),
        is_allowed,
        least,
        best: None,
        steps: 0,
    };
    let open = roots.iter().map(|&root| graph.find(root)).collect();
    search.search_open_classes(&open, 0.0);
    search.best
}

/// A node of a class that can run, with its cost and the classes that it needs.
#[derive(Clone)]
struct ClassChoice {
    node: Lang,
    us: f64,
    needs: Vec<Id>,
}

struct ExtractionSearch<'a> {
    graph: &'a LangEGraph,
    uses: &'a CostModel,
    options: HashMap<Id, Vec<ClassChoice>>,
    chosen: BTreeMap<Id, ClassChoice>,
    is_allowed: &'a dyn Fn(&Extraction) -> bool,
    least: f64,
    best: Option<Extraction>,
    steps: usize,
}

impl ExtractionSearch<'_> {
    /// Tries all choices for the open classes. The classes chosen so far cost `us`.
    fn search_open_classes(&mut self, open: &BTreeSet<Id>, us: f64) {
        let bound: f64 = open
            .iter()
            .map(|&class| self.class_choices(class).first().map_or(f64::MAX, |choice| choice.us))
            .sum();
        if us + bound >= self.least - EQUAL_TIME_US || self.steps >= MAX_TRIED_NODES {
            return;
        }
        // Later classes need earlier ones more often than the reverse.
        let Some(&class) = open.last() else {
            let extraction: Extraction =
                self.chosen.iter().map(|(&class, choice)| (class, choice.node.clone())).collect();
            if (self.is_allowed)(&extraction) {
                self.least = us;
                self.best = Some(extraction);
            }
            return;
        };
        for choice in self.class_choices(class).to_vec() {
            self.steps += 1;
            if choice.needs.iter().any(|&need| self.reaches(need, class)) {
                continue;
            }
            let mut next = open.clone();
            next.remove(&class);
            next.extend(choice.needs.iter().filter(|need| !self.chosen.contains_key(need)));
            let cost = us + choice.us;
            self.chosen.insert(class, choice);
            self.search_open_classes(&next, cost);
            self.chosen.remove(&class);
        }
    }

    /// Whether a class needs another through chosen nodes.
    fn reaches(&self, from: Id, to: Id) -> bool {
        let mut open = vec![from];
        let mut visited = BTreeSet::new();
        while let Some(class) = open.pop() {
            if class == to {
                return true;
            }
            if visited.insert(class)
                && let Some(choice) = self.chosen.get(&class)
            {
                open.extend(&choice.needs);
            }
        }
        false
    }

    /// The choices for a class, cheapest first, and plain first among equal ones.
    fn class_choices(&mut self, class: Id) -> &[ClassChoice] {
        let graph = self.graph;
        let uses = self.uses;
        self.options.entry(class).or_insert_with(|| list_class_choices(graph, uses, class))
    }
}

fn list_class_choices(graph: &LangEGraph, uses: &CostModel, class: Id) -> Vec<ClassChoice> {
    let mut nodes: Vec<&Lang> =
        graph[class].nodes.iter().filter(|node| uses.permits(graph, class, node)).collect();
    nodes.sort_by_key(|node| (!is_plain(node), *node));
    let mut out: Vec<ClassChoice> = Vec::new();
    for node in nodes {
        let Some(cost) = extract::node_cost(graph, class, node, uses) else { continue };
        let needs: Vec<Id> = node.children().iter().map(|&child| graph.find(child)).collect();
        let equivalent = out.iter_mut().find(|choice| {
            let collectives =
                matches!((&choice.node, node), (Lang::Collective(a, ..), Lang::Collective(b, ..)) if a == b);
            collectives && choice.needs == needs
        });
        match equivalent {
            Some(choice) if cost.us < choice.us - EQUAL_TIME_US => {
                *choice = ClassChoice { node: node.clone(), us: cost.us, needs }
            }
            Some(_) => {}
            None => out.push(ClassChoice { node: node.clone(), us: cost.us, needs }),
        }
    }
    out.sort_by(|a, b| a.us.total_cmp(&b.us));
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use symmc_ir::machine::MachineProfile;
    use symmc_ir::{Numerics, NumericsClass, text};

    use super::super::conditions::LowerConditions;
    use super::super::solve::{CompiledRules, SaturatedRegion, build_cost_model};
    use super::super::{LowerConfig, build_context, region};
    use super::*;

    /// The least cost of the open classes over all choices, without a bound.
    fn least(
        graph: &LangEGraph,
        uses: &CostModel,
        open: &BTreeSet<Id>,
        chosen: &mut BTreeMap<Id, Lang>,
    ) -> f64 {
        let Some(&class) = open.first() else {
            return if is_ordered(graph, chosen) { 0.0 } else { f64::INFINITY };
        };
        let mut best = f64::INFINITY;
        for node in &graph[class].nodes {
            let Some(cost) = extract::node_cost(graph, class, node, uses) else { continue };
            chosen.insert(class, node.clone());
            let mut next = open.clone();
            next.remove(&class);
            next.extend(node.children().iter().map(|&c| graph.find(c)).filter(|c| !chosen.contains_key(c)));
            best = best.min(cost.us + least(graph, uses, &next, chosen));
            chosen.remove(&class);
        }
        best
    }

    fn is_ordered(graph: &LangEGraph, chosen: &BTreeMap<Id, Lang>) -> bool {
        let mut done: BTreeSet<Id> = BTreeSet::new();
        loop {
            let ready = chosen.iter().filter(|(class, node)| {
                !done.contains(class) && node.children().iter().all(|&c| done.contains(&graph.find(c)))
            });
            let ready: Vec<Id> = ready.map(|(&class, _)| class).collect();
            if ready.is_empty() {
                return done.len() == chosen.len();
            }
            done.extend(ready);
        }
    }

    const HEAD: &str = "program \"p\" ranks 4\ngroup @w world\narg %x: f32[64, 64]\narg %y: f32[64, 64]\n";
    const PROGRAMS: [&str; 5] = [
        "%r: f32[64, 64] = all_reduce %x op=sum group=@w\nreturn %r\n",
        "%s: f32[16, 64] = reduce_scatter %x op=sum group=@w\n%r: f32[64, 64] = all_reduce %x op=sum group=@w\n\
         return %s\nreturn %r\n",
        "%s: f32[16, 64] = reduce_scatter %x op=max group=@w\n%t: f64[16, 64] = cast %s\n\
         %r: f64[64, 64] = all_gather %t group=@w\nreturn %r\nreturn %t\n",
        "%r: f32[64, 64] = all_reduce %x op=sum group=@w\n%s: f32[64, 64] = all_reduce %y op=sum group=@w\n\
         %t: f32[64, 64] = add %r, %s\nreturn %t\n",
        "%c: f64[64, 64] = cast %x\n%a: f64[64, 64] = all_to_all %c splits=even group=@w\n\
         %b: f32[64, 64] = cast %a\nreturn %b\n",
    ];

    #[test]
    fn small_programs_are_run_in_the_cheapest_way_of_all() {
        for (body, variants) in
            PROGRAMS.iter().flat_map(|p| [(p, &["ll"][..]), (p, &["pull", "two_shot"][..])])
        {
            let graph = text::parse(&format!("{HEAD}{body}")).expect("a program");
            let numerics: Numerics = NumericsClass::Reassociate.into();
            let mut config = LowerConfig {
                numerics,
                ..LowerConfig::new(MachineProfile::builtin("h200x4").expect("it is built in"))
            };
            config.variants = Some(
                variants.iter().filter_map(|name| symmc_ir::CollectiveVariant::from_name(name)).collect(),
            );
            let context = Arc::new(build_context(&graph, &config).expect("the profile has plain"));
            let rules = CompiledRules::compiled(numerics).expect("rules parse");
            for region in region::find_regions(&graph, &config.bound, &context) {
                let key = region.key(&graph, &LowerConditions::default());
                let saturated =
                    SaturatedRegion::new(&region.form, &context, &rules.all, false).expect("it is imported");
                let uses = build_cost_model(&saturated.graph, &saturated.imported, &key);
                let roots =
                    saturated.imported.result_classes(&saturated.graph, &region.form, |used| used.outside);
                let open = roots.iter().map(|&root| saturated.graph.find(root)).collect();
                let expected = least(&saturated.graph, &uses, &open, &mut BTreeMap::new());
                let extraction =
                    find_cheaper_extraction(&saturated.graph, &roots, &uses, f64::MAX, &|_| true)
                        .expect("there is a way");
                let us = extract::extraction_us(&saturated.graph, &extraction, &uses).expect("it can be run");
                assert!((us - expected).abs() < 1e-9, "{us} is not {expected}: {body}");
            }
        }
    }
}
