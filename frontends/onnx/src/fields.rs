//! Which fields the messages of the format have. The decoder skips fields that [`crate::proto`] does not declare; here
//! those that do not change what a program computes are told from those that nobody knows, which are refused.

use crate::error::Reason;

/// A message of the format with its fields.
struct Message {
    /// What it is, for people.
    name: &'static str,
    /// The fields with messages in them that are looked into.
    nested: &'static [(u64, &'static Message)],
    /// All other fields.
    plain: &'static [u64],
}

static SEGMENT: Message = Message { name: "segment", nested: &[], plain: &[1, 2] };
static ENTRY: Message = Message { name: "entry", nested: &[], plain: &[1, 2] };
static TENSOR: Message = Message {
    name: "tensor",
    nested: &[(3, &SEGMENT), (13, &ENTRY), (16, &ENTRY)],
    plain: &[1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14],
};
static SPARSE: Message =
    Message { name: "sparse tensor", nested: &[(1, &TENSOR), (2, &TENSOR)], plain: &[3] };
static DIMENSION: Message = Message { name: "dimension", nested: &[], plain: &[1, 2, 3] };
static SHAPE: Message = Message { name: "shape", nested: &[(1, &DIMENSION)], plain: &[] };
static TENSOR_TYPE: Message = Message { name: "tensor type", nested: &[(2, &SHAPE)], plain: &[1] };
static TYPE: Message = Message { name: "type", nested: &[(1, &TENSOR_TYPE)], plain: &[4, 5, 6, 7, 8, 9] };
static VALUE: Message = Message { name: "value", nested: &[(2, &TYPE), (4, &ENTRY)], plain: &[1, 3] };
static OPERATORS: Message = Message { name: "operator set", nested: &[], plain: &[1, 2] };
// 13 is text for people, 10, 11, 14, 15 and 22, 23 hold what no rule takes.
static ATTRIBUTE: Message = Message {
    name: "attribute",
    nested: &[(5, &TENSOR), (6, &GRAPH)],
    plain: &[1, 2, 3, 4, 7, 8, 9, 10, 11, 13, 14, 15, 20, 21, 22, 23],
};
// 6 is text for people, 10 says on which devices the node may run.
static NODE: Message =
    Message { name: "node", nested: &[(5, &ATTRIBUTE), (9, &ENTRY)], plain: &[1, 2, 3, 4, 6, 7, 8, 10] };
// 10 is text for people, 14 says which names are scales of which.
static GRAPH: Message = Message {
    name: "graph",
    nested: &[
        (1, &NODE),
        (5, &TENSOR),
        (11, &VALUE),
        (12, &VALUE),
        (13, &VALUE),
        (15, &SPARSE),
        (16, &ENTRY),
    ],
    plain: &[2, 10, 14],
};
static FUNCTION: Message = Message {
    name: "function",
    nested: &[(7, &NODE), (9, &OPERATORS), (11, &ATTRIBUTE), (12, &VALUE), (14, &ENTRY)],
    plain: &[1, 4, 5, 6, 8, 10, 13],
};
// 3 to 6 name the program and its producer, 20 is how it was trained, 26 the devices that nodes may name.
static MODEL: Message = Message {
    name: "model",
    nested: &[(7, &GRAPH), (8, &OPERATORS), (14, &ENTRY), (25, &FUNCTION)],
    plain: &[1, 2, 3, 4, 5, 6, 20, 26],
};

/// Fails where a model that was decoded has a field that is not known.
pub(crate) fn all_known(model: &[u8]) -> Result<(), Reason> {
    walk(&MODEL, model).map_err(|found| Reason::Version {
        expected: format!("fields that version {} of the format has", crate::versions::FORMAT.1),
        found,
    })
}

/// The bytes are a sound message, as they were decoded before: that bounds the nesting, too.
fn walk(message: &Message, mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        let Some((key, rest)) = varint(bytes) else { return Ok(()) };
        let field = key >> 3;
        let nested = message.nested.iter().find(|(number, _)| *number == field);
        if nested.is_none() && !message.plain.contains(&field) {
            return Err(format!("field {field} of a {}", message.name));
        }
        let skipped = match key & 7 {
            0 => varint(rest).map(|(_, rest)| (&[][..], rest)),
            1 => rest.split_at_checked(8),
            5 => rest.split_at_checked(4),
            2 => varint(rest).and_then(|(n, rest)| rest.split_at_checked(usize::try_from(n).ok()?)),
            _ => None,
        };
        let Some((content, rest)) = skipped else { return Ok(()) };
        if let Some((_, inner)) = nested {
            walk(inner, content)?;
        }
        bytes = rest;
    }
    Ok(())
}

/// A number of seven bits a byte, and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}
