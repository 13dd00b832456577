//! Plans.

use std::path::PathBuf;

use indexmap::IndexMap;
use pyo3::prelude::*;
use symmc::{Bind, BucketSpec, CheckedPlan, Config, Profile, SessionConfig, Taken};

use crate::error::{raised, refused};
use crate::gpu::on_gpu;
use crate::program::Program;

/// A plan that is proved safe.
#[pyclass(frozen, module = "symmc")]
pub struct Plan(pub CheckedPlan);

/// Which arguments the caller writes straight into the symmetric arena.
#[derive(FromPyObject)]
pub enum Bound {
    All(bool),
    Named(Vec<String>),
}

/// The machines that plans can be made for by name.
#[pyfunction]
pub fn machines() -> Vec<&'static str> {
    Profile::builtin_names()
}

/// The name of the built-in machine that is most like one with so many GPUs.
#[pyfunction]
pub fn nearest_machine(gpus: u32) -> &'static str {
    Profile::nearest(gpus)
}

/// Makes a plan of a program, and proves it safe.
///
/// machine: the name of a profile (`symmc.machines()`), or the path of one that `symmc tune` wrote. ranks: the number of
/// ranks, where the program leaves it open. buckets: the largest value of each bucket, by symbol. bind: the arguments that
/// are written straight into the symmetric arena; True for all. slack: how much more memory than the leanest order the
/// chosen one may take, as a fraction. symm_limit: the bytes that the symmetric arena may take.
#[pyfunction]
#[pyo3(signature = (program, *, machine=None, ranks=None, buckets=None, bind=None, slack=None, symm_limit=None))]
pub fn compile(
    py: Python<'_>,
    program: &Program,
    machine: Option<&str>,
    ranks: Option<u32>,
    buckets: Option<IndexMap<String, Vec<i64>>>,
    bind: Option<Bound>,
    slack: Option<f64>,
    symm_limit: Option<u64>,
) -> PyResult<Plan> {
    let mut config = Config::default();
    if let Some(name) = machine {
        config = config.with_profile(symmc::machine(name).map_err(raised)?);
    }
    let buckets = buckets.unwrap_or_default().into_iter();
    config = config.with_buckets(buckets.map(|(symbol, upper)| BucketSpec::new(symbol, upper)));
    config = config.with_bind(match bind {
        None | Some(Bound::All(false)) => Bind::None,
        Some(Bound::All(true)) => Bind::All,
        Some(Bound::Named(names)) => Bind::Named(names),
    });
    if let Some(slack) = slack {
        config = config.with_slack(slack);
    }
    config = config.with_symm_limit(symm_limit);
    py.detach(|| match ranks {
        None => symmc::compile(&program.0, &config),
        Some(ranks) => {
            let mut program = symmc::Program::clone(&program.0);
            program.set_ranks(ranks)?;
            symmc::compile(&program, &config)
        }
    })
    .map(Plan)
    .map_err(raised)
}

/// Reads a plan from a file, and proves it safe.
#[pyfunction]
pub fn load(py: Python<'_>, path: PathBuf) -> PyResult<Plan> {
    py.detach(|| symmc::checked(symmc::read_plan(&path)?)).map(Plan).map_err(raised)
}

#[pymethods]
impl Plan {
    /// The name of the program.
    #[getter]
    fn name(&self) -> &str {
        &self.0.source.name
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.0.ranks
    }

    /// What runs how, what lives where, and what it costs, as `symmc plan` prints it.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| symmc_cli::report(&self.0)).map_err(|error| refused(error.to_string()))
    }

    /// Where a value lives, until when, who may touch it, and how its collective was chosen.
    fn explain(&self, py: Python<'_>, value: &str) -> PyResult<String> {
        py.detach(|| symmc_cli::explain(&self.0, value)).map_err(|error| refused(error.to_string()))
    }

    /// Proves the plan safe once more, and says what the proof looked at.
    fn check(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| symmc::check(&self.0)).map(|report| report.to_string()).map_err(raised)
    }

    /// The bytes that the session of a rank will take of the host, or of a GPU: both arenas, flags, scratch, and at most for inputs
    /// and outputs, if none is bound (`held`).
    #[pyo3(signature = (rank=0, *, gpu=None))]
    fn memory(&self, py: Python<'_>, rank: u32, gpu: Option<u32>) -> PyResult<IndexMap<&'static str, usize>> {
        let config = on_gpu(SessionConfig::default(), gpu)?;
        let taken = py.detach(|| symmc::Session::budget(&self.0, rank, &config)).map_err(raised)?;
        let Taken { ordinary, symmetric, flags, scratch, held, .. } = taken;
        let all = [
            ("ordinary", ordinary),
            ("symmetric", symmetric),
            ("flags", flags),
            ("scratch", scratch),
            ("held", held),
        ];
        Ok(all.into_iter().collect())
    }

    /// Writes the plan to a file (JSON), which `symmc.load` and the command `symmc` read.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| std::fs::write(&path, self.0.to_json()));
        written.map_err(|error| refused(format!("{}: {error}", path.display())))
    }

    fn __repr__(&self) -> String {
        let plan = &self.0;
        format!(
            "<symmc.Plan {:?}: ranks {}, buckets {}, symmetric {} bytes, ordinary {} bytes>",
            plan.source.name,
            plan.ranks,
            plan.buckets.len(),
            plan.arenas.symmetric,
            plan.arenas.ordinary
        )
    }
}
