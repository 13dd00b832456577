//! The text of one access: the work of a thread at neighbours along the last axis.

use std::fmt::Write as _;

use super::body::{Definition, Load, LoopBody, LoopValue, NeighbourAccess, linear};

/// How an access has a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueUse {
    /// Unused, or already declared outside of the access.
    Absent,
    /// Loaded or computed.
    Computed,
    /// Loaded or computed, and kept in a register for later accesses to the same positions.
    Kept,
    /// Kept in a register by an earlier access.
    Register,
}

/// The work of an access.
pub(super) struct Access<'a> {
    pub width: usize,
    /// For each value of the body.
    pub uses: &'a [ValueUse],
    /// The stores, by their indices.
    pub stores: &'a [usize],
    /// The expressions of results of reductions at neighbour `j`.
    pub reduced: &'a [(LoopValue, String)],
    /// A statement that runs with the values of each neighbour.
    pub each: &'a str,
}

impl LoopBody {
    /// Emits an access at the coordinates `c0`, `c1`, ….
    pub(super) fn emit(&self, out: &mut String, access: &Access<'_>) {
        let width = access.width;
        for (i, load) in self.loads().filter(|(i, _)| access.uses[*i] != ValueUse::Absent) {
            self.emit_load(out, i, load, access);
        }
        for &k in access.stores {
            let _ = writeln!(out, "        Few<{}, {width}> r{k};", self.kind(self.stores[k].value));
        }
        if self.has_divisor() {
            out.push_str("        bool bad = false;\n");
        }
        let _ = writeln!(out, "#pragma unroll\n        for (int j = 0; j < {width}; j++) {{");
        for (i, definition) in self.values.iter().enumerate() {
            let value = match definition {
                _ if access.uses[i] == ValueUse::Absent => continue,
                Definition::Load(load) => self.element(i, load, access),
                _ if access.uses[i] == ValueUse::Register => format!("x{i}[i][j]"),
                Definition::Computed { expression, .. } => expression.clone(),
                Definition::Reduced { .. } => {
                    let known = access.reduced.iter().find(|(value, _)| value.0 == i);
                    known.map(|(_, expression)| expression.clone()).unwrap_or_default()
                }
            };
            let _ = writeln!(out, "            const {} v{i} = {value};", definition.kind());
            if access.uses[i] == ValueUse::Kept && !matches!(definition, Definition::Load(_)) {
                let _ = writeln!(out, "            x{i}[i][j] = v{i};");
            }
        }
        for &k in access.stores {
            let _ = writeln!(out, "            r{k}.e[j] = v{};", self.stores[k].value.0);
        }
        let _ = writeln!(out, "            {}\n        }}", access.each);
        if self.has_divisor() {
            let assertion = self.assertions().count() - 1;
            let _ = writeln!(out, "        if (bad) report(status, assertion{assertion}, 0);");
        }
        for &k in access.stores {
            let kind = self.kind(self.stores[k].value);
            let position = linear(&self.stores[k].strides);
            let _ = writeln!(out, "        write<{kind}, {width}>(({kind} *)q{k} + ({position}), r{k});");
        }
    }

    /// An element of a load at neighbour `j`.
    fn element(&self, i: usize, load: &Load, access: &Access<'_>) -> String {
        if access.uses[i] != ValueUse::Computed {
            return format!("x{i}[i].e[j]");
        }
        match self.neighbour_access(i, load, access.width, |i| access.uses[i] != ValueUse::Absent) {
            NeighbourAccess::Shared => format!("x{i}"),
            NeighbourAccess::Vector | NeighbourAccess::Single => format!("x{i}.e[j]"),
            NeighbourAccess::Window { reader, window } => window.element_text(&format!("x{reader}")),
        }
    }

    fn emit_load(&self, out: &mut String, i: usize, load: &Load, access: &Access<'_>) {
        let width = access.width;
        let mut position = linear(&load.strides);
        let before = self.loads().take_while(|(other, _)| *other < i);
        let first_assertion: usize = before.map(|(_, load)| load.terms.len()).sum();
        for (k, term) in load.terms.iter().enumerate() {
            let index = match &self.values[term.index.0] {
                Definition::Load(l) if l.strides[self.shape.len() - 1] == 0 => format!("x{}", term.index.0),
                _ => format!("x{}.e[0]", term.index.0),
            };
            let assertion = first_assertion + k;
            let _ = writeln!(
                out,
                "        const i64 g{i}_{k} = position(get({index}), {}ll);\n        \
                 if (g{i}_{k} < 0) {{ report(status, assertion{assertion}, get({index})); return; }}",
                term.extent
            );
            let _ = write!(position, " + (O)g{i}_{k} * (O){}ll", term.stride);
        }
        let kind = load.kind;
        let element = format!("(const {kind} *)p{i} + ({position})");
        let (declared, name) = match access.uses[i] {
            ValueUse::Register => return,
            ValueUse::Kept => (String::new(), format!("x{i}[i]")),
            _ => (format!("        Few<{kind}, {width}> x{i};\n"), format!("x{i}")),
        };
        let _ = match self.neighbour_access(i, load, width, |i| access.uses[i] != ValueUse::Absent) {
            NeighbourAccess::Shared if declared.is_empty() => {
                writeln!(out, "        for (int j = 0; j < {width}; j++) {name}.e[j] = *({element});")
            }
            NeighbourAccess::Shared => writeln!(out, "        const {kind} x{i} = *({element});"),
            NeighbourAccess::Vector => {
                writeln!(out, "{declared}        read<{kind}, {width}>({name}, {element});")
            }
            NeighbourAccess::Single => writeln!(
                out,
                "{declared}#pragma unroll\n        \
                 for (int j = 0; j < {width}; j++) {name}.e[j] = ({element})[j * (O){}ll];",
                load.strides.last().copied().unwrap_or(0)
            ),
            NeighbourAccess::Window { reader, window } => {
                if reader == i {
                    window.read_text(out, &format!("x{i}"), kind, &element);
                }
                Ok(())
            }
        };
    }
}

/// The text of a function with these parameters and this body.
pub(super) fn function_text(threads: usize, parameters: &[String], body: &str) -> String {
    format!(
        "extern \"C\" __global__ void __launch_bounds__({threads}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n{body}}}\n",
        parameters.join(", ")
    )
}

impl LoopBody {
    /// The declarations of all parameters: the addresses, and what failed assertions need.
    pub(super) fn parameters(&self) -> Vec<String> {
        let mut out: Vec<String> = self.declared().collect();
        if self.has_assertions() {
            out.push("void *status".into());
            out.extend((0..self.assertions().count()).map(|i| format!("unsigned assertion{i}")));
        }
        out
    }
}
