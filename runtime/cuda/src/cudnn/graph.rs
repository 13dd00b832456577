//! The graph of an attention, in the form that cuDNN recognises, and its plan.
//!
//! The library has one kernel for a known chain of ops: a product of queries and keys, a scale, a cap, a
//! bias, one selection between scores and minus infinity for each condition that hides columns, the maximum,
//! difference, exponential and sum of a softmax with its statistics, a quotient, and a product with the
//! values (cuDNN's documentation, "Fused flash attention"). Each op is a descriptor whose operands are
//! tensors; tensors between two ops have no memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;

use super::attention::{AttentionGradient, CudnnAttention};
use super::builder::{CudnnGraphBuilder, CudnnTensorData};
use super::descriptor::{AttributeValue, CudnnDescriptor, DescriptorAttribute, DescriptorKind};
use super::library::{CudnnLibrary, Handle};
use crate::device::driver::{Device, Stream};
use crate::device::launch::{Address, DevicePtr, PortBases};
use crate::error::{CudaError, Result};

/// The heuristic that returns engines.
const MODE_A: i32 = 3;

/// The compute capability from which decoding with shared key heads is reported to be wrong: by PyTorch, with
/// cuDNN 9.19 and 9.20 on 10.0.
const FAULTY: [u32; 2] = [10, 0];

/// A handle of the library on one device. One call at a time sets its stream and enqueues.
struct CudnnHandle {
    cudnn: &'static CudnnLibrary,
    handle: Mutex<RawPointer>,
    _device: Arc<Device>,
}

struct RawPointer(Handle);

// SAFETY: the library's handles may be used from any thread, one at a time.
unsafe impl Send for RawPointer {}

impl CudnnHandle {
    fn handle(&self) -> Handle {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for CudnnHandle {
    fn drop(&mut self) {
        // SAFETY: created by `AttentionPlanner::new`.
        unsafe { (self.cudnn.functions.destroy)(self.handle()) };
    }
}

/// Prepares attentions on one device; those of one shape share a plan.
pub struct AttentionPlanner {
    context: Arc<CudnnHandle>,
    plans: Mutex<IndexMap<String, Option<Arc<AttentionPlan>>>>,
}

/// A graph with an engine of the library that runs it.
struct AttentionPlan {
    context: Arc<CudnnHandle>,
    plan: CudnnDescriptor,
    workspace: usize,
    data: Vec<(i64, CudnnTensorData)>,
    /// The objects that the plan was made from, in the order in which they are dropped.
    _parts: (Vec<CudnnDescriptor>, CudnnGraphBuilder),
}

impl AttentionPlanner {
    /// A planner for the device, whose context is current. Fails if cuDNN is missing or does not start, or
    /// its attention is not trusted on this device.
    pub fn new(device: &Arc<Device>) -> Result<AttentionPlanner> {
        if device.capability() >= FAULTY {
            let [major, minor] = device.capability();
            return Err(CudaError::Unsupported(format!(
                "cuDNN's attention is not used on compute capability {major}.{minor}; expected less than 10.0"
            )));
        }
        let cudnn = CudnnLibrary::load()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the library writes a handle there.
        cudnn.check("starting", unsafe { (cudnn.functions.create)(&mut handle) })?;
        let context = CudnnHandle { cudnn, handle: Mutex::new(RawPointer(handle)), _device: device.clone() };
        Ok(AttentionPlanner { context: Arc::new(context), plans: Mutex::default() })
    }

    pub(crate) fn version(&self) -> usize {
        self.context.cudnn.version
    }

    /// Prepares an attention with `bytes` bytes of workspace; `None` if the library does not support it.
    pub fn prepare(
        &self,
        x: &CudnnAttention,
        workspace: Address,
        bytes: usize,
    ) -> Result<Option<PreparedAttention>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let head_groups = x.split_heads();
        let mut prepared = Vec::with_capacity(head_groups.len());
        for group in head_groups {
            // An attention that the library refuses is not an error.
            let plan = plans.entry(group.key()).or_insert_with(|| self.plan(&group).ok().map(Arc::new));
            match plan.as_ref().filter(|plan| plan.workspace <= bytes) {
                Some(plan) => prepared.push(PlannedPart { plan: plan.clone(), attention: group }),
                None => return Ok(None),
            }
        }
        Ok(Some(PreparedAttention { attention: Box::new(*x), workspace, parts: prepared }))
    }

    /// The first plan that the library can make.
    fn plan(&self, x: &CudnnAttention) -> Result<AttentionPlan> {
        let cudnn = self.context.cudnn;
        let handle = self.context.handle();
        if cudnn.version == 91_400 && x.band.from.is_some() && x.band.below != Some(1) {
            let text = "windows that are not causal are wrong in cuDNN 9.14.0";
            return Err(CudaError::Unsupported(text.into()));
        }
        // For these, the library's own frontend hides columns after the last key with an additional mask.
        if x.gradient.is_some() && cudnn.version <= 91_500 && !x.keys.is_multiple_of(128) {
            let text = format!(
                "gradients of {} keys, not a multiple of 128, are wrong in cuDNN before 9.15.1",
                x.keys
            );
            return Err(CudaError::Unsupported(text));
        }
        let mut builder =
            CudnnGraphBuilder { cudnn, tensors: vec![], kinds: vec![], ops: vec![], data: vec![] };
        match &x.gradient {
            None => builder.attention(x)?,
            Some(gradient) => builder.gradient(x, gradient)?,
        }
        let graph = CudnnDescriptor::new(cudnn, DescriptorKind::Graph)?
            .with(DescriptorAttribute::GraphHandle, AttributeValue::Handle(handle))?
            .with(DescriptorAttribute::GraphOperations, AttributeValue::Many(&builder.ops))?
            .finish()?;
        let heuristics = CudnnDescriptor::new(cudnn, DescriptorKind::Heuristics)?
            .with(DescriptorAttribute::HeuristicsGraph, AttributeValue::One(&graph))?
            .with(DescriptorAttribute::HeuristicsMode, AttributeValue::HeuristicsMode(MODE_A))?
            .finish()?;
        let configs = heuristics
            .get_descriptors(DescriptorAttribute::HeuristicsResults, DescriptorKind::EngineConfig)?;
        let mut last_error = CudaError::Unsupported(format!("cuDNN has no engine for {x:?}"));
        for config in configs {
            let plan = CudnnDescriptor::new(cudnn, DescriptorKind::Plan)?
                .with(DescriptorAttribute::PlanHandle, AttributeValue::Handle(handle))?
                .with(DescriptorAttribute::PlanConfig, AttributeValue::One(&config))
                .and_then(CudnnDescriptor::finish);
            match plan {
                Err(error) => last_error = error,
                Ok(plan) => {
                    let workspace = usize::try_from(plan.get_int(DescriptorAttribute::PlanWorkspace)?)
                        .unwrap_or(usize::MAX);
                    let context = self.context.clone();
                    let data = builder.data.clone();
                    let keep_alive = (vec![config, heuristics, graph], builder);
                    return Ok(AttentionPlan { context, plan, workspace, data, _parts: keep_alive });
                }
            }
        }
        Err(last_error)
    }
}

struct PlannedPart {
    plan: Arc<AttentionPlan>,
    attention: CudnnAttention,
}

/// The operands, results and constants of a part in the library's form.
struct VariantPack {
    pack: CudnnDescriptor,
    /// The constants that the pack points to.
    _constants: Box<[[u8; 4]]>,
}

impl PlannedPart {
    /// The pack of a run with ports at these bases.
    fn pack(&self, workspace: Address, bases: PortBases<'_>) -> Result<VariantPack> {
        let plan = &self.plan;
        let x = &self.attention;
        let constants: Box<[[u8; 4]]> = plan
            .data
            .iter()
            .map(|(_, data)| if let CudnnTensorData::Constant(bytes) = data { *bytes } else { [0; 4] })
            .collect();
        let gradient =
            |which: fn(&AttentionGradient) -> DevicePtr| x.gradient.as_ref().map_or(DevicePtr::NULL, which);
        let mut pointers: Vec<*mut c_void> = Vec::with_capacity(plan.data.len());
        for ((_, data), constant) in plan.data.iter().zip(&constants) {
            let address = match data {
                CudnnTensorData::Queries => x.q.at,
                CudnnTensorData::Keys => x.k.at,
                CudnnTensorData::Values => x.v.at,
                CudnnTensorData::Result => x.r.at,
                CudnnTensorData::Sums { .. } => x.sums.map_or(DevicePtr::NULL, |s| s.at),
                CudnnTensorData::OfResult => gradient(|g| g.of_r.at),
                CudnnTensorData::Means => gradient(|g| g.means),
                CudnnTensorData::OfQueries => gradient(|g| g.of_q.at),
                CudnnTensorData::OfKeys => gradient(|g| g.of_k.at),
                CudnnTensorData::OfValues => gradient(|g| g.of_v.at),
                CudnnTensorData::Bias { .. } => x.bias.map_or(DevicePtr::NULL, |b| b.at),
                CudnnTensorData::Constant(_) => {
                    pointers.push(constant.as_ptr().cast_mut().cast());
                    continue;
                }
            };
            pointers.push(address.resolve(bases) as *mut c_void);
        }
        let ids: Vec<i64> = plan.data.iter().map(|s| s.0).collect();
        let pack = CudnnDescriptor::new(plan.context.cudnn, DescriptorKind::Pack)?
            .with(DescriptorAttribute::PackIds, AttributeValue::Ints(&ids))?
            .with(DescriptorAttribute::PackPointers, AttributeValue::Pointers(&pointers))?
            .with(DescriptorAttribute::PackWorkspace, AttributeValue::Pointers(&[workspace as *mut c_void]))?
            .finish()?;
        Ok(VariantPack { pack, _constants: constants })
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// As [`PreparedAttention::run`].
    unsafe fn run(&self, stream: &Stream, workspace: Address, bases: PortBases<'_>) -> Result<()> {
        let VariantPack { pack, _constants } = self.pack(workspace, bases)?;
        let context = &self.plan.context;
        let cudnn = context.cudnn;
        let handle = context.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle and the stream are alive.
        let set = unsafe { (cudnn.functions.set_stream)(handle.0, stream.handle().cast()) };
        cudnn.check("taking a stream", set)?;
        // SAFETY: the handle, the plan and the pack are alive; the rest by the caller.
        let ran = unsafe { (cudnn.functions.execute)(handle.0, self.plan.plan.at, pack.at) };
        cudnn.check("running an attention", ran)
    }
}

pub struct PreparedAttention {
    attention: Box<CudnnAttention>,
    workspace: Address,
    /// The parts, which run one after another in the same workspace.
    parts: Vec<PlannedPart>,
}

impl PreparedAttention {
    pub(crate) fn attention(&self) -> &CudnnAttention {
        &self.attention
    }

    /// Enqueues the attention with ports at these bases.
    ///
    /// # Safety
    /// The operands, the results and the workspace exist until the stream has computed the attention, and
    /// nothing else uses the workspace during this time.
    pub unsafe fn run(&self, stream: &Stream, bases: PortBases<'_>) -> Result<()> {
        // SAFETY: by the caller.
        self.parts.iter().try_for_each(|part| unsafe { part.run(stream, self.workspace, bases) })
    }
}
