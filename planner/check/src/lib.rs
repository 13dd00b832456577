//! The check: a proof that a plan is safe, from the plan alone.
//!
//! [`check`] reads the programs that the plan carries, and shares no code with what made it. It is a race
//! detector over the plan, with the contracts of `symmc_ir::collective` as its only knowledge of variants.
//!
//! # State
//! A rank has an ordinary arena, a symmetric arena, and memory that its caller gives for inputs and outputs.
//! At every point of a run each base value (`symmc_ir::layout`) of the planned program is unwritten,
//! *intact*, or lost. It is intact from the completion of its step until a step writes bytes that it
//! occupies, unless that step leaves them as they are (a concatenation over its pieces, an all-gather over
//! this rank's shard). Inputs are intact from the start of the run.
//!
//! # Points and their order
//! `→` (happens before) is the least transitive order over the points of all ranks and runs with
//! - the start of a run → each of its steps; the completion of each step of a run → the start of the next run
//!   of the same rank;
//! - completion of a step → arrival of every later step in its lane, and of every step that waits for it;
//! - within a step on one rank: arrival → pre → rendezvous → post → last touch → exit → completion;
//! - between ranks `p`, `q` of one cell of the group of a collective: arrival on `p` → rendezvous on `q`, if the
//!   contract says that the group meets; last touch on `p` → completion on `q`, if the exit barrier runs;
//! - if it says that pairs meet, for each pair `(p, q)` of the collective with a *touch* of its own: arrival on
//!   `p` and on `q` → touch → completion on `p` and on `q`. Such a step has no rendezvous.
//!
//! # Transfer
//! A step touches whole base values: a view is read through its base.
//! - The rank itself reads the operands from arrival to completion, and writes the results from arrival, or
//!   from the rendezvous if the contract says so, to completion.
//! - Peers read the operand and write the result, as the contract says, from their rendezvous (with `entry`) or
//!   their arrival to their last touch. Where pairs meet, only the sender of a pair does, at the touch. As that
//!   comes after the receiver's arrival and before its completion, the rank's own write stands in for it.
//! - Lines of LL write the landing zone whose turn it is from the sender's arrival; the receiver has read it at
//!   completion. A line and its own receipt are ordered by the flag.
//! - The caller writes bound arguments, bound inputs whose size the source gives by symbols, and those that an output
//!   replaces, at the start of each run; other bound inputs before the first. It reads the outputs at the end.
//!
//! # What is proven
//! For every number of runs, every sequence of buckets and of bindings within their ranges (two runs of a bucket have
//! sizes that have nothing to do with each other), every rank, and every timing of the ranks:
//! 1. Two accesses to overlapping bytes of one rank's memory, one of them a write, are ordered by `→`. Exempt
//!    are a line of LL and its receipt, and the accesses of one step, where the rules of `inplace` hold instead.
//! 2. A step finds its operands intact, the caller finds the outputs intact, and the next run finds bound
//!    parameters intact. With 1, the order of the list decides what is intact.
//! 3. Collectives of one group run in one order on all ranks.
//! 4. Every touch stays within its memory; starts are aligned; what peers reach lies in the symmetric arena;
//!    landing zones are there and large enough; every node is a step exactly once, after its operands.
//! 5. No rank waits for ever while all ranks proceed: the list is one order that every wait, lane and
//!    collective follows on all ranks.
//!
//! Buffers, lifetimes, reach and totals are compared with what the steps do. Lifetimes are not what safety
//! rests on: 1 is proven from accesses alone.
//!
//! # How
//! Sizes and positions are dims. A value's *span* holds all bytes that it can occupy on any rank under any
//! binding; values whose spans meet share bytes unless the dims prove them apart (`place`): under one binding within
//! a run (`overlap`), under any two for two runs of a bucket, and not at all for two buckets. The order is
//! decided with vector clocks (`clock`) and the last accesses of each byte (`memory`), in one pass over
//! the list per bucket and a short one per sequence of buckets that differ in what they leave to others (`left`,
//! `time`). Time is near linear in the number of steps.
//!
//! # What is not proven
//! That the planned programs compute what the source computes (only their signatures are compared here; numbers are
//! compared where an interpreter is at hand), that ranks touch disjoint elements within a step, that a
//! variant's implementation keeps its contract, that kernels write what they should, that estimates are right,
//! and that a slice stays within its operand for sizes for which the verifier cannot tell: whoever runs a plan
//! knows the sizes and refuses those.

mod buffer;
mod checked;
mod clock;
mod context;
mod cross_run;
mod error;
mod findings;
mod fixed_memory;
#[doc(hidden)]
pub mod fuzz;
mod inplace;
mod location;
mod memory;
mod overlap;
mod program;
mod prove;
mod ranks;
mod report;
mod step;
mod time;

pub use checked::CheckedPlan;
pub use error::{AccessMoment, Accessor, CheckError, MemoryAccess, ProgramId, StepLocation, ValueSide};
pub use findings::MOST;
pub use prove::{PlanProof, check, prove};
pub use report::CheckReport;
