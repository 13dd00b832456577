//! Kernels that compute each position of an iteration space independently: the form of all element-wise ops,
//! of copies and of gathers, with one or several ops per kernel.
//!
//! A [`MapKernel`] consists of loaded operands, statements, and stored results. Values are rounded to their
//! dtype like stored elements, so several ops in one kernel give the same bits as separate ops. A result may
//! be exactly in place of an operand: each thread loads everything that it needs at its positions before it
//! stores there. Operands whose neighbours are a few elements apart are read by [`strided_reads`].
//!
//! [`strided_reads`]: super::strided_reads

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::lowering::KernelLowering;
use super::skinny::ProductEpilogue;
use super::space::{Strides, by_stride, collapse, max_offset};
use super::strided_reads::{self, ReadWindow, StridedOperand};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};

/// Threads of a block.
const THREADS_PER_BLOCK: usize = 256;
const MAX_GRID_BLOCKS: usize = i32::MAX as usize;

/// The index of a value within a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct MapValue(usize);

/// A coordinate from data: `position along an axis × stride` is added to an offset.
struct IndexTerm {
    index: MapValue,
    extent: usize,
    stride: isize,
    assertion: u32,
}

impl IndexTerm {
    /// All that the position depends on.
    fn place(&self) -> (MapValue, usize, isize) {
        (self.index, self.extent, self.stride)
    }
}

struct MapLoad {
    at: DevicePtr,
    kind: &'static str,
    strides: Strides,
    terms: Vec<IndexTerm>,
}

struct MapStore {
    at: DevicePtr,
    strides: Strides,
    value: MapValue,
}

/// How a load reads the neighbours of a thread.
enum NeighbourAccess {
    /// One element for all.
    Shared,
    /// One access to all of them.
    Vector,
    /// One access for each.
    Single,
    /// The accesses of a window, which the load with this index reads.
    Window { reader: usize, window: ReadWindow },
}

enum MapDefinition {
    Load(MapLoad),
    /// An expression of this type.
    Computed(&'static str, String),
}

/// A value as another generator emits it.
pub(super) enum MapStatement<'a> {
    /// An operand of this type, with its offset in elements at the coordinates `c0`, `c1`, ….
    Load { kind: &'static str, place: String },
    /// An expression of this type.
    Computed { kind: &'static str, expression: &'a str },
}

impl MapStatement<'_> {
    pub fn kind(&self) -> &'static str {
        match self {
            MapStatement::Load { kind, .. } | MapStatement::Computed { kind, .. } => kind,
        }
    }

    pub fn bytes(&self) -> usize {
        size(self.kind())
    }
}

pub(super) struct MapKernel {
    shape: Vec<usize>,
    values: Vec<MapDefinition>,
    stores: Vec<MapStore>,
    /// The assertion for divisions of integers by zero.
    divisor: Option<u32>,
}

fn size(kind: &str) -> usize {
    match kind {
        "u8" | "boolean" => 1,
        "u16" | "f16" | "bf16" => 2,
        "u32" | "int" | "float" => 4,
        _ => 8,
    }
}

impl MapKernel {
    pub fn over_shape(shape: &[usize]) -> MapKernel {
        MapKernel { shape: shape.to_vec(), values: Vec::new(), stores: Vec::new(), divisor: None }
    }

    /// An operand with these strides over the space. Equal operands are loaded once.
    pub fn load(&mut self, address: DevicePtr, kind: &'static str, strides: Strides) -> MapValue {
        let existing = self.values.iter().position(|definition| match definition {
            MapDefinition::Load(l) => {
                l.at == address && l.kind == kind && l.strides == strides && l.terms.is_empty()
            }
            MapDefinition::Computed(..) => false,
        });
        if let Some(existing) = existing {
            return MapValue(existing);
        }
        self.push(MapDefinition::Load(MapLoad { at: address, kind, strides, terms: Vec::new() }))
    }

    /// An operand at positions along some axes that other values give: `(index, extent, stride, assertion)`.
    pub fn gather(
        &mut self,
        at: DevicePtr,
        kind: &'static str,
        strides: Strides,
        terms: impl IntoIterator<Item = (MapValue, usize, isize, u32)>,
    ) -> MapValue {
        let terms = terms.into_iter().map(|(index, extent, stride, assertion)| IndexTerm {
            index,
            extent,
            stride,
            assertion,
        });
        self.push(MapDefinition::Load(MapLoad { at, kind, strides, terms: terms.collect() }))
    }

    pub fn compute(&mut self, kind: &'static str, expression: String) -> MapValue {
        self.push(MapDefinition::Computed(kind, expression))
    }

    pub fn store(&mut self, at: DevicePtr, strides: Strides, value: MapValue) {
        self.stores.push(MapStore { at, strides, value });
    }

    /// Divisions by zero in this map are reported with this assertion.
    pub fn set_divisor_assertion(&mut self, assertion: u32) {
        self.divisor = Some(assertion);
    }

    /// Whether divisions by zero are already reported.
    pub fn has_divisor(&self) -> bool {
        self.divisor.is_some()
    }

    pub fn name(value: MapValue) -> String {
        format!("v{}", value.0)
    }

    /// The index of a value in the order of [`statements`](Self::statements).
    pub fn index(value: MapValue) -> usize {
        value.0
    }

    /// All values, in the order in which they were added.
    pub fn statements(&self) -> Vec<MapStatement<'_>> {
        let statements = self.values.iter().map(|definition| match definition {
            &MapDefinition::Load(MapLoad { kind, ref strides, .. }) => {
                MapStatement::Load { kind, place: linear(strides) }
            }
            MapDefinition::Computed(kind, expression) => MapStatement::Computed { kind, expression },
        });
        statements.collect()
    }

    /// The stores: the type, the offset in elements at the coordinates `c0`, `c1`, …, and the index of the
    /// value.
    pub fn stores(&self) -> impl Iterator<Item = (&'static str, String, usize)> {
        self.stores.iter().map(|s| (self.kind(s.value), linear(&s.strides), s.value.0))
    }

    pub fn stored_values(&self) -> impl Iterator<Item = MapValue> {
        self.stores.iter().map(|s| s.value)
    }

    /// Statements that compute the coordinates of the row with this number, which are all but the last.
    pub fn row_coordinates(&self, row: &str) -> String {
        let mut out = format!("    i64 t = {row};\n");
        for (axis, n) in self.shape.iter().enumerate().rev().skip(1) {
            let _ = writeln!(out, "    const i64 c{axis} = t % {n}; t /= {n};");
        }
        out
    }

    /// The number of positions.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn push(&mut self, def: MapDefinition) -> MapValue {
        self.values.push(def);
        MapValue(self.values.len() - 1)
    }

    fn loads(&self) -> impl Iterator<Item = (usize, &MapLoad)> {
        self.values.iter().enumerate().filter_map(|(i, d)| match d {
            MapDefinition::Load(l) => Some((i, l)),
            MapDefinition::Computed(..) => None,
        })
    }

    fn kind(&self, value: MapValue) -> &'static str {
        match &self.values[value.0] {
            MapDefinition::Load(l) => l.kind,
            MapDefinition::Computed(kind, _) => kind,
        }
    }

    /// Sorts the axes into the order of the first result in memory and joins them.
    fn collapse(&mut self) {
        if let Some(first) = self.stores.first() {
            let order = by_stride(&self.shape, &first.strides);
            self.shape = order.iter().map(|&a| self.shape[a]).collect();
            for def in &mut self.values {
                if let MapDefinition::Load(l) = def {
                    permute(&mut l.strides, &order);
                }
            }
            for store in &mut self.stores {
                permute(&mut store.strides, &order);
            }
        }
        let loads = self.values.iter_mut().filter_map(|d| match d {
            MapDefinition::Load(l) => Some(&mut l.strides),
            MapDefinition::Computed(..) => None,
        });
        let mut strides: SmallVec<[&mut Strides; 8]> =
            loads.chain(self.stores.iter_mut().map(|s| &mut s.strides)).collect();
        collapse(&mut self.shape, &mut strides);
        if self.shape.is_empty() {
            self.shape.push(1);
            strides.iter_mut().for_each(|s| s.push(0));
        }
    }

    /// The number of neighbours that one thread computes, so that each memory access has up to 16 bytes. What all
    /// neighbours read, such as the index of a row, is one access.
    fn width(&self) -> usize {
        let last_axis = self.shape.len() - 1;
        let operands = || {
            let loads = self.loads().map(|(_, l)| (l.at, size(l.kind), &l.strides, &l.terms[..]));
            loads.chain(self.stores.iter().map(|s| (s.at, size(self.kind(s.value)), &s.strides, &[][..])))
        };
        let indices = self.loads().flat_map(|(_, l)| &l.terms).map(|t| t.index);
        let varies_along = indices.into_iter().any(
            |index| matches!(&self.values[index.0], MapDefinition::Load(l) if l.strides[last_axis] != 0),
        );
        let has_far_neighbours = |strides: &Strides| {
            !matches!(strides[last_axis], 0 | 1) && strided_reads::step_of(strides[last_axis]).is_none()
        };
        if self.shape[last_axis] == 1 || varies_along || operands().any(|o| has_far_neighbours(o.2)) {
            return 1;
        }
        if self.stores.iter().any(|s| s.strides[last_axis] != 1) {
            return 1;
        }
        let widest = operands().filter(|o| o.2[last_axis] != 0).map(|o| o.1).max().unwrap_or(1);
        let mut width = 16 / widest;
        while width > 1 {
            let divides_rows = self.shape.len() == 1 || self.shape[last_axis].is_multiple_of(width);
            let aligned = divides_rows
                && operands().filter(|o| o.2[last_axis] == 1).all(|(address, size, strides, terms)| {
                    address.is_multiple_of((width * size) as u64)
                        && strides[..last_axis].iter().all(|s| s.unsigned_abs().is_multiple_of(width))
                        && terms.iter().all(|t| t.stride.unsigned_abs().is_multiple_of(width))
                })
                && self
                    .loads()
                    .all(|(_, l)| l.strides[last_axis] < 2 || self.read_window(l, width).is_some());
            if aligned && self.shape[last_axis] >= width {
                break;
            }
            width /= 2;
        }
        width
    }

    /// The accesses that read a load at `width` neighbours, if its neighbours are a few elements apart.
    fn read_window(&self, load: &MapLoad, width: usize) -> Option<ReadWindow> {
        let (&stride, outer) = load.strides.split_last()?;
        let step = strided_reads::step_of(stride)?;
        // A power of two that divides all strides; accesses have up to 16 elements.
        let strides = outer.iter().copied().chain(load.terms.iter().map(|t| t.stride));
        let outer_alignment = 1 << strides.map(|s| s.trailing_zeros().min(4)).min().unwrap_or(4);
        let operand = StridedOperand { at: load.at, size: size(load.kind), step, outer_alignment };
        strided_reads::read_window(&operand, width)
    }

    /// How the load with this index reads `width` neighbours. The first load of interleaved ones reads the
    /// window for all.
    fn neighbour_access(&self, index: usize, load: &MapLoad, width: usize) -> NeighbourAccess {
        match load.strides.last() {
            None | Some(0) => return NeighbourAccess::Shared,
            Some(1) => return NeighbourAccess::Vector,
            _ => {}
        }
        let Some(mut window) = self.read_window(load, width) else { return NeighbourAccess::Single };
        let mut reader = index;
        for (i, other) in self.loads() {
            let is_same_place = other.kind == load.kind
                && other.strides == load.strides
                && other.terms.iter().map(IndexTerm::place).eq(load.terms.iter().map(IndexTerm::place));
            let Some(shared) = self
                .read_window(other, width)
                .filter(|w| i == index || is_same_place && w.covers_same_memory(&window))
            else {
                continue;
            };
            reader = reader.min(i);
            window.count = window.count.max(shared.count);
        }
        NeighbourAccess::Window { reader, window }
    }

    /// The largest number of neighbours along the last axis that one thread can compute and that divides the
    /// axis.
    pub fn row_access_width(&self) -> usize {
        let n = self.shape.last().copied().unwrap_or(1);
        let mut width = self.width();
        while !n.is_multiple_of(width) {
            width /= 2;
        }
        width
    }

    /// The same for a generator that reads neighbours of one operand as one access: 1 if some are apart.
    pub fn contiguous_access_width(&self) -> usize {
        let has_steps = self.loads().any(|(_, l)| l.strides.last().is_some_and(|&stride| stride > 1));
        if has_steps { 1 } else { self.row_access_width() }
    }

    /// A function of a row `at` and a column `k` that computes `width` neighbours and returns their values in
    /// the computed type.
    pub fn elements(&self, width: usize, value: MapValue, computed: &str) -> String {
        let mut out = format!("[&](i64 k, {computed} *c) {{\n        typedef i64 O;\n        i64 t = at;\n");
        let last_axis = self.shape.len() - 1;
        for axis in (0..last_axis).rev() {
            let n = self.shape[axis];
            let _ = writeln!(out, "        const i64 c{axis} = t % {n}; t /= {n};");
        }
        let _ = writeln!(out, "        const i64 c{last_axis} = k;");
        self.emit_vector(&mut out, width, &format!("c[j] = get(v{});", value.0));
        out.push_str("    }");
        out
    }

    /// The epilogue of a product kernel at one position, if this map is over its `[m, n]`, with leading axes
    /// joined. Values may be expressions of `sum`.
    pub fn epilogue(self, [m, n]: [usize; 2]) -> Option<ProductEpilogue> {
        let (&last, leading) = self.shape.split_last()?;
        if last != n
            || leading.iter().product::<usize>() != m
            || self.has_assertions()
            || self.stores.is_empty()
        {
            return None;
        }
        let mut body = String::from("        typedef i64 O;\n        i64 t = row;\n");
        for (axis, extent) in leading.iter().enumerate().rev() {
            let _ = writeln!(body, "        const i64 c{axis} = t % {extent}; t /= {extent};");
        }
        let _ = writeln!(body, "        const i64 c{} = column;", leading.len());
        for (i, def) in self.values.iter().enumerate() {
            let (kind, value) = match def {
                MapDefinition::Load(l) => {
                    (l.kind, format!("((const {} *)p{i})[{}]", l.kind, linear(&l.strides)))
                }
                MapDefinition::Computed(kind, expression) => (*kind, expression.clone()),
            };
            let _ = writeln!(body, "        const {kind} v{i} = {value};");
        }
        for (k, store) in self.stores.iter().enumerate() {
            let kind = self.kind(store.value);
            let position = linear(&store.strides);
            let _ = writeln!(body, "        (({kind} *)q{k})[{position}] = v{};", store.value.0);
        }
        let declared = self.declared().collect();
        let params = self.addresses().collect();
        Some(ProductEpilogue { layouts: String::new(), declared, params, body })
    }

    /// The declarations of the address parameters; their values are [`addresses`](Self::addresses).
    pub fn declared(&self) -> impl Iterator<Item = String> {
        let loads = self.loads().map(|(i, _)| format!("const void *p{i}"));
        loads.chain((0..self.stores.len()).map(|k| format!("void *q{k}")))
    }

    pub fn addresses(&self) -> impl Iterator<Item = KernelParam> {
        self.loads().map(|(_, l)| l.at.into()).chain(self.stores.iter().map(|s| s.at.into()))
    }

    /// The launch; `None` if there is no position.
    pub fn finish(mut self, what: &str, lowering: &mut KernelLowering<'_>) -> Option<GpuCommand> {
        if self.len() == 0 || self.stores.is_empty() {
            return None;
        }
        self.collapse();
        let width = self.width();
        let total: usize = self.shape.iter().product();
        let vectors = total / width;
        let text = self.text(width, vectors, total - vectors * width);
        lowering.preludes();
        let entry = lowering.source.function(what, text);
        // Each thread computes one vector. Many short blocks reach a higher memory bandwidth than persistent
        // blocks.
        let blocks = vectors.div_ceil(THREADS_PER_BLOCK).clamp(1, MAX_GRID_BLOCKS);
        let mut params: Vec<KernelParam> = self.addresses().collect();
        if self.has_assertions() {
            params.push(lowering.machine.status.into());
            params.extend(self.assertions().map(KernelParam::from));
        }
        Some(GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, THREADS_PER_BLOCK, params)))
    }

    /// The largest offset of an access in elements.
    pub fn max_offset(&self) -> u64 {
        let loads = self.loads().map(|(_, l)| self.max_reach(&l.strides, &l.terms));
        let stores = self.stores.iter().map(|s| self.max_reach(&s.strides, &[]));
        loads.chain(stores).max().unwrap_or(0)
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    fn max_reach(&self, strides: &Strides, terms: &[IndexTerm]) -> u64 {
        let by_data: u64 = terms.iter().map(|t| t.extent as u64 * t.stride.unsigned_abs() as u64).sum();
        max_offset(&self.shape, strides) + by_data
    }

    /// The assertions, in the order of the parameters of [`emit_vector`](Self::emit_vector).
    pub fn assertions(&self) -> impl Iterator<Item = u32> {
        self.loads().flat_map(|(_, l)| l.terms.iter().map(|t| t.assertion)).chain(self.divisor)
    }

    pub fn has_assertions(&self) -> bool {
        self.assertions().next().is_some()
    }

    fn text(&self, width: usize, vectors: usize, rest: usize) -> String {
        let mut params: Vec<String> = self.declared().collect();
        if self.has_assertions() {
            params.push("void *status".into());
            params.extend((0..self.assertions().count()).map(|i| format!("unsigned assertion{i}")));
        }
        let total: usize = self.shape.iter().product();
        let farthest = self.max_offset();
        // The index must not wrap around when all threads step beyond the last position.
        let index = if total < 1 << 31 { "u32" } else { "u64" };
        let offset = if farthest < 1 << 31 { "int" } else { "i64" };
        let mut out = format!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS_PER_BLOCK}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n    \
             typedef {index} I;\n    typedef {offset} O;\n",
            params.join(", ")
        );
        let _ = writeln!(
            out,
            "    for (I i = (I)blockIdx.x * {THREADS_PER_BLOCK}u + threadIdx.x; i < (I){vectors}ull; i += (I)gridDim.x * {THREADS_PER_BLOCK}u) {{"
        );
        self.body(&mut out, width, 0);
        out.push_str("    }\n");
        if rest > 0 {
            let _ =
                writeln!(out, "    if (blockIdx.x == 0 && threadIdx.x < {rest}u) {{\n    I i = threadIdx.x;");
            self.body(&mut out, 1, vectors * width);
            out.push_str("    }\n");
        }
        out.push_str("}\n");
        out
    }

    /// The work at vector `i` of `width` positions, counted from position `first` of a space of one axis.
    fn body(&self, out: &mut String, width: usize, first: usize) {
        let last_axis = self.shape.len() - 1;
        let _ = writeln!(out, "        I t = i;");
        for axis in (0..=last_axis).rev() {
            let n = if axis == last_axis && first == 0 { self.shape[axis] / width } else { self.shape[axis] };
            let scale = if axis == last_axis { width } else { 1 };
            let c = if axis == 0 { "t".to_string() } else { format!("t % (I){n}u") };
            let start =
                if axis == last_axis && first > 0 { format!(" + (O){first}ll") } else { String::new() };
            let _ = writeln!(out, "        O c{axis} = (O)({c}) * {scale}{start};");
            if axis > 0 {
                let _ = writeln!(out, "        t /= (I){n}u;");
            }
        }
        self.emit_vector(out, width, "");
    }

    /// The work at `width` positions from the coordinates `c0`, `c1`, … on; `each` runs with the values of
    /// each position.
    pub fn emit_vector(&self, out: &mut String, width: usize, each: &str) {
        let mut assertion = 0;
        for (i, load) in self.loads() {
            self.load_text(out, i, load, width, &mut assertion);
        }
        for (k, store) in self.stores.iter().enumerate() {
            let _ = writeln!(out, "        Few<{}, {width}> r{k};", self.kind(store.value));
        }
        if self.divisor.is_some() {
            out.push_str("        bool bad = false;\n");
        }
        let _ = writeln!(out, "#pragma unroll\n        for (int j = 0; j < {width}; j++) {{");
        for (i, def) in self.values.iter().enumerate() {
            let _ = match def {
                MapDefinition::Load(l) => {
                    let value = match self.neighbour_access(i, l, width) {
                        NeighbourAccess::Shared => format!("x{i}"),
                        NeighbourAccess::Vector | NeighbourAccess::Single => format!("x{i}.e[j]"),
                        NeighbourAccess::Window { reader, window } => {
                            window.element_text(&format!("x{reader}"))
                        }
                    };
                    writeln!(out, "            const {} v{i} = {value};", l.kind)
                }
                MapDefinition::Computed(kind, expression) => {
                    writeln!(out, "            const {kind} v{i} = {expression};")
                }
            };
        }
        for (k, store) in self.stores.iter().enumerate() {
            let _ = writeln!(out, "            r{k}.e[j] = v{};", store.value.0);
        }
        let _ = writeln!(out, "            {each}\n        }}");
        if self.divisor.is_some() {
            let _ = writeln!(out, "        if (bad) report(status, assertion{assertion}, 0);");
        }
        for (k, store) in self.stores.iter().enumerate() {
            let kind = self.kind(store.value);
            let position = linear(&store.strides);
            let _ = writeln!(out, "        write<{kind}, {width}>(({kind} *)q{k} + ({position}), r{k});");
        }
    }

    fn load_text(&self, out: &mut String, i: usize, load: &MapLoad, width: usize, assertion: &mut usize) {
        let mut position = linear(&load.strides);
        for (k, term) in load.terms.iter().enumerate() {
            let index = match &self.values[term.index.0] {
                MapDefinition::Load(l) if l.strides[self.shape.len() - 1] == 0 => {
                    format!("x{}", term.index.0)
                }
                _ => format!("x{}.e[0]", term.index.0),
            };
            let _ = writeln!(
                out,
                "        const i64 g{i}_{k} = position(get({index}), {}ll);\n        \
                 if (g{i}_{k} < 0) {{ report(status, assertion{assertion}, get({index})); return; }}",
                term.extent
            );
            let _ = write!(position, " + (O)g{i}_{k} * (O){}ll", term.stride);
            *assertion += 1;
        }
        let kind = load.kind;
        let element = format!("(const {kind} *)p{i} + ({position})");
        let _ = match self.neighbour_access(i, load, width) {
            NeighbourAccess::Shared => writeln!(out, "        const {kind} x{i} = *({element});"),
            NeighbourAccess::Vector => writeln!(
                out,
                "        Few<{kind}, {width}> x{i};\n        read<{kind}, {width}>(x{i}, {element});"
            ),
            NeighbourAccess::Single => writeln!(
                out,
                "        Few<{kind}, {width}> x{i};\n#pragma unroll\n        \
                 for (int j = 0; j < {width}; j++) x{i}.e[j] = ({element})[j * (O){}ll];",
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

fn permute(strides: &mut Strides, order: &[usize]) {
    *strides = order.iter().map(|&axis| strides[axis]).collect();
}

/// The offset at the coordinates `c0`, `c1`, ….
pub(super) fn linear(strides: &Strides) -> String {
    let terms = strides.iter().enumerate().filter(|(_, s)| **s != 0);
    let terms: Vec<String> =
        terms.map(|(a, s)| if *s == 1 { format!("c{a}") } else { format!("c{a} * (O){s}ll") }).collect();
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}
