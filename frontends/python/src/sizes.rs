//! Sizes of PyTorch graphs, as the text of expressions.

use indexmap::IndexMap;
use pyo3::prelude::*;
use symmc::unstable::import::sizes::assumptions::{self, ImportRejection};
use symmc::unstable::import::sizes::{self, CallSizes, steps};

use crate::error::{Error, input_error};

/// A size that is `step * quotient + rest`.
#[pyclass(frozen, module = "symmc")]
pub struct SizeStep(steps::SizeStep);

/// The steps of these symbols: sizes that are always multiples, as the guards state.
#[pyfunction]
pub fn find_size_steps(guards: Vec<String>, symbols: Vec<String>) -> Vec<SizeStep> {
    steps::find_size_steps(&guards, &symbols).into_iter().map(SizeStep).collect()
}

/// The value of an expression for these sizes, if they determine it.
#[pyfunction]
pub fn evaluate_size(expression: &str, sizes: CallSizes) -> Option<i64> {
    sizes::evaluate_size(expression, &sizes)
}

/// The known and the assumed relations between the sizes of a program.
#[pyclass(module = "symmc")]
pub struct SizeAssumptions(assumptions::SizeAssumptions);

#[pymethods]
impl SizeAssumptions {
    #[new]
    fn new(steps: Vec<PyRef<'_, SizeStep>>, may_fix_sizes: bool) -> Self {
        let steps = steps.iter().map(|step| step.0.clone()).collect();
        SizeAssumptions(assumptions::SizeAssumptions::new(steps, may_fix_sizes))
    }

    /// The relations, as the argument `dims` of `open`.
    fn dims(&self) -> IndexMap<String, String> {
        self.0.symbol_expressions()
    }

    /// The sizes of a call, completed by those of the new symbols: quotients and differences.
    fn complete(&self, sizes: CallSizes) -> PyResult<CallSizes> {
        self.0.complete_sizes(sizes).map_err(|error| input_error(error.to_string()))
    }

    /// Drops relations that do not hold for these sizes. Returns whether all of them hold.
    fn drop_refuted(&mut self, sizes: CallSizes) -> bool {
        self.0.drop_refuted(&sizes)
    }

    /// Fixes symbols to these sizes, except symbols for which a relation is assumed.
    fn fix(&mut self, symbols: Vec<String>, sizes: CallSizes) {
        self.0.fix_sizes(&symbols, &sizes);
    }

    /// The program that `open` returns for some `dims`. Relations that operators need and that hold for these sizes are assumed.
    fn open_program(&mut self, open: &Bound<'_, PyAny>, sizes: CallSizes) -> PyResult<Py<PyAny>> {
        self.0.import_with_assumptions(&sizes, |dims| match open.call1((dims,)) {
            Ok(program) => Ok(Ok(program.unbind())),
            Err(error) => classify_refusal(open.py(), error).map(Err),
        })
    }

    /// The upper ends of the buckets of each symbol of a program, from ends that apply to every size.
    fn buckets(&self, symbols: IndexMap<String, (i64, i64)>, ends: Vec<i64>) -> IndexMap<String, Vec<i64>> {
        self.0.bucket_ends(&symbols, &ends)
    }
}

/// The refusal of a program. Exceptions of other classes are returned as errors.
fn classify_refusal(py: Python<'_>, error: PyErr) -> PyResult<ImportRejection<PyErr>> {
    let value = error.value(py);
    if !value.is_instance_of::<Error>() {
        return Err(error);
    }
    let (node, kind) = (value.getattr("node")?.extract()?, value.getattr("kind")?.extract()?);
    let symbols = value.getattr("symbols")?.extract()?;
    Ok(ImportRejection { error, node, kind, symbols })
}
