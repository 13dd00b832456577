//! The tests of the command, in one binary, because each binary takes seconds to link. Modules that open the real programs or
//! look for libraries of GPUs need all features.

mod checks;
mod common;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod compares;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod definitions;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod doctor;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod errors;
mod escapes;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod estimates;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod exchanges;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod failures;
mod features;
mod files;
mod help;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod joining;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod limits;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod logs;
mod machines;
mod numerics;
mod outputs;
mod progress;
mod replaced;
mod run_report;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod saved_plans;
#[cfg(all(feature = "cuda", feature = "onnx", feature = "torch"))]
mod shows;
