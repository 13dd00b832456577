//! The cached recordings of a session, and the choice of a recording for the sizes and memory of a run.
//!
//! Memory that alternates is recorded. A nearby recording is retargeted as long as that is cheaper.

use std::sync::Arc;

use super::lru_cache::LruCache;
use super::recording::{Recording, RecordingKey};
use crate::device::driver::{DeviceBuffer, Stream};
use crate::program::DeviceProgram;

pub(super) struct RecordingCache {
    pub recordings: LruCache<RecordingKey, Arc<Recording>>,
    /// Recordings that were evicted while they may still run.
    pub retired: Vec<Arc<Recording>>,
    /// The recordings that the caller's graphs hold, each once.
    pub captured: Vec<Arc<Recording>>,
    /// Keys that recordings had before they were retargeted, and how often.
    abandoned_keys: LruCache<RecordingKey, usize>,
    /// Sizes whose graph refused an update that should have worked.
    unretargetable_sizes: Vec<Arc<str>>,
    /// The number of times that a recording was retargeted.
    pub retarget_count: u64,
    pub record_count: u64,
}

impl RecordingCache {
    /// An empty cache for `kept` recordings.
    pub fn new(kept: usize) -> RecordingCache {
        let retired = Vec::new();
        let captured = Vec::new();
        let refused = Vec::new();
        RecordingCache {
            recordings: LruCache::new(kept),
            retired,
            captured,
            abandoned_keys: LruCache::new(kept),
            unretargetable_sizes: refused,
            retarget_count: 0,
            record_count: 0,
        }
    }

    /// The recording for a key: a cached one, or the nearest one of the same sizes, retargeted. Library work
    /// is captured on `scratch` for the update, and not run.
    pub fn find_or_retarget(
        &mut self,
        key: &RecordingKey,
        memory: &[Arc<DeviceBuffer>],
        scratch: &Stream,
    ) -> Option<Arc<Recording>> {
        if let Some(existing) = self.recordings.get(key) {
            return Some(existing.clone());
        }
        let reusable = self.find_for_enqueue(key, memory, |recording| {
            recording.executable.program.pieces() + recording.copy_count() <= MAX_DIRECT_PIECES
        });
        if let Some(reusable) = reusable {
            return Some(Arc::new(reusable));
        }
        if self.unretargetable_sizes.contains(&key.sizes) {
            return None;
        }
        let position = choose_retarget(
            &self.recordings,
            &self.abandoned_keys,
            key,
            |candidate, recording| {
                if candidate.sizes == key.sizes { recording.retarget_cost(key) } else { None }
            },
            |recording| recording.executable.program.pieces(),
        )?;
        let (old, near) = self.recordings.remove_at(position)?;
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

    /// The program of some sizes, if one of its recordings is cached.
    pub fn program(&self, sizes: &str) -> Option<Arc<DeviceProgram>> {
        self.recordings
            .find(|key, recording| (*key.sizes == *sizes).then(|| recording.executable.program.clone()))
    }

    /// A recording that can be enqueued piece by piece with this key; `None` if no cached one can and is
    /// small enough.
    pub fn find_for_enqueue(
        &self,
        key: &RecordingKey,
        memory: &[Arc<DeviceBuffer>],
        fits: impl Fn(&Recording) -> bool,
    ) -> Option<Recording> {
        self.recordings.find(|candidate, recording| {
            if candidate.sizes == key.sizes && fits(recording) {
                recording.for_enqueue(key, memory)
            } else {
                None
            }
        })
    }
}

/// The index of the recording to retarget. `None` if there is none, or if this key was abandoned before and
/// there is capacity for a recording of its own. Keys that alternate are recorded and then found in the
/// cache. A key that is far from all recordings is recorded when it returns. A near one is recorded once its
/// updates have cost as much as a new recording, which is `pieces` pieces of work.
fn choose_retarget<K: PartialEq, V>(
    recent: &LruCache<K, V>,
    abandoned: &LruCache<K, usize>,
    key: &K,
    cost: impl Fn(&K, &V) -> Option<usize>,
    pieces: impl Fn(&V) -> usize,
) -> Option<usize> {
    let (cost, position) = recent.nearest(cost)?;
    let enough = if cost > CHEAP_RETARGET_PIECES {
        1
    } else {
        recent.get_at(position).map_or(usize::MAX, pieces).max(1)
    };
    let times =
        abandoned.find(|abandoned_key, times| (abandoned_key == key).then_some(*times)).unwrap_or_default();
    (times < enough || !recent.has_capacity()).then_some(position)
}

/// Up to this many pieces of work, enqueuing them one by one is faster than updating their parameters in a
/// graph.
const MAX_DIRECT_PIECES: usize = 4;

/// Up to this many pieces of work, updating their parameters is cheaper than recording returning memory a few
/// times.
const CHEAP_RETARGET_PIECES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of hits, retargets and recordings, if a program of `pieces` pieces runs at these keys in
    /// turn and at most `capacity` recordings are kept.
    fn counted(capacity: usize, pieces: usize, runs: &[usize]) -> [usize; 3] {
        let mut recent = LruCache::new(capacity);
        let mut abandoned = LruCache::new(capacity);
        let [mut found, mut moved, mut recorded] = [0; 3];
        for &run in runs {
            if recent.get(&run).is_some() {
                found += 1;
                continue;
            }
            let near = choose_retarget(
                &recent,
                &abandoned,
                &run,
                |recording, ()| Some(run.abs_diff(*recording)),
                |()| pieces,
            );
            match near.and_then(|position| recent.remove_at(position)) {
                Some((old, ())) => {
                    moved += 1;
                    let times = abandoned.remove(&old).unwrap_or_default();
                    abandoned.insert_or_evict(old, times + 1);
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
        let runs: Vec<usize> = (0..100).collect();
        assert_eq!(counted(8, 3, &runs), [0, 99, 1]);
        // Many keys for one small program: each soon has its own recording.
        let places: Vec<usize> = (0..1600).map(|run| run % 16).collect();
        let [found, moved, recorded] = counted(64, 3, &places);
        assert!(found > 1500 && recorded == 16, "{found} found, {moved} moved, {recorded} recorded");
    }

    #[test]
    fn memory_that_is_far_is_recorded_when_it_comes_again() {
        // Two keys: the first is abandoned for the second and returns; then both are found.
        assert_eq!(counted(8, 1000, &far_keys_in_turn(2)), [97, 1, 2]);
        assert_eq!(counted(8, 1000, &far_keys_in_turn(4)), [93, 3, 4]);
        // Without capacity for all of them, recordings are retargeted.
        let [_, moved, recorded] = counted(2, 1000, &far_keys_in_turn(4));
        assert!(moved > 50 && recorded <= 2, "{moved} moved, {recorded} recorded");
        let runs: Vec<usize> = (0..100).map(|run| run * 1000).collect();
        assert_eq!(counted(8, 1000, &runs), [0, 99, 1]);
    }

    fn far_keys_in_turn(count: usize) -> Vec<usize> {
        (0..100).map(|run| run % count * 1000).collect()
    }
}
