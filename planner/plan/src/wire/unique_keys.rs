//! Reads tables by name and rejects duplicate names. Other JSON readers may keep either of two entries.

use std::fmt;
use std::marker::PhantomData;

use indexmap::IndexMap;
use indexmap::map::Entry;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

struct UniqueKeysVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueKeysVisitor<V> {
    type Value = IndexMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = IndexMap::new();
        while let Some((name, value)) = map.next_entry::<String, V>()? {
            match out.entry(name) {
                Entry::Vacant(entry) => _ = entry.insert(value),
                Entry::Occupied(entry) => {
                    return Err(A::Error::custom(format!("duplicate entry `{}`", entry.key())));
                }
            }
        }
        Ok(out)
    }
}

/// Reads a table. Fails if a name occurs twice.
pub fn deserialize_unique_keys<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    deserializer: D,
) -> Result<IndexMap<String, V>, D::Error> {
    deserializer.deserialize_map(UniqueKeysVisitor(PhantomData))
}
