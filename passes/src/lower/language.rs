//! The language of the e-graph: collectives, the ops that connect them, and leaves for everything else.
//!
//! A collective is `(all_reduce op group x)`: attributes first, then operands. `(all_reduce.one_shot op
//! group x)` is the same collective run by a variant. Attributes are nodes, so that rules can name them.
//!
//! The analysis of a class is the type of its value and where it may be placed. Invariant: all nodes of a
//! class have the same types, because rules only equate equal values.

use std::fmt;
use std::sync::Arc;

use egg::{Analysis, DidMerge, EGraph, FromOp, FromOpError, Id, Language};
use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, CollectiveName, CollectiveReduceOp,
    CollectiveVariant, DType, Dim, GroupId, Op, TensorType, infer,
};

use super::context::{CollectiveSizes, LowerContext};

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Lang {
    /// A value from outside of the region.
    Leaf(usize),
    Attr(LangAttribute),
    /// A collective, possibly run by a variant: `(all_reduce op group x)`, `(all_gather group x)`,
    /// `(all_to_all device group x sizes)`.
    Collective(CollectiveName, Option<CollectiveVariant>, Vec<Id>),
    Reshape([Id; 2]),
    Cast([Id; 2]),
    Add([Id; 2]),
    /// `(sum_of x y ..)`: the sum of terms in order; some of them may broadcast.
    Sum(Vec<Id>),
    /// `(sum_pieces op group dtype x)`: the sum or the average of the equal pieces of the leading axis, one
    /// per rank of the group, in order. Each piece is cast to the dtype of the result. Floats accumulate as
    /// in collectives of that dtype.
    SumPieces([Id; 4]),
    /// A result of a collective that has several.
    Result(usize, [Id; 1]),
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LangAttribute {
    Reduce(CollectiveReduceOp),
    Group(GroupId),
    /// Even splits of an all-to-all.
    Even,
    /// Splits of an all-to-all that are known only on the device.
    Device,
    Root(u32),
    Pairs(Vec<(u32, u32)>),
    Shape(Vec<Dim>),
    DType(DType),
}

/// The spelling of [`LangAttribute::Even`] in rules.
const EVEN_SPELLING: &str = "even";

/// The number of attributes of a collective, which come before its operands.
pub fn attribute_count(name: CollectiveName) -> usize {
    match name {
        CollectiveName::AllGather
        | CollectiveName::DispatchRows
        | CollectiveName::CombineRows
        | CollectiveName::ReduceRows => 1,
        CollectiveName::AllReduce
        | CollectiveName::ReduceScatter
        | CollectiveName::AllToAll
        | CollectiveName::Broadcast
        | CollectiveName::PermuteRanks => 2,
    }
}

pub fn attributes(kind: &CollectiveKind, group: GroupId) -> Vec<LangAttribute> {
    let specific = match kind {
        CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => Some(LangAttribute::Reduce(*op)),
        CollectiveKind::AllGather
        | CollectiveKind::DispatchRows
        | CollectiveKind::CombineRows
        | CollectiveKind::ReduceRows => None,
        CollectiveKind::AllToAll(AllToAllSplits::Even) => Some(LangAttribute::Even),
        CollectiveKind::AllToAll(AllToAllSplits::Device) => Some(LangAttribute::Device),
        CollectiveKind::Broadcast { root } => Some(LangAttribute::Root(*root)),
        CollectiveKind::Permute { pairs } => Some(LangAttribute::Pairs(pairs.clone())),
    };
    specific.into_iter().chain([LangAttribute::Group(group)]).collect()
}

pub fn build_collective(
    name: CollectiveName,
    variant: Option<CollectiveVariant>,
    attributes: &[&LangAttribute],
) -> Option<Collective> {
    let (group, own) = attributes.split_last()?;
    let LangAttribute::Group(group) = group else { return None };
    let kind = match (name, own) {
        (CollectiveName::AllReduce, [LangAttribute::Reduce(op)]) => CollectiveKind::AllReduce(*op),
        (CollectiveName::ReduceScatter, [LangAttribute::Reduce(op)]) => CollectiveKind::ReduceScatter(*op),
        (CollectiveName::AllGather, []) => CollectiveKind::AllGather,
        (CollectiveName::DispatchRows, []) => CollectiveKind::DispatchRows,
        (CollectiveName::CombineRows, []) => CollectiveKind::CombineRows,
        (CollectiveName::ReduceRows, []) => CollectiveKind::ReduceRows,
        (CollectiveName::AllToAll, [LangAttribute::Even]) => CollectiveKind::AllToAll(AllToAllSplits::Even),
        (CollectiveName::AllToAll, [LangAttribute::Device]) => {
            CollectiveKind::AllToAll(AllToAllSplits::Device)
        }
        (CollectiveName::Broadcast, [LangAttribute::Root(root)]) => CollectiveKind::Broadcast { root: *root },
        (CollectiveName::PermuteRanks, [LangAttribute::Pairs(pairs)]) => {
            CollectiveKind::Permute { pairs: pairs.clone() }
        }
        (
            CollectiveName::AllReduce
            | CollectiveName::ReduceScatter
            | CollectiveName::AllGather
            | CollectiveName::DispatchRows
            | CollectiveName::CombineRows
            | CollectiveName::ReduceRows
            | CollectiveName::AllToAll
            | CollectiveName::Broadcast
            | CollectiveName::PermuteRanks,
            _,
        ) => return None,
    };
    Some(Collective { kind, group: *group, variant })
}

impl Language for Lang {
    type Discriminant = (std::mem::Discriminant<Lang>, Option<CollectiveName>, Option<CollectiveVariant>);

    fn discriminant(&self) -> Self::Discriminant {
        let (name, variant) = match self {
            Lang::Collective(name, variant, _) => (Some(*name), *variant),
            _ => (None, None),
        };
        (std::mem::discriminant(self), name, variant)
    }

    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Lang::Leaf(a), Lang::Leaf(b)) => a == b,
            (Lang::Attr(a), Lang::Attr(b)) => a == b,
            (Lang::Collective(a, v, x), Lang::Collective(b, w, y)) => (a, v, x.len()) == (b, w, y.len()),
            (Lang::Result(a, _), Lang::Result(b, _)) => a == b,
            (Lang::Sum(x), Lang::Sum(y)) => x.len() == y.len(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    fn children(&self) -> &[Id] {
        match self {
            Lang::Leaf(_) | Lang::Attr(_) => &[],
            Lang::Collective(_, _, x) | Lang::Sum(x) => x,
            Lang::Reshape(x) | Lang::Cast(x) | Lang::Add(x) => x,
            Lang::SumPieces(x) => x,
            Lang::Result(_, x) => x,
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            Lang::Leaf(_) | Lang::Attr(_) => &mut [],
            Lang::Collective(_, _, x) | Lang::Sum(x) => x,
            Lang::Reshape(x) | Lang::Cast(x) | Lang::Add(x) => x,
            Lang::SumPieces(x) => x,
            Lang::Result(_, x) => x,
        }
    }
}

/// Writes the operator without children, in the spelling of rules.
impl fmt::Display for Lang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lang::Leaf(i) => write!(f, "leaf{i}"),
            Lang::Attr(LangAttribute::Reduce(op)) => write!(f, "{op}"),
            Lang::Attr(LangAttribute::Even) => f.write_str(EVEN_SPELLING),
            Lang::Attr(a) => write!(f, "{a:?}"),
            Lang::Collective(name, None, _) => write!(f, "{name}"),
            Lang::Collective(name, Some(v), _) => write!(f, "{name}.{v}"),
            Lang::Reshape(_) => f.write_str("reshape"),
            Lang::Cast(_) => f.write_str("cast"),
            Lang::Add(_) => f.write_str("add"),
            Lang::Sum(_) => f.write_str("sum_of"),
            Lang::SumPieces(_) => f.write_str("sum_pieces"),
            Lang::Result(i, _) => write!(f, "result{i}"),
        }
    }
}

/// Parses everything that rules can write: all nodes except leaves and most attributes, which rules bind.
impl FromOp for Lang {
    type Error = FromOpError;

    fn from_op(op: &str, children: Vec<Id>) -> Result<Self, Self::Error> {
        let pair = <[Id; 2]>::try_from(&children[..]);
        let (name, variant) = op.split_once('.').map_or((op, None), |(n, v)| (n, Some(v)));
        let variant = match variant {
            Some(v) => CollectiveVariant::from_name(v).map(Some),
            None => Some(None),
        };
        if let Some(variant) = variant
            && let Some(name) = CollectiveName::from_name(name)
        {
            return Ok(Lang::Collective(name, variant, children));
        }
        if let ("sum_pieces", &[op, group, dtype, x]) = (op, &children[..]) {
            return Ok(Lang::SumPieces([op, group, dtype, x]));
        }
        match (op, pair) {
            (EVEN_SPELLING, _) if children.is_empty() => Ok(Lang::Attr(LangAttribute::Even)),
            ("reshape", Ok(x)) => Ok(Lang::Reshape(x)),
            ("cast", Ok(x)) => Ok(Lang::Cast(x)),
            ("add", Ok(x)) => Ok(Lang::Add(x)),
            _ => match CollectiveReduceOp::from_name(op).filter(|_| children.is_empty()) {
                Some(op) => Ok(Lang::Attr(LangAttribute::Reduce(op))),
                None => Err(FromOpError::new(op, children)),
            },
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClassFact {
    Attr(LangAttribute),
    Value(ClassValue),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClassValue {
    /// The types: one, or those of all results of a collective.
    pub types: Vec<TensorType>,
    /// Whether its elements are contiguous.
    pub contiguous: bool,
    /// Whether it lies in the symmetric arena or may be placed there.
    pub placeable: bool,
}

impl ClassValue {
    /// The value of a node that stores its result.
    fn stored(types: Vec<TensorType>) -> ClassValue {
        ClassValue { types, contiguous: true, placeable: true }
    }
    /// The type of a value that is not a tuple.
    pub fn ty(&self) -> Option<&TensorType> {
        self.types.first()
    }
}

/// The analysis: the context and the leaves of the region.
pub struct RegionAnalysis {
    pub context: Arc<LowerContext>,
    pub leaves: Vec<ClassValue>,
}

pub type LangEGraph = EGraph<Lang, RegionAnalysis>;

pub fn class_attribute(graph: &LangEGraph, id: Id) -> Option<&LangAttribute> {
    match &graph[id].data {
        ClassFact::Attr(a) => Some(a),
        ClassFact::Value(_) => None,
    }
}

pub fn class_value(graph: &LangEGraph, id: Id) -> Option<&ClassValue> {
    match &graph[id].data {
        ClassFact::Attr(_) => None,
        ClassFact::Value(v) => Some(v),
    }
}

pub fn as_collective<'a>(graph: &LangEGraph, node: &'a Lang) -> Option<(Collective, &'a [Id])> {
    let Lang::Collective(name, variant, children) = node else { return None };
    let (attributes, operands) = children.split_at_checked(attribute_count(*name))?;
    let attributes = attributes.iter().map(|&a| class_attribute(graph, a)).collect::<Option<Vec<_>>>()?;
    Some((build_collective(*name, *variant, &attributes)?, operands))
}

/// The sizes of a collective whose results are the class `results`.
pub fn collective_sizes(
    graph: &LangEGraph,
    collective: &Collective,
    operands: &[Id],
    results: Id,
) -> Option<CollectiveSizes> {
    let operands = operands.iter().map(|&x| class_value(graph, x)?.ty()).collect::<Option<Vec<_>>>()?;
    let results: Vec<&TensorType> = class_value(graph, results)?.types.iter().collect();
    Some(graph.analysis.context.collective_sizes(&collective.kind, &operands, &results))
}

/// The value of a node; `None` if its children do not fit, which rules exclude.
fn compute_value(graph: &LangEGraph, node: &Lang) -> Option<ClassValue> {
    match node {
        Lang::Leaf(i) => graph.analysis.leaves.get(*i).cloned(),
        Lang::Attr(_) => None,
        Lang::Collective(..) => {
            let (collective, operands) = as_collective(graph, node)?;
            let n = graph.analysis.context.ranks(collective.group);
            infer_value(graph, &Op::Collective(collective), operands, Some(n))
        }
        Lang::Reshape([shape, x]) => {
            let (Some(LangAttribute::Shape(shape)), x) =
                (class_attribute(graph, *shape), class_value(graph, *x)?)
            else {
                return None;
            };
            let types = vec![TensorType::new(x.ty()?.dtype, shape.clone())];
            // A reshape of a contiguous value is a view; any other is stored again.
            Some(ClassValue { types, contiguous: true, placeable: x.placeable || !x.contiguous })
        }
        Lang::Cast([dtype, x]) => {
            let (Some(LangAttribute::DType(dtype)), x) =
                (class_attribute(graph, *dtype), class_value(graph, *x)?)
            else {
                return None;
            };
            Some(ClassValue::stored(vec![TensorType::new(*dtype, x.ty()?.shape.clone())]))
        }
        Lang::Add(operands) => infer_value(graph, &Op::Binary(BinaryOp::Add), operands, None),
        Lang::Sum(terms) => {
            let (&first, rest) = terms.split_first()?;
            let mut sum = class_value(graph, first)?.ty()?.clone();
            for &term in rest {
                let operands = [&sum, class_value(graph, term)?.ty()?];
                sum = infer::infer_types(&Op::Binary(BinaryOp::Add), &operands, None)
                    .ok()??
                    .into_iter()
                    .next()?;
            }
            Some(ClassValue::stored(vec![sum]))
        }
        Lang::SumPieces([_, group, dtype, x]) => {
            let Some(LangAttribute::Group(group)) = class_attribute(graph, *group) else { return None };
            let Some(LangAttribute::DType(dtype)) = class_attribute(graph, *dtype) else { return None };
            let mut ty = TensorType::new(*dtype, class_value(graph, *x)?.ty()?.shape.clone());
            let pieces = Dim::from(i64::from(graph.analysis.context.ranks(*group)));
            let rows = ty.shape.first_mut()?;
            *rows = rows.exact_div(&pieces)?;
            Some(ClassValue::stored(vec![ty]))
        }
        Lang::Result(i, [x]) => {
            let x = class_value(graph, *x)?;
            Some(ClassValue { types: vec![x.types.get(*i)?.clone()], ..x.clone() })
        }
    }
}

/// The value that an op gives for the values of some classes.
fn infer_value(graph: &LangEGraph, op: &Op, operands: &[Id], ranks: Option<u32>) -> Option<ClassValue> {
    let types = operands.iter().map(|&x| class_value(graph, x)?.ty()).collect::<Option<Vec<_>>>()?;
    infer::infer_types(op, &types, ranks).ok()?.map(ClassValue::stored)
}

impl Analysis<Lang> for RegionAnalysis {
    type Data = ClassFact;

    fn make(graph: &mut LangEGraph, node: &Lang, _: Id) -> ClassFact {
        if let Lang::Attr(a) = node {
            return ClassFact::Attr(a.clone());
        }
        let unknown = ClassValue { types: Vec::new(), contiguous: false, placeable: false };
        ClassFact::Value(compute_value(graph, node).unwrap_or(unknown))
    }

    /// A class is only as well placed as its worst node, because the extracted node is not known yet.
    fn merge(&mut self, a: &mut ClassFact, b: ClassFact) -> DidMerge {
        let (ClassFact::Value(x), ClassFact::Value(y)) = (&mut *a, &b) else { return DidMerge(false, false) };
        let merged = (x.contiguous && y.contiguous, x.placeable && y.placeable);
        let changed = DidMerge(merged != (x.contiguous, x.placeable), merged != (y.contiguous, y.placeable));
        (x.contiguous, x.placeable) = merged;
        changed
    }
}
