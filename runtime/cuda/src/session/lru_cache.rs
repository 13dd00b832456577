//! A cache that keeps a limited number of the most recently used values.

/// Values by key. When the cache is full, the least recently used value is evicted.
#[derive(Debug)]
pub(super) struct LruCache<K, V> {
    /// The least recently used entry is first.
    entries: Vec<(K, V)>,
    most: usize,
    evicted: u64,
}

impl<K: PartialEq, V> LruCache<K, V> {
    /// Keeps at most `capacity` values, and at least one.
    pub fn new(capacity: usize) -> LruCache<K, V> {
        LruCache { entries: Vec::new(), most: capacity.max(1), evicted: 0 }
    }

    /// The value of a key, which becomes the most recently used.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let position = self.entries.iter().rposition(|(k, _)| k == key)?;
        self.entries[position..].rotate_left(1);
        self.entries.last().map(|(_, value)| value)
    }

    /// The distance and the index of the nearest entry by this measure; the most recently used among equals.
    /// `None` if `measure` returns `None` for all entries.
    pub fn nearest(&self, measure: impl Fn(&K, &V) -> Option<usize>) -> Option<(usize, usize)> {
        self.entries
            .iter()
            .enumerate()
            .rev()
            .filter_map(|(index, (key, value))| Some((measure(key, value)?, index)))
            .min_by_key(|(distance, _)| *distance)
    }

    /// The first result that `make` returns, from the most recently used entry on.
    pub fn find<T>(&self, make: impl Fn(&K, &V) -> Option<T>) -> Option<T> {
        self.entries.iter().rev().find_map(|(key, value)| make(key, value))
    }

    pub fn get_at(&self, position: usize) -> Option<&V> {
        self.entries.get(position).map(|(_, value)| value)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let position = self.entries.iter().position(|(k, _)| k == key)?;
        Some(self.entries.remove(position).1)
    }

    pub fn remove_at(&mut self, position: usize) -> Option<(K, V)> {
        (position < self.entries.len()).then(|| self.entries.remove(position))
    }

    /// Whether one more value fits without an eviction.
    pub fn has_capacity(&self) -> bool {
        self.entries.len() < self.most
    }

    /// Inserts a value; returns the evicted one, if any.
    pub fn insert_or_evict(&mut self, key: K, value: V) -> Option<V> {
        self.entries.push((key, value));
        if self.entries.len() <= self.most {
            return None;
        }
        self.evicted += 1;
        Some(self.entries.remove(0).1)
    }

    /// The number of evictions.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut recent = LruCache::new(2);
        assert_eq!([recent.insert_or_evict("a", 1), recent.insert_or_evict("b", 2)], [None, None]);
        assert_eq!(recent.get(&"a"), Some(&1));
        assert_eq!(recent.insert_or_evict("c", 3), Some(2));
        let values = ["b", "a", "c"].map(|key| recent.get(&key).copied());
        assert_eq!(values, [None, Some(1), Some(3)]);
        assert_eq!(recent.evicted(), 1);
    }

    #[test]
    fn the_nearest_is_found() {
        let mut recent = LruCache::new(5);
        for (at, key) in [1usize, 5, 9, 5].into_iter().enumerate() {
            assert_eq!(recent.insert_or_evict(key, at), None);
        }
        assert_eq!(find_nearest(&recent, 6), Some((1, 3)), "the last used of two");
        assert_eq!((recent.remove_at(3), recent.remove_at(3)), (Some((5, 3)), None));
        assert_eq!((find_nearest(&recent, 6), find_nearest(&recent, 20)), (Some((1, 1)), None));
        assert!(recent.has_capacity() && recent.evicted() == 0);
    }

    fn find_nearest(recent: &LruCache<usize, usize>, wanted: usize) -> Option<(usize, usize)> {
        recent.nearest(|key, _| Some(key.abs_diff(wanted)).filter(|&distance| distance < 4))
    }

    #[test]
    fn ranks_that_look_for_the_same_in_the_same_order_keep_the_same() {
        let mut ranks = [LruCache::new(3), LruCache::new(3)];
        for step in 0..200u64 {
            let key = step * step % 7;
            // The second rank looks up its last key more often, because its memory changed.
            for (rank, recent) in ranks.iter_mut().enumerate() {
                for _ in 0..=rank {
                    if recent.get(&key).is_none() {
                        recent.insert_or_evict(key, ());
                    }
                }
            }
            assert_eq!(ranks[0].entries, ranks[1].entries);
        }
    }
}
