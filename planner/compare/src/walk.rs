//! The walk over one planned program and the source.
//!
//! A planned value whose elements the source does not have is paired with the source's value of the same name and type, and
//! their parts back to values that both programs have are compared. If the parts agree, the planned value counts as the source's
//! from then on. Otherwise the value is *suspect*: a rewrite may have given an old name to another value, and a later value
//! may agree again. It is a difference only if no later value agrees.

use std::collections::{BTreeMap, HashMap, HashSet};

use symmc_ir::{Bindings, DType, Graph, NodeId, Op, Table, ValueId, text};
use symmc_plan::Bucket;

use crate::axes::AxisSets;
use crate::comparison::{MOST, Outcome, Part, Shared};
use crate::concrete::{Concrete, Precision, Short, Template, bindings, work};
use crate::elements::Class;
use crate::judge::{Pair, Verdict, judge};
use crate::number::{Numbered, Numbering, rounds_in_its_own_way};
use crate::region::{MOST_NODES, Region, region};
use crate::sizes::{Conditions, Sizes};

/// How many values in a row may be suspect before the first of them is a difference.
const MOST_SUSPECT: usize = 4;
/// How often a part is extended by computing more of its leaves.
const MOST_OPENED: usize = 12;
/// The most elements that one comparison may compute.
const ONE: u128 = 1 << 27;
/// Comparisons of up to this many elements draw more often.
const SMALL: u128 = 1 << 20;

const TOO_MUCH: &str = "more elements would have to be computed than the check takes time for";

/// A value that does not agree with that of its name.
struct Suspect {
    /// The number of suspect values in a row up to this one.
    depth: usize,
    /// The value of the source that has its name.
    of: ValueId,
    /// The difference.
    what: String,
    at: String,
}

/// The regions of a pair of values.
struct Regions {
    of_source: Region,
    of_planned: Region,
    /// Whether no op of the two regions fuses or sums several roundings. Values outside of the regions are computed in the
    /// same way by both programs.
    same_bits: bool,
}

/// See the [module](self).
pub(crate) struct Walk<'a, 's> {
    buckets: &'a [(usize, &'a Bucket)],
    ranks: u32,
    numbering: Numbering,
    source: Numbered<'a>,
    planned: Numbered<'a>,
    in_source: HashSet<Class>,
    in_planned: HashSet<Class>,
    by_name: HashMap<&'a str, ValueId>,
    suspects: HashMap<ValueId, Suspect>,
    /// The classes that were taken as equal without a comparison.
    assumed: HashSet<Class>,
    /// The first output that is computed from each planned value.
    feeds: Table<ValueId, Option<usize>>,
    outcome: Outcome,
    shared: &'s mut Shared,
}

impl<'a, 's> Walk<'a, 's> {
    pub(crate) fn new(
        source: &'a Graph,
        planned: &'a Graph,
        buckets: &'a [(usize, &'a Bucket)],
        shared: &'s mut Shared,
    ) -> Self {
        let mut numbering = Numbering::new(source, planned);
        let mut numbered = numbering.begin(source);
        for n in source.nodes.keys() {
            if numbered.live[n] {
                numbering.node(&mut numbered, n);
            }
        }
        let of_planned = numbering.begin(planned);
        let classes = |of: &Numbered<'_>| of.elements.values().flatten().map(|e| e.class).collect();
        let by_name = source.values.iter().filter(|(v, _)| numbered.elements[*v].is_some());
        Walk {
            buckets,
            ranks: planned.ranks.unwrap_or(1),
            in_source: classes(&numbered),
            in_planned: classes(&of_planned),
            by_name: by_name.map(|(v, value)| (value.name.as_str(), v)).collect(),
            numbering,
            source: numbered,
            planned: of_planned,
            suspects: HashMap::new(),
            assumed: HashSet::new(),
            feeds: feeds(planned),
            outcome: Outcome::Equal,
            shared,
        }
    }

    pub(crate) fn outcome(mut self) -> Outcome {
        let planned = self.planned.graph;
        for n in planned.nodes.keys() {
            if self.planned.live[n] {
                self.node(n);
            }
        }
        for (k, (of_source, of_planned)) in self.source.graph.outputs.iter().zip(&planned.outputs).enumerate()
        {
            let (s, p) = (of_source.value, of_planned.value);
            if self.source.elements[s] != self.planned.elements[p] {
                self.pair(s, p, Some(k));
            }
        }
        self.outcome
    }

    fn node(&mut self, n: NodeId) {
        self.numbering.node(&mut self.planned, n);
        let planned = self.planned.graph;
        for &v in &planned.nodes[n].outputs {
            let Some(class) = self.planned.elements[v].as_ref().map(|e| e.class) else { continue };
            if self.in_source.contains(&class) {
                self.in_planned.insert(class);
                continue;
            }
            let named = self.by_name.get(planned.name_of(v)).copied();
            let fits = |s: &ValueId| {
                let taken =
                    self.source.elements[*s].as_ref().is_none_or(|e| self.in_planned.contains(&e.class));
                !taken && self.source.types[*s] == self.planned.types[v]
            };
            if let Some(s) = named.filter(fits) {
                self.pair(s, v, None);
            }
        }
    }

    /// Compares a planned value with one of the source. An output has to be that value.
    fn pair(&mut self, s: ValueId, p: ValueId, output: Option<usize>) {
        let (verdict, at, regions) = self.examine(s, p, false);
        let known = regions.as_ref().and_then(|r| self.first_suspect(r));
        let assumed = regions.as_ref().is_some_and(|r| self.is_assumed(r));
        match verdict {
            Verdict::Equal(_) => self.agree(s, p),
            Verdict::Undecided(what) => {
                let what = self.named(p, output, &at, &what);
                if self.shared.comparison.undecided.len() < MOST {
                    self.shared.comparison.undecided.push(what);
                }
                self.agree(s, p);
            }
            Verdict::Differs(_) if assumed => {
                self.leave_out(p, "it is computed from a part that was not compared");
                self.assume(s, p);
            }
            Verdict::Differs(what) => {
                let depth = 1 + regions.as_ref().map_or(0, |r| self.depth(r));
                self.suspects.insert(p, Suspect { depth, of: s, what, at });
                if output.is_some() || depth > MOST_SUSPECT {
                    self.settle(s, p, known.unwrap_or(p), output);
                }
            }
            Verdict::Unknown(reason) => match known {
                Some(first) => self.settle(s, p, first, output),
                None => {
                    self.leave_out(p, &reason);
                    self.assume(s, p);
                }
            },
        }
    }

    /// Marks a planned value as equal to that of the source.
    fn agree(&mut self, s: ValueId, p: ValueId) {
        self.suspects.remove(&p);
        self.planned.elements[p] = self.source.elements[s].clone();
        if let Some(elements) = &self.planned.elements[p] {
            self.in_planned.insert(elements.class);
        }
    }

    fn assume(&mut self, s: ValueId, p: ValueId) {
        self.agree(s, p);
        self.assumed.extend(self.source.elements[s].as_ref().map(|e| e.class));
        self.outcome = self.outcome.max(Outcome::NotCompared);
    }

    fn leave_out(&mut self, p: ValueId, reason: &str) {
        let name = self.planned.graph.name_of(p);
        let known = self.shared.comparison.left_out.iter_mut().find(|(of, _)| of.ends_with(reason));
        match known {
            Some((_, count)) => *count += 1,
            None => self.shared.comparison.leave_out(format!("%{name}: {reason}")),
        }
    }

    /// Reports a difference at the first of the suspect values that a value is computed from; or marks the values as equal, if
    /// a wider part of their computation agrees.
    fn settle(&mut self, s: ValueId, p: ValueId, first: ValueId, output: Option<usize>) {
        let mut first = first;
        for _ in 0..=MOST_SUSPECT {
            let of = self.suspects.get(&first).map_or(s, |suspect| suspect.of);
            let found = self.examine(of, first, true).0;
            if !matches!(found, Verdict::Equal(_) | Verdict::Undecided(_)) {
                break;
            }
            self.agree(of, first);
            let (found, _, regions) = self.examine(s, p, false);
            if first == p || matches!(found, Verdict::Equal(_) | Verdict::Undecided(_)) {
                return self.agree(s, p);
            }
            first = regions.and_then(|r| self.first_suspect(&r)).unwrap_or(p);
        }
        let output = output.or(self.feeds[p]);
        let (what, at) = match self.suspects.get(&first) {
            Some(Suspect { what, at, .. }) => (what.clone(), at.clone()),
            None => ("is another value".to_string(), String::new()),
        };
        let what = self.named(first, output, &at, &what);
        self.shared.comparison.differ(what);
        self.outcome = Outcome::Different;
        // Values that are computed from it are compared as if it were the source's.
        if let Some(of) = self.suspects.get(&first).map(|suspect| suspect.of) {
            self.agree(of, first);
        }
        self.agree(s, p);
    }

    /// A difference, with the source's name of the output that it concerns.
    fn named(&self, p: ValueId, output: Option<usize>, at: &str, what: &str) -> String {
        let (source, planned) = (self.source.graph, self.planned.graph);
        let name = planned.name_of(p);
        let of =
            output.or(self.feeds[p]).and_then(|k| Some((k, source.name_of(source.outputs.get(k)?.value))));
        match of {
            Some((k, of)) if of == name => format!("{at}: output {k} (%{of}) {what}"),
            Some((k, of)) => format!("{at}: %{name}, from which output {k} (%{of}) is computed, {what}"),
            None => format!("{at}: %{name} {what}"),
        }
    }

    /// Compares two values from values that both programs have. These are drawn independently, although equality may depend
    /// on a relation between them. So if the two values differ, leaves that only one side reads are computed as well, and if
    /// `thorough` the other leaves, one after another.
    fn examine(&mut self, s: ValueId, p: ValueId, thorough: bool) -> (Verdict, String, Option<Regions>) {
        let (s, p) = self.before_views(s, p);
        let mut opened = HashSet::new();
        let Some(first) = self.regions(s, p, &opened) else {
            let reason = format!("a part has more than {MOST_NODES} nodes");
            return (Verdict::Unknown(reason), String::new(), None);
        };
        let (verdict, at) = self.compare(&first);
        if !matches!(verdict, Verdict::Differs(_)) {
            return (verdict, at, Some(first));
        }
        let mut next = self.to_open(&first, thorough);
        for _ in 0..MOST_OPENED {
            if next.is_empty() {
                break;
            }
            opened.extend(next);
            let Some(wider) = self.regions(s, p, &opened) else { break };
            let wider = Regions { same_bits: first.same_bits, ..wider };
            match self.compare(&wider) {
                (found @ (Verdict::Equal(_) | Verdict::Undecided(_)), at) => return (found, at, Some(first)),
                (Verdict::Differs(_), _) => next = self.to_open(&wider, thorough),
                (Verdict::Unknown(_), _) => break,
            }
        }
        (verdict, at, Some(first))
    }

    /// The values before the same views of all elements: their axes are those that ops compute along.
    fn before_views(&self, mut s: ValueId, mut p: ValueId) -> (ValueId, ValueId) {
        loop {
            let node = |program: &Numbered<'a>, v: ValueId| {
                program.graph.def_node(v).map(|n| &program.graph.nodes[n])
            };
            let (Some(of_source), Some(of_planned)) = (node(&self.source, s), node(&self.planned, p)) else {
                return (s, p);
            };
            let (&[x], &[y]) = (&of_source.inputs[..], &of_planned.inputs[..]) else { return (s, p) };
            let whole = matches!(of_source.op, Op::Reshape | Op::Permute { .. });
            let same = of_source.op == of_planned.op
                && self.source.types[x] == self.planned.types[y]
                && self.source.types[s] == self.planned.types[p];
            if !(whole && same) {
                return (s, p);
            }
            (s, p) = (x, y);
        }
    }

    /// The leaves of regions to compute next: those that only one side reads; else those of integers; else the last leaf, if
    /// `thorough` or if only one side reads an input.
    fn to_open(&self, regions: &Regions, thorough: bool) -> Vec<Class> {
        let leaves = |program: &Numbered<'_>, region: &Region| {
            let class = |&v: &ValueId| Some((program.elements[v].as_ref()?.class, v));
            region.leaves.iter().filter_map(class).collect::<BTreeMap<Class, ValueId>>()
        };
        let of_source = leaves(&self.source, &regions.of_source);
        let of_planned = leaves(&self.planned, &regions.of_planned);
        let is_computed = |class: &Class| {
            let of = |program: &Numbered<'_>, v: Option<&ValueId>| {
                v.is_some_and(|&v| program.graph.def_node(v).is_some())
            };
            of(&self.source, of_source.get(class)) || of(&self.planned, of_planned.get(class))
        };
        let alone = of_source.keys().filter(|c| !of_planned.contains_key(c));
        let alone = alone.chain(of_planned.keys().filter(|c| !of_source.contains_key(c)));
        let (alone, inputs): (Vec<Class>, Vec<Class>) = alone.copied().partition(is_computed);
        if !alone.is_empty() {
            return alone;
        }
        let computed: Vec<(Class, ValueId)> =
            of_source.iter().filter(|(c, _)| is_computed(c)).map(|(&c, &v)| (c, v)).collect();
        // Masks and positions are made of integers that are related; floats hardly ever are.
        let whole = |&(_, v): &(Class, ValueId)| !self.source.types[v].dtype.is_float();
        let integers: Vec<Class> = computed.iter().copied().filter(whole).map(|(c, _)| c).collect();
        if !integers.is_empty() || !thorough && inputs.is_empty() {
            return integers;
        }
        computed.iter().max_by_key(|(_, v)| *v).map(|&(class, _)| class).into_iter().collect()
    }

    /// The regions of a pair of values back to values that both programs have, except those of the opened classes.
    fn regions(&self, s: ValueId, p: ValueId, opened: &HashSet<Class>) -> Option<Regions> {
        let is_leaf = |program: &Numbered<'_>, v: ValueId, of: &HashSet<Class>| {
            program.elements[v].as_ref().is_some_and(|e| of.contains(&e.class) && !opened.contains(&e.class))
        };
        let of_source = region(&self.source, s, MOST_NODES, |v| is_leaf(&self.source, v, &self.in_planned))?;
        let of_planned =
            region(&self.planned, p, MOST_NODES, |v| is_leaf(&self.planned, v, &self.in_source))?;
        let same_bits = same_bits([(&self.source, &of_source), (&self.planned, &of_planned)]);
        Some(Regions { of_source, of_planned, same_bits })
    }

    /// The suspect values of a region.
    fn suspects_of<'r>(&'r self, regions: &'r Regions) -> impl Iterator<Item = (ValueId, &'r Suspect)> {
        let nodes = regions.of_planned.nodes.iter();
        let values = nodes.flat_map(|&n| &self.planned.graph.nodes[n].outputs);
        values.filter_map(|v| Some((*v, self.suspects.get(v)?)))
    }

    fn first_suspect(&self, regions: &Regions) -> Option<ValueId> {
        self.suspects_of(regions).next().map(|(v, _)| v)
    }

    fn depth(&self, regions: &Regions) -> usize {
        self.suspects_of(regions).map(|(_, suspect)| suspect.depth).max().unwrap_or(0)
    }

    fn is_assumed(&self, regions: &Regions) -> bool {
        let of = |program: &Numbered<'_>, region: &Region| {
            let classes = region.leaves.iter().filter_map(|&v| program.elements[v].as_ref());
            classes.into_iter().any(|e| self.assumed.contains(&e.class))
        };
        !self.assumed.is_empty()
            && (of(&self.source, &regions.of_source) || of(&self.planned, &regions.of_planned))
    }

    /// Compares two regions at the selected sizes; the bucket and sizes of the difference.
    fn compare(&mut self, regions: &Regions) -> (Verdict, String) {
        let Regions { of_source, of_planned, same_bits } = regions;
        let unknown = |reason: String| (Verdict::Unknown(reason), String::new());
        let meaning = of_source.without_meaning(&self.source);
        if let Some(reason) = meaning.or_else(|| of_planned.without_meaning(&self.planned)) {
            return unknown(reason);
        }
        let mut conditions = Conditions::default();
        conditions.add(&self.source, of_source);
        conditions.add(&self.planned, of_planned);
        let communicates = of_source.communicates(&self.source) || of_planned.communicates(&self.planned);
        let ranks = if communicates { self.ranks } else { 1 };
        let of = [(&self.source, of_source), (&self.planned, of_planned)];
        let templates = of.map(|(program, region)| Template {
            program,
            region,
            axes: AxisSets::new(program, region),
            ranks,
        });
        let part = Parts { templates, few: Vec::new(), same_bits: *same_bits };
        let part = part.with_few();
        let mut run = Run { part: &part, shared: self.shared, elements: 0, undecided: None };
        let mut up_to = None;
        for &(index, bucket) in self.buckets {
            let sizes = conditions.sizes(&self.numbering.symbols, bucket);
            let high = sizes.iter().position(|s| is_high(s, bucket, &sizes));
            for (i, at) in sizes.iter().enumerate() {
                let text = at_text(index, at);
                let mut verdict = run.at(&bindings(&self.numbering.symbols, at));
                if Some(i) == high && i > 0 && verdict == Verdict::Unknown(TOO_MUCH.into()) {
                    let smaller = (1..48).map(|k| scaled(at, bucket, k));
                    let fitting = smaller.map(|at| (run.at(&bindings(&self.numbering.symbols, &at)), at));
                    let found = fitting.into_iter().find(|(v, _)| *v != Verdict::Unknown(TOO_MUCH.into()));
                    if let Some((found, at)) = found {
                        verdict = found;
                        up_to.get_or_insert_with(|| at_text(index, &at));
                    }
                }
                match verdict {
                    Verdict::Equal(_) => {}
                    Verdict::Undecided(what) => run.undecided = run.undecided.take().or(Some((what, text))),
                    other => return (other, text),
                }
            }
        }
        let Run { elements, undecided, .. } = run;
        let nodes = [of_source.nodes.len(), of_planned.nodes.len()];
        let alike = part.at(&Bindings::lower(&self.source.graph.symbols), 2, Precision::Typed);
        let alike = alike.ok().map(|pair| key(&pair, part.same_bits));
        self.record(of_planned.root, nodes, alike, elements, up_to);
        match undecided {
            Some((what, at)) => (Verdict::Undecided(what), at),
            None => (Verdict::Equal(elements), String::new()),
        }
    }

    fn record(
        &mut self,
        root: ValueId,
        nodes: [usize; 2],
        alike: Option<String>,
        elements: u64,
        up_to: Option<String>,
    ) {
        self.outcome = self.outcome.max(Outcome::EqualByParts);
        let value = self.planned.graph.name_of(root).to_string();
        let Shared { comparison, parts, .. } = &mut *self.shared;
        comparison.elements += elements;
        let next = comparison.parts.len();
        let at = alike.map_or(next, |alike| *parts.entry(alike).or_insert(next));
        match comparison.parts.get_mut(at) {
            Some(part) => {
                part.places += 1;
                part.up_to = part.up_to.take().or(up_to);
            }
            None => comparison.parts.push(Part { value, nodes, places: 1, up_to }),
        }
    }
}

/// A pair of regions before sizes are chosen.
struct Parts<'a> {
    templates: [Template<'a>; 2],
    /// For each of the two the sets of axes that are short.
    few: Vec<Vec<usize>>,
    same_bits: bool,
}

impl Parts<'_> {
    /// With the axes of the root that nothing looks across in either part.
    fn with_few(mut self) -> Self {
        let [a, b] = [0, 1].map(|i: usize| self.templates[i].free_root());
        let both: Vec<(usize, usize)> = a.iter().zip(&b).filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect();
        // A set that stands along a root axis that is not free in the other part is none.
        let spoilt = |side: usize, set: usize| {
            let (own, other) = if side == 0 { (&a, &b) } else { (&b, &a) };
            own.iter().zip(other).any(|(x, y)| *x == Some(set) && y.is_none())
        };
        let sets: Vec<(usize, usize)> =
            both.into_iter().filter(|&(x, y)| !spoilt(0, x) && !spoilt(1, y)).collect();
        self.few = vec![sets.iter().map(|s| s.0).collect(), sets.iter().map(|s| s.1).collect()];
        self
    }

    /// How many positions along short axes are compared: more where there are few such axes, and then few where the rest is
    /// large.
    fn extents(&self) -> [i64; 2] {
        let most = match self.few[0].len() {
            0 | 1 => 128,
            2 => 16,
            3 => 8,
            _ => 4,
        };
        [most, 2]
    }

    fn at(&self, sizes: &Bindings, extent: i64, precision: Precision) -> Result<[Concrete; 2], String> {
        let [a, b] = &self.templates;
        let short = |side: usize| Short { sets: &self.few[side], extent };
        Ok([a.at(sizes, short(0), precision)?, b.at(sizes, short(1), precision)?])
    }
}

/// The comparisons of one pair of regions.
struct Run<'p, 'a, 's> {
    part: &'p Parts<'a>,
    shared: &'s mut Shared,
    elements: u64,
    undecided: Option<(String, String)>,
}

impl Run<'_, '_, '_> {
    fn at(&mut self, sizes: &Bindings) -> Verdict {
        let [most, least] = self.part.extents();
        match self.with(sizes, most) {
            Verdict::Unknown(reason) if reason == TOO_MUCH => self.with(sizes, least),
            verdict => verdict,
        }
    }

    fn with(&mut self, sizes: &Bindings, extent: i64) -> Verdict {
        let wide = match self.part.at(sizes, extent, Precision::Wide) {
            Ok(wide) => wide,
            Err(reason) => return Verdict::Unknown(reason),
        };
        let together = work(&wide[0].graph).saturating_add(work(&wide[1].graph));
        let thorough = together <= SMALL;
        let cost = together.saturating_mul(if thorough { 16 } else { 3 });
        if cost > ONE {
            return Verdict::Unknown(TOO_MUCH.into());
        }
        let typed = match self.part.at(sizes, extent, Precision::Typed) {
            Ok(typed) => typed,
            Err(reason) => return Verdict::Unknown(reason),
        };
        let key = key(&typed, self.part.same_bits);
        let verdict = match self.shared.known.get(&key) {
            Some(known) => known.clone(),
            None if cost > self.shared.room => return Verdict::Unknown(TOO_MUCH.into()),
            None => {
                self.shared.room -= cost;
                let (same_bits, numerics) = (self.part.same_bits, self.shared.numerics);
                let verdict = judge(&Pair { wide, typed, same_bits, numerics, thorough });
                self.shared.known.insert(key, verdict.clone());
                verdict
            }
        };
        if let Verdict::Equal(elements) = verdict {
            self.elements += elements;
        }
        verdict
    }
}

/// Everything that a comparison depends on, as text. Classes are numbered in the order in which they are first read.
fn key(pair: &[Concrete; 2], same_bits: bool) -> String {
    let mut numbers: HashMap<Class, usize> = HashMap::new();
    let mut out = format!("{same_bits}\n");
    for concrete in pair {
        out.push_str(&text::print(&concrete.graph));
        for leaf in &concrete.leaves {
            let next = numbers.len();
            let number = numbers.entry(leaf.class).or_insert(next);
            // The class stands for the data of the program, which may be large.
            let class = leaf.data.as_ref().map(|_| leaf.class);
            out.push_str(&format!("{number} {} {:?} {class:?}\n", leaf.offset, leaf.strides));
        }
    }
    out
}

fn same_bits(of: [(&Numbered<'_>, &Region); 2]) -> bool {
    let rounds = |(program, region): (&Numbered<'_>, &Region)| {
        region.nodes.iter().any(|&n| {
            let node = &program.graph.nodes[n];
            let operand = node.inputs.first().map_or(DType::Bool, |&v| program.types[v].dtype);
            rounds_in_its_own_way(&node.op, operand)
        })
    };
    !of.into_iter().any(rounds)
}

/// For each value the first output that needs it.
fn feeds(graph: &Graph) -> Table<ValueId, Option<usize>> {
    let mut out = Table::filled(None, graph.values.len());
    for (k, output) in graph.outputs.iter().enumerate() {
        let first = out[output.value].get_or_insert(k);
        *first = k.min(*first);
    }
    let least = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
    let nodes: Vec<NodeId> = graph.nodes.keys().collect();
    for &n in nodes.iter().rev() {
        let node = &graph.nodes[n];
        let needed = node.outputs.iter().fold(None, |needed, &v| least(needed, out[v]));
        node.inputs.iter().for_each(|&v| out[v] = least(out[v], needed));
    }
    out
}

fn at_text(bucket: usize, sizes: &Sizes) -> String {
    let sizes: Vec<String> = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    match sizes.is_empty() {
        true => format!("bucket {bucket}"),
        false => format!("bucket {bucket} ({})", sizes.join(", ")),
    }
}

/// Whether sizes are those at the upper end of a bucket, of the symbols that matter.
fn is_high(sizes: &Sizes, bucket: &Bucket, all: &[Sizes]) -> bool {
    let moves = |k: usize| all.iter().any(|s| s[k].1 != all[0][k].1);
    sizes.iter().enumerate().all(|(k, (name, value))| {
        !moves(k) || bucket.symbols.get(name).is_some_and(|range| *value == range[1])
    })
}

/// Sizes whose distance from the lower end of a bucket is divided by a power of two.
fn scaled(sizes: &Sizes, bucket: &Bucket, by: u32) -> Sizes {
    let one = |(name, value): &(String, i64)| {
        let low = bucket.symbols.get(name).map_or(*value, |range| range[0]);
        (name.clone(), low + ((value - low) >> by))
    };
    sizes.iter().map(one).collect()
}
