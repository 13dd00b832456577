//! Into which buckets sizes are divided of which nothing is asked.

use symmc::{BucketSpec, CompileConfig, Program, compile, machine_profile};

/// A program with a product of its rows, `columns` wide, with an epilogue, for each of several symbols.
fn program(symbols: usize, columns: &[usize]) -> Program {
    let mut text = String::from("program \"rows\" ranks 2\n");
    (0..symbols).for_each(|i| text += &format!("symbol t{i} in 1..=4096\n"));
    text += "group @all world\n";
    (0..symbols).for_each(|i| text += &format!("arg %x{i}: bf16[t{i}, 256]\n"));
    for n in columns {
        text += &format!("param %w{n}: bf16[{n}, 256]\n");
    }
    let mut results = String::new();
    for n in columns {
        text += &format!("%wt{n}: bf16[256, {n}] = permute %w{n} perm=[1, 0]\n");
        for i in 0..symbols {
            text += &format!("%m{i}_{n}: bf16[t{i}, {n}] = matmul %x{i}, %wt{n}\n");
            text += &format!("%s{i}_{n}: bf16[t{i}, {n}] = silu %m{i}_{n}\n");
            results += &format!("return %s{i}_{n}\n");
        }
    }
    Program::from_text(&(text + &results)).expect("it reads")
}

fn on_gpus() -> CompileConfig {
    CompileConfig::default().with_profile(machine_profile("h200x2").expect("a profile"))
}

/// The ranges of the first symbol.
fn ranges(program: &Program, config: &CompileConfig) -> Vec<[i64; 2]> {
    let plan = compile(program, config).expect("it compiles");
    let mut out: Vec<[i64; 2]> = plan.buckets.iter().map(|bucket| bucket.symbols["t0"]).collect();
    out.dedup();
    out
}

#[test]
fn buckets_split_where_products_stop_using_special_kernels() {
    assert_eq!(ranges(&program(1, &[1024]), &on_gpus()), [[1, 7], [8, 4096]]);
    assert_eq!(ranges(&program(1, &[1024, 14336]), &on_gpus()), [[1, 7], [8, 64], [65, 4096]]);
    assert_eq!(ranges(&program(1, &[1024]), &CompileConfig::default()), [[1, 4096]], "on the host");
    let config = on_gpus().with_buckets([BucketSpec::new("t0", [100, 4096])]);
    assert_eq!(ranges(&program(1, &[1024]), &config), [[1, 100], [101, 4096]]);
}

#[test]
fn many_symbols_have_few_buckets_of_which_nobody_asked() {
    for (symbols, columns) in [(12, &[1024][..]), (3, &[512, 1024, 1536, 2048, 2560, 3072, 3584, 14336])] {
        let plan = compile(&program(symbols, columns), &on_gpus()).expect("it compiles");
        assert!((2..=16).contains(&plan.buckets.len()), "{} buckets", plan.buckets.len());
    }
}
