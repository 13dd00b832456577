//! The steps of a program: its nodes without the views, with the base values that each reads and writes.

use symmc_ir::collective::Meets;
use symmc_ir::entity::Entity;
use symmc_ir::{CollectiveKind, Contract, Def, Graph, GroupId, InputId, NodeId, Op, Table, ValueId};

use crate::error::PlanError;
use crate::plan::Lane;

/// A node that runs.
#[derive(Clone, Debug)]
pub struct StepInfo {
    /// The node that it runs.
    pub node: NodeId,
    /// The lane that runs it.
    pub lane: Lane,
    /// The bases whose memory it reads, each once, in order of its operands.
    pub reads: Vec<ValueId>,
    /// The values that it defines, all of them bases.
    pub writes: Vec<ValueId>,
    /// What it promises to peers, if it touches any or meets them.
    pub peers: Option<Peers>,
}

impl StepInfo {
    /// The bases that peers read and write during this step.
    pub fn touched(&self, graph: &Graph, base: &Table<ValueId, ValueId>) -> (Vec<ValueId>, Vec<ValueId>) {
        let Some(peers) = &self.peers else { return Default::default() };
        let node = &graph.nodes[self.node];
        if let Op::Custom(_) = node.op {
            let (operands, results) = symmetric_positions(graph, self.node, Some(peers));
            let operands = operands.iter().filter_map(|&i| node.inputs.get(i)).map(|&v| base[v]);
            let results = results.iter().filter_map(|&i| node.outputs.get(i)).copied();
            return (operands.collect(), results.collect());
        }
        let touch = peers.contract.touch;
        let all = |on: bool, values: &Vec<ValueId>| if on { values.clone() } else { Vec::new() };
        (all(touch.reads_operand(), &self.reads), all(touch.writes_result(), &self.writes))
    }

    /// The operands that the result may lie on, element on element, where they are read last; the first ones of the
    /// node. The others may not share bytes with the result.
    pub fn overwritable<'a>(&self, graph: &'a Graph) -> &'a [ValueId] {
        let node = &graph.nodes[self.node];
        let count = match &node.op {
            Op::Collective(c) => {
                let able = matches!(c.kind, CollectiveKind::AllReduce(_) | CollectiveKind::Broadcast { .. });
                usize::from(able && self.peers.is_some_and(|p| p.contract.in_place))
            }
            op if op.is_element_wise() || *op == Op::Copy => node.inputs.len(),
            // These read all of a row before they write it, or change a few elements of what is there.
            Op::Softmax { .. } | Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::CumSum { .. } => 1,
            Op::RotaryEmbedding { .. } => 1,
            Op::ScatterElements { .. } | Op::IndexAdd { .. } | Op::IndexPut { .. } => 1,
            _ => 0,
        };
        &node.inputs[..count.min(node.inputs.len())]
    }
}

/// The cross-rank side of a step.
#[derive(Clone, Copy, Debug)]
pub struct Peers {
    /// The group that communicates.
    pub group: GroupId,
    /// What its variant touches on peers, and when.
    pub contract: Contract,
}

/// A program as a list of steps.
#[derive(Clone, Debug)]
pub struct Steps {
    /// In the order in which they run.
    pub list: Vec<StepInfo>,
    /// The step that defines each base; `None` for inputs and views.
    pub def: Table<ValueId, Option<u32>>,
}

impl Steps {
    /// The steps of `graph` in the order of its nodes.
    pub fn new(graph: &Graph, base: &Table<ValueId, ValueId>) -> Result<Steps, PlanError> {
        let mut list = Vec::with_capacity(graph.nodes.len());
        let mut def = Table::filled(None, graph.values.len());
        for (id, node) in graph.nodes.iter() {
            if is_view(graph, base, id) {
                continue;
            }
            let mut reads: Vec<ValueId> = Vec::with_capacity(node.inputs.len());
            for &v in &node.inputs {
                if !reads.contains(&base[v]) {
                    reads.push(base[v]);
                }
            }
            for &v in &node.outputs {
                def[v] = Some(list.len() as u32);
            }
            let peers = peers(graph, id)?;
            let lane = if peers.is_some() { Lane::Comm } else { Lane::Compute };
            list.push(StepInfo { node: id, lane, reads, writes: node.outputs.clone(), peers });
        }
        Ok(Steps { list, def })
    }

    /// The same steps in this order.
    pub fn permuted(&self, order: &[u32]) -> Steps {
        let list: Vec<StepInfo> = order.iter().map(|&s| self.list[s as usize].clone()).collect();
        let mut def = self.def.clone();
        for (s, step) in list.iter().enumerate() {
            for &v in &step.writes {
                def[v] = Some(s as u32);
            }
        }
        Steps { list, def }
    }

    /// For each base the steps that read it, ascending.
    pub fn readers(&self) -> Readers {
        let mut start = vec![0u32; self.def.len() + 1];
        for step in &self.list {
            for v in &step.reads {
                start[v.index() + 1] += 1;
            }
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        let mut next = start.clone();
        let mut steps = vec![0; start.last().map_or(0, |&n| n as usize)];
        for (s, step) in self.list.iter().enumerate() {
            for v in &step.reads {
                steps[next[v.index()] as usize] = s as u32;
                next[v.index()] += 1;
            }
        }
        Readers { start, steps }
    }
}

/// The steps that read each base.
#[derive(Clone, Debug)]
pub struct Readers {
    start: Vec<u32>,
    steps: Vec<u32>,
}

impl Readers {
    /// The steps that read this base, ascending.
    pub fn of(&self, base: ValueId) -> &[u32] {
        &self.steps[self.start[base.index()] as usize..self.start[base.index() + 1] as usize]
    }
}

/// Whether the node only gives another view of memory that its operand already has.
pub fn is_view(graph: &Graph, base: &Table<ValueId, ValueId>, node: NodeId) -> bool {
    graph.nodes[node].outputs.iter().all(|&v| base[v] != v)
}

/// The group and contract of a collective, or of a custom op that touches peers.
pub fn peers(graph: &Graph, node: NodeId) -> Result<Option<Peers>, PlanError> {
    match &graph.nodes[node].op {
        Op::Collective(c) => {
            let name = || graph.node_name(node).to_string();
            let op = c.kind.name();
            let variant = c.variant.ok_or_else(|| PlanError::NoVariant { node: name(), op })?;
            let contract = variant.contract(&c.kind).ok_or_else(|| PlanError::WrongVariant {
                node: name(),
                op,
                variant: variant.name(),
            })?;
            if contract.touch.writes_result() && !contract.entry && contract.meets != Meets::Pairs {
                return Err(PlanError::EntrylessPush { node: name(), op, variant: variant.name() });
            }
            Ok(Some(Peers { group: c.group, contract }))
        }
        Op::Custom(id) => Ok(graph.customs.get(*id).and_then(|c| {
            let group = c.group?;
            // A custom op that touches peers keeps every barrier; what it touches is in its signature.
            let touch = symmc_ir::collective::Touch::ReadOperandWriteResult;
            let contract = Contract {
                entry: true,
                meets: Meets::Group,
                exit: symmc_ir::collective::Exit::Always,
                result_after_meeting: true,
                touch,
                symmetric_operand: false,
                symmetric_result: false,
                in_place: false,
            };
            Some(Peers { group, contract })
        })),
        _ => Ok(None),
    }
}

/// The positions of the operands and results of a node that must lie in the symmetric arena.
pub fn symmetric_positions(graph: &Graph, node: NodeId, peers: Option<&Peers>) -> (Vec<usize>, Vec<usize>) {
    let it = &graph.nodes[node];
    match (&it.op, peers) {
        (Op::Collective(_), Some(p)) => (
            if p.contract.symmetric_operand { (0..it.inputs.len()).collect() } else { Vec::new() },
            if p.contract.symmetric_result { (0..it.outputs.len()).collect() } else { Vec::new() },
        ),
        (Op::Custom(id), _) => match graph.customs.get(*id) {
            Some(c) => (c.symmetric_operands.clone(), c.symmetric_results.clone()),
            None => Default::default(),
        },
        _ => Default::default(),
    }
}

/// The input whose memory a base is.
pub fn input_of(graph: &Graph, base: ValueId) -> Option<InputId> {
    match graph.values[base].def {
        Def::Input(i) => Some(i),
        Def::Node(..) => None,
    }
}
