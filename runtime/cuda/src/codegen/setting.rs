//! What the steps of a rank are lowered with: where everything lies, and for what machine.
//!
//! A session has its own. Where there is no device, `Dry` has one for a GPU like those of the built-in profiles.

use symmc_runtime::exec::Bound;

use crate::codegen::addresses::AddressMap;
use crate::codegen::collective::{Peers, control_of};
use crate::codegen::compute::{Attentions, GEMM_WORKSPACE, Machine};
use crate::codegen::scratch;
use crate::device::launch::Address;
use crate::nccl::Communicators;

#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub addresses: &'a AddressMap,
    pub peers: &'a Peers,
    pub machine: &'a Machine,
    pub nccl: &'a Communicators,
    /// A word that holds one more than the step of the library's last collective that began, if anybody asks.
    pub progress: Option<Address>,
}

/// What steps are lowered with where there is no device.
#[derive(Debug)]
pub(crate) struct Dry {
    pub addresses: AddressMap,
    pub peers: Peers,
    pub machine: Machine,
    pub nccl: Communicators,
}

impl Dry {
    /// For the steps of a rank of so many, in memory at these addresses, which nothing has: the symmetric arena of rank `r`
    /// is at `addresses.symmetric` and `r` × 2^36 bytes.
    pub fn new(bound: &Bound, ranks: u32, addresses: AddressMap, attention: Attentions) -> Dry {
        let machine = Machine { attention, ..Machine::OF_PROFILES };
        let workspace_bytes = scratch::of_steps(bound.steps.iter(), &machine).max(GEMM_WORKSPACE);
        let peers = Peers {
            rank: bound.rank(),
            arenas: (0..u64::from(ranks)).map(|rank| addresses.symmetric + (rank << 36)).collect(),
            arena: bound.symmetric,
            control: control_of(&bound.steps),
            local: 1 << 20,
            status: 1 << 16,
            ..Peers::default()
        };
        let nccl = Communicators::of_nobody(&bound.steps);
        Dry { addresses, peers, machine: Machine { workspace_bytes, ..machine }, nccl }
    }

    pub fn setting(&self) -> Setting<'_> {
        let Dry { addresses, peers, machine, nccl } = self;
        Setting { addresses, peers, machine, nccl, progress: None }
    }
}
