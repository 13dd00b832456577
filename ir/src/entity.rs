//! Entities: `u32` newtypes that index an [`EntityMap`]. The public API uses no bare indices.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A key of an [`EntityMap`].
pub trait Entity: Copy + Eq {
    fn new(index: usize) -> Self;
    fn index(self) -> usize;
}

/// Declares an entity: a `u32` newtype whose `Display` is a prefix and its index.
#[macro_export]
macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $crate::entity::Entity for $name {
            fn new(index: usize) -> Self {
                $name(u32::try_from(index).expect("a table holds fewer than 2^32 entries"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}{}", $prefix, self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// A dense table from an entity to its data, in order of insertion.
#[derive(Clone, PartialEq, Eq)]
pub struct EntityMap<K, V> {
    entries: Vec<V>,
    key: PhantomData<K>,
}

impl<K: Entity, V> EntityMap<K, V> {
    pub fn new() -> Self {
        EntityMap { entries: Vec::new(), key: PhantomData }
    }
    pub fn filled(value: V, len: usize) -> Self
    where
        V: Clone,
    {
        EntityMap { entries: vec![value; len], key: PhantomData }
    }
    pub fn push(&mut self, value: V) -> K {
        let key = K::new(self.entries.len());
        self.entries.push(value);
        key
    }
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    pub fn get(&self, key: K) -> Option<&V> {
        self.entries.get(key.index())
    }
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.entries.len()).map(K::new)
    }
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.entries.iter()
    }
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.entries.iter_mut()
    }
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.entries.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
}

impl<K: Entity, V> Default for EntityMap<K, V> {
    fn default() -> Self {
        EntityMap::new()
    }
}

impl<K: Entity, V> Index<K> for EntityMap<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.entries[key.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for EntityMap<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.entries[key.index()]
    }
}

impl<K: Entity, V> FromIterator<V> for EntityMap<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(iter: I) -> Self {
        EntityMap { entries: iter.into_iter().collect(), key: PhantomData }
    }
}

impl<K: Entity + fmt::Display, V: fmt::Debug> fmt::Debug for EntityMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(k, v)| (k.to_string(), v))).finish()
    }
}
