//! The kernels that a machine has for several nodes at once. This table decides which dispatches a program
//! gets.
//!
//! The code generator of the machine supports everything in the table. Nodes that the table does not cover run
//! one by one.

use serde::{Deserialize, Serialize};

use crate::collective::CollectiveVariant;

/// The forms of [dispatches](crate::dispatch) that a machine supports, each with its limits. Absent forms are
/// unsupported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchCapabilities {
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub loops: Option<LoopLimits>,
    /// Matrix products of bf16 and f16, and element-wise nodes on their results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<ProductLimits>,
    /// Matrix products of one left operand, and rotary embeddings of their results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchLimits>,
    /// All-reduces by `ll`, and large two-shot all-reduces, with a residual and a norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<ReductionLimits>,
    /// All-gathers by `ll` and `pull` that store their results with the axes in another order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gather: Option<GatherLimits>,
    /// The largest elements of short rows, and what is computed from such rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<SelectionLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<RotaryLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scatter: Option<ScatterLimits>,
    /// Collectives of one group by `pull`, `push` or `one_shot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collectives: Option<CollectiveLimits>,
}

/// Limits of dispatches of the form `loop`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopLimits {
    /// The maximum number of nodes of a loop that does not reduce the last axis.
    pub nodes: u32,
    /// Reductions and norms of the last axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowLimits>,
    /// Reductions of the axis before the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnLimits>,
}

/// Limits of loops that reduce the last axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowLimits {
    pub nodes: u32,
    /// The maximum number of elements of a reduced row.
    pub reduced: u32,
    /// The maximum number of elements of a row whose norm ends a loop.
    pub normed: u32,
}

/// Limits of loops that reduce the axis before the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnLimits {
    /// The maximum extent of the axis that is reduced.
    pub terms: u32,
}

/// Limits of dispatches of the form `product`: skinny GEMMs with an epilogue. Their left matrices have `rows`,
/// and their right matrices have `columns` and K terms for each element. The number of columns counts all
/// products together that one multiprocessor computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductLimits {
    /// The maximum number of products. Separately read columns count as separate products.
    pub products: u32,
    /// The maximum number of rows.
    pub rows: u32,
    /// The maximum number of columns at once, in at most `waves` waves.
    pub columns: u32,
    /// See [`columns`](Self::columns).
    pub waves: u32,
    /// With at least this many columns any K is profitable; with fewer, K must not exceed
    /// [`few_k`](Self::few_k).
    pub few_columns: u32,
    /// See [`few_columns`](Self::few_columns).
    pub few_k: u32,
    /// The maximum number of rows next to right matrices whose elements have 8 bits. With more rows, they are cast first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_rows: Option<u32>,
    /// Clusters of two blocks that split K.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_k: Option<SplitKLimits>,
}

/// Limits of dispatches of the form `batch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchLimits {
    pub products: u32,
    /// Rotary embeddings of the results of the products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<BatchRotaryLimits>,
}

/// Limits of products of bf16 and f16 with rotary embeddings of their results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchRotaryLimits {
    /// The maximum number of rows.
    pub rows: u32,
    /// The maximum number of columns of a multiprocessor. With more, reading the right matrices costs more than
    /// fusion saves.
    pub columns: u32,
}

/// Products by split-K between the two blocks of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitKLimits {
    /// The minimum number of rows.
    pub rows: u32,
    /// The maximum number of columns of a cluster.
    pub columns: u32,
    /// The minimum K.
    pub k: u32,
}

/// The extents of products that one kernel computes side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProductShape {
    pub count: u64,
    pub rows: u64,
    pub columns: u64,
    /// K: the number of terms of each element.
    pub k: u64,
}

/// Limits of dispatches of the form `reduction`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReductionLimits {
    /// The maximum size of a normalised row, in bytes.
    pub row: u32,
}

/// Limits of dispatches of the form `gather`, which divide the operand of each rank into rows and store the
/// rows of all ranks in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatherLimits {
    /// The size of a row in bytes must be a multiple of this.
    pub unit: u32,
}

/// Limits of dispatches of the form `selection`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectionLimits {
    pub nodes: u32,
    /// The maximum number of elements of a row of a value.
    pub row: u32,
    /// The maximum number of selected elements.
    pub selected: u32,
    /// The maximum size of the rows of all values together, in bytes.
    pub bytes: u32,
}

/// Limits of dispatches of the form `rotary`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotaryLimits {
    pub nodes: u32,
}

/// Limits of dispatches of the form `scatter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScatterLimits {
    pub nodes: u32,
}

/// Limits of dispatches of the form `collectives`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveLimits {
    pub nodes: u32,
}

impl CollectiveLimits {
    /// The variants by which a machine runs several collectives as one step.
    pub const JOINT_STEP_VARIANTS: [CollectiveVariant; 3] =
        [CollectiveVariant::Pull, CollectiveVariant::Push, CollectiveVariant::OneShot];
}

/// The path of a limit that is 0.
fn find_zero_field(value: &serde_json::Value, path: &str) -> Option<String> {
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().find_map(|(name, v)| find_zero_field(v, &format!("{path}.{name}")))
        }
        value => (value.as_u64() == Some(0)).then(|| path.to_string()),
    }
}

impl DispatchCapabilities {
    /// The path in a profile of a limit that is 0, if there is one. A machine without a kernel must omit its
    /// limits instead.
    pub(super) fn find_zero_limit(&self) -> Option<String> {
        find_zero_field(&serde_json::to_value(self).unwrap_or_default(), "dispatches")
    }

    /// The capabilities of the kernels that this version generates for GPUs.
    pub const GPU: DispatchCapabilities = DispatchCapabilities {
        loops: Some(LoopLimits {
            nodes: 32,
            rows: Some(RowLimits { nodes: 48, reduced: 256 << 10, normed: 16 << 10 }),
            columns: Some(ColumnLimits { terms: 64 }),
        }),
        product: Some(ProductLimits {
            products: 2,
            rows: 64,
            columns: 112,
            waves: 2,
            few_columns: 24,
            few_k: 2048,
            stored_rows: Some(64),
            split_k: Some(SplitKLimits { rows: 17, columns: 224, k: 128 }),
        }),
        batch: Some(BatchLimits { products: 4, rotary: Some(BatchRotaryLimits { rows: 64, columns: 40 }) }),
        reduction: Some(ReductionLimits { row: 20 << 10 }),
        gather: Some(GatherLimits { unit: 16 }),
        selection: Some(SelectionLimits { nodes: 48, row: 1024, selected: 64, bytes: 24 << 10 }),
        rotary: Some(RotaryLimits { nodes: 4 }),
        scatter: Some(ScatterLimits { nodes: 4 }),
        collectives: Some(CollectiveLimits { nodes: 16 }),
    };

    /// Whether every node runs as its own step.
    pub fn is_none(&self) -> bool {
        *self == DispatchCapabilities::default()
    }
}

impl ProductLimits {
    /// Whether one kernel computes these products no slower than the library, for this number of rows and any
    /// smaller number, on a machine with `multiprocessors` multiprocessors.
    pub fn is_profitable(&self, product: &ProductShape, multiprocessors: u32) -> bool {
        // Split-K is not used for few rows.
        let unsplit_rows = self.split_k.map_or(product.rows, |p| u64::from(p.rows).saturating_sub(1));
        [product.rows, product.rows.min(unsplit_rows)].into_iter().all(|rows| {
            let product = ProductShape { rows, ..*product };
            self.is_profitable_with_split_k(&product, multiprocessors)
                || self.is_profitable_with_full_k(&product, multiprocessors)
        })
    }

    /// The maximum number of rows with which they are profitable; 0 if they never are. The rows of
    /// `product` are ignored.
    pub fn max_profitable_rows(&self, product: &ProductShape, multiprocessors: u32) -> u64 {
        let mut low = 0;
        let mut high = u64::from(self.rows);
        while low < high {
            let rows = low + (high - low).div_ceil(2);
            if self.is_profitable(&ProductShape { rows, ..*product }, multiprocessors) {
                low = rows
            } else {
                high = rows - 1
            }
        }
        low
    }

    /// As [`is_profitable`](Self::is_profitable), if each multiprocessor has columns with all of K. The library
    /// is faster if there are many rows for the number of columns.
    pub fn is_profitable_with_full_k(&self, product: &ProductShape, multiprocessors: u32) -> bool {
        let (waves, columns) = self.waves_and_columns(product, multiprocessors);
        // The library would compute one product after another.
        let most_rows = if product.count == 1 { columns * 9 / 10 } else { columns * 5 / 4 };
        self.fits(product)
            && waves <= u64::from(self.waves)
            && product.rows <= most_rows
            && self.has_enough_columns_for_k(columns, product.k)
    }

    pub fn waves_and_columns(&self, product: &ProductShape, multiprocessors: u32) -> (u64, u64) {
        let total_columns = product.columns.saturating_mul(product.count);
        let multiprocessors = u64::from(multiprocessors.max(1));
        let waves = total_columns.div_ceil(multiprocessors * u64::from(self.columns)).max(1);
        (waves, total_columns.div_ceil(multiprocessors * waves).next_multiple_of(8))
    }

    /// As [`is_profitable`](Self::is_profitable), by split-K.
    pub fn is_profitable_with_split_k(&self, product: &ProductShape, multiprocessors: u32) -> bool {
        let Some(split_k) = self.split_k.filter(|_| multiprocessors > 1) else { return false };
        let each = product.columns.div_ceil(u64::from(multiprocessors / 2)).next_multiple_of(8);
        let columns = each.saturating_mul(product.count);
        let most_rows = if product.count == 1 { columns } else { columns * 5 / 4 };
        let rows = product.rows >= u64::from(split_k.rows) && product.rows <= most_rows;
        let fits = self.fits(product) && rows && product.k >= u64::from(split_k.k);
        fits && columns <= u64::from(split_k.columns) && self.has_enough_columns_for_k(columns, product.k)
    }

    fn fits(&self, product: &ProductShape) -> bool {
        (1..=u64::from(self.products)).contains(&product.count) && product.rows <= u64::from(self.rows)
    }

    /// Whether stages of this many columns amortise their fixed cost, for this K.
    fn has_enough_columns_for_k(&self, columns: u64, k: u64) -> bool {
        columns >= u64::from(self.few_columns) || k <= u64::from(self.few_k)
    }
}
