//! The packed axis of the results of nodes that move axes.

use symmc_import::emit::extent_product;
use symmc_ir::Dim;

use crate::packed_rows::PackedRows;

/// The packed axis after a reshape: the axis before which the product of the extents is the same, and whose
/// rows are made of whole rows, or make up whole rows.
pub(super) fn reshaped(rows: &PackedRows, from: &[Dim], to: &[Dim]) -> Option<PackedRows> {
    let before = extent_product(from.get(..rows.axis)?);
    let inner = extent_product(from.get(rows.axis + 1..)?);
    let axes = (0..to.len()).rev().filter(|axis| extent_product(&to[..*axis]) == before);
    axes.into_iter().find_map(|axis| {
        let inside = extent_product(&to[axis + 1..]);
        let length = (rows.length.clone() * inner.clone()).exact_div(&inside)?;
        Some(PackedRows { axis, length })
    })
}

/// The packed axis after axes are removed, or kept with extent 1. It is not one of them.
pub(super) fn reduced(rows: &PackedRows, axes: &[usize], keep: bool) -> PackedRows {
    let removed = if keep { 0 } else { axes.iter().filter(|a| **a < rows.axis).count() };
    PackedRows { axis: rows.axis - removed, length: rows.length.clone() }
}

pub(super) fn moved(rows: &PackedRows, axis: usize) -> PackedRows {
    PackedRows { axis, length: rows.length.clone() }
}
