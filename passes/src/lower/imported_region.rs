//! The nodes of a region within the e-graph.

use std::collections::BTreeMap;

use egg::{Id, Language, RecExpr};
use symmc_ir::{CollectiveVariant, Op, TensorType};

use super::extract::Extraction;
use super::language::{self, Lang, LangAttribute, LangEGraph};
use super::region::{RegionForm, RegionNode, RegionOperand, ResultUse};

#[derive(Default)]
pub struct ImportedRegion {
    /// The nodes, in the order of the region.
    pub nodes: Vec<ImportedNode>,
    /// The original expression of each class that the import added, by the id that it had then.
    written: BTreeMap<Id, RecExpr<Lang>>,
}

pub struct ImportedNode {
    /// Its class, which is that of the tuple if it has several results.
    pub class: Id,
    pub results: Vec<Id>,
    pub node: Lang,
    pub expression: RecExpr<Lang>,
}

impl ImportedRegion {
    /// Adds all nodes of a region to an e-graph; `None` for an op that cannot be in a region.
    pub fn new(graph: &mut LangEGraph, form: &RegionForm) -> Option<ImportedRegion> {
        let mut imported = ImportedRegion::default();
        for node in &form.nodes {
            imported.import_node(graph, node)?;
        }
        Some(imported)
    }

    fn import_node(&mut self, graph: &mut LangEGraph, from: &RegionNode) -> Option<()> {
        let mut operands = Vec::with_capacity(from.operands.len());
        for operand in &from.operands {
            operands.push(match *operand {
                RegionOperand::Leaf(i) => self.add_expression(graph, Lang::Leaf(i))?,
                RegionOperand::Inner(node, result) => *self.nodes.get(node)?.results.get(result)?,
            });
        }
        let node = match (&from.op, &operands[..]) {
            (Op::Collective(c), _) => {
                let attributes = language::attributes(&c.kind, c.group).into_iter();
                let mut children = attributes
                    .map(|a| self.add_expression(graph, Lang::Attr(a)))
                    .collect::<Option<Vec<Id>>>()?;
                children.extend(&operands);
                Lang::Collective(c.kind.collective_name(), None, children)
            }
            (Op::Cast, &[x]) => {
                let dtype = from.types.first().map(|ty: &TensorType| ty.dtype)?;
                Lang::Cast([self.add_expression(graph, Lang::Attr(LangAttribute::DType(dtype)))?, x])
            }
            (Op::Binary(symmc_ir::BinaryOp::Add), &[x, y]) => Lang::Add([x, y]),
            _ => return None,
        };
        let class = self.add_expression(graph, node.clone())?;
        let results = match from.types.len() {
            1 => vec![class],
            n => {
                (0..n).map(|i| self.add_expression(graph, Lang::Result(i, [class]))).collect::<Option<_>>()?
            }
        };
        let expression = self.written.get(&class)?.clone();
        self.nodes.push(ImportedNode { class, results, node, expression });
        Some(())
    }

    fn add_expression(&mut self, graph: &mut LangEGraph, node: Lang) -> Option<Id> {
        let children = node.children().iter().map(|c| self.written.get(c)).collect::<Option<Vec<_>>>()?;
        let expressions: BTreeMap<Id, &RecExpr<Lang>> =
            node.children().iter().copied().zip(children).collect();
        let expression = node.join_recexprs(|child| expressions[&child].clone());
        let id = graph.add(node);
        self.written.entry(id).or_insert(expression);
        Some(id)
    }

    /// The node of the region with this class, or whose first result has it.
    pub fn node_of_class(&self, graph: &LangEGraph, class: Id) -> Option<usize> {
        self.nodes.iter().position(|node| {
            graph.find(node.class) == class || node.results.first().is_some_and(|&id| graph.find(id) == class)
        })
    }

    /// The classes of the results with a matching use, in program order.
    pub fn result_classes(
        &self,
        graph: &LangEGraph,
        form: &RegionForm,
        is: impl Fn(&ResultUse) -> bool,
    ) -> Vec<Id> {
        let nodes = self.nodes.iter().zip(&form.nodes);
        let used = nodes.flat_map(|(n, k)| n.results.iter().zip(&k.uses).filter(|(_, u)| is(u)));
        used.map(|(&id, _)| graph.find(id)).collect()
    }

    /// A node as imported, run by plain if it is a collective.
    pub fn by_plain(&self, graph: &LangEGraph, node: usize) -> Lang {
        let mut plain = self.nodes[node].node.clone().map_children(|c| graph.find(c));
        if let Lang::Collective(_, variant, _) = &mut plain {
            *variant = Some(CollectiveVariant::Plain);
        }
        plain
    }

    /// The region as imported, with every collective run by plain. Of nodes that a rule made equal, the
    /// first one is used.
    pub fn plain_extraction(&self, graph: &LangEGraph) -> Extraction {
        let mut extraction = Extraction::new();
        for (n, node) in self.nodes.iter().enumerate() {
            let plain = self.by_plain(graph, n);
            for &child in plain.children() {
                let leaf = graph[child].nodes.iter().find(|n| n.is_leaf());
                leaf.into_iter().for_each(|leaf| {
                    extraction.entry(child).or_insert_with(|| leaf.clone());
                });
            }
            let class = graph.find(node.class);
            extraction.entry(class).or_insert(plain);
            for (i, &result) in node.results.iter().enumerate().filter(|(_, r)| graph.find(**r) != class) {
                extraction.entry(graph.find(result)).or_insert(Lang::Result(i, [class]));
            }
        }
        extraction
    }

    /// The expression that was extracted for a class, with the other nodes of the region as imported.
    pub fn expression(
        &self,
        graph: &LangEGraph,
        class: Id,
        extraction: &Extraction,
    ) -> Option<RecExpr<Lang>> {
        let node = extraction.get(&class)?;
        let mut child_expressions: BTreeMap<Id, RecExpr<Lang>> = BTreeMap::new();
        for &child in node.children() {
            let id = graph.find(child);
            let child_expression = match self.node_of_class(graph, id) {
                Some(n) if graph.find(self.nodes[n].class) != class => {
                    // A result of a tuple is written as a result.
                    let result = self.nodes[n].results.iter().find(|&&r| graph.find(r) == id);
                    self.written.get(result.unwrap_or(&self.nodes[n].class))?.clone()
                }
                _ => self.expression(graph, id, extraction)?,
            };
            child_expressions.insert(child, child_expression);
        }
        Some(node.join_recexprs(|child| child_expressions[&child].clone()))
    }
}
