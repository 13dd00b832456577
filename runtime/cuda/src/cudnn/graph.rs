//! The graph of an attention, as cuDNN recognises it, and its plan.
//!
//! The library has one kernel for a chain of ops that it knows: a product of queries and keys, a scale, a cap, a bias, one
//! choice between scores and minus infinity for each thing that hides columns, the maximum, difference, exponential and
//! sum of a softmax with its statistics, a quotient, and a product with the values (cuDNN's documentation, "Fused flash
//! attention"). Each op is a descriptor whose operands are tensors; those between two ops have no memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use symmc_ir::DType;

use super::attention::{Attention, Bias};
use super::descriptor::{Attribute, Descriptor, Kind, Value};
use super::library::{Cudnn, Handle};
use crate::driver::{Device, Stream};
use crate::error::CudaError;
use crate::launch::Address;

/// Types of elements, as `cudnnDataType_t` numbers them.
const F32: i32 = 0;
const F16: i32 = 2;
const I32: i32 = 4;
const BF16: i32 = 9;
const BOOL: i32 = 11;

/// Element-wise ops, as `cudnnPointwiseMode_t` numbers them.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Mode {
    Add = 0,
    Mul = 1,
    Div = 6,
    Sub = 9,
    Exp = 13,
    Log = 15,
    Tanh = 101,
    Greater = 302,
    GreaterEqual = 303,
    /// The index along an axis.
    Index = 501,
    Select = 601,
}

/// The reductions, as `cudnnReduceTensorOp_t` numbers them.
const SUM: i32 = 0;
const MAX: i32 = 3;

/// The heuristic that is asked for engines.
const MODE_A: i32 = 3;

/// The compute capability from which on decoding with heads that share keys is reported to be wrong, by PyTorch with cuDNN 9.19
/// and 9.20 on 10.0.
const FAULTY: [u32; 2] = [10, 0];

/// The type of a dtype of the IR.
fn data_type(dtype: DType) -> Result<i32, CudaError> {
    match dtype {
        DType::BF16 => Ok(BF16),
        DType::F16 => Ok(F16),
        DType::F32 => Ok(F32),
        other => Err(CudaError::Unsupported(format!("cuDNN's attention has no {other}"))),
    }
}

/// What is known of a tensor besides its descriptor.
#[derive(Clone, Copy)]
struct Edge {
    /// Its place among the tensors; its number for the library is one more.
    index: usize,
    extents: [i64; 4],
}

/// Where the data of a tensor of the graph is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Data {
    Queries,
    Keys,
    Values,
    Result,
    /// With rows at multiples of 16 bytes, or of its elements.
    Bias {
        aligned: bool,
    },
    /// Four bytes in the host's memory.
    Constant([u8; 4]),
}

/// A graph that is being built.
struct Builder {
    cudnn: &'static Cudnn,
    tensors: Vec<Descriptor>,
    /// Descriptions of ops, which the ops name.
    kinds: Vec<Descriptor>,
    ops: Vec<Descriptor>,
    data: Vec<(i64, Data)>,
}

/// Row-major strides.
fn dense(extents: [i64; 4]) -> [i64; 4] {
    let [_, b, c, d] = extents;
    [b * c * d, c * d, d, 1]
}

impl Builder {
    fn tensor(
        &mut self,
        extents: [i64; 4],
        strides: [i64; 4],
        kind: i32,
        data: Option<Data>,
    ) -> Result<Edge, CudaError> {
        let index = self.tensors.len();
        let id = index as i64 + 1;
        let alignment = match data {
            Some(Data::Bias { aligned: false }) => 2,
            _ => 16,
        };
        let mut made = Descriptor::new(self.cudnn, Kind::Tensor)?
            .with(Attribute::TensorId, Value::Ints(&[id]))?
            .with(Attribute::TensorType, Value::DataType(kind))?
            .with(Attribute::TensorExtents, Value::Ints(&extents))?
            .with(Attribute::TensorStrides, Value::Ints(&strides))?
            .with(Attribute::TensorAlignment, Value::Ints(&[alignment]))?;
        match data {
            None => made = made.with(Attribute::TensorVirtual, Value::Bool(true))?,
            Some(Data::Constant(_)) => made = made.with(Attribute::TensorByValue, Value::Bool(true))?,
            Some(_) => {}
        }
        self.tensors.push(made.finish()?);
        self.data.extend(data.map(|data| (id, data)));
        Ok(Edge { index, extents })
    }

    /// A tensor without memory.
    fn between(&mut self, extents: [i64; 4], kind: i32) -> Result<Edge, CudaError> {
        self.tensor(extents, dense(extents), kind, None)
    }

    fn constant(&mut self, bytes: [u8; 4], kind: i32) -> Result<Edge, CudaError> {
        self.tensor([1; 4], [1; 4], kind, Some(Data::Constant(bytes)))
    }

    fn float(&mut self, number: f32) -> Result<Edge, CudaError> {
        self.constant(number.to_le_bytes(), F32)
    }

    fn int(&mut self, number: i32) -> Result<Edge, CudaError> {
        self.constant(number.to_le_bytes(), I32)
    }

    /// An op of up to three operands with a result that exists.
    fn put(
        &mut self,
        mode: Mode,
        operands: &[Edge],
        precision: i32,
        axis: Option<i64>,
        to: Edge,
    ) -> Result<Edge, CudaError> {
        let mut kind = Descriptor::new(self.cudnn, Kind::Pointwise)?
            .with(Attribute::PointwiseMode, Value::PointwiseMode(mode as i32))?
            .with(Attribute::PointwisePrecision, Value::DataType(precision))?;
        if let Some(axis) = axis {
            kind = kind.with(Attribute::PointwiseAxis, Value::Ints(&[axis]))?;
        }
        let kind = kind.finish()?;
        let mut op = Descriptor::new(self.cudnn, Kind::OperationPointwise)?
            .with(Attribute::OperationPointwise, Value::One(&kind))?
            .with(Attribute::OperationPointwiseY, Value::One(&self.tensors[to.index]))?;
        let places =
            [Attribute::OperationPointwiseX, Attribute::OperationPointwiseB, Attribute::OperationPointwiseT];
        for (place, operand) in places.into_iter().zip(operands) {
            op = op.with(place, Value::One(&self.tensors[operand.index]))?;
        }
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(to)
    }

    /// An op of floats.
    fn map(&mut self, mode: Mode, operands: &[Edge]) -> Result<Edge, CudaError> {
        let to = self.between(operands[0].extents, F32)?;
        self.put(mode, operands, F32, None, to)
    }

    /// An op of integers.
    fn count(&mut self, mode: Mode, x: Edge, y: Edge) -> Result<Edge, CudaError> {
        let to = self.between(x.extents, I32)?;
        self.put(mode, &[x, y], I32, None, to)
    }

    /// An op whose result is true or false.
    fn test(&mut self, mode: Mode, x: Edge, y: Edge) -> Result<Edge, CudaError> {
        let to = self.between(x.extents, BOOL)?;
        self.put(mode, &[x, y], BOOL, None, to)
    }

    /// The index of each score along an axis.
    fn index(&mut self, scores: Edge, axis: i64) -> Result<Edge, CudaError> {
        let to = self.between(scores.extents, I32)?;
        self.put(Mode::Index, &[scores], F32, Some(axis), to)
    }

    /// The scores where `seen`, minus infinity elsewhere.
    fn hide(&mut self, scores: Edge, seen: Edge) -> Result<Edge, CudaError> {
        let nothing = self.float(f32::NEG_INFINITY)?;
        self.map(Mode::Select, &[scores, nothing, seen])
    }

    fn reduce(&mut self, operator: i32, x: Edge) -> Result<Edge, CudaError> {
        let [a, b, c, _] = x.extents;
        let to = self.between([a, b, c, 1], F32)?;
        let kind = Descriptor::new(self.cudnn, Kind::Reduction)?
            .with(Attribute::ReductionOperator, Value::Reduction(operator))?
            .with(Attribute::ReductionPrecision, Value::DataType(F32))?
            .finish()?;
        let op = Descriptor::new(self.cudnn, Kind::OperationReduction)?
            .with(Attribute::OperationReduction, Value::One(&kind))?
            .with(Attribute::OperationReductionX, Value::One(&self.tensors[x.index]))?
            .with(Attribute::OperationReductionY, Value::One(&self.tensors[to.index]))?;
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(to)
    }

    /// The product of two matrices.
    fn product(&mut self, [a, b, c]: [Edge; 3]) -> Result<(), CudaError> {
        let kind = Descriptor::new(self.cudnn, Kind::MatMul)?
            .with(Attribute::MatMulPrecision, Value::DataType(F32))?
            .finish()?;
        let op = Descriptor::new(self.cudnn, Kind::OperationMatMul)?
            .with(Attribute::OperationMatMul, Value::One(&kind))?
            .with(Attribute::OperationMatMulA, Value::One(&self.tensors[a.index]))?
            .with(Attribute::OperationMatMulB, Value::One(&self.tensors[b.index]))?
            .with(Attribute::OperationMatMulC, Value::One(&self.tensors[c.index]))?;
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(())
    }

    /// The scores, with what is hidden at minus infinity.
    fn scores(&mut self, x: &Attention) -> Result<Edge, CudaError> {
        let n = |n: usize| n as i64;
        let kind = data_type(x.dtype)?;
        let [b, h, l] = x.q.strides;
        let q = [n(x.batch), n(x.heads), n(x.queries), n(x.e)];
        let q = self.tensor(q, [b, h, l, 1], kind, Some(Data::Queries))?;
        let [b, h, s] = x.k.strides;
        let k = [n(x.batch), n(x.key_heads), n(x.e), n(x.keys)];
        let k = self.tensor(k, [b, h, 1, s], kind, Some(Data::Keys))?;
        let mut scores = self.between([n(x.batch), n(x.heads), n(x.queries), n(x.keys)], F32)?;
        self.product([q, k, scores])?;
        let scale = self.float(x.scale)?;
        scores = self.map(Mode::Mul, &[scores, scale])?;
        if let Some(cap) = x.cap {
            let cap = self.float(cap)?;
            scores = self.map(Mode::Div, &[scores, cap])?;
            scores = self.map(Mode::Tanh, &[scores])?;
            scores = self.map(Mode::Mul, &[scores, cap])?;
        }
        if let Some(Bias { at, dtype, extents, strides }) = x.bias {
            let aligned = at.is_multiple_of(16) && strides[..3].iter().all(|s| s % 8 == 0);
            let bias = self.tensor(extents, strides, data_type(dtype)?, Some(Data::Bias { aligned }))?;
            scores = self.map(Mode::Add, &[scores, bias])?;
        }
        self.band(scores, x)
    }

    /// Hides what is outside the band.
    fn band(&mut self, mut scores: Edge, x: &Attention) -> Result<Edge, CudaError> {
        let far = || CudaError::Unsupported(format!("cuDNN's attention has no band as far as {:?}", x.band));
        if let Some(below) = x.band.below {
            let (mut row, column) = (self.index(scores, 2)?, self.index(scores, 3)?);
            // Column `row + below - 1` is the last.
            let shift = below.checked_sub(1).and_then(|s| i32::try_from(s).ok()).ok_or_else(far)?;
            if shift != 0 {
                let shift = self.int(shift)?;
                row = self.count(Mode::Add, row, shift)?;
            }
            let seen = self.test(Mode::GreaterEqual, row, column)?;
            scores = self.hide(scores, seen)?;
        }
        if let Some(from) = x.band.from {
            let (row, column) = (self.index(scores, 2)?, self.index(scores, 3)?);
            // Column + window > row. The library wants this number as a float.
            let window = 1i64.checked_sub(from).filter(|w| w.unsigned_abs() < 1 << 24).ok_or_else(far)?;
            let window = self.float(window as f32)?;
            let column = self.map(Mode::Add, &[column, window])?;
            let seen = self.test(Mode::Greater, column, row)?;
            scores = self.hide(scores, seen)?;
        }
        Ok(scores)
    }

    /// The whole graph's ops.
    fn attention(&mut self, x: &Attention) -> Result<(), CudaError> {
        let scores = self.scores(x)?;
        let n = |n: usize| n as i64;
        let kind = data_type(x.dtype)?;
        let top = self.reduce(MAX, scores)?;
        let less = self.map(Mode::Sub, &[scores, top])?;
        let weights = self.map(Mode::Exp, &[less])?;
        let sum = self.reduce(SUM, weights)?;
        // The library knows the chain by its statistics, although nobody reads them.
        let log = self.map(Mode::Log, &[sum])?;
        self.map(Mode::Add, &[top, log])?;
        let parts = self.between(scores.extents, kind)?;
        self.put(Mode::Div, &[weights, sum], F32, None, parts)?;
        let [b, h, s] = x.v.strides;
        let v = [n(x.batch), n(x.key_heads), n(x.keys), n(x.f)];
        let v = self.tensor(v, [b, h, s, 1], kind, Some(Data::Values))?;
        let [b, h, l] = x.r.strides;
        let r = [n(x.batch), n(x.heads), n(x.queries), n(x.f)];
        let r = self.tensor(r, [b, h, l, 1], kind, Some(Data::Result))?;
        self.product([parts, v, r])
    }
}

/// A handle of the library on one device. One call at a time sets its stream and enqueues.
struct Context {
    cudnn: &'static Cudnn,
    handle: Mutex<Raw>,
    _device: Arc<Device>,
}

struct Raw(Handle);

// SAFETY: the library's handles may be used from any thread, one at a time.
unsafe impl Send for Raw {}

impl Context {
    fn handle(&self) -> Handle {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created by `Planner::new`.
        unsafe { (self.cudnn.functions.destroy)(self.handle()) };
    }
}

/// Prepares attentions on one device; those of one shape share a plan.
pub struct Planner {
    context: Arc<Context>,
    plans: Mutex<IndexMap<String, Option<Arc<Plan>>>>,
}

/// A graph with an engine of the library that runs it.
struct Plan {
    context: Arc<Context>,
    plan: Descriptor,
    workspace: usize,
    data: Vec<(i64, Data)>,
    /// What the plan was made of, last in first out.
    _parts: (Vec<Descriptor>, Builder),
}

impl Planner {
    /// For the device, whose context is current.
    ///
    /// # Errors
    /// cuDNN is not there, or does not start, or its attention is not trusted on this device.
    pub fn new(device: &Arc<Device>) -> Result<Planner, CudaError> {
        if device.capability() >= FAULTY {
            let [major, minor] = device.capability();
            return Err(CudaError::Unsupported(format!(
                "cuDNN's attention is not taken on compute capability {major}.{minor}; expected less than 10.0"
            )));
        }
        let cudnn = Cudnn::load()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the library writes a handle there.
        cudnn.check("starting", unsafe { (cudnn.functions.create)(&mut handle) })?;
        let context = Context { cudnn, handle: Mutex::new(Raw(handle)), _device: device.clone() };
        Ok(Planner { context: Arc::new(context), plans: Mutex::default() })
    }

    /// The version of the library.
    pub(crate) fn version(&self) -> usize {
        self.context.cudnn.version
    }

    /// Prepares an attention with so many bytes of memory beside it; `None` if the library does not take it.
    ///
    /// # Errors
    /// The library refuses the addresses.
    pub fn prepare(
        &self,
        x: &Attention,
        workspace: Address,
        bytes: usize,
    ) -> Result<Option<Prepared>, CudaError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        // What the library refuses is no attention of its own.
        let plan = plans.entry(x.key()).or_insert_with(|| self.plan(x).ok().map(Arc::new));
        match plan.as_ref().filter(|plan| plan.workspace <= bytes) {
            Some(plan) => Prepared::new(plan, x, workspace).map(Some),
            None => Ok(None),
        }
    }

    /// The first plan that the library makes.
    fn plan(&self, x: &Attention) -> Result<Plan, CudaError> {
        let (cudnn, handle) = (self.context.cudnn, self.context.handle());
        if cudnn.version == 91_400 && x.band.from.is_some() && x.band.below != Some(1) {
            let text = "windows that are not causal are wrong in cuDNN 9.14.0";
            return Err(CudaError::Unsupported(text.into()));
        }
        let mut parts = Builder { cudnn, tensors: vec![], kinds: vec![], ops: vec![], data: vec![] };
        parts.attention(x)?;
        let graph = Descriptor::new(cudnn, Kind::Graph)?
            .with(Attribute::GraphHandle, Value::Handle(handle))?
            .with(Attribute::GraphOperations, Value::Many(&parts.ops))?
            .finish()?;
        let heuristics = Descriptor::new(cudnn, Kind::Heuristics)?
            .with(Attribute::HeuristicsGraph, Value::One(&graph))?
            .with(Attribute::HeuristicsMode, Value::HeuristicsMode(MODE_A))?
            .finish()?;
        let configs = heuristics.list(Attribute::HeuristicsResults, Kind::EngineConfig)?;
        let mut last = CudaError::Unsupported(format!("cuDNN has no engine for {x:?}"));
        for config in configs {
            let plan = Descriptor::new(cudnn, Kind::Plan)?
                .with(Attribute::PlanHandle, Value::Handle(handle))?
                .with(Attribute::PlanConfig, Value::One(&config))
                .and_then(Descriptor::finish);
            match plan {
                Err(error) => last = error,
                Ok(plan) => {
                    let workspace =
                        usize::try_from(plan.int(Attribute::PlanWorkspace)?).unwrap_or(usize::MAX);
                    let (context, data) = (self.context.clone(), parts.data.clone());
                    let _parts = (vec![config, heuristics, graph], parts);
                    return Ok(Plan { context, plan, workspace, data, _parts });
                }
            }
        }
        Err(last)
    }
}

/// An attention with its plan and its addresses.
pub struct Prepared {
    plan: Arc<Plan>,
    attention: Attention,
    workspace: Address,
    pack: Descriptor,
    /// The numbers that the pack points to.
    _constants: Box<[[u8; 4]]>,
}

impl Prepared {
    fn new(plan: &Arc<Plan>, x: &Attention, workspace: Address) -> Result<Prepared, CudaError> {
        let constants: Box<[[u8; 4]]> = plan
            .data
            .iter()
            .map(|(_, data)| if let Data::Constant(bytes) = data { *bytes } else { [0; 4] })
            .collect();
        let place = |((_, data), constant): (&(i64, Data), &[u8; 4])| -> *mut c_void {
            let at = match data {
                Data::Queries => x.q.at,
                Data::Keys => x.k.at,
                Data::Values => x.v.at,
                Data::Result => x.r.at,
                Data::Bias { .. } => x.bias.map_or(0, |b| b.at),
                Data::Constant(_) => return constant.as_ptr().cast_mut().cast(),
            };
            at as *mut c_void
        };
        let ids: Vec<i64> = plan.data.iter().map(|s| s.0).collect();
        let pointers: Vec<*mut c_void> = plan.data.iter().zip(&constants).map(place).collect();
        let pack = Descriptor::new(plan.context.cudnn, Kind::Pack)?
            .with(Attribute::PackIds, Value::Ints(&ids))?
            .with(Attribute::PackPointers, Value::Pointers(&pointers))?
            .with(Attribute::PackWorkspace, Value::Pointers(&[workspace as *mut c_void]))?
            .finish()?;
        Ok(Prepared { plan: plan.clone(), attention: *x, workspace, pack, _constants: constants })
    }

    /// The attention.
    pub(crate) fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The same of operands that lie elsewhere, aligned as these.
    ///
    /// # Errors
    /// The library refuses the addresses.
    pub(crate) fn at(&self, x: &Attention) -> Result<Prepared, CudaError> {
        Prepared::new(&self.plan, x, self.workspace)
    }

    /// Enqueues the attention.
    ///
    /// # Errors
    /// The library refuses.
    ///
    /// # Safety
    /// The operands, the result and the workspace exist until the stream has done it, and nothing else uses the workspace
    /// meanwhile.
    pub unsafe fn run(&self, stream: &Stream) -> Result<(), CudaError> {
        let context = &self.plan.context;
        let (cudnn, handle) = (context.cudnn, context.handle.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the handle and the stream are alive.
        let set = unsafe { (cudnn.functions.set_stream)(handle.0, stream.handle().cast()) };
        cudnn.check("taking a stream", set)?;
        // SAFETY: the handle, the plan and the pack are alive; the rest by the caller.
        let ran = unsafe { (cudnn.functions.execute)(handle.0, self.plan.plan.at, self.pack.at) };
        cudnn.check("running an attention", ran)
    }
}
