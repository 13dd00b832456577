//! Which drawn inputs differ by rank.

use symmc_ir::SymbolBindings;
use symmc_ir::interp::{SeedConfig, SeedScope, SeededInputs};
use symmc_ir::text;

/// Arguments whose names state the expectation: `own` differs by rank, `alike` does not.
const PROGRAM: &str = r#"program "p" ranks 2
group @g world
arg %own_direct: f32[4]
arg %own_moved: f32[2, 4]
arg %own_changed: f32[4]
arg %own_integers: i32[4]
arg %own_taken: f32[8, 4]
arg %own_chosen: f32[4]
arg %own_mask: bool[4]
arg %own_rows: f32[4, 2]
arg %alike_product: f32[4, 4]
arg %alike_ids: i64[4]
arg %alike_ids_and_sum: i64[4]
arg %alike_splits: i64[2]
arg %alike_norm: f32[4]
arg %alike_unused: f32[4]
%a: f32[8] = all_gather %own_direct group=@g
%b: f32[8] = reshape %own_moved
%c: f32[4] = slice %b axis=0 start=4 step=1
%d: f32[4] = neg %own_changed
%e: f32[4] = add %c, %d
%f: f32[4] = all_reduce %e op=sum group=@g
%g: i32[4] = all_reduce %own_integers op=max group=@g
%h: f32[4, 4] = take %own_taken, %alike_ids axis=0
%i: f32[4, 4] = matmul %alike_product, %h
%j: f32[4, 4] = all_reduce %h op=sum group=@g
%k: f32[4, 4] = all_reduce %i op=sum group=@g
%l: f32[4] = select %own_mask, %own_chosen, %own_chosen
%m: f32[4] = all_reduce %l op=sum group=@g
%n: f32[4, 4] = take %own_taken, %alike_ids_and_sum axis=0
%o: i64[4] = all_reduce %alike_ids_and_sum op=sum group=@g
%p: f32[4, 2], %q: i64[2] = all_to_all %own_rows, %alike_splits splits=device group=@g via=plain
%r: f32[4] = rms_norm %alike_norm axes=1 eps=1e-6 round_first=false
%s: f32[4] = all_reduce %r op=sum group=@g
return %a, %f, %g, %j, %k, %m, %n, %o, %p, %s
"#;

#[test]
fn only_operands_of_collectives_are_drawn_per_rank() {
    let graph = text::parse(PROGRAM).unwrap_or_else(|e| panic!("{e}"));
    let bindings = SymbolBindings::new();
    for draw in [SeedScope::CollectiveOperands, SeedScope::Shared, SeedScope::PerRank] {
        let seeds =
            SeededInputs::new(&graph, &bindings, SeedConfig { arguments: draw, ..SeedConfig::new(1) });
        for (id, input) in graph.inputs.iter() {
            let name = graph.value_name(input.value);
            let expected = match draw {
                SeedScope::Shared => false,
                SeedScope::PerRank => true,
                _ => name.starts_with("own"),
            };
            assert_eq!(seeds.differs_by_rank(id), expected, "{draw:?} %{name}");
            let drawn = [0, 1].map(|rank| seeds.generate_input(id, rank).unwrap());
            // A few integers or bools may have the same values twice.
            if !expected || graph.ty(input.value).dtype.is_float() {
                assert_eq!(drawn[0] != drawn[1], expected, "{draw:?} %{name}");
            }
        }
    }
}
