//! Arguments of a call that may share memory with an argument that the call changes in place.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::exchange::LocationReader;

/// Finds arguments whose memory ranges intersect, one of which a call changes in place. A compiled function calls this once per call,
/// so nothing is compared as long as all ranges are those of the last call.
#[pyclass(frozen, module = "symmc._symmc")]
pub struct OverlapFinder {
    /// The numbers of the arguments that are tensors, and whether a call changes them.
    tensors: Vec<(usize, bool)>,
    state: Mutex<FinderState>,
}

#[derive(Default)]
struct FinderState {
    reader: LocationReader,
    /// The range of each tensor in the last call.
    ranges: Vec<TensorRange>,
    /// The pairs that were found then.
    pairs: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct TensorRange {
    start: u64,
    end: u64,
}

#[pymethods]
impl OverlapFinder {
    /// tensors: the numbers of the arguments that are tensors. changed: those of them that a call changes in place.
    #[new]
    fn new(tensors: Vec<usize>, changed: Vec<usize>) -> OverlapFinder {
        let tensors = tensors.into_iter().map(|number| (number, changed.contains(&number))).collect();
        OverlapFinder { tensors, state: Mutex::default() }
    }

    /// Pairs of arguments in one memory range, by their numbers: the first is changed in place. Interleaved tensors share a range, but
    /// no element.
    fn find(&self, arguments: &Bound<'_, PyList>) -> PyResult<Vec<(usize, usize)>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let mut is_known = state.ranges.len() == self.tensors.len();
        state.ranges.resize(self.tensors.len(), TensorRange { start: 0, end: 0 });
        for ((number, _), range) in self.tensors.iter().zip(&mut state.ranges) {
            let argument = arguments.get_item(*number)?;
            // A call may leave out a tensor that its graph does not read.
            let current = if argument.is_none() {
                TensorRange { start: 0, end: 0 }
            } else {
                let location = state.reader.locate_tensor(&argument)?;
                TensorRange { start: location.address, end: location.address.saturating_add(location.span) }
            };
            is_known &= *range == current;
            *range = current;
        }
        if !is_known {
            state.pairs = self.intersecting_pairs(&state.ranges);
        }
        Ok(state.pairs.clone())
    }
}

impl OverlapFinder {
    fn intersecting_pairs(&self, ranges: &[TensorRange]) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..ranges.len()).filter(|&i| ranges[i].start < ranges[i].end).collect();
        order.sort_unstable_by_key(|&i| ranges[i].start);
        let mut pairs = Vec::new();
        // Only a range that begins before the end of another one intersects it.
        for (position, &one) in order.iter().enumerate() {
            let later =
                order[position + 1..].iter().take_while(|&&other| ranges[other].start < ranges[one].end);
            for &other in later {
                let [first, second] = [self.tensors[one], self.tensors[other]];
                match (first.1, second.1) {
                    (true, _) => pairs.push((first.0, second.0)),
                    (false, true) => pairs.push((second.0, first.0)),
                    (false, false) => {}
                }
            }
        }
        pairs.sort_unstable();
        pairs
    }
}
