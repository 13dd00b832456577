//! Kernels of custom ops, as an embedder registers them, and this program as the command of rank processes.
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
use symmc_runtime::host::expect_kernels;

pub use symmc_runtime::custom::{
    CustomCall, CustomError, CustomKernelRegistry, Element, KernelSignature, PeerResult, ValueMismatch, bf16,
    f16,
};

use crate::error::Error;
use crate::rank_task::RankTask;
use crate::run::Backend;

/// The argument that makes a program that calls [`rank_main`] a rank.
const RANK: &str = "--symmc-rank";

/// Whether every op of a plan has a kernel on the host.
///
/// # Errors
/// The first that has none, or one of another signature.
pub fn check_kernels(plan: &CheckedPlan, kernels: &CustomKernelRegistry) -> Result<(), Error> {
    Ok(expect_kernels(plan, kernels)?)
}

impl Backend {
    /// One process per rank, each of them this program, whose `main` begins with [`rank_main`].
    ///
    /// # Errors
    /// The system does not say where this program is.
    pub fn this_program() -> Result<Backend, Error> {
        let program = std::env::current_exe().map_err(|e| Error::io("this program".as_ref(), e))?;
        Ok(Backend::Processes(RankCommand { program, args: vec![RANK.into()] }))
    }
}

/// Runs the rank whose control socket has this descriptor, with these kernels for custom ops, and ends when its run has:
/// what the command of a rank does with the number that is its last argument.
///
/// # Errors
/// The descriptor is not that of such a socket. What ends the run itself is reported to who started it.
pub fn run_rank_from_fd(fd: i32, kernels: &CustomKernelRegistry) -> Result<(), Error> {
    Ok(symmc_control::rank_main(fd, |rank| rank.receive_task::<RankTask>()?.perform(rank, kernels))?)
}

/// Runs a rank, with these kernels for custom ops, if this process was started as one by
/// [`Backend::this_program`]: the code to exit with, when the run has ended. `None` in any other process.
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
