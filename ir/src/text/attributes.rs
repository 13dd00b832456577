//! Attributes of ops: for each type of attribute, how it is read and written, and which dims it contains.

use std::iter;

use super::cursor::{ParseResult, TokenCursor};
use super::error::{ParseFailure, quote};
use super::lexer::Token;
use super::writer::TextWriter;
use crate::attention::{self, AttentionBound, BoundSide};
use crate::collective::{AllToAllSplits, CollectiveReduceOp, CollectiveVariant};
use crate::dim::Dim;
use crate::op::{Op, ReductionKind};
use crate::route::RouteLayout;
use crate::types::{FloatAttribute, Scalar};

/// The types of attributes. Reading the written form gives the same value.
pub(super) trait TextAttribute: Sized {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self>;
    fn write(&self, out: &mut TextWriter<'_>);
    fn dims(&self) -> impl Iterator<Item = &Dim> {
        iter::empty()
    }
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        iter::empty()
    }
}

macro_rules! displayed {
    ($($type:ty: $read:expr;)*) => {$(
        impl TextAttribute for $type {
            fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
                $read(cursor)
            }
            fn write(&self, out: &mut TextWriter<'_>) {
                out.push_display(self);
            }
        }
    )*};
}

displayed! {
    bool: TokenCursor::boolean;
    usize: TokenCursor::natural;
    u32: TokenCursor::natural;
    i64: TokenCursor::integer;
    FloatAttribute: TokenCursor::float;
    Scalar: |c: &mut TokenCursor<'_>| c.scalar().map(|s| s.0);
    ReductionKind: |c: &mut TokenCursor<'_>| c.choice(ReductionKind::from_name, ReductionKind::ALL);
    CollectiveReduceOp: |c: &mut TokenCursor<'_>| c.choice(CollectiveReduceOp::from_name, CollectiveReduceOp::ALL);
    AllToAllSplits: |c: &mut TokenCursor<'_>| c.choice(AllToAllSplits::from_name, AllToAllSplits::ALL);
    RouteLayout: |c: &mut TokenCursor<'_>| c.choice(RouteLayout::from_name, RouteLayout::ALL);
    CollectiveVariant: |c: &mut TokenCursor<'_>| c.choice(CollectiveVariant::from_name, CollectiveVariant::ALL);
}

impl TextAttribute for Dim {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
        cursor.dim()
    }
    fn write(&self, out: &mut TextWriter<'_>) {
        out.push_dim(self);
    }
    fn dims(&self) -> impl Iterator<Item = &Dim> {
        iter::once(self)
    }
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        iter::once(self)
    }
}

impl TextAttribute for String {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
        cursor.string("a string").map(|s| s.into_owned())
    }
    fn write(&self, out: &mut TextWriter<'_>) {
        out.push_string(self);
    }
}

impl<T: TextAttribute> TextAttribute for Vec<T> {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
        cursor.list(T::read)
    }
    fn write(&self, out: &mut TextWriter<'_>) {
        out.push_list(self, |out, item| item.write(out));
    }
    fn dims(&self) -> impl Iterator<Item = &Dim> {
        self.iter().flat_map(T::dims)
    }
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        self.iter_mut().flat_map(T::dims_mut)
    }
}

/// The way in which a scatter combines elements.
impl TextAttribute for Option<ReductionKind> {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
        match cursor.token {
            Token::Ident("none") => cursor.advance().map(|_| None),
            Token::Ident(name) if ReductionKind::from_name(name).is_some() => {
                ReductionKind::read(cursor).map(Some)
            }
            _ => Err(cursor.unexpected("`none` or a reduction")),
        }
    }
    fn write(&self, out: &mut TextWriter<'_>) {
        out.push_str(self.map_or("none", ReductionKind::name));
    }
}

/// A pair of ranks, `from->to`.
impl TextAttribute for (u32, u32) {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
        let from = cursor.natural()?;
        cursor.expect("->")?;
        Ok((from, cursor.natural()?))
    }
    fn write(&self, out: &mut TextWriter<'_>) {
        out.push_display(format_args!("{}->{}", self.0, self.1));
    }
}

/// A side, optionally `chunk n of`, and the position `row + operand + (dim)`, where `row` and `operand` are
/// optional.
impl TextAttribute for AttentionBound {
    fn read(cursor: &mut TokenCursor<'_>) -> ParseResult<Self> {
        let side = cursor.choice(BoundSide::from_name, BoundSide::ALL)?;
        let chunk = if cursor.eat_word("chunk")? { Some(parse_chunk(cursor)?) } else { None };
        let row = eat_term(cursor, "row")?;
        let operand = eat_term(cursor, "operand")?;
        cursor.expect("(")?;
        let add = cursor.dim()?;
        cursor.expect(")")?;
        Ok(AttentionBound { side, row, add, chunk, operand })
    }

    fn write(&self, out: &mut TextWriter<'_>) {
        out.push_str(self.side.name());
        if let Some(chunk) = self.chunk {
            out.push_display(format_args!(" chunk {chunk} of"));
        }
        for (moves, word) in [(self.row, " row +"), (self.operand, " operand +")] {
            if moves {
                out.push_str(word);
            }
        }
        out.push_str(" (");
        out.push_dim(&self.add);
        out.push_str(")");
    }

    fn dims(&self) -> impl Iterator<Item = &Dim> {
        iter::once(&self.add)
    }

    fn dims_mut(&mut self) -> impl Iterator<Item = &mut Dim> {
        iter::once(&mut self.add)
    }
}

/// Reads a word and the plus sign after it, if the word comes next.
fn eat_term(cursor: &mut TokenCursor<'_>, word: &str) -> ParseResult<bool> {
    let is_present = cursor.eat_word(word)?;
    if is_present {
        cursor.expect("+")?;
    }
    Ok(is_present)
}

fn parse_chunk(cursor: &mut TokenCursor<'_>) -> ParseResult<u64> {
    let position = cursor.at;
    let size = cursor.integer()?;
    let Some(size) = u64::try_from(size).ok().filter(|n| *n > 0) else {
        return Err(ParseFailure::new(
            position,
            format!("expected a positive number of positions, found {size}"),
        ));
    };
    cursor.expect_word("of")?;
    Ok(size)
}

pub(super) struct AttributeReader<'c, 'a> {
    pub op: &'c str,
    pub cursor: &'c mut TokenCursor<'a>,
}

impl AttributeReader<'_, '_> {
    /// `key=`.
    pub fn expect_key(&mut self, key: &str) -> ParseResult<()> {
        if !self.cursor.eat_word(key)? {
            return Err(self.cursor.unexpected(&format!("the attribute `{key}=` of {}", quote(self.op))));
        }
        self.cursor.expect("=")
    }

    /// Whether `key=` follows; it is consumed then.
    pub fn eat_key(&mut self, key: &str) -> ParseResult<bool> {
        let follows = self.cursor.token == Token::Ident(key);
        if follows {
            self.expect_key(key)?;
        }
        Ok(follows)
    }

    pub fn read<T: TextAttribute>(&mut self, key: &str) -> ParseResult<T> {
        self.expect_key(key)?;
        T::read(self.cursor)
    }

    pub fn read_optional<T: TextAttribute>(&mut self, key: &str) -> ParseResult<Option<T>> {
        if self.cursor.token == Token::Ident(key) { self.read(key).map(Some) } else { Ok(None) }
    }

    /// The attributes of attention. Causal bounds have a short form; cap, sink, log-sum-exp and permutation are
    /// optional.
    pub fn read_attention(&mut self) -> ParseResult<Op> {
        let bounds = self.read_bounds()?;
        let scale = self.read("scale")?;
        let cap = self.read_optional("cap")?;
        let sink = self.read_optional("sink")?.unwrap_or(false);
        let log_sum_exp = self.read_optional("log_sum_exp")?.unwrap_or(false);
        self.read_permutation(Op::Attention { scale, cap, bounds, sink, log_sum_exp })
    }

    /// The attributes of the gradient of attention. Causal bounds have a short form; the permutation is
    /// optional.
    pub fn read_attention_gradient(&mut self) -> ParseResult<Op> {
        let bounds = self.read_bounds()?;
        let scale = self.read("scale")?;
        self.read_permutation(Op::AttentionGradient { scale, bounds })
    }

    fn read_bounds(&mut self) -> ParseResult<Vec<AttentionBound>> {
        Ok(match self.read_optional("bounds")? {
            Some(bounds) => bounds,
            None => attention::causal_bounds_if(self.read("causal")?),
        })
    }

    /// The op, or the op with permuted results if a permutation follows.
    fn read_permutation(&mut self, op: Op) -> ParseResult<Op> {
        Ok(match self.read_optional("perm")? {
            Some(perm) => Op::Permuted { op: Box::new(op), perm },
            None => op,
        })
    }
}

impl TextWriter<'_> {
    /// ` key=value`.
    pub fn attribute(&mut self, key: &str, value: &impl TextAttribute) {
        self.push_str(" ");
        self.push_str(key);
        self.push_str("=");
        value.write(self);
    }

    /// The bounds of attention, in the short form if possible.
    pub fn bounds(&mut self, bounds: &Vec<AttentionBound>) {
        if bounds.is_empty() || attention::is_causal(bounds) {
            self.attribute("causal", &!bounds.is_empty());
        } else {
            self.attribute("bounds", bounds);
        }
    }
}
