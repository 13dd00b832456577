//! The module `symmc._symmc`, the compiled part of the Python package `symmc`.
//!
//! Programs, plans and sessions are those of the crate `symmc`. Tensors are exchanged through DLPack (`dlpack.rs`), without copies
//! and without a dependency on a tensor library. Long calls release the GIL and can be interrupted with Ctrl-C.

mod argument;
mod board;
mod command;
mod dlpack;
mod error;
mod exchange;
mod gpu;
mod group;
mod interrupt;
mod launch;
mod log;
mod overlap;
mod plan;
mod process_bound;
mod program;
mod session;
mod sizes;
mod tensor;
mod view;

use pyo3::prelude::*;

/// The compiled part of the package `symmc`.
#[pymodule]
fn _symmc(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let torch_dtypes: Vec<_> = symmc::DType::ALL.iter().map(|d| (d.name(), d.facts().torch.1)).collect();
    module.add("TORCH_DTYPES", torch_dtypes)?;
    error::add_exceptions(module)?;
    log::init(module.py())?;
    module.add_class::<program::Program>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<plan::Choice>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<board::Board>()?;
    module.add_class::<overlap::OverlapFinder>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Value>()?;
    module.add_class::<sizes::SizeAssumptions>()?;
    module.add_class::<sizes::SizeStep>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<view::SymmetricBuffer>()?;
    module.add_class::<view::View>()?;
    module.add_function(wrap_pyfunction!(program::open, module)?)?;
    module.add_function(wrap_pyfunction!(program::from_text, module)?)?;
    module.add_function(wrap_pyfunction!(program::torch_ops, module)?)?;
    module.add_function(wrap_pyfunction!(program::read_defined_op, module)?)?;
    module.add_function(wrap_pyfunction!(plan::compile, module)?)?;
    module.add_function(wrap_pyfunction!(plan::load, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan_of_json, module)?)?;
    module.add_function(wrap_pyfunction!(plan::machines, module)?)?;
    module.add_function(wrap_pyfunction!(plan::nearest_machine, module)?)?;
    module.add_function(wrap_pyfunction!(plan::check_machine, module)?)?;
    module.add_function(wrap_pyfunction!(plan::check_numerics, module)?)?;
    module.add_function(wrap_pyfunction!(plan::check_variants, module)?)?;
    module.add_function(wrap_pyfunction!(plan::check_order, module)?)?;
    module.add_function(wrap_pyfunction!(plan::check_slack, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::find_size_steps, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::evaluate_size, module)?)?;
    module.add_function(wrap_pyfunction!(interrupt::set_wait_check, module)?)?;
    module.add_function(wrap_pyfunction!(log::set_log, module)?)?;
    module.add_function(wrap_pyfunction!(command::write_file, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    Ok(())
}
