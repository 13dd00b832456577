//! The fixed memory of a plan: its rules, and the lookup of pieces by role and by byte.

use std::collections::HashMap;

use symmc_ir::collective::LL128_LINE;
use symmc_plan::{ALIGN, FixedRegion, FixedRole, Plan};

use super::error::CheckError;
use super::findings::Findings;

/// The fixed memory of a plan, found by role and by byte.
pub struct FixedMemoryIndex {
    of_role: HashMap<FixedRole, usize>,
    /// By offset: the start of each piece, the furthest end of those up to it, and the piece that ends there.
    pieces: Vec<(u64, u64, usize)>,
}

impl FixedMemoryIndex {
    pub fn new(plan: &Plan) -> FixedMemoryIndex {
        let mut of_role = HashMap::with_capacity(plan.fixed.len());
        for (i, f) in plan.fixed.iter().enumerate() {
            of_role.entry(f.role.clone()).or_insert(i);
        }
        let piece = |(i, f): (usize, &FixedRegion)| (f.offset, f.offset.saturating_add(f.size), i);
        let mut pieces: Vec<_> = plan.fixed.iter().enumerate().map(piece).collect();
        pieces.sort_unstable();
        for k in 1..pieces.len() {
            let (_, end, widest) = pieces[k - 1];
            if end > pieces[k].1 {
                (pieces[k].1, pieces[k].2) = (end, widest);
            }
        }
        FixedMemoryIndex { of_role, pieces }
    }

    pub fn find_role(&self, role: &FixedRole) -> Option<usize> {
        self.of_role.get(role).copied()
    }

    /// The piece that an input is bound to.
    pub fn bound_input(&self, input: usize) -> Option<usize> {
        self.find_role(&FixedRole::Bound { input })
    }

    /// A piece that has bytes among these.
    pub fn find_overlapping(&self, low: u64, high: u64) -> Option<usize> {
        let before = self.pieces.partition_point(|piece| piece.0 < high);
        let &(_, end, widest) = self.pieces.get(before.checked_sub(1)?)?;
        (end > low).then_some(widest)
    }
}

/// Checks the fixed memory of a plan whose programs have this many inputs. `has_group` says whether a group name exists.
pub fn check(
    (plan, fixed): (&Plan, &FixedMemoryIndex),
    inputs: usize,
    has_group: impl Fn(&str) -> bool,
    errors: &mut Findings,
) {
    for (i, f) in plan.fixed.iter().enumerate() {
        let end = f.offset.saturating_add(f.size);
        if end > plan.arenas.symmetric {
            let expected = plan.arenas.symmetric;
            errors.push(CheckError::FixedOutside { fixed: i, expected, found: end });
        }
        let expected = if matches!(f.role, FixedRole::Landing { .. }) { LL128_LINE } else { ALIGN };
        if f.offset % expected != 0 {
            errors.push(CheckError::FixedMisaligned { fixed: i, expected, found: f.offset });
        }
        match &f.role {
            FixedRole::Bound { input } if *input >= inputs => {
                errors.push(CheckError::FixedInput { fixed: i, expected: inputs, found: *input });
            }
            FixedRole::Landing { group, zone } if *zone > 1 || !has_group(group) => {
                errors.push(CheckError::FixedZone { fixed: i, found: format!("{group}, zone {zone}") });
            }
            _ => {}
        }
        if let Some(first) = fixed.find_role(&f.role).filter(|&first| first < i) {
            errors.push(CheckError::FixedTwice { first, second: i });
        }
    }
    let mut by_offset: Vec<(usize, &FixedRegion)> =
        plan.fixed.iter().enumerate().filter(|(_, f)| f.size > 0).collect();
    by_offset.sort_by_key(|(i, f)| (f.offset, *i));
    for pair in by_offset.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if b.offset < a.offset.saturating_add(a.size) {
            errors.push(CheckError::FixedOverlap { first, second });
        }
    }
}
