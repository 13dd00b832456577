//! The check: a proof that a plan is safe, from the plan alone.
//!
//! [`check`] parses the programs that the plan carries and shares no code with the planner. It is a race
//! detector over the plan. The contracts of `symmc_ir::collective` are all that it knows about variants.
//! `docs/plan-spec.md` states the same rules for other implementations.
//!
//! # State
//! A rank has an ordinary arena, a symmetric arena, and memory that its caller provides for inputs and outputs.
//! At every point of a run each base value (`symmc_ir::layout`) of the planned program is *unwritten*, *intact*
//! or *lost*.
//! - A value becomes intact when its step completes. Inputs are intact from the start of the run.
//! - A value becomes lost when another step writes bytes that it occupies. The exception is a step that leaves
//!   these bytes as they are: a copy onto its operand, a concatenation over its pieces, or an all-gather over
//!   this rank's shard.
//!
//! # Points and their order
//! `→` (happens before) is the least transitive relation over the points of all ranks and runs with these edges:
//! - the start of a run → each of its steps;
//! - the completion of each step of a run → the start of the next run of the same rank;
//! - the completion of a step → the arrival of every later step in its lane, and of every step that waits for it;
//! - within a step on one rank: arrival → rendezvous → last touch → completion;
//! - between ranks `p` and `q` of one cell of a collective's group: arrival on `p` → rendezvous on `q`, if the
//!   contract says that the group meets;
//! - between the same ranks: last touch on `p` → completion on `q`, if the exit barrier runs;
//! - for each pair `(p, q)` of a collective whose contract says that pairs meet: arrival on `p` and on `q` → the
//!   *touch* of the pair → completion on `p` and on `q`. Such a step has no rendezvous.
//!
//! # Accesses
//! A step accesses whole base values. A view is read through its base.
//! - The rank itself reads the operands from arrival to completion. It writes the results up to completion,
//!   starting from the rendezvous if the contract says so, and otherwise from arrival.
//! - Peers read the operand and write the result as the contract says. They do so up to their last touch,
//!   starting from their rendezvous if the contract has an entry barrier, and otherwise from their arrival.
//! - If pairs meet, only the sender of a pair accesses its receiver's memory, at the touch. The touch comes after
//!   the arrival and before the completion of the receiver, so the receiver's own write covers it.
//! - A collective by LL writes lines into the current landing zone from the sender's arrival. The receiver has
//!   read the zone at completion. A line and its receipt are ordered by the line's flag.
//! - The caller writes these inputs at the start of each run: arguments, bound inputs whose size is symbolic in
//!   the source, and inputs that an output replaces. It writes all other bound inputs before the first run only.
//! - The caller reads the outputs at the end of the run.
//!
//! # Proven properties
//! The properties hold for every number of runs, every rank and every timing of the ranks. They hold for every
//! sequence of buckets and of bindings within the ranges of each bucket. Two runs of one bucket may have unrelated
//! sizes.
//! 1. *No race.* Two accesses to overlapping bytes of one rank's memory, one of them a write, are ordered by `→`.
//!    A line of LL and its receipt are exempt. Accesses of one step are also exempt: the rules of `inplace`
//!    apply to them.
//! 2. *Values.* Each step finds its operands intact, the caller finds the outputs intact, and the next run finds
//!    bound parameters intact. Because of 1, the order of the list decides which values are intact.
//! 3. *One order.* Collectives of one group run in one order on all ranks.
//! 4. *Structure.* Every access stays within its memory. Starts are aligned. Memory that peers reach lies in the
//!    symmetric arena. Landing zones exist and are large enough. Every node except views belongs to exactly one
//!    step, which comes after the steps of its operands.
//! 5. *Progress.* No rank waits forever while all ranks proceed, because every wait, lane and collective follows
//!    the order of one list on all ranks.
//!
//! Buffers, lifetimes, reach and totals are compared with the accesses of the steps. Safety does not rest on
//! lifetimes: property 1 is proven from accesses alone.
//!
//! # Method
//! Sizes and positions are dims. The *span* of a value holds all bytes that it can occupy on any rank under any
//! binding. Values whose spans overlap are taken to share bytes unless their dims prove them disjoint
//! (`location`). Values are compared in three ways:
//! - two values of one run: by their dims under one binding (`overlap`);
//! - two values of two runs of one bucket: by their dims under two independent bindings;
//! - two values of two buckets: by their spans only.
//!
//! Vector clocks (`clock`) and the last accesses of each byte (`memory`) decide the order of accesses. One pass
//! over the list of a bucket finds all races and lost values within a run (`time`). The check then follows the
//! sequences of runs after it until no access of the first run can conflict any more. Buckets that agree in lanes,
//! waits and collectives share that work (`cross_run`). The time is nearly linear in the number of steps.
//!
//! # Limits
//! The check does not prove the following:
//! - that the planned programs compute what the source computes. The check compares only their signatures, groups
//!   and custom ops. The crate `symmc-compare` compares numbers where programs can be interpreted.
//! - that ranks touch disjoint elements within a step;
//! - that the implementation of a variant keeps its contract, or that kernels write only their results;
//! - that estimates are right;
//! - that a slice stays within its operand for sizes that the verifier cannot decide. A runtime knows the sizes
//!   and must reject such runs.

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
pub use findings::MAX_STORED_FINDINGS;
pub use prove::{PlanProof, check, prove};
pub use report::CheckReport;
