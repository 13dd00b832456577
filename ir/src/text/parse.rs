//! Reads a graph from its text form, statement by statement.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::cursor::{Cursor, Read};
use super::error::{Failure, ParseError, quote};
use super::forms::op_name;
use super::lexer::Token;
use super::names::with_symbol_names;
use crate::dim::{self, Dim};
use crate::dispatch::{Dispatch, Form};
use crate::entity::Entity;
use crate::graph::{CustomOp, Def, Graph, Group, InputKind, Members, Output, OutputKind};
use crate::ids::{CustomId, GroupId, InputId, NodeId, ValueId};
use crate::infer;
use crate::symbol::{Symbol, Symbols};
use crate::tensor::Tensor;
use crate::types::{DType, Type};

/// The graph of this text. Fails at the first place where the text breaks the form of the [module](super), names what
/// is not defined or defines a name twice, or where a node breaks the typing rule of its op.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    Parser::new(text).and_then(Parser::program).map_err(|failure| failure.locate(text))
}

/// Fails if the text is no dim, or names a symbol that the table does not have.
pub fn parse_dim(text: &str, symbols: &Symbols) -> Result<Dim, ParseError> {
    let read = || {
        let mut cursor = Cursor::new(text)?;
        cursor.symbols = symbols.iter().map(|(id, s)| (Cow::Borrowed(s.name.as_str()), id)).collect();
        let dim = cursor.dim()?;
        match cursor.token {
            Token::End => Ok(dim),
            _ => Err(cursor.unexpected("the end of the dim")),
        }
    };
    read().map_err(|failure: Failure| failure.locate(text))
}

/// More than the bytes of a line as a rule.
const BYTES_OF_LINE: usize = 128;

pub(super) struct Parser<'a> {
    pub cursor: Cursor<'a>,
    graph: Graph,
    values: HashMap<Cow<'a, str>, ValueId>,
    groups: HashMap<Cow<'a, str>, GroupId>,
    pub customs: HashMap<Cow<'a, str>, CustomId>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Read<Self> {
        Ok(Parser {
            cursor: Cursor::new(text)?,
            graph: Graph::default(),
            values: HashMap::with_capacity(text.len() / BYTES_OF_LINE),
            groups: HashMap::new(),
            customs: HashMap::new(),
        })
    }

    fn program(mut self) -> Read<Graph> {
        self.header()?;
        while self.cursor.token != Token::End {
            self.statement()?;
            self.cursor.end_line()?;
        }
        Ok(self.graph)
    }

    fn header(&mut self) -> Read<()> {
        self.cursor.expect_word("program")?;
        self.graph.name = self.cursor.string("the name of the program as a string")?.into_owned();
        self.cursor.expect_word("ranks")?;
        if !self.cursor.eat("?")? {
            self.graph.ranks = Some(self.cursor.natural()?);
        }
        self.cursor.end_line()
    }

    fn statement(&mut self) -> Read<()> {
        if self.cursor.is_value() {
            return self.node();
        }
        let Token::Ident(word) = self.cursor.token else { return Err(self.cursor.unexpected("a statement")) };
        let read = match word {
            "symbol" => Self::symbol,
            "group" => Self::group_members,
            "custom" => Self::custom,
            "arg" => |p: &mut Self| p.input(InputKind::Argument),
            "param" => |p: &mut Self| p.input(InputKind::Parameter),
            "const" => |p: &mut Self| p.input(InputKind::Constant),
            "return" => Self::returned,
            "mutate" => Self::mutation,
            "dispatch" => Self::dispatch,
            _ => {
                let known = "symbol, group, custom, arg, param, const, return, mutate, dispatch or a node (`%name: …`)";
                return Err(self.cursor.unexpected(&format!("one of the statements {known}")));
            }
        };
        self.cursor.take()?;
        read(self)
    }

    fn symbol(&mut self) -> Read<()> {
        let at = self.cursor.at;
        let name = match self.cursor.token {
            Token::String(_) => self.cursor.string("a name")?,
            _ => Cow::Borrowed(self.cursor.word("the name of the symbol")?),
        };
        self.cursor.expect_word("in")?;
        let min = self.cursor.integer()?;
        self.cursor.expect("..=")?;
        let max = self.cursor.integer()?;
        let mut alias = None;
        if self.cursor.eat_word("alias")? {
            alias = Some(self.cursor.string("the alias as a string")?.into_owned());
        }
        let id = self.graph.symbols.push(Symbol { name: name.to_string(), min, max, alias });
        match self.cursor.symbols.insert(name, id) {
            Some(_) => Err(duplicate("symbol", &self.graph.symbols[id].name, at)),
            None => Ok(()),
        }
    }

    fn group_members(&mut self) -> Read<()> {
        let (name, at) = self.cursor.group_name()?;
        let members = if self.cursor.eat_word("world")? {
            Members::World
        } else if self.cursor.is_mark("[") {
            Members::Cells(self.cursor.list(|c| c.list(Cursor::natural))?)
        } else {
            return Err(self.cursor.unexpected("`world` or the lists of ranks"));
        };
        let id = self.graph.groups.push(Group { name: name.to_string(), members });
        match self.groups.insert(name, id) {
            Some(_) => Err(duplicate("group", &format!("@{}", self.graph.groups[id].name), at)),
            None => Ok(()),
        }
    }

    fn custom(&mut self) -> Read<()> {
        let at = self.cursor.at;
        let name = self.cursor.string("the name of the op as a string")?;
        self.cursor.expect_word("symmetric")?;
        self.cursor.expect_word("operands")?;
        let symmetric_operands = self.cursor.list(Cursor::natural)?;
        self.cursor.expect_word("results")?;
        let symmetric_results = self.cursor.list(Cursor::natural)?;
        let group = if self.cursor.eat_word("group")? { Some(self.group()?) } else { None };
        let custom = CustomOp { name: name.to_string(), symmetric_operands, symmetric_results, group };
        let id = self.graph.customs.push(custom);
        match self.customs.insert(name, id) {
            Some(_) => Err(duplicate("custom op", &self.graph.customs[id].name, at)),
            None => Ok(()),
        }
    }

    fn input(&mut self, kind: InputKind) -> Read<()> {
        let (name, at) = self.cursor.value_name()?;
        self.cursor.expect(":")?;
        let ty = self.ty()?;
        let mut source = String::new();
        if self.cursor.eat_word("source")? {
            source = self.cursor.string("the name in the weights as a string")?.into_owned();
        }
        let data = match kind {
            InputKind::Constant => Some(Arc::new(self.data(&ty)?)),
            _ => None,
        };
        let id = self.graph.add_input(kind, name.as_ref(), source, ty, data);
        self.define(name, at, id)
    }

    /// `= hex"…"` of the bytes of this type.
    fn data(&mut self, ty: &Type) -> Read<Tensor> {
        let at = self.cursor.at;
        self.cursor.expect("=")?;
        self.cursor.expect_word("hex")?;
        let digits_at = self.cursor.at;
        let digits = self.cursor.string("the bytes as a string")?;
        let data = unhex(&digits)
            .ok_or_else(|| Failure::new(digits_at, "expected two hexadecimal digits for each byte"))?;
        let shape: Option<Vec<usize>> =
            ty.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
        let shape = shape.ok_or_else(|| Failure::new(at, "a constant needs extents that are numbers"))?;
        let found = data.len();
        Tensor::new(ty.dtype, shape, data).ok_or_else(|| {
            let expected = ty.bytes();
            Failure::new(digits_at, format!("expected {expected:?} bytes of data, found {found}"))
        })
    }

    fn ty(&mut self) -> Read<Type> {
        let at = self.cursor.at;
        let known = match self.cursor.token {
            Token::Ident(name) => DType::from_name(name),
            _ => None,
        };
        let Some(dtype) = known else {
            return Err(self.cursor.unexpected(&format!("a dtype ({})", DType::names())));
        };
        self.cursor.take()?;
        let shape = self.cursor.list(Cursor::dim)?;
        dim::check_size(&shape).map_err(|message| Failure::new(at, message))?;
        Ok(Type { dtype, shape })
    }

    /// A value that is defined.
    pub(super) fn value(&mut self) -> Read<ValueId> {
        let (name, at) = self.cursor.value_name()?;
        let known = self.values.get(&name).copied();
        known.ok_or_else(|| {
            Failure::new(at, format!("no earlier line defines {}", quote(&format!("%{name}"))))
        })
    }

    /// A group that is defined.
    pub(super) fn group(&mut self) -> Read<GroupId> {
        let (name, at) = self.cursor.group_name()?;
        let known = self.groups.get(&name).copied();
        known.ok_or_else(|| {
            Failure::new(at, format!("no earlier line defines {}", quote(&format!("@{name}"))))
        })
    }

    fn define(&mut self, name: Cow<'a, str>, at: usize, id: ValueId) -> Read<()> {
        match self.values.insert(name, id) {
            Some(_) => Err(duplicate("value", &format!("%{}", self.graph.name_of(id)), at)),
            None => Ok(()),
        }
    }

    fn node(&mut self) -> Read<()> {
        let mut names = Vec::with_capacity(1);
        let mut results = Vec::with_capacity(1);
        loop {
            let (name, at) = self.cursor.value_name()?;
            self.cursor.expect(":")?;
            results.push((name.to_string(), self.ty()?));
            names.push((name, at));
            if !self.cursor.eat(",")? {
                break;
            }
        }
        self.cursor.expect("=")?;
        let at = self.cursor.at;
        let (op, operands) = self.op()?;
        let types: Vec<&Type> = operands.iter().map(|&v| self.graph.ty(v)).collect();
        let declared: Vec<&Type> = results.iter().map(|(_, ty)| ty).collect();
        let n = op.group().and_then(|group| self.graph.group_size(group));
        infer::check(&op, &types, &declared, n).map_err(|message| {
            let message = with_symbol_names(&message, &self.graph.symbols);
            Failure::new(at, format!("%{}: {}: {message}", results[0].0, op_name(&op)))
        })?;
        let node = self.graph.add_node(op, operands, results);
        for (i, (name, at)) in names.into_iter().enumerate() {
            let id = self.graph.nodes[node].outputs[i];
            self.define(name, at, id)?;
        }
        Ok(())
    }

    /// Nodes between braces.
    fn dispatch(&mut self) -> Read<()> {
        let at = self.cursor.at;
        let word = self.cursor.word("the form of the dispatch")?;
        let Some(form) = Form::from_name(word) else {
            let expected = Form::names();
            return Err(Failure::new(at, format!("expected a form ({expected}), found {}", quote(word))));
        };
        self.cursor.expect("{")?;
        self.cursor.end_line()?;
        let first = self.graph.nodes.len();
        while self.cursor.is_value() {
            self.node()?;
            self.cursor.end_line()?;
        }
        let end = self.graph.nodes.len();
        if first == end {
            return Err(self.cursor.unexpected("a node of the dispatch"));
        }
        let (first, last) = (NodeId::new(first), NodeId::new(end - 1));
        self.graph.dispatches.push(Dispatch { form, first, last });
        self.cursor.expect("}")
    }

    fn returned(&mut self) -> Read<()> {
        loop {
            let value = self.value()?;
            self.graph.outputs.push(Output { value, kind: OutputKind::Returned });
            if !self.cursor.eat(",")? {
                return Ok(());
            }
        }
    }

    fn mutation(&mut self) -> Read<()> {
        let at = self.cursor.at;
        let target = self.value()?;
        let input = self.input_of(target).ok_or_else(|| {
            let name = self.graph.name_of(target);
            Failure::new(at, format!("only an input can be mutated, {} is none", quote(&format!("%{name}"))))
        })?;
        self.cursor.expect("=")?;
        let value = self.value()?;
        self.graph.outputs.push(Output { value, kind: OutputKind::Mutates(input) });
        Ok(())
    }

    fn input_of(&self, value: ValueId) -> Option<InputId> {
        match self.graph.values[value].def {
            Def::Input(input) => Some(input),
            Def::Node(..) => None,
        }
    }
}

fn duplicate(what: &str, name: &str, at: usize) -> Failure {
    Failure::new(at, format!("the {what} {} is already defined", quote(name)))
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| u8::try_from(digit(high)? * 16 + digit(low)?).ok()).collect()
}
