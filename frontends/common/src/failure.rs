//! The reasons for which a rule does not lower a node.

use symmc_ir::builder::BuildError;

/// The reason for which a rule does not lower a node. `E` is the importer's error.
#[derive(Debug)]
pub enum RuleFailure<E> {
    /// The node uses the op in a valid way that the rule does not cover. It becomes opaque.
    Opaque(String),
    /// The node is invalid. The sentence says what was expected and found.
    Invalid(String),
    /// The program is invalid elsewhere.
    Error(E),
}

pub type RuleResult<T, E> = Result<T, RuleFailure<E>>;

impl<E> RuleFailure<E> {
    /// The error of the program. `here` makes an error of a message about the node.
    pub fn into_error(self, here: impl FnOnce(String) -> E) -> E {
        match self {
            RuleFailure::Error(e) => e,
            RuleFailure::Invalid(message) | RuleFailure::Opaque(message) => here(message),
        }
    }
}

impl<E> From<BuildError> for RuleFailure<E> {
    fn from(e: BuildError) -> Self {
        RuleFailure::Invalid(e.message)
    }
}

/// The failure of a rule whose node is invalid, with a message as in `format!`.
#[macro_export]
macro_rules! invalid {
    ($($message:tt)+) => { Err($crate::RuleFailure::Invalid(format!($($message)+))) };
}

/// Returns from a rule whose node is invalid if a condition holds.
#[macro_export]
macro_rules! invalid_if {
    ($condition:expr, $($message:tt)+) => {
        if $condition {
            return $crate::invalid!($($message)+);
        }
    };
}

/// The failure of a rule that does not cover what the node does, with a message as in `format!`.
#[macro_export]
macro_rules! unsupported {
    ($($message:tt)+) => { Err($crate::RuleFailure::Opaque(format!($($message)+))) };
}

/// Returns from a rule that does not cover what the node does if a condition holds.
#[macro_export]
macro_rules! unsupported_if {
    ($condition:expr, $($message:tt)+) => {
        if $condition {
            return $crate::unsupported!($($message)+);
        }
    };
}
