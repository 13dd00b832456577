//! Skinny GEMMs: matrix products of few rows, with the element-wise nodes that exclusively read their
//! results as the epilogue.
//!
//! Such products take the time of reading the right matrix once. For more rows, the library computes a product, the
//! addition of one row to its unrounded sums, and their rounding. A product whose columns are read in several
//! equal parts, such as the halves of one weight, counts as several products.

use symmc_ir::machine::{ProductLimits, ProductShape};
use symmc_ir::{BinaryOp, DType, Dim, NodeId, Op, ValueId};

use crate::facts::DispatchFacts;
use crate::walk::{Unit, UnitIndex, UnitKind};

/// The fewest columns of a product.
const MIN_COLUMNS: u64 = 32;
/// The smallest K of a product.
const MIN_K: u64 = 64;
/// The most users of a left matrix that are searched for further products of it.
const MAX_USERS: usize = 32;

/// Lets products join the units that read them.
pub fn join_products(facts: &DispatchFacts<'_>, units: &mut Vec<Unit>) {
    let (Some(limits), Some(multiprocessors)) = (facts.capabilities().product, facts.profile.multiprocessors)
    else {
        return;
    };
    let mut unit_of = UnitIndex::new(facts, units);

    // The candidate products of each unit, in program order.
    let mut wanted: Vec<Vec<SkinnyProduct>> = units.iter().map(|_| Vec::new()).collect();
    for (id, _) in facts.graph.nodes.iter().filter(|(_, n)| n.op.is_matmul()) {
        let Some(product) = SkinnyProduct::new(facts, id) else { continue };
        let Some(&reader) = product.readers.first() else { continue };
        let Some(unit) = unit_of.of(reader) else { continue };
        let map = epilogue_nodes(&units[unit]);
        if map.iter().all(|&n| facts.node(n).op.fits_map() && !reports(facts, n))
            && product.readers.iter().all(|n| map.contains(n))
            && product.fits_epilogue(facts, map)
        {
            wanted[unit].push(product);
        }
    }
    for (unit, wanted) in wanted.into_iter().enumerate() {
        for product in select_products(wanted, &limits, multiprocessors) {
            if let Some(from) = unit_of.of(product.node) {
                units[from].nodes.retain(|&n| n != product.node);
            }
            // A norm after products is a step of its own.
            if units[unit].kind == Some(UnitKind::Norm) {
                let norm = units[unit].nodes.pop();
                units.push(Unit { kind: None, nodes: norm.into_iter().collect() });
            }
            units[unit].kind = Some(UnitKind::Product);
            units[unit].nodes.extend(product.views.into_iter().chain([product.node]));
            units[unit].nodes.sort_unstable();
        }
    }
    unit_of = UnitIndex::new(facts, units);
    for (id, _) in facts.graph.nodes.iter().filter(|(_, n)| n.op == Op::MATMUL_UNROUNDED) {
        let is_alone = unit_of.of(id).is_some_and(|unit| units[unit].nodes[..] == [id]);
        let Some(biased) = BiasedProduct::new(facts, id).filter(|_| is_alone) else { continue };
        if let Some(nodes) = biased.separable_nodes(facts, units, &unit_of) {
            for unit in nodes.iter().filter_map(|&n| unit_of.of(n)) {
                units[unit].nodes.retain(|n| !nodes.contains(n));
            }
            unit_of.assign(&nodes, units.len());
            units.push(Unit { kind: Some(UnitKind::Product), nodes });
        }
    }
}

/// A product whose sums are only added to one row and rounded. The library computes all of it, for any number of
/// rows.
struct BiasedProduct {
    product: NodeId,
    /// The cast of the row to the dtype of the sums.
    widened: NodeId,
    sum: NodeId,
    rounded: NodeId,
    bias: ValueId,
}

impl BiasedProduct {
    fn new(facts: &DispatchFacts<'_>, product: NodeId) -> Option<BiasedProduct> {
        let graph = facts.graph;
        let &[left, right] = &facts.node(product).inputs[..] else { return None };
        let sums = *facts.node(product).outputs.first()?;
        let sum = facts.only_reader(sums)?;
        let added = match (&facts.node(sum).op, &facts.node(sum).inputs[..]) {
            (Op::Binary(BinaryOp::Add), &[x, y]) if x != y => {
                if x == sums {
                    y
                } else {
                    x
                }
            }
            _ => return None,
        };
        let total = *facts.node(sum).outputs.first()?;
        let rounded = facts.only_reader(total)?;
        let widened = graph.defining_node(added)?;
        let bias = *facts.node(widened).inputs.first()?;
        let result = *facts.node(rounded).outputs.first()?;
        let dtype = graph.ty(left).dtype;
        let layout = facts.layout(right)?;
        let strides = layout.strides.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()?;
        let shape = &graph.ty(right).shape;
        let extents = shape.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()?;
        let is_matrix = match (&strides[..], &extents[..]) {
            (&[across, 1], &[_, columns]) => across >= columns,
            (&[1, across], &[terms, _]) => across >= terms,
            _ => false,
        };
        let (columns, leading) = graph.ty(bias).shape.split_last()?;
        let is_row = Some(columns) == shape.last() && leading.iter().all(|n| n.as_const() == Some(1));
        let fits = is_matrix
            && is_row
            && facts.node(rounded).op == Op::Cast
            && facts.node(widened).op == Op::Cast
            && facts.only_reader(added) == Some(sum)
            && graph.ty(bias).dtype == dtype
            && graph.ty(result).dtype == dtype
            && graph.ty(total).shape == graph.ty(sums).shape
            && facts.is_run(left)
            && facts.is_run(bias);
        fits.then_some(BiasedProduct { product, widened, sum, rounded, bias })
    }

    /// Its nodes in program order, if they can leave their units.
    fn separable_nodes(
        &self,
        facts: &DispatchFacts<'_>,
        units: &[Unit],
        unit_of: &UnitIndex,
    ) -> Option<Vec<NodeId>> {
        let readers = unit_of.of(self.sum)?;
        let of_bias = facts.defining_node(self.bias).and_then(|n| unit_of.of(n));
        if unit_of.of(self.rounded) != Some(readers) || of_bias == Some(readers) {
            return None;
        }
        let leaving = [self.widened, self.sum, self.rounded];
        for &n in &leaving {
            let unit = &units[unit_of.of(n)?];
            // The operand of a norm stays in its unit, or the norm becomes a step of its own.
            let keeps_norm = || {
                let mut staying = unit.nodes.iter().filter(|n| !leaving.contains(n)).rev();
                let norm = staying.next().and_then(|&norm| facts.node(norm).inputs.first());
                let source = norm.and_then(|&v| facts.defining_node(v));
                staying.next().is_none() || source.is_some_and(|source| !leaving.contains(&source))
            };
            let may_leave = match unit.kind {
                None | Some(UnitKind::Map) => true,
                Some(UnitKind::Norm) => keeps_norm(),
                _ => false,
            };
            if !may_leave {
                return None;
            }
        }
        let mut nodes = vec![self.product, self.widened, self.sum, self.rounded];
        nodes.sort_unstable();
        Some(nodes)
    }
}

/// The nodes of a unit that may be the epilogue of products.
fn epilogue_nodes(unit: &Unit) -> &[NodeId] {
    match (unit.kind, &unit.nodes[..]) {
        (Some(UnitKind::Norm), [map @ .., _]) => map,
        (_, nodes) => nodes,
    }
}

/// The rows of products that may be part of kernels, and the most rows for which they are. With more rows,
/// neither the product nor its neighbours in the kernel qualify.
pub fn product_row_limits(facts: &DispatchFacts<'_>) -> Vec<(Dim, u64)> {
    let (Some(limits), Some(multiprocessors)) = (facts.capabilities().product, facts.profile.multiprocessors)
    else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for (id, _) in facts.graph.nodes.iter().filter(|(_, n)| n.op.is_matmul()) {
        let Some(product) = SkinnyProduct::new(facts, id) else { continue };
        if !product.readers.iter().all(|&n| facts.node(n).op.fits_map()) {
            continue;
        }
        if let Some(max_rows) = limits.stored_rows.filter(|_| has_stored_factor(facts, id)) {
            out.push((product.rows_of(facts), u64::from(max_rows)));
        }
        let SkinnyProduct { columns, k, .. } = product;
        let readers = facts.users[product.left].iter().take(MAX_USERS);
        let same_shape = readers
            .filter(|&&n| n != id && facts.node(n).op.is_matmul())
            .filter_map(|&n| SkinnyProduct::new(facts, n))
            .filter(|other| product.has_same_shape(other));
        let total_parts = same_shape.map(|other| other.parts).fold(product.parts, u64::saturating_add);
        let counts = product.parts..=total_parts.min(u64::from(limits.products));
        let shapes = counts.map(|count| ProductShape { count, rows: 0, columns, k });
        let max_rows = shapes.map(|shape| limits.max_profitable_rows(&shape, multiprocessors)).max();
        if let Some(max_rows) = max_rows.filter(|&max_rows| max_rows > 0) {
            out.push((product.rows_of(facts), max_rows));
        }
    }
    out
}

/// Whether the right matrix of a product is the cast of numbers that it can read as they are stored.
fn has_stored_factor(facts: &DispatchFacts<'_>, product: NodeId) -> bool {
    let &[left, right] = &facts.node(product).inputs[..] else { return false };
    let cast = facts.defining_node(right).map(|n| facts.node(n)).filter(|node| node.op == Op::Cast);
    let source = cast.and_then(|node| node.inputs.first());
    source.is_some_and(|&x| facts.graph.ty(x).dtype.is_stored_factor(facts.graph.ty(left).dtype))
}

/// Whether a node may reject its data at run time. Kernels of products cannot report that.
pub fn reports(facts: &DispatchFacts<'_>, node: NodeId) -> bool {
    let node = facts.node(node);
    node.outputs.iter().any(|&v| node.op.divides_integers(facts.graph.ty(v).dtype))
}

/// Selects products of the first one's shape, as many as one kernel computes no slower than the library.
fn select_products(
    wanted: Vec<SkinnyProduct>,
    limits: &ProductLimits,
    multiprocessors: u32,
) -> Vec<SkinnyProduct> {
    let mut selected: Vec<SkinnyProduct> = Vec::new();
    for product in wanted {
        let count = selected.iter().chain([&product]).map(|p| p.parts).sum::<u64>();
        if count <= u64::from(limits.products) && selected.first().is_none_or(|t| t.has_same_shape(&product))
        {
            selected.push(product);
        }
    }
    // Two products may pay even if one does not.
    while !are_worth(&selected, limits, multiprocessors) && selected.pop().is_some() {}
    selected
}

fn are_worth(products: &[SkinnyProduct], limits: &ProductLimits, multiprocessors: u32) -> bool {
    let Some(&SkinnyProduct { rows, columns, k, .. }) = products.first() else { return true };
    let count = products.iter().map(|p| p.parts).sum();
    let rows = products.iter().map(|p| p.rows).max().unwrap_or(rows);
    // Otherwise the right matrix would be cast first.
    if products.iter().any(SkinnyProduct::reads_stored) {
        return limits.stored_rows.is_some_and(|max_rows| rows <= u64::from(max_rows));
    }
    limits.is_profitable(&ProductShape { count, rows, columns, k }, multiprocessors)
}

/// A product that kernels for few rows can compute.
pub struct SkinnyProduct {
    node: NodeId,
    left: ValueId,
    dtype: DType,
    /// The dtype of the right matrix, which is stored in 8 bits if it differs.
    stored: DType,
    /// The stride between columns of the right matrix.
    across: i64,
    /// The most rows. `columns` is the number of columns that are read together, and `k` is K.
    pub rows: u64,
    pub columns: u64,
    k: u64,
    /// The number of products that it counts as.
    parts: u64,
    shape: Vec<Dim>,
    /// The slices of its columns.
    views: Vec<NodeId>,
    /// The nodes that read it; a node may occur several times.
    readers: Vec<NodeId>,
}

impl SkinnyProduct {
    /// A product that only one kernel may read, either whole or in parts of its columns.
    fn new(facts: &DispatchFacts<'_>, node: NodeId) -> Option<SkinnyProduct> {
        let mut out = SkinnyProduct::full_product(facts, node)?;
        let &result = facts.node(node).outputs.first()?;
        if facts.returned[result] {
            return None;
        }
        let users = &facts.users[result];
        if users.iter().any(|&n| facts.is_view(n)) {
            out.split_columns(facts, users)?;
        } else {
            out.readers.clone_from(users);
        }
        (out.columns >= MIN_COLUMNS).then_some(out)
    }

    /// All columns of a product, for any readers.
    pub fn full_product(facts: &DispatchFacts<'_>, node: NodeId) -> Option<SkinnyProduct> {
        let graph = facts.graph;
        let &[left, right] = &facts.node(node).inputs[..] else { return None };
        let result = *facts.node(node).outputs.first()?;
        let ty = graph.ty(result);
        let leading = &ty.shape[..ty.rank() - 1];
        let columns = ty.shape.last()?.as_const()?;

        let k = graph.ty(left).shape.last()?.as_const()?;
        // Rows of the left matrix are contiguous, and the right matrix is contiguous along K.
        let layout = facts.layout(right)?;
        let [along, across] = [layout.strides.first()?.as_const()?, layout.strides.get(1)?.as_const()?];
        let dtype = graph.ty(left).dtype;
        let fits = matches!(dtype, DType::BF16 | DType::F16)
            && graph.ty(right).rank() == 2
            && facts.is_run(left)
            && along == 1
            && across >= k
            && facts.is_byte_aligned(&Dim::from(across), right)
            && facts.is_byte_aligned(&layout.offset, right)
            && facts.is_byte_aligned(&Dim::from(k), left);
        let out = SkinnyProduct {
            node,
            left,
            dtype,
            stored: graph.ty(right).dtype,
            across,
            rows: leading.iter().map(|d| facts.bounds(d)[1]).fold(1, u64::saturating_mul),
            columns: columns as u64,
            k: k as u64,
            parts: 1,
            shape: ty.shape.clone(),
            views: Vec::new(),
            readers: Vec::new(),
        };
        (fits && out.columns >= MIN_COLUMNS && out.k >= MIN_K).then_some(out)
    }

    pub fn rows_of(&self, facts: &DispatchFacts<'_>) -> Dim {
        let left_type = facts.graph.ty(self.left);
        left_type.shape.iter().rev().skip(1).fold(Dim::from(1), |rows, d| rows * d.clone())
    }

    /// Splits the product by the slices that read it, which must have the same number of columns.
    fn split_columns(&mut self, facts: &DispatchFacts<'_>, users: &[NodeId]) -> Option<()> {
        let axis = self.shape.len() - 1;
        let mut starts: Vec<i64> = Vec::new();
        for &n in users {
            let node = facts.node(n);
            let &result = node.outputs.first()?;
            let Op::Slice { axis: along, start, step: 1 } = &node.op else { return None };
            let shape = &facts.graph.ty(result).shape;
            let first = self.views.is_empty();
            let viewed = facts.users[result].iter().any(|&user| facts.is_view(user));
            if *along != axis || facts.returned[result] || viewed || (!first && *shape != self.shape) {
                return None;
            }
            self.shape.clone_from(shape);
            let start = start.as_const()?;
            if !starts.contains(&start) {
                starts.push(start);
            }
            self.views.push(n);
            self.readers.extend(&facts.users[result]);
        }
        self.columns = u64::try_from(self.shape.last()?.as_const()?).ok()?;
        self.parts = starts.len() as u64;
        Some(())
    }

    /// Whether nodes have the shape of the part that is read.
    fn fits_epilogue(&self, facts: &DispatchFacts<'_>, map: &[NodeId]) -> bool {
        map.iter().all(|&n| facts.graph.ty(facts.node(n).outputs[0]).shape == self.shape)
    }

    fn has_same_shape(&self, other: &SkinnyProduct) -> bool {
        self.can_share_kernel(other) && self.columns == other.columns
    }

    /// Whether the right matrix has numbers of 8 bits.
    pub fn reads_stored(&self) -> bool {
        self.stored != self.dtype
    }

    /// Whether one kernel can compute both, each with its own columns.
    pub fn can_share_kernel(&self, other: &SkinnyProduct) -> bool {
        (self.left, self.dtype, self.stored, self.across, self.k)
            == (other.left, other.dtype, other.stored, other.across, other.k)
    }
}
