//! The state of one input or output of a session, and checks of the memory that the caller binds.

use std::ops::Range;
use std::sync::Arc;

use symmc_plan::ALIGN;

use super::port::{DeviceRange, Port};
use crate::error::{Result, RunError};
use crate::exec::ResolvedProgram;

/// An input or output of a session, with memory of type `M`.
#[derive(Debug)]
pub struct PortState<M> {
    /// Its name in errors: `input %x`.
    pub name: String,
    /// The required alignment of its memory.
    align: usize,
    binding: Option<PortBinding>,
    /// Memory of the session.
    pub memory: Option<Arc<M>>,
    data: PortData,
    /// The place of an input that the plan holds in the symmetric arena, in any bucket.
    fixed: Option<FixedInput>,
}

/// Memory of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PortBinding {
    pub memory: DeviceRange,
    /// Its offset in the symmetric arena, if it takes the place of a fixed input there.
    pub caller_offset: Option<usize>,
}

/// The data of a port in memory of the session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PortData {
    Missing,
    /// The caller wrote it, or got its address; for a constant, its data is there.
    Given,
    /// A run expects it in the symmetric arena, where it may not be written again: the input cannot be bound
    /// any more.
    Loaded,
}

#[derive(Clone, Debug)]
pub(super) struct FixedInput {
    pub range: Range<usize>,
    /// Whether it may be written before each run. The plan relies on other inputs being written before the
    /// first run only.
    pub is_rewritable: bool,
}

impl<M> PortState<M> {
    /// An input or output without memory, on a device whose kernels need memory at multiples of `align`.
    pub(super) fn new(name: String, align: usize, fixed: Option<FixedInput>) -> PortState<M> {
        PortState { name, align, binding: None, memory: None, data: PortData::Missing, fixed }
    }

    pub(super) fn fixed_range(&self) -> Option<&Range<usize>> {
        self.fixed.as_ref().map(|fixed| &fixed.range)
    }

    /// Whether it is a fixed input that may be written before each run.
    pub fn is_rewritable(&self) -> bool {
        self.fixed.as_ref().is_some_and(|fixed| fixed.is_rewritable)
    }

    /// The memory of the caller.
    pub fn binding(&self) -> Option<DeviceRange> {
        Some(self.binding?.memory)
    }

    /// The offset of a fixed input in symmetric memory of the caller, if it is there instead.
    pub(super) fn caller_offset(&self) -> Option<usize> {
        self.binding?.caller_offset
    }

    /// Returns whether a fixed input has another place in the symmetric arena now.
    pub(super) fn bind(&mut self, binding: Option<PortBinding>) -> bool {
        let before = self.caller_offset();
        self.binding = binding;
        before != self.caller_offset()
    }

    pub fn has_data(&self) -> bool {
        self.data != PortData::Missing
    }

    /// Notes that the data is in memory of the session, or that the caller may write it there.
    pub fn set_data(&mut self) {
        self.data = self.data.max(PortData::Given);
    }

    pub fn is_loaded(&self) -> bool {
        self.data == PortData::Loaded
    }

    /// Notes that a run finds a fixed input in the symmetric arena.
    pub fn set_loaded(&mut self) {
        if self.fixed.as_ref().is_some_and(|fixed| !fixed.is_rewritable) {
            self.data = PortData::Loaded;
        }
    }

    /// Marks the data in the symmetric arena as lost.
    pub(super) fn invalidate_symmetric(&mut self) {
        if self.fixed.is_some() {
            self.data = PortData::Missing;
        }
    }

    fn rejected_memory(&self, memory: DeviceRange, why: &str) -> RunError {
        let DeviceRange { address, bytes } = memory;
        RunError::Invalid(format!("{}: the memory of {bytes} bytes at {address:#x} {why}", self.name))
    }

    /// Fails if bound memory has fewer bytes than this.
    pub(super) fn expect_capacity(&self, bytes: usize) -> Result<()> {
        match self.binding() {
            Some(memory) if memory.bytes < bytes => {
                Err(self.rejected_memory(memory, &format!("is too small: expected {bytes} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// Fails if memory cannot be bound, or released, whatever size is needed. `reserved` is memory of the
    /// session, with names.
    pub(super) fn expect_bindable(
        &self,
        binding: Option<PortBinding>,
        reserved: &[(&str, DeviceRange)],
    ) -> Result<()> {
        let name = &self.name;
        let offset = binding.and_then(|binding| binding.caller_offset);
        if let Some(offset) = offset.filter(|offset| !offset.is_multiple_of(ALIGN as usize)) {
            return Err(RunError::Invalid(format!(
                "{name}: the memory at {offset} in the symmetric arena is not aligned: expected a multiple of {ALIGN} there"
            )));
        }
        if self.is_loaded() {
            return Err(RunError::Invalid(format!(
                "{name}: it cannot be bound any more: the plan holds it in symmetric memory, where it was written before the \
                 first run"
            )));
        }
        let Some(PortBinding { memory, .. }) = binding else { return Ok(()) };
        if memory.bytes == 0 {
            return Ok(());
        }
        if memory.address == 0 {
            return Err(self.rejected_memory(memory, "has no address"));
        }
        if memory.address.checked_add(memory.bytes as u64).is_none() {
            return Err(self.rejected_memory(memory, "ends after the last address"));
        }
        if !memory.address.is_multiple_of(self.align as u64) {
            let why = format!("is not aligned: expected a multiple of {}", self.align);
            return Err(self.rejected_memory(memory, &why));
        }
        match reserved.iter().find(|(_, other)| other.overlaps(&memory)) {
            Some((role, _)) => Err(self.rejected_memory(memory, &format!("overlaps {role} of the session"))),
            None => Ok(()),
        }
    }
}

/// Fails if bound memory is too small for a run at these sizes, or if a run writes memory that is bound to
/// another port as well. `changed` are the ports that were bound since this last succeeded at the same sizes;
/// `None` means all.
pub(super) fn check_bound_memory<M>(
    inputs: &[PortState<M>],
    outputs: &[PortState<M>],
    program: &ResolvedProgram,
    changed: Option<&[Port]>,
) -> Result<()> {
    if changed.is_some_and(<[Port]>::is_empty) {
        return Ok(());
    }
    let memories = used_memory(inputs, outputs, program);
    let Some(changed) = changed else { return check_all_disjoint(&memories) };
    for (i, memory) in memories.iter().enumerate().filter(|(_, memory)| changed.contains(&memory.port)) {
        memory.state.expect_capacity(memory.used_range.bytes)?;
        memories[..i].iter().try_for_each(|earlier| earlier.expect_disjoint(memory))?;
        memories[i + 1..].iter().try_for_each(|later| memory.expect_disjoint(later))?;
    }
    Ok(())
}

fn check_all_disjoint<M>(all: &[UsedMemory<'_, M>]) -> Result<()> {
    all.iter().try_for_each(|one| one.state.expect_capacity(one.used_range.bytes))?;
    // Only a range that begins before the end of another one overlaps it.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_unstable_by_key(|&index| all[index].used_range.address);
    for (position, &one) in order.iter().enumerate() {
        let end = all[one].used_range.end();
        for &other in order[position + 1..].iter().take_while(|&&other| all[other].used_range.address < end) {
            all[one.min(other)].expect_disjoint(&all[one.max(other)])?;
        }
    }
    Ok(())
}

/// The part of bound memory that a run uses.
struct UsedMemory<'p, M> {
    state: &'p PortState<M>,
    port: Port,
    binding: DeviceRange,
    used_range: DeviceRange,
    /// Whether a run writes it.
    is_written: bool,
    /// The input that it is, or that it replaces.
    input: Option<usize>,
}

fn used_memory<'p, M>(
    inputs: &'p [PortState<M>],
    outputs: &'p [PortState<M>],
    program: &ResolvedProgram,
) -> Vec<UsedMemory<'p, M>> {
    let mut is_replaced = vec![false; program.inputs.len()];
    program.outputs.iter().filter_map(|output| output.mutates).for_each(|i| is_replaced[i] = true);
    let mut memories = Vec::with_capacity(inputs.len() + outputs.len());
    for (i, (state, input)) in inputs.iter().zip(&program.inputs).enumerate() {
        let Some(binding) = state.binding() else { continue };
        memories.push(UsedMemory {
            state,
            port: Port::Input(i),
            binding,
            used_range: DeviceRange { bytes: input.bytes, ..binding },
            is_written: is_replaced[i],
            input: Some(i),
        });
    }
    for (k, (state, output)) in outputs.iter().zip(&program.outputs).enumerate() {
        let Some(binding) = state.binding() else { continue };
        memories.push(UsedMemory {
            state,
            port: Port::Output(k),
            binding,
            used_range: DeviceRange { bytes: output.bytes, ..binding },
            is_written: true,
            input: output.mutates,
        });
    }
    memories
}

impl<M> UsedMemory<'_, M> {
    /// Fails if one run cannot use both.
    fn expect_disjoint(&self, other: &UsedMemory<'_, M>) -> Result<()> {
        let is_written = self.is_written || other.is_written;
        if !is_written || !self.used_range.overlaps(&other.used_range) || self.is_replaced_by(other) {
            return Ok(());
        }
        let (one, other) = if other.is_written { (other, self) } else { (self, other) };
        let why = format!("overlaps that of {}, and a run writes it", other.state.name);
        Err(one.state.rejected_memory(one.binding, &why))
    }

    /// Whether one is an input and the other the output that replaces it, in the same memory.
    fn is_replaced_by(&self, other: &UsedMemory<'_, M>) -> bool {
        let one_each = matches!(
            (self.port, other.port),
            (Port::Input(_), Port::Output(_)) | (Port::Output(_), Port::Input(_))
        );
        one_each && self.input.is_some() && self.input == other.input && self.used_range == other.used_range
    }
}
