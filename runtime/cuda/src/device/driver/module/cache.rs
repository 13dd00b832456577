//! Tracks the code that is loaded in each context, and which of it is idle.
//!
//! Code is *idle* when the cache holds the only reference to it. Idle code of a GPU stays loaded up to a
//! limit of bytes; above that, the least recently used is evicted. The driver unloads the modules of a
//! context that it destroys, and ids of contexts are never reused. Entries of a GPU's earlier context are
//! therefore dropped without unloading.
//!
//! Code of one key is loaded by one thread; other threads that want it wait. Loading holds no lock, so code
//! of other keys, for example on other GPUs, is loaded concurrently.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CodeKey {
    pub gpu: u32,
    /// The id of the GPU's context, unique within the process.
    pub context: u64,
    pub digest: [u8; 32],
}

#[derive(Debug)]
pub(super) struct LoadedCode<M> {
    pub key: CodeKey,
    /// The size of the machine code.
    pub bytes: usize,
    pub module: M,
}

/// All loaded code, least recently used first.
#[derive(Debug)]
pub(super) struct ModuleCache<M> {
    entries: Vec<Arc<LoadedCode<M>>>,
    /// The keys of code that threads are loading.
    loading: Vec<CodeKey>,
    /// The limit of idle bytes per GPU.
    idle_limit: usize,
}

/// The loaded code of the process, shared by all threads.
#[derive(Debug)]
pub(super) struct SharedModules<M> {
    cache: Mutex<ModuleCache<M>>,
    /// Notified whenever a thread stops loading.
    changed: Condvar,
}

impl<M> SharedModules<M> {
    pub fn new(idle_limit: usize) -> SharedModules<M> {
        SharedModules { cache: Mutex::new(ModuleCache::new(idle_limit)), changed: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, ModuleCache<M>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The code of this key; loads it if necessary. Waits for another thread that loads the same key. Fails
    /// as `load`. If that thread fails, the threads that waited try to load the code themselves.
    pub fn get_or_load<E>(
        &self,
        key: CodeKey,
        bytes: usize,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Arc<LoadedCode<M>>, E> {
        let mut cache = self.lock();
        loop {
            if let Some(loaded) = cache.find(&key) {
                return Ok(loaded);
            }
            if !cache.loading.contains(&key) {
                break;
            }
            cache = self.changed.wait(cache).unwrap_or_else(PoisonError::into_inner);
        }
        cache.loading.push(key);
        drop(cache);
        // A panic also ends the loading.
        let _loading = LoadingGuard { modules: self, key };
        let module = load()?;
        Ok(self.lock().insert(LoadedCode { key, bytes, module }))
    }
}

struct LoadingGuard<'a, M> {
    modules: &'a SharedModules<M>,
    key: CodeKey,
}

impl<M> Drop for LoadingGuard<'_, M> {
    fn drop(&mut self) {
        self.modules.lock().loading.retain(|key| *key != self.key);
        self.modules.changed.notify_all();
    }
}

impl<M> ModuleCache<M> {
    pub fn new(idle_limit: usize) -> ModuleCache<M> {
        ModuleCache { entries: Vec::new(), loading: Vec::new(), idle_limit }
    }

    /// The loaded code of this key. Drops the entries of earlier contexts of the same GPU.
    pub fn find(&mut self, key: &CodeKey) -> Option<Arc<LoadedCode<M>>> {
        self.entries.retain(|code| code.key.gpu != key.gpu || code.key.context == key.context);
        let position = self.entries.iter().position(|code| code.key == *key)?;
        let entry = self.entries.remove(position);
        self.entries.push(entry.clone());
        Some(entry)
    }

    pub fn insert(&mut self, code: LoadedCode<M>) -> Arc<LoadedCode<M>> {
        let code = Arc::new(code);
        self.entries.push(code.clone());
        code
    }

    /// Removes idle code of a GPU until the rest is within the limit. The caller unloads the returned code.
    pub fn evict_idle(&mut self, gpu: u32) -> Vec<Arc<LoadedCode<M>>> {
        let idle_codes = self.entries.iter().filter(|code| is_idle(code, gpu));
        let mut idle: usize = idle_codes.map(|code| code.bytes).sum();
        let limit = self.idle_limit;
        let evicted = self.entries.extract_if(.., |code| {
            let evict = idle > limit && is_idle(code, gpu);
            if evict {
                idle -= code.bytes;
            }
            evict
        });
        evicted.collect()
    }
}

fn is_idle<M>(code: &Arc<LoadedCode<M>>, gpu: u32) -> bool {
    code.key.gpu == gpu && Arc::strong_count(code) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(gpu: u32, context: u64, digest: u8) -> CodeKey {
        CodeKey { gpu, context, digest: [digest; 32] }
    }

    fn load(cache: &mut ModuleCache<u8>, key: CodeKey, bytes: usize) -> Arc<LoadedCode<u8>> {
        cache.find(&key).unwrap_or_else(|| cache.insert(LoadedCode { key, bytes, module: key.digest[0] }))
    }

    fn evicted(cache: &mut ModuleCache<u8>, gpu: u32) -> Vec<u8> {
        cache.evict_idle(gpu).iter().map(|code| code.module).collect()
    }

    #[test]
    fn the_same_code_is_loaded_once_for_each_context() {
        let mut cache = ModuleCache::new(100);
        let first = load(&mut cache, key(0, 7, 1), 10);
        assert!(Arc::ptr_eq(&first, &load(&mut cache, key(0, 7, 1), 10)));
        assert!(!Arc::ptr_eq(&first, &load(&mut cache, key(1, 8, 1), 10)));
        drop(first);
        // A thousand sessions one after another load nothing new.
        for _ in 0..1000 {
            assert_eq!(load(&mut cache, key(0, 7, 1), 10).module, 1);
            assert!(evicted(&mut cache, 0).is_empty());
        }
        assert_eq!(cache.entries.len(), 2);
    }

    #[test]
    fn a_new_context_forgets_the_code_of_the_one_before() {
        let mut cache = ModuleCache::new(0);
        let used = load(&mut cache, key(0, 1, 1), 10);
        drop(load(&mut cache, key(0, 1, 2), 10));
        drop(load(&mut cache, key(1, 2, 3), 10));
        let reloaded = load(&mut cache, key(0, 9, 1), 10);
        assert!(!Arc::ptr_eq(&used, &reloaded));
        // Code 2 was unloaded with its context, not in the new one. The code of the other GPU is kept.
        assert!(evicted(&mut cache, 0).is_empty());
        assert_eq!(evicted(&mut cache, 1), [3]);
    }

    #[test]
    fn idle_code_above_the_limit_is_evicted_least_recently_used_first() {
        let mut cache = ModuleCache::new(25);
        let used = load(&mut cache, key(0, 1, 1), 1000);
        for digest in [2, 3, 4] {
            drop(load(&mut cache, key(0, 1, digest), 10));
        }
        drop(load(&mut cache, key(0, 1, 2), 10));
        drop(load(&mut cache, key(1, 5, 5), 1000));
        assert_eq!(evicted(&mut cache, 0), [3]);
        assert!(evicted(&mut cache, 0).is_empty());
        drop(used);
        assert_eq!(evicted(&mut cache, 0), [1]);
        assert_eq!(cache.find(&key(0, 1, 4)).map(|code| code.module), Some(4));
    }

    /// Waits until `count` threads have called this; `false` after half a minute.
    fn meet(met: &(Mutex<u32>, Condvar), count: u32) -> bool {
        let (arrived, changed) = met;
        let mut arrived = arrived.lock().unwrap();
        *arrived += 1;
        changed.notify_all();
        let limit = std::time::Duration::from_secs(30);
        let (arrived, _) = changed.wait_timeout_while(arrived, limit, |arrived| *arrived < count).unwrap();
        *arrived >= count
    }

    #[test]
    fn code_of_different_keys_is_loaded_at_the_same_time() {
        let modules = SharedModules::<u8>::new(100);
        let met = (Mutex::new(0), Condvar::new());
        std::thread::scope(|scope| {
            for number in 0..4 {
                let modules = &modules;
                let met = &met;
                let key = key(u32::from(number) / 2, u64::from(number) / 2, number);
                scope.spawn(move || {
                    // All threads are inside their load at the same time.
                    let code = modules.get_or_load(key, 10, || {
                        meet(met, 4).then_some(number).ok_or("the others do not load")
                    });
                    assert_eq!(code.map(|c| c.module), Ok(number))
                });
            }
        });
        assert!(modules.lock().loading.is_empty());
    }

    #[test]
    fn code_of_one_key_is_loaded_once_and_again_after_a_failure() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let modules = SharedModules::<u8>::new(100);
        let loads = AtomicU32::new(0);
        let shared_key = key(0, 1, 1);
        let met = (Mutex::new(0), Condvar::new());
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        meet(&met, 8);
                        modules.get_or_load(shared_key, 10, || {
                            // The other threads that have arrived wait here. The first load fails, the
                            // second panics.
                            match loads.fetch_add(1, Ordering::SeqCst) {
                                0 => Err("no memory"),
                                1 => panic!("in the driver"),
                                _ => Ok(7),
                            }
                        })
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        assert_eq!(loads.load(Ordering::SeqCst), 3);
        let loaded: Vec<_> = results.iter().filter_map(|r| r.as_ref().ok()?.as_ref().ok()).collect();
        assert_eq!(loaded.len(), 6);
        assert!(loaded.iter().all(|code| code.module == 7 && Arc::ptr_eq(code, loaded[0])));
    }
}
