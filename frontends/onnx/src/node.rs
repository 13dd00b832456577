//! The names of nodes, ops and attributes in messages.

use crate::proto::{self, attribute_type as kind};

/// The name of a node, or the name of its first result if the node has none.
pub(crate) fn node_label(node: &proto::NodeProto) -> &str {
    let first = node.output.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
    if node.name.is_empty() { first } else { &node.name }
}

/// A domain in canonical form: ONNX's own domain is `ai.onnx` or empty.
pub(crate) fn normalize_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// The op of a node with its domain, for messages.
pub(crate) fn display_name(node: &proto::NodeProto) -> String {
    match normalize_domain(&node.domain) {
        "" => node.op_type.clone(),
        domain => format!("{domain}::{}", node.op_type),
    }
}

pub(crate) fn describe_attribute(a: &proto::AttributeProto) -> String {
    let value = match a.r#type {
        kind::FLOAT => a.f.to_string(),
        kind::INT => a.i.to_string(),
        kind::STRING => format!("'{}'", String::from_utf8_lossy(&a.s)),
        kind::FLOATS => format!("{:?}", a.floats),
        kind::INTS => format!("{:?}", a.ints),
        kind::STRINGS => format!("{} strings", a.strings.len()),
        kind::TENSOR => "a tensor".into(),
        kind::GRAPH => "a graph".into(),
        other => format!("an attribute of type {other}"),
    };
    format!("{}={value}", a.name)
}

/// The ops that run graphs as their nodes say.
pub(crate) const CONTROL_FLOW: [&str; 3] = ["If", "Loop", "Scan"];

pub(crate) fn is_control_flow(node: &proto::NodeProto) -> bool {
    normalize_domain(&node.domain).is_empty() && CONTROL_FLOW.contains(&node.op_type.as_str())
}
