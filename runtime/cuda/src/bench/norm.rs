//! Measures an all-reduce with the addition of a residual and an RMS norm, as one kernel and as three
//! kernels. Both results are compared with values that the host computes in f64.

use symmc_ir::collective::CollectiveVariant;
use symmc_ir::op::BinaryOp;
use symmc_ir::types::FloatAttribute;
use symmc_ir::{CollectiveKind, CollectiveReduceOp, Op, Tensor};
use symmc_plan::Lane;
use symmc_runtime::RunError;
use symmc_runtime::exec::{ExecutableStep, LocatedTensor, MemorySpace, ResolvedRegion, StepWork};

use super::rank::{CALLS_PER_GRAPH, CollectiveCase, RankBench, prepared_on_all_ranks, small_integers};
use super::results::{MeasuredNorm, NormImplementation};
use crate::codegen::collective::{self, AllReduceNorm, lower_norm};
use crate::codegen::compile;
use crate::codegen::compute::{self, KernelLowering};
use crate::device::launch::Address;
use crate::error::{CudaError, Result};

/// The term that is added to the mean of the squares.
const NORM_EPS: f64 = 1e-5;
/// The allowed relative error of a normalised element: two roundings of bf16.
const RELATIVE_TOLERANCE: f64 = 0.01;

/// The contents of the ordinary regions.
const RESIDUAL_REGION: usize = 0;
const ADDED_REGION: usize = 1;
const NORMED_REGION: usize = 2;
const WEIGHT_REGION: usize = 3;
/// The symmetric region of the reduction; the operands alternate between the first two.
const REDUCED_REGION: usize = 2;

impl RankBench<'_> {
    /// Measures these shapes: rows, and elements of a row.
    pub(super) fn measure_norms(
        &mut self,
        shapes: &[[usize; 2]],
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<Vec<MeasuredNorm>> {
        let mut out = Vec::new();
        for &[rows, hidden] in shapes {
            for how in [NormImplementation::Fused, NormImplementation::Separate] {
                let prepared = match how {
                    NormImplementation::Fused => self.prepare_fused(rows, hidden),
                    NormImplementation::Separate => self.prepare_separate(rows, hidden),
                };
                let recorded = match prepared_on_all_ranks(prepared, self.exchange)? {
                    Ok(()) => prepared_on_all_ranks(self.record(), self.exchange)?,
                    Err(text) => Err(text),
                };
                let (us, failed) = match recorded {
                    Ok(graph) => {
                        self.fill(rows, hidden)?;
                        let mut wrong = None;
                        let times = self.measure_times(&graph, replays, alive, &mut || {
                            wrong = self.compare_norm(rows, hidden)?;
                            Ok(())
                        })?;
                        (Some(times), wrong)
                    }
                    Err(text) => (None, Some(text)),
                };
                out.push(MeasuredNorm { rows, hidden, how, us, failed });
            }
        }
        Ok(out)
    }

    fn ordinary(&self, region: usize) -> Address {
        self.addresses.ordinary + (region * self.region) as Address
    }

    /// The calls of the all-reduce without the other steps.
    fn reductions(&self, rows: usize, hidden: usize) -> Vec<ExecutableStep> {
        let (kind, bytes) =
            (CollectiveKind::AllReduce(CollectiveReduceOp::Sum), rows * hidden * self.dtype.size());
        let case = CollectiveCase { kind, bytes, variant: CollectiveVariant::Ll, exit: None, blocks: None };
        let mut steps = self.case_steps(&case);
        for step in &mut steps {
            if let StepWork::Collective(call) = &mut step.work {
                let offset = REDUCED_REGION * self.region;
                call.result = ResolvedRegion { offset, ..call.result.clone() };
                call.elements = rows * hidden;
            }
        }
        steps
    }

    fn prepare_fused(&mut self, rows: usize, hidden: usize) -> Result<()> {
        let steps = self.reductions(rows, hidden);
        let mut source = compile::KernelSource::new();
        let mut lowered = Vec::new();
        for step in &steps {
            let StepWork::Collective(call) = &step.work else { continue };
            let norm = AllReduceNorm {
                operand: self.addresses.region(&call.operand),
                residual: self.ordinary(RESIDUAL_REGION).into(),
                weight: Some(self.ordinary(WEIGHT_REGION).into()),
                reduced: None,
                added: self.ordinary(ADDED_REGION).into(),
                normed: Some(self.ordinary(NORMED_REGION).into()),
                hidden,
                eps: NORM_EPS,
                round_first: false,
            };
            let Some(work) = lower_norm(step.index, call, &norm, &self.peers, &mut source)? else {
                return Err(CudaError::Unsupported("these rows do not fit one kernel".into()));
            };
            lowered.push(vec![work]);
        }
        self.prepare_lowered(&steps, lowered, &source)
    }

    /// Compiles the calls as separate kernels for the three steps, like programs in which the steps are not
    /// adjacent.
    fn prepare_separate(&mut self, rows: usize, hidden: usize) -> Result<()> {
        let steps = self.separate(rows, hidden);
        let (lowered, source) = self.with_program_context(|context| {
            let address_of = |value: &LocatedTensor| context.addresses.address_of(value);
            let mut l = KernelLowering::new(&address_of, context.machine);
            let mut lowered = Vec::with_capacity(steps.len());
            for step in &steps {
                lowered.push(match &step.work {
                    StepWork::Kernel { op, operands, results } => {
                        let step = compute::BoundOperation { index: step.index, op, operands, results };
                        compute::lower(&step, &mut l)?
                    }
                    StepWork::Collective(call) => {
                        let ends = context.addresses.collective_pointers(call);
                        let work = collective::lower(step.index, call, &ends, context.peers, &mut l.source)?;
                        work.unwrap_or_default()
                    }
                    StepWork::Custom { .. } | StepWork::Dispatch(_) => {
                        return Err(CudaError::Unsupported(step.op_name.clone()));
                    }
                });
            }
            Ok((lowered, l.source))
        })?;
        self.prepare_lowered(&steps, lowered, &source)
    }

    /// The calls as three steps each.
    fn separate(&self, rows: usize, hidden: usize) -> Vec<ExecutableStep> {
        let ordinary = |region| self.locate(MemorySpace::Ordinary, region, &[rows, hidden]);
        let add = Op::Binary(BinaryOp::Add);
        let norm = Op::RmsNorm { axes: 1, eps: FloatAttribute(NORM_EPS), round_first: false };
        let mut out = Vec::with_capacity(3 * CALLS_PER_GRAPH);
        for mut step in self.reductions(rows, hidden) {
            let first = out.len();
            step.index = first;
            out.push(step);
            let reduced = self.locate(MemorySpace::Symmetric, REDUCED_REGION, &[rows, hidden]);
            let operands = vec![reduced, ordinary(RESIDUAL_REGION)];
            out.push(kernel_step(first + 1, &add, operands, ordinary(ADDED_REGION)));
            let operands =
                vec![ordinary(ADDED_REGION), self.locate(MemorySpace::Ordinary, WEIGHT_REGION, &[hidden])];
            out.push(kernel_step(first + 2, &norm, operands, ordinary(NORMED_REGION)));
        }
        out
    }

    /// Writes operands, residual and weight, and poison values to the destinations of results.
    fn fill(&self, rows: usize, hidden: usize) -> Result<()> {
        let elements = rows * hidden;
        let operand = small_integers(self.dtype, elements, self.exchange.rank())?;
        let residual = small_integers(self.dtype, elements, RESIDUAL_SEED)?;
        let weights: Vec<f64> = (0..hidden).map(weight).collect();
        let weights = Tensor::from_f64(self.dtype, vec![hidden], &weights)
            .ok_or_else(|| CudaError::Unsupported(format!("dtype {} holds no numbers", self.dtype)))?;
        let poison = vec![0x7f; elements * self.dtype.size()];
        let stream = &self.resources.streams.compute;
        // SAFETY: the regions exist and are large enough; no run is in progress.
        unsafe {
            for turn in 0..2 {
                stream.upload(self.addresses.symmetric + (turn * self.region) as Address, operand.data())?;
            }
            stream.upload(self.ordinary(RESIDUAL_REGION), residual.data())?;
            stream.upload(self.ordinary(WEIGHT_REGION), weights.data())?;
            stream.upload(self.ordinary(ADDED_REGION), &poison)?;
            stream.upload(self.ordinary(NORMED_REGION), &poison)
        }
    }

    /// Describes the first wrong element of either result.
    fn compare_norm(&self, rows: usize, hidden: usize) -> Result<Option<String>> {
        let elements = rows * hidden;
        let mut sum = small_integers(self.dtype, elements, RESIDUAL_SEED)?.to_f64();
        for rank in 0..self.exchange.ranks() {
            let operand = small_integers(self.dtype, elements, rank)?.to_f64();
            sum.iter_mut().zip(&operand).for_each(|(s, x)| *s += x);
        }
        let [added, normed] = [self.read(ADDED_REGION, elements)?, self.read(NORMED_REGION, elements)?];
        for row in 0..rows {
            let x = &sum[row * hidden..][..hidden];
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / hidden as f64 + NORM_EPS).sqrt();
            for (j, &x) in x.iter().enumerate() {
                let i = row * hidden + j;
                let expected = x * scale * weight(j);
                // A value that is not a number is not close.
                let close = (normed[i] - expected).abs() <= RELATIVE_TOLERANCE * expected.abs();
                if added[i] != x || !close {
                    let actual = (added[i], normed[i]);
                    return Ok(Some(format!(
                        "row {row}, element {j}: expected {x}, {expected}, found {actual:?}"
                    )));
                }
            }
        }
        Ok(None)
    }

    fn read(&self, region: usize, elements: usize) -> Result<Vec<f64>> {
        let mut bytes = vec![0; elements * self.dtype.size()];
        // SAFETY: the region exists and is large enough; no run is in progress.
        unsafe { self.resources.streams.compute.download(&mut bytes, self.ordinary(region))? };
        Ok(Tensor::new(self.dtype, vec![elements], bytes).map(|t| t.to_f64()).unwrap_or_default())
    }
}

fn kernel_step(index: usize, op: &Op, operands: Vec<LocatedTensor>, result: LocatedTensor) -> ExecutableStep {
    ExecutableStep {
        index,
        lane: Lane::Compute,
        waits: vec![],
        node: format!("step{index}"),
        op_name: format!("step{index}"),
        joins_previous: false,
        work: StepWork::Kernel { op: op.clone(), operands, results: vec![result] },
    }
}

/// The seed of the residual, on all ranks.
const RESIDUAL_SEED: u32 = 9;

/// Element `j` of the weight, exact in every float dtype.
fn weight(j: usize) -> f64 {
    0.5 + (j % 4) as f64 * 0.25
}
