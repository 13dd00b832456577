//! Attributes of ops: how a value of each type is read and written, and which dims it holds.

use std::iter;

use super::cursor::{Cursor, Read};
use super::error::{Failure, quote};
use super::lexer::Token;
use super::writer::Writer;
use crate::attention::{self, Bound, Side};
use crate::collective::{ReduceOp, Splits, Variant};
use crate::dim::Dim;
use crate::op::{Op, Reduction};
use crate::types::{Float, Scalar};

/// What an attribute can be. Writing it and reading that gives the same.
pub(super) trait Attribute: Sized {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self>;
    fn write(&self, out: &mut Writer<'_>);
    fn dims(&self) -> impl Iterator<Item = &Dim> {
        iter::empty()
    }
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        iter::empty()
    }
}

macro_rules! displayed {
    ($($type:ty: $read:expr;)*) => {$(
        impl Attribute for $type {
            fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
                $read(cursor)
            }
            fn write(&self, out: &mut Writer<'_>) {
                out.show(self);
            }
        }
    )*};
}

displayed! {
    bool: Cursor::boolean;
    usize: Cursor::natural;
    u32: Cursor::natural;
    i64: Cursor::integer;
    Float: Cursor::float;
    Scalar: |c: &mut Cursor<'_>| c.scalar().map(|s| s.0);
    Reduction: |c: &mut Cursor<'_>| c.choice(Reduction::from_name, Reduction::ALL);
    ReduceOp: |c: &mut Cursor<'_>| c.choice(ReduceOp::from_name, ReduceOp::ALL);
    Splits: |c: &mut Cursor<'_>| c.choice(Splits::from_name, Splits::ALL);
    Variant: variant;
}

fn variant(cursor: &mut Cursor<'_>) -> Read<Variant> {
    match cursor.token {
        Token::Ident(name) if Variant::renamed(name).is_some() => {
            Err(cursor.unexpected(&Variant::expected(name)))
        }
        _ => cursor.choice(Variant::from_name, Variant::ALL),
    }
}

impl Attribute for Dim {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        cursor.dim()
    }
    fn write(&self, out: &mut Writer<'_>) {
        out.dim(self);
    }
    fn dims(&self) -> impl Iterator<Item = &Dim> {
        iter::once(self)
    }
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        iter::once(self)
    }
}

impl Attribute for String {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        cursor.string("a string").map(|s| s.into_owned())
    }
    fn write(&self, out: &mut Writer<'_>) {
        out.string(self);
    }
}

impl<T: Attribute> Attribute for Vec<T> {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        cursor.list(T::read)
    }
    fn write(&self, out: &mut Writer<'_>) {
        out.list(self, |out, item| item.write(out));
    }
    fn dims(&self) -> impl Iterator<Item = &Dim> {
        self.iter().flat_map(T::dims)
    }
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        self.iter_mut().flat_map(T::dims_mut)
    }
}

/// How a scatter combines.
impl Attribute for Option<Reduction> {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        match cursor.token {
            Token::Ident("none") => cursor.take().map(|_| None),
            Token::Ident(name) if Reduction::from_name(name).is_some() => Reduction::read(cursor).map(Some),
            _ => Err(cursor.unexpected("`none` or a reduction")),
        }
    }
    fn write(&self, out: &mut Writer<'_>) {
        out.put(self.map_or("none", Reduction::name));
    }
}

/// A pair of ranks, `from->to`.
impl Attribute for (u32, u32) {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        let from = cursor.natural()?;
        cursor.expect("->")?;
        Ok((from, cursor.natural()?))
    }
    fn write(&self, out: &mut Writer<'_>) {
        out.show(format_args!("{}->{}", self.0, self.1));
    }
}

/// A side, perhaps `chunk n of`, and the position `row + operand + (dim)`, of which the first two may be missing.
impl Attribute for Bound {
    fn read(cursor: &mut Cursor<'_>) -> Read<Self> {
        let side = cursor.choice(Side::from_name, Side::ALL)?;
        let chunk = if cursor.eat_word("chunk")? { Some(chunk(cursor)?) } else { None };
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

    fn write(&self, out: &mut Writer<'_>) {
        out.put(self.side.name());
        if let Some(chunk) = self.chunk {
            out.show(format_args!(" chunk {chunk} of"));
        }
        for (moves, word) in [(self.row, " row +"), (self.operand, " operand +")] {
            if moves {
                out.put(word);
            }
        }
        out.put(" (");
        out.dim(&self.add);
        out.put(")");
    }

    fn dims(&self) -> impl Iterator<Item = &Dim> {
        iter::once(&self.add)
    }

    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        iter::once(&mut self.add)
    }
}

fn chunk(cursor: &mut Cursor<'_>) -> Read<u64> {
    let at = cursor.at;
    let size = cursor.integer()?;
    let Some(size) = u64::try_from(size).ok().filter(|n| *n > 0) else {
        return Err(Failure::new(at, format!("expected a positive number of positions, found {size}")));
    };
    cursor.expect_word("of")?;
    Ok(size)
}

pub(super) struct Attributes<'c, 'a> {
    pub op: &'c str,
    pub cursor: &'c mut Cursor<'a>,
}

impl Attributes<'_, '_> {
    /// `key=`.
    pub fn key(&mut self, key: &str) -> Read<()> {
        if !self.cursor.eat_word(key)? {
            return Err(self.cursor.unexpected(&format!("the attribute `{key}=` of {}", quote(self.op))));
        }
        self.cursor.expect("=")
    }

    pub fn read<T: Attribute>(&mut self, key: &str) -> Read<T> {
        self.key(key)?;
        T::read(self.cursor)
    }

    pub fn optional<T: Attribute>(&mut self, key: &str) -> Read<Option<T>> {
        if self.cursor.token == Token::Ident(key) { self.read(key).map(Some) } else { Ok(None) }
    }

    /// Attention, whose bounds have a short form, and whose cap, sink, log-sum-exp and permutation may be missing.
    pub fn attention(&mut self) -> Read<Op> {
        let bounds = self.bounds()?;
        let scale = self.read("scale")?;
        let cap = self.optional("cap")?;
        let sink = self.optional("sink")?.unwrap_or(false);
        let log_sum_exp = self.optional("log_sum_exp")?.unwrap_or(false);
        self.permuted(Op::Attention { scale, cap, bounds, sink, log_sum_exp })
    }

    /// The gradient of attention, whose bounds have a short form, and whose permutation may be missing.
    pub fn attention_gradient(&mut self) -> Read<Op> {
        let bounds = self.bounds()?;
        let scale = self.read("scale")?;
        self.permuted(Op::AttentionGradient { scale, bounds })
    }

    fn bounds(&mut self) -> Read<Vec<Bound>> {
        Ok(match self.optional("bounds")? {
            Some(bounds) => bounds,
            None => attention::causal_if(self.read("causal")?),
        })
    }

    /// The op, or the op with its results permuted if a permutation follows.
    fn permuted(&mut self, op: Op) -> Read<Op> {
        Ok(match self.optional("perm")? {
            Some(perm) => Op::Permuted { op: Box::new(op), perm },
            None => op,
        })
    }
}

impl Writer<'_> {
    /// ` key=value`.
    pub fn attribute(&mut self, key: &str, value: &impl Attribute) {
        self.put(" ");
        self.put(key);
        self.put("=");
        value.write(self);
    }

    /// The bounds of attention, in their short form where that says it.
    pub fn bounds(&mut self, bounds: &Vec<Bound>) {
        match bounds.is_empty() || attention::is_causal(bounds) {
            true => self.attribute("causal", &!bounds.is_empty()),
            false => self.attribute("bounds", bounds),
        }
    }
}
