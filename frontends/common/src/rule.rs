//! Tables of lowering rules, and the ops that no rule lowers.

use std::collections::HashMap;
use std::sync::OnceLock;

use indexmap::IndexMap;
use symmc_ir::ValueId;

use crate::compositions::Compositions;
use crate::emit::Emit;
use crate::failure::RuleResult;

/// An importer's view of a node while its rule runs.
pub trait RuleCall: Emit {
    fn set_result(&mut self, result: usize, value: ValueId);

    /// Sets the values of the first results.
    fn set_results(&mut self, values: impl IntoIterator<Item = ValueId>) -> RuleResult<(), Self::Error> {
        values.into_iter().enumerate().for_each(|(i, value)| self.set_result(i, value));
        Ok(())
    }

    /// Sets the value of the only result.
    fn set_only_result(&mut self, value: ValueId) -> RuleResult<(), Self::Error> {
        self.set_results([value])
    }

    fn compositions_mut(&mut self) -> &mut Compositions;

    /// Rounds an intermediate value to its dtype, because the framework's operator does too.
    fn keep_rounding(&mut self, value: ValueId) {
        self.compositions_mut().keep_rounding(value);
    }
}

/// The rule that lowers a node: a function that takes the importer's own type of call.
#[derive(Clone, Copy, Debug)]
pub enum OpRule<V, R> {
    /// Returns the value of the only result.
    Value(V),
    /// Sets the results itself.
    Results(R),
}

impl<V, R> OpRule<V, R> {
    /// Applies the rule, and records the nodes that it emits as one composition.
    pub fn apply<C: RuleCall>(self, call: &mut C) -> RuleResult<(), C::Error>
    where
        V: FnOnce(&mut C) -> RuleResult<ValueId, C::Error>,
        R: FnOnce(&mut C) -> RuleResult<(), C::Error>,
    {
        let first = call.builder().graph().nodes.len();
        match self {
            OpRule::Value(rule) => {
                let value = rule(call)?;
                call.set_only_result(value)?;
            }
            OpRule::Results(rule) => rule(call)?,
        }
        let end = call.builder().graph().nodes.len();
        call.compositions_mut().record(first..end);
        Ok(())
    }
}

#[derive(Debug)]
pub struct RuleRow<R> {
    /// The names of the operators that have this rule, separated by spaces.
    pub names: &'static str,
    /// The documentation of what a node becomes.
    pub becomes: &'static str,
    pub rule: R,
}

/// Whether a list of words, separated by spaces, has this one.
pub fn has_word(list: &str, word: &str) -> bool {
    list.split(' ').any(|w| w == word)
}

impl<R> RuleRow<R> {
    pub fn has_name(&self, name: &str) -> bool {
        has_word(self.names, name)
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<R> {
        self.names.split(' ')
    }
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
        let by_name = self
            .by_name
            .get_or_init(|| self.rows().flat_map(|r| r.names().map(move |name| (name, r))).collect());
        by_name.get(name).copied()
    }

    pub fn supported(&self) -> Vec<(&'static str, &'static str)> {
        self.rows().flat_map(|r| r.names().map(|name| (name, r.becomes))).collect()
    }
}

/// Ops of a program that have no rule, or not as they are used: the reason and the node of the first use, and the
/// number of nodes.
#[derive(Clone, Debug, Default)]
pub struct UnsupportedOps(IndexMap<String, UnsupportedUse>);

#[derive(Clone, Debug)]
struct UnsupportedUse {
    why: String,
    first: String,
    count: usize,
}

impl UnsupportedOps {
    pub fn record(&mut self, op: &str, node: &str, why: &str) {
        let new = || UnsupportedUse { why: why.to_string(), first: node.to_string(), count: 0 };
        self.0.entry(op.to_string()).or_insert_with(new).count += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each op once, with its number of nodes, the first of them, and the reason there. `None` if there are no ops.
    pub fn describe(&self) -> Option<String> {
        let ops = self.0.iter().map(|(op, UnsupportedUse { why, first, count })| match count {
            1 => format!("{op} (node `{first}`): {why}"),
            count => format!("{op} ({count} nodes, first `{first}`): {why}"),
        });
        (!self.0.is_empty()).then(|| ops.collect::<Vec<_>>().join("; "))
    }

    /// A note on these ops, if they stay opaque.
    pub fn opaque_note(&self) -> Option<String> {
        self.describe().map(|ops| format!("these operators stay opaque, so the program does not run: {ops}"))
    }
}
