//! The commands, one function each.

mod bench;
mod plan;
mod run;

use std::process::ExitCode;

use anyhow::Result;
use symmc::ir::text;
use symmc::{Graph, stages};

use crate::args::{Args, Bench, CheckArgs, Command, OpsArgs, PrintArgs, PrintFormat, RankArgs, Stage};
use crate::load;
use crate::out::put;

/// Runs the command.
pub fn dispatch(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Plan(args) => plan::plan(&args),
        Command::Check(args) => check(&args),
        Command::Run(args) => run::run(&args),
        Command::Print(args) => print(&args),
        Command::Tune(args) => bench::tune(&args),
        Command::Bench(Bench::Collectives(args)) => bench::collectives(&args),
        Command::Bench(Bench::Program(args)) => bench::program(&args),
        Command::Ops(args) => ops(&args),
        Command::Rank(args) => rank(&args),
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let plan = load::plan(&args.plan)?;
    let report = symmc::check(&plan)?;
    put(&format!("{}: safe on {} ranks. {report}\n", args.plan.display(), plan.ranks))?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &PrintArgs) -> Result<ExitCode> {
    let mut program = load::program(&args.program)?;
    let graph: Graph = match args.stage {
        Stage::Imported => program.graph,
        stage => {
            load::close_ranks(&mut program)?;
            let (canonical, lowered) = stages(&program, &load::config(&args.compile)?)?;
            if stage == Stage::Canonical { canonical } else { lowered }
        }
    };
    let text = match args.format {
        PrintFormat::Symm => text::print(&graph),
        PrintFormat::Dot => dot(&graph),
    };
    put(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The dependence graph in Graphviz form: one box for each node, collectives filled, one edge for each use.
fn dot(graph: &Graph) -> String {
    let dependence = graph.dependence();
    let label = |node| {
        let node: &symmc::ir::Node = &graph.nodes[node];
        let ty = node
            .outputs
            .first()
            .map(|&v| graph.ty(v).display(&graph.symbols).to_string())
            .unwrap_or_default();
        let fill = if node.op.as_collective().is_some() { ", style=filled, fillcolor=lightblue" } else { "" };
        let op = text::op_name(&node.op);
        let name = node.outputs.first().map_or("", |&v| graph.name_of(v));
        format!("label=\"{op}\\n%{name}: {ty}\", shape=box{fill}")
    };
    let nodes = |_, (_, &node): (_, &symmc::ir::NodeId)| label(node);
    let edges = |_, _| String::new();
    let config = [petgraph::dot::Config::NodeNoLabel, petgraph::dot::Config::EdgeNoLabel];
    format!("{:?}", petgraph::dot::Dot::with_attr_getters(&dependence, &config, &edges, &nodes))
}

fn ops(args: &OpsArgs) -> Result<ExitCode> {
    let wanted = |name: &str| args.filter.as_deref().is_none_or(|f| name.contains(f));
    let rows: Vec<Vec<String>> = symmc::supported_ops()
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, becomes)| vec![name.to_string(), becomes.to_string()])
        .collect();
    put(&format!(
        "torch (.pt2): {} operators\n{}Any other operator is imported as opaque: it is planned, and running it \
         fails with its name.\n",
        rows.len(),
        crate::units::table(&rows)
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn rank(args: &RankArgs) -> Result<ExitCode> {
    Ok(symmc::host::rank_main(args.fd, &symmc::engines(&symmc::Registry::new()))
        .map(|()| ExitCode::SUCCESS)
        .map_err(symmc::Error::from)?)
}
