//! The body of a loop nest: loaded operands, statements and stored results over an iteration space.
//!
//! Values are rounded to their dtype like stored elements, so several ops in one kernel give the same bits as separate
//! ops. A result may be exactly in place of an operand: each thread loads everything that it needs at its positions
//! before it stores there.

use super::super::space::{Strides, by_stride, collapse, max_offset};
use super::strided_reads::{self, ReadWindow, StridedOperand};
use crate::device::launch::{DevicePtr, KernelParam};

/// The index of a value within a body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct LoopValue(pub(super) usize);

/// A coordinate from data: `position along an axis × stride` is added to an offset.
pub(in super::super) struct IndexTerm {
    pub index: LoopValue,
    pub extent: usize,
    pub stride: isize,
    pub assertion: u32,
}

impl IndexTerm {
    /// All that the position depends on.
    fn place(&self) -> (LoopValue, usize, isize) {
        (self.index, self.extent, self.stride)
    }
}

pub(super) struct Load {
    pub at: DevicePtr,
    pub kind: &'static str,
    pub strides: Strides,
    pub terms: Vec<IndexTerm>,
}

pub(super) struct Store {
    pub at: DevicePtr,
    pub strides: Strides,
    pub value: LoopValue,
    /// Whether it has one element for each result of a reduction.
    pub is_reduced: bool,
}

pub(super) enum Definition {
    Load(Load),
    /// An expression of this type of these values.
    Computed {
        kind: &'static str,
        expression: String,
        operands: Vec<LoopValue>,
    },
    /// A number of this type that a reduction sets.
    Reduced {
        kind: &'static str,
    },
}

impl Definition {
    pub fn kind(&self) -> &'static str {
        match self {
            Definition::Load(Load { kind, .. })
            | Definition::Computed { kind, .. }
            | Definition::Reduced { kind, .. } => kind,
        }
    }

    pub fn bytes(&self) -> usize {
        size(self.kind())
    }
}

/// How a load reads the neighbours of a thread.
pub(super) enum NeighbourAccess {
    /// One element for all.
    Shared,
    /// One access to all of them.
    Vector,
    /// One access for each.
    Single,
    /// The accesses of a window, which the load with this index reads.
    Window { reader: usize, window: ReadWindow },
}

pub(in super::super) struct LoopBody {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<Definition>,
    pub(super) stores: Vec<Store>,
    /// The assertion for divisions of integers by zero.
    pub(super) divisor: Option<u32>,
}

fn size(kind: &str) -> usize {
    match kind {
        "u8" | "boolean" => 1,
        "u16" | "f16" | "bf16" => 2,
        "u32" | "int" | "float" => 4,
        _ => 8,
    }
}

impl LoopBody {
    pub fn over_shape(shape: &[usize]) -> LoopBody {
        LoopBody { shape: shape.to_vec(), values: Vec::new(), stores: Vec::new(), divisor: None }
    }

    /// An operand with these strides over the space. Equal operands are loaded once.
    pub fn load(&mut self, address: DevicePtr, kind: &'static str, strides: Strides) -> LoopValue {
        self.gather(address, kind, strides, Vec::new())
    }

    /// An operand at positions along some axes that other values give.
    pub fn gather(
        &mut self,
        at: DevicePtr,
        kind: &'static str,
        strides: Strides,
        terms: Vec<IndexTerm>,
    ) -> LoopValue {
        let existing = self.loads().find(|(_, load)| {
            (load.at, load.kind, &load.strides) == (at, kind, &strides) && load.terms.is_empty()
        });
        match existing {
            Some((existing, _)) if terms.is_empty() => LoopValue(existing),
            _ => self.push(Definition::Load(Load { at, kind, strides, terms })),
        }
    }

    pub fn compute(
        &mut self,
        kind: &'static str,
        expression: String,
        operands: impl IntoIterator<Item = LoopValue>,
    ) -> LoopValue {
        self.push(Definition::Computed { kind, expression, operands: operands.into_iter().collect() })
    }

    /// A number that a reduction sets.
    pub fn reduced(&mut self, kind: &'static str) -> LoopValue {
        self.push(Definition::Reduced { kind })
    }

    pub fn store(&mut self, at: DevicePtr, strides: Strides, value: LoopValue) {
        self.stores.push(Store { at, strides, value, is_reduced: false });
    }

    /// Divisions by zero in this body are reported with this assertion.
    pub fn set_divisor_assertion(&mut self, assertion: u32) {
        self.divisor = Some(assertion);
    }

    /// Whether divisions by zero are already reported.
    pub fn has_divisor(&self) -> bool {
        self.divisor.is_some()
    }

    pub fn name(value: LoopValue) -> String {
        format!("v{}", value.0)
    }

    /// The number of positions.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn push(&mut self, definition: Definition) -> LoopValue {
        self.values.push(definition);
        LoopValue(self.values.len() - 1)
    }

    pub(super) fn loads(&self) -> impl Iterator<Item = (usize, &Load)> {
        self.values.iter().enumerate().filter_map(|(i, definition)| match definition {
            Definition::Load(load) => Some((i, load)),
            _ => None,
        })
    }

    pub(super) fn kind(&self, value: LoopValue) -> &'static str {
        self.values[value.0].kind()
    }

    /// The computed values, in order, as statements of `v0`, `v1`, …; `None` if there are others.
    pub fn computed_statements(&self) -> Option<Vec<String>> {
        let statement = |(i, definition): (usize, &Definition)| match definition {
            Definition::Computed { kind, expression, .. } => {
                Some(format!("const {kind} v{i} = {expression};"))
            }
            _ => None,
        };
        self.values.iter().enumerate().map(statement).collect()
    }

    fn all_strides(&mut self) -> Vec<&mut Strides> {
        let loads = self.values.iter_mut().filter_map(|definition| match definition {
            Definition::Load(load) => Some(&mut load.strides),
            _ => None,
        });
        loads.chain(self.stores.iter_mut().map(|store| &mut store.strides)).collect()
    }

    /// Sorts the axes into the order of the first result in memory.
    pub(super) fn sort_axes(&mut self) {
        let Some(first) = self.stores.first() else { return };
        let order = by_stride(&self.shape, &first.strides);
        self.shape = order.iter().map(|&axis| self.shape[axis]).collect();
        for strides in self.all_strides() {
            *strides = order.iter().map(|&axis| strides[axis]).collect();
        }
    }

    /// Joins axes before position `split`, and those from there on, where the strides of all operands allow it. Each
    /// part keeps at least one axis. Returns the new position.
    pub(super) fn collapse(&mut self, split: usize) -> usize {
        let mut outer_shape = self.shape.clone();
        let mut inner_shape = outer_shape.split_off(split);
        let mut strides = self.all_strides();
        let mut inner: Vec<Strides> = strides.iter().map(|s| Strides::from_slice(&s[split..])).collect();
        strides.iter_mut().for_each(|s| s.truncate(split));
        collapse(&mut outer_shape, &mut strides);
        collapse(&mut inner_shape, &mut inner.iter_mut().collect::<Vec<_>>());
        if inner_shape.is_empty() {
            inner_shape.push(1);
            inner.iter_mut().for_each(|s| s.push(0));
        }
        strides.iter_mut().zip(inner).for_each(|(outer, inner)| outer.extend(inner));
        let split = outer_shape.len();
        self.shape = [outer_shape, inner_shape].concat();
        split
    }

    /// The number of neighbours along the last axis that one thread computes, so that each memory access has up to 16
    /// bytes. What all neighbours read, such as the index of a row, is one access.
    pub(super) fn width(&self) -> usize {
        let last_axis = self.shape.len() - 1;
        // Stores of the results of reductions of this axis are separate.
        let stores = || self.stores.iter().filter(|s| !(s.is_reduced && s.strides[last_axis] == 0));
        let operands = || {
            let loads = self.loads().map(|(_, l)| (l.at, size(l.kind), &l.strides, &l.terms[..]));
            loads.chain(stores().map(|s| (s.at, size(self.kind(s.value)), &s.strides, &[][..])))
        };
        let indices = self.loads().flat_map(|(_, l)| &l.terms).map(|t| t.index);
        let varies_along = indices
            .into_iter()
            .any(|index| matches!(&self.values[index.0], Definition::Load(l) if l.strides[last_axis] != 0));
        let has_far_neighbours = |strides: &Strides| {
            !matches!(strides[last_axis], 0 | 1) && strided_reads::step_of(strides[last_axis]).is_none()
        };
        if self.shape[last_axis] == 1 || varies_along || operands().any(|o| has_far_neighbours(o.2)) {
            return 1;
        }
        if stores().any(|s| s.strides[last_axis] != 1) {
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

    /// The largest [`width`](Self::width) that divides the last axis.
    pub(super) fn row_access_width(&self) -> usize {
        let n = self.shape.last().copied().unwrap_or(1);
        let mut width = self.width();
        while !n.is_multiple_of(width) {
            width /= 2;
        }
        width
    }

    /// The accesses that read a load at `width` neighbours, if its neighbours are a few elements apart.
    fn read_window(&self, load: &Load, width: usize) -> Option<ReadWindow> {
        let (&stride, outer) = load.strides.split_last()?;
        let step = strided_reads::step_of(stride)?;
        // A power of two that divides all strides; accesses have up to 16 elements.
        let strides = outer.iter().copied().chain(load.terms.iter().map(|t| t.stride));
        let outer_alignment = 1 << strides.map(|s| s.trailing_zeros().min(4)).min().unwrap_or(4);
        let operand = StridedOperand { at: load.at, size: size(load.kind), step, outer_alignment };
        strided_reads::read_window(&operand, width)
    }

    /// How the load with this index reads `width` neighbours. The first of the used loads that are interleaved reads the
    /// window for all.
    pub(super) fn neighbour_access(
        &self,
        index: usize,
        load: &Load,
        width: usize,
        is_used: impl Fn(usize) -> bool,
    ) -> NeighbourAccess {
        match load.strides.last() {
            None | Some(0) => return NeighbourAccess::Shared,
            Some(1) => return NeighbourAccess::Vector,
            _ => {}
        }
        let Some(mut window) = self.read_window(load, width) else { return NeighbourAccess::Single };
        let mut reader = index;
        for (i, other) in self.loads().filter(|(i, _)| is_used(*i)) {
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

    /// The declarations of the address parameters; their values are [`addresses`](Self::addresses).
    pub fn declared(&self) -> impl Iterator<Item = String> {
        let loads = self.loads().map(|(i, _)| format!("const void *p{i}"));
        loads.chain((0..self.stores.len()).map(|k| format!("void *q{k}")))
    }

    pub fn addresses(&self) -> impl Iterator<Item = KernelParam> {
        self.loads().map(|(_, l)| l.at.into()).chain(self.stores.iter().map(|s| s.at.into()))
    }

    /// The largest offset of an access in elements.
    pub(super) fn max_offset(&self) -> u64 {
        let loads = self.loads().map(|(_, load)| {
            let by_data = load.terms.iter().map(|t| t.extent as u64 * t.stride.unsigned_abs() as u64);
            max_offset(&self.shape, &load.strides) + by_data.sum::<u64>()
        });
        let stores = self.stores.iter().map(|s| max_offset(&self.shape, &s.strides));
        loads.chain(stores).max().unwrap_or(0)
    }

    /// The type of offsets.
    pub(super) fn offset_type(&self) -> &'static str {
        if self.max_offset() < 1 << 31 { "int" } else { "i64" }
    }

    /// The assertions, in the order of the parameters `assertion0`, `assertion1`, ….
    pub(super) fn assertions(&self) -> impl Iterator<Item = u32> {
        self.loads().flat_map(|(_, l)| l.terms.iter().map(|t| t.assertion)).chain(self.divisor)
    }

    pub(super) fn has_assertions(&self) -> bool {
        self.assertions().next().is_some()
    }
}

/// The offset at the coordinates `c0`, `c1`, ….
pub(super) fn linear(strides: &Strides) -> String {
    let terms = strides.iter().enumerate().filter(|(_, s)| **s != 0);
    let terms: Vec<String> =
        terms.map(|(a, s)| if *s == 1 { format!("c{a}") } else { format!("c{a} * (O){s}ll") }).collect();
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}
