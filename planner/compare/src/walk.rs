//! The walk over one planned program and the source.
//!
//! A planned value whose elements the source does not have is paired with the source's value of the same name
//! and type. Their parts back to values that both programs have are compared. If the parts agree, the planned
//! value counts as the source's value from then on. Otherwise the value is *suspect*: a rewrite may have given
//! an old name to another value, and a later value may agree again. It is a difference only if no later value
//! agrees.

use std::collections::{BTreeMap, HashMap, HashSet};

use symmc_ir::{DType, EntityMap, Graph, Node, NodeId, Op, Replication, ValueId};
use symmc_plan::Bucket;

use crate::comparison::{ComparedPart, SourceStatus};
use crate::elements::{ElementClass, ElementView};
use crate::judge::Verdict;
use crate::number::{NumberedProgram, ValueNumbering, has_own_rounding};
use crate::parts::{ComparisonState, PartOutcome, ProgramPair};
use crate::region::{ComparedRegion, MAX_REGION_NODES, PairedRegions, find_region};

/// The number of suspect values in a row after which the first of them is reported as a difference.
const MAX_SUSPECT_VALUES: usize = 4;
/// The largest number of times that a part is extended by computing more of its leaves.
const MAX_EXTENSIONS: usize = 12;
/// The largest number of times that a part is extended although it agrees, because a leaf shows no influence.
const MAX_UNSHOWN_STEPS: usize = 3;

/// A planned value that does not agree with the source's value of the same name.
struct SuspectValue {
    /// The number of suspect values in a row up to this one.
    depth: usize,
    /// The value of the source with the same name.
    of: ValueId,
    what: String,
    at: String,
}

pub(crate) struct ComparisonWalk<'a, 's> {
    buckets: &'a [(usize, &'a Bucket)],
    ranks: u32,
    numbering: ValueNumbering,
    source: NumberedProgram<'a>,
    planned: NumberedProgram<'a>,
    in_source: HashSet<ElementClass>,
    in_planned: HashSet<ElementClass>,
    by_name: HashMap<&'a str, ValueId>,
    /// For each class of the source the ranks that hold the same bits of its elements.
    replication: HashMap<ElementClass, Replication>,
    suspects: HashMap<ValueId, SuspectValue>,
    /// The elements of values of the source and of planned values that agreed.
    agreed: HashSet<[ElementView; 2]>,
    /// The classes that were assumed to be equal without a comparison.
    assumed: HashSet<ElementClass>,
    /// For each planned value the first output that is computed from it.
    feeds: EntityMap<ValueId, Option<usize>>,
    status: SourceStatus,
    shared: &'s mut ComparisonState,
}

impl<'a, 's> ComparisonWalk<'a, 's> {
    pub(crate) fn new(
        source: &'a Graph,
        planned: &'a Graph,
        buckets: &'a [(usize, &'a Bucket)],
        shared: &'s mut ComparisonState,
    ) -> Self {
        let mut numbering = ValueNumbering::new(source, planned);
        let mut numbered = numbering.add_program(source);
        for n in source.nodes.keys() {
            if numbered.live[n] {
                numbering.number_node(&mut numbered, n);
            }
        }
        let of_planned = numbering.add_program(planned);
        let mut replication = HashMap::new();
        for (v, ranks) in Replication::of_graph(source).iter() {
            if let Some(elements) = &numbered.elements[v] {
                replication.entry(elements.class).or_insert_with(|| ranks.clone());
            }
        }
        let by_name = source.values.iter().filter(|(v, _)| numbered.elements[*v].is_some());
        ComparisonWalk {
            buckets,
            ranks: planned.ranks.unwrap_or(1),
            in_source: element_classes(&numbered),
            in_planned: element_classes(&of_planned),
            by_name: by_name.map(|(v, value)| (value.name.as_str(), v)).collect(),
            replication,
            numbering,
            source: numbered,
            planned: of_planned,
            suspects: HashMap::new(),
            agreed: HashSet::new(),
            assumed: HashSet::new(),
            feeds: first_fed_outputs(planned),
            status: SourceStatus::Equal,
            shared,
        }
    }

    pub(crate) fn run(mut self) -> SourceStatus {
        let planned = self.planned.graph;
        for n in planned.nodes.keys() {
            if self.planned.live[n] {
                self.visit_node(n);
            }
        }
        for (k, (of_source, of_planned)) in self.source.graph.outputs.iter().zip(&planned.outputs).enumerate()
        {
            let s = of_source.value;
            let p = of_planned.value;
            if self.source.elements[s] != self.planned.elements[p] {
                self.compare_values(s, p, Some(k));
            }
        }
        self.status
    }

    fn visit_node(&mut self, n: NodeId) {
        self.numbering.number_node(&mut self.planned, n);
        let planned = self.planned.graph;
        for &v in &planned.nodes[n].outputs {
            let Some(class) = self.planned.elements[v].as_ref().map(|e| e.class) else { continue };
            if self.in_source.contains(&class) {
                self.in_planned.insert(class);
                continue;
            }
            let named = self.by_name.get(planned.value_name(v)).copied();
            let Some(s) = named else { continue };
            let is_shared =
                self.source.elements[s].as_ref().is_none_or(|e| self.in_planned.contains(&e.class));
            if !is_shared && self.source.types[s] == self.planned.types[v] {
                self.compare_values(s, v, None);
            }
        }
    }

    /// Compares a planned value with a value of the source. An output must be equal to that value.
    fn compare_values(&mut self, s: ValueId, p: ValueId, output: Option<usize>) {
        if self.elements_of(s, p).is_some_and(|elements| self.agreed.contains(&elements)) {
            return self.mark_equal(s, p);
        }
        let (verdict, sizes, regions) = self.examine(s, p, false);
        let suspect = regions.as_ref().and_then(|r| self.first_suspect(r));
        let assumed = regions.as_ref().is_some_and(|r| self.is_assumed(r));
        match verdict {
            Verdict::Proven(_) | Verdict::Equal(_) | Verdict::Undecided(_) => {
                self.accept(s, p, output, verdict, &sizes);
            }
            Verdict::Differs(_) if assumed => {
                self.assume_equal(s, p, "it is computed from a part that was not compared");
            }
            Verdict::Differs(difference) => {
                let depth = 1 + regions.as_ref().map_or(0, |r| self.depth(r));
                self.suspects.insert(p, SuspectValue { depth, of: s, what: difference, at: sizes });
                if output.is_some() || depth > MAX_SUSPECT_VALUES {
                    self.resolve_suspect(s, p, suspect.unwrap_or(p), output);
                }
            }
            Verdict::NoInfluence(_) => self.leave_out(s, p, &sizes),
            Verdict::Unknown(reason) => match suspect {
                Some(first) => self.resolve_suspect(s, p, first, output),
                None => self.assume_equal(s, p, &reason),
            },
        }
    }

    /// Marks a planned value as equal to the source's value, after a comparison without a difference.
    fn accept(&mut self, s: ValueId, p: ValueId, output: Option<usize>, verdict: Verdict, sizes: &str) {
        if let Verdict::Undecided(difference) = verdict {
            let message = self.describe_difference(p, output, sizes, &difference);
            self.shared.comparison.add_undecided(message);
            self.status = self.status.max(SourceStatus::NotCompared);
        }
        let elements = self.elements_of(s, p);
        self.agreed.extend(elements);
        self.mark_equal(s, p);
    }

    fn elements_of(&self, s: ValueId, p: ValueId) -> Option<[ElementView; 2]> {
        Some([self.source.elements[s].clone()?, self.planned.elements[p].clone()?])
    }

    /// Marks a planned value as equal to the source's value if their results agree in a draw. If they agree but a
    /// leaf has no influence, the value is reported as not compared as well. Says whether results agree.
    fn accept_agreement(
        &mut self,
        s: ValueId,
        p: ValueId,
        output: Option<usize>,
        verdict: Verdict,
        at: &str,
    ) -> bool {
        match verdict {
            Verdict::Proven(_) | Verdict::Equal(_) | Verdict::Undecided(_) => {
                self.accept(s, p, output, verdict, at);
            }
            Verdict::NoInfluence(_) => self.leave_out(s, p, at),
            Verdict::Differs(_) | Verdict::Unknown(_) => return false,
        }
        true
    }

    fn mark_equal(&mut self, s: ValueId, p: ValueId) {
        self.suspects.remove(&p);
        self.planned.elements[p] = self.source.elements[s].clone();
        if let Some(elements) = &self.planned.elements[p] {
            self.in_planned.insert(elements.class);
        }
    }

    /// Reports that a value was not compared, and marks it as equal to the source's value.
    fn leave_out(&mut self, s: ValueId, p: ValueId, reason: &str) {
        let name = self.planned.graph.value_name(p);
        self.shared.comparison.add_uncompared(&format!("%{name}"), reason);
        self.mark_equal(s, p);
        self.status = self.status.max(SourceStatus::NotCompared);
    }

    /// Leaves a value out whose results were not found to agree. Differences of values that are computed from it
    /// decide nothing.
    fn assume_equal(&mut self, s: ValueId, p: ValueId, reason: &str) {
        self.leave_out(s, p, reason);
        self.assumed.extend(self.source.elements[s].as_ref().map(|e| e.class));
    }

    /// Reports a difference at the first suspect value from which a value is computed. If a wider part of the
    /// computation agrees, marks the values as equal instead.
    fn resolve_suspect(&mut self, s: ValueId, p: ValueId, first: ValueId, output: Option<usize>) {
        let mut first = first;
        for _ in 0..=MAX_SUSPECT_VALUES {
            let source_value = self.suspects.get(&first).map_or(s, |suspect| suspect.of);
            let (verdict, sizes, _) = self.examine(source_value, first, true);
            if !self.accept_agreement(source_value, first, output, verdict, &sizes) {
                break;
            }
            if first == p {
                return;
            }
            let (verdict, sizes, regions) = self.examine(s, p, false);
            if self.accept_agreement(s, p, output, verdict, &sizes) {
                return;
            }
            first = regions.and_then(|r| self.first_suspect(&r)).unwrap_or(p);
        }
        let output = output.or(self.feeds[p]);
        let (difference, sizes) = match self.suspects.get(&first) {
            Some(SuspectValue { what, at, .. }) => (what.clone(), at.clone()),
            None => ("is another value".to_string(), String::new()),
        };
        let message = self.describe_difference(first, output, &sizes, &difference);
        self.shared.comparison.add_difference(message);
        self.status = SourceStatus::Different;
        // Values that are computed from the suspect value are compared as if it were the source's value.
        if let Some(source_value) = self.suspects.get(&first).map(|suspect| suspect.of) {
            self.mark_equal(source_value, first);
        }
        self.mark_equal(s, p);
    }

    /// Describes a difference, with the source's name of the output that it concerns.
    fn describe_difference(
        &self,
        p: ValueId,
        output: Option<usize>,
        sizes: &str,
        difference: &str,
    ) -> String {
        let source = self.source.graph;
        let planned = self.planned.graph;
        let name = planned.value_name(p);
        let named_output =
            output.or(self.feeds[p]).and_then(|k| Some((k, source.value_name(source.outputs.get(k)?.value))));
        match named_output {
            Some((k, output_name)) if output_name == name => {
                format!("{sizes}: output {k} (%{output_name}) {difference}")
            }
            Some((k, output_name)) => {
                format!("{sizes}: %{name}, from which output {k} (%{output_name}) is computed, {difference}")
            }
            None => format!("{sizes}: %{name} {difference}"),
        }
    }

    /// Compares two values, computed from values that both programs have. These are drawn independently,
    /// although equality may depend on a relation between them. If the two values differ, leaves that only one
    /// side reads are therefore computed as well. If `thorough`, the other leaves follow one by one. The text is that
    /// of [`compare`](Self::compare).
    fn examine(
        &mut self,
        s: ValueId,
        p: ValueId,
        thorough: bool,
    ) -> (Verdict, String, Option<PairedRegions>) {
        let (s, p) = self.strip_common_views(s, p);
        let mut opened = HashSet::new();
        let Some(first) = self.find_regions(s, p, &opened) else {
            let reason = format!("a part has more than {MAX_REGION_NODES} nodes");
            return (Verdict::Unknown(reason), String::new(), None);
        };
        let (mut verdict, mut sizes) = self.compare(&first);
        if !matches!(verdict, Verdict::Differs(_) | Verdict::NoInfluence(_)) {
            return (verdict, sizes, Some(first));
        }
        let mut next = self.leaves_to_open(&first, thorough, false);
        let mut steps_without_influence = usize::from(matches!(verdict, Verdict::NoInfluence(_)));
        for _ in 0..MAX_EXTENSIONS {
            if next.is_empty() || steps_without_influence > MAX_UNSHOWN_STEPS {
                break;
            }
            opened.extend(next);
            let Some(wider) = self.find_regions(s, p, &opened) else { break };
            let wider = PairedRegions { same_bits: first.same_bits, ..wider };
            // Leaves of wider regions are related as in the program, so the verdict on a wider region replaces that
            // of a narrower one. Of several differences in a row, the first is the nearest to the value, and is kept.
            match self.compare(&wider) {
                (examined, sizes) if examined.is_agreement() => return (examined, sizes, Some(first)),
                (examined @ Verdict::NoInfluence(_), of_sizes) => {
                    steps_without_influence += 1;
                    (verdict, sizes) = (examined, of_sizes);
                }
                (examined @ Verdict::Differs(_), of_sizes) => {
                    if matches!(verdict, Verdict::NoInfluence(_)) {
                        (verdict, sizes) = (examined, of_sizes);
                    }
                }
                _ => break,
            }
            next = self.leaves_to_open(&wider, thorough, true);
        }
        (verdict, sizes, Some(first))
    }

    /// The values before views of all elements that both sides have in common. Ops compute along the axes of
    /// these values.
    fn strip_common_views(&self, mut s: ValueId, mut p: ValueId) -> (ValueId, ValueId) {
        loop {
            let Some(of_source) = defining_node(self.source.graph, s) else { return (s, p) };
            let Some(of_planned) = defining_node(self.planned.graph, p) else { return (s, p) };
            let (&[x], &[y]) = (&of_source.inputs[..], &of_planned.inputs[..]) else { return (s, p) };
            let is_rearrangement = matches!(of_source.op, Op::Reshape | Op::Permute { .. });
            let same_op = of_source.op == of_planned.op
                && self.source.types[x] == self.planned.types[y]
                && self.source.types[s] == self.planned.types[p];
            if !(is_rearrangement && same_op) {
                return (s, p);
            }
            s = x;
            p = y;
        }
    }

    /// The leaves of regions to compute next. Leaves that only one side reads come first, from the second step on
    /// together with leaves of integers. The last leaf follows if `thorough`, or if only one side reads an input.
    fn leaves_to_open(
        &self,
        regions: &PairedRegions,
        thorough: bool,
        with_integers: bool,
    ) -> Vec<ElementClass> {
        let of_source = leaves_by_class(&self.source, &regions.of_source);
        let of_planned = leaves_by_class(&self.planned, &regions.of_planned);
        let is_computed = |class: &ElementClass| {
            let source = of_source.get(class).and_then(|&v| self.source.graph.defining_node(v));
            let planned = of_planned.get(class).and_then(|&v| self.planned.graph.defining_node(v));
            source.is_some() || planned.is_some()
        };
        let one_sided = of_source.keys().filter(|c| !of_planned.contains_key(c));
        let one_sided = one_sided.chain(of_planned.keys().filter(|c| !of_source.contains_key(c)));
        let (one_sided, inputs): (Vec<ElementClass>, Vec<ElementClass>) =
            one_sided.copied().partition(is_computed);
        let computed: Vec<(ElementClass, ValueId)> =
            of_source.iter().filter(|(c, _)| is_computed(c)).map(|(&c, &v)| (c, v)).collect();
        // Masks and positions are made of related integers. Floats are hardly ever related.
        let integers: Vec<ElementClass> = computed
            .iter()
            .filter(|(_, v)| !self.source.types[*v].dtype.is_float())
            .map(|&(class, _)| class)
            .collect();
        if !one_sided.is_empty() {
            let also = integers.into_iter().filter(|class| with_integers && !one_sided.contains(class));
            return one_sided.iter().copied().chain(also).collect();
        }
        if !integers.is_empty() || !thorough && inputs.is_empty() {
            return integers;
        }
        computed.iter().max_by_key(|(_, v)| *v).map(|&(class, _)| class).into_iter().collect()
    }

    /// The regions of a pair of values back to values that both programs have, except those of the opened classes.
    fn find_regions(&self, s: ValueId, p: ValueId, opened: &HashSet<ElementClass>) -> Option<PairedRegions> {
        let of_source = find_region(&self.source, s, MAX_REGION_NODES, |v| {
            let elements = self.source.elements[v].as_ref();
            elements.is_some_and(|e| self.in_planned.contains(&e.class) && !opened.contains(&e.class))
        })?;
        let of_planned = find_region(&self.planned, p, MAX_REGION_NODES, |v| {
            let elements = self.planned.elements[v].as_ref();
            elements.is_some_and(|e| self.in_source.contains(&e.class) && !opened.contains(&e.class))
        })?;
        let same_bits = computes_same_bits([(&self.source, &of_source), (&self.planned, &of_planned)]);
        Some(PairedRegions { of_source, of_planned, same_bits })
    }

    fn suspects_of<'r>(
        &'r self,
        regions: &'r PairedRegions,
    ) -> impl Iterator<Item = (ValueId, &'r SuspectValue)> {
        let nodes = regions.of_planned.nodes.iter();
        let values = nodes.flat_map(|&n| &self.planned.graph.nodes[n].outputs);
        values.filter_map(|v| Some((*v, self.suspects.get(v)?)))
    }

    fn first_suspect(&self, regions: &PairedRegions) -> Option<ValueId> {
        self.suspects_of(regions).next().map(|(v, _)| v)
    }

    fn depth(&self, regions: &PairedRegions) -> usize {
        self.suspects_of(regions).map(|(_, suspect)| suspect.depth).max().unwrap_or(0)
    }

    fn is_assumed(&self, regions: &PairedRegions) -> bool {
        !self.assumed.is_empty()
            && (self.has_assumed_leaf(&self.source, &regions.of_source)
                || self.has_assumed_leaf(&self.planned, &regions.of_planned))
    }

    fn has_assumed_leaf(&self, program: &NumberedProgram<'_>, region: &ComparedRegion) -> bool {
        let mut leaves = region.leaves.iter().filter_map(|&v| program.elements[v].as_ref());
        leaves.any(|e| self.assumed.contains(&e.class))
    }

    /// Compares two regions at the selected sizes. Returns the verdict with a text: the bucket and sizes of a
    /// difference, or a description of the leaf without influence.
    fn compare(&mut self, regions: &PairedRegions) -> (Verdict, String) {
        let programs = ProgramPair {
            source: &self.source,
            planned: &self.planned,
            symbols: &self.numbering.symbols,
            buckets: self.buckets,
            ranks: self.ranks,
            replication: &self.replication,
        };
        let mut outcome = programs.compare(regions, self.shared);
        if let Verdict::NoInfluence(leaf) = outcome.verdict {
            outcome.at = programs.describe_missing_influence(regions, leaf);
        }
        if matches!(outcome.verdict, Verdict::Proven(_) | Verdict::Equal(_)) {
            self.record_outcome(regions, &outcome);
        }
        (outcome.verdict, outcome.at)
    }

    /// Adds a part that was proven or compared to the result.
    fn record_outcome(&mut self, regions: &PairedRegions, outcome: &PartOutcome) {
        let proof = match outcome.verdict {
            Verdict::Proven(class) => Some(class),
            _ => None,
        };
        let status = if proof.is_some() { SourceStatus::EqualByProof } else { SourceStatus::EqualByParts };
        self.status = self.status.max(status);
        let ComparisonState { comparison, parts, .. } = &mut *self.shared;
        comparison.elements += outcome.elements;
        let next = comparison.parts.len();
        let index = match &outcome.canonical_text {
            Some(alike) => *parts.entry(alike.clone()).or_insert(next),
            None => next,
        };
        match comparison.parts.get_mut(index) {
            Some(compared_part) => {
                compared_part.places += 1;
                // The weaker of both.
                compared_part.proof = compared_part.proof.zip(proof).map(|(known, class)| known.max(class));
                compared_part.add_limits(&outcome.limits);
            }
            None => {
                let value = self.planned.graph.value_name(regions.of_planned.root).to_string();
                let nodes = [regions.of_source.nodes.len(), regions.of_planned.nodes.len()];
                let mut compared_part = ComparedPart::new(value, nodes, proof);
                compared_part.add_limits(&outcome.limits);
                comparison.parts.push(compared_part);
            }
        }
    }
}

fn computes_same_bits(regions: [(&NumberedProgram<'_>, &ComparedRegion); 2]) -> bool {
    for (program, region) in regions {
        for &n in &region.nodes {
            let node = &program.graph.nodes[n];
            let operand = node.inputs.first().map_or(DType::Bool, |&v| program.types[v].dtype);
            if has_own_rounding(&node.op, operand) {
                return false;
            }
        }
    }
    true
}

fn element_classes(program: &NumberedProgram<'_>) -> HashSet<ElementClass> {
    program.elements.values().flatten().map(|e| e.class).collect()
}

fn leaves_by_class(
    program: &NumberedProgram<'_>,
    region: &ComparedRegion,
) -> BTreeMap<ElementClass, ValueId> {
    let leaves = region.leaves.iter().filter_map(|&v| Some((program.elements[v].as_ref()?.class, v)));
    leaves.collect()
}

fn defining_node(graph: &Graph, value: ValueId) -> Option<&Node> {
    graph.defining_node(value).map(|n| &graph.nodes[n])
}

fn first_fed_outputs(graph: &Graph) -> EntityMap<ValueId, Option<usize>> {
    let mut out = EntityMap::filled(None, graph.values.len());
    for (k, output) in graph.outputs.iter().enumerate() {
        let first = out[output.value].get_or_insert(k);
        *first = k.min(*first);
    }
    let nodes: Vec<NodeId> = graph.nodes.keys().collect();
    for &n in nodes.iter().rev() {
        let node = &graph.nodes[n];
        let needed = node.outputs.iter().filter_map(|&v| out[v]).min();
        for &v in &node.inputs {
            out[v] = out[v].into_iter().chain(needed).min();
        }
    }
    out
}
