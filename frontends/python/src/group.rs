//! How ranks find each other.

use std::sync::Arc;

use pyo3::exceptions::{PyException, PyModuleNotFoundError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use symmc::Bootstrap;

use crate::argument::to_integer;
use crate::error::{Error, input_error, to_exception};
use crate::process_bound::ProcessBound;

/// One rank's place among the ranks of one machine, in which it opens sessions together with the others, in the same order.
#[pyclass(frozen, module = "symmc")]
pub struct Group(ProcessBound<Arc<symmc::Group>>);

impl Group {
    fn new(group: symmc::Group) -> Group {
        Group(ProcessBound::new(Arc::new(group)))
    }

    /// A group, a process group of PyTorch, or that of the environment. Ranks that have to tell each other something first
    /// wait for each other for so many seconds.
    pub fn resolve_group(
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<Arc<symmc::Group>> {
        let Some(given) = given else { return Group::from_env()?.shared_group() };
        if let Ok(group) = given.cast::<Group>() {
            return group.get().shared_group();
        }
        let torch = py.import("symmc.torch").map_err(|error| {
            // Without PyTorch there are no process groups of it.
            match error.is_instance_of::<PyModuleNotFoundError>(py) {
                true => input_error(format!("expected a symmc.Group, found {given}")),
                false => error,
            }
        })?;
        let made = torch.call_method1("group_of", (given, timeout))?;
        made.cast::<Group>()?.get().shared_group()
    }

    fn shared_group(&self) -> PyResult<Arc<symmc::Group>> {
        self.0.get("group").cloned()
    }
}

/// A function in Python that tells all ranks something.
struct PythonBootstrap<'py> {
    all_gather: Bound<'py, PyAny>,
    /// What it raised.
    raised: Option<PyErr>,
}

impl Bootstrap for PythonBootstrap<'_> {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mine = PyBytes::new(self.all_gather.py(), mine);
        let all = self.all_gather.call1((mine,)).map_err(|error| {
            let text = error.to_string();
            self.raised = Some(error);
            text
        })?;
        all.extract().map_err(|_| format!("all_gather: expected a list of bytes, found {all}"))
    }
}

#[pymethods]
impl Group {
    /// A place for each of so many threads of this process.
    #[staticmethod]
    fn threads(ranks: i128) -> PyResult<Vec<Group>> {
        let ranks = to_integer("ranks", ranks)?;
        const MOST: u32 = symmc::unstable::ir::verify::MAX_RANKS;
        if !(1..=MOST).contains(&ranks) {
            return Err(input_error(format!("expected 1 to {MOST} ranks, found {ranks}")));
        }
        Ok(symmc::Group::threads(ranks).into_iter().map(Group::new).collect())
    }

    /// The place that torchrun, mpirun or srun gave this process.
    #[staticmethod]
    fn from_env() -> PyResult<Group> {
        let group = symmc::Group::from_env().map_err(|error| to_exception(error.into()))?;
        let none = || input_error("the environment names no rank: expected that of torchrun, mpirun or srun");
        Ok(Group::new(group.ok_or_else(none)?))
    }

    /// The place of a rank that has means of its own: `all_gather` takes bytes and gives the list of those of all ranks. All
    /// ranks call this at the same time.
    #[staticmethod]
    fn bootstrap(rank: i128, ranks: i128, all_gather: Bound<'_, PyAny>) -> PyResult<Group> {
        let (py, ranks) = (all_gather.py(), to_integer("ranks", ranks)?);
        let rank: u32 = to_integer("rank", rank)?;
        if rank >= ranks {
            return Err(input_error(format!("rank: expected a number below {ranks}, found {rank}")));
        }
        let mut means = PythonBootstrap { all_gather, raised: None };
        symmc::Group::bootstrap(rank, ranks, &mut means).map(Group::new).map_err(|error| {
            let cause = means.raised;
            // Errors of symmc, and interrupts, stay what they are.
            let stays =
                |cause: &PyErr| cause.is_instance_of::<Error>(py) || !cause.is_instance_of::<PyException>(py);
            match cause {
                Some(cause) if stays(&cause) => cause,
                cause => {
                    let error = to_exception(error.into());
                    error.set_cause(py, cause);
                    error
                }
            }
        })
    }

    /// This rank.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.0.get("group")?.rank())
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self) -> PyResult<u32> {
        Ok(self.0.get("group")?.ranks())
    }

    fn __repr__(&self) -> PyResult<String> {
        let group = self.0.get("group")?;
        Ok(format!("<symmc.Group: rank {} of {}>", group.rank(), group.ranks()))
    }
}
