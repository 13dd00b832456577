//! Groups: how ranks find each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyException, PyModuleNotFoundError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence};
use symmc::Bootstrap;
use symmc::unstable::runtime::RunError;

use crate::argument::to_integer;
use crate::error::{Error, clean_reason, input_error, to_exception};
use crate::process_bound::ProcessBound;

/// One rank's membership in a group of ranks of one machine. The ranks of a group open sessions together, in the same order.
#[pyclass(frozen, module = "symmc")]
pub struct Group {
    inner: ProcessBound<Arc<symmc::Group>>,
    /// Whether this rank has begun to open a session.
    is_used: AtomicBool,
}

impl Group {
    fn new(group: symmc::Group) -> Group {
        Group { inner: ProcessBound::new(Arc::new(group)), is_used: AtomicBool::new(false) }
    }

    /// The group of a `Group`, of a process group of PyTorch, or of the environment if nothing is given. `timeout` is the longest
    /// wait for other ranks in seconds, if the ranks of a process group have to exchange something first.
    pub fn resolve_group(
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<Arc<symmc::Group>> {
        let Some(given) = given else { return Group::from_env()?.shared_group() };
        if let Ok(group) = given.cast::<Group>() {
            return group.get().shared_group();
        }
        if let Ok(list) = given.cast::<PySequence>()
            && list.len()? > 0
            && list.get_item(0)?.is_instance_of::<Group>()
        {
            return Err(PyTypeError::new_err(format!(
                "group: expected the group of one rank, found a list of {}: give each of them to the session of its rank",
                list.len()?
            )));
        }
        let torch = py.import("symmc.torch").map_err(|error| {
            // Without PyTorch there are no process groups.
            if error.is_instance_of::<PyModuleNotFoundError>(py) {
                input_error(format!("group: expected a symmc.Group, found {given}"))
            } else {
                error
            }
        })?;
        let group = torch.call_method1("group_of", (given, timeout))?;
        group.cast::<Group>()?.get().shared_group()
    }

    fn shared_group(&self) -> PyResult<Arc<symmc::Group>> {
        self.is_used.store(true, Ordering::Relaxed);
        self.inner.get("group").cloned()
    }
}

/// A bootstrap by a Python function that gathers bytes from all ranks.
struct PythonBootstrap<'py> {
    all_gather: Bound<'py, PyAny>,
    reports_failures: bool,
    /// The exception that the function raised.
    raised: Option<PyErr>,
}

impl Bootstrap for PythonBootstrap<'_> {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mine = PyBytes::new(self.all_gather.py(), mine);
        let gathered = self.all_gather.call1((mine,)).map_err(|error| {
            let text = error.to_string();
            self.raised = Some(error);
            text
        })?;
        gathered.extract().map_err(|_| format!("all_gather: expected a list of bytes, found {gathered}"))
    }

    fn reports_failures(&self) -> bool {
        self.reports_failures
    }
}

#[pymethods]
impl Group {
    /// Groups for `ranks` threads of this process: a list with the group of each rank.
    #[staticmethod]
    fn threads(ranks: i128) -> PyResult<Vec<Group>> {
        let ranks = to_integer("ranks", ranks)?;
        const MOST: u32 = symmc::unstable::ir::verify::MAX_RANKS;
        if !(1..=MOST).contains(&ranks) {
            return Err(input_error(format!("expected 1 to {MOST} ranks, found {ranks}")));
        }
        Ok(symmc::Group::threads(ranks).into_iter().map(Group::new).collect())
    }

    /// The group in which torchrun, mpirun or srun started this process.
    #[staticmethod]
    fn from_env() -> PyResult<Group> {
        let group = symmc::Group::from_env().map_err(|error| to_exception(error.into()))?;
        let none = || input_error("the environment names no rank: expected one of torchrun, mpirun or srun");
        Ok(Group::new(group.ok_or_else(none)?))
    }

    /// The group of a rank that can communicate with the other ranks by a function: `all_gather` takes bytes and returns the list
    /// of the bytes of all ranks. All ranks call this at the same time. reports_failures: whether `all_gather` notifies the other
    /// ranks of its errors, wherever they wait. Otherwise symmc notifies those that have passed their last call of it.
    #[staticmethod]
    #[pyo3(signature = (rank, ranks, all_gather, *, reports_failures=false))]
    fn bootstrap(
        rank: i128,
        ranks: i128,
        all_gather: Bound<'_, PyAny>,
        reports_failures: bool,
    ) -> PyResult<Group> {
        let py = all_gather.py();
        let ranks = to_integer("ranks", ranks)?;
        let rank: u32 = to_integer("rank", rank)?;
        if rank >= ranks {
            return Err(input_error(format!("rank: expected a number below {ranks}, found {rank}")));
        }
        let mut bootstrap = PythonBootstrap { all_gather, reports_failures, raised: None };
        symmc::Group::bootstrap(rank, ranks, &mut bootstrap).map(Group::new).map_err(|error| {
            // Errors of symmc and interrupts are raised unchanged.
            let is_kept =
                |cause: &PyErr| cause.is_instance_of::<Error>(py) || !cause.is_instance_of::<PyException>(py);
            match bootstrap.raised {
                Some(cause) if is_kept(&cause) => cause,
                cause => {
                    let error = to_exception(error.into());
                    error.set_cause(py, cause);
                    error
                }
            }
        })
    }

    /// Notifies the other ranks, which wait for this one in the first session of the group, that it does not open it, and why. They
    /// raise at once. Does nothing if this rank has begun to open a session.
    fn decline(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let group = self.inner.get("group")?;
        if self.is_used.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let how = format!("did not open its session: {}", clean_reason(reason));
        py.detach(|| group.decline(RunError::Left { rank: group.rank(), how }));
        Ok(())
    }

    /// The rank of this member.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.inner.get("group")?.rank())
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self) -> PyResult<u32> {
        Ok(self.inner.get("group")?.ranks())
    }

    fn __repr__(&self) -> PyResult<String> {
        let group = self.inner.get("group")?;
        Ok(format!("<symmc.Group: rank {} of {}>", group.rank(), group.ranks()))
    }
}
