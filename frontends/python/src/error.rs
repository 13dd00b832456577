//! Errors of symmc as exceptions, one class for each kind.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use symmc::{DataFault, ErrorKind, GroupSyntax};

create_exception!(
    symmc,
    Error,
    PyException,
    "The base class of all errors of symmc. `kind` is the kind of the error. As far as they are known, `culprit` is the rank \
     at fault, `reporter` the rank that noticed the error, and `step`, `node`, `op` and `path` give its position; `rank` is \
     another name of `culprit`. `findings` lists the findings of a check, and `symbols` the sizes because of which a program \
     is refused. `is_of_dtypes` says that PyTorch raises for the dtypes of the operands, too. `unknown_groups` names the \
     groups whose members the program does not state."
);
create_exception!(symmc, InputError, Error, "An input is invalid.");
create_exception!(
    symmc,
    UnsupportedError,
    Error,
    "The input is valid, but this build or this machine cannot plan or run it."
);
create_exception!(
    symmc,
    ResourceError,
    Error,
    "More memory, threads or files are needed than a limit or the system allows."
);
create_exception!(
    symmc,
    DisagreementError,
    Error,
    "The ranks of one run were started with different plans, versions or inputs."
);
create_exception!(
    symmc,
    CheckError,
    Error,
    "A plan is not proved safe, or computes something else than its source."
);
create_exception!(symmc, RunError, Error, "A step failed, or the system refused something that a run needs.");
create_exception!(symmc, PeerError, Error, "A rank died, did not join or made no progress.");
create_exception!(symmc, DefectError, Error, "A defect of symmc itself.");

/// The classes for bad data of a step. They also derive from the classes that PyTorch raises, so that handlers of those work.
static BAD_INDEX: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static BAD_DATA: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The class of errors of this kind of bad data.
fn data_error_class(py: Python<'_>, fault: DataFault) -> Option<&Bound<'_, PyType>> {
    let class = if fault == DataFault::Index { &BAD_INDEX } else { &BAD_DATA };
    class.get(py).map(|class| class.bind(py))
}

/// An exception of one class for bad data.
fn data_error(fault: DataFault, text: &str) -> PyErr {
    Python::attach(|py| match data_error_class(py, fault) {
        Some(class) => PyErr::from_type(class.clone(), text.to_string()),
        None => InputError::new_err(text.to_string()),
    })
}

/// An exception for an error. The text includes a remedy in terms of Python's arguments.
pub fn to_exception(error: symmc::Error) -> PyErr {
    let text = format!("{error}{}{}", error.group_hint(&ARGUMENTS), dims_hint(&error));
    let exception = match error.kind() {
        ErrorKind::Input if error.data_fault().is_some() => {
            data_error(error.data_fault().unwrap_or(DataFault::Other), &text)
        }
        ErrorKind::Input => InputError::new_err(text),
        ErrorKind::Unsupported => UnsupportedError::new_err(text),
        ErrorKind::Resources => ResourceError::new_err(text),
        ErrorKind::Disagreement => DisagreementError::new_err(text),
        ErrorKind::Check => CheckError::new_err(text),
        ErrorKind::Run => RunError::new_err(text),
        ErrorKind::Peer => PeerError::new_err(text),
        _ => DefectError::new_err(text),
    };
    Python::attach(|py| {
        let value = exception.value(py);
        // An exception accepts any attribute, so setting one does not fail.
        let _ = value.setattr("culprit", error.culprit());
        let _ = value.setattr("rank", error.culprit());
        let _ = value.setattr("reporter", error.reporter());
        let _ = value.setattr("step", error.step());
        let _ = value.setattr("node", error.node());
        let _ = value.setattr("op", error.op());
        let _ = value.setattr("path", error.path());
        let _ = value.setattr("findings", error.findings());
        let _ = value.setattr("symbols", error.symbols());
        let _ = value.setattr("is_of_dtypes", error.is_dtype_error());
        let groups: Vec<String> = error.unknown_groups().into_iter().map(|g| g.name).collect();
        let _ = value.setattr("unknown_groups", groups);
    });
    exception
}

/// The syntax of groups in arguments of functions.
const ARGUMENTS: GroupSyntax = GroupSyntax {
    entry: |group| format!("{:?}: {:?}", group.name, group.example),
    entries: |entries| format!("groups={{{}}}", entries.join(", ")),
    ranks: |ranks| format!("ranks={ranks}"),
};

/// A hint at the argument that gives symbols a range, for errors that are about the ranges of symbols; else empty.
fn dims_hint(error: &symmc::Error) -> &'static str {
    if error.symbols().is_empty() {
        ""
    } else {
        "; the argument `dims` of `open` states ranges and equal sizes"
    }
}

/// The longest text of an exception that is sent to other ranks, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The text of an exception for other ranks: one line of limited length.
pub fn clean_reason(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON_CHARS).collect()
}

/// An exception for an invalid argument.
pub fn input_error(message: impl Into<String>) -> PyErr {
    to_exception(symmc::Error::new(ErrorKind::Input, message))
}

/// An exception for an exhausted resource of the system.
pub fn resource_error(message: impl Into<String>) -> PyErr {
    to_exception(symmc::Error::new(ErrorKind::Resources, message))
}

/// An exception for a defect of symmc.
pub fn defect_error(message: impl Into<String>) -> PyErr {
    to_exception(symmc::Error::new(ErrorKind::Defect, message))
}

/// Adds the classes to the module. Their attributes also exist in exceptions that Python code raises.
pub fn add_exceptions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = py.get_type::<Error>();
    base.setattr("kind", "error")?;
    for name in ["culprit", "reporter", "rank", "step", "node", "op", "path"] {
        base.setattr(name, py.None())?;
    }
    base.setattr("findings", PyTuple::empty(py))?;
    base.setattr("symbols", PyTuple::empty(py))?;
    base.setattr("is_of_dtypes", false)?;
    base.setattr("unknown_groups", PyTuple::empty(py))?;
    module.add("Error", base)?;
    let classes = [
        ("InputError", "input", py.get_type::<InputError>()),
        ("UnsupportedError", "unsupported", py.get_type::<UnsupportedError>()),
        ("ResourceError", "resources", py.get_type::<ResourceError>()),
        ("DisagreementError", "disagreement", py.get_type::<DisagreementError>()),
        ("CheckError", "check", py.get_type::<CheckError>()),
        ("RunError", "run", py.get_type::<RunError>()),
        ("PeerError", "peer", py.get_type::<PeerError>()),
        ("DefectError", "defect", py.get_type::<DefectError>()),
    ];
    classes.into_iter().try_for_each(|(name, kind, class)| {
        class.setattr("kind", kind)?;
        module.add(name, class)
    })?;
    add_data_errors(module)
}

/// Adds the classes for bad data. For an index out of range PyTorch raises an IndexError in some operators, and a RuntimeError in
/// others.
fn add_data_errors(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let input = py.get_type::<InputError>();
    let runtime = py.get_type::<PyRuntimeError>();
    let indices = PyTuple::new(py, [&input, &py.get_type::<PyIndexError>(), &runtime])?;
    let data_bases = PyTuple::new(py, [&input, &runtime])?;
    let classes = [
        (&BAD_INDEX, "IndexRangeError", indices, "An index of a run is outside of the axis that it indexes."),
        (
            &BAD_DATA,
            "DataError",
            data_bases,
            "A step of a run rejects its data, for example an integer that is divided by zero.",
        ),
    ];
    for (cell, name, bases, doc) in classes {
        let attributes = PyDict::new(py);
        attributes.set_item("__module__", "symmc")?;
        attributes.set_item("__doc__", doc)?;
        let class = py.get_type::<PyType>().call1((name, bases, attributes))?.cast_into::<PyType>()?;
        module.add(name, &class)?;
        // The module is created once in a process.
        let _ = cell.set(py, class.unbind());
    }
    Ok(())
}
