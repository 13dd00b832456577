//! Reads the right side of a node: the op, its operands and its attributes.
//!
//! What is not here: the attributes of each op, which the table of ops has (`forms.rs`).

use std::borrow::Cow;

use super::attributes::Attributes;
use super::cursor::Read;
use super::error::{Failure, quote};
use super::forms::{op_names, read_kind, read_op};
use super::parse::Parser;
use crate::collective::Collective;
use crate::ids::ValueId;
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::types::Scalar;

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
        if let Some(op) = read_op(name, &mut a)? {
            return Ok(op);
        }
        if let Some(kind) = read_kind(name, &mut a)? {
            a.key("group")?;
            let group = self.group()?;
            let variant = Attributes { op: name, cursor: &mut self.cursor }.optional("via")?;
            return Ok(Op::Collective(Collective { kind, group, variant }));
        }
        match (name, &head.callee) {
            ("attention", _) => a.attention(),
            ("attention_gradient", _) => a.attention_gradient(),
            ("shard", _) => {
                let axis = a.read("axis")?;
                a.key("group")?;
                Ok(Op::Shard { axis, group: self.group()? })
            }
            ("opaque", Some((callee, _))) => {
                Ok(Op::Opaque { name: callee.to_string(), attributes: a.read("attributes")? })
            }
            ("custom", Some((callee, at))) => {
                let known = self.customs.get(callee).map(|&id| Op::Custom(id));
                let message = || format!("no custom op has the name {}", quote(callee));
                known.ok_or_else(|| Failure::new(*at, message()))
            }
            _ => Err(unknown(name, head.at)),
        }
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
