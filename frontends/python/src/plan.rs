//! Plans, and how they are compiled and loaded.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use symmc::{
    ArgumentBinding, BucketSpec, CheckedPlan, CollectiveVariant, CompileConfig, MachineProfile, MemoryUsage,
    Numerics, OrderStrategy, SessionConfig,
};

use crate::argument::{argument_type_error, extract_names, to_integer};
use crate::error::{input_error, to_exception};
use crate::gpu::{gpu_number, on_gpu};
use crate::interrupt::run_interruptible;
use crate::program::Program;

/// A plan that was proved safe.
#[pyclass(frozen, module = "symmc")]
pub struct Plan(pub CheckedPlan);

/// How a collective of the program runs in one bucket.
#[pyclass(frozen, get_all, module = "symmc")]
pub struct Choice {
    /// The name of the collective's result.
    collective: String,
    /// The least and the largest value of each symbol of the bucket.
    symbols: IndexMap<String, (i64, i64)>,
    /// The number of bytes for which the estimates are made.
    nbytes: u64,
    /// The variant that the plan uses.
    chosen: String,
    /// The estimated microseconds of each variant, by name, in ascending order; `plain` is the vendor's library.
    estimates: IndexMap<String, f64>,
}

#[pymethods]
impl Choice {
    fn __repr__(&self) -> String {
        let us = self.estimates.get(&self.chosen).copied().unwrap_or_default();
        format!("<symmc.Choice %{} of {} bytes: {} ({us:.3} µs)>", self.collective, self.nbytes, self.chosen)
    }
}

/// The arguments that the caller writes directly into the symmetric arena.
pub enum BoundArguments {
    All(bool),
    Named(Vec<String>),
}

impl FromPyObject<'_, '_> for BoundArguments {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<BoundArguments> {
        if let Ok(all) = given.extract() {
            return Ok(BoundArguments::All(all));
        }
        if let Ok(name) = given.extract() {
            return Ok(BoundArguments::Named(vec![name]));
        }
        let names = given.extract().map(BoundArguments::Named);
        names.map_err(|_| argument_type_error("bind", "True, or names of arguments", given))
    }
}

/// The names of the machines for which plans can be made.
#[pyfunction]
pub fn machines() -> Vec<&'static str> {
    MachineProfile::builtin_names()
}

/// The name of the built-in machine that is most similar to one with this number of GPUs.
#[pyfunction]
pub fn nearest_machine(gpus: u32) -> &'static str {
    MachineProfile::nearest_builtin(gpus)
}

/// Checks that a text is the name of a machine or the path of a profile.
#[pyfunction]
pub fn check_machine(name: PathBuf) -> PyResult<()> {
    find_profile(&name).map(drop)
}

/// The machine of this name, or of the profile at this path.
fn find_profile(name: &Path) -> PyResult<MachineProfile> {
    symmc::machine_profile(&name.to_string_lossy()).map_err(to_exception)
}

/// Compiles a program into a plan, and proves the plan safe.
///
/// machine: the name of a profile (`symmc.machines()`), or the path of one that `symmc tune` wrote. ranks: the number of ranks, if
/// the program does not fix it. buckets: the largest value of each bucket, by the name of the symbol; a plain list if the program
/// has one symbol. bind: the arguments that are written directly into the symmetric arena; True for all. variants: the variants
/// that collectives may run as in addition to plain; None for all that the profile knows. order: the strategy that orders the steps
/// (`chosen`, `lean`, …). slack: the memory that may be spent to overlap communication with computation, in percent of the memory
/// of the leanest order; None for the default of 100. memory_price: the microseconds by which overlap must make a run faster, by
/// estimate, for each MiB of memory that it takes. symm_limit: the largest size of the symmetric arena in bytes. coalesce: whether
/// several collectives may be combined into one if a run is estimated to become faster. numerics: the changes of rounding that the
/// plan may make: "exact" for none, or one or more of "reassociate", "narrow" and "narrow-f16", separated by commas.
#[expect(clippy::too_many_arguments, reason = "these are the keywords that Python has")]
#[pyfunction]
#[pyo3(signature = (program, *, machine=None, ranks=None, buckets=None, bind=None, variants=None, order=None, slack=None, memory_price=None, symm_limit=None, coalesce=true, numerics=None))]
pub fn compile(
    py: Python<'_>,
    program: &Program,
    machine: Option<PathBuf>,
    ranks: Option<i128>,
    buckets: Option<Bound<'_, PyAny>>,
    bind: Option<BoundArguments>,
    variants: Option<Bound<'_, PyAny>>,
    order: Option<String>,
    slack: Option<f64>,
    memory_price: Option<f64>,
    symm_limit: Option<i128>,
    coalesce: bool,
    numerics: Option<String>,
) -> PyResult<Plan> {
    let mut config = CompileConfig::default();
    if let Some(name) = machine {
        config = config.with_profile(find_profile(&name)?);
    }
    let ranks = ranks.map(|n| to_integer("ranks", n)).transpose()?;
    let symm_limit: Option<u64> = symm_limit.map(|bytes| to_integer("symm_limit", bytes)).transpose()?;
    if ranks.is_none() && program.0.graph.ranks.is_none() {
        return Err(input_error(
            "ranks: the program does not fix the number of ranks: expected the number, found None",
        ));
    }
    if let Some(ranges) = buckets {
        config = config.with_buckets(read_buckets(&ranges, program)?);
    }
    config = config.with_bind(match bind {
        None | Some(BoundArguments::All(false)) => ArgumentBinding::None,
        Some(BoundArguments::All(true)) => ArgumentBinding::All,
        Some(BoundArguments::Named(names)) => ArgumentBinding::Named(names),
    });
    config = config.with_variants(variants.map(|names| read_variants(&names)).transpose()?);
    if let Some(name) = order {
        config = config.with_order(read_order(&name)?);
    }
    if let Some(percent) = slack {
        config = config.with_slack(read_slack(percent)? / 100.0);
    }
    if let Some(price) = memory_price {
        config = config.with_memory_price(price);
    }
    config = config.with_symm_limit(symm_limit).with_coalesce(coalesce);
    if let Some(text) = numerics {
        config = config.with_numerics(read_numerics(&text)?);
    }
    let source = program.0.clone();
    run_interruptible(py, "compile", move || match ranks {
        None => symmc::compile(&source, &config),
        Some(ranks) => {
            let mut program = symmc::Program::clone(&source);
            program.set_ranks(ranks)?;
            symmc::compile(&program, &config)
        }
    })
    .map(Plan)
}

/// Reads the buckets of symbols: lists of sizes by symbol, or one list for the only symbol of a program.
fn read_buckets(given: &Bound<'_, PyAny>, program: &Program) -> PyResult<Vec<BucketSpec>> {
    if let Ok(by_symbol) = given.extract::<IndexMap<String, Vec<i64>>>() {
        return Ok(by_symbol.into_iter().map(|(symbol, upper)| BucketSpec::new(symbol, upper)).collect());
    }
    let Ok(upper) = given.extract::<Vec<i64>>() else {
        let expected = "lists of sizes by the names of symbols, or a list of sizes for one symbol";
        return Err(argument_type_error("buckets", expected, given.as_borrowed()));
    };
    let symbols: Vec<&str> = program.0.graph.symbols.values().map(|symbol| symbol.name.as_str()).collect();
    match symbols.as_slice() {
        _ if upper.is_empty() => Ok(Vec::new()),
        [symbol] => Ok(vec![BucketSpec::new(*symbol, upper)]),
        [] => Err(input_error("buckets: the program has no symbols: expected no sizes, found a list")),
        [first, ..] => Err(input_error(format!(
            "buckets: the program has the symbols {}: expected lists of sizes by symbol, such as {{{first:?}: {upper:?}}}, \
             found one list",
            symbols.join(", ")
        ))),
    }
}

/// Checks a percentage of additional memory for overlap.
#[pyfunction]
pub fn check_slack(percent: f64) -> PyResult<()> {
    read_slack(percent).map(drop)
}

/// The percentage, if it is plausible. Values between 0 and 1 are rejected: they are fractions, which older versions expected.
fn read_slack(percent: f64) -> PyResult<f64> {
    if percent == 0.0 || (1.0..f64::INFINITY).contains(&percent) {
        return Ok(percent);
    }
    let hint = if 0.0 < percent && percent < 1.0 {
        format!(": give {} for {0} %", (percent * 1e8).round() / 1e6)
    } else {
        String::new()
    };
    Err(input_error(format!("slack: expected a percentage, 0 or at least 1, found {percent}{hint}")))
}

/// Checks a list of numerics classes.
#[pyfunction]
pub fn check_numerics(text: &str) -> PyResult<()> {
    read_numerics(text).map(drop)
}

fn read_numerics(text: &str) -> PyResult<Numerics> {
    text.parse().map_err(|e| input_error(format!("numerics: {e}")))
}

/// Checks names of variants of collectives.
#[pyfunction]
pub fn check_variants(variants: &Bound<'_, PyAny>) -> PyResult<()> {
    read_variants(variants).map(drop)
}

fn read_variants(given: &Bound<'_, PyAny>) -> PyResult<Vec<CollectiveVariant>> {
    let variant = |name: String| {
        let parsed = CollectiveVariant::from_name(&name);
        parsed.ok_or_else(|| {
            input_error(format!("variants: expected one of {}, found {name:?}", CollectiveVariant::names()))
        })
    };
    extract_names("variants", "names of variants", given)?.into_iter().map(variant).collect()
}

/// Checks the name of an order of steps.
#[pyfunction]
pub fn check_order(name: &str) -> PyResult<()> {
    read_order(name).map(drop)
}

fn read_order(name: &str) -> PyResult<OrderStrategy> {
    let strategy = OrderStrategy::from_name(name);
    strategy.ok_or_else(|| {
        input_error(format!("order: expected one of {}, found {name:?}", OrderStrategy::names()))
    })
}

/// Reads a plan from a file, and proves it safe. Programs (`.pt2`, `.onnx`, `.symm`) are opened with `symmc.open`.
#[pyfunction]
pub fn load(py: Python<'_>, path: PathBuf) -> PyResult<Plan> {
    run_interruptible(py, "load", move || symmc::into_checked_plan(symmc::read_plan(&path)?)).map(Plan)
}

/// Reads a plan from JSON text, and proves it safe. Pickles of plans use it.
#[pyfunction]
pub fn plan_of_json(py: Python<'_>, text: String) -> PyResult<Plan> {
    let read = move || {
        let plan = symmc::Plan::from_json(&text);
        symmc::into_checked_plan(plan.map_err(|e| symmc::Error::new(symmc::ErrorKind::Input, e.to_string()))?)
    };
    run_interruptible(py, "load", read).map(Plan)
}

/// The bytes that a session uses, by purpose.
pub fn memory_by_use(usage: MemoryUsage) -> IndexMap<&'static str, usize> {
    let MemoryUsage { ordinary, symmetric, flags, scratch, ports: held, .. } = usage;
    let entries = [
        ("ordinary", ordinary),
        ("symmetric", symmetric),
        ("flags", flags),
        ("scratch", scratch),
        ("held", held),
    ];
    entries.into_iter().collect()
}

#[pymethods]
impl Plan {
    /// The name of the program.
    #[getter]
    fn name(&self) -> &str {
        &self.0.source.name
    }

    /// The changes of rounding that the plan may make, separated by commas; "exact" for none.
    #[getter]
    fn numerics(&self) -> String {
        self.0.numerics.to_string()
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.0.ranks
    }

    /// The report that `symmc plan` prints: how collectives run, the memory of values, and estimates. format: `text`, or `html` for a
    /// self-contained page with drawings of the memory.
    #[pyo3(signature = (format="text"))]
    fn report(&self, py: Python<'_>, format: &str) -> PyResult<String> {
        let render = match format {
            "text" => symmc_cli::report,
            "html" => symmc_cli::render_plan,
            _ => return Err(input_error(format!("format: expected text or html, found {format:?}"))),
        };
        py.detach(|| render(&self.0)).map_err(|error| input_error(error.to_string()))
    }

    /// The display in notebooks: the page of the report, in a frame.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let page = symmc_cli::escape_html(&self.report(py, "html")?);
        Ok(format!("<iframe srcdoc=\"{page}\" style=\"width:100%;height:40em;border:0\"></iframe>"))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let plan = slf.get();
        let json = py.detach(|| plan.0.to_json());
        let constructor = py.import("symmc._symmc")?.getattr("plan_of_json")?;
        Ok((constructor, PyTuple::new(py, [PyString::new(py, &json)])?))
    }

    /// The same plan, since plans are immutable.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The same plan, since plans are immutable.
    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    /// Explains a value: its memory and live range, the ranks that access it, and the choice of its collective's variant.
    fn explain(&self, py: Python<'_>, value: &str) -> PyResult<String> {
        py.detach(|| symmc_cli::explain(&self.0, value, &[])).map_err(|error| input_error(error.to_string()))
    }

    /// The variant of each collective in each bucket, with the alternatives.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for bucket in &self.0.buckets {
            let bounds = bucket.symbols.iter().map(|(name, [least, most])| (name.clone(), (*least, *most)));
            let symbols: IndexMap<String, (i64, i64)> = bounds.collect();
            choices.extend(bucket.decisions.iter().map(|decision| {
                Choice {
                    collective: decision.collective.clone(),
                    symbols: symbols.clone(),
                    nbytes: decision.bytes,
                    chosen: decision.chosen.clone(),
                    estimates: decision
                        .alternatives
                        .iter()
                        .map(|alternative| (alternative.name.clone(), alternative.us))
                        .collect(),
                }
            }));
        }
        choices
    }

    /// Proves the plan safe again and compares it with its source. Returns a report of the proof and the comparison, as text.
    /// Differences raise a `CheckError`. With `require_compared`, parts that were not compared at all sizes do, too.
    #[pyo3(signature = (*, require_compared=false))]
    fn check(&self, py: Python<'_>, require_compared: bool) -> PyResult<String> {
        let plan = self.0.clone();
        run_interruptible(py, "check", move || {
            let report = symmc::check(&plan)?;
            let compared = symmc::compare_with_source(&plan).into_agreement()?;
            if require_compared {
                symmc::require_full_comparison(&compared)?;
            }
            Ok(format!("{report}\n{compared}").trim_end().to_string())
        })
    }

    /// The bytes that the session of a rank will use on the host, or on a GPU: both arenas, flags, scratch, and at most for inputs and
    /// outputs, if none is bound (`held`).
    #[pyo3(signature = (rank=0, *, gpu=None))]
    fn memory(
        &self,
        py: Python<'_>,
        rank: i128,
        gpu: Option<i128>,
    ) -> PyResult<IndexMap<&'static str, usize>> {
        let rank = to_integer("rank", rank)?;
        let config = on_gpu(SessionConfig::default(), gpu_number(gpu)?)?;
        let usage = py.detach(|| symmc::Session::budget(&self.0, rank, &config)).map_err(to_exception)?;
        Ok(memory_by_use(usage))
    }

    /// Writes the plan to a JSON file, which `symmc.load` and the command `symmc` read.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| symmc::write_file(&path, self.0.to_json().as_bytes())).map_err(to_exception)
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
