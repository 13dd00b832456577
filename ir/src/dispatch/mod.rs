//! Dispatches: sets of nodes that run as one step.
//!
//! A [`Dispatch`](crate::Dispatch) is a consecutive run of nodes of a program, and the
//! [`DispatchForm`](crate::DispatchForm) of the kernel that executes them. Everything else treats it as one step. The step reads its operands, the values that other
//! steps define, and writes its results, the values that have memory. A value that only nodes of the dispatch
//! read is *internal* and has no memory if the form keeps it internal, as each form below says.
//!
//! Dispatches say how a program runs, not what it computes. Interpreters evaluate the single nodes, each value
//! is rounded to its dtype as if it were stored, and passes that build a new graph drop the dispatches.
//!
//! # Forms
//! The contract of each form says what a kernel reads and writes, and when. A plan depends on no other property
//! of the kernel.
//!
//! **`loop`**: one loop nest over an iteration space: the shape of the values that it reduces, or of its last
//! element-wise node. It reduces no axis, the last one, or the one before it. All values can be internal. The nodes
//! are:
//! - reductions over that axis of values over the space, and RMS and layer norms over the last axis;
//! - element-wise nodes (casts included) and constants over the space, or with one element for each result of a
//!   reduction;
//! - element-wise nodes and constants of fewer elements that nodes of the loop broadcast and no node outside reads;
//! - rows that are taken along the first axis at positions that are data (`take`), over the space, that no node
//!   outside reads, in a loop that does not reduce the last axis.
//!
//! The reduced axis has at least one element for all sizes, and no node of a loop that reduces divides integers.
//!
//! Each reduced row is computed independently; without a reduction, each position is. A kernel writes a result over an
//! operand only after it has read all of that row or position. A result may therefore lie on an operand of an
//! element-wise node, a reduction or a norm (not on its weights), element on element, if no node after its own reads that
//! operand. A loop that reduces the axis before the last (the weighted sum of the results of experts) computes several
//! columns at once. No node outside reads a value over its space. No node over the space reads the result of a reduction.
//! No result lies on an operand.
//!
//! **`product`**: matrix products of one left operand, whose results nothing else reads, and a `loop` without
//! reductions over them or over columns of them. All values can be internal. The products read all of their operands
//! at any time; the rules of a loop apply to the other nodes.
//!
//! **`batch`**: independent matrix products of one left operand, and rotary embeddings of some of these
//! products, head by head, where nothing else reads the product. Products can be internal; results of rotary
//! embeddings cannot. No result lies on an operand.
//!
//! **`reduction`**: an all-reduce, the addition of a residual to its result, and optionally the RMS norm of
//! each row of the sum. For peers it is the all-reduce, under the contract of its variant. All operands are
//! read between arrival and completion. All results, including the sum and the norm, are written between the
//! point where the contract allows the result of the all-reduce to be written
//! ([`result_after_rendezvous`](crate::Contract::result_after_rendezvous)) and completion. Kernels comply
//! because each element needs the operands of all ranks. The sum may therefore lie on bytes that peers read
//! until the rendezvous. Each position follows the rules of a loop, except for the weight of the norm, which all
//! rows read. Operands and results are contiguous, and none lies by rank. The result of the reduction itself
//! can be internal if peers do not write it. The sum and the norm always have memory.
//!
//! **`gather`**: an all-gather by a variant whose results are written after the rendezvous and never by peers
//! (`pull`, `pull_copies`, `ll`), views of its result that change the order of its axes, and a copy that stores
//! such a view. Nothing else reads the result of the all-gather, which is internal. For peers it is the
//! all-gather, under the contract of its variant. The operand is read between arrival and completion. The copy
//! is written between the rendezvous and completion. It lies on no operand, and always has memory.
//!
//! **`selection`**: nodes whose values have the same first extent, that of the rows, and constant extents
//! otherwise: the selection of the first elements of the last axis (`topk`), softmax and reductions along the
//! last axis, `gather_elements` and `scatter_elements` along it, element-wise nodes and constants, and views of
//! values inside. All values can be internal. Each row is computed independently. All operands are read at any
//! time, and no result lies on an operand. This is the choice of experts.
//!
//! **`rotary`**: independent rotary embeddings. Each result may lie on the rotated operand of its own node,
//! element on element. All results have memory.
//!
//! **`scatter`**: independent stores at positions that are data (`index_put`), such as stores of keys and
//! values into their caches. Each result may lie on the first operand of its own node, element on element. All
//! results have memory.
//!
//! **`collectives`**: independent collectives of one group by one variant, of any kinds and dtypes. The
//! contract of the variant begins with an entry barrier of the group, and is the same for all of these kinds,
//! except for whether a result may lie on its operand. For peers they are one collective with several operands
//! and results. All operands are read from arrival (by peers from the rendezvous) to the end of the step, and
//! all results are written from the rendezvous of the step on. A backend may use more barriers than the two of
//! the step. All results have memory, and none lies on an operand.

mod heads;
mod nodes;
mod overwrite;
mod space;

pub use heads::{RotatedProduct, find_rotated_product};
pub(crate) use nodes::check_dispatch;
pub use nodes::{batch_key, shared_contract};
pub use overwrite::OverwriteRule;
pub use space::{LoopSpace, loop_space, reduced_axis};
