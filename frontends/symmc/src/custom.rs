//! Kernels of custom ops that an embedder registers, and rank processes that run the embedder's own program.
//!
//! ```no_run
//! use symmc::custom::{CustomError, CustomKernelRegistry, KernelSignature};
//! use symmc::DType;
//!
//! let mut kernels = CustomKernelRegistry::new();
//! let signature = KernelSignature::new(&[DType::F32], &[DType::F32]);
//! kernels.register("my::twice", signature, |call| {
//!     let x = call.operand::<f32>(0)?;
//!     for (y, x) in call.result::<f32>(0)?.iter_mut().zip(x.iter()) {
//!         *y = 2.0 * x;
//!     }
//!     Ok(())
//! });
//! ```

use std::process::ExitCode;

use symmc_check::CheckedPlan;
use symmc_control::RankCommand;
use symmc_runtime::exec::expect_kernels;

pub use symmc_runtime::custom::{
    CustomCall, CustomError, CustomKernelRegistry, Element, KernelSignature, PeerResult, ValueMismatch, bf16,
    f16,
};

use crate::error::Error;
use crate::rank_task::RankTask;
use crate::run::Execution;

/// The argument by which [`rank_main`] recognises the process of a rank.
const RANK: &str = "--symmc-rank";

/// Checks that every op of a plan has a kernel on the host.
///
/// # Errors
/// The first op that has no kernel, or whose kernel has another signature.
pub fn check_kernels(plan: &CheckedPlan, kernels: &CustomKernelRegistry) -> Result<(), Error> {
    Ok(expect_kernels(plan, kernels)?)
}

impl Execution {
    /// One process per rank. Each runs this program, whose `main` must begin with [`rank_main`].
    ///
    /// # Errors
    /// The system does not give the path of this program.
    pub fn this_program() -> Result<Execution, Error> {
        let program = std::env::current_exe().map_err(|e| Error::io("this program".as_ref(), e))?;
        Ok(Execution::Processes(RankCommand { program, args: vec![RANK.into()] }))
    }
}

/// Runs the rank that is controlled through the socket with descriptor `fd`, with these kernels of custom ops. Returns when
/// the run has ended. The command of a rank process calls this with the number that is its last argument.
///
/// # Errors
/// The descriptor is not that of a control socket. A failure of the run itself is reported to the process that started it.
pub fn run_rank_from_fd(fd: i32, kernels: &CustomKernelRegistry) -> Result<(), Error> {
    Ok(symmc_control::rank_main(fd, |rank| rank.receive_task::<RankTask>()?.perform(rank, kernels))?)
}

/// Runs a rank, with these kernels of custom ops, if [`Execution::this_program`] started this process. Returns the exit code when
/// the run has ended, and `None` in any other process.
///
/// A program that runs plans on processes of its own calls this first in its `main`, before it writes, reads or
/// starts anything: the process of a rank exists for its rank only.
#[must_use = "the process of a rank ends with this code"]
pub fn rank_main(kernels: &CustomKernelRegistry) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != RANK {
        return None;
    }
    let fd = args.next().and_then(|fd| fd.to_str()?.parse().ok()).unwrap_or(-1);
    Some(match run_rank_from_fd(fd, kernels) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    })
}
