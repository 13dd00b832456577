//! The inner crates of symmc, without any promise of stability.
//!
//! A minor version may change or remove any item here. The items at the top of the crate are stable. Some of them are types
//! from here, such as [`Graph`](crate::Graph) and [`Plan`](crate::Plan): these are stable only as names, to be held, cloned
//! and passed on. Their fields and methods are described here, and change with any version.
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
