//! The rules for the fixed memory of a plan, and an index of its regions by role and by byte.

use std::collections::HashMap;

use symmc_ir::collective::LL128_LINE;
use symmc_plan::{ALIGN, FixedRegion, FixedRole, Plan};

use super::error::CheckError;
use super::findings::Findings;

pub struct FixedMemoryIndex {
    by_role: HashMap<FixedRole, usize>,
    /// The regions in order of their starts. Each entry holds the start of its region, the largest end of all
    /// regions up to it, and the region that has this end.
    regions: Vec<(u64, u64, usize)>,
}

impl FixedMemoryIndex {
    pub fn new(plan: &Plan) -> FixedMemoryIndex {
        let mut by_role = HashMap::with_capacity(plan.fixed.len());
        let mut regions = Vec::with_capacity(plan.fixed.len());
        for (i, f) in plan.fixed.iter().enumerate() {
            by_role.entry(f.role.clone()).or_insert(i);
            regions.push((f.offset, f.offset.saturating_add(f.size), i));
        }
        regions.sort_unstable();
        for k in 1..regions.len() {
            let (_, end, furthest) = regions[k - 1];
            if end > regions[k].1 {
                regions[k].1 = end;
                regions[k].2 = furthest;
            }
        }
        FixedMemoryIndex { by_role, regions }
    }

    pub fn find_role(&self, role: &FixedRole) -> Option<usize> {
        self.by_role.get(role).copied()
    }

    /// The region to which an input is bound.
    pub fn bound_input(&self, input: usize) -> Option<usize> {
        self.find_role(&FixedRole::Bound { input })
    }

    /// A region that overlaps these bytes.
    pub fn find_overlapping(&self, low: u64, high: u64) -> Option<usize> {
        let count = self.regions.partition_point(|region| region.0 < high);
        let &(_, end, furthest) = self.regions.get(count.checked_sub(1)?)?;
        (end > low).then_some(furthest)
    }
}

/// Checks the fixed memory of a plan whose programs have `inputs` inputs. `has_group` says whether a group name
/// exists.
pub fn check(
    plan: &Plan,
    fixed: &FixedMemoryIndex,
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
