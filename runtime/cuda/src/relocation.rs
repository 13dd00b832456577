//! Where launches hold addresses of memory that may lie elsewhere in the next run.
//!
//! The memory of each input and of each output is a *base*: inputs first, then outputs, in the order of the program.
//! Steps are lowered twice, the second time with every base that may move shifted by a distance of its own, which no two
//! bases share. A word that differs by the distance of a base is an address in that
//! memory; everything else has to be equal, code and sizes included. Nothing is taken for an address because of its value.
//!
//! Steps that depend on addresses in another way are not relocated at all. What a collective of the library sends or
//! receives stays where it is, because the library keeps what it knows of calls by their memory.
//!
//! Memory that is lent begins at multiples of 16, and nothing is chosen by more than that, so what is relocated is what
//! would have been lowered: the tests hold that for every program of this repository.

use std::collections::HashMap;
use std::ops::Range;

use symmc_runtime::exec::Bound;
use symmc_support::random::SplitMix;

use crate::addresses::AddressMap;
use crate::command::Command;
use crate::compute::fused::Candidates;
use crate::compute::gemm::Gemm;
use crate::cudnn::Attention;
use crate::launch::{Address, Kernel, Param};
use crate::lowered::Lowered;
use crate::nccl::call::NcclCall;

/// A word of a piece of work that is an address of a base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relocation {
    /// Which of the words that may be addresses.
    pub word: u32,
    /// The base.
    pub base: u32,
    /// Bytes from the start of its memory.
    pub addend: Address,
}

/// What can hold addresses: visits all words that may be some, always in the same order.
pub(crate) trait Addresses {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address));
}

impl Addresses for Kernel {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        for param in &mut self.params {
            match param {
                Param::Value(words) => words.iter_mut().for_each(&mut *visit),
                Param::Map(map) => visit(map.at_mut()),
            }
        }
    }
}

impl Addresses for Gemm {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        [&mut self.a, &mut self.b, &mut self.c].into_iter().for_each(|matrix| visit(&mut matrix.at));
    }
}

impl Addresses for Attention {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        self.addresses_mut().into_iter().for_each(visit);
    }
}

impl Addresses for Candidates {
    /// Kernels of their own, what is in front of the library's attention, that attention, what follows it, what is filled.
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        self.own.iter_mut().chain(&mut self.numbers).for_each(|kernel| kernel.visit(visit));
        self.attention.visit(visit);
        self.amend.iter_mut().for_each(|kernel| kernel.visit(visit));
        self.filled.iter_mut().for_each(|filled| visit(&mut filled.at));
    }
}

impl Addresses for NcclCall {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        self.ends_mut().into_iter().for_each(visit);
    }
}

impl<const N: usize> Addresses for [Address; N] {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        self.iter_mut().for_each(visit);
    }
}

impl Addresses for Command {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Address)) {
        match self {
            Command::Kernel(kernel) => kernel.visit(visit),
            Command::Gemm(gemm) => gemm.visit(visit),
            Command::Attention(of) => of.visit(visit),
            Command::Nccl(call) => call.visit(visit),
            Command::Copy { to, from, .. } => [to, from].into_iter().for_each(visit),
            Command::Store { at, .. } | Command::Zero { at, .. } => visit(at),
        }
    }
}

/// Has words of `of` be addresses in memory that begins at these bases. `relocations` are in the order of words.
pub(crate) fn relocate(of: &mut impl Addresses, relocations: &[Relocation], bases: &[Address]) {
    let mut left = relocations.iter().peekable();
    let mut word = 0;
    of.visit(&mut |at| {
        if let Some(found) = left.next_if(|r| r.word == word)
            && let Some(base) = bases.get(found.base as usize)
        {
            *at = base.wrapping_add(found.addend);
        }
        word += 1;
    });
}

/// The words that may be addresses.
fn words(of: &mut impl Addresses) -> Vec<Address> {
    let mut out = Vec::new();
    of.visit(&mut |at| out.push(*at));
    out
}

/// How many there are.
pub(crate) fn count(of: &mut impl Addresses) -> u32 {
    let mut count = 0;
    of.visit(&mut |_| count += 1);
    count
}

/// Memory with every base elsewhere that may move.
#[derive(Clone, Debug)]
pub struct Shifted {
    addresses: AddressMap,
    /// How far each base was moved: 0 for those that stay.
    by: Vec<Address>,
}

/// The least distance: no memory lies as far behind another one.
const FAR: Address = 1 << 52;

impl Shifted {
    /// The bases of a program, of which those within `arena` stay.
    pub fn new(addresses: &AddressMap, bound: &Bound, arena: Range<Address>) -> Shifted {
        let bases: Vec<Address> = addresses.bases().collect();
        let mut by = vec![0; bases.len()];
        let (mut random, mut shift) = (SplitMix(0x5eed), FAR);
        for (_, by) in bases.iter().zip(&mut by).filter(|(base, _)| !arena.contains(base)) {
            shift += ((1 << 36) + (random.next() >> 28)) & !0xfff;
            *by = shift;
        }
        // An output in the memory of the input that it replaces moves with it.
        for (k, output) in bound.outputs.iter().enumerate() {
            if let Some(input) = output.held_by() {
                by[addresses.inputs.len() + k] = by[input];
            }
        }
        let moved: Vec<Address> = bases.iter().zip(&by).map(|(at, by)| at.wrapping_add(*by)).collect();
        Shifted { addresses: addresses.with_bases(&moved), by }
    }

    /// Where everything lies then.
    pub fn addresses(&self) -> &AddressMap {
        &self.addresses
    }

    /// The first base that was moved so far; `None` if there is none.
    fn base_of(&self, by: Address) -> Option<u32> {
        self.by.iter().position(|&b| b == by).filter(|_| by != 0).map(|base| base as u32)
    }
}

/// Where the launches of a program hold addresses.
#[derive(Clone, Debug)]
pub struct Relocations {
    /// For each place, and each piece of work there.
    pub(crate) of_work: Vec<Vec<Vec<Relocation>>>,
    /// The bases that cannot move.
    pub(crate) fixed: Vec<bool>,
}

impl Relocations {
    /// What differs between steps that were lowered in `addresses` and in the same but `shifted`; `None` if there is
    /// something that is not an address.
    pub fn find(
        one: &Lowered,
        addresses: &AddressMap,
        other: &Lowered,
        shifted: &Shifted,
    ) -> Option<Relocations> {
        let (a, b) = (&one.work, &other.work);
        let alike = one.assigned == other.assigned
            && one.assertions == other.assertions
            && one.code() == other.code();
        if !alike || a.len() != b.len() || a.iter().zip(b).any(|(a, b)| a.len() != b.len()) {
            return None;
        }
        let bases: Vec<Address> = addresses.bases().collect();
        let by: HashMap<Address, u32> =
            shifted.by.iter().filter_map(|&by| Some((by, shifted.base_of(by)?))).collect();
        let mut fixed: Vec<bool> = shifted.by.iter().map(|&by| by == 0).collect();
        let mut of_work = Vec::with_capacity(a.len());
        for (a, b) in a.iter().zip(b) {
            let mut place = Vec::with_capacity(a.len());
            for (a, b) in a.iter().zip(b) {
                place.push(between(a, b, &bases, &by, &mut fixed)?);
            }
            of_work.push(place);
        }
        // Both names of one memory.
        for (base, &by) in shifted.by.iter().enumerate() {
            if let Some(first) = shifted.base_of(by) {
                fixed[base] |= fixed[first as usize];
            }
        }
        Some(Relocations { of_work, fixed })
    }

    /// The bases that cannot move, inputs first.
    pub fn fixed(&self) -> &[bool] {
        &self.fixed
    }

    /// What was lowered, with all memory where `addresses` says.
    pub fn relocated(&self, lowered: &Lowered, addresses: &AddressMap) -> Vec<Vec<Command>> {
        let bases: Vec<Address> = addresses.bases().collect();
        let mut work = lowered.work.clone();
        for (work, found) in work.iter_mut().flatten().zip(self.of_work.iter().flatten()) {
            relocate(work, found, &bases);
        }
        work
    }
}

/// The words in which two pieces of work differ; `None` if they differ in something else.
fn between(
    one: &Command,
    other: &Command,
    bases: &[Address],
    by: &HashMap<Address, u32>,
    fixed: &mut [bool],
) -> Option<Vec<Relocation>> {
    let before = words(&mut one.clone());
    let (mut restored, mut word, mut known, mut found) = (other.clone(), 0, true, Vec::new());
    restored.visit(&mut |at| {
        let was = before.get(word).copied().unwrap_or(*at);
        if was != *at {
            match by.get(&at.wrapping_sub(was)) {
                Some(&base) => {
                    let addend = was.wrapping_sub(bases[base as usize]);
                    found.push(Relocation { word: word as u32, base, addend });
                }
                None => known = false,
            }
            *at = was;
        }
        word += 1;
    });
    if !known || word != before.len() {
        return None;
    }
    if matches!(one, Command::Nccl(_)) {
        found.iter().for_each(|r| fixed[r.base as usize] = true);
    }
    (*one == restored).then_some(found)
}
