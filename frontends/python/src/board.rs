//! Boards: a few numbers of each rank for all others, round by round.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use symmc::unstable::control;

use crate::argument::to_timeout;
use crate::error::{clean_reason, input_error, to_exception};
use crate::group::Group;
use crate::interrupt::{POLL_INTERVAL, check_wait, run_interruptible};
use crate::process_bound::ProcessBound;

/// A board on which each rank publishes the same number of integers, round by round. All ranks of the group open it together, and
/// take part in the same rounds.
#[pyclass(frozen, module = "symmc._symmc")]
pub struct Board {
    rounds: ProcessBound<Mutex<Option<control::Board>>>,
    /// Used while a round waits.
    notices: ProcessBound<control::Notices>,
}

impl Board {
    fn with_board<T>(&self, work: impl FnOnce(&mut control::Board) -> PyResult<T>) -> PyResult<T> {
        let mut guard = self.rounds.try_lock("board")?;
        work(guard.as_mut().ok_or_else(|| input_error("the board is closed"))?)
    }
}

#[pymethods]
impl Board {
    /// Opens a board of `words` integers for each rank. Returns when all ranks of the group have opened theirs. timeout: the longest
    /// wait for other ranks, in seconds.
    #[new]
    fn new(py: Python<'_>, group: &Bound<'_, PyAny>, words: usize, timeout: f64) -> PyResult<Board> {
        let limit = to_timeout(timeout)?;
        let group = Group::resolve_group(py, Some(group), timeout)?;
        let board = run_interruptible(py, "open", move || {
            control::Board::open(&group, words, limit).map_err(symmc::Error::from)
        })?;
        let notices = board.notices().map_err(|error| to_exception(error.into()))?;
        Ok(Board { rounds: ProcessBound::new(Mutex::new(Some(board))), notices: ProcessBound::new(notices) })
    }

    /// Notifies the other ranks in the call of this number that this rank failed in it. culprit: the rank at fault.
    fn leave_notice(&self, call: u64, culprit: u32, text: &str) -> PyResult<()> {
        self.notices.get("board")?.leave(call, &control::Notice { culprit, text: clean_reason(text) });
        Ok(())
    }

    /// The rank at fault and the reason, if another rank failed in one of the calls from `first` to `last`, by default to any number.
    #[pyo3(signature = (first, last=u64::MAX))]
    fn find_notice(&self, first: u64, last: u64) -> PyResult<Option<(u32, String)>> {
        let notice = self.notices.get("board")?.find(first..=last);
        Ok(notice.map(|notice| (notice.culprit, notice.text)))
    }

    /// Whether an error has ended the board on all ranks, and this rank has got it.
    #[getter]
    fn has_ended(&self) -> PyResult<bool> {
        self.with_board(|board| Ok(board.has_ended()))
    }

    /// The number of the last round that this rank has begun, from 1; 0 before the first.
    #[getter]
    fn round(&self) -> PyResult<u64> {
        self.with_board(|board| Ok(board.round()))
    }

    /// Publishes the integers of this rank in the round of this number, and returns those of all ranks: a tuple for each. After an
    /// interrupt the same call continues the round. The number is that of the last round or the next one.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        round: u64,
        words: Vec<i64>,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let words: Vec<u64> = words.into_iter().map(i64::cast_unsigned).collect();
        self.with_board(|board| {
            loop {
                let received = py.detach(|| {
                    let received = board.exchange(round, &words, POLL_INTERVAL);
                    received.map(|received| received.map(<[u64]>::to_vec)).map_err(symmc::Error::from)
                });
                match received {
                    Ok(Some(received)) => {
                        let ranks = received.chunks(words.len().max(1));
                        return ranks
                            .map(|own| PyTuple::new(py, own.iter().map(|w| w.cast_signed())))
                            .collect();
                    }
                    // Ctrl-C interrupts all ranks of a terminal. It explains more than the error that a peer has left.
                    Ok(None) => check_wait(py)?,
                    Err(error) => {
                        py.check_signals()?;
                        return Err(to_exception(error));
                    }
                }
            }
        })
    }
}

impl Drop for Board {
    /// Closes the board with the GIL released: rank 0 waits until the others have ended the rounds that it has ended.
    fn drop(&mut self) {
        let Ok(inner) = self.rounds.get("board") else { return };
        let board = inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        Python::attach(|py| py.detach(|| drop(board)));
    }
}
