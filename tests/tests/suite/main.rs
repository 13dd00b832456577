//! End-to-end suites, in one binary, because each takes seconds to link. Those that count what a process holds have binaries of their own.

mod accepted;
mod bounds;
mod families;
mod generate;
mod gradients;
mod lowering;
mod mutants;
mod optimised;
mod programs;
mod regret;
mod replication;
mod rewrites;
mod sessions;
mod solutions;
mod trials;
