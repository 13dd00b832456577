//! Reads the right side of a node: the op, its operands and its attributes.

use std::borrow::Cow;

use super::cursor::{Cursor, Read};
use super::error::{Failure, quote};
use super::forms::forms;
use super::lexer::Token;
use super::parse::Parser;
use crate::attention::{self, Bound, Side};
use crate::collective::{Collective, CollectiveKind, ReduceOp, Splits, Variant};
use crate::graph::ValueId;
use crate::op::{ArgOp, BinaryOp, Op, Reduction, UnaryOp};
use crate::types::Scalar;

/// The names of all ops in the text form.
pub fn op_names() -> impl Iterator<Item = &'static str> {
    forms().map(|form| form.name)
}

/// What stands between the name of an op and its attributes.
struct Head<'a> {
    name: &'a str,
    at: usize,
    callee: Option<(Cow<'a, str>, usize)>,
    values: Vec<ValueId>,
    /// A scalar operand and how many values stand before it.
    scalar: Option<(Scalar, usize)>,
}

impl<'a> Parser<'a> {
    /// The op and its operands.
    pub(super) fn op(&mut self) -> Read<(Op, Vec<ValueId>)> {
        let head = self.head()?;
        let op = match head.scalar {
            Some((scalar, before)) => binary_scalar(&head, scalar, before)?,
            None => self.op_of(&head)?,
        };
        Ok((op, head.values))
    }

    fn head(&mut self) -> Read<Head<'a>> {
        let at = self.cursor.at;
        let name = self.cursor.word("an op")?;
        let mut head = Head { name, at, callee: None, values: Vec::new(), scalar: None };
        if matches!(name, "opaque" | "custom") {
            let at = self.cursor.at;
            head.callee = Some((self.cursor.string("the name of the op as a string")?, at));
        }
        while self.cursor.is_value() || self.cursor.is_scalar() {
            if self.cursor.is_value() {
                head.values.push(self.value()?);
            } else {
                let (scalar, at) = self.cursor.scalar()?;
                if head.scalar.replace((scalar, head.values.len())).is_some() {
                    return Err(Failure::new(at, "a node takes one scalar operand at most"));
                }
            }
            if !self.cursor.eat(",")? {
                break;
            }
            if !self.cursor.is_value() && !self.cursor.is_scalar() {
                return Err(self.cursor.unexpected("an operand"));
            }
        }
        Ok(head)
    }

    fn op_of(&mut self, head: &Head<'a>) -> Read<Op> {
        let name = head.name;
        if let Some(op) = UnaryOp::from_name(name) {
            return Ok(Op::Unary(op));
        }
        if let Some(op) = BinaryOp::from_name(name) {
            return Ok(Op::Binary(op));
        }
        let mut a = Attributes { op: name, cursor: &mut self.cursor };
        Ok(match name {
            "full" => Op::Full(a.read("value", |c| c.scalar().map(|s| s.0))?),
            "iota" => {
                Op::Iota { start: a.read("start", Cursor::integer)?, step: a.read("step", Cursor::integer)? }
            }
            "select" => Op::Select,
            "cast" => Op::Cast,
            "matmul" => Op::MatMul,
            "grouped_matmul" => Op::GroupedMatMul,
            "reduce" => Op::Reduce {
                op: a.choice("op", Reduction::from_name, Reduction::ALL)?,
                axes: a.naturals("axes")?,
                keep: a.flag("keep")?,
            },
            "argmax" => Op::ArgReduce { op: ArgOp::Max, axis: a.axis()?, keep: a.flag("keep")? },
            "argmin" => Op::ArgReduce { op: ArgOp::Min, axis: a.axis()?, keep: a.flag("keep")? },
            "cumsum" => Op::CumSum { axis: a.axis()? },
            "softmax" => Op::Softmax { axis: a.axis()?, log: a.flag("log")? },
            "rms_norm" => Op::RmsNorm {
                axes: a.read("axes", Cursor::natural)?,
                eps: a.read("eps", Cursor::float)?,
                round_first: a.flag("round_first")?,
            },
            "layer_norm" => {
                Op::LayerNorm { axes: a.read("axes", Cursor::natural)?, eps: a.read("eps", Cursor::float)? }
            }
            "attention" => a.attention()?,
            "rotary_embedding" => Op::RotaryEmbedding {
                width: a.read("width", Cursor::natural)?,
                interleaved: a.flag("interleaved")?,
            },
            "take" => Op::Take { axis: a.axis()? },
            "index" => Op::Index { axis: a.axis()? },
            "gather_elements" => Op::GatherElements { axis: a.axis()? },
            "scatter_elements" => Op::ScatterElements { axis: a.axis()?, combine: a.combine()? },
            "index_add" => Op::IndexAdd { axis: a.axis()? },
            "index_put" => Op::IndexPut { axis: a.axis()?, accumulate: a.flag("accumulate")? },
            "topk" => Op::TopK { axis: a.axis()?, largest: a.flag("largest")? },
            "sort" => Op::Sort { axis: a.axis()?, descending: a.flag("descending")? },
            "concat" => Op::Concat { axis: a.axis()? },
            "pad" => Op::Pad {
                low: a.read("low", |c| c.list(Cursor::dim))?,
                value: a.read("value", |c| c.scalar().map(|s| s.0))?,
            },
            "reshape" => Op::Reshape,
            "permute" => Op::Permute { perm: a.naturals("perm")? },
            "slice" => Op::Slice {
                axis: a.axis()?,
                start: a.read("start", Cursor::dim)?,
                step: a.read("step", Cursor::integer)?,
            },
            "expand" => Op::Expand,
            "copy" => Op::Copy,
            "all_reduce" => {
                let kind = CollectiveKind::AllReduce(a.choice("op", ReduceOp::from_name, ReduceOp::ALL)?);
                self.collective(name, kind)?
            }
            "all_gather" => self.collective(name, CollectiveKind::AllGather)?,
            "reduce_scatter" => {
                let kind =
                    CollectiveKind::ReduceScatter(a.choice("op", ReduceOp::from_name, ReduceOp::ALL)?);
                self.collective(name, kind)?
            }
            "all_to_all" => {
                let kind = CollectiveKind::AllToAll(a.splits()?);
                self.collective(name, kind)?
            }
            "broadcast" => {
                let kind = CollectiveKind::Broadcast { root: a.read("root", Cursor::natural)? };
                self.collective(name, kind)?
            }
            "permute_ranks" => {
                let kind = CollectiveKind::Permute { pairs: a.read("pairs", |c| c.list(pair))? };
                self.collective(name, kind)?
            }
            "opaque" | "custom" => self.callee(head)?,
            _ => return Err(unknown(name, head.at)),
        })
    }

    fn collective(&mut self, op: &str, kind: CollectiveKind) -> Read<Op> {
        Attributes { op, cursor: &mut self.cursor }.key("group")?;
        let group = self.group()?;
        let mut variant = None;
        if self.cursor.token == Token::Ident("via") {
            let mut a = Attributes { op, cursor: &mut self.cursor };
            variant = Some(a.choice("via", Variant::from_name, Variant::ALL)?);
        }
        Ok(Op::Collective(Collective { kind, group, variant }))
    }

    fn callee(&mut self, head: &Head<'a>) -> Read<Op> {
        let Some((callee, at)) = &head.callee else { return Err(unknown(head.name, head.at)) };
        if head.name == "custom" {
            let known = self.customs.get(callee).map(|&id| Op::Custom(id));
            let message = || format!("no custom op has the name {}", quote(callee));
            return known.ok_or_else(|| Failure::new(*at, message()));
        }
        let mut a = Attributes { op: head.name, cursor: &mut self.cursor };
        let attributes = a.read("attributes", |c| c.string("a string"))?.into_owned();
        Ok(Op::Opaque { name: callee.to_string(), attributes })
    }
}

fn binary_scalar(head: &Head<'_>, scalar: Scalar, before: usize) -> Read<Op> {
    let Some(op) = BinaryOp::from_name(head.name) else {
        return Err(match op_names().any(|n| n == head.name) {
            true => Failure::new(head.at, format!("{} takes no scalar operand", quote(head.name))),
            false => unknown(head.name, head.at),
        });
    };
    if head.values.len() != 1 {
        let found = head.values.len();
        let message = format!("{} takes one value beside a scalar, found {found}", quote(head.name));
        return Err(Failure::new(head.at, message));
    }
    Ok(Op::BinaryScalar { op, scalar, scalar_left: before == 0 })
}

fn pair(cursor: &mut Cursor<'_>) -> Read<(u32, u32)> {
    let from = cursor.natural()?;
    cursor.expect("->")?;
    Ok((from, cursor.natural()?))
}

/// One bound of attention.
fn bound(cursor: &mut Cursor<'_>) -> Read<Bound> {
    let side = match cursor.token {
        Token::Ident("below") => Side::Below,
        Token::Ident("from") => Side::From,
        _ => return Err(cursor.unexpected("`below` or `from`")),
    };
    cursor.take()?;
    if !cursor.eat_word("chunk")? {
        return position(side, None, cursor);
    }
    let at = cursor.at;
    let size = cursor.integer()?;
    let Some(size) = u64::try_from(size).ok().filter(|n| *n > 0) else {
        return Err(Failure::new(at, format!("expected a positive number of positions, found {size}")));
    };
    cursor.expect_word("of")?;
    position(side, Some(size), cursor)
}

/// The position of a bound: `row + operand + (dim)`, of which the first two may be missing.
fn position(side: Side, chunk: Option<u64>, cursor: &mut Cursor<'_>) -> Read<Bound> {
    let mut moves = |word| -> Read<bool> {
        let found = cursor.eat_word(word)?;
        if found {
            cursor.expect("+")?;
        }
        Ok(found)
    };
    let (row, operand) = (moves("row")?, moves("operand")?);
    cursor.expect("(")?;
    let add = cursor.dim()?;
    cursor.expect(")")?;
    Ok(Bound { side, row, add, chunk, operand })
}

/// Reads the attributes of one op in their order.
struct Attributes<'c, 'a> {
    op: &'c str,
    cursor: &'c mut Cursor<'a>,
}

impl<'a> Attributes<'_, 'a> {
    /// `key=`.
    fn key(&mut self, key: &str) -> Read<()> {
        if !self.cursor.eat_word(key)? {
            return Err(self.cursor.unexpected(&format!("the attribute `{key}=` of {}", quote(self.op))));
        }
        self.cursor.expect("=")
    }

    fn read<T>(&mut self, key: &str, value: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Read<T> {
        self.key(key)?;
        value(self.cursor)
    }

    fn axis(&mut self) -> Read<usize> {
        self.read("axis", Cursor::natural)
    }

    fn flag(&mut self, key: &str) -> Read<bool> {
        self.read(key, Cursor::boolean)
    }

    fn naturals(&mut self, key: &str) -> Read<Vec<usize>> {
        self.read(key, |c| c.list(Cursor::natural))
    }

    /// One of a named enum.
    fn choice<T: Copy + std::fmt::Display>(
        &mut self,
        key: &str,
        from_name: impl Fn(&str) -> Option<T>,
        all: &[T],
    ) -> Read<T> {
        self.key(key)?;
        let found = match self.cursor.token {
            Token::Ident(name) => from_name(name),
            _ => None,
        };
        match found {
            Some(choice) => self.cursor.take().map(|_| choice),
            None => {
                let names: Vec<String> = all.iter().map(T::to_string).collect();
                Err(self.cursor.unexpected(&format!("one of {}", names.join(", "))))
            }
        }
    }

    fn combine(&mut self) -> Read<Option<Reduction>> {
        self.key("combine")?;
        if self.cursor.eat_word("none")? {
            return Ok(None);
        }
        let found = match self.cursor.token {
            Token::Ident(name) => Reduction::from_name(name),
            _ => None,
        };
        match found {
            Some(reduction) => self.cursor.take().map(|_| Some(reduction)),
            None => Err(self.cursor.unexpected("`none` or a reduction")),
        }
    }

    /// Attention, whose bounds have a short form, and whose cap, sink and permutation may be missing.
    fn attention(&mut self) -> Read<Op> {
        let bounds = match self.cursor.token {
            Token::Ident("bounds") => self.read("bounds", |c| c.list(bound))?,
            _ => attention::causal_if(self.flag("causal")?),
        };
        let scale = self.read("scale", Cursor::float)?;
        let capped = self.cursor.token == Token::Ident("cap");
        let cap = if capped { Some(self.read("cap", Cursor::float)?) } else { None };
        let sink = self.cursor.token == Token::Ident("sink") && self.flag("sink")?;
        let op = Op::Attention { scale, cap, bounds, sink };
        if self.cursor.token != Token::Ident("perm") {
            return Ok(op);
        }
        Ok(Op::Permuted { op: Box::new(op), perm: self.naturals("perm")? })
    }

    fn splits(&mut self) -> Read<Splits> {
        self.key("splits")?;
        if self.cursor.eat_word("even")? {
            Ok(Splits::Even)
        } else if self.cursor.eat_word("device")? {
            Ok(Splits::Device)
        } else {
            Err(self.cursor.unexpected("`even` or `device`"))
        }
    }
}

/// The failure of a name that no op has, with the names that are close to it.
fn unknown(name: &str, at: usize) -> Failure {
    let mut close: Vec<(usize, &str)> = op_names()
        .filter(|_| name.len() <= 32)
        .map(|known| (distance(name, known), known))
        .filter(|(d, known)| *d <= 1 + known.len() / 4)
        .collect();
    close.sort_unstable();
    close.dedup();
    let hint = match close.iter().take(3).map(|(_, known)| format!("`{known}`")).collect::<Vec<_>>() {
        names if names.is_empty() => String::new(),
        names => format!("; close names are {}", names.join(", ")),
    };
    Failure::new(at, format!("no op has the name {}{hint}", quote(name)))
}

/// The number of single-character edits between two words (Levenshtein's distance).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
