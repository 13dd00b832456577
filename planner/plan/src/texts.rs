//! The limit of texts that are written for people and have no meaning for the plan. They may quote names of values and
//! expressions, which have no limit.

use symmc_support::shorten_middle;

use crate::wire::{Bucket, CollectiveReplacement, Decision, Plan};

/// The maximum length of such a text, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;
/// The length to which longer texts are shortened.
const KEPT_BYTES: usize = 2048;

impl Plan {
    /// Shortens the middle of texts that are longer than [`MAX_TEXT_BYTES`]. Does not change the name of the machine,
    /// which identifies a profile.
    pub fn with_short_texts(mut self) -> Plan {
        for CollectiveReplacement { collective, rule, what, bytes: _, by } in &mut self.replacements {
            [collective, rule, what].into_iter().chain(by).for_each(shorten);
        }
        for Bucket { places, decisions, .. } in &mut self.buckets {
            places.values_mut().for_each(|placement| shorten(&mut placement.why));
            for Decision { chosen, alternatives, rules, .. } in decisions {
                shorten(chosen);
                alternatives.iter_mut().for_each(|alternative| shorten(&mut alternative.name));
                rules.iter_mut().for_each(|rule| shorten(&mut rule.name));
            }
        }
        self
    }
}

fn shorten(text: &mut String) {
    if text.len() > MAX_TEXT_BYTES {
        *text = shorten_middle(text, KEPT_BYTES);
    }
}
