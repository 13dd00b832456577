//! How ranks find each other.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use symmc::Bootstrap;

use crate::error::{raised, refused};

/// One rank's place among the ranks of one machine, in which it opens sessions together with the others, in the same order.
#[pyclass(frozen, module = "symmc")]
pub struct Group(pub Arc<symmc::Group>);

impl Group {
    /// A group, a process group of PyTorch, or that of the environment.
    pub fn of(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Arc<symmc::Group>> {
        let Some(given) = given else { return Group::from_env().map(|group| group.0) };
        if let Ok(group) = given.cast::<Group>() {
            return Ok(group.get().0.clone());
        }
        let made = py.import("symmc.torch")?.call_method1("group_of", (given,))?;
        Ok(made.cast::<Group>()?.get().0.clone())
    }
}

/// A function in Python that tells all ranks something.
struct Means<'py> {
    all_gather: Bound<'py, PyAny>,
}

impl Bootstrap for Means<'_> {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mine = PyBytes::new(self.all_gather.py(), mine);
        let all = self.all_gather.call1((mine,)).map_err(|error| error.to_string())?;
        all.extract().map_err(|_| format!("all_gather: expected a list of bytes, found {all}"))
    }
}

#[pymethods]
impl Group {
    /// A place for each of so many threads of this process.
    #[staticmethod]
    fn threads(ranks: u32) -> PyResult<Vec<Group>> {
        const MOST: u32 = symmc::unstable::ir::verify::MAX_RANKS;
        if !(1..=MOST).contains(&ranks) {
            return Err(refused(format!("expected 1 to {MOST} ranks, found {ranks}")));
        }
        Ok(symmc::Group::threads(ranks).into_iter().map(|group| Group(Arc::new(group))).collect())
    }

    /// The place that torchrun, mpirun or srun gave this process.
    #[staticmethod]
    fn from_env() -> PyResult<Group> {
        let group = symmc::Group::from_env().map_err(|error| raised(error.into()))?;
        let none = || refused("the environment names no rank: expected that of torchrun, mpirun or srun");
        Ok(Group(Arc::new(group.ok_or_else(none)?)))
    }

    /// The place of a rank that has means of its own: `all_gather` takes bytes and gives the list of those of all ranks. All
    /// ranks call this at the same time.
    #[staticmethod]
    fn bootstrap(rank: u32, ranks: u32, all_gather: Bound<'_, PyAny>) -> PyResult<Group> {
        let group = symmc::Group::bootstrap(rank, ranks, &mut Means { all_gather });
        group.map(|group| Group(Arc::new(group))).map_err(|error| raised(error.into()))
    }

    /// This rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.0.ranks()
    }

    fn __repr__(&self) -> String {
        format!("<symmc.Group: rank {} of {}>", self.0.rank(), self.0.ranks())
    }
}
