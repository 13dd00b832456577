//! What a skyline counts while it changes is what one finds by counting anew.

use proptest::prelude::*;

use super::*;
use crate::pack::{Block, Spans};

/// What must come back when a change is undone: heights, what is left and resting, and lowest offsets.
type State = (Vec<(u64, u64, u32)>, Vec<u64>, Vec<u32>);

fn state(skyline: &Skyline) -> State {
    let levels = skyline.levels.iter().map(|l| (l.height, l.left, l.resting)).collect();
    // A placed block's offset is not undone but found again.
    let low = skyline.low.iter().zip(&skyline.placed).map(|(&low, &placed)| if placed { 0 } else { low });
    (levels, low.collect(), skyline.crossing.clone())
}

fn recount(skyline: &Skyline) -> Result<(), TestCaseError> {
    let problem = skyline.problem;
    for (s, level) in skyline.levels.iter().enumerate() {
        let left: Vec<u32> =
            problem.sections[s].iter().copied().filter(|&b| !skyline.placed[b as usize]).collect();
        let mut alive = skyline.alive(s).to_vec();
        alive.sort_unstable();
        prop_assert_eq!(&alive, &left, "section {}", s);
        let low = |b: &u32| skyline.low[*b as usize];
        prop_assert!(left.iter().all(|b| low(b) >= level.height), "section {}", s);
        prop_assert_eq!(level.left, left.iter().map(|&b| problem.size[b as usize]).sum::<u64>());
        let resting = left.iter().filter(|b| low(b) == level.height).count();
        prop_assert_eq!(level.resting as usize, resting, "section {}", s);
        let tight = left.iter().any(|b| low(b) + level.left > skyline.capacity);
        prop_assert!(level.tight || !tight, "section {}", s);
        let crossing = left.iter().filter(|&&b| problem.life[b as usize].0 < s).count();
        prop_assert_eq!(skyline.crossing[s] as usize, crossing, "section {}", s);
    }
    Ok(())
}

/// The lowest section with blocks that are left.
fn lowest(skyline: &Skyline) -> Option<usize> {
    let left = (0..skyline.levels.len()).filter(|&s| !skyline.alive(s).is_empty());
    left.min_by_key(|&s| skyline.levels[s].height)
}

/// Places a block that rests on a section, or, if there is no such block by this number, lifts the section.
fn change(skyline: &mut Skyline, section: usize, choice: usize) {
    let height = skyline.levels[section].height;
    let resting = |b: &&u32| skyline.low[**b as usize] == height;
    let mut resting: Vec<u32> = skyline.alive(section).iter().filter(resting).copied().collect();
    resting.sort_unstable();
    match resting.get(choice % (resting.len() + 1)) {
        Some(&b) => skyline.place(b, height),
        None => skyline.lift(section, height + 1 + choice as u64),
    }
}

proptest! {
    #[test]
    fn counters_are_what_counting_anew_finds(
        blocks in prop::collection::vec((0usize..12, 1usize..8, 1u64..200, 1u64..4), 1..16),
        spare in 0u64..100,
        choices in prop::collection::vec((0usize..20, 0usize..4), 1..60),
    ) {
        let block = |&(start, length, size, align): &(usize, usize, u64, u64)| Block {
            align,
            ..Block::new(start, start + length, size)
        };
        let blocks: Vec<Block> = blocks.iter().map(block).collect();
        let problem = Exact::new(&blocks, &Spans::new(&blocks), 16).expect("neither wrapped nor given");
        let bound = crate::pack::bound(&blocks) / problem.unit;
        let mut skyline = Skyline::new(&problem, bound + bound * spare / 200);
        recount(&skyline)?;
        if skyline.conclude().is_err() {
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
                leads_on = skyline.conclude().is_ok();
            }
            if let Some((mark, before)) = marks.pop_if(|_| !leads_on) {
                skyline.undo(mark);
                prop_assert_eq!(state(&skyline), before);
            }
        }
        recount(&skyline)?;
    }
}
