//! The crates that symmc is made of, as they are.
//!
//! Nothing here is stable: a minor version may change or remove any of it. What is named at the top of the crate is, but
//! of the types that it takes from here, such as [`Graph`](crate::Graph) and [`Plan`](crate::Plan), only the name and that
//! they can be held, cloned and passed on; what they hold inside is described, and changes, here.

pub use symmc_check as check;
pub use symmc_control as control;
#[cfg(feature = "cuda")]
pub use symmc_cuda as cuda;
pub use symmc_driver as driver;
pub use symmc_import as import;
pub use symmc_ir as ir;
#[cfg(feature = "onnx")]
pub use symmc_onnx as onnx;
pub use symmc_pack as pack;
pub use symmc_passes as passes;
pub use symmc_plan as plan;
pub use symmc_planner as planner;
pub use symmc_runtime as runtime;
pub use symmc_support as support;
#[cfg(feature = "torch")]
pub use symmc_torch as torch;
