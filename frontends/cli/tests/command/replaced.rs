//! `--explain` of collectives that passes replaced, so that the planned programs do not have them.

use crate::common::stdout;

#[test]
fn explain_reports_the_replacement_of_a_collective() {
    let explain = |program: &str, value: &str| {
        stdout(&format!("plan optimised/{program}.symm --machine h200x4 --explain %{value}"))
    };
    let gathered = explain("vocab_greedy", "all_gather_into_tensor");
    for part in [
        "%all_gather_into_tensor, 15.7 MiB in the program: each rank reduces its own shard, and only the results are communicated \
         (reduce_shards_first)",
        "in its place: %argmax.gathered of ",
    ] {
        assert!(gathered.contains(part), "{gathered}");
    }
    let removed = explain("all_reduce_of_constant", "r");
    assert!(removed.contains("%r, ") && removed.contains("in the program: "), "{removed}");
}
