//! The base of each value. A value that is not a view is its own base.
//!
//! The rules are those of [`symmc_ir::layout`]. The layout of a base is computed only if a view needs it.

use symmc_ir::layout::{Layout, view_layout};
use symmc_ir::{Dim, EntityMap, Graph, ValueDef, ValueId};

#[derive(Clone, PartialEq, Debug)]
pub struct ValueViews {
    /// The layout of each view; `None` for a base.
    layouts: EntityMap<ValueId, Option<Layout>>,
    /// Bytes of each base, and 0 for views.
    bytes: EntityMap<ValueId, Dim>,
}

impl ValueViews {
    pub fn new(graph: &Graph) -> ValueViews {
        let mut layouts: EntityMap<ValueId, Option<Layout>> = EntityMap::new();
        for (_, value) in graph.values.iter() {
            let view = match value.def {
                ValueDef::Node(n, 0) if graph.nodes[n].op.is_view() => {
                    let node = &graph.nodes[n];
                    node.inputs.first().and_then(|&x| {
                        let ty = graph.ty(x);
                        match layouts.get(x)? {
                            Some(layout) => view_layout(&node.op, layout, ty, &value.ty),
                            None => view_layout(&node.op, &base_layout(graph, x), ty, &value.ty),
                        }
                    })
                }
                _ => None,
            };
            layouts.push(view);
        }
        let bytes = layouts.iter().map(|(v, view)| match view {
            Some(_) => Dim::from(0),
            None => graph.ty(v).bytes(),
        });
        ValueViews { bytes: bytes.collect(), layouts }
    }

    /// The value whose memory `value` uses.
    pub fn base(&self, value: ValueId) -> ValueId {
        self.layouts[value].as_ref().map_or(value, |l| l.base)
    }

    /// The size of a base in bytes; 0 for a view.
    pub fn bytes(&self, value: ValueId) -> &Dim {
        &self.bytes[value]
    }

    pub fn contiguous(&self, graph: &Graph, value: ValueId) -> bool {
        self.layouts[value].as_ref().is_none_or(|l| l.is_contiguous(graph.ty(value)))
    }

    /// The position of a value's first element in its base.
    pub fn offset(&self, value: ValueId) -> Dim {
        self.layouts[value].as_ref().map_or(Dim::from(0), |l| l.offset.clone())
    }

    /// Whether a value is all of its base in row-major order.
    pub fn covers_base(&self, graph: &Graph, value: ValueId) -> bool {
        self.layouts[value].as_ref().is_none_or(|l| {
            l.offset == Dim::from(0)
                && l.is_contiguous(graph.ty(value))
                && graph.ty(value).numel() == graph.ty(l.base).numel()
        })
    }
}

fn base_layout(graph: &Graph, base: ValueId) -> Layout {
    Layout { base, offset: Dim::from(0), strides: graph.ty(base).contiguous_strides() }
}

#[cfg(test)]
mod tests {
    use symmc_ir::text;

    use super::*;

    #[test]
    fn views_agree_with_the_layouts_of_the_ir() {
        let graph = text::parse(
            "program \"v\" ranks 2\nsymbol n in 1..=9\narg %x: f32[n, 4, 6]\n\
             %a: f32[n, 24] = reshape %x\n%b: f32[24, n] = permute %a perm=[1, 0]\n\
             %c: f32[24*n] = reshape %b\n%d: f32[12*n] = slice %c axis=0 start=12 step=1\n\
             %e: f32[2, 12*n] = expand %d\nreturn %e\n",
        );
        let graph = graph.expect("parses");
        let views = ValueViews::new(&graph);
        let layouts = symmc_ir::layout::compute_layouts(&graph);
        for (v, layout) in layouts.iter() {
            assert_eq!(views.base(v), layout.base, "{v}");
            assert_eq!(views.contiguous(&graph, v), layout.is_contiguous(graph.ty(v)), "{v}");
            assert_eq!(views.offset(v), layout.offset, "{v}");
        }
        let wholes: Vec<bool> = graph.values.keys().map(|v| views.covers_base(&graph, v)).collect();
        assert_eq!(wholes, [true, true, false, true, false, false]);
    }
}
