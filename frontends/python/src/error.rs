//! Errors of symmc as exceptions, one class for each kind.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use symmc::ErrorKind;

create_exception!(
    symmc,
    Error,
    PyException,
    "What went wrong. `kind` says what sort of thing it was; `rank`, `step`, `node`, `op` and `path` are what it is about, as \
     far as it is known; `findings` lists what a check found."
);
create_exception!(symmc, InputError, Error, "What was given is not what it should be.");
create_exception!(
    symmc,
    UnsupportedError,
    Error,
    "What was given is sound, but nothing here plans or runs it."
);
create_exception!(symmc, ResourceError, Error, "More memory, threads or files are needed than there are.");
create_exception!(symmc, DisagreementError, Error, "The ranks of one run were started for different things.");
create_exception!(
    symmc,
    CheckError,
    Error,
    "A plan is not proved safe, or computes something else than its source."
);
create_exception!(symmc, RunError, Error, "A step failed, or the system refused something that a run needs.");
create_exception!(symmc, PeerError, Error, "A rank died, did not come or made no progress.");
create_exception!(symmc, DefectError, Error, "A fault of symmc itself.");

/// An exception for an error.
pub fn raised(error: symmc::Error) -> PyErr {
    let text = error.to_string();
    let (name, exception) = match error.kind() {
        ErrorKind::Input => ("input", InputError::new_err(text)),
        ErrorKind::Unsupported => ("unsupported", UnsupportedError::new_err(text)),
        ErrorKind::Resources => ("resources", ResourceError::new_err(text)),
        ErrorKind::Disagreement => ("disagreement", DisagreementError::new_err(text)),
        ErrorKind::Check => ("check", CheckError::new_err(text)),
        ErrorKind::Run => ("run", RunError::new_err(text)),
        ErrorKind::Peer => ("peer", PeerError::new_err(text)),
        _ => ("defect", DefectError::new_err(text)),
    };
    Python::attach(|py| {
        let value = exception.value(py);
        // An exception takes any attribute.
        let _ = value.setattr("kind", name);
        let _ = value.setattr("rank", error.rank());
        let _ = value.setattr("step", error.step());
        let _ = value.setattr("node", error.node());
        let _ = value.setattr("op", error.op());
        let _ = value.setattr("path", error.path());
        let _ = value.setattr("findings", error.findings());
    });
    exception
}

/// An exception for what the caller gave.
pub fn refused(message: impl Into<String>) -> PyErr {
    raised(symmc::Error::new(ErrorKind::Input, message))
}

/// Adds the classes to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let classes = [
        ("Error", py.get_type::<Error>()),
        ("InputError", py.get_type::<InputError>()),
        ("UnsupportedError", py.get_type::<UnsupportedError>()),
        ("ResourceError", py.get_type::<ResourceError>()),
        ("DisagreementError", py.get_type::<DisagreementError>()),
        ("CheckError", py.get_type::<CheckError>()),
        ("RunError", py.get_type::<RunError>()),
        ("PeerError", py.get_type::<PeerError>()),
        ("DefectError", py.get_type::<DefectError>()),
    ];
    classes.into_iter().try_for_each(|(name, class)| module.add(name, class))
}
