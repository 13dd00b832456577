//! Programs, and the weights of a rank.

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use symmc::{OpenOptions, Program, Tensor, TensorFile};

use crate::error::{
    borrow_handle, create_handle, free_handle, read_optional_text, read_slice, read_text, symmc_status,
};

/// An opened program.
pub struct symmc_program(pub(crate) Program);

/// The weights of one rank, in memory, which several sessions may read.
pub struct symmc_weights(pub(crate) Vec<(String, Arc<Tensor>)>);

/// Opens the file of tensors at a path; NULL gives `None`.
///
/// # Safety
/// As [`read_optional_text`].
unsafe fn tensor_file(path: *const c_char) -> Result<Option<Arc<TensorFile>>, symmc::Error> {
    // SAFETY: the caller ensures it.
    let path = unsafe { read_optional_text(path, "the path of the tensors") }?;
    path.map(|path| TensorFile::open(Path::new(path)).map(Arc::new)).transpose()
}

/// Opens a program: one `.pt2`, `.onnx` or `.symm` file, or the files of all ranks in order. `ranks` is the number of ranks, or 0
/// for the number that the program fixes. `tensors` is the safetensors file that the program will run on, or NULL. It gives the
/// number of ranks if nothing else does, and constants that have another value in it become parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_open(
    paths: *const *const c_char,
    count: usize,
    ranks: u32,
    tensors: *const c_char,
    out: *mut *mut symmc_program,
) -> symmc_status {
    let open = || {
        // SAFETY: the caller ensures it.
        let (paths, tensors) = unsafe { (read_slice(paths, count, "paths")?, tensor_file(tensors)?) };
        // SAFETY: the caller ensures it.
        let path = |path: &*const c_char| unsafe { read_text(*path, "a path") }.map(PathBuf::from);
        let paths = paths.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        if paths.is_empty() {
            return Err(crate::error::input_error("expected the path of a program, found no paths"));
        }
        let options = OpenOptions::default().with_ranks(Some(ranks).filter(|&n| n > 0)).with_tensors(tensors);
        Program::open_files(&paths, &options).map(symmc_program)
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, open) }
}

/// Parses a program in text form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_from_text(
    program: *const c_char,
    out: *mut *mut symmc_program,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe {
        create_handle(out, || Program::from_text(read_text(program, "the program")?).map(symmc_program))
    }
}

/// The number of ranks of a program; 0 if it is not fixed, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_ranks(program: *const symmc_program) -> u32 {
    // SAFETY: the caller ensures it.
    unsafe { program.as_ref() }.and_then(|program| program.0.graph.ranks).unwrap_or(0)
}

/// Frees a program. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_free(program: *mut symmc_program) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(program) }
}

/// Loads the weights of a rank into memory: from the safetensors file `tensors`, whose names are `rank<r>.w.<name>`, or for NULL
/// the weights that came with the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_weights_open(
    program: *const symmc_program,
    rank: u32,
    tensors: *const c_char,
    out: *mut *mut symmc_weights,
) -> symmc_status {
    let open = || {
        // SAFETY: the caller ensures it.
        let (program, tensors) = unsafe { (borrow_handle(program, "program")?, tensor_file(tensors)?) };
        program.0.parameters(rank, tensors.as_deref()).map(symmc_weights)
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, open) }
}

/// Frees weights. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_weights_free(weights: *mut symmc_weights) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(weights) }
}
