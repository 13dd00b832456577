//! Programs, and the weights of a rank.

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use symmc::{OpenOptions, Program, Tensor, TensorFile};

use crate::error::{
    borrow_handle, create_handle, free_handle, read_optional_text, read_slice, read_text, symmc_status,
};

/// A program as it was opened. Any number of threads may read it at once.
pub struct symmc_program(pub(crate) Program);

/// The weights of one rank, in memory. Any number of threads, and of sessions, may read them at once.
pub struct symmc_weights(pub(crate) Vec<(String, Arc<Tensor>)>);

/// The file of tensors at a path, if there is one.
///
/// # Safety
/// As [`optional`].
unsafe fn tensor_file(path: *const c_char) -> Result<Option<Arc<TensorFile>>, symmc::Error> {
    // SAFETY: by the caller.
    let path = unsafe { read_optional_text(path, "the path of the tensors") }?;
    path.map(|path| TensorFile::open(Path::new(path)).map(Arc::new)).transpose()
}

/// Opens a program: one `.pt2`, `.onnx` or `.symm` file, or those of all ranks, that of rank 0 first. `ranks` is the number
/// of ranks, 0 for what the program fixes. `tensors` is the safetensors file that it will run on, or NULL: it tells the
/// number of ranks where nothing else does, and which constants differ from rank to rank.
/// The program is the caller's, freed by `symmc_program_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_open(
    paths: *const *const c_char,
    count: usize,
    ranks: u32,
    tensors: *const c_char,
    out: *mut *mut symmc_program,
) -> symmc_status {
    let open = || {
        // SAFETY: by the caller.
        let (paths, tensors) = unsafe { (read_slice(paths, count, "paths")?, tensor_file(tensors)?) };
        // SAFETY: by the caller.
        let path = |path: &*const c_char| unsafe { read_text(*path, "a path") }.map(PathBuf::from);
        let paths = paths.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        if paths.is_empty() {
            return Err(crate::error::input_error("no path of a program is given"));
        }
        let options = OpenOptions::default().with_ranks(Some(ranks).filter(|&n| n > 0)).with_tensors(tensors);
        Program::open_files(&paths, &options).map(symmc_program)
    };
    // SAFETY: by the caller.
    unsafe { create_handle(out, open) }
}

/// A program in text form. It is the caller's, freed by `symmc_program_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_from_text(
    program: *const c_char,
    out: *mut *mut symmc_program,
) -> symmc_status {
    // SAFETY: by the caller.
    unsafe {
        create_handle(out, || Program::from_text(read_text(program, "the program")?).map(symmc_program))
    }
}

/// The number of ranks of a program; 0 while it is open, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_ranks(program: *const symmc_program) -> u32 {
    // SAFETY: by the caller.
    unsafe { program.as_ref() }.and_then(|program| program.0.graph.ranks).unwrap_or(0)
}

/// Frees a program; nothing that was made of it needs it. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_program_free(program: *mut symmc_program) {
    // SAFETY: by the caller.
    unsafe { free_handle(program) }
}

/// Reads the weights of a rank into memory: from the safetensors file `tensors`, whose names are `rank<r>.w.<name>`, or with
/// NULL those that came with the program. They are the caller's, freed by `symmc_weights_free`; sessions that share them keep
/// what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_weights_open(
    program: *const symmc_program,
    rank: u32,
    tensors: *const c_char,
    out: *mut *mut symmc_weights,
) -> symmc_status {
    let open = || {
        // SAFETY: by the caller.
        let (program, tensors) = unsafe { (borrow_handle(program, "program")?, tensor_file(tensors)?) };
        program.0.parameters(rank, tensors.as_deref()).map(symmc_weights)
    };
    // SAFETY: by the caller.
    unsafe { create_handle(out, open) }
}

/// Frees weights. Sessions that share them go on. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_weights_free(weights: *mut symmc_weights) {
    // SAFETY: by the caller.
    unsafe { free_handle(weights) }
}
