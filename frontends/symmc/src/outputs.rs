//! Files that are written, whole or not at all: one of the outputs of a run is in the form that [`TensorFile`](crate::TensorFile)
//! reads.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use symmc_ir::{DType, Graph, InputKind, OutputKind, Tensor};

use crate::error::Error;

/// Writes the outputs of these ranks: `rank{r}.out.<i>` is the i-th returned output of rank `r`, and the new value of an
/// input that the program changes has that input's name, `rank{r}.w.<source>` or `rank{r}.in.<i>`. The file appears
/// whole or not at all; where a link stands, in the link's place.
///
/// # Errors
/// The file cannot be written, or something else that is no file stands there.
pub fn write_outputs(
    path: &Path,
    graph: &Graph,
    ranks: Range<usize>,
    outputs: &[Vec<Tensor>],
) -> Result<(), Error> {
    let mut views: Vec<(String, TensorView<'_>)> = Vec::new();
    for (rank, outputs) in ranks.zip(outputs) {
        for (name, tensor) in names(graph).iter().zip(outputs) {
            let view = TensorView::new(dtype(tensor.dtype()), tensor.shape().to_vec(), tensor.data())
                .map_err(|e| Error::format(path, e))?;
            views.push((format!("rank{rank}.{name}"), view));
        }
    }
    let place = place(path)?;
    let part = Part::beside(&place);
    serialize_to_file(views, None, &part.0).map_err(|e| Error::format(path, e))?;
    let written = File::open(&part.0).and_then(|f| f.sync_all()).and_then(|()| fs::rename(&part.0, &place));
    written.map_err(|e| Error::io(path, e))
}

/// Writes a file, as of a plan: it appears whole or not at all, and an older one stays as it was until then. What a link
/// leads to is replaced, not the link; a device or a pipe takes the bytes as they come.
///
/// # Errors
/// It cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let written = match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path).and_then(|place| {
            let part = Part::beside(&place);
            fs::write(&part.0, bytes)?;
            fs::set_permissions(&part.0, found.permissions())?;
            fs::rename(&part.0, &place)
        }),
        Ok(_) => fs::write(path, bytes),
        Err(_) => {
            let part = Part::beside(path);
            fs::write(&part.0, bytes).and_then(|()| fs::rename(&part.0, path))
        }
    };
    written.map_err(|e| Error::io(path, e))
}

/// Refuses a place where no file can be written, before any work.
///
/// # Errors
/// It is a folder, a device, a pipe or a socket, or lies in no folder.
pub fn check_output(path: &Path) -> Result<(), Error> {
    let path = &place(path)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Error::format(path, format!("there is no folder {}", folder.display())));
    }
    let part = Part::beside(path);
    File::create(&part.0).map(drop).map_err(|e| Error::io(path, e))
}

/// Where a file goes that is written to a path: what a link leads to is replaced, not the link. Nothing but a file is
/// replaced, as `/dev/null` would be.
fn place(path: &Path) -> Result<PathBuf, Error> {
    let found = match fs::metadata(path) {
        Ok(found) if found.is_file() => return fs::canonicalize(path).map_err(|e| Error::io(path, e)),
        Ok(found) if found.is_dir() => "a folder",
        Ok(_) => "a device, a pipe or a socket",
        // Nothing stands there, or the folder is at fault.
        Err(_) => return Ok(path.to_path_buf()),
    };
    Err(Error::format(path, format!("this is {found}; expected a file to write outputs to")))
}

/// A file under another name until it is whole; it is removed if it never is.
struct Part(PathBuf);

impl Part {
    fn beside(path: &Path) -> Part {
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Part(path.with_file_name(format!(".{name}.{}.part", std::process::id())))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Renamed or never made, it is not there.
        let _ = fs::remove_file(&self.0);
    }
}

/// What each output is called in a file, without its rank.
fn names(graph: &Graph) -> Vec<String> {
    let mut returned = 0..;
    let mut of_output = |kind: OutputKind| match kind {
        OutputKind::Returned => format!("out.{}", returned.next().unwrap_or_default()),
        OutputKind::Mutates(id) => {
            let arguments = graph.inputs.iter().filter(|(_, i)| i.kind == InputKind::Argument);
            match arguments.map(|(other, _)| other).position(|other| other == id) {
                Some(index) => format!("in.{index}"),
                None => format!("w.{}", graph.stored_name(&graph.inputs[id])),
            }
        }
    };
    graph.outputs.iter().map(|output| of_output(output.kind)).collect()
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}
