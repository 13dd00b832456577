//! A second opinion on plans, by brute force and independent of the check.
//!
//! A sequence of runs, each with its own binding, is unrolled on all ranks into explicit events with explicit
//! edges. Every pair of accesses to shared bytes is looked up in the transitive closure of the edges. Memory is
//! then simulated in the order of the list, with a tag on every byte that identifies its content. Every read is
//! compared with the content that the graph requires.
//!
//! Only small plans are possible: time and memory are quadratic in the number of events.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use symmc_ir::collective::{ExitBarrierPolicy, PeerAccess, SyncScope};
use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, compute_layouts};
use symmc_ir::{
    CollectiveKind, Contract, Dispatch, DispatchForm, EntityMap, Graph, GroupId, InputId, InputKind, NodeId,
    Op, OutputKind, SymbolBindings, ValueDef, ValueId, text,
};
use symmc_plan::{ArenaKind, Bucket, ExitBarrier, FixedRole, Lane, MemoryRef, Plan, ValuePlacement};
use symmc_support::random::SplitMix;

/// The contract of a custom op with a group.
const CUSTOM: Contract = Contract {
    entry_barrier: true,
    sync_scope: SyncScope::Group,
    exit_barrier: ExitBarrierPolicy::Always,
    result_after_rendezvous: true,
    peer_access: PeerAccess::ReadOperandWriteResult,
    symmetric_operand: false,
    symmetric_result: false,
    in_place: false,
    same_bits: false,
};

/// One run of a sequence: a bucket, and the value of each symbol by name.
#[derive(Clone, Debug)]
pub struct BucketRun {
    /// The index of the bucket.
    pub bucket: usize,
    /// The binding.
    pub symbols: BTreeMap<String, i64>,
}

/// Finds the errors of a plan in this sequence of runs: one line for each finding, sorted.
pub fn explore(plan: &Plan, runs: &[BucketRun]) -> BTreeSet<String> {
    let read = |t: &String| {
        let graph = text::parse(t).expect("a planned program parses");
        let layouts = compute_layouts(&graph);
        let inner = graph.dispatch_internal_values(|v| layouts[v].base);
        (graph, layouts, inner)
    };
    let programs: Vec<_> = plan.programs.iter().map(read).collect();
    let mut world = ExploredWorld::new(plan);
    for (r, run) in runs.iter().enumerate() {
        let bucket = &plan.buckets[run.bucket];
        let (graph, layouts, inner) = &programs[bucket.program];
        let mut bindings = SymbolBindings::new();
        for (id, s) in graph.symbols.iter() {
            bindings.set(id, run.symbols[&s.name]);
        }
        let stage = RunStage { run: r, plan, bucket, graph, layouts, inner, bindings };
        world.unroll(&stage);
        world.play(&stage);
    }
    world.races();
    world.findings
}

/// Every bucket at each combination of the ends and the middle of its symbols' ranges.
fn points(plan: &Plan) -> Vec<BucketRun> {
    let ends = |[low, high]: [i64; 2]| BTreeSet::from([low, low.midpoint(high), high]);
    let mut runs = Vec::new();
    for (bucket, b) in plan.buckets.iter().enumerate() {
        let mut of_bucket = vec![BucketRun { bucket, symbols: BTreeMap::new() }];
        for (symbol, range) in &b.symbols {
            let with = |run: &BucketRun, value| {
                let mut run = run.clone();
                run.symbols.insert(symbol.clone(), value);
                run
            };
            let values = ends(*range);
            of_bucket = of_bucket.iter().flat_map(|r| values.iter().map(|&v| with(r, v))).collect();
        }
        runs.extend(of_bucket);
    }
    runs
}

/// Sequences of `length` runs with independent buckets and sizes: all sequences over [`points`], or `most` of
/// them at random.
pub fn sequences(plan: &Plan, length: u32, most: usize, rng: &mut SplitMix) -> Vec<Vec<BucketRun>> {
    let points = points(plan);
    let sequence = |number: usize| {
        let mut digits = number;
        let mut next = || {
            let point = points[digits % points.len()].clone();
            digits /= points.len();
            point
        };
        (0..length).map(|_| next()).collect()
    };
    let count = points.len().pow(length);
    if count <= most {
        (0..count).map(sequence).collect()
    } else {
        (0..most).map(|_| sequence(rng.below(count))).collect()
    }
}

struct RunStage<'a> {
    run: usize,
    plan: &'a Plan,
    bucket: &'a Bucket,
    graph: &'a Graph,
    layouts: &'a EntityMap<ValueId, Layout>,
    /// The bases that have no memory.
    inner: &'a EntityMap<ValueId, bool>,
    bindings: SymbolBindings,
}

type Event = usize;

/// Memory of a rank: an arena, or the caller's memory of an output or input.
type Region = (usize, MemoryKind);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum MemoryKind {
    Ordinary,
    Symmetric,
    Output(usize),
    Input(usize),
}

struct ByteAccess {
    region: Region,
    bytes: (usize, usize),
    begin: Event,
    end: Event,
    write: bool,
    /// Accesses with equal values are exempt from each other.
    step: (usize, usize),
    text: String,
}

/// The points of a collective on each rank.
struct CollectivePoints<'a> {
    arrive: &'a [Event],
    met: &'a [Event],
    touched: &'a [Event],
    completed: &'a [Event],
    /// If pairs meet: sender, receiver, and the events between which the sender writes.
    puts: &'a [(usize, usize, Event, Event)],
}

#[derive(Default)]
struct ExploredWorld {
    ranks: usize,
    /// For each event, the events that happen before it, as bits.
    before: Vec<Vec<u64>>,
    accesses: Vec<ByteAccess>,
    /// The last event of each rank, per lane.
    last: Vec<[Event; 2]>,
    /// For each group name the number of collectives by LL so far.
    epochs: HashMap<String, usize>,
    /// For each group name the last collective and its completion on each rank.
    last_on: HashMap<String, (String, Vec<Event>)>,
    memory: HashMap<Region, Vec<u64>>,
    findings: BTreeSet<String>,
}

impl ExploredWorld {
    fn new(plan: &Plan) -> Self {
        let ranks = plan.ranks as usize;
        let mut world = ExploredWorld { ranks, ..ExploredWorld::default() };
        let launch = world.event(&[]);
        world.last = vec![[launch; 2]; ranks];
        world
    }

    fn event(&mut self, after: &[Event]) -> Event {
        let id = self.before.len();
        let mut bits = vec![0u64; id / 64 + 1];
        for &e in after {
            for (b, &x) in bits.iter_mut().zip(&self.before[e]) {
                *b |= x;
            }
            bits[e / 64] |= 1 << (e % 64);
        }
        self.before.push(bits);
        id
    }

    fn happens_before(&self, a: Event, b: Event) -> bool {
        self.before[b].get(a / 64).is_some_and(|w| w >> (a % 64) & 1 == 1)
    }

    fn races(&mut self) {
        let mut races = BTreeSet::new();
        for (i, a) in self.accesses.iter().enumerate() {
            for b in &self.accesses[i + 1..] {
                let shared = a.region == b.region && a.bytes.0 < b.bytes.1 && b.bytes.0 < a.bytes.1;
                if !shared || !(a.write || b.write) || a.step == b.step {
                    continue;
                }
                if !self.happens_before(a.end, b.begin) && !self.happens_before(b.end, a.begin) {
                    races.insert(format!("race: {} | {}", a.text, b.text));
                }
            }
        }
        self.findings.extend(races);
    }

    /// Adds the events and accesses of a run.
    fn unroll(&mut self, stage: &RunStage<'_>) {
        for rank in 0..self.ranks {
            let ends = self.last[rank];
            let start = self.event(&ends);
            let written = self.event(&[start]);
            self.last[rank] = [written; 2];
            for (id, input) in stage.graph.inputs.iter() {
                if !stage.lasts(id) {
                    self.access(stage, rank, input.value, start, written, true, usize::MAX, "caller");
                }
            }
        }
        let mut done: Vec<Vec<Event>> = Vec::new();
        for s in 0..stage.bucket.steps.len() {
            let events = self.step(stage, s, &done);
            done.push(events);
        }
    }

    /// Adds the events of one step on all ranks. Returns the completions.
    fn step(&mut self, stage: &RunStage<'_>, s: usize, done: &[Vec<Event>]) -> Vec<Event> {
        let step = &stage.bucket.steps[s];
        let lane = usize::from(step.lane == Lane::Comm);
        let arrive: Vec<Event> = (0..self.ranks)
            .map(|r| {
                let waits = step.waits.iter().map(|&w| done[w][r]);
                let after: Vec<Event> = [self.last[r][lane]].into_iter().chain(waits).collect();
                self.event(&after)
            })
            .collect();
        let of_group = match &stage.graph.nodes[stage.node(s)].op {
            Op::Collective(c) => {
                c.variant.and_then(|v| v.contract(&c.kind)).map(|contract| (c.group, contract))
            }
            Op::Custom(id) => stage.graph.customs[*id].group.map(|group| (group, CUSTOM)),
            _ => None,
        };
        let completed = match of_group {
            Some((group, contract)) => self.collective(stage, s, group, &contract, &arrive),
            None => self.alone(stage, s, &arrive),
        };
        for (last, &event) in self.last.iter_mut().zip(&completed) {
            last[lane] = event;
        }
        completed
    }

    /// A step that accesses only its own rank.
    fn alone(&mut self, stage: &RunStage<'_>, s: usize, arrive: &[Event]) -> Vec<Event> {
        let completed: Vec<Event> = arrive.iter().map(|&a| self.event(&[a])).collect();
        for r in 0..self.ranks {
            for (_, _, x) in stage.operands(s) {
                self.access(stage, r, stage.base(x), arrive[r], completed[r], false, s, "own");
            }
            for y in stage.results(s) {
                self.access(stage, r, y, arrive[r], completed[r], true, s, "own");
            }
        }
        completed
    }

    fn collective(
        &mut self,
        stage: &RunStage<'_>,
        s: usize,
        group: GroupId,
        contract: &Contract,
        arrive: &[Event],
    ) -> Vec<Event> {
        self.same_group(stage, group, s, arrive);
        let lines = contract.peer_access == PeerAccess::WriteLanding;
        // The lines for which each rank waits, each with the sending rank.
        let mut received: Vec<Vec<(usize, Event)>> = vec![Vec::new(); self.ranks];
        for (r, lines_to_r) in received.iter_mut().enumerate().filter(|_| lines) {
            let from = stage.cell(group, r).into_iter();
            lines_to_r.extend(from.map(|q| (q, self.event(&[arrive[q]]))));
        }
        let exits = match contract.exit_barrier {
            ExitBarrierPolicy::Never => false,
            ExitBarrierPolicy::Always => true,
            ExitBarrierPolicy::Droppable => stage.bucket.steps[s].exit == Some(ExitBarrier::Kept),
        };
        let with = |all: &[Event], r: usize, join: bool| -> Vec<Event> {
            let joined = stage.cell(group, r).into_iter().filter(|_| join).map(|q| all[q]);
            [all[r]].into_iter().chain(joined).collect()
        };
        let joins = contract.sync_scope == SyncScope::Group;
        let mut puts = Vec::new();
        for (from, to) in stage.pairs(s, group, contract) {
            let begin = self.event(&[arrive[from], arrive[to]]);
            puts.push((from, to, begin, self.event(&[begin])));
        }
        let mut met = Vec::new();
        for (r, lines_to_r) in received.iter().enumerate() {
            let mut after = with(arrive, r, joins);
            after.extend(lines_to_r.iter().map(|p| p.1));
            met.push(self.event(&after));
        }
        let touched: Vec<Event> = met.iter().map(|&m| self.event(&[m])).collect();
        let completed: Vec<Event> = (0..self.ranks)
            .map(|r| {
                let own = puts.iter().filter(|&&(from, to, ..)| from == r || to == r).map(|put| put.3);
                self.event(&with(&touched, r, exits).into_iter().chain(own).collect::<Vec<_>>())
            })
            .collect();
        let now = (format!("step {s} of run {}", stage.run), completed.clone());
        self.last_on.insert(stage.graph.groups[group].name.clone(), now);
        let points =
            CollectivePoints { arrive, met: &met, touched: &touched, completed: &completed, puts: &puts };
        (0..self.ranks).for_each(|r| self.touches(stage, s, group, contract, r, &points));
        if lines {
            self.landing(stage, group, s, arrive, &received, &met, &completed);
        }
        completed
    }

    /// The accesses of a collective to the memory of rank `r`.
    fn touches(
        &mut self,
        stage: &RunStage<'_>,
        s: usize,
        group: GroupId,
        contract: &Contract,
        r: usize,
        at: &CollectivePoints<'_>,
    ) {
        let communicating = stage.communicating(s);
        let peers: Vec<usize> = stage.cell(group, r).into_iter().filter(|&q| q != r).collect();
        let begin = |q: usize| if contract.entry_barrier { at.met[q] } else { at.arrive[q] };
        // Peers access the operands and results that the signature of a custom op names, and all that the
        // contract of a variant allows.
        let touch = contract.peer_access;
        let reads = |id: NodeId, k: usize| match &stage.graph.nodes[id].op {
            Op::Custom(id) => stage.graph.customs[*id].symmetric_operands.contains(&k),
            Op::Collective(c) => touch.reads_operand() && k < c.kind.shared_operands(),
            _ => touch.reads_operand(),
        };
        let writes = |id: NodeId, k: usize| match &stage.graph.nodes[id].op {
            Op::Custom(id) => stage.graph.customs[*id].symmetric_results.contains(&k),
            Op::Collective(c) => touch.writes_result() && c.kind.shared_results(k + 1).contains(&k),
            _ => touch.writes_result(),
        };
        for (reader, i, x) in stage.operands(s) {
            let x = stage.base(x);
            self.access(stage, r, x, at.arrive[r], at.completed[r], false, s, "own");
            for &q in peers.iter().filter(|_| communicating.contains(&reader) && reads(reader, i)) {
                self.access(stage, r, x, begin(q), at.touched[q], false, s, "peer");
            }
        }
        let own_begin = if contract.result_after_rendezvous { at.met[r] } else { at.arrive[r] };
        let pairs = contract.sync_scope == SyncScope::Pairs;
        for y in stage.results(s) {
            self.access(stage, r, y, own_begin, at.completed[r], true, s, "own");
            let writer = stage.graph.defining_node(y).filter(|id| communicating.contains(id));
            let Some(id) = writer else { continue };
            let i = stage.graph.nodes[id].outputs.iter().position(|&o| o == y).expect("a result of its node");
            for &(_, _, begin, end) in at.puts.iter().filter(|&&(_, to, ..)| to == r) {
                self.access(stage, r, y, begin, end, true, s, "sender's");
            }
            for &q in peers.iter().filter(|_| writes(id, i) && !pairs) {
                self.access(stage, r, y, begin(q), at.touched[q], true, s, "peer");
            }
        }
    }

    /// Collectives on one group must run in one order.
    fn same_group(&mut self, stage: &RunStage<'_>, group: GroupId, s: usize, arrive: &[Event]) {
        let name = &stage.graph.groups[group].name;
        let Some((then, last)) = self.last_on.get(name) else { return };
        if (0..self.ranks).any(|r| !self.happens_before(last[r], arrive[r])) {
            self.findings.insert(format!("unordered on {name}: {then} | step {s} of run {}", stage.run));
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn landing(
        &mut self,
        stage: &RunStage<'_>,
        group: GroupId,
        s: usize,
        arrive: &[Event],
        received: &[Vec<(usize, Event)>],
        met: &[Event],
        completed: &[Event],
    ) {
        let name = stage.graph.groups[group].name.clone();
        let epoch = self.epochs.entry(name.clone()).or_default();
        let zone = *epoch as u32 % 2;
        *epoch += 1;
        let role = FixedRole::Landing { group: name, zone };
        let Some(fixed) = stage.plan.fixed.iter().find(|f| f.role == role) else {
            self.findings.insert(format!("step {s} has no landing zone {zone}"));
            return;
        };
        let node = &stage.graph.nodes[stage.node(s)];
        let Op::Collective(c) = &node.op else { return };
        let n = stage.cell(group, 0).len() as u64;
        let bytes = stage.eval(&stage.graph.ty(node.inputs[0]).bytes()) as u64;
        let variant = c.variant.expect("it has one");
        let zone_bytes = variant.landing_bytes(&c.kind, bytes, n);
        if zone_bytes > fixed.size {
            self.findings.insert(format!("step {s} needs {zone_bytes} bytes in its landing zone"));
        }
        let slot = (zone_bytes / n) as usize;
        for r in 0..self.ranks {
            let slot_start = |i: usize| fixed.offset as usize + i * slot;
            for &(q, receipt) in &received[r] {
                let i = stage.cell(group, r).iter().position(|&x| x == q).unwrap_or(0);
                self.accesses.push(ByteAccess {
                    region: (r, MemoryKind::Symmetric),
                    bytes: (slot_start(i), slot_start(i + 1)),
                    begin: arrive[q],
                    end: receipt,
                    write: true,
                    step: (stage.run, s),
                    text: format!("line of rank {q} for step {s} of run {}", stage.run),
                });
            }
            self.accesses.push(ByteAccess {
                region: (r, MemoryKind::Symmetric),
                bytes: (slot_start(0), slot_start(n as usize)),
                begin: met[r],
                end: completed[r],
                write: false,
                step: (stage.run, s),
                text: format!("receipt of step {s} of run {} on rank {r}", stage.run),
            });
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn access(
        &mut self,
        stage: &RunStage<'_>,
        rank: usize,
        value: ValueId,
        begin: Event,
        end: Event,
        write: bool,
        step: usize,
        who: &str,
    ) {
        let (memory, low, high) = stage.bytes(value, rank);
        let verb = if write { "write" } else { "read" };
        let text =
            format!("{who} {verb} of %{} at step {step} of run {}", stage.graph.value_name(value), stage.run);
        let step = (stage.run, step);
        self.accesses.push(ByteAccess {
            region: (rank, memory),
            bytes: (low, high),
            begin,
            end,
            write,
            step,
            text,
        });
    }

    /// Simulates a run in the order of the list.
    fn play(&mut self, stage: &RunStage<'_>) {
        let tags = ContentTags { stage, known: RefCell::default() };
        for rank in 0..self.ranks {
            for (id, input) in stage.graph.inputs.iter() {
                if !stage.lasts(id) || stage.run == 0 || !stage.is_bound(id.index()) {
                    self.store(stage, &tags, input.value, rank);
                }
            }
        }
        for s in 0..stage.bucket.steps.len() {
            for rank in 0..self.ranks {
                for (_, _, x) in stage.operands(s) {
                    self.load(stage, &tags, stage.base(x), rank, &format!("step {s}"));
                }
                self.over_operands(stage, &tags, s, rank);
            }
            for rank in 0..self.ranks {
                for y in stage.results(s) {
                    self.store(stage, &tags, y, rank);
                }
            }
        }
        for rank in 0..self.ranks {
            for o in &stage.graph.outputs {
                self.load(stage, &tags, o.value, rank, "the end");
            }
        }
    }

    fn store(&mut self, stage: &RunStage<'_>, tags: &ContentTags<'_>, value: ValueId, rank: usize) {
        let (memory, low, high) = stage.bytes(value, rank);
        let bytes = self.memory.entry((rank, memory)).or_default();
        if bytes.len() < high {
            bytes.resize(high, 0);
        }
        bytes[low..high].copy_from_slice(&tags.of(value, rank));
    }

    fn load(
        &mut self,
        stage: &RunStage<'_>,
        tags: &ContentTags<'_>,
        value: ValueId,
        rank: usize,
        reader: &str,
    ) {
        let (memory, low, high) = stage.bytes(value, rank);
        let bytes = self.memory.entry((rank, memory)).or_default();
        if bytes.get(low..high) != Some(&tags.of(value, rank)[..]) {
            let name = stage.graph.value_name(value);
            self.findings.insert(format!("wrong: {reader} of run {} does not find %{name}", stage.run));
        }
    }

    /// Finds results on bytes that their step still reads.
    fn over_operands(&mut self, stage: &RunStage<'_>, tags: &ContentTags<'_>, s: usize, rank: usize) {
        let results = stage.results(s);
        for (i, &r) in results.iter().enumerate() {
            let (memory, low, high) = stage.bytes(r, rank);
            for &other in &results[..i] {
                let (m, l, h) = stage.bytes(other, rank);
                if m == memory && l < high && low < h {
                    self.findings.insert(format!("overlay: two results of step {s} overlap"));
                }
            }
            for (id, k, x) in stage.operands(s) {
                if !stage.element_bytes(x, rank).iter().all(|&(m, at, element)| {
                    m != memory
                        || at + stage.size(x) <= low
                        || at >= high
                        || self.harmless(stage, tags, (id, k, r), rank, (at, element), low)
                }) {
                    let name = stage.graph.value_name(x);
                    self.findings.insert(format!("overlay: step {s} writes over its operand %{name}"));
                }
            }
        }
    }

    /// Whether the element of operand `k` at `at` stays readable for as long as needed after the result at
    /// `low` is written.
    fn harmless(
        &self,
        stage: &RunStage<'_>,
        tags: &ContentTags<'_>,
        (id, k, r): (NodeId, usize, ValueId),
        rank: usize,
        (at, element): (usize, usize),
        low: usize,
    ) -> bool {
        let x = stage.graph.nodes[id].inputs[k];
        let (tx, tr) = (stage.graph.ty(x), stage.graph.ty(r));
        let size = tx.dtype.size();
        let len = stage.eval(&tr.bytes()) as usize;
        // A write of the same content is harmless.
        let (bytes, held) = (&self.memory[&(rank, stage.bytes(r, rank).0)], tags.of(r, rank));
        if (at..at + size).all(|b| b >= low && b < low + len && bytes[b] == held[b - low]) {
            return true;
        }
        let same_element = at == low + element * size && size == tr.dtype.size();
        if let Some(dispatch) = stage.dispatch(id) {
            let Some(writer) = stage.graph.defining_node(r) else { return false };
            // A node after the writer would read the new content.
            let reads_there = match (dispatch.form, &stage.graph.nodes[id].op) {
                (
                    DispatchForm::Batch
                    | DispatchForm::Gather
                    | DispatchForm::Collectives
                    | DispatchForm::Selection,
                    _,
                ) => false,
                (DispatchForm::Rotary | DispatchForm::Scatter, _) => k == 0 && writer == id,
                (_, Op::Collective(c)) => {
                    writer >= id && c.variant.and_then(|v| v.contract(&c.kind)).is_some_and(|c| c.in_place)
                }
                (DispatchForm::Loop, _) if reduces_outer_axis(stage.graph, dispatch) => false,
                (DispatchForm::Loop, Op::Reduce { .. } | Op::RmsNorm { .. } | Op::LayerNorm { .. }) => {
                    k == 0 && writer >= id
                }
                (_, op) => writer >= id && op.is_element_wise(),
            };
            return reads_there && same_element && stage.eval(&tx.numel()) == stage.eval(&tr.numel());
        }
        match &stage.graph.nodes[id].op {
            Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Select | Op::Cast | Op::Copy => {
                same_element && tx.shape == tr.shape
            }
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::CumSum { .. }
            | Op::RotaryEmbedding { .. }
            | Op::IndexPut { .. } => k == 0 && same_element && tx.shape == tr.shape,
            Op::Collective(c) => {
                let in_place = c.variant.and_then(|v| v.contract(&c.kind)).is_some_and(|c| c.in_place);
                let number = stage.cell(c.group, rank).iter().position(|&q| q == rank).unwrap_or(0);
                let own_piece =
                    element >= number * (len / size) && at == low + (element - number * (len / size)) * size;
                in_place
                    && match c.kind {
                        CollectiveKind::ReduceScatter(_) => own_piece,
                        CollectiveKind::AllGather => false,
                        _ => same_element,
                    }
            }
            _ => false,
        }
    }
}

impl RunStage<'_> {
    /// The node that the step names.
    fn first(&self, s: usize) -> NodeId {
        let name = &self.bucket.steps[s].node;
        let value = self.graph.values.iter().find(|(_, v)| v.name == *name).map(|(id, _)| id);
        value.and_then(|v| self.graph.defining_node(v)).expect("a step names a node")
    }

    fn dispatch(&self, node: NodeId) -> Option<Dispatch> {
        self.graph.dispatches.iter().copied().find(|d| d.contains(node))
    }

    /// The nodes of a step.
    fn nodes(&self, s: usize) -> Vec<NodeId> {
        let first = self.first(s);
        self.dispatch(first).map_or(vec![first], |d| d.nodes().collect())
    }

    /// The nodes of a step that communicate, or its first.
    fn communicating(&self, s: usize) -> Vec<NodeId> {
        let communicates = |n: &NodeId| self.graph.nodes[*n].op.as_collective().is_some();
        let communicating: Vec<NodeId> = self.nodes(s).into_iter().filter(communicates).collect();
        if communicating.is_empty() { vec![self.first(s)] } else { communicating }
    }

    /// The first node of a step that communicates, or its first.
    fn node(&self, s: usize) -> NodeId {
        let communicates = |n: &NodeId| self.graph.nodes[*n].op.as_collective().is_some();
        self.nodes(s).into_iter().find(communicates).unwrap_or_else(|| self.first(s))
    }

    /// The operands that a step reads of other steps: the reading node, the operand's index, and the operand.
    fn operands(&self, s: usize) -> Vec<(NodeId, usize, ValueId)> {
        let nodes = self.nodes(s);
        let operands = nodes
            .iter()
            .flat_map(|&n| self.graph.nodes[n].inputs.iter().enumerate().map(move |(k, &x)| (n, k, x)));
        let own = |x: ValueId| self.graph.defining_node(self.base(x)).is_some_and(|n| nodes.contains(&n));
        operands.filter(|(_, _, x)| !own(*x)).collect()
    }

    /// The values of a step that have memory.
    fn results(&self, s: usize) -> Vec<ValueId> {
        let results = self.nodes(s).into_iter().flat_map(|n| self.graph.nodes[n].outputs.iter().copied());
        results.filter(|&v| !self.inner[v] && self.base(v) == v).collect()
    }

    fn base(&self, v: ValueId) -> ValueId {
        self.layouts[v].base
    }

    fn eval(&self, dim: &symmc_ir::Dim) -> i64 {
        dim.eval(&self.bindings).expect("symbols are bound")
    }

    fn size(&self, v: ValueId) -> usize {
        self.graph.ty(v).dtype.size()
    }

    fn cell(&self, group: GroupId, rank: usize) -> Vec<usize> {
        let cells = self.graph.cells(group).expect("ranks are closed");
        let cell = cells.into_iter().find(|c| c.contains(&(rank as u32))).expect("each rank is in a cell");
        cell.into_iter().map(|r| r as usize).collect()
    }

    /// The ranks of each pair that meets in a step, sender first.
    fn pairs(&self, s: usize, group: GroupId, contract: &Contract) -> Vec<(usize, usize)> {
        let Op::Collective(c) = &self.graph.nodes[self.node(s)].op else { return Vec::new() };
        let cells = self.graph.cells(group).expect("ranks are closed");
        let in_cell = |cell: &Vec<u32>| {
            let number = |i: u32| cell[i as usize] as usize;
            let pairs: Vec<(u32, u32)> = match &c.kind {
                CollectiveKind::Broadcast { root } => (0..cell.len() as u32).map(|to| (*root, to)).collect(),
                CollectiveKind::Permute { pairs } => pairs.clone(),
                _ => Vec::new(),
            };
            pairs.iter().filter(|p| p.0 != p.1).map(|p| (number(p.0), number(p.1))).collect::<Vec<_>>()
        };
        cells.iter().filter(|_| contract.sync_scope == SyncScope::Pairs).flat_map(in_cell).collect()
    }

    /// Whether an input is written only once: it is no argument, nothing replaces it, and it has one size.
    fn lasts(&self, input: InputId) -> bool {
        let graph = self.graph;
        let graph_input = &graph.inputs[input];
        let replaced = graph.outputs.iter().any(|o| o.kind == OutputKind::Mutates(input));
        let varies = graph.ty(graph_input.value).shape.iter().any(|d| d.as_const().is_none());
        graph_input.kind != InputKind::Argument && !replaced && !varies
    }

    fn is_bound(&self, input: usize) -> bool {
        self.plan.fixed.iter().any(|f| f.role == FixedRole::Bound { input })
    }

    /// The bytes of a base on a rank.
    fn bytes(&self, base: ValueId, rank: usize) -> (MemoryKind, usize, usize) {
        let placement: &ValuePlacement = &self.bucket.places[self.graph.value_name(base)];
        let dim =
            |text: &str| self.eval(&text::parse_dim(text, &self.graph.symbols).expect("a dim")) as usize;
        let mut start = dim(&placement.offset);
        if let Some(by) = &placement.by_rank {
            let group = self.graph.groups.iter().find(|(_, g)| g.name == by.group).expect("a group").0;
            let number = self.cell(group, rank).iter().position(|&q| q == rank).expect("in the cell");
            start += number * dim(&by.stride);
        }
        let memory = match placement.memory {
            MemoryRef::Buffer(b) => {
                let buffer = &self.bucket.buffers[b];
                start += buffer.offset as usize;
                match buffer.arena {
                    ArenaKind::Ordinary => MemoryKind::Ordinary,
                    ArenaKind::Symmetric => MemoryKind::Symmetric,
                }
            }
            MemoryRef::Fixed(f) => {
                start += self.plan.fixed[f].offset as usize;
                MemoryKind::Symmetric
            }
            MemoryRef::Output(k) => MemoryKind::Output(k),
            MemoryRef::Input(i) => MemoryKind::Input(i),
        };
        (memory, start, start + self.eval(&self.graph.ty(base).bytes()) as usize)
    }

    /// For each element of a value in row-major order: its first byte and its number.
    fn element_bytes(&self, v: ValueId, rank: usize) -> Vec<(MemoryKind, usize, usize)> {
        let (memory, low, _) = self.bytes(self.base(v), rank);
        let (ty, layout) = (self.graph.ty(v), &self.layouts[v]);
        let shape: Vec<i64> = ty.shape.iter().map(|d| self.eval(d)).collect();
        let strides: Vec<i64> = layout.strides.iter().map(|d| self.eval(d)).collect();
        let offset = self.eval(&layout.offset);
        let count: i64 = shape.iter().product();
        (0..count)
            .map(|element| {
                let (mut rest, mut at) = (element, offset);
                for (n, stride) in shape.iter().zip(&strides).rev() {
                    at += rest % n * stride;
                    rest /= n;
                }
                (memory, low + at as usize * ty.dtype.size(), element as usize)
            })
            .collect()
    }
}

/// The content of bytes as numbers: equal numbers mean equal bytes. A value that is assembled from bytes of
/// others has their numbers.
struct ContentTags<'a> {
    stage: &'a RunStage<'a>,
    known: RefCell<HashMap<(ValueId, usize), Rc<Vec<u64>>>>,
}

impl ContentTags<'_> {
    /// The content of all bytes of a value on a rank.
    fn of(&self, value: ValueId, rank: usize) -> Rc<Vec<u64>> {
        if let Some(known) = self.known.borrow().get(&(value, rank)) {
            return known.clone();
        }
        let tags = Rc::new(self.make(value, rank));
        self.known.borrow_mut().insert((value, rank), tags.clone());
        tags
    }

    fn make(&self, value: ValueId, rank: usize) -> Vec<u64> {
        let (stage, graph) = (self.stage, self.stage.graph);
        let base = stage.base(value);
        if base != value {
            let (of, low, size) = (self.of(base, rank), stage.bytes(base, rank).1, stage.size(value));
            let elements = stage.element_bytes(value, rank);
            return elements.iter().flat_map(|&(_, at, _)| of[at - low..at - low + size].to_vec()).collect();
        }
        let ValueDef::Node(id, _) = graph.values[value].def else { return self.fresh(value, rank) };
        let node = &graph.nodes[id];
        let concatenated = |parts: Vec<Rc<Vec<u64>>>| parts.iter().flat_map(|p| p.iter().copied()).collect();
        match &node.op {
            Op::Concat { axis } if graph.ty(value).shape[..*axis].iter().all(|d| d.as_const() == Some(1)) => {
                concatenated(node.inputs.iter().map(|&x| self.of(x, rank)).collect())
            }
            Op::Copy => self.of(node.inputs[0], rank).to_vec(),
            Op::Collective(c) if c.kind == CollectiveKind::AllGather => concatenated(
                stage.cell(c.group, rank).into_iter().map(|q| self.of(node.inputs[0], q)).collect(),
            ),
            _ => self.fresh(value, rank),
        }
    }

    fn fresh(&self, value: ValueId, rank: usize) -> Vec<u64> {
        let graph = self.stage.graph;
        // Inputs are the same in all planned programs. Other values are distinguished by their run.
        let (run, id) = match graph.values[value].def {
            ValueDef::Input(i) => {
                (if self.stage.lasts(i) { 0 } else { self.stage.run as u64 + 1 }, i.index())
            }
            ValueDef::Node(..) => (self.stage.run as u64 + 1, graph.inputs.len() + value.index()),
        };
        let len = self.stage.eval(&graph.ty(value).bytes()) as u64;
        let first = ((run * 64 + rank as u64) * 4096 + id as u64) * (1 << 20) + 1;
        (first..first + len).collect()
    }
}

/// Whether a dispatch has a reduction that leaves the last axis as it is.
fn reduces_outer_axis(graph: &Graph, dispatch: Dispatch) -> bool {
    dispatch.nodes().map(|n| &graph.nodes[n]).any(|node| match &node.op {
        Op::Reduce { axes, .. } => !axes.contains(&(graph.ty(node.inputs[0]).rank() - 1)),
        _ => false,
    })
}
