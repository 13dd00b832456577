//! Sessions: one rank of a plan that stays open.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use symmc::{DType, SessionBuffer, SessionConfig, ValueKind};

use crate::argument::{to_integer, to_timeout};
use crate::dlpack::{ForeignTensor, device};
use crate::error::{clean_reason, input_error, to_exception};
use crate::gpu::{gpu_number, on_gpu};
use crate::group::Group;
use crate::interrupt::{POLL_INTERVAL, check_wait, run_interruptible};
use crate::launch::{LaunchBindings, expect_device};
use crate::plan::{Plan, memory_by_use};
use crate::process_bound::ProcessBound;
use crate::tensor::Tensor;
use crate::view::{RunCounter, SymmetricBuffer, View};

/// An input or an output, at the current sizes.
#[pyclass(frozen, get_all, module = "symmc")]
pub struct Value {
    /// The name of the value in the program.
    name: String,
    /// The name under which a weight is stored. For an argument, its name in the file of the program.
    source: Option<String>,
    /// argument, parameter, constant or output.
    kind: &'static str,
    /// The type of the elements.
    dtype: String,
    /// The extent of each axis, in elements.
    shape: Py<PyTuple>,
    /// The number of bytes.
    nbytes: usize,
    /// For an output, the name of the input that it replaces.
    replaces: Option<String>,
    /// For an output, the axes of which only the first elements are the result. Their number is data: see `Session.extents`.
    counted_axes: Py<PyTuple>,
}

#[pymethods]
impl Value {
    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<symmc.Value {} %{}: {}{}>", self.kind, self.name, self.dtype, self.shape.bind(py))
    }
}

/// One rank of a plan that stays open, on the host or on a GPU.
///
/// Tensors of other libraries are exchanged through DLPack. A bound tensor is used in place, and kept as long as the session may use
/// it. All ranks of the group open the session together and start the same runs in the same order.
#[pyclass(frozen, module = "symmc")]
pub struct Session {
    inner: ProcessBound<Mutex<Option<SessionState>>>,
    rank: u32,
    name: String,
    runs: RunCounter,
    /// The number of the GPU; `None` on the host.
    gpu: Option<i32>,
}

struct SessionState {
    session: symmc::Session,
    /// The object that keeps the tensor bound to each name alive.
    bound: HashMap<String, Py<PyAny>>,
    /// The objects of former bindings whose memory runs in progress may still use.
    retired: Vec<Py<PyAny>>,
    /// The bindings of the last launch.
    launched: LaunchBindings,
    /// The memory of outputs to which views refer, by the numbers of the outputs.
    viewed: HashMap<usize, SessionBuffer>,
}

impl Drop for Session {
    /// Ends the session without the GIL: rank 0 waits until other ranks have ended the runs that it has ended.
    fn drop(&mut self) {
        let Ok(inner) = self.inner.get("session") else { return };
        let open = inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(SessionState { session, bound, retired, .. }) = open else { return };
        Python::attach(|py| py.detach(|| drop(session)));
        drop((bound, retired));
    }
}

impl SessionState {
    /// Keeps the owner of a bound tensor, in place of the former owner.
    fn store_keeper(&mut self, name: &str, keeper: Option<Py<PyAny>>) {
        let old = match keeper {
            Some(keeper) => self.bound.insert(name.to_string(), keeper),
            None => self.bound.remove(name),
        };
        match self.session.poll() {
            Ok(false) => self.retired.extend(old),
            _ => self.retired.clear(),
        }
    }

    fn bind(&mut self, name: &str, tensor: ForeignTensor) -> Result<(), symmc::Error> {
        // SAFETY: the tensor is kept until another one is bound and all runs that use it have ended.
        unsafe { self.session.bind(name, tensor.pointer(), tensor.bytes)? };
        self.launched.forget();
        self.store_keeper(name, Some(tensor.into_capsule()));
        self.forget_view(name)
    }

    /// The output of this name that replaces no input, and its number among those.
    fn find_returned(&self, name: &str) -> Result<Option<(usize, symmc::SessionValue)>, symmc::Error> {
        let returned = self.session.outputs()?.into_iter().filter(|value| value.replaces.is_none());
        let mut numbered = returned.enumerate();
        Ok(numbered.find(|(number, value)| value.name == name || format!("out.{number}") == name))
    }

    /// Forgets the view memory of an output to which another tensor was bound.
    fn forget_view(&mut self, name: &str) -> Result<(), symmc::Error> {
        if !self.viewed.is_empty()
            && let Some((number, _)) = self.find_returned(name)?
        {
            self.viewed.remove(&number);
        }
        Ok(())
    }

    /// An output and the buffer that its views share. The first call allocates the buffer, and copies the output into it.
    fn view_buffer(&mut self, name: &str) -> Result<(symmc::SessionValue, SessionBuffer), symmc::Error> {
        let error = |text: String| symmc::Error::new(symmc::ErrorKind::Input, text);
        let Some((number, value)) = self.find_returned(name)? else {
            return Err(error(format!("{name}: expected an output that replaces no input")));
        };
        if !value.counted_axes.is_empty() {
            return Err(error(format!("{name}: its extents are data, so a view cannot have them: read it")));
        }
        let own = format!("out.{number}");
        if self.bound.contains_key(&own) || self.bound.contains_key(&value.name) {
            return Err(error(format!("{name}: a tensor is bound to it: read that tensor")));
        }
        if !self.session.poll()? {
            return Err(error(format!("{name}: a run is in progress: wait until it has ended")));
        }
        if let Some(buffer) = self.viewed.get(&number).filter(|buffer| buffer.bytes() >= value.bytes) {
            return Ok((value, buffer.clone()));
        }
        let current = self.session.read(&own)?;
        let buffer = self.session.allocate(value.bytes)?;
        buffer.write(0, current.data())?;
        // SAFETY: only views share it. Their documentation says that runs write there.
        unsafe { self.session.bind_buffer(&own, &buffer)? };
        self.launched.forget();
        self.viewed.insert(number, buffer.clone());
        Ok((value, buffer))
    }

    /// Unbinds outputs that have outgrown the buffer of their views. They use memory of the session again.
    fn drop_outgrown_views(&mut self) -> Result<(), symmc::Error> {
        if self.viewed.is_empty() {
            return Ok(());
        }
        let returned = self.session.outputs()?.into_iter().filter(|value| value.replaces.is_none());
        for (number, value) in returned.enumerate() {
            if self.viewed.get(&number).is_some_and(|buffer| buffer.bytes() < value.bytes) {
                self.session.unbind(&format!("out.{number}"))?;
                self.viewed.remove(&number);
            }
        }
        Ok(())
    }

    /// Starts a run, on the stream of the caller with this driver handle if one is given.
    fn enqueue_run(&mut self, stream: Option<usize>) -> Result<(), symmc::Error> {
        match stream {
            None => self.session.enqueue(),
            Some(stream) => {
                let stream: *mut c_void = std::ptr::with_exposed_provenance_mut(stream);
                // SAFETY: the caller ensures that the stream exists.
                unsafe { self.session.enqueue_on(stream) }
            }
        }
    }
}

/// Refuses a tensor of another type. The session refuses unknown names.
fn expect_type(open: &SessionState, name: &str, tensor: &ForeignTensor) -> PyResult<()> {
    match open.session.value(name) {
        Ok(value) if value.dtype != tensor.dtype || value.extents != tensor.shape => {
            Err(input_error(format!(
                "{name}: expected {}{:?}, found {}{:?}",
                value.dtype, value.extents, tensor.dtype, tensor.shape
            )))
        }
        _ => Ok(()),
    }
}

impl Session {
    fn from_session(session: symmc::Session, rank: u32, name: String, gpu: Option<i32>) -> Session {
        let open = SessionState {
            session,
            bound: HashMap::new(),
            retired: Vec::new(),
            launched: LaunchBindings::default(),
            viewed: HashMap::new(),
        };
        let inner = ProcessBound::new(Mutex::new(Some(open)));
        Session { inner, rank, name, runs: RunCounter::default(), gpu }
    }

    fn lock_session(&self) -> PyResult<MutexGuard<'_, Option<SessionState>>> {
        self.inner.try_lock("session")
    }

    fn with_session<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut SessionState) -> Result<T, symmc::Error> + Send,
    ) -> PyResult<T> {
        let mut guard = self.lock_session()?;
        let open = guard.as_mut().ok_or_else(|| input_error("the session is closed"))?;
        py.detach(|| work(open)).map_err(to_exception)
    }

    /// Refuses a tensor of another device or type.
    fn expect_tensor(&self, open: &SessionState, name: &str, tensor: &ForeignTensor) -> PyResult<()> {
        expect_device(self.gpu, tensor.device, || name.to_string())?;
        expect_type(open, name, tensor)
    }

    /// Waits until all runs have ended, and handles signals meanwhile.
    fn wait_until_idle(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<()> {
        let start = Instant::now();
        loop {
            let remaining = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let interval = remaining.map_or(POLL_INTERVAL, |time| time.min(POLL_INTERVAL));
            let is_last = remaining.is_some_and(|time| time <= POLL_INTERVAL);
            let ended = self.with_session(py, |open| {
                if open.session.poll()? {
                    return Ok(true);
                }
                match open.session.wait(interval) {
                    Ok(()) => Ok(true),
                    // A run that failed has ended.
                    Err(error) if is_last || open.session.poll().is_err() => Err(error),
                    Err(_) => Ok(false),
                }
            });
            match ended {
                Ok(true) => return Ok(()),
                // Ctrl-C interrupts all ranks of a terminal. It explains more than the error that a peer has left.
                Ok(false) => check_wait(py)?,
                Err(_) => py.check_signals()?,
            }
            ended?;
        }
    }
}

#[pymethods]
impl Session {
    /// Opens the session of the group's rank. Returns when all ranks have opened theirs.
    ///
    /// group: the `Group` of this rank, a process group of PyTorch, or None for the group of the environment. gpu: the number of
    /// the GPU; None runs the session on the host. timeout: the longest wait for other ranks, in seconds. extendable: whether
    /// `open_program` may open other programs; sessions on the host reserve addresses for them. symmetric_bytes: the bytes of
    /// symmetric memory for `allocate_symmetric`, in addition to those of the plan; equal on all ranks.
    #[new]
    #[pyo3(signature = (plan, group=None, *, gpu=None, timeout=30.0, extendable=false, symmetric_bytes=0))]
    fn new(
        py: Python<'_>,
        plan: &Plan,
        group: Option<&Bound<'_, PyAny>>,
        gpu: Option<i128>,
        timeout: f64,
        extendable: bool,
        symmetric_bytes: usize,
    ) -> PyResult<Session> {
        let limit = to_timeout(timeout)?;
        let gpu = gpu_number(gpu)?;
        let config = SessionConfig::default().with_timeout(limit).with_extendable(extendable);
        let config = config.with_symmetric_bytes(symmetric_bytes);
        let config = on_gpu(config, gpu)?;
        let plan = plan.0.clone();
        let group = Group::resolve_group(py, group, timeout)?;
        let rank = group.rank();
        let name = plan.source.name.clone();
        let session = run_interruptible(py, "open", move || symmc::Session::open(&plan, &group, &config))?;
        Ok(Session::from_session(session, rank, name, gpu.map(|gpu| gpu as i32)))
    }

    /// Opens another program in this session. The programs take turns in the same arenas. All ranks open the same programs, and run
    /// all of them in the same order. Each program is closed separately; an error of a run ends all of them.
    fn open_program(&self, py: Python<'_>, plan: &Plan) -> PyResult<Session> {
        let plan = plan.0.clone();
        let name = plan.source.name.clone();
        let session = self.with_session(py, |open| open.session.open_program(&plan))?;
        Ok(Session::from_session(session, self.rank, name, self.gpu))
    }

    /// Allocates symmetric memory for a tensor of this shape, filled with zeros, from the bytes that `symmetric_bytes` reserved. All
    /// ranks allocate the same sizes together, in the same order. Inputs that the plan has in symmetric memory are read in place
    /// from such a buffer, also by peers. In a run all ranks bind the same buffer to such an input. The memory is freed when the
    /// session has ended and nothing refers to it.
    fn allocate_symmetric(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &str,
    ) -> PyResult<SymmetricBuffer> {
        let kind = DType::from_name(dtype).ok_or_else(|| {
            input_error(format!("dtype: expected one of {}, found {dtype:?}", DType::names()))
        })?;
        let bytes = shape.iter().try_fold(kind.size(), |bytes, &extent| bytes.checked_mul(extent));
        let bytes = bytes.ok_or_else(|| input_error(format!("shape: {shape:?} is too large")))?;
        let buffer = self.with_session(py, |open| open.session.allocate_symmetric(bytes))?;
        Ok(SymmetricBuffer::new(buffer, kind, shape, self.gpu))
    }

    /// The bytes that the session uses on its device now, for all its programs together: arenas, flags, scratch, and inputs and
    /// outputs that are not bound (`held`).
    fn memory(&self, py: Python<'_>) -> PyResult<IndexMap<&'static str, usize>> {
        self.with_session(py, |open| Ok(open.session.memory_usage())).map(memory_by_use)
    }

    /// The rank of this session.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// Sets the values of symbols for the next runs.
    #[pyo3(signature = (**symbols))]
    fn set(&self, py: Python<'_>, symbols: Option<IndexMap<String, i128>>) -> PyResult<()> {
        let symbols = symbols.unwrap_or_default();
        let values = symbols.iter().map(|(name, n)| Ok((name.as_str(), to_integer(name, *n)?)));
        let values = values.collect::<PyResult<Vec<(&str, i64)>>>()?;
        self.with_session(py, |open| {
            open.launched.forget();
            open.session.set_all(&values)?;
            open.drop_outgrown_views()
        })
    }

    /// The arguments, which are the inputs that change from run to run.
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Value>> {
        python_values(py, self.with_session(py, |open| open.session.inputs())?)
    }

    /// The parameters, which are the inputs that are given once.
    fn parameters(&self, py: Python<'_>) -> PyResult<Vec<Value>> {
        python_values(py, self.with_session(py, |open| open.session.parameters())?)
    }

    /// The outputs, including those that replace an input.
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<Value>> {
        python_values(py, self.with_session(py, |open| open.session.outputs())?)
    }

    /// Makes the next runs read an input from a tensor, or write an output to it, in place. The session keeps the tensor.
    fn bind(&self, py: Python<'_>, name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = ForeignTensor::from_object(name, tensor)?;
        let mut guard = self.lock_session()?;
        let open = guard.as_mut().ok_or_else(|| input_error("the session is closed"))?;
        self.expect_tensor(open, name, &tensor)?;
        py.detach(|| open.bind(name, tensor)).map_err(to_exception)
    }

    /// Makes the next runs use memory of the session for an input or output again.
    fn unbind(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with_session(py, |open| {
            open.session.unbind(name)?;
            open.launched.forget();
            open.store_keeper(name, None);
            open.forget_view(name)
        })
    }

    /// Copies a tensor in memory of the host to an input.
    fn write(&self, py: Python<'_>, name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = ForeignTensor::from_read_object(name, tensor)?;
        if tensor.device.kind == device::CUDA {
            return Err(input_error(format!(
                "{name}: expected memory of the host, found memory of a GPU: bind it instead"
            )));
        }
        let mut guard = self.lock_session()?;
        let open = guard.as_mut().ok_or_else(|| input_error("the session is closed"))?;
        expect_type(open, name, &tensor)?;
        py.detach(|| {
            let data: &[u8] = match tensor.bytes {
                0 => &[],
                // SAFETY: the tensor has this many bytes, and is kept during the call.
                bytes => unsafe { std::slice::from_raw_parts(tensor.pointer(), bytes) },
            };
            open.session.write(name, data)
        })
        .map_err(to_exception)
    }

    /// A copy of the current value of an output or an input, in memory of the host.
    fn read(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        self.with_session(py, |open| open.session.read(name)).map(|tensor| Tensor::new(Arc::new(tensor)))
    }

    /// The extents of an output in the last run. They are those of its memory, except along axes whose number of elements is data.
    fn extents<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyTuple>> {
        let extents = self.with_session(py, |open| open.session.read_extents(name))?;
        PyTuple::new(py, extents)
    }

    /// The output of the last run without a copy: see `View`. Only the first call for an output copies it.
    fn view(&self, py: Python<'_>, name: &str) -> PyResult<View> {
        let (value, buffer) = self.with_session(py, |open| open.view_buffer(name))?;
        Ok(View::new(value, buffer, self.gpu, &self.runs))
    }

    /// Runs once and waits for the end.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        self.with_session(py, |open| {
            self.runs.count_run();
            open.session.enqueue()
        })?;
        self.wait_until_idle(py, None)
    }

    /// Starts one run after those that were started before, and returns at once. stream: the driver handle of a stream of the caller
    /// on the GPU.
    #[pyo3(signature = (stream=None))]
    fn enqueue(&self, py: Python<'_>, stream: Option<usize>) -> PyResult<()> {
        self.with_session(py, |open| {
            self.runs.count_run();
            open.enqueue_run(stream)
        })
    }

    /// Runs once with all arguments and outputs in these PyTorch tensors, by number. A compiled function calls this once per call.
    /// With a stream the run is enqueued there; without one it has ended when this returns. The caller keeps the tensors until the
    /// run has ended.
    ///
    /// Returns the numbers of the arguments whose layout a run cannot use, in which case nothing is started. Tensors must be
    /// contiguous, and aligned to the size of an element; on a GPU to 16 bytes.
    fn launch(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyTuple>,
        outputs: &Bound<'_, PyList>,
        stream: Option<usize>,
    ) -> PyResult<Option<Vec<usize>>> {
        let mut guard = self.lock_session()?;
        let open = guard.as_mut().ok_or_else(|| input_error("the session is closed"))?;
        let unusable = open.launched.locate_tensors(&open.session, self.gpu, arguments, outputs)?;
        if !unusable.is_empty() {
            return Ok(Some(unusable));
        }
        py.detach(|| {
            open.viewed.clear();
            // SAFETY: the caller ensures it.
            unsafe { open.launched.bind(&mut open.session)? };
            self.runs.count_run();
            open.enqueue_run(stream)
        })
        .map_err(to_exception)?;
        drop(guard);
        if stream.is_none() {
            self.wait_until_idle(py, None)?;
        }
        Ok(None)
    }

    /// The number of runs of this program that were started.
    #[getter]
    fn started_runs(&self) -> u64 {
        self.runs.current_run()
    }

    /// Whether all runs have ended.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.with_session(py, |open| open.session.poll())
    }

    /// Waits until all runs have ended, with a timeout in seconds. After a timeout the runs continue.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let seconds = |timeout| {
            let limit = Duration::try_from_secs_f64(timeout);
            limit.map_err(|_| input_error(format!("timeout: expected seconds, found {timeout}")))
        };
        self.wait_until_idle(py, timeout.map(seconds).transpose()?)
    }

    /// Releases the memory of the arenas until `resume`. All ranks call both, between runs.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.with_session(py, |open| open.session.release())
    }

    /// Allocates the memory of the arenas again.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.with_session(py, |open| open.session.resume())
    }

    /// Waits until all runs have ended, and closes the session.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.lock_session()?.take();
        let Some(SessionState { session, bound, retired, .. }) = open else { return Ok(()) };
        let closed = py.detach(|| session.close()).map_err(to_exception);
        drop((bound, retired));
        closed
    }

    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        slf.get().with_session(py, |_| Ok(()))?;
        Ok(slf)
    }

    /// Closes the session. After an exception, ends it on all ranks at once. The errors of the other ranks name the exception.
    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        if exception.get_item(0).is_ok_and(|kind| kind.is_none()) {
            self.close(py)?;
            return Ok(false);
        }
        // The exception explains more than an error of ending the session would, for example in a forked process, which has no
        // session.
        let open = self.lock_session().ok().and_then(|mut guard| guard.take());
        if let Some(SessionState { session, bound, retired, .. }) = open {
            let reason = exception_reason(exception);
            let _ = py.detach(|| session.abort(&reason));
            drop((bound, retired));
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let device = self.gpu.map_or("host".to_string(), |gpu| format!("GPU {gpu}"));
        format!("<symmc.Session {:?}: rank {}, {device}>", self.name, self.rank)
    }
}

/// The type and the text of an exception in one line. `exception` is the arguments of `__exit__`: type, exception and traceback.
fn exception_reason(exception: &Bound<'_, PyTuple>) -> String {
    let kind = exception.get_item(0).and_then(|kind| kind.getattr("__name__")?.extract::<String>());
    let kind = kind.unwrap_or_else(|_| "an exception".into());
    let text = exception.get_item(1).and_then(|value| value.str()?.extract::<String>()).unwrap_or_default();
    let reason = if text.is_empty() { kind } else { format!("{kind}: {text}") };
    clean_reason(&reason)
}

fn python_values(py: Python<'_>, all: Vec<symmc::SessionValue>) -> PyResult<Vec<Value>> {
    let value = |value: symmc::SessionValue| {
        let kind = match value.kind {
            ValueKind::Argument => "argument",
            ValueKind::Parameter => "parameter",
            ValueKind::Constant => "constant",
            _ => "output",
        };
        let shape = PyTuple::new(py, value.extents)?.unbind();
        Ok(Value {
            name: value.name,
            source: value.source,
            kind,
            dtype: value.dtype.to_string(),
            shape,
            nbytes: value.bytes,
            replaces: value.replaces,
            counted_axes: PyTuple::new(py, value.counted_axes)?.unbind(),
        })
    };
    all.into_iter().map(value).collect()
}
