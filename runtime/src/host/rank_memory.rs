//! The memory of a rank: what process ranks, thread ranks and joined ranks have in common.

use std::sync::Arc;

use symmc_ir::Tensor;
use symmc_support::Part;

use super::comm::Comm;
use super::job::{EngineChoice, Needs, Slot};
use super::memory::Segment;
use crate::call::{CollectiveCall, PeerCall, PeerMemory};
use crate::error::RunError;
use crate::exec::{Communicator, InputSource, RankMemory, Span};

impl Communicator for Comm {
    fn begin(&self, step: usize) {
        self.begin_step(step);
    }

    unsafe fn collective(&self, call: &CollectiveCall<'_>) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        unsafe { Comm::collective(self, call) }
    }

    unsafe fn custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        unsafe { Comm::custom(self, call, kernel) }
    }

    fn abort(&self, error: &RunError) {
        if !error.is_consequence() {
            Comm::abort(self, error);
        }
    }
}

/// The start of each of these sizes when they lie one after another, aligned for every dtype, and the end.
pub(super) fn lay_out(sizes: impl Iterator<Item = usize>) -> Result<(Vec<usize>, usize), RunError> {
    let mut starts = Vec::new();
    let mut end = 0usize;
    for size in sizes {
        starts.push(end);
        let next = end.checked_add(size).and_then(|e| e.checked_next_multiple_of(64));
        end = next.ok_or_else(|| RunError::system("laying out tensors", "their size overflows"))?;
    }
    Ok((starts, end))
}

/// A tensor of this process that lies in a file.
#[derive(Debug)]
struct TensorPart(Arc<Tensor>);

impl InputSource for TensorPart {
    fn size(&self) -> usize {
        self.0.data().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), RunError> {
        self.0.read(at, into).map_err(|e| RunError::Invalid(format!("the inputs: {e}")))
    }
}

/// The memory of a rank whose inputs are tensors of this process.
pub(super) struct LocalMemory {
    ordinary: Segment,
    /// Outputs, then copies of inputs that are mutated or not aligned.
    io: Segment,
    outputs: Vec<Span>,
    inputs: Vec<Span>,
    sources: Vec<Option<Arc<dyn InputSource>>>,
}

impl LocalMemory {
    /// Memory for the outputs. `inputs` stay where they are, except for those that the run changes, whose elements are not
    /// aligned, or that lie in a file. The engine reads those in files itself, unless it is the host's.
    pub fn new(
        ordinary: u64,
        inputs: &[Arc<Tensor>],
        needs: &Needs,
        engine: &EngineChoice,
    ) -> Result<LocalMemory, RunError> {
        let Needs { outputs, mutated, .. } = needs;
        let aligned = |t: &Tensor| t.data().as_ptr().addr().is_multiple_of(t.dtype().size());
        let in_file = |t: &Tensor| t.part().is_some_and(Part::is_volatile);
        let is_read = |i: usize| !mutated[i] && in_file(&inputs[i]) && *engine != EngineChoice::Host;
        let copied = |i: usize| !is_read(i) && (mutated[i] || in_file(&inputs[i]) || !aligned(&inputs[i]));
        let copies: Vec<usize> = (0..inputs.len()).filter(|&i| copied(i)).collect();
        let sizes = outputs.iter().map(|o| o.bytes).chain(copies.iter().map(|&i| inputs[i].data().len()));
        let (starts, end) = lay_out(sizes)?;
        let io = Segment::private("the outputs", end)?;
        let at = |start: usize, len: usize| Span { ptr: io.as_ptr().wrapping_add(start), len };
        let output_spans = starts.iter().zip(outputs).map(|(&s, o)| at(s, o.bytes)).collect();
        let mut input_spans: Vec<Span> = inputs.iter().map(|t| Span::of_const(t.data())).collect();
        for (&i, &start) in copies.iter().zip(&starts[outputs.len()..]) {
            let span = at(start, inputs[i].data().len());
            // SAFETY: the span lies within the fresh segment, which nobody else has.
            let bytes = unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) };
            TensorPart(inputs[i].clone()).read(0, bytes)?;
            input_spans[i] = span;
        }
        let mut sources: Vec<Option<Arc<dyn InputSource>>> = vec![None; inputs.len()];
        for i in (0..inputs.len()).filter(|&i| is_read(i)) {
            sources[i] = Some(Arc::new(TensorPart(inputs[i].clone())));
            input_spans[i] = Span::NONE;
        }
        let ordinary = Segment::private("the ordinary arena", arena_size(ordinary)?)?;
        Ok(LocalMemory { ordinary, io, outputs: output_spans, inputs: input_spans, sources })
    }

    /// As the executor takes it, with the symmetric arena of `comm`.
    pub fn rank(&self, comm: &Comm) -> RankMemory {
        let arena = comm.arena();
        RankMemory {
            ordinary: Span { ptr: self.ordinary.as_ptr(), len: self.ordinary.len() },
            symmetric: Span { ptr: arena.as_ptr(), len: arena.len() },
            inputs: self.inputs.clone(),
            sources: self.sources.clone(),
            outputs: self.outputs.clone(),
        }
    }

    /// The outputs.
    pub fn outputs(&self, slots: &[Slot]) -> Result<Vec<Tensor>, RunError> {
        debug_assert!(self.outputs.iter().map(|s| s.len).sum::<usize>() <= self.io.len());
        // SAFETY: the spans lie within this rank's own segment, and its run has ended.
        let read = |(span, slot): (&Span, &Slot)| unsafe { read_tensor(span.ptr, slot) };
        self.outputs.iter().zip(slots).map(read).collect()
    }
}

/// The tensor of `slot` whose bytes lie at `from`.
///
/// # Safety
/// As many bytes as the slot says lie there, and nobody writes them meanwhile.
pub(super) unsafe fn read_tensor(from: *const u8, slot: &Slot) -> Result<Tensor, RunError> {
    let mut data = vec![0; slot.bytes];
    // SAFETY: by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), slot.bytes) };
    Tensor::new(slot.dtype, slot.shape.clone(), data)
        .ok_or_else(|| RunError::system("reading an output", "its size does not fit its shape"))
}

/// The size of an arena of a plan on this machine.
pub(super) fn arena_size(bytes: u64) -> Result<usize, RunError> {
    usize::try_from(bytes).map_err(|e| RunError::system(format!("an arena of {bytes} bytes"), e))
}
