//! Checks, before they are made, that the inputs and outputs of all ranks fit into this machine's memory.

use symmc_control::machine_limits::machine_memory;
use symmc_ir::{Graph, GraphInput, InputKind, SymbolBindings};

use crate::error::{Error, ErrorKind};

/// Refuses inputs and outputs that do not fit into the available memory. Counted are, for all ranks, the inputs that are held
/// in memory and the outputs, which a run holds at least once. Constants are in memory already. Checks nothing if the system
/// does not report its memory.
///
/// # Errors
/// They do not fit. The message gives both sizes.
pub fn check_available_memory(
    graph: &Graph,
    bindings: &SymbolBindings,
    held: impl Fn(&GraphInput) -> bool,
) -> Result<(), Error> {
    let inputs = graph.inputs.values().filter(|i| i.kind != InputKind::Constant && held(i));
    let values = inputs.map(|i| i.value).chain(graph.outputs.iter().map(|o| o.value));
    let of_rank: u128 = values.map(|v| graph.ty(v).bytes().eval(bindings).unwrap_or(i64::MAX) as u128).sum();
    let ranks = graph.ranks.unwrap_or(1);
    let needed = of_rank * u128::from(ranks);
    match machine_memory().map(|room| room.available) {
        Some(available) if needed > u128::from(available) => Err(Error::new(
            ErrorKind::Resources,
            format!(
                "the inputs and outputs of {} of {} need {} MiB; {} MiB of memory are available",
                crate::error::format_rank_count(ranks),
                graph.name,
                needed >> 20,
                available >> 20
            ),
        )),
        _ => Ok(()),
    }
}
