//! Programs, and how they are opened.

use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use pyo3::exceptions::PyTypeError;
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

/// The bounds of a symbol: one value, the least and the largest value, or a text such as `1..64` or `2*pairs`.
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
            argument_type_error("dims", "a size, a pair of the least and the largest size, or a text", given)
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

/// The argument `groups`: for each group the ranks of its cells.
pub struct GroupCells(IndexMap<String, Vec<Vec<u32>>>);

impl FromPyObject<'_, '_> for GroupCells {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<GroupCells> {
        if let Ok(cells) = given.extract() {
            return Ok(GroupCells(cells));
        }
        let repr = given.repr().map_or_else(|_| String::from("another object"), |text| text.to_string());
        Err(PyTypeError::new_err(format!(
            "groups: expected the lists of ranks of each group's cells by the name of the group, such as \
             {{'3': [[0, 1], [2, 3]]}}; found {repr}"
        )))
    }
}

/// Opens a `.pt2` archive, an `.onnx` model or a `.symm` text. Several paths are the files of all ranks.
///
/// ranks: the number of ranks, if the file does not fix it. groups: the lists of ranks of each group's cells, by the name of the
/// group, such as `{"3": [[0, 1], [2, 3]]}`. dims: the value of each symbol, its least and largest value, or a text such as
/// `"2*pairs"`. schemas: schemas of custom ops in PyTorch's notation. definitions: programs in the text form, each with the
/// schema of a custom op as its name, that replace the calls of the op. tensors: a safetensors file with weights.
/// assume_sizes: whether to assume sizes if the program is valid for some sizes only and does not state them;
/// `Program.assumed_dims` lists them.
#[pyfunction]
#[pyo3(signature = (paths, *, ranks=None, groups=None, dims=None, schemas=None, definitions=None, tensors=None, assume_sizes=true))]
#[expect(clippy::too_many_arguments, reason = "these are the keywords that Python has")]
pub fn open(
    py: Python<'_>,
    paths: ProgramPaths,
    ranks: Option<i128>,
    groups: Option<GroupCells>,
    dims: Option<IndexMap<String, SymbolBounds>>,
    schemas: Option<Vec<String>>,
    definitions: Option<Vec<String>>,
    tensors: Option<PathBuf>,
    assume_sizes: bool,
) -> PyResult<Program> {
    let ranks = ranks.map(|n| to_integer("ranks", n)).transpose()?;
    let dims = dims.unwrap_or_default().into_iter();
    let dims =
        dims.map(|(name, bounds)| Ok((bounds.into_extent(&name)?, name))).collect::<PyResult<Vec<_>>>()?;
    let options = OpenOptions::default()
        .with_ranks(ranks)
        .with_groups(groups.map_or_else(IndexMap::new, |groups| groups.0))
        .with_extents(dims.into_iter().map(|(extent, name)| (name, extent)))
        .with_schemas(schemas.unwrap_or_default())
        .with_definitions(definitions.unwrap_or_default())
        .with_assumptions(assume_sizes);
    run_interruptible(py, "open", move || {
        let tensors = tensors.map(|path| TensorFile::open(&path).map(Arc::new)).transpose()?;
        let mut program = symmc::Program::open_files(&paths.0, &options.with_tensors(tensors))?;
        program.infer_ranks()?;
        Ok(Program(Arc::new(program)))
    })
}

/// The target of the op that a definition is for, such as `mylib.f.default`, and its arguments that name groups.
#[pyfunction]
pub fn read_defined_op(definition: &str) -> PyResult<(String, Vec<String>)> {
    #[cfg(feature = "torch")]
    return symmc::unstable::torch::read_defined_op(definition)
        .map(|op| (op.target, op.groups))
        .map_err(|e| input_error(e.to_string()));
    #[cfg(not(feature = "torch"))]
    Err(input_error(format!(
        "expected a build with PyTorch's archives for a definition, found {definition:?}"
    )))
}

/// Parses a program in the text form of symmc.
#[pyfunction]
pub fn from_text(py: Python<'_>, text: String) -> PyResult<Program> {
    run_interruptible(py, "open", move || symmc::Program::from_text(&text))
        .map(|program| Program(Arc::new(program)))
}

/// The names of the PyTorch operators that symmc supports.
#[pyfunction]
pub fn torch_ops() -> Vec<&'static str> {
    #[cfg(feature = "torch")]
    return symmc::supported_torch_ops().into_iter().map(|(name, _)| name).collect();
    #[cfg(not(feature = "torch"))]
    Vec::new()
}

#[pymethods]
impl Program {
    /// The name of the program.
    #[getter]
    fn name(&self) -> &str {
        &self.0.graph.name
    }

    /// The number of ranks; None if it is not fixed.
    #[getter]
    fn ranks(&self) -> Option<u32> {
        self.0.graph.ranks
    }

    /// Notes of the importer for the user.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes.clone()
    }

    /// What is assumed of symbols that neither the file nor `dims` determines, in the form of `dims`.
    #[getter]
    fn assumed_dims(&self) -> IndexMap<String, String> {
        self.0
            .assumed_sizes
            .iter()
            .map(|(symbol, constraint)| (symbol.clone(), constraint.to_string()))
            .collect()
    }

    /// The least and the largest value of each symbol, by its name.
    #[getter]
    fn symbols(&self) -> IndexMap<String, (i64, i64)> {
        self.0.graph.symbols.values().map(|s| (s.name.clone(), (s.min, s.max))).collect()
    }

    /// The name of each symbol in the file of the program, by its name here; the same name if the file has no other.
    #[getter]
    fn aliases(&self) -> IndexMap<String, String> {
        let alias = |s: &symmc::unstable::ir::Symbol| s.alias.clone().unwrap_or_else(|| s.name.clone());
        self.0.graph.symbols.values().map(|s| (s.name.clone(), alias(s))).collect()
    }

    /// The names of the arguments, which are the inputs that the caller gives in every run.
    #[getter]
    fn arguments(&self) -> Vec<String> {
        let graph = &self.0.graph;
        let arguments = graph.inputs.values().filter(|input| input.kind == InputKind::Argument);
        arguments.map(|input| graph.value_name(input.value).to_string()).collect()
    }

    /// The unsupported operators, by the node that has them. They can be planned, but not run.
    #[getter]
    fn opaque(&self) -> IndexMap<String, String> {
        let graph = &self.0.graph;
        let name = |op: &Op| if let Op::Opaque { name, .. } = op { Some(name.clone()) } else { None };
        let opaque_node = |(id, node): (_, &Node)| Some((graph.node_name(id).to_string(), name(&node.op)?));
        graph.nodes.iter().filter_map(opaque_node).collect()
    }

    /// The program in the text form of symmc.
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
        let parameters = py.detach(|| self.0.parameters(rank, None)).map_err(to_exception)?;
        Ok(parameters.into_iter().map(|(name, tensor)| (name, Tensor::new(tensor))).collect())
    }

    /// The display in notebooks: the text of the program.
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
