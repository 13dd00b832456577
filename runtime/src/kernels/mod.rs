//! Kernels of the ops on the CPU.
