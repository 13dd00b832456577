//! A program under one binding of its symbols: every extent, stride and offset is a number. Only the start
//! addresses of the arenas and of the caller's memory are left for the run.

use std::sync::Arc;

use symmc_ir::{CollectiveKind, CollectiveVariant, DType, DispatchForm, InputKind, Op};
use symmc_plan::{ExitBarrier, Lane};

use super::bucket::{AlignedBytes, CustomKernel, MemorySpace};
use crate::call::{PeerMemory, RowTables, rank_offset};
use crate::error::Result;

/// A program resolved for one binding, ready to run.
#[derive(Debug)]
pub struct ResolvedProgram {
    pub(super) bucket: usize,
    pub(super) rank: u32,
    /// The number of the program in its session.
    pub program: usize,
    pub steps: Vec<ExecutableStep>,
    pub inputs: Vec<ResolvedInput>,
    pub outputs: Vec<ResolvedOutput>,
    /// Bytes of the ordinary arena.
    pub ordinary_bytes: usize,
    /// Bytes of the symmetric arena.
    pub symmetric_bytes: usize,
    pub(super) constants: Arc<[Option<AlignedBytes>]>,
}

impl ResolvedProgram {
    pub fn bucket(&self) -> usize {
        self.bucket
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The data of a constant input, which the program contains.
    pub fn constant_data(&self, input: usize) -> Option<&[u8]> {
        self.constants.get(input)?.as_ref().map(AlignedBytes::bytes)
    }

    /// Whether an output replaces the data of an input.
    pub fn is_replaced(&self, input: usize) -> bool {
        self.outputs.iter().any(|output| output.mutates == Some(input))
    }
}

#[derive(Clone, Debug)]
pub struct LocatedTensor {
    /// The memory in which `offset` is counted.
    pub space: MemorySpace,
    /// Bytes from the start of the memory.
    pub offset: usize,
    /// Bytes by which the offset grows from each rank of a cell to the next; 0 if it is the same on all.
    pub by_rank: usize,
    pub dtype: DType,
    pub shape: Box<[usize]>,
    /// The distance of neighbours along each axis, in elements.
    pub strides: Box<[isize]>,
}

impl LocatedTensor {
    /// The same elements with axis `i` as axis `perm[i]`; `None` if `perm` is not a permutation of the axes.
    pub fn unpermuted(&self, perm: &[usize]) -> Option<LocatedTensor> {
        let mut is_used = vec![false; self.shape.len()];
        let mut out = self.clone();
        for (i, &axis) in perm.iter().enumerate() {
            let &n = self.shape.get(i)?;
            let &stride = self.strides.get(i)?;
            *out.shape.get_mut(axis)? = n;
            *out.strides.get_mut(axis)? = stride;
            *is_used.get_mut(axis)? = true;
        }
        is_used.into_iter().all(|s| s).then_some(out)
    }
}

/// An input as its caller provides it, and its location in the plan.
#[derive(Clone, Debug)]
pub struct ResolvedInput {
    pub name: String,
    pub kind: InputKind,
    pub dtype: DType,
    pub bytes: usize,
    /// The offset in the symmetric arena of an input that is held in fixed memory.
    pub fixed: Option<usize>,
    /// Whether a step or an output reads the caller's memory during the run.
    pub direct: bool,
}

#[derive(Clone, Debug)]
pub struct ResolvedOutput {
    pub name: String,
    pub dtype: DType,
    pub bytes: usize,
    /// The input that it is written back to at the end of the run.
    pub mutates: Option<usize>,
    /// Whether that input lies in the output's memory: the steps then use the memory of the input for both.
    pub in_place: bool,
}

impl ResolvedOutput {
    /// The input in whose memory the steps write this output, if there is one.
    pub fn input_in_place(&self) -> Option<usize> {
        self.mutates.filter(|_| self.in_place)
    }
}

#[derive(Debug)]
pub struct ExecutableStep {
    /// Its number in the list.
    pub index: usize,
    pub lane: Lane,
    /// Earlier steps of other lanes that must have completed before it starts.
    pub waits: Vec<usize>,
    pub node: String,
    /// Its op, with the name of a custom one.
    pub op_name: String,
    /// Whether it runs in slabs together with the step before it, on one thread.
    pub joins_previous: bool,
    pub work: StepWork,
}

#[derive(Debug)]
pub enum StepWork {
    /// An op of the closed set. The dims of its attributes are numbers.
    Kernel {
        op: Op,
        operands: Vec<LocatedTensor>,
        results: Vec<LocatedTensor>,
    },
    Custom {
        name: String,
        kernel: CustomKernel,
        operands: Vec<LocatedTensor>,
        results: Vec<LocatedTensor>,
        peers: Option<ResolvedPeers>,
    },
    Collective(ResolvedCollective),
    Dispatch(ResolvedDispatch),
}

impl StepWork {
    /// The work node by node: the work itself, or that of the members of a dispatch.
    pub fn node_work(&self) -> impl Iterator<Item = &StepWork> {
        let members = if let StepWork::Dispatch(dispatch) = self { &dispatch.members[..] } else { &[] };
        let this = (!matches!(self, StepWork::Dispatch(_))).then_some(self);
        this.into_iter().chain(members.iter().map(|m| &m.work))
    }
}

/// Nodes that run as one step, with everything resolved. Values that only they use lie in
/// [`MemorySpace::Inner`].
#[derive(Debug)]
pub struct ResolvedDispatch {
    pub form: DispatchForm,
    /// The nodes without the views, in order.
    pub members: Vec<ResolvedMember>,
    /// The bytes of their inner values, if each has separate memory.
    pub inner_bytes: usize,
}

#[derive(Debug)]
pub struct ResolvedMember {
    pub node: String,
    pub op_name: String,
    /// The work of the node; neither a custom op nor a dispatch.
    pub work: StepWork,
}

/// A collective with everything resolved except addresses.
#[derive(Clone, Debug)]
pub struct ResolvedCollective {
    pub kind: CollectiveKind,
    pub variant: CollectiveVariant,
    pub exit: Option<ExitBarrier>,
    pub cell: Vec<u32>,
    pub group: usize,
    pub dtype: DType,
    /// The number of elements of the operand.
    pub elements: usize,
    /// The number of elements of one row of the operand's leading axis.
    pub row_elements: usize,
    pub operand: ResolvedRegion,
    pub result: ResolvedRegion,
    /// The maximum number of blocks of its kernel on GPUs, equal on all ranks, if the plan sets it.
    pub blocks: Option<u32>,
    /// The offsets of the two landing zones in the symmetric arena, for `ll`.
    pub landing: Option<[usize; 2]>,
    /// The split sizes and the received sizes of an all-to-all with sizes on the device.
    pub splits: Option<(ResolvedRegion, ResolvedRegion)>,
    /// The tables of an exchange of rows.
    pub rows: Option<RowTables<ResolvedRegion>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedRegion {
    pub space: MemorySpace,
    /// Bytes from the start of the memory space on this rank.
    pub offset: usize,
    /// The start on each rank of the run, if the ranks differ: the bytes may be a piece of what another group
    /// gathers. `None` if the start is `offset` on all ranks.
    pub by_rank: Option<Arc<[usize]>>,
}

impl ResolvedRegion {
    /// A region that starts at `offset` on every rank.
    pub fn uniform(space: MemorySpace, offset: usize) -> Self {
        ResolvedRegion { space, offset, by_rank: None }
    }

    /// Bytes from the start of the memory space on a rank of the run.
    pub fn offset_on_rank(&self, rank: u32) -> usize {
        rank_offset(self.offset, self.by_rank.as_deref(), rank)
    }
}

#[derive(Clone, Debug)]
pub struct ResolvedPeers {
    pub cell: Vec<u32>,
    pub number: usize,
    pub group: usize,
    /// The location of each operand in the arenas of the cell; `None` for one that peers do not read.
    pub operands: Vec<Option<PeerRegion>>,
    /// The location of each result in the arenas of the cell; `None` for one that peers do not write.
    pub results: Vec<Option<PeerRegion>>,
}

/// A value in the symmetric arenas of a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerRegion {
    /// Bytes from the start of the arena to its base, on all ranks if `by_rank` is `None`.
    pub offset: usize,
    /// The start of its base on each rank of the run, if the ranks differ.
    pub by_rank: Option<Arc<[usize]>>,
    /// The size of its base.
    pub bytes: usize,
    /// Bytes from the start of its base to its first element.
    pub base_offset: usize,
}

impl PeerRegion {
    pub(super) fn peer_address(
        &self,
        memory: &dyn PeerMemory,
        cell: &[u32],
        number: usize,
    ) -> Result<*mut u8> {
        let offset = rank_offset(self.offset, self.by_rank.as_deref(), cell[number]);
        let base = memory.peer_address(number, offset, self.bytes)?;
        Ok(base.wrapping_add(self.base_offset))
    }
}
