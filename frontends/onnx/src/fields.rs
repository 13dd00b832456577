//! The fields of the messages of the format. The decoder skips fields that [`crate::proto`] does not declare.
//! This module rejects models with fields that the format does not have, because they might change what the
//! program computes.

use bytes::Buf;

use crate::error::FailureReason;

struct MessageFields {
    /// The name of the message in errors.
    name: &'static str,
    /// The fields with nested messages that are checked too.
    nested: &'static [(u64, &'static MessageFields)],
    /// All other fields of the message.
    plain: &'static [u64],
}

static SEGMENT_FIELDS: MessageFields = MessageFields { name: "segment", nested: &[], plain: &[1, 2] };
static ENTRY_FIELDS: MessageFields = MessageFields { name: "entry", nested: &[], plain: &[1, 2] };
static TENSOR_FIELDS: MessageFields = MessageFields {
    name: "tensor",
    nested: &[(3, &SEGMENT_FIELDS), (13, &ENTRY_FIELDS), (16, &ENTRY_FIELDS)],
    plain: &[1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14],
};
static SPARSE_TENSOR_FIELDS: MessageFields =
    MessageFields { name: "sparse tensor", nested: &[(1, &TENSOR_FIELDS), (2, &TENSOR_FIELDS)], plain: &[3] };
static DIMENSION_FIELDS: MessageFields = MessageFields { name: "dimension", nested: &[], plain: &[1, 2, 3] };
static SHAPE_FIELDS: MessageFields =
    MessageFields { name: "shape", nested: &[(1, &DIMENSION_FIELDS)], plain: &[] };
static TENSOR_TYPE: MessageFields =
    MessageFields { name: "tensor type", nested: &[(2, &SHAPE_FIELDS)], plain: &[1] };
static TYPE_FIELDS: MessageFields =
    MessageFields { name: "type", nested: &[(1, &TENSOR_TYPE)], plain: &[4, 5, 6, 7, 8, 9] };
static VALUE_FIELDS: MessageFields =
    MessageFields { name: "value", nested: &[(2, &TYPE_FIELDS), (4, &ENTRY_FIELDS)], plain: &[1, 3] };
static OPERATOR_SET_FIELDS: MessageFields =
    MessageFields { name: "operator set", nested: &[], plain: &[1, 2] };
// Field 13 is documentation. Fields 10, 11, 14, 15 and 22, 23 hold types that no rule supports.
static ATTRIBUTE_FIELDS: MessageFields = MessageFields {
    name: "attribute",
    nested: &[(5, &TENSOR_FIELDS), (6, &GRAPH_FIELDS)],
    plain: &[1, 2, 3, 4, 7, 8, 9, 10, 11, 13, 14, 15, 20, 21, 22, 23],
};
// Field 6 is documentation. Field 10 says on which devices the node may run.
static NODE_FIELDS: MessageFields = MessageFields {
    name: "node",
    nested: &[(5, &ATTRIBUTE_FIELDS), (9, &ENTRY_FIELDS)],
    plain: &[1, 2, 3, 4, 6, 7, 8, 10],
};
// Field 10 is documentation. Field 14 pairs quantized tensors with their scales.
static GRAPH_FIELDS: MessageFields = MessageFields {
    name: "graph",
    nested: &[
        (1, &NODE_FIELDS),
        (5, &TENSOR_FIELDS),
        (11, &VALUE_FIELDS),
        (12, &VALUE_FIELDS),
        (13, &VALUE_FIELDS),
        (15, &SPARSE_TENSOR_FIELDS),
        (16, &ENTRY_FIELDS),
    ],
    plain: &[2, 10, 14],
};
static FUNCTION_FIELDS: MessageFields = MessageFields {
    name: "function",
    nested: &[
        (7, &NODE_FIELDS),
        (9, &OPERATOR_SET_FIELDS),
        (11, &ATTRIBUTE_FIELDS),
        (12, &VALUE_FIELDS),
        (14, &ENTRY_FIELDS),
    ],
    plain: &[1, 4, 5, 6, 8, 10, 13],
};
// Fields 3 to 6 name the program and its producer, 20 is about training, 26 lists devices that nodes may
// name.
static MODEL_FIELDS: MessageFields = MessageFields {
    name: "model",
    nested: &[(7, &GRAPH_FIELDS), (8, &OPERATOR_SET_FIELDS), (14, &ENTRY_FIELDS), (25, &FUNCTION_FIELDS)],
    plain: &[1, 2, 3, 4, 5, 6, 20, 26],
};

/// Fails if a decoded model has an unknown field.
pub(crate) fn check_known_fields(model: &mut dyn Buf) -> Result<(), FailureReason> {
    check_message(&MODEL_FIELDS, model, 0).map_err(|found| FailureReason::Version {
        expected: format!("fields that version {} of the format has", crate::versions::FORMAT.1),
        found,
    })
}

/// Checks a message that ends where `end` bytes remain. The bytes are a valid message, because they were
/// decoded before. This also bounds the nesting.
fn check_message(message: &MessageFields, model: &mut dyn Buf, end: usize) -> Result<(), String> {
    while model.remaining() > end {
        let Some(key) = varint(model) else { return Ok(()) };
        let field = key >> 3;
        let nested = message.nested.iter().find(|(number, _)| *number == field);
        if nested.is_none() && !message.plain.contains(&field) {
            return Err(format!("field {field} of a {}", message.name));
        }
        let length = match key & 7 {
            0 => varint(model).map(|_| 0),
            1 => Some(8),
            5 => Some(4),
            2 => varint(model),
            _ => None,
        };
        let length = length.and_then(|n| usize::try_from(n).ok());
        let Some(length) = length.filter(|&n| n <= model.remaining()) else { return Ok(()) };
        match nested {
            Some((_, inner)) if key & 7 == 2 => {
                let end = model.remaining() - length;
                check_message(inner, model, end)?;
            }
            _ => model.advance(length),
        }
    }
    Ok(())
}

/// Reads a varint: seven bits per byte, the lowest first.
fn varint(model: &mut dyn Buf) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..10 {
        let byte = model.has_remaining().then(|| model.get_u8())?;
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
