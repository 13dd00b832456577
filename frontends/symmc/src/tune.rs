//! Measures the computation and the contention of a machine profile, by running small programs.
//!
//! Each value follows from the time of one to three programs. Let `P` be the time of products that fill the machine, `C` that of
//! collectives alone (by the curves of the profile), and `T` that of both running concurrently:
//! - *taken*: one collective next to enough products that it ends before them. The products then take `T = P + C * taken`.
//! - *rate*: enough collectives next to one product that the product ends before them. The product takes
//!   `P' = P / (1 - taken * rate)`. The collectives run at `rate` meanwhile and then alone, `T = C + P' * (1 - rate)`, so
//!   `rate = (P - (T - C)) / (P - (T - C) * taken)`.
//! - *gaps of products*: products by square weights of three sizes. Their time is quadratic in the columns; the gap is the constant
//!   part, and the time of K the linear one.
//! - *crossing*: a chain in which collectives and small kernels alternate, next to products that end before the collectives.
//!   Each link takes the collective, the kernel and two crossings.
//!
//! Programs are planned in the order of their text, without passes, so that exactly the named variant runs. Measuring is a
//! function from a plan to microseconds: on GPUs [`crate::bench::measure_program`], in tests the model itself.
//! A value that cannot be measured keeps its value in the profile, with a note that names it.

use std::collections::BTreeSet;

use symmc_check::CheckedPlan;
use symmc_ir::machine::{
    ContentionMeasurement, MAX_SERIAL_K, MachineProfile, OperationCounts, ProductRate, Provenance,
    Throughput, VERSION, model,
};
use symmc_ir::{CollectiveKind, CollectiveVariant, Dim, Graph, InputId, text};
use symmc_planner::{BucketInput, OrderStrategy, PlanConfig};

use crate::error::{Error, ErrorKind};

/// The columns of products, and of the rows that collectives exchange.
const PRODUCT_COLUMNS: u64 = 4096;
/// The columns of products whose rates are measured. Kernels of symmc and of the library have different gaps; these products
/// take so long that the difference hardly matters.
const RATE_COLUMNS: u64 = 8192;
/// The number of consecutive products, each with different weights so that caches hold none of them.
const PRODUCTS_PER_RUN: usize = 8;
/// The rows of products and attention whose gaps are measured: too few for their operations to take long.
const GAP_ROWS: u64 = 16;
/// The rows of attention whose rate is measured.
const ATTENTION_ROWS: u64 = 4096;
/// The rows of products whose rates are measured.
const MEASURED_ROWS: [u64; 7] = [1, 4, 16, 64, 256, 1024, 4096];
/// The bytes of collectives next to products; fewer for variants that serve small messages only.
const COLLECTIVE_BYTES: u64 = 16 << 20;
/// The most products next to one collective, and the most collectives next to one product.
const MAX_OPS_PER_PARTNER: usize = 24;
/// The number of small kernels.
const SMALL_KERNELS: usize = 32;
/// The bytes that a small kernel reads, and writes.
const SMALL_KERNEL_BYTES: u64 = 4 * 8 * 64;
/// The least gap of a kernel, and the least time of 1024 of K, in microseconds.
const MIN_GAP_US: f64 = 0.1;
/// The number of links of the chain that crosses between the lanes.
const CHAIN_LINKS: usize = 16;

/// Measures a plan: returns the microseconds of one run.
pub type Measure<'a> = &'a dyn Fn(&CheckedPlan) -> Result<f64, Error>;

/// The result of measuring a machine.
pub struct TuneResult {
    /// The profile, with all values that could be measured.
    pub profile: MachineProfile,
    /// The values that could not be measured, with the reasons.
    pub notes: Vec<String>,
}

/// Measures how fast a machine computes, and how much collectives and computation slow each other down, on groups of `ranks`
/// ranks. `profile` has the curves of the machine.
pub fn tune_profile(profile: MachineProfile, ranks: u32, measure: Measure<'_>) -> TuneResult {
    let mut tuning = ProfileTuner { ranks, measure, profile, notes: Vec::new() };
    tuning.profile.version = VERSION;
    tuning.measure_kernels();
    tuning.measure_product_gaps();
    tuning.measure_products();
    tuning.measure_attention();
    tuning.measure_crossing();
    tuning.measure_contention();
    let ProfileTuner { profile, notes, .. } = tuning;
    TuneResult { profile, notes }
}

struct ProfileTuner<'a> {
    ranks: u32,
    measure: Measure<'a>,
    profile: MachineProfile,
    notes: Vec<String>,
}

/// A program and its plan.
struct TunePlan {
    graph: Graph,
    plan: CheckedPlan,
}

impl ProfileTuner<'_> {
    /// The value, or `None` with a note that gives the reason.
    fn value_or_note<T>(&mut self, what: &str, found: Result<T, Error>) -> Option<T> {
        found.inspect_err(|e| self.notes.push(format!("{what} is not measured: {e}"))).ok()
    }

    /// Plans a program in the order of its text.
    fn plan_text(&self, body: &str) -> Result<TunePlan, Error> {
        let defect = |e: String| {
            Error::new(ErrorKind::Defect, format!("a program of symmc tune: {e}; this is a defect of symmc"))
        };
        let source = format!("program \"tune\" ranks {}\ngroup @all world\n{body}", self.ranks);
        let graph = text::parse(&source).map_err(|e| defect(format!("{e}\n{source}")))?;
        let bind: BTreeSet<InputId> = graph.inputs.keys().collect();
        let config = PlanConfig {
            machine: self.profile.name.clone(),
            profile: Some(self.profile.clone()),
            order: OrderStrategy::Program,
            bind,
            ..PlanConfig::default()
        };
        let input = BucketInput { graph: graph.clone(), decisions: Vec::new() };
        let plan = symmc_planner::plan(&graph, &[input], &config).map_err(|e| Error::driver("tune", e))?;
        let plan = CheckedPlan::new(plan).map_err(|e| defect(format!("{e:?}")))?;
        Ok(TunePlan { graph, plan })
    }

    fn time_program(&self, body: &str) -> Result<(f64, TunePlan), Error> {
        self.time_plan(self.plan_text(body)?)
    }

    fn time_plan(&self, planned: TunePlan) -> Result<(f64, TunePlan), Error> {
        let us = (self.measure)(&planned.plan)?;
        if us.is_finite() && us > 0.0 {
            return Ok((us, planned));
        }
        Err(Error::new(ErrorKind::Run, format!("expected a positive time, found {us} µs")))
    }

    fn update_throughput(&mut self, set: impl FnOnce(&mut Throughput)) {
        if let Some(throughput) = &mut self.profile.throughput {
            set(throughput);
        }
    }

    /// Measures the gap of a kernel, by many kernels of few elements that depend on each other.
    fn measure_kernels(&mut self) {
        let measured = self.time_program(&small_kernels_text(SMALL_KERNELS));
        if let Some((us, planned)) = self.value_or_note("the time of small kernels", measured) {
            let steps = planned.plan.buckets.first().map_or(1, |b| b.steps.len().max(1));
            let gap_us = us / steps as f64 - self.profile.copy_us(SMALL_KERNEL_BYTES);
            self.update_throughput(|t| t.gap_us = gap_us.max(MIN_GAP_US));
        }
    }

    /// Measures the gap of a product and the time of its K, by square weights of three sizes. The time of a product is
    /// the gap, a part in proportion to the columns of the weights, and one in proportion to their square.
    fn measure_product_gaps(&mut self) {
        let [small, medium, large] = [MAX_SERIAL_K / 8, MAX_SERIAL_K / 2, MAX_SERIAL_K];
        let time = |columns: u64| {
            let body = products_text([GAP_ROWS, columns], "bf16", PRODUCTS_PER_RUN);
            Ok::<f64, Error>(self.time_program(&body)?.0 / PRODUCTS_PER_RUN as f64)
        };
        let measured = (|| Ok([time(small)?, time(medium)?, time(large)?]))();
        let Some(us) = self.value_or_note("the gap of products", measured) else { return };
        let [gap_us, column_us] = linear_part([small, medium, large].map(|columns| columns as f64), us);
        self.update_throughput(|t| {
            t.product_gap_us = gap_us.max(MIN_GAP_US);
            t.product_k_us = (column_us * 1024.0).max(MIN_GAP_US);
        });
    }

    /// Measures the rates of products by their rows, without the gaps of their kernels.
    fn measure_products(&mut self) {
        let mut rates = Vec::new();
        let k = RATE_COLUMNS.min(MAX_SERIAL_K) as f64 / 1024.0;
        let gap_us = self.profile.throughput.map_or(0.0, |t| t.product_gap_us + t.product_k_us * k);
        let gaps_us = gap_us * PRODUCTS_PER_RUN as f64;
        for rows in MEASURED_ROWS {
            let mut rate_of = |dtype: &str| {
                let measured = self.plan_products(rows, dtype).and_then(|planned| self.time_plan(planned));
                let measured = measured.map(|(us, planned)| {
                    let done = count_operations(&planned.graph);
                    (done.matmul_16bit.max(done.matmul)) as f64 / without_gaps(us, gaps_us) / 1e6
                });
                self.value_or_note(&format!("the rate of products of {rows} rows in {dtype}"), measured)
            };
            if let (Some(matmul_16bit), Some(matmul)) = (rate_of("bf16"), rate_of("f32")) {
                rates.push(ProductRate { rows, matmul_16bit, matmul });
            }
        }
        ProductRate::make_times_ascend(&mut rates);
        if let Some(&last) = rates.last().filter(|last| last.rows == MEASURED_ROWS[MEASURED_ROWS.len() - 1]) {
            self.update_throughput(|t| (t.matmul_16bit, t.matmul) = (last.matmul_16bit, last.matmul));
            self.profile.product_rates = rates;
        }
    }

    /// Products in the form that models have, if each is one step: those of few rows are then computed by symmc's kernels, which read
    /// weights faster than the library. Otherwise products alone.
    fn plan_products(&self, rows: u64, dtype: &str) -> Result<TunePlan, Error> {
        let shape = [rows, RATE_COLUMNS];
        let planned = self.plan_text(&residual_products_text(shape, dtype, PRODUCTS_PER_RUN))?;
        let is_one_step_each = planned.plan.buckets.iter().all(|b| b.steps.len() == PRODUCTS_PER_RUN);
        if is_one_step_each {
            return Ok(planned);
        }
        self.plan_text(&products_text(shape, dtype, PRODUCTS_PER_RUN))
    }

    fn measure_attention(&mut self) {
        let measured = self.time_attention(GAP_ROWS);
        if let Some((us, _)) = self.value_or_note("the gap of attention", measured) {
            // Queries, keys, values and results of bf16, at half of the bytes as in a copy.
            let gap_us = us - self.profile.copy_us(4 * 32 * GAP_ROWS * 128);
            self.update_throughput(|t| t.attention_gap_us = gap_us.max(MIN_GAP_US));
        }
        let measured = self.time_attention(ATTENTION_ROWS);
        if let Some((us, operations)) = self.value_or_note("the rate of attention", measured) {
            self.update_throughput(|t| t.attention = operations / without_gaps(us, t.attention_gap_us) / 1e6);
        }
    }

    /// The time and the operations of an attention of these rows.
    fn time_attention(&self, rows: u64) -> Result<(f64, f64), Error> {
        let (us, planned) = self.time_program(&attention_text(rows))?;
        let count = planned.graph.nodes.len() as f64;
        Ok((us / count, count_operations(&planned.graph).attention as f64 / count))
    }

    /// Measures how much each variant and products slow each other down.
    fn measure_contention(&mut self) {
        let Some((product, _)) = self.value_or_note(
            "a product",
            self.time_program(&products_text([4096, PRODUCT_COLUMNS], "bf16", PRODUCTS_PER_RUN)),
        ) else {
            return;
        };
        let product = product / PRODUCTS_PER_RUN as f64;
        let kinds = CollectiveKind::sample_kinds(self.ranks).into_iter();
        for kind in kinds.filter(|kind| !kind.moves_by_data()) {
            for variant in self.profile.supported_variants(&kind) {
                let label = format!("the contention of {} by {}", kind.name(), variant.name());
                let measured = self.contention_of_variant(&kind, variant, product);
                if let Some(measurement) = self.value_or_note(&label, measured) {
                    let key = (measurement.collective, measurement.variant);
                    self.profile.contention.retain(|c| (c.collective, c.variant) != key);
                    self.profile.contention.push(measurement);
                }
            }
        }
    }

    /// Measures how much one variant and products of `product` µs each slow each other down.
    fn contention_of_variant(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        product: f64,
    ) -> Result<ContentionMeasurement, Error> {
        let curve = self.profile.nearest_curve(kind, variant, None, self.ranks);
        let curve = curve.or(self.profile.nearest_curve(kind, variant, Some(false), self.ranks));
        let max_bytes = curve.and_then(|curve| curve.points.last()).map_or(COLLECTIVE_BYTES, |p| p.0);
        let bytes =
            COLLECTIVE_BYTES.min(if variant == CollectiveVariant::Ll { max_bytes } else { COLLECTIVE_BYTES });
        let estimate = |exit| self.profile.estimate_collective(kind, variant, Some(exit), bytes, self.ranks);
        let (Some(kept_us), Some(dropped_us)) = (estimate(true), estimate(false).or(estimate(true))) else {
            return Err(Error::new(ErrorKind::Unsupported, "the profile has no curve".to_string()));
        };
        // The last collective of a run keeps its exit barrier. The products cover the collective at the rate that is assumed
        // without measurements, twice.
        let covering = ((kept_us * 10.0 / product).ceil() as usize + 1).min(MAX_OPS_PER_PARTNER);
        // The kernel of the step at the end copies a row.
        let kernel = self.profile.compute_us(2 * 2 * PRODUCT_COLUMNS, OperationCounts::default());
        let (total_us, planned) =
            self.time_program(&concurrent_text(kind, variant, self.ranks, bytes, [1, covering]))?;
        self.check_lanes(&planned)?;
        let compute_share = ((total_us - kernel - product * covering as f64) / kept_us).clamp(0.0, 1.0);
        let many = ((product * 3.0 / dropped_us).ceil() as usize + 1).min(MAX_OPS_PER_PARTNER);
        let (total_us, planned) =
            self.time_program(&concurrent_text(kind, variant, self.ranks, bytes, [many, 1]))?;
        self.check_lanes(&planned)?;
        // Collectives of one program may take other times than the curves, whose collectives follow one another on the same
        // bytes.
        let (without, _) =
            self.time_program(&concurrent_text(kind, variant, self.ranks, bytes, [many, 0]))?;
        let longer = total_us - without;
        let rate = rate_next_to_product(product, longer, compute_share);
        let rate = rate.unwrap_or_else(|| model::concurrent_rate(variant));
        Ok(ContentionMeasurement {
            collective: kind.collective_name(),
            variant,
            ranks: self.ranks,
            bytes,
            taken: compute_share,
            rate,
            provenance: Provenance::Measured,
            note: String::new(),
        })
    }

    /// Checks that no product waits for a collective, nor the other way round. The last step is exempt: it needs all collectives.
    fn check_lanes(&self, planned: &TunePlan) -> Result<(), Error> {
        let bucket = &planned.plan.buckets[0];
        let last_step = bucket.steps.len().saturating_sub(1);
        match bucket.steps[..last_step].iter().find(|step| !step.waits.is_empty()) {
            None => Ok(()),
            Some(step) => Err(Error::new(
                ErrorKind::Defect,
                format!("step {} of a program of symmc tune waits for the other lane", step.node),
            )),
        }
    }

    /// Measures the time between the lanes.
    fn measure_crossing(&mut self) {
        let measured = self.time_crossing_chain();
        if let Some(us) = self.value_or_note("the time between lanes", measured) {
            self.update_throughput(|t| t.crossing_us = us);
        }
    }

    fn time_crossing_chain(&self) -> Result<f64, Error> {
        let variant = CollectiveVariant::Plain;
        let kind = &CollectiveKind::sample_kinds(self.ranks)[0];
        let bytes = COLLECTIVE_BYTES;
        let collective = self.profile.estimate_collective(kind, variant, None, bytes, self.ranks);
        let collective = collective
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the profile has no curve".to_string()))?;
        // The largest product for which two products end well before the collective.
        let rows = [256u64, 128, 64, 16].into_iter().find(|&rows| {
            let operations = OperationCounts {
                matmul_16bit: 2 * rows * PRODUCT_COLUMNS * PRODUCT_COLUMNS,
                rows,
                products: 1,
                k: PRODUCT_COLUMNS.min(MAX_SERIAL_K),
                ..OperationCounts::default()
            };
            self.profile.compute_us(2 * PRODUCT_COLUMNS * PRODUCT_COLUMNS, operations) < collective / 4.0
        });
        let rows = rows.unwrap_or(16);
        // Without a product everything runs on one lane. Each product delays the collective by the same time, and the crossings
        // take the same time for one product as for two. Extrapolating from two products and one to none leaves the crossings.
        let time = |count: usize| {
            Ok::<f64, Error>(self.time_program(&alternating_chain_text(variant, bytes, rows, count))?.0)
        };
        let [none, one, two] = [time(0)?, time(1)?, time(2)?];
        let crossing = (2.0 * one - two - none) / (2 * CHAIN_LINKS) as f64;
        Ok(crossing.clamp(0.5, 100.0))
    }
}

/// The time of kernels without their gaps; at least half of it, in case the gaps were measured too large.
fn without_gaps(us: f64, gaps_us: f64) -> f64 {
    (us - gaps_us).max(us / 2.0)
}

/// The constant and the linear coefficient of the quadratic function with these values at three points.
fn linear_part(x: [f64; 3], y: [f64; 3]) -> [f64; 2] {
    let slope = |i: usize, j: usize| (y[j] - y[i]) / (x[j] - x[i]);
    let quadratic = (slope(1, 2) - slope(0, 1)) / (x[2] - x[0]);
    let linear = slope(0, 1) - quadratic * (x[0] + x[1]);
    [y[0] - linear * x[0] - quadratic * x[0] * x[0], linear]
}

/// The rate of collectives next to a product of `product` µs that makes them `longer` µs longer together, if they take the share `taken`
/// of it. `None` if they take nearly all of it: the sum is then the same at all rates.
fn rate_next_to_product(product: f64, longer: f64, taken: f64) -> Option<f64> {
    let distinguishable = product - longer * taken;
    let rate = (product - longer) / distinguishable;
    (distinguishable > 0.05 * product && rate.is_finite()).then(|| rate.clamp(0.05, 1.0))
}

/// The operations of all nodes of a program without symbols.
fn count_operations(graph: &Graph) -> OperationCounts {
    let size = |d: &Dim| d.as_const().and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
    let counts = graph.nodes.values().map(|node| OperationCounts::count_node(graph, node, size));
    counts.fold(OperationCounts::default(), OperationCounts::plus)
}

fn small_kernels_text(count: usize) -> String {
    let mut out = String::from("arg %x0: f32[8, 64]\n");
    for i in 0..count {
        out += &format!("%x{}: f32[8, 64] = softmax %x{i} axis={} log=false\n", i + 1, i % 2);
    }
    out + &format!("return %x{count}\n")
}

/// Products one after another.
fn products_text(shape: [u64; 2], dtype: &str, count: usize) -> String {
    let (header, body) = product_chain_text(shape, dtype, count);
    format!("{header}{body}return %p{count}\n")
}

/// Products of weights as PyTorch stores them, with residuals, one after another.
fn residual_products_text([rows, columns]: [u64; 2], dtype: &str, count: usize) -> String {
    let result = format!("{dtype}[{rows}, {columns}]");
    let weight = format!("{dtype}[{columns}, {columns}]");
    let mut header = format!("arg %p0: {result}\n");
    let mut body = String::new();
    for i in 0..count {
        header += &format!("param %w{i}: {weight}\n");
        body += &format!("%t{i}: {weight} = permute %w{i} perm=[1, 0]\n");
        body += &format!("%m{i}: {result} = matmul %p{i}, %t{i}\n");
        body += &format!("%p{}: {result} = add %p{i}, %m{i}\n", i + 1);
    }
    format!("{header}{body}return %p{count}\n")
}

/// The inputs and the nodes of a chain of products.
fn product_chain_text([rows, columns]: [u64; 2], dtype: &str, count: usize) -> (String, String) {
    let mut header = format!("arg %p0: {dtype}[{rows}, {columns}]\n");
    let mut body = String::new();
    for i in 0..count {
        // Weights are used again only after the others have passed through the caches.
        let weight = i % PRODUCTS_PER_RUN;
        if i < PRODUCTS_PER_RUN {
            header += &format!("param %w{i}: {dtype}[{columns}, {columns}]\n");
        }
        body += &format!("%p{}: {dtype}[{rows}, {columns}] = matmul %p{i}, %w{weight}\n", i + 1);
    }
    (header, body)
}

fn attention_text(rows: u64) -> String {
    let shape = format!("bf16[1, 32, {rows}, 128]");
    format!(
        "arg %q: {shape}\narg %k: {shape}\narg %v: {shape}\n\
         %a: {shape} = attention %q, %k, %v causal=true scale=0.088\n\
         %b: {shape} = attention %a, %k, %v causal=true scale=0.088\nreturn %b\n"
    )
}

/// Collectives and products that do not depend on each other.
fn concurrent_text(
    kind: &CollectiveKind,
    variant: CollectiveVariant,
    ranks: u32,
    bytes: u64,
    [collectives, count]: [usize; 2],
) -> String {
    let (header, body) = product_chain_text([4096, PRODUCT_COLUMNS], "bf16", count);
    let n = u64::from(ranks);
    let rows = (bytes / (2 * PRODUCT_COLUMNS) / n).max(1) * n;
    let (operand, result) = kind.operand_and_result_sizes(rows, n);
    let attributes = text::collective_attributes(kind);
    let mut inputs = header;
    let mut nodes = String::new();
    for i in 0..collectives {
        inputs += &format!("arg %x{i}: bf16[{operand}, {PRODUCT_COLUMNS}]\n");
        nodes += &format!(
            "%c{i}: bf16[{result}, {PRODUCT_COLUMNS}] = {} %x{i}{attributes} group=@all via={}\n",
            kind.name(),
            variant.name()
        );
    }
    // A step at the end needs the results, so they keep their memory until then. No product waits for it.
    let mut slices = String::new();
    for i in 0..collectives {
        slices += &format!("%d{i}: bf16[1, {PRODUCT_COLUMNS}] = slice %c{i} axis=0 start=0 step=1\n");
    }
    let names: Vec<String> = (0..collectives).map(|i| format!("%d{i}")).collect();
    let names = names.join(", ");
    format!(
        "{inputs}{nodes}{body}{slices}%e: bf16[{collectives}, {PRODUCT_COLUMNS}] = concat {names} axis=0\n\
         return %e\n{}",
        return_text(count)
    )
}

/// A chain in which all-reduces and small steps alternate. Next to each all-reduce there are `count` products, for which the
/// chain does not wait.
fn alternating_chain_text(variant: CollectiveVariant, bytes: u64, rows: u64, count: usize) -> String {
    let elements = bytes / 2;
    let (header, _) = product_chain_text([rows, PRODUCT_COLUMNS], "bf16", PRODUCTS_PER_RUN);
    let mut body = String::new();
    let mut products = 0;
    for i in 0..CHAIN_LINKS {
        body +=
            &format!("%c{i}: bf16[{elements}] = all_reduce %s{i} op=sum group=@all via={}\n", variant.name());
        for _ in 0..count {
            let (from, weight) = (products, products % PRODUCTS_PER_RUN);
            products += 1;
            body += &format!("%p{products}: bf16[{rows}, {PRODUCT_COLUMNS}] = matmul %p{from}, %w{weight}\n");
        }
        body += &format!("%s{}: bf16[{elements}] = neg %c{i}\n", i + 1);
    }
    format!("{header}arg %s0: bf16[{elements}]\n{body}return %s{CHAIN_LINKS}\n{}", return_text(products))
}

/// The output of a chain of products, if there are any: an argument that is returned would be copied.
fn return_text(products: usize) -> String {
    if products == 0 { String::new() } else { format!("return %p{products}\n") }
}

#[cfg(test)]
mod tests {
    use symmc_ir::machine::timeline::FULL_RATE;

    use super::*;
    use crate::estimate::estimate;

    /// A machine whose values are all known.
    fn known(ranks: u32) -> MachineProfile {
        let mut profile = MachineProfile::builtin(MachineProfile::nearest_builtin(ranks)).expect("built in");
        profile.throughput = Some(Throughput {
            matmul_16bit: 600.0,
            matmul: 50.0,
            attention: 450.0,
            gap_us: 3.0,
            product_gap_us: 2.0,
            product_k_us: 0.9,
            attention_gap_us: 6.0,
            crossing_us: 9.0,
        });
        let rate = |(rows, share): (u64, f64)| ProductRate {
            rows,
            matmul_16bit: 600.0 * share,
            matmul: 50.0 * share,
        };
        let shares = [0.007, 0.025, 0.09, 0.34, 0.7, 0.95, 1.0];
        profile.product_rates = MEASURED_ROWS.into_iter().zip(shares).map(rate).collect();
        profile.contention.clear();
        let mut turn = 0;
        for kind in CollectiveKind::sample_kinds(ranks).into_iter().filter(|kind| !kind.moves_by_data()) {
            for variant in profile.supported_variants(&kind) {
                turn += 1;
                let (taken, rate) = (0.1 + 0.1 * f64::from(turn % 7), 0.15 + 0.1 * f64::from(turn % 5));
                let measurement = ContentionMeasurement {
                    collective: kind.collective_name(),
                    variant,
                    ranks,
                    bytes: COLLECTIVE_BYTES,
                    taken,
                    rate,
                    provenance: Provenance::Measured,
                    note: String::new(),
                };
                let is_known = profile
                    .contention
                    .iter()
                    .any(|c| (c.collective, c.variant) == (measurement.collective, measurement.variant));
                if !is_known {
                    profile.contention.push(measurement);
                }
            }
        }
        profile
    }

    /// The start of a tuning: the curves, with different numbers for all other values.
    fn unknown(known: &MachineProfile) -> MachineProfile {
        let throughput = MachineProfile::builtin("h200x8").and_then(|p| p.throughput);
        MachineProfile { throughput, product_rates: vec![], contention: vec![], ..known.clone() }
    }

    fn near(found: f64, expected: f64, part: f64) -> bool {
        (found - expected).abs() <= part * expected
    }

    /// Products that a collective stops entirely take the same time whatever its rate.
    #[test]
    fn rates_are_measured_only_if_products_go_on() {
        let product = 200.0;
        for (taken, rate) in [(0.0, 1.0), (0.3, 0.5), (0.9, 0.2), (0.5, 1.0)] {
            let longer = product / (1.0 - taken * rate) * (1.0 - rate);
            let measured = rate_next_to_product(product, longer, taken).expect("a rate");
            assert!((measured - rate).abs() < 1e-9, "{taken} {rate}: {measured}");
        }
        assert_eq!(rate_next_to_product(product, product, 1.0), None);
        assert_eq!(rate_next_to_product(product, 0.99 * product, 1.0), None);
    }

    /// A machine is measured by the model of a profile, and the result is that profile.
    #[test]
    fn a_machine_is_found_by_what_its_programs_take() {
        for ranks in [2, 4] {
            let machine = known(ranks);
            let measure = |plan: &CheckedPlan| Ok(estimate(plan, &machine)?[0].total_us);
            let TuneResult { profile, notes } = tune_profile(unknown(&machine), ranks, &measure);
            assert!(notes.is_empty(), "{notes:#?}");
            let [measured, expected] = [&profile, &machine].map(|p| p.throughput.expect("a throughput"));
            assert!(near(measured.gap_us, expected.gap_us, 0.01), "{measured:?}");
            assert!(near(measured.product_gap_us, expected.product_gap_us, 0.02), "{measured:?}");
            assert!(near(measured.product_k_us, expected.product_k_us, 0.02), "{measured:?}");
            assert!(near(measured.attention_gap_us, expected.attention_gap_us, 0.02), "{measured:?}");
            assert!(near(measured.attention, expected.attention, 0.02), "{measured:?}");
            assert!(near(measured.matmul_16bit, expected.matmul_16bit, 0.02), "{measured:?}");
            assert!(near(measured.matmul, expected.matmul, 0.02), "{measured:?}");
            assert!(near(measured.crossing_us, expected.crossing_us, 0.15), "{measured:?}");
            assert_eq!(profile.product_rates.len(), MEASURED_ROWS.len());
            for (measured, expected) in profile.product_rates.iter().zip(&machine.product_rates) {
                assert!(
                    near(measured.matmul_16bit, expected.matmul_16bit, 0.02),
                    "{measured:?} {expected:?}"
                );
            }
            assert_eq!(profile.contention.len(), machine.contention.len());
            for found in &profile.contention {
                let kinds = CollectiveKind::sample_kinds(ranks);
                let kind =
                    kinds.iter().find(|kind| kind.collective_name() == found.collective).expect("a kind");
                let expected = machine.timed_collectives(&[(kind, found.bytes)], found.variant, None, ranks);
                let expected = expected.expect("a curve");
                let [taken, rate] = [expected.compute_share, expected.rate]
                    .map(|share| f64::from(share) / f64::from(FULL_RATE));
                assert!((found.taken - taken).abs() < 0.05, "{taken}: {found:?}");
                assert!((found.rate - rate).abs() < 0.08, "{rate}: {found:?}");
            }
            assert_eq!(MachineProfile::from_json(&profile.to_json()).expect("a profile"), profile);
        }
    }

    /// Rates of few rows are those of symmc's kernels.
    #[test]
    fn products_of_few_rows_are_fused_with_their_residuals() {
        let measure = |_: &CheckedPlan| Ok(1.0);
        let tuning = ProfileTuner { ranks: 2, measure: &measure, profile: known(2), notes: Vec::new() };
        for (rows, dtype, is_fused) in [
            (1, "bf16", true),
            (16, "bf16", true),
            (64, "bf16", true),
            (256, "bf16", false),
            (16, "f32", false),
        ] {
            let planned = tuning.plan_products(rows, dtype).expect("a plan");
            assert_eq!(planned.plan.buckets[0].steps.len(), PRODUCTS_PER_RUN);
            assert_eq!(planned.graph.nodes.len() > PRODUCTS_PER_RUN, is_fused, "{rows} {dtype}");
        }
    }

    /// A value that cannot be measured is named and keeps its old value. The others are measured.
    #[test]
    fn measurements_that_fail_are_named() {
        let machine = known(2);
        let measure = |plan: &CheckedPlan| {
            let text = &plan.source.text;
            if text.contains("attention") || text.contains("via=push") || text.contains("f32[64, ") {
                return Err(Error::new(ErrorKind::Run, "no kernel".to_string()));
            }
            Ok(estimate(plan, &machine)?[0].total_us)
        };
        let start = unknown(&machine);
        let TuneResult { profile, notes } = tune_profile(start.clone(), 2, &measure);
        for part in [
            "the gap of attention",
            "the rate of attention",
            "products of 64 rows in f32",
            "all_gather by push",
        ] {
            assert!(notes.iter().any(|n| n.contains(part) && n.contains("no kernel")), "{part}: {notes:#?}");
        }
        let [after, before] = [&profile, &start].map(|p| p.throughput.expect("a throughput"));
        assert!(after.attention == before.attention && after.gap_us != before.gap_us);
        assert!(profile.contention.iter().all(|c| c.variant != CollectiveVariant::Push));
        assert!(profile.contention.len() > 4 && profile.product_rates.len() == MEASURED_ROWS.len() - 1);
        // Nothing can be measured: all values stay as they were.
        let nothing = |_: &CheckedPlan| Err(Error::new(ErrorKind::Run, "no GPU".to_string()));
        let TuneResult { profile, notes } = tune_profile(start.clone(), 2, &nothing);
        assert_eq!(profile, MachineProfile { version: VERSION, ..start });
        assert!(notes.len() > 4);
    }
}
