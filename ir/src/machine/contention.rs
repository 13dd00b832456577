//! The slowdown of collectives and computation by each other, as measured on a machine.

use serde::{Deserialize, Serialize};

use super::curve::Provenance;
use crate::collective::{CollectiveName, CollectiveVariant};

/// One measurement of a collective concurrent with products that fill the machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "ContentionFields", into = "ContentionFields")]
pub struct ContentionMeasurement {
    pub collective: CollectiveName,
    pub variant: CollectiveVariant,
    pub ranks: u32,
    /// The bytes of the collective, as in curves.
    pub bytes: u64,
    /// The increase of the products' time because of it, as a fraction of the collective's time alone.
    pub taken: f64,
    /// Its rate next to the products, as a fraction of its rate alone.
    pub rate: f64,
    pub provenance: Provenance,
    /// The method of measurement or the origin of the model, for people.
    pub note: String,
}

impl ContentionMeasurement {
    pub(super) fn validation_error(&self) -> Option<String> {
        if self.ranks < 2 {
            return Some(format!("{} ranks, expected at least 2", self.ranks));
        }
        for (name, value, min) in [("taken", self.taken, 0.0), ("rate", self.rate, 0.01)] {
            let valid = value >= min && value <= 1.0;
            if !valid {
                return Some(format!("{name}: expected {min} to 1, found {value}"));
            }
        }
        None
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContentionFields {
    collective: String,
    variant: String,
    ranks: u32,
    bytes: u64,
    taken: f64,
    rate: f64,
    #[serde(rename = "source")]
    provenance: Provenance,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    note: String,
}

impl From<ContentionMeasurement> for ContentionFields {
    fn from(c: ContentionMeasurement) -> ContentionFields {
        let ContentionMeasurement { collective, variant, ranks, bytes, taken, rate, provenance, note } = c;
        let collective = collective.name().to_string();
        let variant = variant.name().to_string();
        ContentionFields { collective, variant, ranks, bytes, taken, rate, provenance, note }
    }
}

impl TryFrom<ContentionFields> for ContentionMeasurement {
    type Error = String;

    fn try_from(written: ContentionFields) -> Result<ContentionMeasurement, String> {
        let ContentionFields { collective, variant, ranks, bytes, taken, rate, provenance, note } = written;
        let collective = CollectiveName::from_name(&collective)
            .ok_or_else(|| format!("contention: unknown collective {collective}"))?;
        let variant = CollectiveVariant::from_name(&variant)
            .ok_or_else(|| format!("contention: unknown variant {variant}"))?;
        Ok(ContentionMeasurement { collective, variant, ranks, bytes, taken, rate, provenance, note })
    }
}
