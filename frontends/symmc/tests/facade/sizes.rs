//! Sizes within a bucket: at every power of two the form of the bucket takes hardly longer than one that is made for this size
//! alone.

use symmc::unstable::support::parallel;
use symmc::unstable::support::random::SplitMix;
use symmc::{
    BucketSpec, CheckedPlan, CompileConfig, Program, compile, estimate, estimate_plain, machine_profile,
};

/// The most that the form of a bucket may take, as a multiple of the best.
const MAX_TIME_RATIO: f64 = 1.1;

const COLLECTIVE_KINDS: [&str; 6] = [
    "all_reduce op=sum",
    "all_gather",
    "reduce_scatter op=sum",
    "all_to_all splits=even",
    "broadcast root=0",
    "permute_ranks",
];

/// A symbol: its name and range.
type Symbol = (&'static str, [i64; 2]);

/// The text of a program with these symbols.
fn text(ranks: u32, symbols: &[Symbol], body: &str) -> String {
    let symbols: String =
        symbols.iter().map(|(name, [low, high])| format!("symbol {name} in {low}..={high}\n")).collect();
    format!("program \"sizes\" ranks {ranks}\n{symbols}group @all world\n{body}")
}

/// A collective of so many rows, between steps that compute.
fn collective(kind: &str, ranks: u32, rows: &str, columns: u32) -> String {
    let n = ranks;
    let (operand, result) = match kind.split(' ').next() {
        Some("all_gather") => (rows.to_string(), format!("{n}*{rows}")),
        Some("reduce_scatter") => (format!("{n}*{rows}"), rows.to_string()),
        Some("all_to_all") => (format!("{n}*{rows}"), format!("{n}*{rows}")),
        _ => (rows.to_string(), rows.to_string()),
    };
    let (name, attributes) = kind.split_once(' ').unwrap_or((kind, ""));
    let pairs: Vec<String> = (0..n).map(|r| format!("{r}->{}", (r + 1) % n)).collect();
    let pairs = if name == "permute_ranks" { format!("pairs=[{}]", pairs.join(", ")) } else { String::new() };
    format!(
        "arg %x: bf16[{operand}, {columns}]\n%h: bf16[{operand}, {columns}] = neg %x\n\
         %y: bf16[{result}, {columns}] = {name} %h {attributes}{pairs} group=@all\n\
         %z: bf16[{result}, {columns}] = neg %y\nreturn %z\n"
    )
}

/// Layers of a product, an all-reduce, a residual and a norm, of tensors that begin with these axes.
fn layers(axes: &str, hidden: u32, count: usize) -> String {
    let mut out = format!("arg %x0: bf16[{axes}, {hidden}]\nparam %g: bf16[{hidden}]\n");
    (0..count).for_each(|i| out += &format!("param %w{i}: bf16[{hidden}, {hidden}]\n"));
    for i in 0..count {
        out += &format!(
            "%n{i}: bf16[{axes}, {hidden}] = rms_norm %x{i}, %g axes=1 eps=0.00001 round_first=false\n\
             %p{i}: bf16[{axes}, {hidden}] = matmul %n{i}, %w{i}\n\
             %r{i}: bf16[{axes}, {hidden}] = all_reduce %p{i} op=sum group=@all\n\
             %x{}: bf16[{axes}, {hidden}] = add %x{i}, %r{i}\n",
            i + 1
        );
    }
    out + &format!("return %x{count}\n")
}

/// A collective beside products that it does not depend on.
fn beside(kind: &str, ranks: u32, products: usize) -> String {
    let mut out = collective(kind, ranks, "t", 2048);
    out = out.replace("return %z\n", "");
    let mut header = String::from("arg %b0: bf16[t, 2048]\nparam %w: bf16[2048, 2048]\n");
    for i in 0..products {
        out += &format!("%b{}: bf16[t, 2048] = matmul %b{i}, %w\n", i + 1);
    }
    header += &out;
    header + &format!("return %z\nreturn %b{products}\n")
}

fn powers([low, high]: [i64; 2]) -> Vec<i64> {
    (0..40).map(|k| 1i64 << k).filter(|p| (low..=high).contains(p)).collect()
}

fn compiled(text: &str, profile: &str) -> CheckedPlan {
    let program = Program::from_text(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let config = CompileConfig::default().with_profile(machine_profile(profile).expect("a profile"));
    compile(&program, &config).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The estimated time of a run at these sizes.
fn estimated(plan: &CheckedPlan, profile: &str, sizes: &[(&str, i64)]) -> f64 {
    let profile = machine_profile(profile).expect("a profile");
    let named = sizes.iter().map(|&(name, size)| (name.to_string(), size)).collect();
    let bucket = &plan.buckets[plan.find_bucket(&named).expect("a bucket")];
    let program = plan.program(bucket.program).expect("a program");
    program.estimate_at(bucket, &profile, &named).expect("an estimate").total_us
}

/// All combinations of powers of two.
fn grid(symbols: &[Symbol]) -> Vec<Vec<(&'static str, i64)>> {
    symbols.iter().fold(vec![vec![]], |all, &(name, range)| {
        all.iter()
            .flat_map(|of| powers(range).into_iter().map(move |p| [&of[..], &[(name, p)]].concat()))
            .collect()
    })
}

/// The greatest ratio of the time of each bucket's form to that of a form for one size alone, and the number of buckets.
fn regret(ranks: u32, profile: &str, symbols: &[Symbol], body: &str) -> (f64, usize) {
    regret_beside(ranks, profile, symbols, body, |_| None)
}

/// [`regret`], where sizes at which that is above [`MAX_TIME_RATIO`] may be compared with another plan.
fn regret_beside(
    ranks: u32,
    profile: &str,
    symbols: &[Symbol],
    body: &str,
    other: impl Fn(&[(&'static str, i64)]) -> Option<CheckedPlan>,
) -> (f64, usize) {
    let plan = compiled(&text(ranks, symbols, body), profile);
    let mut worst: f64 = 1.0;
    for sizes in grid(symbols) {
        let fixed: Vec<Symbol> = sizes.iter().map(|&(name, size)| (name, [size, size])).collect();
        let fixed_plan = compiled(&text(ranks, &fixed, body), profile);
        let ours = estimated(&plan, profile, &sizes);
        let mut ratio = ours / estimated(&fixed_plan, profile, &sizes);
        if ratio > MAX_TIME_RATIO
            && let Some(other_plan) = other(&sizes)
        {
            ratio = ours / estimated(&other_plan, profile, &sizes);
        }
        worst = worst.max(ratio);
    }
    (worst, plan.buckets.len())
}

const PROFILE_RANKS: [(&str, u32); 5] =
    [("h200x2", 2), ("h200x4", 4), ("h200x8", 8), ("h200x4", 2), ("host", 4)];

#[test]
fn bucketed_collectives_are_nearly_as_fast_as_specialised() {
    for (profile, ranks) in PROFILE_RANKS {
        for kind in COLLECTIVE_KINDS {
            let body = collective(kind, ranks, "t", 4096);
            let (worst, buckets) = regret(ranks, profile, &[("t", [1, 32768])], &body);
            let label = format!("{kind} on {ranks} ranks of {profile}: {worst:.3}, {buckets} buckets");
            assert!(worst <= MAX_TIME_RATIO && buckets <= 5, "{label}");
        }
    }
}

#[test]
fn bucketed_layers_are_nearly_as_fast_as_specialised() {
    for (profile, ranks) in PROFILE_RANKS {
        for hidden in [1024, 8192] {
            let (worst, buckets) = regret(ranks, profile, &[("t", [1, 8192])], &layers("t", hidden, 2));
            let label = format!("{hidden} on {ranks} ranks of {profile}: {worst:.3}, {buckets} buckets");
            assert!(worst <= MAX_TIME_RATIO && buckets <= 6, "{label}");
        }
    }
}

#[test]
fn two_symbols_are_divided_together() {
    let all_reduce = ("all_reduce op=sum", [("b", [1, 16]), ("t", [1, 512])]);
    let all_to_all = ("all_to_all splits=even", [("b", [1, 8]), ("t", [3, 700])]);
    for (profile, ranks) in PROFILE_RANKS {
        for (kind, symbols) in [&all_reduce, &all_to_all] {
            let body = collective(kind, ranks, "t", 2048).replace("2048", "b, 2048");
            let (worst, buckets) = regret(ranks, profile, symbols, &body);
            let label = format!("{kind} on {ranks} ranks of {profile}: {worst:.3}, {buckets} buckets");
            assert!(worst <= MAX_TIME_RATIO && buckets <= 12, "{label}");
        }
    }
}

#[test]
fn collectives_beside_products_take_hardly_longer() {
    let mut r = SplitMix(3);
    for (profile, ranks) in PROFILE_RANKS {
        for kind in COLLECTIVE_KINDS {
            let products = 1 + r.below(6);
            let (worst, buckets) =
                regret(ranks, profile, &[("t", [1, 8192])], &beside(kind, ranks, products));
            let label = format!(
                "{kind} beside {products} products on {ranks} ranks of {profile}: {worst:.3}, {buckets} buckets"
            );
            assert!(worst <= MAX_TIME_RATIO && buckets <= 6, "{label}");
        }
    }
}

/// A random program of a few steps: products, norms and element-wise steps, with collectives of every kind between them. A rank has all
/// rows or some of them, and weights may be gathered.
struct RandomProgram {
    r: SplitMix,
    ranks: u32,
    hidden: u32,
    inputs: String,
    steps: String,
    count: usize,
}

impl RandomProgram {
    fn body(seed: u64, ranks: u32) -> String {
        let mut r = SplitMix(seed);
        let hidden = [512, 1024, 4096][r.below(3)];
        let (inputs, steps) = (String::new(), String::new());
        let mut make = RandomProgram { r, ranks, hidden, inputs, steps, count: 0 };
        make.inputs += &format!("arg %x: bf16[t, {hidden}]\nparam %g: bf16[{hidden}]\n");
        let (mut now, mut rows) = ("%x".to_string(), "t".to_string());
        let mut returned = Vec::new();
        for _ in 0..4 + make.r.below(8) {
            let before = now.clone();
            (now, rows) = make.step(&now, &rows);
            if make.r.one_in(6) {
                returned.push(before);
            }
        }
        returned.push(now);
        returned.retain(|v| v != "%x");
        returned.dedup();
        let returned: String = returned.iter().map(|v| format!("return {v}\n")).collect();
        make.inputs + &make.steps + &returned
    }

    /// Adds a step whose result has `rows` rows, and gives the name of the result.
    fn add(&mut self, rows: &str, step: &str) -> String {
        self.count += 1;
        self.steps += &format!("%v{}: bf16[{rows}, {}] = {step}\n", self.count, self.hidden);
        format!("%v{}", self.count)
    }

    fn step(&mut self, of: &str, rows: &str) -> (String, String) {
        let (n, hidden) = (self.ranks, self.hidden);
        let all_rows = format!("{n}*t");
        let result = match self.r.below(9) {
            0 => self.add(rows, &format!("silu {of}")),
            1 => self.add(rows, &format!("rms_norm {of}, %g axes=1 eps=0.00001 round_first=false")),
            2 => self.add(rows, &format!("all_reduce {of} op=sum group=@all")),
            3 => self.add(rows, &format!("broadcast {of} root=0 group=@all")),
            4 if rows == "t" => {
                return (self.add(&all_rows, &format!("all_gather {of} group=@all")), all_rows);
            }
            4 => return (self.add("t", &format!("reduce_scatter {of} op=sum group=@all")), "t".into()),
            5 if rows != "t" => self.add(rows, &format!("all_to_all {of} splits=even group=@all")),
            _ => {
                let w = self.weight(hidden, n);
                let product = self.add(rows, &format!("matmul {of}, {w}"));
                match self.r.below(3) {
                    0 => self.add(rows, &format!("add {of}, {product}")),
                    1 => {
                        let sum = self.add(rows, &format!("all_reduce {product} op=sum group=@all"));
                        self.add(rows, &format!("add {of}, {sum}"))
                    }
                    _ => product,
                }
            }
        };
        (result, rows.to_string())
    }

    /// Adds a weight that each rank has whole, or a shard of it and a gather, and gives its name.
    fn weight(&mut self, hidden: u32, n: u32) -> String {
        self.count += 1;
        let name = format!("%w{}", self.count);
        if self.r.one_in(2) {
            self.inputs += &format!("param {name}: bf16[{hidden}, {hidden}]\n");
            return name;
        }
        self.inputs += &format!("param {name}: bf16[{}, {hidden}]\n", hidden / n);
        self.add(&hidden.to_string(), &format!("all_gather {name} group=@all"))
    }
}

/// How many random programs are divided; `PROPTEST_CASES`, as for other properties, asks for more.
fn random_programs() -> u64 {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    requested.unwrap_or(0).max(30)
}

/// A plan with a bucket for this size of `t` and others, whose runs can come next: it keeps exit barriers that a plan of one size
/// drops.
fn among_others(ranks: u32, profile: &str, range: [i64; 2], body: &str, size: i64) -> CheckedPlan {
    let program = Program::from_text(&text(ranks, &[("t", range)], body)).expect("a program");
    let mut upper = vec![size - 1, size, range[1]];
    upper.retain(|at| (range[0]..=range[1]).contains(at));
    upper.dedup();
    let config = CompileConfig::default().with_profile(machine_profile(profile).expect("a profile"));
    compile(&program, &config.with_buckets([BucketSpec::new("t", upper)])).expect("a plan")
}

#[test]
fn bucketed_random_programs_are_nearly_as_fast_as_specialised() {
    let range = [1, 4096];
    let failure_of = |seed: u64| {
        let (profile, ranks) = PROFILE_RANKS[seed as usize % PROFILE_RANKS.len()];
        let body = RandomProgram::body(seed, ranks);
        let other = |sizes: &[(&'static str, i64)]| {
            let &[(_, size)] = sizes else { return None };
            Some(among_others(ranks, profile, range, &body, size))
        };
        let (worst, buckets) = regret_beside(ranks, profile, &[("t", range)], &body, other);
        let failure = format!("{seed} on {ranks} ranks of {profile}: {worst:.3}, {buckets} buckets\n{body}");
        (worst > MAX_TIME_RATIO || buckets > 12).then_some(failure)
    };
    let failures = parallel::map((0..random_programs()).collect(), usize::MAX, failure_of);
    let failures: Vec<String> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{} programs:\n{}", failures.len(), failures.join("\n"));
}

/// Options that are set explicitly are kept.
#[test]
fn buckets_that_are_asked_for_are_not_divided() {
    let text = text(4, &[("t", [1, 32768])], &collective("all_to_all splits=even", 4, "t", 4096));
    let program = Program::from_text(&text).expect("a program");
    let config = CompileConfig::default().with_profile(machine_profile("h200x4").expect("a profile"));
    let uppers = |config: &CompileConfig| -> Vec<i64> {
        let plan = compile(&program, config).expect("a plan");
        plan.buckets.iter().map(|b| b.symbols["t"][1]).collect()
    };
    assert!(uppers(&config).len() > 1);
    for asked in [&[32768][..], &[3, 4, 20000]] {
        assert_eq!(uppers(&config.clone().with_buckets([BucketSpec::new("t", asked)])), asked);
    }
    // One variant leaves nothing to choose.
    assert_eq!(uppers(&config.with_variants(Some(Vec::new()))), [32768]);
}

/// The estimate with plain collectives is that of the same buckets.
#[test]
fn plain_estimates_have_the_buckets_of_the_plan() {
    let text = text(4, &[("t", [1, 32768])], &collective("all_to_all splits=even", 4, "t", 4096));
    let program = Program::from_text(&text).expect("a program");
    let config = CompileConfig::default().with_profile(machine_profile("h200x4").expect("a profile"));
    let plan = compile(&program, &config).expect("a plan");
    let plain = estimate_plain(&program, &plan, &config).expect("estimates");
    let chosen = estimate(&plan, &config.profile).expect("estimates");
    assert!(plain.len() == plan.buckets.len() && plain.len() > 1);
    for (plain, chosen) in plain.iter().zip(&chosen) {
        assert!(plain.expect("an estimate") >= chosen.total_us);
    }
}
