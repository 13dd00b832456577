//! Reads a graph from its text form, statement by statement.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::cursor::{ParseResult, TokenCursor};
use super::error::{ParseError, ParseFailure, quote};
use super::forms::op_name;
use super::lexer::Token;
use super::names::with_symbol_names;
use crate::dim::{self, Dim};
use crate::dispatch_form::{Dispatch, DispatchForm};
use crate::entity::Entity;
use crate::graph::{CustomOp, Graph, GraphOutput, GroupDef, GroupMembers, InputKind, OutputKind, ValueDef};
use crate::ids::{CustomId, GroupId, InputId, NodeId, ValueId};
use crate::infer;
use crate::symbol::{Symbol, SymbolTable};
use crate::tensor::Tensor;
use crate::types::{DType, TensorType};

/// Parses a graph. Fails at the first position where the text breaks the form of the [module](super), refers to
/// an undefined name or defines a name twice, or where a node breaks the typing rule of its op.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    ProgramParser::new(text).and_then(ProgramParser::parse_program).map_err(|failure| failure.locate(text))
}

/// The name of the program that a text states first. The rest of the text is not read.
pub fn program_name(text: &str) -> Result<String, ParseError> {
    read_program_name(text).map_err(|failure| failure.locate(text))
}

fn read_program_name(text: &str) -> ParseResult<String> {
    let mut cursor = TokenCursor::new(text)?;
    cursor.expect_word("program")?;
    Ok(cursor.string(PROGRAM_NAME)?.into_owned())
}

const PROGRAM_NAME: &str = "the name of the program as a string";

/// Fails if the text is not a dim, or refers to a symbol that is not in the table.
pub fn parse_dim(text: &str, symbols: &SymbolTable) -> Result<Dim, ParseError> {
    read_dim(text, symbols).map_err(|failure| failure.locate(text))
}

fn read_dim(text: &str, symbols: &SymbolTable) -> ParseResult<Dim> {
    let mut cursor = TokenCursor::new(text)?;
    cursor.symbols = symbols.iter().map(|(id, s)| (Cow::Borrowed(s.name.as_str()), id)).collect();
    let dim = cursor.dim()?;
    match cursor.token {
        Token::End => Ok(dim),
        _ => Err(cursor.unexpected("the end of the dim")),
    }
}

/// A typical upper limit of the bytes of a line.
const BYTES_OF_LINE: usize = 128;

pub(super) struct ProgramParser<'a> {
    pub cursor: TokenCursor<'a>,
    graph: Graph,
    values: HashMap<Cow<'a, str>, ValueId>,
    groups: HashMap<Cow<'a, str>, GroupId>,
    pub customs: HashMap<Cow<'a, str>, CustomId>,
}

impl<'a> ProgramParser<'a> {
    fn new(text: &'a str) -> ParseResult<Self> {
        Ok(ProgramParser {
            cursor: TokenCursor::new(text)?,
            graph: Graph::default(),
            values: HashMap::with_capacity(text.len() / BYTES_OF_LINE),
            groups: HashMap::new(),
            customs: HashMap::new(),
        })
    }

    fn parse_program(mut self) -> ParseResult<Graph> {
        self.parse_header()?;
        while self.cursor.token != Token::End {
            self.parse_statement()?;
            self.cursor.end_line()?;
        }
        Ok(self.graph)
    }

    fn parse_header(&mut self) -> ParseResult<()> {
        self.cursor.expect_word("program")?;
        self.graph.name = self.cursor.string(PROGRAM_NAME)?.into_owned();
        self.cursor.expect_word("ranks")?;
        if !self.cursor.eat("?")? {
            self.graph.ranks = Some(self.cursor.natural()?);
        }
        self.cursor.end_line()
    }

    fn parse_statement(&mut self) -> ParseResult<()> {
        if self.cursor.is_value() {
            return self.parse_node();
        }
        let Token::Ident(word) = self.cursor.token else { return Err(self.cursor.unexpected("a statement")) };
        let read = match word {
            "symbol" => Self::parse_symbol,
            "group" => Self::parse_group,
            "custom" => Self::parse_custom_op,
            "arg" => |p: &mut Self| p.parse_input(InputKind::Argument),
            "param" => |p: &mut Self| p.parse_input(InputKind::Parameter),
            "const" => |p: &mut Self| p.parse_input(InputKind::Constant),
            "return" => Self::parse_return,
            "mutate" => Self::parse_mutation,
            "length" => Self::parse_length,
            "dispatch" => Self::parse_dispatch,
            _ => {
                let statements = "symbol, group, custom, arg, param, const, return, mutate, dispatch or a node (`%name: …`)";
                return Err(self.cursor.unexpected(&format!("one of the statements {statements}")));
            }
        };
        self.cursor.advance()?;
        read(self)
    }

    fn parse_symbol(&mut self) -> ParseResult<()> {
        let position = self.cursor.at;
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
            Some(_) => Err(duplicate_error("symbol", &self.graph.symbols[id].name, position)),
            None => Ok(()),
        }
    }

    fn parse_group(&mut self) -> ParseResult<()> {
        let (name, position) = self.cursor.group_name()?;
        let members = if self.cursor.eat_word("world")? {
            GroupMembers::World
        } else if self.cursor.is_mark("[") {
            GroupMembers::Cells(self.cursor.list(|c| c.list(TokenCursor::natural))?)
        } else {
            return Err(self.cursor.unexpected("`world` or the lists of ranks"));
        };
        let id = self.graph.groups.push(GroupDef { name: name.to_string(), members });
        match self.groups.insert(name, id) {
            Some(_) => Err(duplicate_error("group", &format!("@{}", self.graph.groups[id].name), position)),
            None => Ok(()),
        }
    }

    fn parse_custom_op(&mut self) -> ParseResult<()> {
        let position = self.cursor.at;
        let name = self.cursor.string("the name of the op as a string")?;
        self.cursor.expect_word("symmetric")?;
        self.cursor.expect_word("operands")?;
        let symmetric_operands = self.cursor.list(TokenCursor::natural)?;
        self.cursor.expect_word("results")?;
        let symmetric_results = self.cursor.list(TokenCursor::natural)?;
        let group = if self.cursor.eat_word("group")? { Some(self.parse_group_ref()?) } else { None };
        let custom = CustomOp { name: name.to_string(), symmetric_operands, symmetric_results, group };
        let id = self.graph.customs.push(custom);
        match self.customs.insert(name, id) {
            Some(_) => Err(duplicate_error("custom op", &self.graph.customs[id].name, position)),
            None => Ok(()),
        }
    }

    fn parse_input(&mut self, kind: InputKind) -> ParseResult<()> {
        let (name, position) = self.cursor.value_name()?;
        self.cursor.expect(":")?;
        let ty = self.parse_type()?;
        let mut source = String::new();
        if self.cursor.eat_word("source")? {
            source = self.cursor.string("the name in the weights as a string")?.into_owned();
        }
        let data = match kind {
            InputKind::Constant => Some(Arc::new(self.parse_data(&ty)?)),
            _ => None,
        };
        let id = self.graph.add_input(kind, name.as_ref(), source, ty, data);
        self.define_value(name, position, id)
    }

    /// `= hex"…"` of the bytes of this type.
    fn parse_data(&mut self, ty: &TensorType) -> ParseResult<Tensor> {
        let position = self.cursor.at;
        self.cursor.expect("=")?;
        self.cursor.expect_word("hex")?;
        let digits_at = self.cursor.at;
        let digits = self.cursor.string("the bytes as a string")?;
        let data = decode_hex(&digits)
            .ok_or_else(|| ParseFailure::new(digits_at, "expected two hexadecimal digits for each byte"))?;
        let shape: Option<Vec<usize>> =
            ty.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
        let shape =
            shape.ok_or_else(|| ParseFailure::new(position, "a constant needs extents that are numbers"))?;
        let byte_count = data.len();
        Tensor::new(ty.dtype, shape, data).ok_or_else(|| {
            let expected = ty.bytes();
            ParseFailure::new(digits_at, format!("expected {expected:?} bytes of data, found {byte_count}"))
        })
    }

    fn parse_type(&mut self) -> ParseResult<TensorType> {
        let position = self.cursor.at;
        let dtype = match self.cursor.token {
            Token::Ident(name) => DType::from_name(name),
            _ => None,
        };
        let Some(dtype) = dtype else {
            return Err(self.cursor.unexpected(&format!("a dtype ({})", DType::names())));
        };
        self.cursor.advance()?;
        let shape = self.cursor.list(TokenCursor::dim)?;
        dim::check_shape_complexity(&shape).map_err(|message| ParseFailure::new(position, message))?;
        Ok(TensorType { dtype, shape })
    }

    /// A defined value.
    pub(super) fn parse_value_ref(&mut self) -> ParseResult<ValueId> {
        let (name, position) = self.cursor.value_name()?;
        let value = self.values.get(&name).copied();
        value.ok_or_else(|| {
            ParseFailure::new(position, format!("no earlier line defines {}", quote(&format!("%{name}"))))
        })
    }

    /// A defined group.
    pub(super) fn parse_group_ref(&mut self) -> ParseResult<GroupId> {
        let (name, position) = self.cursor.group_name()?;
        let group = self.groups.get(&name).copied();
        group.ok_or_else(|| {
            ParseFailure::new(position, format!("no earlier line defines {}", quote(&format!("@{name}"))))
        })
    }

    fn define_value(&mut self, name: Cow<'a, str>, at: usize, id: ValueId) -> ParseResult<()> {
        match self.values.insert(name, id) {
            Some(_) => Err(duplicate_error("value", &format!("%{}", self.graph.value_name(id)), at)),
            None => Ok(()),
        }
    }

    fn parse_node(&mut self) -> ParseResult<()> {
        let mut names = Vec::with_capacity(1);
        let mut results = Vec::with_capacity(1);
        loop {
            let (name, position) = self.cursor.value_name()?;
            self.cursor.expect(":")?;
            results.push((name.to_string(), self.parse_type()?));
            names.push((name, position));
            if !self.cursor.eat(",")? {
                break;
            }
        }
        self.cursor.expect("=")?;
        let position = self.cursor.at;
        let (op, operands) = self.parse_op()?;
        let types: Vec<&TensorType> = operands.iter().map(|&v| self.graph.ty(v)).collect();
        let declared: Vec<&TensorType> = results.iter().map(|(_, ty)| ty).collect();
        let n = op.group().and_then(|group| self.graph.group_size(group));
        infer::check_types(&op, &types, &declared, n).map_err(|message| {
            let message = with_symbol_names(&message, &self.graph.symbols);
            ParseFailure::new(position, format!("%{}: {}: {message}", results[0].0, op_name(&op)))
        })?;
        let node = self.graph.add_node(op, operands, results);
        for (i, (name, position)) in names.into_iter().enumerate() {
            let id = self.graph.nodes[node].outputs[i];
            self.define_value(name, position, id)?;
        }
        Ok(())
    }

    /// The nodes of a dispatch, between braces.
    fn parse_dispatch(&mut self) -> ParseResult<()> {
        let position = self.cursor.at;
        let word = self.cursor.word("the form of the dispatch")?;
        let Some(form) = DispatchForm::from_name(word) else {
            let expected = DispatchForm::names();
            return Err(ParseFailure::new(
                position,
                format!("expected a form ({expected}), found {}", quote(word)),
            ));
        };
        self.cursor.expect("{")?;
        self.cursor.end_line()?;
        let first = self.graph.nodes.len();
        while self.cursor.is_value() {
            self.parse_node()?;
            self.cursor.end_line()?;
        }
        let end = self.graph.nodes.len();
        if first == end {
            return Err(self.cursor.unexpected("a node of the dispatch"));
        }
        let first = NodeId::new(first);
        let last_node = NodeId::new(end - 1);
        self.graph.dispatches.push(Dispatch { form, first, last: last_node });
        self.cursor.expect("}")
    }

    fn parse_return(&mut self) -> ParseResult<()> {
        loop {
            let value = self.parse_value_ref()?;
            self.graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
            if !self.cursor.eat(",")? {
                return Ok(());
            }
        }
    }

    fn parse_mutation(&mut self) -> ParseResult<()> {
        let position = self.cursor.at;
        let target = self.parse_value_ref()?;
        let input = self.input_of_value(target).ok_or_else(|| {
            let name = self.graph.value_name(target);
            ParseFailure::new(
                position,
                format!("only an input can be mutated, and {} is not an input", quote(&format!("%{name}"))),
            )
        })?;
        self.cursor.expect("=")?;
        let value = self.parse_value_ref()?;
        self.graph.outputs.push(GraphOutput { value, kind: OutputKind::Mutates(input) });
        Ok(())
    }

    fn parse_length(&mut self) -> ParseResult<()> {
        let value = self.parse_value_ref()?;
        let mut numbers = [0; 2];
        for (number, word) in numbers.iter_mut().zip(["output", "axis"]) {
            self.cursor.expect_word(word)?;
            self.cursor.expect("=")?;
            *number = self.cursor.natural()?;
        }
        let [output, axis] = numbers;
        self.graph.outputs.push(GraphOutput { value, kind: OutputKind::Length { output, axis } });
        Ok(())
    }

    fn input_of_value(&self, value: ValueId) -> Option<InputId> {
        match self.graph.values[value].def {
            ValueDef::Input(input) => Some(input),
            ValueDef::Node(..) => None,
        }
    }
}

fn duplicate_error(what: &str, name: &str, at: usize) -> ParseFailure {
    ParseFailure::new(at, format!("the {what} {} is already defined", quote(name)))
}

fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| u8::try_from(hex_digit(high)? * 16 + hex_digit(low)?).ok()).collect()
}

fn hex_digit(c: u8) -> Option<u32> {
    char::from(c).to_digit(16)
}
