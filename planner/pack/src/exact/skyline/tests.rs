//! Tests that the incremental state of a skyline equals a state that is computed from scratch.

use proptest::prelude::*;

use super::*;
use crate::{Block, BlockSpans};

/// The state that must be restored when a change is undone: heights, sums and counts, lowest offsets, crossing
/// counts, and the key.
type State = (Vec<[u32; 3]>, Vec<u32>, Vec<u32>, u128);

fn state(skyline: &Skyline) -> State {
    let sections = 0..skyline.height.len();
    let levels =
        sections.clone().map(|s| [skyline.height[s], skyline.remaining[s], skyline.resting[s]]).collect();
    // The offset of a placed block is not restored but computed again.
    let unplaced: Vec<usize> = skyline.unplaced_in(0, sections.end).collect();
    let low =
        (0..skyline.low.len()).map(|b| if unplaced.contains(&b) { skyline.low[b] } else { 0 }).collect();
    (levels, low, skyline.crossing.clone(), skyline.key(0, sections.end))
}

fn recount(skyline: &Skyline) -> Result<(), TestCaseError> {
    let problem = skyline.problem;
    let unplaced: Vec<usize> = skyline.unplaced_in(0, problem.sections).collect();
    for s in 0..problem.sections {
        let at_section: Vec<usize> = unplaced
            .iter()
            .copied()
            .filter(|&b| (problem.life[b].0..problem.life[b].1).contains(&s))
            .collect();
        prop_assert_eq!(&skyline.unplaced_at(s).collect::<Vec<_>>(), &at_section, "section {}", s);
        prop_assert!(at_section.iter().all(|&b| skyline.low[b] >= skyline.height[s]), "section {}", s);
        prop_assert_eq!(skyline.remaining[s], at_section.iter().map(|&b| problem.size[b]).sum::<u32>());
        let resting = at_section.iter().filter(|&&b| skyline.low[b] == skyline.height[s]).count();
        prop_assert_eq!(skyline.resting[s] as usize, resting, "section {}", s);
        let tight = at_section.iter().any(|&b| skyline.low[b] + skyline.remaining[s] > skyline.capacity);
        prop_assert!(skyline.tight[s] > 0 || !tight, "section {}", s);
        let crossing = at_section.iter().filter(|&&b| problem.life[b].0 < s).count();
        prop_assert_eq!(skyline.crossing[s] as usize, crossing, "section {}", s);
    }
    Ok(())
}

/// The lowest section with remaining blocks.
fn lowest(skyline: &Skyline) -> Option<usize> {
    let open = (0..skyline.height.len()).filter(|&s| skyline.remaining[s] > 0);
    open.min_by_key(|&s| skyline.height[s])
}

/// Places a block that rests on a section. If there is no block with this number, raises the section instead.
fn change(skyline: &mut Skyline, section: usize, choice: usize) {
    let height = skyline.height[section];
    let resting: Vec<usize> = skyline.unplaced_at(section).filter(|&b| skyline.low[b] == height).collect();
    match resting.get(choice % (resting.len() + 1)) {
        Some(&b) => skyline.place(b, height),
        None => skyline.lift(section, height + 1 + choice as u32),
    }
}

proptest! {
    #[test]
    fn counters_are_what_counting_anew_finds(
        blocks in prop::collection::vec((0usize..12, 1usize..8, 1u64..200, 1u64..4), 1..16),
        spare in 0u32..100,
        choices in prop::collection::vec((0usize..20, 0usize..4), 1..60),
    ) {
        let blocks: Vec<Block> = blocks
            .iter()
            .map(|&(start, length, size, align)| Block { align, ..Block::new(start, start + length, size) })
            .collect();
        let problem = ExactProblem::new(&blocks, &BlockSpans::new(&blocks), 16).expect("neither wrapped nor given");
        let bound = (crate::load_bound(&blocks) / problem.unit) as u32;
        let mut skyline = Skyline::new(&problem, bound + bound * spare / 200);
        recount(&skyline)?;
        if skyline.propagate().is_err() {
            return Ok(());
        }
        let mut marks: Vec<(usize, State)> = Vec::new();
        for (choice, back) in choices {
            recount(&skyline)?;
            let mut leads_on = back > 0;
            if let Some(section) = lowest(&skyline).filter(|_| leads_on) {
                marks.push((skyline.mark(), state(&skyline)));
                change(&mut skyline, section, choice);
                recount(&skyline)?;
                leads_on = skyline.propagate().is_ok();
            }
            if let Some((mark, before)) = marks.pop_if(|_| !leads_on) {
                skyline.undo(mark);
                prop_assert_eq!(state(&skyline), before);
            }
        }
        recount(&skyline)?;
    }
}
