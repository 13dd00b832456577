//! Writes files, as a whole or not at all (see [`output_file`]). The outputs of a run are written in the form that
//! [`TensorFile`](crate::TensorFile) reads.

use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use symmc_ir::{Graph, InputKind, OutputKind, Tensor};
use symmc_runtime::output_file::{self, Destination, FileId, PendingFile};

use crate::error::Error;
use crate::tensors::safetensors_dtype;

/// Writes the outputs of these ranks to a safetensors file. `rank{r}.out.<i>` is the i-th returned output of rank `r`. The new
/// value of an input that the program changes has the name of that input, `rank{r}.w.<source>` or `rank{r}.in.<i>`. The file
/// appears as a whole or not at all. A symbolic link at `path` is replaced; its target stays as it is.
///
/// # Errors
/// The file cannot be written, or `path` is not a regular file.
pub fn write_outputs(
    path: &Path,
    graph: &Graph,
    ranks: Range<usize>,
    outputs: &[Vec<Tensor>],
) -> Result<(), Error> {
    let mut tensors: Vec<(String, &Tensor)> = Vec::new();
    for (rank, outputs) in ranks.zip(outputs) {
        let of_rank = output_names(graph).into_iter().zip(outputs);
        tensors.extend(of_rank.filter_map(|(name, tensor)| Some((format!("rank{rank}.{}", name?), tensor))));
    }
    refuse_streams(path)?;
    let header = sorted_header(&mut tensors).map_err(|e| Error::format(path, e))?;
    let write = || {
        let mut pending = PendingFile::create(path)?;
        write_tensors(pending.file(), &header, &tensors)?;
        pending.commit()
    };
    write().map_err(|e| Error::io(path, e))
}

/// The header of a safetensors file. Sorts the tensors into their order in the file: larger elements first, so that all are
/// aligned.
fn sorted_header(tensors: &mut [(String, &Tensor)]) -> Result<Vec<u8>, String> {
    tensors.sort_by(|(name, tensor), (other_name, other)| {
        let dtypes = [other, tensor].map(|t| safetensors_dtype(t.dtype()).ok());
        dtypes[0].cmp(&dtypes[1]).then_with(|| name.cmp(other_name))
    });
    let mut end = 0;
    let describe = |(name, tensor): &(String, &Tensor)| {
        let start = end;
        end += tensor.data().len();
        let dtype = safetensors_dtype(tensor.dtype())?;
        let info = TensorInfo { dtype, shape: tensor.shape().to_vec(), data_offsets: (start, end) };
        Ok((name.clone(), info))
    };
    let infos = tensors.iter().map(describe).collect::<Result<Vec<_>, String>>()?;
    let metadata = Metadata::new(None, infos).map_err(|e| e.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

fn write_tensors(file: impl Write, header: &[u8], tensors: &[(String, &Tensor)]) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header)?;
    for (_, tensor) in tensors {
        file.write_all(tensor.data())?;
    }
    file.flush()
}

/// Writes a file, such as a plan, atomically: an older file stays until the new one replaces it. A symbolic link at `path` is
/// replaced; its target stays as it is. A device, a pipe or a descriptor (`/dev/stdout`) receives the bytes directly.
///
/// # Errors
/// The file cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    output_file::write_output(path, bytes).map_err(|e| Error::io(path, e))
}

/// Checks before any work that a regular file can be written at `path`, without changing an existing file.
///
/// # Errors
/// `path` is a folder, a device, a pipe or a socket, or no file can be created in its folder.
pub fn check_output(path: &Path) -> Result<(), Error> {
    refuse_streams(path)?;
    check_writable(path)
}

/// Checks before any work that [`write_file`] can write to `path`, without changing an existing file.
///
/// # Errors
/// `path` is a folder, or no file can be created in its folder.
pub fn check_writable(path: &Path) -> Result<(), Error> {
    if matches!(Destination::detect(path), Ok(Destination::Stream)) {
        return Ok(());
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Error::format(path, format!("there is no folder {}", folder.display())));
    }
    output_file::check_writable(path).map_err(|e| Error::io(path, e))
}

/// Refuses to write to a file that was read, under any of its names: through symbolic links or hard links.
///
/// # Errors
/// `path` leads to the same file as one of `inputs`.
pub fn refuse_overwrite<'p>(path: &Path, inputs: impl IntoIterator<Item = &'p PathBuf>) -> Result<(), Error> {
    let Some(output) = FileId::from_path(path) else { return Ok(()) };
    match inputs.into_iter().find(|input| FileId::from_path(input) == Some(output)) {
        None => Ok(()),
        Some(input) if input == path => Err(Error::format(
            path,
            "this file is read by the same command; expected another name for the output",
        )),
        Some(input) => Err(Error::format(
            path,
            format!(
                "this is the file {}, which is read by the same command; expected another name for the output",
                input.display()
            ),
        )),
    }
}

/// Refuses two outputs of one command that would be written to the same file, under any of its names.
///
/// # Errors
/// Two of `outputs` lead to the same place. `-` and streams such as `/dev/stdout` can be shared.
pub fn refuse_same_output(outputs: &[&Path]) -> Result<(), Error> {
    for (index, path) in outputs.iter().enumerate() {
        let is_file = matches!(Destination::detect(path), Ok(Destination::File));
        if let Some(other) = outputs[..index].iter().find(|other| is_file && is_same_file(path, other)) {
            return Err(Error::format(
                path,
                format!(
                    "two outputs of this command go to this file (also {}); expected two names",
                    other.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Whether two paths name the same entry of the same folder, or lead to the same file.
fn is_same_file(path: &Path, other: &Path) -> bool {
    let entry = |path: &Path| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some((folder.canonicalize().ok()?, path.file_name()?.to_os_string()))
    };
    let is_same_entry = path == other || entry(path).is_some_and(|found| entry(other) == Some(found));
    is_same_entry || FileId::from_path(path).is_some_and(|file| FileId::from_path(other) == Some(file))
}

/// Refuses a path that exists and is not a regular file.
fn refuse_streams(path: &Path) -> Result<(), Error> {
    let kind = match Destination::detect(path).map_err(|e| Error::io(path, e))? {
        Destination::File => return Ok(()),
        Destination::Folder => "a folder",
        Destination::Stream => "a device, a pipe or a socket",
    };
    Err(Error::format(path, format!("this is {kind}; expected a file to write outputs to")))
}

/// The name of each output in a file, without its rank. `None` for lengths of other outputs.
fn output_names(graph: &Graph) -> Vec<Option<String>> {
    let mut returned = 0..;
    let mut of_output = |kind: OutputKind| match kind {
        OutputKind::Returned => Some(format!("out.{}", returned.next().unwrap_or_default())),
        OutputKind::Length { .. } => None,
        OutputKind::Mutates(id) => {
            let arguments = graph.inputs.iter().filter(|(_, i)| i.kind == InputKind::Argument);
            match arguments.map(|(other, _)| other).position(|other| other == id) {
                Some(index) => Some(format!("in.{index}")),
                None => Some(format!("w.{}", graph.checkpoint_name(&graph.inputs[id]))),
            }
        }
    };
    graph.outputs.iter().map(|output| of_output(output.kind)).collect()
}
