//! Which code is loaded in which context, and which of it is idle.
//!
//! Code is *idle* when the cache holds the only reference to it. Idle code of a GPU stays loaded up to a limit of bytes;
//! above that, the least recently used is evicted. The driver unloads the modules of a context that it destroys, and
//! ids of contexts are never reused, so entries of a GPU's earlier context are forgotten, not unloaded.

use std::sync::Arc;

/// What identifies loaded code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CodeKey {
    /// The number of the GPU.
    pub gpu: u32,
    /// The id of the GPU's context, unique within the process.
    pub context: u64,
    /// The SHA-256 of the code.
    pub digest: [u8; 32],
}

/// Code that is loaded as a module.
#[derive(Debug)]
pub(super) struct LoadedCode<M> {
    pub key: CodeKey,
    /// The size of the machine code.
    pub bytes: usize,
    pub module: M,
}

/// All code that is loaded, least recently used first.
#[derive(Debug)]
pub(super) struct ModuleCache<M> {
    entries: Vec<Arc<LoadedCode<M>>>,
    /// The most idle bytes for each GPU.
    idle_limit: usize,
}

impl<M> ModuleCache<M> {
    pub fn new(idle_limit: usize) -> ModuleCache<M> {
        ModuleCache { entries: Vec::new(), idle_limit }
    }

    /// The loaded code of this key. Forgets the entries of earlier contexts of the same GPU.
    pub fn find(&mut self, key: &CodeKey) -> Option<Arc<LoadedCode<M>>> {
        self.entries.retain(|code| code.key.gpu != key.gpu || code.key.context == key.context);
        let position = self.entries.iter().position(|code| code.key == *key)?;
        let found = self.entries.remove(position);
        self.entries.push(found.clone());
        Some(found)
    }

    /// Adds code that was just loaded.
    pub fn insert(&mut self, code: LoadedCode<M>) -> Arc<LoadedCode<M>> {
        let code = Arc::new(code);
        self.entries.push(code.clone());
        code
    }

    /// Removes idle code of a GPU until at most the limit is idle; the caller unloads what is returned.
    pub fn evict_idle(&mut self, gpu: u32) -> Vec<Arc<LoadedCode<M>>> {
        let is_idle = |code: &Arc<LoadedCode<M>>| code.key.gpu == gpu && Arc::strong_count(code) == 1;
        let mut idle: usize = self.entries.iter().filter(|code| is_idle(code)).map(|code| code.bytes).sum();
        let limit = self.idle_limit;
        let evict = |code: &mut Arc<LoadedCode<M>>| {
            let evicted = idle > limit && is_idle(code);
            if evicted {
                idle -= code.bytes;
            }
            evicted
        };
        self.entries.extract_if(.., evict).collect()
    }
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
        // A thousand sessions one after the other load nothing new.
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
        let again = load(&mut cache, key(0, 9, 1), 10);
        assert!(!Arc::ptr_eq(&used, &again));
        // Code 2 went with its context: it is not unloaded in the new one. That of the other GPU is there.
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
}
