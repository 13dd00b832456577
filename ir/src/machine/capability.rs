//! What kernels a machine has for several nodes at once: the table that tells which dispatches a program gets.
//!
//! Whoever generates code for the machine does all that the table promises; what it does not name runs node by node.

use serde::{Deserialize, Serialize};

/// The forms of [dispatches](crate::dispatch) that a machine runs, each with its limits. Forms that are not named it does not
/// run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Element-wise nodes over one shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<Maps>,
    /// Matrix products of bf16 and f16, and what is done element by element with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<Products>,
    /// Matrix products of one left operand and of the same extents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batches>,
    /// All-reduces by `ll`, and in two shots of large tensors, with a residual and a norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reductions>,
    /// Rotary embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<Rotaries>,
}

/// Limits of dispatches of the form `map`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maps {
    /// The most nodes.
    pub nodes: u32,
}

/// Limits of dispatches of the form `product`. What a multiprocessor has of the right matrices are its *lines*.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Products {
    /// The most products, where columns that are read apart count as products of their own.
    pub products: u32,
    /// The most rows.
    pub rows: u32,
    /// The most lines at once, and how often each multiprocessor has so many in turn at most.
    pub lines: u32,
    /// See [`lines`](Self::lines).
    pub turns: u32,
    /// From so many lines on any number of terms is worth it, fewer are up to [`few_terms`](Self::few_terms).
    pub few_lines: u32,
    /// See [`few_lines`](Self::few_lines).
    pub few_terms: u32,
    /// Where pairs of multiprocessors halve the terms, the fewest rows and the most lines of a pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Pairs>,
}

/// Limits of dispatches of the form `batch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batches {
    /// The most products.
    pub products: u32,
}

/// Products by pairs of multiprocessors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    /// The fewest rows.
    pub rows: u32,
    /// The most lines.
    pub lines: u32,
    /// The fewest terms.
    pub terms: u32,
}

/// The extents of products that are done side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents {
    /// How many there are.
    pub count: u64,
    /// Rows of each.
    pub rows: u64,
    /// Columns of each.
    pub columns: u64,
    /// Terms of each element.
    pub terms: u64,
}

/// Limits of dispatches of the form `reduction`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reductions {
    /// The most bytes of a row that is normalised.
    pub row: u32,
}

/// Limits of dispatches of the form `rotary`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotaries {
    /// The most nodes.
    pub nodes: u32,
}

impl Capabilities {
    /// Those of the kernels that this version generates for GPUs.
    pub const GPU: Capabilities = Capabilities {
        map: Some(Maps { nodes: 16 }),
        product: Some(Products {
            products: 2,
            rows: 64,
            lines: 112,
            turns: 2,
            few_lines: 24,
            few_terms: 2048,
            pairs: Some(Pairs { rows: 17, lines: 224, terms: 128 }),
        }),
        batch: Some(Batches { products: 2 }),
        reduction: Some(Reductions { row: 20 << 10 }),
        rotary: Some(Rotaries { nodes: 4 }),
    };

    /// Whether every node runs by itself.
    pub fn is_none(&self) -> bool {
        *self == Capabilities::default()
    }
}

impl Products {
    /// Whether products are one kernel that is no slower than the library, on a machine of so many multiprocessors.
    pub fn are_worth(&self, of: &Extents, multiprocessors: u32) -> bool {
        self.in_pairs(of, multiprocessors) || self.apart(of, multiprocessors)
    }

    /// The same by multiprocessors that have lines each. Where rows are many beside lines, the library is faster.
    pub fn apart(&self, of: &Extents, multiprocessors: u32) -> bool {
        let (turns, lines) = self.turns_and_lines(of, multiprocessors);
        // The library would do one product after another.
        let most_rows = if of.count == 1 { lines * 9 / 10 } else { lines * 5 / 4 };
        self.fits(of)
            && turns <= u64::from(self.turns)
            && of.rows <= most_rows
            && self.is_long(lines, of.terms)
    }

    /// How often each multiprocessor has lines in turn, and how many.
    pub fn turns_and_lines(&self, of: &Extents, multiprocessors: u32) -> (u64, u64) {
        let (all, multiprocessors) = (of.columns.saturating_mul(of.count), u64::from(multiprocessors.max(1)));
        let turns = all.div_ceil(multiprocessors * u64::from(self.lines)).max(1);
        (turns, all.div_ceil(multiprocessors * turns).next_multiple_of(8))
    }

    /// The same by pairs of multiprocessors.
    pub fn in_pairs(&self, of: &Extents, multiprocessors: u32) -> bool {
        let Some(pairs) = self.pairs.filter(|_| multiprocessors > 1) else { return false };
        let columns = of.columns.div_ceil(u64::from(multiprocessors / 2)).next_multiple_of(8);
        let lines = columns.saturating_mul(of.count);
        let most_rows = if of.count == 1 { lines } else { lines * 5 / 4 };
        let rows = of.rows >= u64::from(pairs.rows) && of.rows <= most_rows;
        let terms = of.terms >= u64::from(pairs.terms);
        self.fits(of) && rows && terms && lines <= u64::from(pairs.lines) && self.is_long(lines, of.terms)
    }

    fn fits(&self, of: &Extents) -> bool {
        (1..=u64::from(self.products)).contains(&of.count) && of.rows <= u64::from(self.rows)
    }

    /// Whether steps of so many lines are worth what each costs beside, for so many terms.
    fn is_long(&self, lines: u64, terms: u64) -> bool {
        lines >= u64::from(self.few_lines) || terms <= u64::from(self.few_terms)
    }
}
