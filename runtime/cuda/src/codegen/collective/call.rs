//! A collective on one rank, and the addresses that its kernel receives.
//!
//! Every address of a peer is checked against the arena here, before it is passed to a kernel.

use symmc_ir::collective::{LL128_LINE, ProtocolThresholds, landing_zone_bytes, ll_zone_bytes};
use symmc_runtime::exec::{MemorySpace, ResolvedCollective, ResolvedRegion};

use super::blocks::{GridLimits, LlProtocol, VariantGrids};
use super::control::{self, MAX_RANKS};
use super::params::{GroupParams, LandingParams};
use super::peers::PeerContext;
use crate::device::launch::{Address, DevicePtr};
use crate::error::{CudaError, Result};

pub(super) struct RankCollective<'a> {
    pub bound: &'a ResolvedCollective,
    peers: &'a PeerContext,
    step: usize,
    /// The index of this rank in its cell.
    pub me: usize,
    /// The number of ranks in the cell.
    pub n: usize,
    /// The size of the operand in bytes.
    pub bytes: usize,
    /// The operand and the result on this rank.
    pub operand: DevicePtr,
    pub result: DevicePtr,
}

impl<'a> RankCollective<'a> {
    pub fn new(
        step: usize,
        bound: &'a ResolvedCollective,
        [operand, result]: [DevicePtr; 2],
        peers: &'a PeerContext,
    ) -> Result<RankCollective<'a>> {
        let n = bound.cell.len();
        let me = bound.cell.iter().position(|&r| r == peers.rank);
        let bytes = bound.elements.checked_mul(bound.dtype.size());
        let running =
            RankCollective { bound, peers, step, me: 0, n, bytes: bytes.unwrap_or(0), operand, result };
        let Some(me) = me.filter(|_| bound.cell.iter().all(|&r| (r as usize) < peers.arenas.len())) else {
            let ranks = peers.arenas.len();
            return Err(running.unsupported(format!(
                "expected a cell of the {ranks} ranks with rank {}, found {:?}",
                peers.rank, bound.cell
            )));
        };
        if n > MAX_RANKS {
            return Err(
                running.unsupported(format!("expected at most {MAX_RANKS} ranks in a cell, found {n}"))
            );
        }
        if bytes.is_none() {
            return Err(running.unsupported(format!("the size of {} elements is too large", bound.elements)));
        }
        Ok(RankCollective { me, ..running })
    }

    pub fn group(&self) -> GroupParams {
        let peers = self.peers;
        let control = peers.arena.next_multiple_of(control::PAGE_BYTES) + control::flags_at(self.bound.group);
        let mut params = GroupParams {
            words: peers.local + control::words_at(self.bound.group) as Address,
            shared: peers.local,
            status: peers.status,
            limit: peers.limit_ns,
            seed: peers.chaos.unwrap_or(0) ^ u64::from(peers.rank).wrapping_mul(0xd134_2543_de82_ef95),
            me: self.me as u32,
            step: control::tagged_step(peers.program, self.step),
            group: self.bound.group as u32,
            ..GroupParams::default()
        };
        for (p, &rank) in self.bound.cell.iter().enumerate() {
            params.flags[p] = peers.arenas[rank as usize] + control as Address;
            params.ranks[p] = rank;
        }
        params
    }

    /// The parameters for `ll`, including the slots: `rounds` slots per peer, each of `units` units of 16
    /// bytes. `message` is the size of the message to each peer in bytes.
    pub fn ll(
        &self,
        message: usize,
        protocol: LlProtocol,
        units: usize,
        rounds: usize,
    ) -> Result<LandingParams> {
        let Some([first, second]) = self.bound.landing else {
            return Err(self.unsupported("expected landing zones for ll, found none".into()));
        };
        let n = self.n as u64;
        let ll_bytes = self.peers.thresholds.ll_bytes;
        // LL128 lies after all of LL, so neither ever finds data of the other in place of a flag.
        let before = if protocol == LlProtocol::Ll128 { ll_zone_bytes(ll_bytes / n, n) as usize } else { 0 };
        let slot = units * 16;
        let room = landing_zone_bytes(message as u64, n, ll_bytes) as usize;
        let used = before + slot * (self.n - 1) * rounds;
        if used > room {
            return Err(
                self.unsupported(format!("expected at most {room} bytes in a landing zone, found {used}"))
            );
        }
        let align = if protocol == LlProtocol::Ll128 { LL128_LINE as usize } else { 16 };
        for zone in [first, second] {
            if !zone.is_multiple_of(align) || zone.checked_add(used).is_none_or(|end| end > self.peers.arena)
            {
                let arena = self.peers.arena;
                return Err(self.unsupported(format!(
                    "expected a landing zone of {used} bytes at a multiple of {align} in an arena of {arena}, \
                     found it at {zone}"
                )));
            }
        }
        let mut params = LandingParams { base: self.group(), ..LandingParams::default() };
        // A zone has one slot for each peer of its owner.
        let slot_address = |owner: usize, sender: usize| {
            let index = if sender < owner { sender } else { sender - 1 };
            self.arena_of(owner) + (first + before + index * slot) as Address
        };
        let senders = (0..self.n).filter(|&p| p != self.me);
        senders.for_each(|p| params.slots[p] = slot_address(self.me, p));
        for (i, p) in self.peers_then_self().filter(|&p| p != self.me).enumerate() {
            params.to[i] = slot_address(p, self.me);
        }
        params.zone = self.arena_of(self.me) + first as Address;
        params.other = (second as u64).wrapping_sub(first as u64);
        params.before = (before / 16) as u64;
        params.count = message as u64;
        Ok(params)
    }

    /// The tables of sizes and the staging areas of all ranks of the cell, and the bytes that a block stages
    /// per peer at a time.
    pub fn exchange_areas(&self) -> Result<([Address; MAX_RANKS], [Address; MAX_RANKS], usize)> {
        let control = &self.peers.control;
        if self.n > control.max_exchange_ranks || self.bound.group >= control.groups {
            let ranks = control.max_exchange_ranks;
            let groups = control.groups;
            return Err(self.unsupported(format!(
                "expected a cell of up to {ranks} ranks of {groups} groups to exchange sizes or rows, found {} of group {}",
                self.n, self.bound.group
            )));
        }
        let base = self.peers.arena.next_multiple_of(control::PAGE_BYTES);
        let mut tables = [0; MAX_RANKS];
        let mut staging = [0; MAX_RANKS];
        for p in 0..self.n {
            tables[p] = self.arena_of(p) + (base + control.sizes_at(self.bound.group)) as Address;
            staging[p] = self.arena_of(p) + (base + control.staging_at()) as Address;
        }
        Ok((tables, staging, control.staging_bytes))
    }

    pub fn protocol(&self, message: usize) -> LlProtocol {
        if self.peers.thresholds.uses_ll(message as u64, self.n as u64) {
            LlProtocol::Ll
        } else {
            LlProtocol::Ll128
        }
    }

    pub fn thresholds(&self) -> &ProtocolThresholds {
        &self.peers.thresholds
    }

    /// The indices of the cell in cyclic order, from the one after this rank to this rank itself, so that
    /// ranks begin with different peers.
    pub fn peers_then_self(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        let n = self.n;
        (1..=n).map(move |i| if me + i < n { me + i } else { me + i - n })
    }

    pub fn operand_of(&self, p: usize, bytes: usize) -> Result<DevicePtr> {
        if p == self.me { Ok(self.operand) } else { self.region_of("operand", &self.bound.operand, p, bytes) }
    }

    pub fn result_of(&self, p: usize, bytes: usize) -> Result<DevicePtr> {
        if p == self.me { Ok(self.result) } else { self.region_of("result", &self.bound.result, p, bytes) }
    }

    pub fn region_of(&self, what: &str, at: &ResolvedRegion, p: usize, bytes: usize) -> Result<DevicePtr> {
        let offset = at.offset_on_rank(self.bound.cell[p]);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.peers.arena);
        if inside && at.space == MemorySpace::Symmetric {
            return Ok((self.arena_of(p) + offset as Address).into());
        }
        let arena = self.peers.arena;
        Err(self.unsupported(format!(
            "expected the {what} within the {arena} bytes of the symmetric arena, found {bytes} bytes at {at:?}"
        )))
    }

    fn arena_of(&self, p: usize) -> Address {
        self.peers.arenas[self.bound.cell[p] as usize]
    }

    /// The size in bytes of one of `n` equal slices of the operand.
    pub fn slice_bytes(&self) -> Result<usize> {
        let n = self.n;
        let elements = self.bound.elements;
        if elements.is_multiple_of(n) {
            Ok(self.bytes / n)
        } else {
            Err(self.unsupported(format!("expected a multiple of {n} elements, found {elements}")))
        }
    }

    /// The number of 16-byte units.
    pub fn units(&self, bytes: usize) -> usize {
        bytes.div_ceil(16)
    }

    /// The grid of a variant for this many units of work, with the number of blocks from the plan if it gives
    /// one.
    pub fn grid(&self, limits_of: impl FnOnce(&VariantGrids) -> &GridLimits, units: usize) -> [u32; 2] {
        let limits = limits_of(&self.peers.blocks);
        GridLimits { blocks: self.bound.blocks.unwrap_or(limits.blocks), ..*limits }.grid(units)
    }

    /// The error for an unsupported call.
    #[cold]
    pub fn unsupported(&self, detail: String) -> CudaError {
        CudaError::Unsupported(format!(
            "step {} ({} as {}): {detail}",
            self.step,
            self.bound.kind.name(),
            self.bound.variant
        ))
    }
}
