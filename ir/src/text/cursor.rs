//! Reads the basic elements of the text form: numbers, names, lists, dims.
//!
//! A [`TokenCursor`] looks one token ahead. Recursion is limited by the nesting depth of a dim, and the size of a
//! dim by [`crate::dim::MAX_ATOMS`], so that no input makes reading deep or slow.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use super::error::{ParseFailure, quote};
use super::lexer::{Lexer, Token};
use crate::dim::{Dim, MAX_ATOMS, MAX_DEPTH, MAX_TERMS};
use crate::symbol::SymbolId;
use crate::types::{FloatAttribute, Scalar};

pub(super) type ParseResult<T> = Result<T, ParseFailure>;

/// A position between two tokens, with the symbols that dims may refer to.
pub(super) struct TokenCursor<'a> {
    lexer: Lexer<'a>,
    pub token: Token<'a>,
    /// The byte position of the next token.
    pub at: usize,
    pub symbols: HashMap<Cow<'a, str>, SymbolId>,
}

impl<'a> TokenCursor<'a> {
    pub fn new(text: &'a str) -> ParseResult<Self> {
        let mut lexer = Lexer::new(text);
        let (token, at) = lexer.next()?;
        Ok(TokenCursor { lexer, token, at, symbols: HashMap::new() })
    }

    pub fn advance(&mut self) -> ParseResult<Token<'a>> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    pub fn unexpected(&self, expected: &str) -> ParseFailure {
        ParseFailure::new(self.at, format!("expected {expected}, found {}", self.token.describe()))
    }

    pub fn is_mark(&self, mark: &str) -> bool {
        matches!(self.token, Token::Mark(next) if next == mark)
    }

    pub fn is_value(&self) -> bool {
        matches!(self.token, Token::Value(_))
    }

    /// Consumes the mark if it is next.
    pub fn eat(&mut self, mark: &str) -> ParseResult<bool> {
        let is_next = self.is_mark(mark);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    pub fn expect(&mut self, mark: &str) -> ParseResult<()> {
        if self.eat(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    pub fn eat_word(&mut self, word: &str) -> ParseResult<bool> {
        let is_next = self.token == Token::Ident(word);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    pub fn expect_word(&mut self, word: &str) -> ParseResult<()> {
        if self.eat_word(word)? { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    pub fn end_line(&mut self) -> ParseResult<()> {
        match self.token {
            Token::Newline => self.advance().map(drop),
            Token::End => Ok(()),
            _ => Err(self.unexpected("the end of the line")),
        }
    }

    /// A word; `what` names it in the error.
    pub fn word(&mut self, what: &str) -> ParseResult<&'a str> {
        match self.token {
            Token::Ident(word) => self.advance().map(|_| word),
            _ => Err(self.unexpected(what)),
        }
    }

    pub fn string(&mut self, what: &str) -> ParseResult<Cow<'a, str>> {
        match &mut self.token {
            Token::String(s) => {
                let s = std::mem::take(s);
                self.advance()?;
                Ok(s)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// `%name`, with its position.
    pub fn value_name(&mut self) -> ParseResult<(Cow<'a, str>, usize)> {
        let position = self.at;
        match &mut self.token {
            Token::Value(s) => {
                let s = std::mem::take(s);
                self.advance()?;
                Ok((s, position))
            }
            _ => Err(self.unexpected("a value (`%name`)")),
        }
    }

    pub fn group_name(&mut self) -> ParseResult<(Cow<'a, str>, usize)> {
        let position = self.at;
        match &mut self.token {
            Token::Group(s) => {
                let s = std::mem::take(s);
                self.advance()?;
                Ok((s, position))
            }
            _ => Err(self.unexpected("a group (`@name`)")),
        }
    }

    /// An integer with an optional `-`.
    pub fn integer(&mut self) -> ParseResult<i64> {
        let position = self.at;
        let negative = self.eat("-")?;
        self.digits(negative, position)
    }

    fn digits(&mut self, negative: bool, position: usize) -> ParseResult<i64> {
        let Token::Integer(digits) = self.token else { return Err(self.unexpected("an integer")) };
        self.advance()?;
        if let Ok(magnitude) = digits.parse::<i64>() {
            return Ok(if negative { -magnitude } else { magnitude });
        }
        let magnitude: i128 = digits.parse().unwrap_or(i128::MAX);
        i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| {
            ParseFailure::new(position, format!("the integer {} does not fit 64 bits", quote(digits)))
        })
    }

    /// An integer from 0 to 2^32 - 1 that is a position, a count or a rank.
    pub fn natural<T: TryFrom<u32>>(&mut self) -> ParseResult<T> {
        let position = self.at;
        let number = self.integer()?;
        let fits = u32::try_from(number).ok().and_then(|n| T::try_from(n).ok());
        fits.ok_or_else(|| {
            ParseFailure::new(position, format!("expected an integer from 0 to 2^32 - 1, found {number}"))
        })
    }

    pub fn boolean(&mut self) -> ParseResult<bool> {
        match self.token {
            Token::Ident("true") => self.advance().map(|_| true),
            Token::Ident("false") => self.advance().map(|_| false),
            _ => Err(self.unexpected("`true` or `false`")),
        }
    }

    /// One of these names.
    pub fn choice<T: fmt::Display>(
        &mut self,
        from_name: impl FnOnce(&str) -> Option<T>,
        choices: &[T],
    ) -> ParseResult<T> {
        let choice = match self.token {
            Token::Ident(name) => from_name(name),
            _ => None,
        };
        match (choice, choices) {
            (Some(choice), _) => self.advance().map(|_| choice),
            (None, [first, second]) => Err(self.unexpected(&format!("`{first}` or `{second}`"))),
            (None, choices) => {
                let names: Vec<String> = choices.iter().map(T::to_string).collect();
                Err(self.unexpected(&format!("one of {}", names.join(", "))))
            }
        }
    }

    /// A float, or an integer as a float.
    pub fn float(&mut self) -> ParseResult<FloatAttribute> {
        self.scalar().and_then(|s| match s {
            (Scalar::Bool(_), position) => Err(ParseFailure::new(position, "expected a float, found a bool")),
            (number, _) => Ok(FloatAttribute(number.as_f64())),
        })
    }

    pub fn is_scalar(&self) -> bool {
        match self.token {
            Token::Integer(_) | Token::Float(_) | Token::Ident("true" | "false" | "inf" | "nan") => true,
            _ => self.is_mark("-"),
        }
    }

    pub fn scalar(&mut self) -> ParseResult<(Scalar, usize)> {
        let position = self.at;
        let negative = self.eat("-")?;
        let signed = |x: f64| Scalar::Float(FloatAttribute(if negative { -x } else { x }));
        let scalar = match self.token {
            Token::Integer(_) => return Ok((Scalar::Int(self.digits(negative, position)?), position)),
            Token::Float(text) => match text.parse::<f64>() {
                Ok(x) if x.is_finite() => signed(x),
                _ => {
                    return Err(ParseFailure::new(
                        position,
                        format!("the float {} is too large", quote(text)),
                    ));
                }
            },
            Token::Ident("inf") => signed(f64::INFINITY),
            Token::Ident("nan") => signed(f64::NAN),
            Token::Ident("true") if !negative => Scalar::Bool(true),
            Token::Ident("false") if !negative => Scalar::Bool(false),
            _ => return Err(self.unexpected("a scalar")),
        };
        self.advance()?;
        Ok((scalar, position))
    }

    /// `[item, …]`, without a trailing comma.
    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> ParseResult<T>) -> ParseResult<Vec<T>> {
        self.expect("[")?;
        let mut out = Vec::new();
        if self.eat("]")? {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat("]")? {
                return Ok(out);
            }
            if !self.eat(",")? {
                return Err(self.unexpected("`,` or `]`"));
            }
        }
    }

    /// A dim: a sum of products.
    pub fn dim(&mut self) -> ParseResult<Dim> {
        self.parse_sum(0)
    }

    fn parse_sum(&mut self, depth: usize) -> ParseResult<Dim> {
        let start = self.at;
        if depth > MAX_DEPTH {
            return Err(ParseFailure::new(start, format!("a dim nests deeper than {MAX_DEPTH}")));
        }
        let negative = self.eat("-")?;
        let mut sum = self.parse_product(negative, depth)?;
        loop {
            let negative = match self.token {
                Token::Mark("+") => false,
                Token::Mark("-") => true,
                _ => return Ok(sum),
            };
            self.advance()?;
            sum = sum + self.parse_product(negative, depth)?;
            if sum.atom_count() > MAX_ATOMS {
                return Err(too_large_error(start));
            }
        }
    }

    fn parse_product(&mut self, negative: bool, depth: usize) -> ParseResult<Dim> {
        let position = self.at;
        // The sign belongs to a leading integer, so that the smallest integer can be read.
        let mut product = match self.token {
            Token::Integer(_) => Dim::from(self.digits(negative, position)?),
            _ if negative => self.parse_factor(depth)? * Dim::from(-1),
            _ => self.parse_factor(depth)?,
        };
        while self.eat("*")? {
            let factor = self.parse_factor(depth)?;
            let terms = (product.term_count(), factor.term_count());
            let atoms = terms.0 * factor.atom_count() + terms.1 * product.atom_count();
            if atoms > MAX_ATOMS || terms.0 * terms.1 > MAX_TERMS {
                return Err(too_large_error(position));
            }
            product = product * factor;
        }
        Ok(product)
    }

    fn parse_factor(&mut self, depth: usize) -> ParseResult<Dim> {
        let position = self.at;
        match self.token {
            Token::Integer(_) => self.digits(false, position).map(Dim::from),
            Token::Mark("(") => {
                self.advance()?;
                let dim = self.parse_sum(depth + 1)?;
                self.expect(")")?;
                Ok(dim)
            }
            Token::Ident(name) => {
                self.advance()?;
                if self.is_mark("(") {
                    self.parse_function(name, position, depth)
                } else {
                    self.resolve_symbol(name, position)
                }
            }
            Token::String(_) => {
                let name = self.string("a symbol")?;
                self.resolve_symbol(&name, position)
            }
            _ => Err(self.unexpected("a dim")),
        }
    }

    fn resolve_symbol(&mut self, name: &str, position: usize) -> ParseResult<Dim> {
        let dim = self.symbols.get(name).map(|&s| Dim::from(s));
        dim.ok_or_else(|| ParseFailure::new(position, format!("no symbol has the name {}", quote(name))))
    }

    fn parse_function(&mut self, name: &str, position: usize, depth: usize) -> ParseResult<Dim> {
        let apply = match name {
            "div" => Dim::floor_div,
            "mod" => Dim::modulo,
            "max" => Dim::max_with,
            "min" => Dim::min_with,
            _ => {
                let message = format!("a dim has the functions div, mod, max and min, found {}", quote(name));
                return Err(ParseFailure::new(position, message));
            }
        };
        self.expect("(")?;
        let a = self.parse_sum(depth + 1)?;
        self.expect(",")?;
        let b = self.parse_sum(depth + 1)?;
        self.expect(")")?;
        if a.atom_count() + b.atom_count() >= MAX_ATOMS {
            return Err(too_large_error(position));
        }
        Ok(apply(&a, &b))
    }
}

fn too_large_error(at: usize) -> ParseFailure {
    ParseFailure::new(at, format!("the dim has more than {MAX_ATOMS} factors"))
}
