//! Compute steps on a device.
//!
//! ```text
//! Op, Located ──lower──► Work: launches of generated kernels, matrix products, copies
//! ```
//!
//! Semantics are those of [`symmc_ir::Op`], as on the host: floats are computed in f32 (f64 for f64) and
//! rounded once. Extents, strides and constants stand in the generated text; addresses are parameters, so
//! equal steps share a function. Where a result may lie on an operand is as in
//! [`symmc_runtime::kernels`]: exactly on it, for element-wise ops, softmax, norms and running sums, and on
//! the first operand of a scatter or a rotary embedding.
//!
//! Data that is out of range touches no foreign memory. A kernel that meets such data writes the number of
//! a [`Site`] to the status word; [`Sites::failure`] turns it into the error of the host's kernels.
//!
//! Not here: collectives, custom and opaque ops.

mod attention;
pub mod batch;
mod bounds;
pub(crate) mod choice;
mod element;
pub mod fuse;
pub mod fused;
pub mod gemm;
mod grouped;
mod map;
mod matmul;
mod movement;
pub mod numbers;
pub mod products;
pub mod rotary;
mod rows;
mod scatter;
pub mod search;
mod skinny;
mod sort;
pub(crate) mod space;
mod text;

use symmc_ir::Op;
use symmc_ir::text::op_name;
use symmc_runtime::exec::{Home, Located};
use symmc_runtime::kernels::KernelError;

use crate::compile::{self, Source};
use crate::driver::{self, Device};
use crate::error::CudaError;
use crate::launch::{Address, Work};

/// Bytes of the status word.
pub const STATUS_BYTES: usize = 16;

/// Bytes of workspace that matrix products want; other steps say what they need ([`workspace`]).
pub const GEMM_WORKSPACE: usize = 32 << 20;

/// The most shared memory that kernels have beside the dynamic one.
const STATIC_SHARED: usize = 2048;

/// What compute steps are lowered for.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// A status word that the host reads: [`STATUS_BYTES`] of zeros at a multiple of 16.
    pub status: Address,
    /// Memory that one step at a time uses, at a multiple of 256.
    pub workspace: Address,
    /// Its size: at least [`GEMM_WORKSPACE`] and [`workspace`] of every step.
    pub workspace_bytes: usize,
    /// Bytes of dynamic shared memory that a block may have.
    pub shared: usize,
    /// Whether there are instructions of warp groups, copies of boxes and pairs of blocks: compute capability 9.0, with a
    /// driver and a compiler that know them.
    pub groups: bool,
    /// What steps write among the memory of inputs.
    pub inputs: InputUse,
    /// Who computes attention.
    pub attention: Attentions,
}

/// Who computes attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attentions {
    /// Generated kernels.
    Kernels,
    /// Generated kernels or cuDNN, as is chosen when a program is loaded.
    Chosen,
}

impl Machine {
    /// A device, without any memory.
    pub fn of(device: &Device) -> Machine {
        Machine {
            multiprocessors: device.multiprocessors(),
            status: 0,
            workspace: 0,
            workspace_bytes: 0,
            shared: device.shared().saturating_sub(STATIC_SHARED),
            groups: device.capability() == [9, 0]
                && driver::version().is_ok_and(|v| v[0] >= 12)
                && compile::version().is_ok_and(|v| v >= compile::LEAST_FOR_OWN),
            inputs: InputUse::Written,
            attention: Attentions::Kernels,
        }
    }
}

/// What the steps of a program do with the memory of its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputUse {
    /// They only read it, so a kernel may read it before the kernels in front of it have ended.
    Read,
    /// Some write to it.
    Written,
}

/// A place in the program where data can be out of range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The step.
    pub step: usize,
    /// What data can do there.
    pub fault: Fault,
}

/// What data can do that is an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Index beyond an axis.
    Index(Indexed),
    /// End a group before the one in front of it, or beyond so many rows.
    GroupEnd {
        /// The rows.
        rows: usize,
    },
    /// Divide an integer by zero.
    Divisor,
}

/// An axis that data indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indexed {
    /// The axis of the first operand.
    pub axis: usize,
    /// Its extent.
    pub extent: usize,
}

/// All sites of a program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sites {
    list: Vec<Site>,
}

impl Sites {
    /// No sites.
    pub fn new() -> Sites {
        Sites::default()
    }

    fn add(&mut self, site: Site) -> u32 {
        // 0 in the status word means that nothing was reported.
        self.list.push(site);
        self.list.len() as u32
    }

    /// The step and the error that a status word reports.
    pub fn failure(&self, status: [u64; 2]) -> Option<(usize, KernelError)> {
        let site = self.list.get((status[1] as usize).checked_sub(1)?)?;
        let found = status[0] as i64;
        let error = match site.fault {
            Fault::Index(Indexed { axis, extent }) => KernelError::Index { index: found, axis, extent },
            Fault::GroupEnd { rows } => KernelError::GroupEnd { end: found, rows },
            Fault::Divisor => KernelError::ZeroDivisor,
        };
        Some((site.step, error))
    }
}

/// What lowering one step needs and adds to.
pub(super) struct Lowering<'a> {
    at: &'a dyn Fn(&Located) -> Address,
    source: &'a mut Source,
    sites: &'a mut Sites,
    step: usize,
    machine: Machine,
}

impl<'a> Lowering<'a> {
    /// For the steps of one program; the number of the step is set for each.
    fn new(
        at: &'a dyn Fn(&Located) -> Address,
        machine: &Machine,
        source: &'a mut Source,
        sites: &'a mut Sites,
    ) -> Lowering<'a> {
        Lowering { at, source, sites, step: 0, machine: *machine }
    }

    /// Puts what all kernels rest on before them.
    fn preludes(&mut self) {
        self.source.prelude(text::PTX);
        self.source.prelude(text::BASE);
    }

    fn at(&self, value: &Located) -> Address {
        (self.at)(value)
    }

    /// Whether nothing writes a value while the program runs.
    fn is_steady(&self, value: &Located) -> bool {
        self.machine.inputs == InputUse::Read && matches!(value.home, Home::Input(_))
    }

    fn site(&mut self, fault: Fault) -> u32 {
        self.sites.add(Site { step: self.step, fault })
    }

    fn index_site(&mut self, axis: usize, extent: usize) -> u32 {
        self.site(Fault::Index(Indexed { axis, extent }))
    }

    fn divisor_site(&mut self) -> u32 {
        self.site(Fault::Divisor)
    }

    /// The workspace, if it has this many bytes.
    fn room(&self, what: &str, bytes: usize) -> Result<Address, CudaError> {
        let found = self.machine.workspace_bytes;
        if bytes <= found {
            return Ok(self.machine.workspace);
        }
        Err(CudaError::Unsupported(format!("{what} needs {bytes} bytes of workspace, found {found}")))
    }
}

/// A step to be lowered.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Its number in the list of steps.
    pub index: usize,
    /// The op; the dims of its attributes are numbers.
    pub op: &'a Op,
    /// Its operands.
    pub operands: &'a [Located],
    /// Its results.
    pub results: &'a [Located],
}

/// What a step does on the device. `at` gives addresses; functions are added to `source`, and places where
/// data can be out of range to `sites`.
///
/// # Errors
/// The op has no kernel, or its operands do not fit it.
pub fn lower(
    step: &Step<'_>,
    at: &dyn Fn(&Located) -> Address,
    machine: &Machine,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Vec<Work>, CudaError> {
    let Step { op, operands: x, results: r, index } = *step;
    let mut lowering = Lowering::new(at, machine, source, sites);
    lowering.step = index;
    lower_op(op, x, r, &mut lowering)
}

fn lower_op(op: &Op, x: &[Located], r: &[Located], l: &mut Lowering<'_>) -> Result<Vec<Work>, CudaError> {
    arity(op, x.len(), r.len())?;
    match op {
        Op::Full(_) | Op::Iota { .. } | Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } => {
            element::lower(op, x, &r[0], l)
        }
        Op::Select | Op::Cast => element::lower(op, x, &r[0], l),
        Op::Reshape | Op::Copy => movement::copy(&x[0], &r[0], l),
        Op::Permute { .. } | Op::Slice { .. } | Op::Expand => Err(no_kernel(op)),
        Op::Concat { axis } => movement::concat(*axis, x, &r[0], l),
        Op::Pad { low, value } => movement::pad(low, *value, &x[0], &r[0], l),
        Op::Take { axis } | Op::Index { axis } => movement::index(*axis, x, &r[0], l),
        Op::GatherElements { axis } => movement::gather(*axis, x, &r[0], l),
        Op::MatMul => matmul::lower(&x[0], &x[1], &r[0], l),
        Op::GroupedMatMul => grouped::lower([&x[0], &x[1], &x[2]], &r[0], l),
        Op::Reduce { op, axes, .. } => rows::reduce(*op, axes, &x[0], &r[0], l),
        Op::ArgReduce { op, axis, .. } => rows::arg_reduce(*op, *axis, &x[0], &r[0], l),
        Op::CumSum { axis } => rows::cumsum(*axis, &x[0], &r[0], l),
        Op::Softmax { axis, log } => rows::softmax(*axis, *log, &x[0], &r[0], l),
        Op::RmsNorm { axes, eps, round_first } => {
            let round = if *round_first { rows::Rounding::BeforeWeight } else { rows::Rounding::AtTheEnd };
            rows::rms_norm(*axes, eps.0, round, x, &r[0], l)
        }
        Op::LayerNorm { axes, eps } => rows::layer_norm(*axes, eps.0, x, &r[0], l),
        Op::Attention { scale, cap, bounds, sink } => {
            let scores = attention::Scores { scale: *scale, cap: *cap, bounds, sink: *sink };
            attention::lower(&scores, x, &r[0], l)
        }
        Op::Permuted { op, perm } => {
            let inner = r[0].unpermuted(perm).ok_or_else(|| misfit("the axes", &r[0].shape, perm))?;
            lower_op(op, x, &[inner], l)
        }
        Op::RotaryEmbedding { width, interleaved } => rotary::lower(*width, *interleaved, x, &r[0], l),
        Op::ScatterElements { axis, combine } => scatter::elements(*axis, *combine, x, &r[0], l),
        Op::IndexAdd { axis } => {
            let add = Some(symmc_ir::Reduction::Sum);
            scatter::put(*axis, add, &x[0], &x[2], &x[1..2], &r[0], l)
        }
        Op::IndexPut { axis, accumulate } => {
            let add = accumulate.then_some(symmc_ir::Reduction::Sum);
            scatter::put(*axis, add, &x[0], &x[1], &x[2..], &r[0], l)
        }
        Op::TopK { axis, largest } => sort::lower(*axis, *largest, &x[0], r, l),
        Op::Sort { axis, descending } => sort::lower(*axis, *descending, &x[0], r, l),
        Op::Collective(_) | Op::Opaque { .. } | Op::Custom(_) => Err(no_kernel(op)),
    }
}

/// The bytes of workspace that a step uses.
pub fn workspace(op: &Op, operands: &[Located], results: &[Located], machine: &Machine) -> usize {
    match (op, operands) {
        (Op::MatMul, _) => GEMM_WORKSPACE,
        (Op::TopK { axis, .. } | Op::Sort { axis, .. }, [x]) => sort::workspace(*axis, x),
        (Op::Attention { scale, cap, bounds, sink }, [_, _, _, ..]) if !results.is_empty() => {
            let scores = attention::Scores { scale: *scale, cap: *cap, bounds, sink: *sink };
            attention::workspace(&scores, operands, &results[0], machine)
        }
        (Op::Permuted { op, perm }, _) => match results.first().and_then(|r| r.unpermuted(perm)) {
            Some(inner) => workspace(op, operands, &[inner], machine),
            None => 0,
        },
        (Op::Reshape | Op::Copy, [x]) => x.shape.iter().product::<usize>() * x.dtype.size(),
        _ => 0,
    }
}

fn no_kernel(op: &Op) -> CudaError {
    CudaError::Unsupported(format!("there is no GPU kernel for {}", op_name(op)))
}

fn misfit(what: &str, expected: impl std::fmt::Debug, found: impl std::fmt::Debug) -> CudaError {
    CudaError::Unsupported(format!("{what}: expected {expected:?}, found {found:?}"))
}

/// Checks that the slices that [`lower`] takes apart are long enough.
fn arity(op: &Op, operands: usize, results: usize) -> Result<(), CudaError> {
    let (min, max) = match op {
        Op::Full(_) | Op::Iota { .. } => (0, 0),
        Op::Binary(_) | Op::MatMul | Op::Take { .. } | Op::GatherElements { .. } => (2, 2),
        Op::Select | Op::GroupedMatMul => (3, 3),
        Op::ScatterElements { .. } | Op::IndexAdd { .. } | Op::RotaryEmbedding { .. } => (3, 3),
        Op::Permuted { op, .. } => symmc_ir::infer::operand_counts(op),
        Op::RmsNorm { .. } => (1, 2),
        Op::LayerNorm { .. } => (1, 3),
        Op::Attention { .. } => symmc_ir::infer::operand_counts(op),
        Op::Index { .. } => (2, usize::MAX),
        Op::IndexPut { .. } => (3, usize::MAX),
        Op::Concat { .. } | Op::Opaque { .. } | Op::Custom(_) | Op::Collective(_) => (0, usize::MAX),
        _ => (1, 1),
    };
    let expected = if matches!(op, Op::TopK { .. } | Op::Sort { .. }) { 2 } else { 1 };
    if (min..=max).contains(&operands) && results >= expected {
        return Ok(());
    }
    let found = format!("{operands} operands and {results} results");
    Err(misfit(op_name(op), format!("{min} to {max} operands and {expected} results"), found))
}
