//! Numerics classes: the changes of rounding that a plan may make to its program.
//!
//! Without a class a plan is *exact*: rewrites change neither the rounding of a value nor its range. The
//! program leaves the order of some sums open: those of a collective, of a reduction along an axis and of a
//! product. Their order may change. Each class allows one more kind of change. Classes combine, and none
//! implies another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::named_enum;
use crate::types::DType;

named_enum! {
    NumericsClass {
        /// Sums may use another order, or happen before a collective instead of after it. Every sum keeps its
        /// type.
        Reassociate = "reassociate",
        /// Collectives transfer and add bf16 where the program has f32 that was or will be rounded to bf16.
        Narrow = "narrow",
        /// As `narrow`, with f16. Its range is smaller: sums that f32 can represent may become infinite.
        NarrowF16 = "narrow-f16",
    }
}

impl NumericsClass {
    /// A float type that values may be rounded to, in addition to the types of the program.
    pub fn narrow_type(self) -> Option<DType> {
        match self {
            NumericsClass::Reassociate => None,
            NumericsClass::Narrow => Some(DType::BF16),
            NumericsClass::NarrowF16 => Some(DType::F16),
        }
    }

    /// Whether that type has a smaller range than f32, so that finite values may become infinite.
    pub fn narrows_range(self) -> bool {
        self == NumericsClass::NarrowF16
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of numerics classes. The empty set is exact. The text form is `exact`, or names separated by commas:
/// `reassociate,narrow`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Numerics {
    classes: u8,
}

impl Numerics {
    /// No class: rewriting changes no rounding and no range.
    pub const EXACT: Numerics = Numerics { classes: 0 };

    pub fn is_exact(&self) -> bool {
        self.classes == 0
    }

    pub fn allows(self, class: NumericsClass) -> bool {
        self.classes & class.bit() != 0
    }

    #[must_use]
    pub fn with_class(self, class: NumericsClass) -> Numerics {
        Numerics { classes: self.classes | class.bit() }
    }

    /// The classes as the end of a report line, after a comma; empty for the empty set.
    pub fn report_suffix(&self) -> String {
        if self.is_exact() { String::new() } else { format!(", numerics {self}") }
    }

    pub fn classes(self) -> impl Iterator<Item = NumericsClass> {
        NumericsClass::ALL.iter().copied().filter(move |class| self.allows(*class))
    }
}

impl FromIterator<NumericsClass> for Numerics {
    fn from_iter<I: IntoIterator<Item = NumericsClass>>(classes: I) -> Numerics {
        classes.into_iter().fold(Numerics::EXACT, Numerics::with_class)
    }
}

impl From<NumericsClass> for Numerics {
    fn from(class: NumericsClass) -> Numerics {
        Numerics::EXACT.with_class(class)
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() {
            return f.write_str(EXACT);
        }
        let names: Vec<&str> = self.classes().map(NumericsClass::name).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Numerics({self})")
    }
}

const EXACT: &str = "exact";

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NumericsError {
    #[error(
        "expected exact, or one or more of {} separated by commas, found {found:?}",
        NumericsClass::names()
    )]
    Unknown { found: String },
    /// The name that was replaced by several classes.
    #[error(
        "relaxed was replaced by classes that say what may change: reassociate (sums in another order), narrow (f32 \
         carried as bf16) and narrow-f16 (f32 carried as f16, which has a smaller range); relaxed allowed all of them, \
         which is reassociate,narrow,narrow-f16"
    )]
    Relaxed,
    /// The former name of `exact`.
    #[error("expected exact, which is the new name of strict, found \"strict\"")]
    Strict,
    #[error("exact excludes all classes, found {found:?}")]
    ExactAndClasses { found: String },
}

impl FromStr for Numerics {
    type Err = NumericsError;

    fn from_str(text: &str) -> Result<Numerics, NumericsError> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let classes = names.iter().filter(|name| **name != EXACT).map(|&name| match name {
            "relaxed" => Err(NumericsError::Relaxed),
            "strict" => Err(NumericsError::Strict),
            name => NumericsClass::from_name(name)
                .ok_or_else(|| NumericsError::Unknown { found: name.to_string() }),
        });
        let numerics: Numerics = classes.collect::<Result<_, _>>()?;
        if !numerics.is_exact() && names.contains(&EXACT) {
            return Err(NumericsError::ExactAndClasses { found: text.to_string() });
        }
        Ok(numerics)
    }
}

impl Serialize for Numerics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.classes().map(NumericsClass::name))
    }
}

impl<'de> Deserialize<'de> for Numerics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Numerics, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let mut out = Numerics::EXACT;
        for name in names {
            let class = NumericsClass::from_name(&name).ok_or_else(|| {
                de::Error::custom(format!(
                    "expected one of {} in `numerics`, found {name:?}",
                    NumericsClass::names()
                ))
            })?;
            if out.allows(class) {
                return Err(de::Error::custom(format!("{name:?} is repeated in `numerics`")));
            }
            out = out.with_class(class);
        }
        Ok(out)
    }
}

/// The effect of an op on the rounding of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundingEffect {
    /// The op moves or selects elements, or computes without rounding.
    Keeps,
    /// The op rounds its result once, to the dtype of the result. Integers stay exact.
    Rounds,
    /// As [`Rounds`](Self::Rounds), but with several roundings in an order that the implementation chooses.
    Accumulates,
    /// As [`Rounds`](Self::Rounds), and the op is discontinuous.
    Jumps,
    /// The op is constant except for jumps.
    Steps,
    /// The op converts from the dtype of its operand to that of its result.
    Converts,
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subsets() -> impl Iterator<Item = Numerics> {
        (0..1u8 << NumericsClass::ALL.len()).map(|set| {
            let classes = NumericsClass::ALL.iter().enumerate();
            classes.filter_map(|(i, class)| (set >> i & 1 == 1).then_some(*class)).collect()
        })
    }

    #[test]
    fn every_set_reads_back_as_text_and_as_json() {
        for set in subsets() {
            assert_eq!(set.to_string().parse(), Ok(set), "{set}");
            let json = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<Numerics>(&json).unwrap(), set, "{json}");
        }
        assert_eq!(Numerics::EXACT.to_string(), "exact");
        assert_eq!("narrow, reassociate".parse::<Numerics>().unwrap().to_string(), "reassociate,narrow");
        assert_eq!(
            serde_json::to_string(&Numerics::from(NumericsClass::NarrowF16)).unwrap(),
            r#"["narrow-f16"]"#
        );
    }

    #[test]
    fn other_texts_are_refused_by_name() {
        let error = |text: &str| text.parse::<Numerics>().unwrap_err().to_string();
        for text in ["", "fast", "narrow,", "Strict", "narrow_f16", "reassociate narrow"] {
            assert!(
                error(text).contains("expected exact, or one or more of reassociate, narrow, narrow-f16"),
                "{text}"
            );
        }
        for text in ["relaxed", "relaxed,narrow"] {
            assert!(error(text).contains("reassociate,narrow,narrow-f16"), "{text}");
        }
        assert!(error("exact,narrow").contains("exact excludes all classes"));
        for json in [r#"["fast"]"#, r#"["narrow", "narrow"]"#, r#""narrow""#, r#"["exact"]"#] {
            assert!(serde_json::from_str::<Numerics>(json).is_err(), "{json}");
        }
    }
}
