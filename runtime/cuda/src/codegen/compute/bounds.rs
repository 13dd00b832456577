//! The visible keys of rows, as text of a kernel's layout and in the form that cuDNN takes.

use std::fmt::Write as _;

use symmc_ir::attention::AttentionBound;
use symmc_ir::{BoundSide, DType};

use super::space::HeadRows;
use super::text::{int_literal, offset_function, stored_type};
use crate::cudnn::VisibleBand;

/// The operand of a bound, or a sink: the location of its elements for heads and rows, and their dtype.
pub(super) struct BoundPosition {
    pub at: HeadRows,
    pub dtype: DType,
}

/// The bound with its constant; `None` if that is not yet a number.
fn constant(bound: &AttentionBound) -> Option<(&AttentionBound, i64)> {
    Some((bound, bound.add.as_const()?))
}

/// The bounds with their constants, if all of these are known.
pub(super) fn constants(bounds: &[AttentionBound]) -> Option<Vec<(&AttentionBound, i64)>> {
    bounds.iter().map(constant).collect()
}

/// The members of a layout that define the keys that a row of a head sees.
pub(super) fn layout(bounds: &[(&AttentionBound, i64)], positions: &[BoundPosition]) -> String {
    let grows = has_row_bound(bounds, BoundSide::Below) && !has_row_bound(bounds, BoundSide::From);
    // Without data, limits never decrease from one row to the next.
    let monotone = bounds.iter().all(|(b, _)| !b.operand);
    let mut out = format!(
        "static const bool BOUNDED = {}, GROWS = {grows}, MONOTONE = {monotone};\n",
        !bounds.is_empty()
    );
    for (i, position) in positions.iter().enumerate() {
        out.push_str(&offset_function(&format!("b{i}_head"), &position.at.head));
        out.push_str(&offset_function(&format!("b{i}_row"), &position.at.row));
    }
    out.push_str(
        "SC_FN void span(const void *const *given, i64 head, i64 row, i64 &from, i64 &below) {\n    from = 0, below = S;\n    i64 p;\n",
    );
    let mut positions = positions.iter().enumerate();
    for (bound, add) in bounds {
        let row = if bound.row { "row % Q" } else { "0ll" };
        let _ = writeln!(out, "    p = saturate({row}, {});", int_literal(*add));
        if let Some((i, position)) = bound.operand.then(|| positions.next()).flatten() {
            let element = stored_type(position.dtype);
            let _ = writeln!(
                out,
                "    p = saturate(p, get(((const {element} *)given[{i}])[b{i}_head(head) + b{i}_row(row)]));"
            );
        }
        if let Some(chunk) = bound.chunk {
            let _ = writeln!(out, "    p = chunk_of(p, {chunk}ll);");
            if bound.side == BoundSide::Below {
                let _ = writeln!(out, "    p = saturate(p, {chunk}ll);");
            }
        }
        out.push_str(match bound.side {
            BoundSide::Below => "    if (p < below) below = p;\n",
            BoundSide::From => "    if (p > from) from = p;\n",
        });
    }
    out.push_str("    if (below < 0) below = 0;\n    if (from > below) from = below;\n}\n");
    out
}

fn has_row_bound(bounds: &[(&AttentionBound, i64)], side: BoundSide) -> bool {
    bounds.iter().any(|(b, _)| b.row && b.side == side)
}

/// The members of a layout that define an additional score of a row, which is operand `number`.
pub(super) fn sink(sink: Option<&BoundPosition>, number: usize) -> String {
    let Some(sink) = sink else {
        return "static const bool SINK = false;\nSC_FN float sink(const void *const *, i64, i64) { return 0; }\n".into();
    };
    let element = stored_type(sink.dtype);
    let mut out = String::from("static const bool SINK = true;\n");
    out.push_str(&offset_function("sink_head", &sink.at.head));
    out.push_str(&offset_function("sink_row", &sink.at.row));
    let _ = writeln!(
        out,
        "SC_FN Computed<{element}>::C sink(const void *const *given, i64 head, i64 row) {{ return get(((const {element} *)given[{number}])[sink_head(head) + sink_row(row)]); }}"
    );
    out
}

/// The members of a layout that define the destination of the log-sum-exp of each row, which is operand
/// `number`.
pub(super) fn sums(sums: Option<&BoundPosition>, number: usize) -> String {
    let Some(sums) = sums else {
        return "static const bool SUMS = false;\nSC_FN void put_sum(const void *const *, i64, i64, double) {}\n".into();
    };
    let element = stored_type(sums.dtype);
    let mut out = String::from("static const bool SUMS = true;\n");
    out.push_str(&offset_function("sum_head", &sums.at.head));
    out.push_str(&offset_function("sum_row", &sums.at.row));
    let _ = writeln!(
        out,
        "SC_FN void put_sum(const void *const *given, i64 head, i64 row, {element} x) {{ (({element} *)given[{number}])[sum_head(head) + sum_row(row)] = x; }}"
    );
    out
}

/// The visible band of `queries` rows and the number of visible keys, if the bounds have that form.
pub(super) fn band(
    bounds: &[(&AttentionBound, i64)],
    queries: usize,
    keys: usize,
) -> Option<(VisibleBand, usize)> {
    let mut band = VisibleBand::default();
    let mut keys = i64::try_from(keys).ok()?;
    let last_row = i64::try_from(queries).ok()?.checked_sub(1)?;
    for &(bound, add) in bounds.iter().filter(|b| !b.0.operand) {
        match (bound.side, bound.row && last_row > 0) {
            (_, true) if bound.chunk.is_some() => return None,
            (BoundSide::Below, true) => band.below = Some(band.below.map_or(add, |b| b.min(add))),
            (BoundSide::From, true) => band.from = Some(band.from.map_or(add, |f| f.max(add))),
            (BoundSide::Below, false) => keys = keys.min(bound.limit(0, add, 0)),
            (BoundSide::From, false) if bound.limit(0, add, 0) > 0 => return None,
            (BoundSide::From, false) => {}
        }
    }
    // A limit that hides nothing is dropped.
    band.below = band.below.filter(|&below| below < keys);
    band.from = band.from.filter(|&from| from.saturating_add(last_row) > 0);
    (keys > 0).then_some((band, usize::try_from(keys).ok()?)).filter(|_| bounds.iter().all(|b| !b.0.operand))
}

#[cfg(test)]
mod tests {
    use symmc_ir::Dim;

    use super::*;

    fn bound(side: BoundSide, row: bool, add: i64) -> AttentionBound {
        AttentionBound { side, row, add: Dim::from(add), chunk: None, operand: false }
    }

    fn band_of(bounds: &[AttentionBound], queries: usize, keys: usize) -> Option<(VisibleBand, usize)> {
        band(&constants(bounds).unwrap(), queries, keys)
    }

    #[test]
    fn a_band_is_what_causal_order_windows_and_lengths_leave() {
        let [causal, window] = [bound(BoundSide::Below, true, 1), bound(BoundSide::From, true, -3)];
        let everything = VisibleBand::default();
        assert_eq!(band_of(&[], 5, 9), Some((everything, 9)));
        let below = VisibleBand { below: Some(1), from: None };
        assert_eq!(band_of(std::slice::from_ref(&causal), 5, 9), Some((below, 9)));
        assert_eq!(
            band_of(&[causal.clone(), window], 5, 9),
            Some((VisibleBand { from: Some(-3), ..below }, 9))
        );
        // For one row, a bound is a number of keys.
        assert_eq!(band_of(&[bound(BoundSide::Below, true, 4)], 1, 9), Some((everything, 4)));
        assert_eq!(band_of(&[bound(BoundSide::Below, false, 4), causal], 5, 9), Some((below, 4)));
        assert_eq!(
            band_of(&[bound(BoundSide::Below, true, 9), bound(BoundSide::From, true, -4)], 5, 9),
            Some((everything, 9))
        );
        // Other forms: keys that begin later, chunks, data, no keys at all.
        assert_eq!(band_of(&[bound(BoundSide::From, false, 1)], 5, 9), None);
        assert_eq!(
            band_of(&[AttentionBound { chunk: Some(4), ..bound(BoundSide::Below, true, 0) }], 5, 9),
            None
        );
        assert_eq!(
            band_of(&[AttentionBound { operand: true, ..bound(BoundSide::Below, false, 0) }], 5, 9),
            None
        );
        assert_eq!(band_of(&[bound(BoundSide::Below, false, 0)], 5, 9), None);
    }
}
