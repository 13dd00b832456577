//! Graphs: captured work, executable graphs, and changes of node parameters between replays.
//!
//! An executable graph keeps the graph that it was made from, because that graph's nodes identify its own.
//! Changed parameters apply to later replays; replays that were enqueued before keep the old ones.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::{result, sys};
use smallvec::SmallVec;

use super::device::Device;
use super::module::Function;
use super::stream::{KernelArguments, Stream};
use crate::device::launch::{Address, KernelLaunch, PortBases};
use crate::error::{Result, check_driver_result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphNode(sys::CUgraphNode);

// SAFETY: node handles may be used from any thread.
unsafe impl Send for GraphNode {}
// SAFETY: as above.
unsafe impl Sync for GraphNode {}

/// The dependencies of the next work on a capturing stream.
#[derive(Clone, Debug)]
pub struct CaptureFrontier(SmallVec<[sys::CUgraphNode; 4]>);

/// How often a capture is attempted while other threads invalidate it.
const CAPTURE_ATTEMPTS: u32 = 8;

const CAPTURE_INVALIDATED: sys::CUresult = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

/// The largest number of nodes of one piece of work that is examined.
const MAX_NODES: usize = 16;

#[derive(Debug)]
pub struct CapturedGraph {
    graph: sys::CUgraph,
}

// SAFETY: graphs may be used from any thread, one at a time.
unsafe impl Send for CapturedGraph {}
// SAFETY: as above; nothing here changes one.
unsafe impl Sync for CapturedGraph {}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: it was created by a capture; executable graphs do not need it.
        let _ = unsafe { result::graph::destroy(self.graph) };
    }
}

#[derive(Debug)]
pub struct ExecutableGraph {
    device: Arc<Device>,
    template: CapturedGraph,
    exec: sys::CUgraphExec,
}

// SAFETY: graphs may be used from any thread.
unsafe impl Send for ExecutableGraph {}

impl Drop for ExecutableGraph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `capture`.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

impl Stream {
    /// Captures the work that `record` enqueues on this stream, and on streams that wait for its events, into a
    /// graph instead of running it. The capture is relaxed, because NCCL connects ranks at the first call on a
    /// communicator. If ranks are threads of one process, the driver allows this only in relaxed captures.
    ///
    /// `record` is called again if another thread invalidates the capture (see
    /// [`capture_template`](Self::capture_template)).
    pub fn capture(&self, record: impl FnMut() -> Result<()>) -> Result<ExecutableGraph> {
        self.instantiate(self.capture_template(record)?)
    }

    /// Like [`capture`](Self::capture), in the mode that most callers use: a call of this thread that waits
    /// or allocates memory invalidates the capture.
    pub fn capture_strictly(&self, record: impl FnMut() -> Result<()>) -> Result<ExecutableGraph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.instantiate(self.record_in(mode, record)?)
    }

    fn instantiate(&self, template: CapturedGraph) -> Result<ExecutableGraph> {
        // SAFETY: the graph was just made.
        let instantiated = unsafe {
            result::graph::instantiate(
                template.graph,
                sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
            )
        };
        let exec = check_driver_result(|| "instantiating a graph".into(), instantiated)?;
        Ok(ExecutableGraph { device: self.device.clone(), template, exec })
    }

    /// Captures work without making it executable.
    ///
    /// A wait for the whole context in any thread of the process invalidates all captures of that context. An
    /// example is `cudaDeviceSynchronize` in the application, or in a library that destroys a handle. A
    /// capture has no effect except its graph, so an invalidated one is repeated a few times. `record` must
    /// start from the same state each time.
    pub fn capture_template(&self, record: impl FnMut() -> Result<()>) -> Result<CapturedGraph> {
        self.record_in(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, record)
    }

    fn record_in(
        &self,
        mode: sys::CUstreamCaptureMode,
        mut record: impl FnMut() -> Result<()>,
    ) -> Result<CapturedGraph> {
        let mut attempt = 1;
        loop {
            // SAFETY: the stream exists and is not capturing.
            let begun = unsafe { result::stream::begin_capture(self.handle, mode) };
            check_driver_result(|| "beginning to capture a graph".into(), begun)?;
            let recorded = record();
            // SAFETY: the capture was begun above; ending it also ends a failed one.
            let ended = unsafe { result::stream::end_capture(self.handle) };
            let invalidated = matches!(&ended, Err(error) if error.0 == CAPTURE_INVALIDATED);
            if invalidated && attempt < CAPTURE_ATTEMPTS {
                tracing::debug!(target: "symmc::gpu", attempt, "another thread invalidated a capture: repeating it");
                // Threads that invalidate each other's captures repeat them at different times.
                thread::sleep(Duration::from_micros(100 << attempt));
                attempt += 1;
                continue;
            }
            let template = ended.map(|graph| CapturedGraph { graph });
            recorded?;
            return check_driver_result(|| "capturing a graph".into(), template);
        }
    }

    /// The dependencies of the next work on this stream, which is capturing. Fails if the driver does not
    /// report them (it does since 12.3).
    pub fn frontier(&self) -> Result<CaptureFrontier> {
        let mut nodes = ptr::null();
        let mut edges = ptr::null();
        let mut count = 0;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream exists; the call writes a status, two pointers and a count.
        let code = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.handle,
                &mut status,
                ptr::null_mut(),
                ptr::null_mut(),
                &mut nodes,
                &mut edges,
                &mut count,
            )
        };
        check_driver_result(|| "querying the dependencies of a capture".into(), code.result())?;
        if nodes.is_null() || count == 0 {
            return Ok(CaptureFrontier(SmallVec::new()));
        }
        // SAFETY: the driver returned `count` nodes, which are valid until the next call for the stream.
        Ok(CaptureFrontier(unsafe { std::slice::from_raw_parts(nodes, count) }.into()))
    }

    /// The nodes that were captured on this stream after `before`, in order, if they form one chain.
    pub fn nodes_since(&self, before: &CaptureFrontier) -> Result<Option<Vec<GraphNode>>> {
        let mut captured = Vec::new();
        let mut frontier = self.frontier()?;
        // Each new node follows a new node, or only nodes of `before`.
        while !frontier.0.iter().all(|node| before.0.contains(node)) {
            if captured.len() >= MAX_NODES {
                return Ok(None);
            }
            let &[node] = &frontier.0[..] else { return Ok(None) };
            captured.push(GraphNode(node));
            frontier = dependencies(node)?;
        }
        captured.reverse();
        Ok(Some(captured))
    }

    /// Replays a graph.
    ///
    /// # Safety
    /// All objects that the graph uses still exist.
    pub unsafe fn replay(&self, graph: &ExecutableGraph) -> Result<()> {
        // SAFETY: the graph exists; the rest by the caller.
        check_driver_result(|| "replaying a graph".into(), unsafe {
            result::graph::launch(graph.exec, self.handle)
        })
    }
}

/// The dependencies of a node, at most [`MAX_NODES`] of them.
fn dependencies(node: sys::CUgraphNode) -> Result<CaptureFrontier> {
    let mut nodes = [ptr::null_mut(); MAX_NODES];
    // SAFETY: plain data for which zero is a valid value.
    let mut edges: [sys::CUgraphEdgeData; MAX_NODES] = unsafe { std::mem::zeroed() };
    let mut count = MAX_NODES;
    // SAFETY: the node exists; the arrays have room for `count` nodes and edges.
    let code = unsafe {
        sys::cuGraphNodeGetDependencies_v2(node, nodes.as_mut_ptr(), edges.as_mut_ptr(), &mut count)
    };
    check_driver_result(|| "querying the dependencies of a node".into(), code.result())?;
    Ok(CaptureFrontier(nodes[..count.min(MAX_NODES)].into()))
}

/// Returns the value that a driver call writes.
fn query_driver<T>(what: &str, ask: impl FnOnce(*mut T) -> sys::CUresult) -> Result<T> {
    let mut out = MaybeUninit::zeroed();
    let code = ask(out.as_mut_ptr());
    check_driver_result(|| format!("querying {what}"), code.result())?;
    // SAFETY: the call wrote it.
    Ok(unsafe { out.assume_init() })
}

impl GraphNode {
    fn kind(self) -> Result<sys::CUgraphNodeType> {
        // SAFETY: the node exists; the call writes an enumerator.
        query_driver("the type of a node", |out| unsafe { sys::cuGraphNodeGetType(self.0, out) })
    }

    fn kernel(self) -> Result<sys::CUDA_KERNEL_NODE_PARAMS> {
        // SAFETY: the node exists; the call writes the struct.
        query_driver("the parameters of a kernel", |out| unsafe {
            sys::cuGraphKernelNodeGetParams_v2(self.0, out)
        })
    }

    fn copy(self) -> Result<sys::CUDA_MEMCPY3D> {
        // SAFETY: as above.
        query_driver("the parameters of a copy", |out| unsafe {
            sys::cuGraphMemcpyNodeGetParams(self.0, out)
        })
    }

    fn fill(self) -> Result<sys::CUDA_MEMSET_NODE_PARAMS> {
        // SAFETY: as above.
        query_driver("the parameters of a fill", |out| unsafe {
            sys::cuGraphMemsetNodeGetParams(self.0, out)
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphCopy {
    /// Whether its source or destination is host memory.
    pub host: bool,
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

impl ExecutableGraph {
    /// Updates a kernel node to launch this kernel: the same function with other parameters, and ports at
    /// these bases.
    ///
    /// # Safety
    /// The node is of this graph, and launches a kernel; the rest is as for [`Stream::launch`].
    pub unsafe fn set_kernel(
        &self,
        node: GraphNode,
        function: Function,
        kernel: &KernelLaunch,
        bases: PortBases<'_>,
    ) -> Result<()> {
        let params = KernelArguments::resolve(kernel, bases)?;
        let mut pointers = params.pointers();
        let [gx, gy, gz] = kernel.grid;
        let [bx, by, bz] = kernel.block;
        let set = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.handle(),
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: kernel.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        };
        // SAFETY: by the caller; the driver copies the parameters before it returns.
        let done = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node.0, &set) };
        check_driver_result(
            || format!("setting the parameters of {} in a graph", kernel.entry),
            done.result(),
        )
    }

    /// Updates a copy node to copy the same number of bytes between other addresses.
    ///
    /// # Safety
    /// The node is of this graph; the rest is as for [`Stream::copy`].
    pub unsafe fn set_copy(&self, node: GraphNode, to: Address, from: Address) -> Result<()> {
        let set = sys::CUDA_MEMCPY3D { srcDevice: from, dstDevice: to, ..node.copy()? };
        // SAFETY: by the caller.
        let done =
            unsafe { sys::cuGraphExecMemcpyNodeSetParams(self.exec, node.0, &set, self.device.context) };
        check_driver_result(
            || format!("setting the addresses of a copy to {to:#x} in a graph"),
            done.result(),
        )
    }

    /// Updates a fill node to fill the same number of bytes at another address.
    ///
    /// # Safety
    /// The node is of this graph; the rest is as for [`Stream::fill`].
    pub unsafe fn set_fill(&self, node: GraphNode, at: Address) -> Result<()> {
        // SAFETY: by the caller.
        unsafe { self.set_fill_as(node, &sys::CUDA_MEMSET_NODE_PARAMS { dst: at, ..node.fill()? }) }
    }

    unsafe fn set_fill_as(&self, node: GraphNode, set: &sys::CUDA_MEMSET_NODE_PARAMS) -> Result<()> {
        // SAFETY: by the caller.
        let done =
            unsafe { sys::cuGraphExecMemsetNodeSetParams(self.exec, node.0, set, self.device.context) };
        check_driver_result(|| "setting the address of a fill in a graph".into(), done.result())
    }

    /// Updates these nodes, which form a chain, to the parameters of the nodes `like`. Returns `false` if
    /// that is not possible: it is possible if both launch the same functions in the same sizes.
    ///
    /// # Safety
    /// The nodes are of this graph, and the others exist; the rest is as for the launched work.
    pub unsafe fn copy_parameters(&self, nodes: &[GraphNode], like: &[GraphNode]) -> Result<bool> {
        use sys::CUgraphNodeType as Kind;
        if nodes.len() != like.len() {
            return Ok(false);
        }
        for (&node, &like) in nodes.iter().zip(like) {
            let kind = node.kind()?;
            if kind != like.kind()? {
                return Ok(false);
            }
            match kind {
                Kind::CU_GRAPH_NODE_TYPE_KERNEL => {
                    let was = node.kernel()?;
                    let is = like.kernel()?;
                    if launch_shape(&was) != launch_shape(&is) {
                        return Ok(false);
                    }
                    // SAFETY: by the caller; the parameters are those of a node that exists.
                    let done = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node.0, &is) };
                    check_driver_result(
                        || "setting the parameters of a library's kernel".into(),
                        done.result(),
                    )?;
                }
                Kind::CU_GRAPH_NODE_TYPE_MEMSET => {
                    let was = node.fill()?;
                    let is = like.fill()?;
                    if (was.elementSize, was.width, was.height) != (is.elementSize, is.width, is.height) {
                        return Ok(false);
                    }
                    // SAFETY: as above.
                    unsafe { self.set_fill_as(node, &is)? };
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    pub fn copies(&self) -> Result<Vec<GraphCopy>> {
        let graph = self.template.graph;
        let mut count = 0;
        // SAFETY: the graph exists; the call writes its number of nodes.
        let code = unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut count) };
        check_driver_result(|| "counting the nodes of a graph".into(), code.result())?;
        let mut nodes = vec![ptr::null_mut(); count];
        // SAFETY: as above; there is room for `count` nodes.
        let code = unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) };
        check_driver_result(|| "querying the nodes of a graph".into(), code.result())?;
        let mut out = Vec::new();
        for node in nodes.into_iter().take(count).map(GraphNode) {
            if node.kind()? == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY {
                let params = node.copy()?;
                let kinds = [params.srcMemoryType, params.dstMemoryType];
                out.push(GraphCopy {
                    host: kinds.contains(&sys::CUmemorytype::CU_MEMORYTYPE_HOST),
                    to: params.dstDevice,
                    from: params.srcDevice,
                    bytes: params.WidthInBytes * params.Height * params.Depth,
                });
            }
        }
        Ok(out)
    }
}

/// The function and the sizes of a kernel node, without its parameters.
fn launch_shape(node: &sys::CUDA_KERNEL_NODE_PARAMS) -> impl PartialEq {
    let grid = [node.gridDimX, node.gridDimY, node.gridDimZ];
    let block = [node.blockDimX, node.blockDimY, node.blockDimZ];
    (node.func, node.kern, grid, block, node.sharedMemBytes)
}
