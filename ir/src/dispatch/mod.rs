//! Dispatches: nodes that run as one step.
//!
//! A [`Dispatch`] is a run of nodes of a program, neighbours in program order, and the [`DispatchForm`] of the kernel that they are.
//! Towards everything else it is one step: it reads its operands, those values that others define, and writes its results,
//! those values that have memory. What its nodes pass among each other is *inner*, and has no memory, where no other node reads
//! it and the form passes it on, as each form below says.
//!
//! Dispatches say how a program runs, not what it computes: interpreters look at the nodes alone, each value is rounded to its
//! dtype as if it were stored, and passes that build a new graph drop them.
//!
//! # Forms
//! What a kernel of each form reads and writes, and when: its contract. Everything else about it is of no consequence to a
//! plan.
//!
//! **`map`**: element-wise nodes (casts among them) and constants of one shape; all values are passed on. Each position is computed by itself, so results may lie on
//! operands, element on element, that no node behind theirs reads: what lies in one place is then told by the order of the
//! nodes.
//!
//! **`product`**: matrix products of one left operand, whose results nothing else reads, and a `map` over them or over columns
//! of them; all values are passed on. The products read all of their operands at any time; for the others it is a map.
//!
//! **`batch`**: matrix products of one left operand that do not need each other, and rotary embeddings of what some of them give,
//! head by head, where nothing else reads that. Products are passed on, what rotary embeddings give is not. No result lies on an
//! operand.
//!
//! **`reduction`**: an all-reduce, the addition of a residual to what it gives, and perhaps the RMS norm of each row of the sum.
//! Towards peers it is the all-reduce, under the contract of its variant. All operands are read between arrival and completion.
//! All results, the sum and the norm as well, are written from where the contract lets the result of the all-reduce be written
//! ([`result_after_rendezvous`](crate::Contract::result_after_rendezvous)) to completion: kernels keep that, as each element needs the
//! operands of all ranks. So the sum may lie on bytes that peers read until the rendezvous. Each position is like that of a map,
//! but for the weight of the norm, which all rows read. Operands and results are contiguous runs, and none lies by rank.
//! The reduction itself is passed on where peers do not write it; the sum and the norm always have memory.
//!
//! **`gather`**: an all-gather by a variant whose results are written after the rendezvous and never by peers (`pull`, `pull_copies`,
//! `ll`), views of its result that change the order of its axes, and a copy that stores such a view. Nothing else reads the result of the
//! all-gather, which is passed on. Towards peers it is the all-gather, under the contract of its variant. The operand is read
//! between arrival and completion. All of the copy is written from the rendezvous to completion. It lies on no operand, and always has memory.
//!
//! **`norm`**: a `map`, and behind it the RMS or layer norm over the last axis of a value that it gives. The nodes of the map are
//! as in one, and all values are passed on; the result of the norm may lie on their operands, element on element, as it is there only when all of its row has
//! been read. Weights and bias of the norm, which all rows read, are never overwritten.
//!
//! **`rows`**: reductions over the last axis of values of one shape, which keep that axis with extent 1, and element-wise nodes
//! (casts among them) and constants. An element-wise node has either the shape of the rows, and reads results of reductions as they
//! broadcast along each row, or one element for each row, or is one row that all rows read (of a weight) and that no other node
//! reads. All values are passed on. Each row is computed by itself, and nothing of it
//! is written before all of the row has been read. So results may lie on operands, element on element, that no node after their own
//! reads.
//!
//! **`rotary`**: rotary embeddings that do not need each other. Each result may lie on the operand of its own node that is
//! turned, element on element; all results have memory.
//!
//! **`scatter`**: stores at positions that are data (`index_put`), that do not need each other, as those of keys and values into
//! their caches. Each result may lie on the first operand of its own node, element on element; all results have memory.
//!
//! **`collectives`**: collectives of one group by one variant, of any kinds and dtypes, that do not need each other. The contract of the
//! variant begins with an entry barrier of the group, and is the same for all of these kinds, except for whether a result may lie
//! on its operand. Towards peers they are one collective with several operands and results: all operands are read from arrival, or by
//! peers from the rendezvous, to the end of the step, and all results are written from the rendezvous of the step on. A backend may have
//! more barriers than the two of the step. All results have memory, and none lies on an operand.

mod form;
mod heads;
mod nodes;

pub use form::{Dispatch, DispatchForm, OverwriteRule};
pub use heads::{RotatedProduct, find_rotated_product};
pub(crate) use nodes::check_dispatch;
pub use nodes::{batch_key, shared_contract};
