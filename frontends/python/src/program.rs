//! Programs.

use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use pyo3::prelude::*;
use symmc::unstable::ir::{InputKind, Node, Op};
use symmc::{OpenOptions, SymbolConstraint, TensorFile};

use crate::argument::{argument_type_error, to_integer};
use crate::error::{input_error, to_exception};
use crate::interrupt::run_interruptible;
use crate::tensor::Tensor;

/// A program with collectives. `symmc.open` reads one from a file.
#[pyclass(frozen, module = "symmc")]
pub struct Program(pub Arc<symmc::Program>);

/// One path, or several.
pub struct ProgramPaths(Vec<PathBuf>);

impl FromPyObject<'_, '_> for ProgramPaths {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<ProgramPaths> {
        if let Ok(path) = given.extract() {
            return Ok(ProgramPaths(vec![path]));
        }
        let paths = given.extract().map(ProgramPaths);
        paths.map_err(|_| argument_type_error("paths", "a path, or a list of the paths of all ranks", given))
    }
}

/// What a symbol is to be: one value, a least and a largest, or a text as the option `--dim` of the command takes it.
pub enum SymbolBounds {
    One(i64),
    Range((Option<i64>, Option<i64>)),
    Text(String),
}

impl FromPyObject<'_, '_> for SymbolBounds {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<SymbolBounds> {
        if let Ok(value) = given.extract() {
            return Ok(SymbolBounds::One(value));
        }
        if let Ok(text) = given.extract() {
            return Ok(SymbolBounds::Text(text));
        }
        let range = given.extract().map(SymbolBounds::Range);
        range.map_err(|_| {
            argument_type_error("dims", "a size, a pair of the least and the largest, or a text", given)
        })
    }
}

impl SymbolBounds {
    fn into_extent(self, name: &str) -> PyResult<SymbolConstraint> {
        match self {
            SymbolBounds::One(n) => Ok(SymbolConstraint::Range { min: Some(n), max: Some(n) }),
            SymbolBounds::Range((min, max)) => Ok(SymbolConstraint::Range { min, max }),
            SymbolBounds::Text(text) => {
                SymbolConstraint::parse(&text).map_err(|error| input_error(format!("{name}: {error}")))
            }
        }
    }
}

/// Opens a `.pt2` archive, an `.onnx` model or a `.symm` text; several paths are the files of all ranks.
///
/// ranks: the number of ranks, where the file leaves it open. groups: the ranks of each cell of a group, by the name of the
/// group. dims: the value of a symbol, or its least and largest. schemas: custom ops, in PyTorch's words. tensors: a
/// safetensors file with weights.
#[pyfunction]
#[pyo3(signature = (paths, *, ranks=None, groups=None, dims=None, schemas=None, tensors=None))]
pub fn open(
    py: Python<'_>,
    paths: ProgramPaths,
    ranks: Option<i128>,
    groups: Option<IndexMap<String, Vec<Vec<u32>>>>,
    dims: Option<IndexMap<String, SymbolBounds>>,
    schemas: Option<Vec<String>>,
    tensors: Option<PathBuf>,
) -> PyResult<Program> {
    let ranks = ranks.map(|n| to_integer("ranks", n)).transpose()?;
    let dims = dims.unwrap_or_default().into_iter();
    let dims =
        dims.map(|(name, bounds)| Ok((bounds.into_extent(&name)?, name))).collect::<PyResult<Vec<_>>>()?;
    let options = OpenOptions::default()
        .with_ranks(ranks)
        .with_groups(groups.unwrap_or_default())
        .with_extents(dims.into_iter().map(|(extent, name)| (name, extent)))
        .with_schemas(schemas.unwrap_or_default());
    run_interruptible(py, "open", move || {
        let tensors = tensors.map(|path| TensorFile::open(&path).map(Arc::new)).transpose()?;
        let mut program = symmc::Program::open_files(&paths.0, &options.with_tensors(tensors))?;
        program.infer_ranks()?;
        Ok(Program(Arc::new(program)))
    })
}

/// The program of a text in symmc's own form.
#[pyfunction]
pub fn from_text(py: Python<'_>, text: String) -> PyResult<Program> {
    run_interruptible(py, "open", move || symmc::Program::from_text(&text))
        .map(|program| Program(Arc::new(program)))
}

/// The names of PyTorch's operators that symmc knows.
#[pyfunction]
pub fn torch_ops() -> Vec<&'static str> {
    #[cfg(feature = "torch")]
    return symmc::supported_torch_ops().into_iter().map(|(name, _)| name).collect();
    #[cfg(not(feature = "torch"))]
    Vec::new()
}

#[pymethods]
impl Program {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.graph.name
    }

    /// The number of ranks, if it is fixed.
    #[getter]
    fn ranks(&self) -> Option<u32> {
        self.0.graph.ranks
    }

    /// What the importer wants people to know.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes.clone()
    }

    /// The least and the largest value of each symbol.
    #[getter]
    fn symbols(&self) -> IndexMap<String, (i64, i64)> {
        self.0.graph.symbols.values().map(|s| (s.name.clone(), (s.min, s.max))).collect()
    }

    /// The name of each symbol in the file that the program came from; its own where it has no other.
    #[getter]
    fn aliases(&self) -> IndexMap<String, String> {
        let alias = |s: &symmc::unstable::ir::Symbol| s.alias.clone().unwrap_or_else(|| s.name.clone());
        self.0.graph.symbols.values().map(|s| (s.name.clone(), alias(s))).collect()
    }

    /// The names of the arguments: the inputs that the caller gives in every run.
    #[getter]
    fn arguments(&self) -> Vec<String> {
        let graph = &self.0.graph;
        let arguments = graph.inputs.values().filter(|input| input.kind == InputKind::Argument);
        arguments.map(|input| graph.value_name(input.value).to_string()).collect()
    }

    /// The operators that symmc does not know, by the node that has them: they can be planned and not run.
    #[getter]
    fn opaque(&self) -> IndexMap<String, String> {
        let graph = &self.0.graph;
        let name = |op: &Op| if let Op::Opaque { name, .. } = op { Some(name.clone()) } else { None };
        let of = |(id, node): (_, &Node)| Some((graph.node_name(id).to_string(), name(&node.op)?));
        graph.nodes.iter().filter_map(of).collect()
    }

    /// The program in symmc's own form.
    fn text(&self) -> String {
        self.0.to_text()
    }

    /// The weights of a rank that came with the program, by the names under which they are stored.
    #[pyo3(signature = (rank=0))]
    fn parameters(&self, py: Python<'_>, rank: i128) -> PyResult<IndexMap<String, Tensor>> {
        let rank = to_integer("rank", rank)?;
        if self.0.graph.ranks.is_some_and(|ranks| rank >= ranks) {
            return Err(input_error(format!(
                "rank {rank}: the program has {} ranks",
                self.0.graph.ranks.unwrap_or(0)
            )));
        }
        let all = py.detach(|| self.0.parameters(rank, None)).map_err(to_exception)?;
        Ok(all.into_iter().map(|(name, tensor)| (name, Tensor::new(tensor))).collect())
    }

    /// What notebooks show: the program's text.
    fn _repr_html_(&self) -> String {
        let text = symmc_cli::escape_html(&self.0.to_text());
        format!("<pre style=\"max-height:40em;overflow:auto\">{text}</pre>")
    }

    fn __repr__(&self) -> String {
        let graph = &self.0.graph;
        let ranks = graph.ranks.map_or("open".to_string(), |ranks| ranks.to_string());
        format!(
            "<symmc.Program {:?}: ranks {ranks}, {} nodes, {} inputs, {} outputs>",
            graph.name,
            graph.nodes.len(),
            graph.inputs.len(),
            graph.outputs.len()
        )
    }
}
