//! The recordings of a session: those that are kept, and which of them serves sizes and memory that a run asks for.
//!
//! Memory that takes turns is recorded; what is near is moved as long as that is cheaper.

use std::sync::Arc;

use super::lru_cache::LruCache;
use super::recording::{Recording, RecordingKey};
use crate::device::driver::{DeviceBuffer, Stream};
use crate::program::DeviceProgram;

pub(super) struct RecordingCache {
    pub recordings: LruCache<RecordingKey, Arc<Recording>>,
    /// What had to go while it may still run.
    pub retired: Vec<Arc<Recording>>,
    /// What the caller's graphs hold, each once.
    pub captured: Vec<Arc<Recording>>,
    /// Memory that a recording gave up for other memory, and how often.
    abandoned_keys: LruCache<RecordingKey, usize>,
    /// Sizes of which a graph refused what it should have taken.
    unretargetable_sizes: Vec<Arc<str>>,
    /// How many recordings took over other memory.
    pub retarget_count: u64,
    pub record_count: u64,
}

impl RecordingCache {
    /// None yet, of which so many are to be kept.
    pub fn new(kept: usize) -> RecordingCache {
        let (retired, captured, refused, left) = (Vec::new(), Vec::new(), Vec::new(), LruCache::new(kept));
        RecordingCache {
            recordings: LruCache::new(kept),
            retired,
            captured,
            abandoned_keys: left,
            unretargetable_sizes: refused,
            retarget_count: 0,
            record_count: 0,
        }
    }

    /// The recording of some sizes and memory: one that is kept, or the nearest of the same sizes, moved there. What libraries
    /// do is recorded on `scratch` for that, and not run.
    pub fn find_or_retarget(
        &mut self,
        key: &RecordingKey,
        memory: &[Arc<DeviceBuffer>],
        scratch: &Stream,
    ) -> Option<Arc<Recording>> {
        if let Some(known) = self.recordings.get(key) {
            return Some(known.clone());
        }
        let few =
            |found: &Recording| found.executable.program.pieces() + found.copy_count() <= MAX_DIRECT_PIECES;
        if let Some(found) = self.find_for_enqueue(key, memory, few) {
            return Some(Arc::new(found));
        }
        if self.unretargetable_sizes.contains(&key.sizes) {
            return None;
        }
        let far = |known: &RecordingKey, recording: &Arc<Recording>| {
            if known.sizes == key.sizes { recording.retarget_cost(key) } else { None }
        };
        let place = choose_retarget((&self.recordings, &self.abandoned_keys), key, far, |known| {
            known.executable.program.pieces()
        })?;
        let (old, near) = self.recordings.remove_at(place)?;
        let moved = near.retarget(key, memory, scratch).map(Arc::new);
        match &moved {
            Some(moved) => {
                self.retarget_count += 1;
                self.retired.extend(self.recordings.insert_or_evict(key.clone(), moved.clone()));
                let times = self.abandoned_keys.remove(&old).unwrap_or_default();
                self.abandoned_keys.insert_or_evict(old, times + 1);
            }
            None => {
                self.unretargetable_sizes.push(key.sizes.clone());
                self.retired.push(near);
            }
        }
        moved
    }

    /// The program of some sizes, if a recording of it is kept.
    pub fn program(&self, sizes: &str) -> Option<Arc<DeviceProgram>> {
        self.recordings
            .find(|key, recording| (*key.sizes == *sizes).then(|| recording.executable.program.clone()))
    }

    /// The program of some sizes in some memory, to be put piece by piece; `None` if none is known that can be there and fits.
    pub fn find_for_enqueue(
        &self,
        key: &RecordingKey,
        memory: &[Arc<DeviceBuffer>],
        fits: impl Fn(&Recording) -> bool,
    ) -> Option<Recording> {
        self.recordings.find(|known, recording| {
            if known.sizes == key.sizes && fits(recording) {
                recording.for_enqueue(key, memory)
            } else {
                None
            }
        })
    }
}

/// The place of the recording that is to be moved; none if there is none, or if this memory was left before and there is room
/// for a recording of its own: memory that takes turns is recorded, and found from then on. That is so when it comes again if
/// it is far from all; what is near is recorded when its moves took as long as that takes, which is as many as there are `pieces`
/// of work.
fn choose_retarget<K: PartialEq, V>(
    (recent, left): (&LruCache<K, V>, &LruCache<K, usize>),
    key: &K,
    far: impl Fn(&K, &V) -> Option<usize>,
    pieces: impl Fn(&V) -> usize,
) -> Option<usize> {
    let (far, place) = recent.nearest(far)?;
    let enough =
        if far > CHEAP_RETARGET_PIECES { 1 } else { recent.get_at(place).map_or(usize::MAX, pieces).max(1) };
    let times = left.find(|known, times| (known == key).then_some(*times)).unwrap_or_default();
    (times < enough || !recent.has_capacity()).then_some(place)
}

/// Pieces of work that take less time to be put one by one than to have their parameters set in a graph.
const MAX_DIRECT_PIECES: usize = 4;

/// Pieces of work whose parameters take less time to be set than what comes again takes to be recorded a few times.
const CHEAP_RETARGET_PIECES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    /// How often memory is found, moved and recorded, if programs of so many pieces are run in these places in turn, of which so
    /// many recordings are kept.
    fn counted(kept: usize, pieces: usize, runs: &[usize]) -> [usize; 3] {
        let (mut recent, mut left) = (LruCache::new(kept), LruCache::new(kept));
        let [mut found, mut moved, mut recorded] = [0; 3];
        for &run in runs {
            if recent.get(&run).is_some() {
                found += 1;
                continue;
            }
            let near =
                choose_retarget((&recent, &left), &run, |known, ()| Some(run.abs_diff(*known)), |()| pieces);
            match near.and_then(|place| recent.remove_at(place)) {
                Some((old, ())) => {
                    moved += 1;
                    let times = left.remove(&old).unwrap_or_default();
                    left.insert_or_evict(old, times + 1);
                }
                None => recorded += 1,
            }
            recent.insert_or_evict(run, ());
        }
        [found, moved, recorded]
    }

    #[test]
    fn memory_that_is_near_is_moved_as_long_as_that_is_cheaper() {
        let turns: Vec<usize> = (0..100).map(|run| run % 2).collect();
        assert_eq!(counted(8, 1000, &turns), [0, 99, 1]);
        let all: Vec<usize> = (0..100).collect();
        assert_eq!(counted(8, 3, &all), [0, 99, 1]);
        // Many places that run one small program: each has a recording of its own soon.
        let places: Vec<usize> = (0..1600).map(|run| run % 16).collect();
        let [found, moved, recorded] = counted(64, 3, &places);
        assert!(found > 1500 && recorded == 16, "{found} found, {moved} moved, {recorded} recorded");
    }

    #[test]
    fn memory_that_is_far_is_recorded_when_it_comes_again() {
        let turns = |of: usize| (0..100).map(|run| run % of * 1000).collect::<Vec<usize>>();
        // Two: the first is left for the second, comes again, and both are found from then on.
        assert_eq!(counted(8, 1000, &turns(2)), [97, 1, 2]);
        assert_eq!(counted(8, 1000, &turns(4)), [93, 3, 4]);
        // Where there is no room for all of them, they are moved.
        let [_, moved, recorded] = counted(2, 1000, &turns(4));
        assert!(moved > 50 && recorded <= 2, "{moved} moved, {recorded} recorded");
        let all: Vec<usize> = (0..100).map(|run| run * 1000).collect();
        assert_eq!(counted(8, 1000, &all), [0, 99, 1]);
    }
}
