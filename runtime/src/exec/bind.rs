//! Resolves a program for one binding of its symbols.
//!
//! Resolving checks what memory safety rests on: every view lies within its base, every base within the
//! memory that its place names, every collective's operand and result is one dense run.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::entity::Entity;
use symmc_ir::text::op_dims_mut;
use symmc_ir::{
    Bindings, Collective, CustomId, Dim, Dispatch, Graph, GroupId, InputId, Node, NodeId, Op, ValueId,
    Variant,
};

use super::bound::{
    Bound, BoundCollective, BoundDispatch, BoundInput, BoundOutput, BoundPeers, BoundRegion, BoundStep,
    Located, Member, PeerRegion, Work,
};
use super::bucket::{BasePlace, MemorySpace, PreparedBucket, PreparedStep};
use crate::custom::op_text;
use crate::error::{Result, RunError};
use crate::kernels::is_dense;

/// Inner values of a dispatch start at multiples of this.
const INNER_ALIGN: usize = 64;

impl PreparedBucket {
    /// Resolves the program for these values of its symbols, by name. Fails if a symbol has no value in the bucket's
    /// range, or a value does not fit its memory.
    pub fn bind(&self, symbols: &IndexMap<String, i64>) -> Result<Bound> {
        self.resolve(symbols, Purpose::Run)
    }

    /// Resolves the program to find its needs at these sizes, also at sizes at which it cannot run: a view that
    /// reaches beyond its base starts at the start of the base. The result must not run.
    pub fn bind_for_size(&self, symbols: &IndexMap<String, i64>) -> Result<Bound> {
        self.resolve(symbols, Purpose::Size)
    }

    fn resolve(&self, symbols: &IndexMap<String, i64>, purpose: Purpose) -> Result<Bound> {
        let mut bindings = Bindings::new();
        for (id, symbol) in self.graph.symbols.iter() {
            let value = symbols.get(&symbol.name).copied();
            let value = value.filter(|v| (symbol.min..=symbol.max).contains(v)).ok_or_else(|| {
                let (name, min, max) = (&symbol.name, symbol.min, symbol.max);
                RunError::Invalid(format!("symbol {name}: expected {min} to {max}, found {value:?}"))
            })?;
            bindings.set(id, value);
        }
        let mut binder =
            Binder { program: self, graph: &self.graph, bindings, purpose, inner: HashMap::new() };
        binder.place_inner()?;
        let steps = self.steps.iter().enumerate();
        let steps = steps.map(|(i, s)| binder.step(i, s)).collect::<Result<Vec<_>, _>>()?;
        Ok(Bound {
            bucket: self.bucket,
            rank: self.rank,
            program: 0,
            inputs: binder.inputs()?,
            outputs: binder.outputs()?,
            ordinary: self.arenas.ordinary as usize,
            symmetric: self.arenas.symmetric as usize,
            constants: self.constants.clone(),
            steps,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Run,
    Size,
}

struct Binder<'a> {
    program: &'a PreparedBucket,
    graph: &'a Graph,
    bindings: Bindings,
    purpose: Purpose,
    /// Where the inner values of each dispatch start.
    inner: HashMap<ValueId, usize>,
}

impl Binder<'_> {
    fn invalid(&self, value: ValueId, message: impl std::fmt::Display) -> RunError {
        RunError::Defect(format!("the plan cannot run: %{}: {message}", self.graph.name_of(value)))
    }

    /// Places the inner values of each dispatch one behind the other.
    fn place_inner(&mut self) -> Result<()> {
        let inner =
            |v: ValueId| self.program.places[v].as_ref().is_some_and(|p| p.space == MemorySpace::Inner);
        let mut found = HashMap::new();
        for dispatch in &self.graph.dispatches {
            let mut at = 0usize;
            for &v in dispatch.nodes().flat_map(|n| &self.graph.nodes[n].outputs).filter(|v| inner(**v)) {
                found.insert(v, at);
                at = at.saturating_add(self.bytes(v)?.next_multiple_of(INNER_ALIGN));
            }
        }
        self.inner = found;
        Ok(())
    }

    fn number(&self, value: ValueId, dim: &Dim) -> Result<i64> {
        let error = || self.invalid(value, format!("{} has no value", dim.display(&self.graph.symbols)));
        dim.eval(&self.bindings).ok_or_else(error)
    }

    fn size(&self, value: ValueId, dim: &Dim) -> Result<usize> {
        let n = self.number(value, dim)?;
        usize::try_from(n)
            .map_err(|_| self.invalid(value, format!("{} is {n}", dim.display(&self.graph.symbols))))
    }

    fn shape(&self, value: ValueId) -> Result<Box<[usize]>> {
        self.graph.ty(value).shape.iter().map(|d| self.size(value, d)).collect()
    }

    /// The bytes of a value stored contiguously.
    fn bytes(&self, value: ValueId) -> Result<usize> {
        let dtype = self.graph.ty(value).dtype;
        let product = self.shape(value)?.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d));
        product
            .filter(|&n| isize::try_from(n).is_ok())
            .ok_or_else(|| self.invalid(value, "its size overflows"))
    }

    /// The place of a base, with its offset behind the start of its memory space (without the part that depends on
    /// the rank) and that part.
    fn base(&self, base: ValueId) -> Result<(&BasePlace, usize, usize)> {
        let place = self.program.places[base].as_ref();
        let place = place.ok_or_else(|| self.invalid(base, "it has no place"))?;
        if place.space == MemorySpace::Inner {
            return Ok((place, self.inner.get(&base).copied().unwrap_or(0), 0));
        }
        let offset = self.size(base, &place.offset)?;
        let by_rank = match &place.by_rank {
            Some(by_rank) => self.size(base, &by_rank.stride)?,
            None => 0,
        };
        let number = place.number_on(self.program.rank);
        let bytes = self.bytes(base)?;
        let inner = by_rank.checked_mul(number).and_then(|r| r.checked_add(offset));
        let end = inner.and_then(|i| i.checked_add(bytes));
        let overflow = || self.invalid(base, "its offset overflows");
        let (inner, end) = (inner.ok_or_else(overflow)?, end.ok_or_else(overflow)?);
        let room = match (place.room, place.space) {
            (Some(room), _) => room,
            (None, MemorySpace::Output(k)) => self.bytes(self.graph.outputs[k].value)?,
            (None, MemorySpace::Input(i)) => self.bytes(self.graph.inputs[InputId::new(i)].value)?,
            (None, _) => 0,
        };
        if end > room {
            return Err(self.invalid(base, format!("{bytes} bytes at {inner} exceed memory of {room} bytes")));
        }
        let size = self.graph.ty(base).dtype.size();
        if !(place.start + inner).is_multiple_of(size) {
            return Err(
                self.invalid(base, format!("offset {} is not a multiple of {size}", place.start + inner))
            );
        }
        Ok((place, place.start + offset, by_rank))
    }

    /// Where a value lies; it lies within its base.
    fn located(&self, value: ValueId) -> Result<Located> {
        let layout = &self.program.layouts[value];
        let (place, offset, by_rank) = self.base(layout.base)?;
        let number = place.number_on(self.program.rank);
        let shape = self.shape(value)?;
        let dtype = self.graph.ty(value).dtype;
        let strides = layout.strides.iter().map(|s| self.number(value, s).map(|s| s as isize));
        let strides: Box<[isize]> = strides.collect::<Result<_, _>>()?;
        let mut first = self.number(value, &layout.offset)?;
        let elements = (self.bytes(layout.base)? / dtype.size()) as i64;
        if shape.contains(&0) {
            first = 0;
        } else {
            let reach = |sign: i64| {
                let mut steps = shape.iter().zip(&strides).filter(|(_, s)| (**s as i64).signum() == sign);
                steps.try_fold(first, |at, (&n, &s)| at.checked_add((n as i64 - 1).checked_mul(s as i64)?))
            };
            let inside = |at: Option<i64>| at.is_some_and(|at| (0..elements).contains(&at));
            let is_inside = inside(reach(1)) && inside(reach(-1));
            if !is_inside && self.purpose == Purpose::Size {
                first = 0;
            } else if !is_inside {
                let base = self.graph.name_of(layout.base);
                return Err(
                    self.invalid(value, format!("it reaches beyond the {elements} elements of %{base}"))
                );
            }
        }
        let offset = offset + by_rank * number + first as usize * dtype.size();
        Ok(Located { space: place.space, offset, by_rank, dtype, shape, strides })
    }

    fn all(&self, values: &[ValueId]) -> Result<Vec<Located>> {
        values.iter().map(|&v| self.located(v)).collect()
    }

    /// Where this rank's piece of a value along an axis lies.
    fn piece(&self, value: ValueId, axis: usize, group: GroupId) -> Result<Located> {
        let mut piece = self.located(value)?;
        let outside = || self.invalid(value, "this rank has no piece of it");
        let ranks = self.graph.group_size(group).filter(|&n| n > 0).ok_or_else(outside)? as usize;
        let numbers = self.graph.numbers(group).ok_or_else(outside)?;
        let number = *numbers.get(self.program.rank as usize).ok_or_else(outside)?;
        let stride = *piece.strides.get(axis).ok_or_else(outside)?;
        let extent = piece.shape.get_mut(axis).ok_or_else(outside)?;
        *extent /= ranks;
        if !piece.shape.contains(&0) {
            let elements = stride * (number * piece.shape[axis]) as isize;
            piece.offset = piece.offset.wrapping_add_signed(elements * piece.dtype.size() as isize);
        }
        Ok(piece)
    }

    fn step(&self, index: usize, step: &PreparedStep) -> Result<BoundStep> {
        let node = &self.graph.nodes[step.node];
        let name = self.graph.node_name(step.node).to_string();
        let (lane, waits) = (step.lane, step.waits.clone());
        if let Some(dispatch) = step.dispatch {
            let work = Work::Dispatch(self.dispatch(step, dispatch)?);
            let op_name = format!("dispatch {}", dispatch.form);
            return Ok(BoundStep { index, lane, waits, node: name, op_name, work });
        }
        let work = match (&node.op, &step.custom) {
            (Op::Custom(id), Some(kernel)) => Work::Custom {
                name: self.graph.customs[*id].name.clone(),
                kernel: kernel.clone(),
                operands: self.all(&node.inputs)?,
                results: self.all(&node.outputs)?,
                peers: self.peers(step.node, *id)?,
            },
            _ => self.work(step, step.node)?,
        };
        Ok(BoundStep { index, lane, waits, node: name, op_name: op_text(self.graph, &node.op), work })
    }

    fn work(&self, step: &PreparedStep, id: NodeId) -> Result<Work> {
        let node = &self.graph.nodes[id];
        Ok(match &node.op {
            Op::Collective(c) => Work::Collective(self.collective(step, id, c)?),
            Op::Shard { axis, group } => Work::Kernel {
                op: Op::Copy,
                operands: vec![self.piece(node.inputs[0], *axis, *group)?],
                results: self.all(&node.outputs)?,
            },
            op => Work::Kernel {
                op: self.concrete(id, op)?,
                operands: self.all(&node.inputs)?,
                results: self.all(&node.outputs)?,
            },
        })
    }

    fn dispatch(&self, step: &PreparedStep, dispatch: Dispatch) -> Result<BoundDispatch> {
        let view = |node: &Node| node.outputs.iter().all(|&v| self.program.layouts[v].base != v);
        let (mut members, mut inner) = (Vec::new(), 0);
        for id in dispatch.nodes() {
            let node = &self.graph.nodes[id];
            for v in &node.outputs {
                if let Some(at) = self.inner.get(v) {
                    inner = inner.max(at.saturating_add(self.bytes(*v)?));
                }
            }
            if !view(node) {
                let (name, op_name) = (self.graph.node_name(id).to_string(), op_text(self.graph, &node.op));
                members.push(Member { node: name, op_name, work: self.work(step, id)? });
            }
        }
        Ok(BoundDispatch { form: dispatch.form, members, inner })
    }

    /// The op with the dims of its attributes replaced by their values.
    fn concrete(&self, node: NodeId, op: &Op) -> Result<Op> {
        let result = self.graph.nodes[node].outputs[0];
        let mut op = op.clone();
        for dim in op_dims_mut(&mut op) {
            *dim = Dim::from(self.number(result, dim)?);
        }
        Ok(op)
    }

    fn collective(&self, step: &PreparedStep, id: NodeId, c: &Collective) -> Result<BoundCollective> {
        let node = &self.graph.nodes[id];
        let (x, y) = (node.inputs[0], node.outputs[0]);
        let missing = || self.invalid(y, "it names no variant that runs it");
        let variant = c.variant.ok_or_else(missing)?;
        let contract = variant.contract(&c.kind).ok_or_else(missing)?;
        let cells = self.graph.cells(c.group).unwrap_or_default();
        let cell = cells.iter().find(|cell| cell.contains(&self.program.rank)).cloned();
        let cell = cell.ok_or_else(|| self.invalid(y, "this rank is not in its group"))?;
        let region = |v, peers| self.region(v, peers);
        let operand = region(x, contract.touch.reads_operand())?;
        let result = region(y, contract.touch.writes_result())?;
        let splits = match (node.inputs.get(1), node.outputs.get(1)) {
            (Some(&sizes), Some(&received)) => Some((region(sizes, false)?, region(received, false)?)),
            _ => None,
        };
        let landing = match self.program.landing[c.group] {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        };
        let shape = self.shape(x)?;
        Ok(BoundCollective {
            kind: c.kind.clone(),
            variant,
            exit: step.exit,
            cell,
            group: c.group.index(),
            dtype: self.graph.ty(x).dtype,
            elements: shape.iter().product(),
            row: shape.iter().skip(1).product(),
            operand,
            result,
            blocks: step.blocks,
            landing: landing.filter(|_| variant == Variant::Ll),
            splits,
        })
    }

    /// The region of an operand or result of a collective, which peers touch or not.
    fn region(&self, value: ValueId, peers: bool) -> Result<BoundRegion> {
        let at = self.located(value)?;
        if !is_dense(&at.shape, &at.strides) {
            return Err(self.invalid(value, "a collective needs its elements in one dense run"));
        }
        if peers && at.space != MemorySpace::Symmetric {
            return Err(self.invalid(value, "peers touch it, but it does not lie in the symmetric arena"));
        }
        Ok(BoundRegion { space: at.space, offset: at.offset, by_rank: self.by_rank(value, &at)? })
    }

    /// Where a value that lies by rank starts on every rank of the run.
    fn by_rank(&self, value: ValueId, at: &Located) -> Result<Option<Arc<[usize]>>> {
        let (place, _, stride) = self.base(self.program.layouts[value].base)?;
        let Some(by_rank) = &place.by_rank else { return Ok(None) };
        let on_first = at.offset - stride * place.number_on(self.program.rank);
        let on = |&number: &usize| stride.checked_mul(number).and_then(|shift| shift.checked_add(on_first));
        let offsets: Option<Arc<[usize]>> = by_rank.numbers.iter().map(on).collect();
        offsets.map(Some).ok_or_else(|| self.invalid(value, "its offset overflows on another rank"))
    }

    fn inputs(&self) -> Result<Vec<BoundInput>> {
        let mut out = Vec::with_capacity(self.graph.inputs.len());
        let mut direct = vec![false; self.graph.inputs.len()];
        for place in self.program.places.values().flatten() {
            if let MemorySpace::Input(i) = place.space {
                direct[i] = true;
            }
        }
        for (index, input) in self.graph.inputs.values().enumerate() {
            let (name, dtype) =
                (self.graph.name_of(input.value).to_string(), self.graph.ty(input.value).dtype);
            let bytes = self.bytes(input.value)?;
            // Steps write one that an output replaces in place.
            if matches!(&self.program.places[input.value], Some(p) if matches!(p.space, MemorySpace::Output(_)))
            {
                direct[index] = true;
            }
            // An input that nothing uses may have no place.
            let fixed = match &self.program.places[input.value] {
                None => None,
                Some(_) => {
                    let (place, offset, by_rank) = self.base(input.value)?;
                    let number = place.number_on(self.program.rank);
                    (place.space == MemorySpace::Symmetric).then_some(offset + by_rank * number)
                }
            };
            out.push(BoundInput { name, kind: input.kind, dtype, bytes, fixed, direct: direct[index] });
        }
        Ok(out)
    }

    fn outputs(&self) -> Result<Vec<BoundOutput>> {
        let mut mutates = vec![None; self.graph.outputs.len()];
        for (output, input) in self.program.mutations() {
            mutates[output] = Some(input.index());
        }
        let outputs = self.graph.outputs.iter().zip(mutates).enumerate();
        outputs
            .map(|(index, (output, mutates))| {
                let at = self.located(output.value)?;
                if at.space != MemorySpace::Output(index) {
                    return Err(
                        self.invalid(output.value, format!("it is output {index}, but does not lie there"))
                    );
                }
                let (name, dtype) = (self.graph.name_of(output.value).to_string(), at.dtype);
                let in_place = mutates.is_some_and(|i| {
                    let place = &self.program.places[self.graph.inputs[InputId::new(i)].value];
                    place.as_ref().is_some_and(|p| p.space == MemorySpace::Output(index))
                });
                Ok(BoundOutput { name, dtype, bytes: self.bytes(output.value)?, mutates, in_place })
            })
            .collect()
    }

    /// The peers of a custom op; `None` for an op without a group.
    fn peers(&self, id: NodeId, custom: CustomId) -> Result<Option<BoundPeers>> {
        let (node, op) = (&self.graph.nodes[id], &self.graph.customs[custom]);
        let Some(group) = op.group else { return Ok(None) };
        let cells = self.graph.cells(group).unwrap_or_default();
        let cell = cells.iter().find(|cell| cell.contains(&self.program.rank)).cloned();
        let cell = cell.ok_or_else(|| self.invalid(node.outputs[0], "this rank is not in its group"))?;
        let number = cell.iter().position(|&r| r == self.program.rank).unwrap_or(0);
        let all = |values: &[ValueId], named: &[usize]| {
            let of = |(i, &v): (usize, &ValueId)| named.contains(&i).then(|| self.on_peers(v));
            values.iter().enumerate().map(|value| of(value).transpose()).collect::<Result<Vec<_>, _>>()
        };
        let operands = all(&node.inputs, &op.symmetric_operands)?;
        let results = all(&node.outputs, &op.symmetric_results)?;
        Ok(Some(BoundPeers { group: group.index(), cell, number, operands, results }))
    }

    fn on_peers(&self, value: ValueId) -> Result<PeerRegion> {
        let at = self.located(value)?;
        if at.space != MemorySpace::Symmetric {
            return Err(self.invalid(value, "peers touch it, but it does not lie in the symmetric arena"));
        }
        let base = self.program.layouts[value].base;
        let own = self.located(base)?;
        let (first, bytes) = (at.offset - own.offset, self.bytes(base)?);
        Ok(PeerRegion { offset: own.offset, by_rank: self.by_rank(base, &own)?, bytes, first })
    }
}
