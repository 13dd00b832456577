//! The reference of the text form for people, as Markdown.

use std::fmt::{self, Write as _};

use super::forms::{EXAMPLE_PRELUDE, OP_SECTIONS, OpForm};
use crate::dispatch_form::DispatchForm;

/// The grammar of the text form and each of its ops with operands, attributes and an example.
pub fn reference() -> String {
    let forms: Vec<String> = DispatchForm::ALL.iter().map(|form| format!("\"{form}\"")).collect();
    let mut out = include_str!("grammar.md").replace("DISPATCH_FORMS", &forms.join(" | "));
    let _ = write!(out, "## Ops\nThe examples are nodes of this program:\n\n```text\n{EXAMPLE_PRELUDE}```\n");
    for section in OP_SECTIONS {
        let _ = write!(out, "\n### {}\n{}\n", section.title, section.about);
        for form in section.forms {
            let _ = write!(out, "\n{form}");
        }
    }
    out
}

impl fmt::Display for OpForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operands = if self.operands.is_empty() { "no operand" } else { self.operands };
        writeln!(f, "**`{}`** ({operands}): {}", self.name, self.meaning)?;
        writeln!(f, "```text\n{}\n```", self.example)
    }
}
