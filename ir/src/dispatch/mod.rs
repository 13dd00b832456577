//! Dispatches: nodes that run as one step.
//!
//! A [`Dispatch`] is a run of nodes of a program, neighbours in program order, and the [`Form`] of the kernel that they are.
//! Towards everything else it is one step: it reads its operands, those values that others define, and writes its results,
//! those values that others read. What its nodes pass among each other is *inner*: it has no memory.
//!
//! Dispatches say how a program runs, not what it computes: interpreters look at the nodes alone, each value is rounded to its
//! dtype as if it were stored, and passes that build a new graph drop them.
//!
//! # Forms
//! What a kernel of each form reads and writes, and when: its contract. Everything else about it is of no consequence to a
//! plan.
//!
//! **`map`**: element-wise nodes and constants of one shape. Each position is computed by itself, so results may lie on
//! operands, element on element, that no node behind theirs reads: what lies in one place is then told by the order of the
//! nodes.
//!
//! **`product`**: matrix products of one left operand, whose results nothing else reads, and a `map` over them or over columns
//! of them. The products read all of their operands at any time; for the others it is a map.
//!
//! **`batch`**: matrix products of one left operand that do not need each other, and rotary embeddings of what some of them give,
//! head by head, where nothing else reads that. No result lies on an operand.
//!
//! **`reduction`**: an all-reduce, the addition of a residual to what it gives, and perhaps the RMS norm of each row of the sum.
//! Towards peers it is the all-reduce, under the contract of its variant. All operands are read and all results written
//! between arrival and completion, each position like that of a map, but for the weight of the norm, which all rows read. All
//! of them lie at one place on all ranks, and none has gaps. The reduction itself has memory where peers write it, and where
//! something else reads it.
//!
//! **`norm`**: a `map`, and behind it the RMS or layer norm over the last axis of a value that it gives. The nodes of the map are
//! as in one; the result of the norm may lie on their operands, element on element, as it is there only when all of its row has
//! been read. Weights and bias of the norm, which all rows read, are never overwritten.
//!
//! **`rotary`**: rotary embeddings that do not need each other. Each result may lie on the operand of its own node that is
//! turned, element on element.
//!
//! **`scatter`**: stores at positions that are data (`index_put`), that do not need each other, as those of keys and values into
//! their caches. Each result may lie on the first operand of its own node, element on element.

mod form;
mod heads;
mod nodes;

pub use form::{Dispatch, Form, Overwriting};
pub use heads::{Turned, turned};
pub use nodes::batched;
pub(crate) use nodes::check;
