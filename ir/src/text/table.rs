//! The macro that turns the table of ops into code.
//!
//! `ops!` reads the rows of `forms.rs`: a name, operands, the variant of [`Op`] or of [`CollectiveKind`] with
//! its attributes in the order of the text, a meaning and an example. It generates the names, the numbers of
//! operands, the code that reads and writes attributes and lists their dims, and the documented
//! [`OP_SECTIONS`](super::forms::OP_SECTIONS). A variant without a row does not compile.
//!
//! An attribute is a field with its name, or field 0 if its name follows `@0`. Fields after `;` are not
//! attributes; they distinguish two rows of one variant. Rows without a variant have hand-written code:
//! element-wise ops, attention, shards, routes, and opaque and custom ops.
//!
//! How values of each attribute type are read and written, and which dims they contain, is in `attributes.rs`.
//!
//! [`Op`]: crate::op::Op
//! [`CollectiveKind`]: crate::collective::CollectiveKind

pub(super) const fn counts(operands: &str) -> (usize, usize) {
    let mut remaining = operands.as_bytes();
    let mut named = !remaining.is_empty() as usize;
    let mut optional = 0;
    let mut repeated = false;
    while let [first, tail @ ..] = remaining {
        match *first {
            b',' => named += 1,
            b'?' => optional += 1,
            // The first byte of `…`.
            0xe2 => repeated = true,
            _ => {}
        }
        remaining = tail;
    }
    (named - optional, if repeated { usize::MAX } else { named })
}

macro_rules! ops {
    ($(section $title:literal $about:literal {
        $($name:literal ($operands:literal)
            $(op $op:ident { $($(@ $at:tt)? $key:ident),* $(; $which:ident = $value:path)? })?
            $(kind $kind:ident { $($(@ $kind_at:tt)? $kind_key:ident),* })?
            : $meaning:literal => $example:literal;)*
    })*) => {
        pub const OP_SECTIONS: &[OpSection] = &[$(OpSection {
            title: $title,
            about: $about,
            forms: &[$(OpForm { name: $name, operands: $operands, meaning: $meaning, example: $example }),*],
        }),*];

        /// The name of an op, and the minimum and maximum number of its operands.
        pub(crate) fn head(op: &Op) -> (&'static str, (usize, usize)) {
            match op {
                $($($(Op::$op { $($which: $value,)? .. } => ($name, const { counts($operands) }),)?)*)*
                Op::Unary(op) => (op.name(), (1, 1)),
                Op::Binary(op) => (op.name(), (2, 2)),
                Op::BinaryScalar { op, .. } => (op.name(), (1, 1)),
                Op::Attention { bounds, sink, .. } => {
                    let extra = attention::position_operand_count(bounds) + usize::from(*sink);
                    ("attention", (3 + extra, 4 + extra))
                }
                Op::AttentionGradient { bounds, .. } => {
                    let extra = attention::position_operand_count(bounds);
                    ("attention_gradient", (6 + extra, 7 + extra))
                }
                Op::Permuted { op, .. } => head(op),
                Op::Collective(c) => (c.kind.name(), c.kind.operand_counts()),
                Op::Shard { .. } => ("shard", (1, 1)),
                Op::Route(_) => ("route", (1, 1)),
                Op::Opaque { .. } => ("opaque", (0, usize::MAX)),
                Op::Custom(_) => ("custom", (0, usize::MAX)),
            }
        }

        /// The op with this name and its attributes, if a row with a variant of [`Op`] has the name.
        pub(super) fn read_op(name: &str, a: &mut AttributeReader<'_, '_>) -> ParseResult<Option<Op>> {
            Ok(Some(match name {
                $($($($name => {
                    $(let $key = a.read(stringify!($key))?;)*
                    Op::$op { $($($at:)? $key,)* $($which: $value)? }
                })?)*)*
                _ => return Ok(None),
            }))
        }

        /// The kind of the collective with this name, if there is one.
        pub(super) fn read_kind(name: &str, a: &mut AttributeReader<'_, '_>) -> ParseResult<Option<CollectiveKind>> {
            Ok(Some(match name {
                $($($($name => {
                    $(let $kind_key = a.read(stringify!($kind_key))?;)*
                    CollectiveKind::$kind { $($($kind_at:)? $kind_key,)* }
                })?)*)*
                _ => return Ok(None),
            }))
        }

        /// Writes the attributes of a collective except its group and variant.
        pub(super) fn write_kind(kind: &CollectiveKind, out: &mut TextWriter<'_>) {
            match kind {
                $($($(CollectiveKind::$kind { $($($kind_at:)? $kind_key,)* } => {
                    $(out.attribute(stringify!($kind_key), $kind_key);)*
                })?)*)*
            }
        }

        pub(super) fn write_attributes(op: &Op, out: &mut TextWriter<'_>) {
            match op {
                $($($(Op::$op { $($($at:)? $key,)* $($which: $value)? } => {
                    $(out.attribute(stringify!($key), $key);)*
                })?)*)*
                Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Custom(_) => {}
                Op::Attention { scale, cap, bounds, sink, log_sum_exp } => {
                    out.bounds(bounds);
                    out.attribute("scale", scale);
                    if let Some(cap) = cap {
                        out.attribute("cap", cap);
                    }
                    if *sink {
                        out.attribute("sink", sink);
                    }
                    if *log_sum_exp {
                        out.attribute("log_sum_exp", log_sum_exp);
                    }
                }
                Op::AttentionGradient { scale, bounds } => {
                    out.bounds(bounds);
                    out.attribute("scale", scale);
                }
                Op::Permuted { op, perm } => {
                    write_attributes(op, out);
                    out.attribute("perm", perm);
                }
                Op::Collective(c) => {
                    write_kind(&c.kind, out);
                    out.push_str(" group=");
                    out.push_group(c.group);
                    if let Some(variant) = &c.variant {
                        out.attribute("via", variant);
                    }
                }
                Op::Route(route) => {
                    out.attribute("experts", &route.experts);
                    out.attribute("align", &route.align);
                    out.attribute("layout", &route.layout);
                    if let Some(group) = route.group() {
                        out.push_str(" group=");
                        out.push_group(group);
                    }
                }
                Op::Shard { axis, group } => {
                    out.attribute("axis", axis);
                    out.push_str(" group=");
                    out.push_group(*group);
                }
                Op::Opaque { attributes, .. } => out.attribute("attributes", attributes),
            }
        }

        /// The dims among the attributes of an op. Kinds of collectives have none.
        pub fn op_dims(op: &Op) -> SmallVec<[&Dim; 2]> {
            let mut out = SmallVec::new();
            match op {
                $($($(Op::$op { $($($at:)? $key,)* $($which: $value)? } => {
                    $(out.extend($key.dims());)*
                })?)*)*
                Op::Attention { bounds, .. } | Op::AttentionGradient { bounds, .. } => out.extend(bounds.dims()),
                Op::Permuted { op, .. } => out = op_dims(op),
                Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Custom(_) => {}
                Op::Collective(_) | Op::Shard { .. } | Op::Route(_) | Op::Opaque { .. } => {}
            }
            out
        }

        pub fn op_dims_mut(op: &mut Op) -> SmallVec<[&mut Dim; 2]> {
            let mut out = SmallVec::new();
            match op {
                $($($(Op::$op { $($($at:)? $key,)* $($which: $value)? } => {
                    $(out.extend($key.dims_mut());)*
                })?)*)*
                Op::Attention { bounds, .. } | Op::AttentionGradient { bounds, .. } => out.extend(bounds.dims_mut()),
                Op::Permuted { op, .. } => out = op_dims_mut(op),
                Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Custom(_) => {}
                Op::Collective(_) | Op::Shard { .. } | Op::Route(_) | Op::Opaque { .. } => {}
            }
            out
        }
    };
}
pub(super) use ops;
