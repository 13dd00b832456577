//! `symmc print`: prints a program at a stage of compilation, as text or as a dependence graph.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use petgraph::graph::{DiGraph, NodeIndex};
use symmc::unstable::ir::entity::Entity;
use symmc::unstable::ir::{Node, NodeId, text};
use symmc::{CompileConfig, Graph, Program};

use crate::args::{PrintArgs, PrintFormat, PrintStage};
use crate::load;
use crate::stdout::print_exact;

/// Prints the program of a stage. Stages with one program per bucket print each after a comment that names the bucket.
pub fn print(args: &PrintArgs) -> Result<ExitCode> {
    if let (PrintStage::Imported | PrintStage::Canonical, Some(option)) =
        (args.stage, args.compile.provided_options().next())
    {
        bail!("{option} has no effect on --stage imported or canonical; expected --stage lowered or planned");
    }
    let mut out = String::new();
    for (i, (comment, graph)) in programs_of_stage(args)?.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if let Some(comment) = comment {
            writeln!(out, "// {comment}")?;
        }
        out.push_str(&match args.format {
            PrintFormat::Symm => text::print(graph),
            PrintFormat::Dot => format_dot(graph),
        });
    }
    print_exact(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// The programs of a stage, each with a comment that names its bucket if the stage has one program per bucket.
fn programs_of_stage(args: &PrintArgs) -> Result<Vec<(Option<String>, Graph)>> {
    let tensors = load::open_tensors(args.tensors.as_deref())?;
    let mut extents = load::provided_extents(&args.program, &args.compile, &[]);
    extents.recorded_shapes = tensors.as_ref().map_or_else(Vec::new, |file| file.argument_shapes());
    let mut program = load::open_program(&args.program, extents, tensors.as_ref())?;
    if args.stage != PrintStage::Imported {
        load::infer_ranks(&mut program)?;
    }
    Ok(match args.stage {
        PrintStage::Imported => vec![(None, program.graph)],
        PrintStage::Canonical => vec![(None, symmc::canonicalize_program(&program)?)],
        PrintStage::Lowered => {
            let graphs = symmc::lower_program(&program, &compile_config(args, &program)?)?;
            let count = graphs.len();
            graphs
                .into_iter()
                .enumerate()
                .map(|(i, g)| (Some(bucket_comment(i, count, &symbol_ranges(&g))), g))
                .collect()
        }
        PrintStage::Planned => planned_programs(args, &program)?,
    })
}

fn compile_config(args: &PrintArgs, program: &Program) -> Result<CompileConfig> {
    load::host_config(&args.compile, program.graph.ranks.unwrap_or(0))
}

/// The planned program of each bucket. Several buckets may share a program.
fn planned_programs(args: &PrintArgs, program: &Program) -> Result<Vec<(Option<String>, Graph)>> {
    let plan = symmc::compile(program, &compile_config(args, program)?)?;
    let mut out = Vec::new();
    for (i, b) in plan.buckets.iter().enumerate() {
        let text = plan.programs.get(b.program).map_or("", String::as_str);
        let graph = text::parse(text).map_err(|e| anyhow!("the planned program cannot be read: {e}"))?;
        out.push((Some(bucket_comment(i, plan.buckets.len(), &b.describe_range())), graph));
    }
    Ok(out)
}

fn bucket_comment(index: usize, count: usize, range: &str) -> String {
    format!("bucket {} of {count}: {range}", index + 1)
}

fn symbol_ranges(graph: &Graph) -> String {
    let symbols: Vec<String> = graph
        .symbols
        .values()
        .map(|s| {
            if s.min == s.max {
                format!("{}={}", s.name, s.min)
            } else {
                format!("{}={}..={}", s.name, s.min, s.max)
            }
        })
        .collect();
    if symbols.is_empty() { "all sizes fixed".into() } else { symbols.join(", ") }
}

/// The dependence graph: an edge from the node that defines a value to each node that uses it.
fn dependence_graph(graph: &Graph) -> DiGraph<NodeId, ()> {
    let mut out = DiGraph::with_capacity(graph.nodes.len(), graph.nodes.len() * 2);
    let indices: Vec<NodeIndex> = graph.nodes.keys().map(|node| out.add_node(node)).collect();
    for (id, node) in graph.nodes.iter() {
        for defining in node.inputs.iter().filter_map(|&operand| graph.defining_node(operand)) {
            out.add_edge(indices[defining.index()], indices[id.index()], ());
        }
    }
    out
}

/// The dependence graph for Graphviz: a box for each node, filled for collectives, and an edge for each use.
fn format_dot(graph: &Graph) -> String {
    let dependence = dependence_graph(graph);
    let label = |node| {
        let node: &Node = &graph.nodes[node];
        let ty = node
            .outputs
            .first()
            .map(|&v| graph.ty(v).display(&graph.symbols).to_string())
            .unwrap_or_default();
        let fill = if node.op.as_collective().is_some() { ", style=filled, fillcolor=lightblue" } else { "" };
        let op = text::op_name(&node.op);
        let name = node.outputs.first().map_or("", |&v| graph.value_name(v));
        format!("label=\"{op}\\n%{name}: {ty}\", shape=box{fill}")
    };
    let nodes = |_, (_, &node): (_, &NodeId)| label(node);
    let edges = |_, _| String::new();
    let config = [petgraph::dot::Config::NodeNoLabel, petgraph::dot::Config::EdgeNoLabel];
    format!("{:?}", petgraph::dot::Dot::with_attr_getters(&dependence, &config, &edges, &nodes))
}
