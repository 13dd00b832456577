//! The parameters of kernels, one struct for each family of them. CUDA C gets its declarations from here
//! ([`declarations`]), so both sides have one definition.

use std::sync::LazyLock;

use super::control::{MAX_BLOCKS, MAX_RANKS};
use crate::device::launch::{Address, CudaStruct, DevicePtr, plain};

plain! {
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct GroupParams {
        /// Where each rank's flags of the group lie, `[MAX_BLOCKS][MAX_RANKS]`.
        pub flags: [Address; MAX_RANKS],
        /// The rank that each number of the cell is, for reports.
        pub ranks: [u32; MAX_RANKS],
        /// `Words[MAX_BLOCKS]`.
        pub words: Address,
        pub shared: Address,
        pub status: Address,
        /// The longest wait, in nanoseconds.
        pub limit: u64,
        /// Of random delays.
        pub seed: u64,
        /// The number of this rank in its cell.
        pub me: u32,
        pub step: u32,
        pub group: u32,
        /// Makes the struct a multiple of 8 bytes.
        pub unused: u32,
    }
}

plain! {
    /// Of kernels between two barriers: bytes that move from and to places of the same index, or elements that are reduced from
    /// all places into the first ones.
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct BarrierParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [DevicePtr; MAX_RANKS],
        /// Bytes, or elements if they are reduced.
        pub count: u64,
        /// The bytes of a row, if rows move.
        pub row: u64,
    }
}

plain! {
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct PutParams extends GroupParams as base {
        pub from: DevicePtr,
        pub to: DevicePtr,
        pub out: [DevicePtr; MAX_RANKS],
        /// Bytes.
        pub count: u64,
        /// The ranks that are written to, and how many there are.
        pub receiver: [u32; MAX_RANKS],
        pub receivers: u32,
        /// The number of the rank that writes here, or `MAX_RANKS`.
        pub sender: u32,
        /// Whether the result is zero, because nobody sends anything.
        pub zero: u64,
    }
}

plain! {
    /// Of kernels that send messages to landing zones (LL, LL128).
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct LandingParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [Address; MAX_RANKS],
        pub out: [DevicePtr; MAX_RANKS],
        /// Where in this rank's first landing zone the message of each rank comes.
        pub slots: [Address; MAX_RANKS],
        /// The bytes of a message.
        pub count: u64,
        /// From the first landing zone to the second, in bytes.
        pub other: u64,
        /// This rank's first landing zone.
        pub zone: Address,
        /// The units of 16 bytes of a landing zone before the slots of LL128.
        pub before: u64,
        /// The bytes that each rank reduces in the first of two rounds, or those of a row that is gathered.
        pub slice: u64,
    }
}

plain! {
    /// Of a two-shot all-reduce by stores alone.
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
    /// Of all-to-alls with sizes on the device.
    #[derive(PartialEq, Debug, Default)]
    pub(super) struct SplitsParams extends GroupParams as base {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: DevicePtr,
        /// The table of each number: `[block][sender][receiver]`.
        pub sizes: [Address; MAX_RANKS],
        /// The staging area of each number: `[round][sender][block]` parts of `slot` bytes.
        pub staging: [Address; MAX_RANKS],
        /// How many rows go to each number, and where the kernel stores how many come.
        pub sent: DevicePtr,
        pub received: DevicePtr,
        /// The bytes of a row.
        pub row: u64,
        /// The rows of the operand, and of the result.
        pub capacity: u64,
        pub slot: u64,
    }
}

plain! {
    /// What follows an all-reduce in its kernel. Pointers are null for what there is not. Results may lie on the operand or the
    /// residual, element on element.
    pub(super) struct Norm {
        pub residual: DevicePtr,
        pub weight: DevicePtr,
        /// Where the reduction, its sum with the residual and the norm of that go.
        pub reduced: DevicePtr,
        pub added: DevicePtr,
        pub normed: DevicePtr,
        /// Words of 8 bytes of a row.
        pub row: u32,
        pub eps: f32,
        /// The units of a row that one block sends. A grid with more blocks than rows has as many for each row as send all of
        /// it.
        pub share: u32,
        /// Whether a result lies on the operand.
        pub in_place: u32,
    }
}

plain! {
    /// What is added to an all-reduce, in its dtype: pointers on this rank, to as many elements as the operand has. The sum may
    /// lie on the operand, the result or the residual, element on element.
    #[derive(PartialEq, Debug)]
    pub struct Addition {
        /// What is added to the reduction.
        pub residual: DevicePtr,
        /// Where the sum goes.
        pub sum: DevicePtr,
    }
}

plain! {
    /// Where a kernel reads and writes for one of several collectives, as in [`BarrierParams`].
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct CollectiveRegions {
        pub from: [DevicePtr; MAX_RANKS],
        pub to: [DevicePtr; MAX_RANKS],
        pub count: u64,
    }
}

plain! {
    /// A collective among several, and the number of the thread that begins with it.
    #[derive(PartialEq, Default, Debug)]
    pub(super) struct Turn {
        pub part: CollectiveRegions,
        pub start: u64,
    }
}

/// The most collectives of a kernel, whose parameters have at most 4 KiB.
pub(super) const MOST_TURNS: usize = 16;

plain! {
    pub(super) struct Turns {
        pub of: [Turn; MOST_TURNS],
    }
}

const _: () = assert!(size_of::<Turns>() + size_of::<GroupParams>() <= 4096, "parameters of a kernel");

/// The declarations of all parameters, which stand before the kernels.
pub(super) fn declarations() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let structs = [
            GroupParams::declaration(),
            BarrierParams::declaration(),
            PutParams::declaration(),
            LandingParams::declaration(),
            PushedParams::declaration(),
            SplitsParams::declaration(),
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
