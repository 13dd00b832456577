//! Reads the right side of a node: the op, its operands and its attributes. The attributes of each op are in
//! the table of ops (`forms.rs`).

use std::borrow::Cow;

use super::attributes::AttributeReader;
use super::cursor::ParseResult;
use super::error::{ParseFailure, quote};
use super::forms::{op_names, read_kind, read_op};
use super::parse::ProgramParser;
use crate::collective::Collective;
use crate::ids::ValueId;
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::route::{Route, RouteScope};
use crate::types::Scalar;

/// The part of a node between the name of the op and its attributes.
struct OpHead<'a> {
    name: &'a str,
    at: usize,
    callee: Option<(Cow<'a, str>, usize)>,
    values: Vec<ValueId>,
    /// A scalar operand, and the number of values before it.
    scalar: Option<(Scalar, usize)>,
}

impl<'a> ProgramParser<'a> {
    pub(super) fn parse_op(&mut self) -> ParseResult<(Op, Vec<ValueId>)> {
        let head = self.parse_op_head()?;
        let op = match head.scalar {
            Some((scalar, before)) => build_binary_scalar(&head, scalar, before)?,
            None => self.build_op(&head)?,
        };
        Ok((op, head.values))
    }

    fn parse_op_head(&mut self) -> ParseResult<OpHead<'a>> {
        let position = self.cursor.at;
        let name = self.cursor.word("an op")?;
        let mut head = OpHead { name, at: position, callee: None, values: Vec::new(), scalar: None };
        if matches!(name, "opaque" | "custom") {
            let callee_position = self.cursor.at;
            head.callee = Some((self.cursor.string("the name of the op as a string")?, callee_position));
        }
        while self.cursor.is_value() || self.cursor.is_scalar() {
            if self.cursor.is_value() {
                head.values.push(self.parse_value_ref()?);
            } else {
                let (scalar, scalar_position) = self.cursor.scalar()?;
                if head.scalar.replace((scalar, head.values.len())).is_some() {
                    return Err(ParseFailure::new(
                        scalar_position,
                        "a node takes one scalar operand at most",
                    ));
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

    fn build_op(&mut self, head: &OpHead<'a>) -> ParseResult<Op> {
        let name = head.name;
        if let Some(op) = UnaryOp::from_name(name) {
            return Ok(Op::Unary(op));
        }
        if let Some(op) = BinaryOp::from_name(name) {
            return Ok(Op::Binary(op));
        }
        let mut a = AttributeReader { op: name, cursor: &mut self.cursor };
        if let Some(op) = read_op(name, &mut a)? {
            return Ok(op);
        }
        if let Some(kind) = read_kind(name, &mut a)? {
            a.expect_key("group")?;
            let group = self.parse_group_ref()?;
            let variant = AttributeReader { op: name, cursor: &mut self.cursor }.read_optional("via")?;
            return Ok(Op::Collective(Collective { kind, group, variant }));
        }
        match (name, &head.callee) {
            ("attention", _) => a.read_attention(),
            ("attention_gradient", _) => a.read_attention_gradient(),
            ("shard", _) => {
                let axis = a.read("axis")?;
                a.expect_key("group")?;
                Ok(Op::Shard { axis, group: self.parse_group_ref()? })
            }
            ("route", _) => {
                let experts = a.read("experts")?;
                let align = a.read("align")?;
                let layout = a.read("layout")?;
                let scope = if a.eat_key("group")? {
                    RouteScope::Group(self.parse_group_ref()?)
                } else {
                    RouteScope::Local
                };
                Ok(Op::Route(Route { experts, align, layout, scope }))
            }
            ("opaque", Some((callee, _))) => {
                Ok(Op::Opaque { name: callee.to_string(), attributes: a.read("attributes")? })
            }
            ("custom", Some((callee, position))) => {
                let custom = self.customs.get(callee).map(|&id| Op::Custom(id));
                custom.ok_or_else(|| {
                    ParseFailure::new(*position, format!("no custom op has the name {}", quote(callee)))
                })
            }
            _ => Err(unknown_op_error(name, head.at)),
        }
    }
}

fn build_binary_scalar(head: &OpHead<'_>, scalar: Scalar, before: usize) -> ParseResult<Op> {
    let Some(op) = BinaryOp::from_name(head.name) else {
        return Err(if op_names().any(|n| n == head.name) {
            ParseFailure::new(head.at, format!("{} takes no scalar operand", quote(head.name)))
        } else {
            unknown_op_error(head.name, head.at)
        });
    };
    if head.values.len() != 1 {
        let values = head.values.len();
        let message = format!("{} takes one value next to a scalar, found {values}", quote(head.name));
        return Err(ParseFailure::new(head.at, message));
    }
    Ok(Op::BinaryScalar { op, scalar, scalar_left: before == 0 })
}

/// The error for an unknown op name, with similar names as a hint.
fn unknown_op_error(name: &str, at: usize) -> ParseFailure {
    let mut close: Vec<(usize, &str)> = op_names()
        .filter(|_| name.len() <= 32)
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .filter(|(d, candidate)| *d <= 1 + candidate.len() / 4)
        .collect();
    close.sort_unstable();
    close.dedup();
    let hint = match close.iter().take(3).map(|(_, candidate)| format!("`{candidate}`")).collect::<Vec<_>>() {
        names if names.is_empty() => String::new(),
        names => format!("; close names are {}", names.join(", ")),
    };
    ParseFailure::new(at, format!("no op has the name {}{hint}", quote(name)))
}

/// The number of single-character edits between two words (Levenshtein's distance).
fn edit_distance(a: &str, b: &str) -> usize {
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
