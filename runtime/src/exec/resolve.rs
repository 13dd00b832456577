//! Resolves a program for one binding of its symbols.
//!
//! Resolving checks the conditions of memory safety: every view lies within its base, every base within the
//! memory of its placement, every collective's operand and result is one dense run.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::entity::Entity;
use symmc_ir::text::op_dims_mut;
use symmc_ir::{
    Collective, CollectiveKind, CollectiveVariant, CustomId, Dim, Dispatch, Graph, GroupId, InputId, Node,
    NodeId, Op, Route, RouteScope, SymbolBindings, ValueId,
};

use super::bucket::{BasePlacement, MemorySpace, PreparedBucket, PreparedStep};
use super::resolved::{
    ExecutableStep, LocatedTensor, PeerRegion, ResolvedCollective, ResolvedDispatch, ResolvedInput,
    ResolvedMember, ResolvedOutput, ResolvedPeers, ResolvedProgram, ResolvedRegion, StepWork,
};
use super::slabs::mark_slab_steps;
use crate::call::{RowTableKind, RowTables};
use crate::custom::op_display_name;
use crate::error::{Result, RunError};
use crate::kernels::is_dense;

/// Inner values of a dispatch start at multiples of this.
const INNER_ALIGN: usize = 64;

impl PreparedBucket {
    /// Resolves the program for these values of its symbols, by name. Fails if a symbol has no value in the
    /// bucket's range, or a value does not fit its memory.
    pub fn resolve_bindings(&self, symbols: &IndexMap<String, i64>) -> Result<ResolvedProgram> {
        self.resolve_for_purpose(symbols, ResolvePurpose::Run)
    }

    /// Resolves the program to find its needs at these sizes, also at sizes at which it cannot run: a view
    /// that reaches beyond its base is moved to the start of the base. The result must not run.
    pub fn resolve_for_size(&self, symbols: &IndexMap<String, i64>) -> Result<ResolvedProgram> {
        self.resolve_for_purpose(symbols, ResolvePurpose::Size)
    }

    fn resolve_for_purpose(
        &self,
        symbols: &IndexMap<String, i64>,
        purpose: ResolvePurpose,
    ) -> Result<ResolvedProgram> {
        let mut bindings = SymbolBindings::new();
        for (id, symbol) in self.graph.symbols.iter() {
            let value = symbols.get(&symbol.name).copied();
            let value = value.filter(|v| (symbol.min..=symbol.max).contains(v)).ok_or_else(|| {
                let name = &symbol.name;
                let min = symbol.min;
                let max = symbol.max;
                let actual = value.map_or_else(|| "no value".to_string(), |value| value.to_string());
                RunError::Invalid(format!("symbol {name}: expected {min} to {max}, found {actual}"))
            })?;
            bindings.set(id, value);
        }
        let mut binder = ProgramResolver {
            program: self,
            graph: &self.graph,
            bindings,
            purpose,
            inner_offsets: HashMap::new(),
        };
        binder.place_inner_values()?;
        let steps = self.steps.iter().enumerate();
        let mut steps = steps.map(|(i, s)| binder.resolve_step(i, s)).collect::<Result<Vec<_>, _>>()?;
        let outputs = binder.resolve_outputs()?;
        mark_slab_steps(&mut steps, &outputs);
        Ok(ResolvedProgram {
            bucket: self.bucket,
            rank: self.rank,
            program: 0,
            inputs: binder.resolve_inputs()?,
            outputs,
            ordinary_bytes: self.arenas.ordinary as usize,
            symmetric_bytes: self.arenas.symmetric as usize,
            constants: self.constants.clone(),
            steps,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResolvePurpose {
    Run,
    Size,
}

struct ProgramResolver<'a> {
    program: &'a PreparedBucket,
    graph: &'a Graph,
    bindings: SymbolBindings,
    purpose: ResolvePurpose,
    /// The start of each inner value within its dispatch's memory.
    inner_offsets: HashMap<ValueId, usize>,
}

impl ProgramResolver<'_> {
    fn invalid_value(&self, value: ValueId, message: impl std::fmt::Display) -> RunError {
        RunError::Defect(format!("the plan cannot run: %{}: {message}", self.graph.value_name(value)))
    }

    /// Places the inner values of each dispatch one after another.
    fn place_inner_values(&mut self) -> Result<()> {
        let mut offsets = HashMap::new();
        for dispatch in &self.graph.dispatches {
            let mut offset = 0usize;
            for &v in dispatch.nodes().flat_map(|n| &self.graph.nodes[n].outputs) {
                let placement = self.program.placements[v].as_ref();
                if placement.is_some_and(|p| p.space == MemorySpace::Inner) {
                    offsets.insert(v, offset);
                    offset = offset.saturating_add(self.contiguous_bytes(v)?.next_multiple_of(INNER_ALIGN));
                }
            }
        }
        self.inner_offsets = offsets;
        Ok(())
    }

    fn eval_dim(&self, value: ValueId, dim: &Dim) -> Result<i64> {
        dim.eval(&self.bindings).ok_or_else(|| {
            self.invalid_value(value, format!("{} has no value", dim.display(&self.graph.symbols)))
        })
    }

    fn eval_size(&self, value: ValueId, dim: &Dim) -> Result<usize> {
        let n = self.eval_dim(value, dim)?;
        usize::try_from(n)
            .map_err(|_| self.invalid_value(value, format!("{} is {n}", dim.display(&self.graph.symbols))))
    }

    fn eval_shape(&self, value: ValueId) -> Result<Box<[usize]>> {
        self.graph.ty(value).shape.iter().map(|d| self.eval_size(value, d)).collect()
    }

    /// The bytes of a value stored contiguously.
    fn contiguous_bytes(&self, value: ValueId) -> Result<usize> {
        let dtype = self.graph.ty(value).dtype;
        let product = self.eval_shape(value)?.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d));
        product
            .filter(|&n| isize::try_from(n).is_ok())
            .ok_or_else(|| self.invalid_value(value, "its size overflows"))
    }

    /// The placement of a base, its offset from the start of its memory space without the part that depends
    /// on the rank, and this part's stride.
    fn locate_base(&self, base: ValueId) -> Result<(&BasePlacement, usize, usize)> {
        let placement = self.program.placements[base].as_ref();
        let placement = placement.ok_or_else(|| self.invalid_value(base, "it has no placement"))?;
        if placement.space == MemorySpace::Inner {
            return Ok((placement, self.inner_offsets.get(&base).copied().unwrap_or(0), 0));
        }
        let offset = self.eval_size(base, &placement.offset)?;
        let by_rank = match &placement.by_rank {
            Some(by_rank) => self.eval_size(base, &by_rank.stride)?,
            None => 0,
        };
        let number = placement.cell_number(self.program.rank);
        let bytes = self.contiguous_bytes(base)?;
        let inner = by_rank.checked_mul(number).and_then(|r| r.checked_add(offset));
        let end = inner.and_then(|i| i.checked_add(bytes));
        let Some((inner, end)) = inner.zip(end) else {
            return Err(self.invalid_value(base, "its offset overflows"));
        };
        let room = match (placement.capacity, placement.space) {
            (Some(room), _) => room,
            (None, MemorySpace::Output(k)) => self.contiguous_bytes(self.graph.outputs[k].value)?,
            (None, MemorySpace::Input(i)) => {
                self.contiguous_bytes(self.graph.inputs[InputId::new(i)].value)?
            }
            (None, _) => 0,
        };
        if end > room {
            return Err(
                self.invalid_value(base, format!("{bytes} bytes at {inner} exceed memory of {room} bytes"))
            );
        }
        let size = self.graph.ty(base).dtype.size();
        if !(placement.start + inner).is_multiple_of(size) {
            return Err(self.invalid_value(
                base,
                format!("offset {} is not a multiple of {size}", placement.start + inner),
            ));
        }
        Ok((placement, placement.start + offset, by_rank))
    }

    /// The location of a value; fails if the value does not lie within its base.
    fn locate_value(&self, value: ValueId) -> Result<LocatedTensor> {
        let layout = &self.program.layouts[value];
        let (placement, offset, by_rank) = self.locate_base(layout.base)?;
        let number = placement.cell_number(self.program.rank);
        let shape = self.eval_shape(value)?;
        let dtype = self.graph.ty(value).dtype;
        let strides = layout.strides.iter().map(|s| self.eval_dim(value, s).map(|s| s as isize));
        let strides: Box<[isize]> = strides.collect::<Result<_, _>>()?;
        let mut first = self.eval_dim(value, &layout.offset)?;
        let elements = (self.contiguous_bytes(layout.base)? / dtype.size()) as i64;
        if shape.contains(&0) {
            first = 0;
        } else {
            let is_inside = [1, -1].into_iter().all(|sign| {
                let mut steps = shape.iter().zip(&strides).filter(|(_, s)| (**s as i64).signum() == sign);
                let reached: Option<i64> = steps.try_fold(first, |last, (&n, &s)| {
                    last.checked_add((n as i64 - 1).checked_mul(s as i64)?)
                });
                reached.is_some_and(|element| (0..elements).contains(&element))
            });
            if !is_inside && self.purpose == ResolvePurpose::Size {
                first = 0;
            } else if !is_inside {
                let base = self.graph.value_name(layout.base);
                return Err(self
                    .invalid_value(value, format!("it reaches beyond the {elements} elements of %{base}")));
            }
        }
        let offset = offset + by_rank * number + first as usize * dtype.size();
        Ok(LocatedTensor { space: placement.space, offset, by_rank, dtype, shape, strides })
    }

    fn locate_values(&self, values: &[ValueId]) -> Result<Vec<LocatedTensor>> {
        values.iter().map(|&v| self.locate_value(v)).collect()
    }

    /// The location of this rank's piece of a value along an axis.
    fn locate_shard(&self, value: ValueId, axis: usize, group: GroupId) -> Result<LocatedTensor> {
        let mut piece = self.locate_value(value)?;
        let outside = || self.invalid_value(value, "this rank has no piece of it");
        let ranks = self.graph.group_size(group).filter(|&n| n > 0).ok_or_else(outside)? as usize;
        let numbers = self.graph.ranks_within_cells(group).ok_or_else(outside)?;
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

    fn resolve_step(&self, index: usize, step: &PreparedStep) -> Result<ExecutableStep> {
        let node = &self.graph.nodes[step.node];
        let name = self.graph.node_name(step.node).to_string();
        let lane = step.lane;
        let waits = step.waits.clone();
        if let Some(dispatch) = step.dispatch {
            let work = StepWork::Dispatch(self.resolve_dispatch(step, dispatch)?);
            let op_name = format!("dispatch {}", dispatch.form);
            return Ok(ExecutableStep {
                index,
                lane,
                waits,
                node: name,
                op_name,
                joins_previous: false,
                work,
            });
        }
        let work = match (&node.op, &step.custom) {
            (Op::Custom(id), Some(kernel)) => StepWork::Custom {
                name: self.graph.customs[*id].name.clone(),
                kernel: kernel.clone(),
                operands: self.locate_values(&node.inputs)?,
                results: self.locate_values(&node.outputs)?,
                peers: self.resolve_peers(step.node, *id)?,
            },
            _ => self.resolve_work(step, step.node)?,
        };
        Ok(ExecutableStep {
            index,
            lane,
            waits,
            node: name,
            joins_previous: false,
            op_name: op_display_name(self.graph, &node.op),
            work,
        })
    }

    fn resolve_work(&self, step: &PreparedStep, id: NodeId) -> Result<StepWork> {
        let node = &self.graph.nodes[id];
        Ok(match &node.op {
            Op::Collective(c) => StepWork::Collective(self.resolve_collective(step, id, c)?),
            Op::Shard { axis, group } => StepWork::Kernel {
                op: Op::Copy,
                operands: vec![self.locate_shard(node.inputs[0], *axis, *group)?],
                results: self.locate_values(&node.outputs)?,
            },
            Op::Route(route) => StepWork::Kernel {
                op: Op::Route(self.resolve_route(node.outputs[0], route)?),
                operands: self.locate_values(&node.inputs)?,
                results: self.locate_values(&node.outputs)?,
            },
            op => StepWork::Kernel {
                op: self.resolve_op(id, op)?,
                operands: self.locate_values(&node.inputs)?,
                results: self.locate_values(&node.outputs)?,
            },
        })
    }

    /// The routing with this rank's position in its cell.
    fn resolve_route(&self, result: ValueId, route: &Route) -> Result<Route> {
        let Some(group) = route.group() else { return Ok(route.clone()) };
        let outside = || self.invalid_value(result, "this rank is not in its group");
        let cells = self.graph.cells(group).ok_or_else(outside)?;
        let me = self.program.rank;
        let cell = cells.into_iter().find(|cell| cell.contains(&me)).ok_or_else(outside)?;
        let position = cell.iter().position(|&rank| rank == me).ok_or_else(outside)?;
        let rank = u32::try_from(position).map_err(|_| outside())?;
        Ok(Route { scope: RouteScope::Position { rank, cell: cell.into() }, ..route.clone() })
    }

    fn resolve_dispatch(&self, step: &PreparedStep, dispatch: Dispatch) -> Result<ResolvedDispatch> {
        let mut members = Vec::new();
        let mut inner = 0;
        for id in dispatch.nodes() {
            let node = &self.graph.nodes[id];
            for v in &node.outputs {
                if let Some(offset) = self.inner_offsets.get(v) {
                    inner = inner.max(offset.saturating_add(self.contiguous_bytes(*v)?));
                }
            }
            let is_view = node.outputs.iter().all(|&v| self.program.layouts[v].base != v);
            if !is_view {
                members.push(ResolvedMember {
                    node: self.graph.node_name(id).to_string(),
                    op_name: op_display_name(self.graph, &node.op),
                    work: self.resolve_work(step, id)?,
                });
            }
        }
        Ok(ResolvedDispatch { form: dispatch.form, members, inner_bytes: inner })
    }

    /// The op with the dims of its attributes replaced by their values.
    fn resolve_op(&self, node: NodeId, op: &Op) -> Result<Op> {
        let result = self.graph.nodes[node].outputs[0];
        let mut op = op.clone();
        for dim in op_dims_mut(&mut op) {
            *dim = Dim::from(self.eval_dim(result, dim)?);
        }
        Ok(op)
    }

    fn resolve_collective(
        &self,
        step: &PreparedStep,
        id: NodeId,
        c: &Collective,
    ) -> Result<ResolvedCollective> {
        let node = &self.graph.nodes[id];
        let x = node.inputs[0];
        let y = node.outputs[0];
        let chosen = c.variant.and_then(|variant| Some((variant, variant.contract(&c.kind)?)));
        let Some((variant, contract)) = chosen else {
            return Err(self.invalid_value(y, "it names no variant that runs it"));
        };
        let cells = self.graph.cells(c.group).unwrap_or_default();
        let cell = cells.iter().find(|cell| cell.contains(&self.program.rank)).cloned();
        let cell = cell.ok_or_else(|| self.invalid_value(y, "this rank is not in its group"))?;
        let operand = self.resolve_region(x, contract.peer_access.reads_operand())?;
        let is_written = |result: usize| {
            let shared = c.kind.shared_results(node.outputs.len());
            contract.peer_access.writes_result() && shared.contains(&result)
        };
        let result = self.resolve_region(y, is_written(0))?;
        let splits = match (node.inputs.get(1), node.outputs.get(1)) {
            (Some(&sizes), Some(&received)) if c.kind.has_device_splits() => {
                Some((self.resolve_region(sizes, false)?, self.resolve_region(received, false)?))
            }
            _ => None,
        };
        let landing = match self.program.landing_offsets[c.group] {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        };
        let shape = self.eval_shape(x)?;
        Ok(ResolvedCollective {
            kind: c.kind.clone(),
            variant,
            exit: step.exit,
            cell,
            group: c.group.index(),
            dtype: self.graph.ty(x).dtype,
            elements: shape.iter().product(),
            row_elements: shape.iter().skip(1).product(),
            operand,
            result,
            blocks: step.blocks,
            landing: landing.filter(|_| variant == CollectiveVariant::Ll),
            splits,
            rows: self.resolve_row_tables(node, c, is_written(1))?,
        })
    }

    /// The tables of an exchange of rows; `None` for other collectives.
    fn resolve_row_tables(
        &self,
        node: &Node,
        c: &Collective,
        peers_write_sums: bool,
    ) -> Result<Option<RowTables<ResolvedRegion>>> {
        let result = node.outputs[0];
        let table = |position: usize| {
            let missing = || self.invalid_value(result, "an operand is missing");
            node.inputs.get(position).copied().ok_or_else(missing)
        };
        let extent = |value: ValueId, axis: usize| {
            let missing = || self.invalid_value(value, "it lacks an axis");
            self.eval_shape(value)?.get(axis).copied().ok_or_else(missing)
        };
        let weights = || match node.inputs.get(2) {
            Some(&weights) => Ok(Some((self.resolve_region(weights, false)?, self.graph.ty(weights).dtype))),
            None => Ok(None),
        };
        let x = node.inputs[0];
        Ok(Some(match &c.kind {
            CollectiveKind::DispatchRows => RowTables {
                tables: RowTableKind::Dispatch {
                    slots: self.resolve_region(table(1)?, false)?,
                    all_rows: self.resolve_region(table(2)?, false)?,
                },
                tokens: extent(x, 0)?,
                slots: extent(table(2)?, 1)?,
                capacity: extent(table(1)?, 0)?,
            },
            CollectiveKind::CombineRows => RowTables {
                tables: RowTableKind::Combine {
                    rows: self.resolve_region(table(1)?, false)?,
                    weights: weights()?,
                },
                tokens: extent(table(1)?, 0)?,
                slots: extent(table(1)?, 1)?,
                capacity: extent(x, 0)?,
            },
            CollectiveKind::ReduceRows => {
                let missing = || self.invalid_value(result, "a result is missing");
                let &sums = node.outputs.get(1).ok_or_else(missing)?;
                RowTables {
                    tables: RowTableKind::Reduce {
                        all_rows: self.resolve_region(table(1)?, false)?,
                        all_weights: weights()?,
                        sums: self.resolve_region(sums, peers_write_sums)?,
                    },
                    tokens: extent(result, 0)?,
                    slots: extent(table(1)?, 1)?,
                    capacity: extent(x, 0)?,
                }
            }
            _ => return Ok(None),
        }))
    }

    /// The region of a collective's operand or result. `peers` says whether peers access it.
    fn resolve_region(&self, value: ValueId, peers: bool) -> Result<ResolvedRegion> {
        let located = self.locate_value(value)?;
        if !is_dense(&located.shape, &located.strides) {
            return Err(self.invalid_value(value, "a collective needs its elements in one dense run"));
        }
        if peers && located.space != MemorySpace::Symmetric {
            return Err(self.invalid_value(value, "peers access it, but it is not in the symmetric arena"));
        }
        Ok(ResolvedRegion {
            space: located.space,
            offset: located.offset,
            by_rank: self.offsets_by_rank(value, &located)?,
        })
    }

    /// The start of a value on every rank of the run; `None` if it is the same on all.
    fn offsets_by_rank(&self, value: ValueId, at: &LocatedTensor) -> Result<Option<Arc<[usize]>>> {
        let (placement, _, stride) = self.locate_base(self.program.layouts[value].base)?;
        let Some(by_rank) = &placement.by_rank else { return Ok(None) };
        let on_first = at.offset - stride * placement.cell_number(self.program.rank);
        let numbers = by_rank.numbers.iter();
        let offsets: Option<Arc<[usize]>> =
            numbers.map(|&number| stride.checked_mul(number)?.checked_add(on_first)).collect();
        offsets.map(Some).ok_or_else(|| self.invalid_value(value, "its offset overflows on another rank"))
    }

    fn resolve_inputs(&self) -> Result<Vec<ResolvedInput>> {
        let mut out = Vec::with_capacity(self.graph.inputs.len());
        let mut direct = vec![false; self.graph.inputs.len()];
        for placement in self.program.placements.values().flatten() {
            if let MemorySpace::Input(i) = placement.space {
                direct[i] = true;
            }
        }
        for (index, input) in self.graph.inputs.values().enumerate() {
            let name = self.graph.value_name(input.value).to_string();
            let dtype = self.graph.ty(input.value).dtype;
            let bytes = self.contiguous_bytes(input.value)?;
            // Steps write an input that an output replaces in place.
            if matches!(&self.program.placements[input.value], Some(p) if matches!(p.space, MemorySpace::Output(_)))
            {
                direct[index] = true;
            }
            // An input that nothing uses may have no placement.
            let fixed = match &self.program.placements[input.value] {
                None => None,
                Some(_) => {
                    let (placement, offset, by_rank) = self.locate_base(input.value)?;
                    let number = placement.cell_number(self.program.rank);
                    (placement.space == MemorySpace::Symmetric).then_some(offset + by_rank * number)
                }
            };
            out.push(ResolvedInput { name, kind: input.kind, dtype, bytes, fixed, direct: direct[index] });
        }
        Ok(out)
    }

    fn resolve_outputs(&self) -> Result<Vec<ResolvedOutput>> {
        let mut mutates = vec![None; self.graph.outputs.len()];
        for (output, input) in self.program.mutated_inputs() {
            mutates[output] = Some(input.index());
        }
        let outputs = self.graph.outputs.iter().zip(mutates).enumerate();
        outputs
            .map(|(index, (output, mutates))| {
                let located = self.locate_value(output.value)?;
                if located.space != MemorySpace::Output(index) {
                    return Err(self.invalid_value(
                        output.value,
                        format!("it is output {index}, but its memory is not that of the output"),
                    ));
                }
                let name = self.graph.value_name(output.value).to_string();
                let dtype = located.dtype;
                let in_place = mutates.is_some_and(|i| {
                    let placement = &self.program.placements[self.graph.inputs[InputId::new(i)].value];
                    placement.as_ref().is_some_and(|p| p.space == MemorySpace::Output(index))
                });
                Ok(ResolvedOutput {
                    name,
                    dtype,
                    bytes: self.contiguous_bytes(output.value)?,
                    mutates,
                    in_place,
                })
            })
            .collect()
    }

    /// The peers of a custom op; `None` for an op without a group.
    fn resolve_peers(&self, id: NodeId, custom: CustomId) -> Result<Option<ResolvedPeers>> {
        let node = &self.graph.nodes[id];
        let op = &self.graph.customs[custom];
        let Some(group) = op.group else { return Ok(None) };
        let cells = self.graph.cells(group).unwrap_or_default();
        let cell = cells.iter().find(|cell| cell.contains(&self.program.rank)).cloned();
        let cell =
            cell.ok_or_else(|| self.invalid_value(node.outputs[0], "this rank is not in its group"))?;
        let number = cell.iter().position(|&r| r == self.program.rank).unwrap_or(0);
        let operands = self.resolve_peer_regions(&node.inputs, &op.symmetric_operands)?;
        let results = self.resolve_peer_regions(&node.outputs, &op.symmetric_results)?;
        Ok(Some(ResolvedPeers { group: group.index(), cell, number, operands, results }))
    }

    /// The regions of the values at `positions`; `None` for the others.
    fn resolve_peer_regions(
        &self,
        values: &[ValueId],
        positions: &[usize],
    ) -> Result<Vec<Option<PeerRegion>>> {
        let mut regions = Vec::with_capacity(values.len());
        for (i, &value) in values.iter().enumerate() {
            let is_symmetric = positions.contains(&i);
            regions.push(if is_symmetric { Some(self.resolve_peer_region(value)?) } else { None });
        }
        Ok(regions)
    }

    fn resolve_peer_region(&self, value: ValueId) -> Result<PeerRegion> {
        let located = self.locate_value(value)?;
        if located.space != MemorySpace::Symmetric {
            return Err(self.invalid_value(value, "peers access it, but it is not in the symmetric arena"));
        }
        let base = self.program.layouts[value].base;
        let located_base = self.locate_value(base)?;
        let first = located.offset - located_base.offset;
        let bytes = self.contiguous_bytes(base)?;
        Ok(PeerRegion {
            offset: located_base.offset,
            by_rank: self.offsets_by_rank(base, &located_base)?,
            bytes,
            base_offset: first,
        })
    }
}
