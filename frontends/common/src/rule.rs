//! Tables of rules: which ops a reader knows, and why a rule does not lower a node.

use std::collections::HashMap;
use std::sync::OnceLock;

use indexmap::IndexMap;
use symmc_ir::ValueId;
use symmc_ir::builder::BuildError;

/// Why a rule does not lower a node; `E` is the reader's error.
#[derive(Debug)]
pub enum RuleFailure<E> {
    /// The node is a valid use of the op that the rule does not cover: it becomes opaque.
    Opaque(String),
    /// The node is broken: one sentence with what was expected and found.
    Invalid(String),
    /// The program is broken elsewhere.
    Error(E),
}

/// The result of a rule, and of what rules call.
pub type RuleResult<T, E> = Result<T, RuleFailure<E>>;

impl<E> RuleFailure<E> {
    /// The error of the program; `here` makes one of what is wrong with the node.
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

/// A node while its rule runs, as a reader has it.
pub trait RuleCall {
    type Error;

    /// States the value of the only result.
    fn finish_with_value(&mut self, value: ValueId) -> RuleResult<(), Self::Error>;
}

/// What lowers a node of an op: a function of a reader's own type of call.
#[derive(Clone, Copy, Debug)]
pub enum OpRule<V, R> {
    /// Gives the value of the only result.
    Value(V),
    /// States the results.
    Results(R),
}

impl<V, R> OpRule<V, R> {
    pub fn apply<C: RuleCall>(self, call: &mut C) -> RuleResult<(), C::Error>
    where
        V: FnOnce(&mut C) -> RuleResult<ValueId, C::Error>,
        R: FnOnce(&mut C) -> RuleResult<(), C::Error>,
    {
        match self {
            OpRule::Value(rule) => {
                let value = rule(call)?;
                call.finish_with_value(value)
            }
            OpRule::Results(rule) => rule(call),
        }
    }
}

#[derive(Debug)]
pub struct RuleRow<R> {
    pub name: &'static str,
    /// What a node becomes, in words for documentation.
    pub becomes: &'static str,
    pub rule: R,
}

pub struct RuleTables<R: 'static> {
    themes: &'static [&'static [RuleRow<R>]],
    by_name: OnceLock<HashMap<&'static str, &'static RuleRow<R>>>,
}

impl<R> RuleTables<R> {
    pub const fn new(themes: &'static [&'static [RuleRow<R>]]) -> Self {
        RuleTables { themes, by_name: OnceLock::new() }
    }

    pub fn rows(&self) -> impl Iterator<Item = &'static RuleRow<R>> + use<R> {
        self.themes.iter().copied().flatten()
    }

    pub fn find_row(&self, name: &str) -> Option<&'static RuleRow<R>> {
        let by_name = self.by_name.get_or_init(|| self.rows().map(|r| (r.name, r)).collect());
        by_name.get(name).copied()
    }

    pub fn supported(&self) -> Vec<(&'static str, &'static str)> {
        self.rows().map(|r| (r.name, r.becomes)).collect()
    }
}

/// The ops of a program that stay opaque, with the first reason and how often.
#[derive(Debug, Default)]
pub struct OpaqueOps(IndexMap<String, (String, usize)>);

impl OpaqueOps {
    pub fn record(&mut self, op: &str, why: &str) {
        self.0.entry(op.to_string()).or_insert_with(|| (why.to_string(), 0)).1 += 1;
    }

    /// A sentence for each op; they are forgotten with that.
    pub fn take_notes(&mut self) -> impl Iterator<Item = String> {
        std::mem::take(&mut self.0).into_iter().map(|(op, (why, count))| {
            let nodes = if count == 1 { "node" } else { "nodes" };
            format!("{op} stays opaque ({count} {nodes}): {why}")
        })
    }
}
