//! The recordings of a session: those that are kept, and which of them serves sizes and memory that a run asks for.
//!
//! Memory that takes turns is recorded; what is near is moved as long as that is cheaper. Memory that is far, and new, runs by
//! the indirect recording of its sizes.

use std::sync::Arc;

use super::recent::Recent;
use super::recording::{Recording, RecordingKey};
use crate::device::driver::{Memory, Stream};
use crate::program::DeviceProgram;

pub(super) struct Programs {
    pub recent: Recent<RecordingKey, Arc<Recording>>,
    /// The indirect recordings, by sizes.
    indirect: Recent<Arc<str>, Arc<Recording>>,
    /// What had to go while it may still run.
    pub retired: Vec<Arc<Recording>>,
    /// What the caller's graphs hold, each once.
    pub captured: Vec<Arc<Recording>>,
    /// Memory that a recording gave up for other memory, or that ran by an indirect recording, and how often.
    left: Recent<RecordingKey, usize>,
    /// Sizes of which a graph refused what it should have taken.
    refused: Vec<Arc<str>>,
    /// How many recordings took over other memory.
    pub moved: u64,
    pub recorded: u64,
}

impl Programs {
    /// None yet, of which so many are to be kept.
    pub fn new(kept: usize) -> Programs {
        let (retired, captured, refused, left) = (Vec::new(), Vec::new(), Vec::new(), Recent::new(kept));
        let (recent, indirect) = (Recent::new(kept), Recent::new(kept));
        Programs { recent, indirect, retired, captured, left, refused, moved: 0, recorded: 0 }
    }

    /// The recording of some sizes and memory: one that is kept, or one of the same sizes, moved there. What libraries do is
    /// recorded on `scratch` for that, and not run.
    pub fn known(&mut self, key: &RecordingKey, memory: &[Arc<Memory>], scratch: &Stream) -> Known {
        if let Some(known) = self.recent.get(key) {
            return Known::Found(known.clone());
        }
        let few = |found: &Recording| found.executable.program.pieces() + found.copied() <= PIECES;
        if let Some(found) = self.known_elsewhere(key, memory, few) {
            return Known::Found(Arc::new(found));
        }
        if self.refused.contains(&key.sizes) {
            return Known::Unknown;
        }
        let far = |known: &RecordingKey, recording: &Arc<Recording>| {
            if known.sizes == key.sizes { recording.far(key) } else { None }
        };
        let Some((far, place)) = self.recent.nearest(far) else { return Known::Unknown };
        let near = self.recent.at(place);
        let costs = Costs {
            far,
            indirect: near.and_then(|near| near.far_indirectly(key)),
            pieces: near.map_or(usize::MAX, |near| near.executable.program.pieces()),
        };
        match choose(costs, times(&self.left, key), self.recent.has_room()) {
            Choice::Record => Known::Unknown,
            Choice::Move => match self.recent.take(place) {
                Some((old, near)) => self.moved_to(key, memory, scratch, (old, near)),
                None => Known::Unknown,
            },
            Choice::Indirect => {
                count(&mut self.left, key.clone());
                match self.indirect.remove(&key.sizes) {
                    Some(near) => self.moved_to(key, memory, scratch, (key.clone(), near)),
                    None => Known::UnknownFar,
                }
            }
        }
    }

    /// A recording that was taken out, moved to other memory and kept there. `old` is counted as left, unless it is the key.
    fn moved_to(
        &mut self,
        key: &RecordingKey,
        memory: &[Arc<Memory>],
        scratch: &Stream,
        (old, near): (RecordingKey, Arc<Recording>),
    ) -> Known {
        let Some(moved) = near.moved(key, memory, scratch).map(Arc::new) else {
            self.refused.push(key.sizes.clone());
            self.retired.push(near);
            return Known::Unknown;
        };
        self.moved += 1;
        if old != *key {
            count(&mut self.left, old);
        }
        self.keep(key.clone(), moved.clone());
        Known::Found(moved)
    }

    pub fn keep(&mut self, key: RecordingKey, recording: Arc<Recording>) {
        let evicted = match recording.is_indirect() {
            true => self.indirect.put(key.sizes, recording),
            false => self.recent.put(key, recording),
        };
        self.retired.extend(evicted);
    }

    /// The program of some sizes, if a recording of it is kept.
    pub fn program(&self, sizes: &str) -> Option<Arc<DeviceProgram>> {
        self.recent
            .find(|key, recording| (*key.sizes == *sizes).then(|| recording.executable.program.clone()))
    }

    /// The program of some sizes in some memory, to be put piece by piece; `None` if none is known that can be there and fits.
    pub fn known_elsewhere(
        &self,
        key: &RecordingKey,
        memory: &[Arc<Memory>],
        fits: impl Fn(&Recording) -> bool,
    ) -> Option<Recording> {
        self.recent.find(|known, recording| {
            if known.sizes == key.sizes && fits(recording) { recording.elsewhere(key, memory) } else { None }
        })
    }
}

pub(super) enum Known {
    /// This recording runs there.
    Found(Arc<Recording>),
    /// It has to be recorded.
    Unknown,
    /// It is far from all that is known: an indirect recording is to be made of it.
    UnknownFar,
}

/// How often memory was left.
fn times<K: PartialEq>(left: &Recent<K, usize>, key: &K) -> usize {
    left.find(|known, times| (known == key).then_some(*times)).unwrap_or_default()
}

/// Counts memory as left once more.
fn count<K: PartialEq>(left: &mut Recent<K, usize>, key: K) {
    let times = left.remove(&key).unwrap_or_default();
    left.put(key, times + 1);
}

/// What a run in other memory than that of any recording may cost, in pieces of work that are set.
#[derive(Clone, Copy)]
struct Costs {
    /// To move the nearest recording there.
    far: usize,
    /// To move an indirect recording there, if one can be.
    indirect: Option<usize>,
    /// How many pieces of work the program has.
    pieces: usize,
}

/// How memory runs that no recording has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    /// The nearest recording is moved there.
    Move,
    /// It gets a recording of its own.
    Record,
    /// By the indirect recording.
    Indirect,
}

/// Memory that takes turns is recorded if there is room, and found from then on. What is far from all is recorded when it comes
/// again; what is near when its moves took as long as that takes, which is as many as there are pieces of work. What is new
/// and far runs by the indirect recording, and so does what comes again where there is no room; if that comes often, the
/// nearest recording moves there.
fn choose(costs: Costs, times: usize, has_room: bool) -> Choice {
    let Costs { far, indirect, pieces } = costs;
    let enough = if far > FEW { 1 } else { pieces.max(1) };
    if times >= enough && has_room {
        return Choice::Record;
    }
    let is_far = indirect.is_some_and(|indirect| far > indirect + FEW);
    if is_far && (times == 0 || !times.is_multiple_of(OFTEN)) { Choice::Indirect } else { Choice::Move }
}

/// Pieces of work that take less time to be put one by one than to have their parameters set in a graph.
const PIECES: usize = 4;

/// Pieces of work whose parameters take less time to be set than what comes again takes to be recorded a few times.
const FEW: usize = 24;

/// Runs by the indirect recording that cost as much time on the device as a move of many pieces of work takes.
const OFTEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// How often memory is found, moved, recorded and run by an indirect recording, if programs of so many pieces are run in
    /// these places in turn, of which so many recordings are kept. An indirect recording costs `indirect`.
    fn counted(kept: usize, pieces: usize, indirect: Option<usize>, runs: &[usize]) -> [usize; 4] {
        let (mut recent, mut left) = (Recent::new(kept), Recent::new(kept));
        let [mut found, mut moved, mut recorded, mut indirectly] = [0; 4];
        for &run in runs {
            if recent.get(&run).is_some() {
                found += 1;
                continue;
            }
            let near = recent.nearest(|known: &usize, ()| Some(run.abs_diff(*known)));
            let choice = near.map(|(far, _)| {
                choose(Costs { far, indirect, pieces }, times(&left, &run), recent.has_room())
            });
            match (choice, near) {
                (Some(Choice::Indirect), _) => {
                    indirectly += 1;
                    count(&mut left, run);
                    continue;
                }
                (Some(Choice::Move), Some((_, place))) => {
                    moved += 1;
                    let (old, ()) = recent.take(place).expect("the nearest");
                    count(&mut left, old);
                }
                _ => recorded += 1,
            }
            recent.put(run, ());
        }
        [found, moved, recorded, indirectly]
    }

    #[test]
    fn memory_that_is_near_is_moved_as_long_as_that_is_cheaper() {
        let turns: Vec<usize> = (0..100).map(|run| run % 2).collect();
        let all: Vec<usize> = (0..100).collect();
        let places: Vec<usize> = (0..1600).map(|run| run % 16).collect();
        for indirect in [None, Some(1)] {
            assert_eq!(counted(8, 1000, indirect, &turns), [0, 99, 1, 0]);
            assert_eq!(counted(8, 3, indirect, &all), [0, 99, 1, 0]);
            // Many places that run one small program: each has a recording of its own soon.
            let [found, moved, recorded, _] = counted(64, 3, indirect, &places);
            assert!(found > 1500 && recorded == 16, "{found} found, {moved} moved, {recorded} recorded");
        }
    }

    fn turns(of: usize) -> Vec<usize> {
        (0..100).map(|run| run % of * 1000).collect()
    }

    #[test]
    fn memory_that_is_far_is_recorded_when_it_comes_again() {
        // Two: the first is left for the second, comes again, and both are found from then on.
        assert_eq!(counted(8, 1000, None, &turns(2)), [97, 1, 2, 0]);
        assert_eq!(counted(8, 1000, None, &turns(4)), [93, 3, 4, 0]);
        // Where there is no room for all of them, they are moved.
        let [_, moved, recorded, _] = counted(2, 1000, None, &turns(4));
        assert!(moved > 50 && recorded <= 2, "{moved} moved, {recorded} recorded");
        let all: Vec<usize> = (0..100).map(|run| run * 1000).collect();
        assert_eq!(counted(8, 1000, None, &all), [0, 99, 1, 0]);
    }

    #[test]
    fn memory_that_is_far_and_new_runs_by_the_indirect_recording() {
        let all: Vec<usize> = (0..100).map(|run| run * 1000).collect();
        assert_eq!(counted(8, 1000, Some(1), &all), [0, 0, 1, 99]);
        // What takes turns is recorded when it comes again.
        assert_eq!(counted(8, 1000, Some(1), &turns(2)), [97, 0, 2, 1]);
        assert_eq!(counted(8, 1000, Some(1), &turns(4)), [93, 0, 4, 3]);
        // Where there is no room, few runs of many move a recording.
        let [found, moved, recorded, indirectly] = counted(1, 1000, Some(1), &turns(3));
        assert!(indirectly > 50 && moved < 8 && recorded == 1, "{found} found, {moved} moved");
        // Memory that stays has a recording in the end, though others filled the room.
        let stays: Vec<usize> = [0, 1000].into_iter().chain([2000; 98]).collect();
        let [found, moved, ..] = counted(1, 1000, Some(1), &stays);
        assert!(found > 70 && moved == 1, "{found} found, {moved} moved");
        // An indirect recording that costs as much is not used.
        assert_eq!(counted(8, 1000, Some(990), &turns(2)), [97, 1, 2, 0]);
    }
}
