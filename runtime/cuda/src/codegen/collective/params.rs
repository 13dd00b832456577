//! The parameters of kernels, one struct per family. The CUDA C declarations are generated from here
//! ([`declarations`]), so both sides share one definition.

use std::sync::LazyLock;

use super::control::{MAX_BLOCKS, MAX_RANKS};
use crate::device::launch::{Address, CudaStruct, DevicePtr, plain};

plain! {
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct GroupParams {
        /// The address of each rank's flags of the group, `[MAX_BLOCKS][MAX_RANKS]`.
        pub flags: [Address; MAX_RANKS],
        /// The rank at each index of the cell, for reports.
        pub ranks: [u32; MAX_RANKS],
        /// `Words[MAX_BLOCKS]`.
        pub words: Address,
        pub shared: Address,
        pub status: Address,
        /// The longest wait, in nanoseconds.
        pub limit: u64,
        /// The seed of random delays.
        pub seed: u64,
        /// The index of this rank in its cell.
        pub me: u32,
        pub step: u32,
        pub group: u32,
        /// Pads the struct to a multiple of 8 bytes.
        pub unused: u32,
    }
}

plain! {
    /// The parameters of kernels between two barriers. Either bytes move from each source to the destination
    /// with the same index, or elements of all sources are reduced into the first destinations.
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct BarrierParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [DevicePtr; MAX_RANKS],
        /// The number of bytes, or of elements if they are reduced.
        pub count: u64,
        /// The bytes of a row, if rows are moved.
        pub row: u64,
    }
}

plain! {
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct PutParams extends GroupParams as base {
        pub from: DevicePtr,
        pub to: DevicePtr,
        pub out: [DevicePtr; MAX_RANKS],
        /// The number of bytes.
        pub count: u64,
        /// The indices of the ranks that are written to, and their number.
        pub receiver: [u32; MAX_RANKS],
        pub receivers: u32,
        /// The index of the rank that writes here, or `MAX_RANKS`.
        pub sender: u32,
        /// Whether the result is zero, because no rank sends to this one.
        pub zero: u64,
    }
}

plain! {
    /// The parameters of kernels that send messages to landing zones (LL, LL128).
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct LandingParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [Address; MAX_RANKS],
        pub out: [DevicePtr; MAX_RANKS],
        /// The address in this rank's first landing zone for the message of each rank.
        pub slots: [Address; MAX_RANKS],
        /// The bytes of a message.
        pub count: u64,
        /// The distance from the first landing zone to the second, in bytes.
        pub other: u64,
        /// This rank's first landing zone.
        pub zone: Address,
        /// The number of 16-byte units of a landing zone before the slots of LL128.
        pub before: u64,
        /// The bytes that each rank reduces in the first of two rounds, or the bytes of a gathered row.
        pub slice: u64,
    }
}

plain! {
    /// The parameters of a two-shot all-reduce by stores only.
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct PushedParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [DevicePtr; MAX_RANKS],
        /// The slices of this rank's own result.
        pub slots: [DevicePtr; MAX_RANKS],
        /// The bytes that each rank reduces.
        pub slice: u64,
    }
}

plain! {
    /// The parameters of all-to-alls with sizes on the device.
    #[derive(PartialEq, Debug, Default)]
    pub(super) struct SplitsParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: DevicePtr,
        /// The table at each index of the cell: `[block][sender][receiver]`.
        pub sizes: [Address; MAX_RANKS],
        /// The staging area at each index of the cell: `[round][sender][block]` parts of `slot` bytes.
        pub staging: [Address; MAX_RANKS],
        /// The row counts to each index of the cell, and the address where the kernel stores the received row
        /// counts.
        pub sent: DevicePtr,
        pub received: DevicePtr,
        /// The bytes of a row.
        pub row: u64,
        /// The number of rows of the operand, and of the result.
        pub capacity: u64,
        pub slot: u64,
    }
}

plain! {
    /// The parameters of exchanges of rows that tables select.
    #[derive(PartialEq, Debug, Default)]
    pub(super) struct RowExchangeParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: DevicePtr,
        /// The staging area at each index of the cell: `[round][sender][block]` parts of `slot` bytes.
        pub staging: [Address; MAX_RANKS],
        /// The sums at each index of the cell that peers write, for a reduction.
        pub sums: [DevicePtr; MAX_RANKS],
        /// The global rows of the slots: of this rank for a combination, of all ranks otherwise.
        pub row_table: DevicePtr,
        /// The global slot of each row of this rank, for a dispatch.
        pub row_slots: DevicePtr,
        /// The weight of each of these slots; null if all weights are 1.
        pub weights: DevicePtr,
        /// The number of tokens of each rank, of slots of each token, and of rows that each rank receives.
        pub tokens: u64,
        pub slots: u64,
        pub capacity: u64,
        /// The bytes of a row.
        pub row: u64,
        pub slot: u64,
        /// The bytes of a row that a block stages at a time, and the bytes in front of them.
        pub room: u64,
        pub front: u64,
    }
}

plain! {
    /// The steps after an all-reduce in its kernel. Pointers to absent values are null. Results may be in
    /// place of the operand or the residual, with each element at the same address.
    pub(super) struct Norm {
        pub residual: DevicePtr,
        pub weight: DevicePtr,
        /// The destinations of the reduction, its sum with the residual, and the norm of the sum.
        pub reduced: DevicePtr,
        pub added: DevicePtr,
        pub normed: DevicePtr,
        /// The number of 8-byte words of a row.
        pub row: u32,
        pub eps: f32,
        /// The units of a row that one block sends. If a grid has more blocks than rows, enough blocks are
        /// assigned to each row to send all of it.
        pub share: u32,
        /// Whether a result shares memory with the operand.
        pub in_place: u32,
    }
}

plain! {
    /// The addition to an all-reduce, in its dtype: pointers on this rank to as many elements as the operand
    /// has. The sum may be in place of the operand, the result or the residual, with each element at the same
    /// address.
    #[derive(PartialEq, Debug)]
    pub struct Addition {
        /// The value that is added to the reduction.
        pub residual: DevicePtr,
        /// The destination of the sum.
        pub sum: DevicePtr,
    }
}

plain! {
    /// The addresses that a kernel reads and writes for one of several collectives, as in [`BarrierParams`].
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct CollectiveRegions {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [DevicePtr; MAX_RANKS],
        pub count: u64,
    }
}

plain! {
    /// One of several collectives, and the index of the thread that begins with it.
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct Turn {
        pub part: CollectiveRegions,
        pub start: u64,
    }
}

/// The largest number of collectives of a kernel, given that its parameters have at most 4 KiB.
pub(super) const MAX_TURNS: usize = 16;

plain! {
    pub(super) struct Turns {
        pub of: [Turn; MAX_TURNS],
    }
}

const _: () = assert!(size_of::<Turns>() + size_of::<GroupParams>() <= 4096, "parameters of a kernel");

/// The declarations of all parameters, which are placed before the kernels.
pub(super) fn declarations() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let structs = [
            GroupParams::declaration(),
            BarrierParams::declaration(),
            PutParams::declaration(),
            LandingParams::declaration(),
            PushedParams::declaration(),
            SplitsParams::declaration(),
            RowExchangeParams::declaration(),
            Norm::declaration(),
            Addition::declaration(),
            CollectiveRegions::declaration(),
            Turn::declaration(),
            Turns::declaration(),
        ];
        format!(
            "namespace symmc_peer {{\n\nconstexpr u32 MAX_RANKS = {MAX_RANKS}, MAX_BLOCKS = {MAX_BLOCKS};\n\n{}\n}}\n",
            structs.join("\n")
        )
    });
    &TEXT
}
