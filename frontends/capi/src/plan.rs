//! Options of compilations, and plans.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::sync::OnceLock;

use symmc::{
    ArgumentBinding, BucketSpec, CheckedPlan, CompileConfig, Error, ErrorKind, Numerics, SourceComparison,
};

use crate::error::{
    borrow_handle, borrow_handle_mut, c_text, create_handle, free_handle, guard, read_slice, read_text,
    symmc_status,
};
use crate::program::symmc_program;

/// The options of a compilation.
pub struct symmc_options(CompileConfig);

/// A plan that was proved safe.
pub struct symmc_plan {
    pub(crate) plan: CheckedPlan,
    report: CString,
    /// The comparison with the source, and its text. Computed at the first use.
    comparison: OnceLock<(SourceComparison, CString)>,
}

impl symmc_plan {
    fn new(plan: CheckedPlan) -> symmc_plan {
        let report = c_text(&plan_report(&plan));
        symmc_plan { plan, report, comparison: OnceLock::new() }
    }

    fn comparison(&self) -> &(SourceComparison, CString) {
        self.comparison.get_or_init(|| {
            let comparison = symmc::compare_with_source(&self.plan);
            let text = c_text(&comparison.to_string());
            (comparison, text)
        })
    }
}

/// A summary of the plan's decisions.
fn plan_report(plan: &CheckedPlan) -> String {
    let numerics = plan.numerics.report_suffix();
    let mut lines =
        vec![format!("{}: {} ranks, machine {}{numerics}", plan.source.name, plan.ranks, plan.machine)];
    for bucket in &plan.buckets {
        lines.push(bucket.describe_range());
        for decision in &bucket.decisions {
            let chosen = decision.alternatives.iter().find(|alternative| alternative.name == decision.chosen);
            let estimate = chosen
                .map_or_else(String::new, |alternative| format!(", estimated {:.1} us", alternative.us));
            let (collective, bytes) = (&decision.collective, decision.bytes);
            lines.push(format!("  %{collective} of {bytes} bytes runs as {}{estimate}", decision.chosen));
        }
    }
    let arenas = &plan.arenas;
    lines.push(format!("arenas: {} ordinary and {} symmetric bytes", arenas.ordinary, arenas.symmetric));
    lines.push(format!("proved safe: {}", plan.report()));
    lines.push(String::new());
    lines.join("\n")
}

/// Creates options with the defaults: for the host, one bucket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_create(out: *mut *mut symmc_options) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, || Ok(symmc_options(CompileConfig::default()))) }
}

/// Sets the machine for which choices are made: the name of a built-in profile, such as `host` or `h200x8`, or the path of a
/// profile that `symmc tune` wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_set_machine(
    options: *mut symmc_options,
    machine: *const c_char,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let (options, machine) =
            unsafe { (borrow_handle_mut(options, "options")?, read_text(machine, "the machine")?) };
        options.0.profile = symmc::machine_profile(machine)?;
        Ok(())
    })
}

/// Divides the range of a symbol into buckets. `upper` is the largest value of each, in ascending order. The buckets of other
/// symbols do not change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_set_buckets(
    options: *mut symmc_options,
    symbol: *const c_char,
    upper: *const i64,
    count: usize,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let (options, symbol) =
            unsafe { (borrow_handle_mut(options, "options")?, read_text(symbol, "the symbol")?) };
        // SAFETY: the caller ensures it.
        let upper = unsafe { read_slice(upper, count, "upper") }?;
        options.0.buckets.retain(|spec| spec.symbol != symbol);
        if !upper.is_empty() {
            options.0.buckets.push(BucketSpec::new(symbol, upper));
        }
        Ok(())
    })
}

/// Sets whether arguments that must be symmetric are stored in the symmetric memory of the plan. The caller then writes them there
/// (`symmc_session_address`), and no run copies them. 1 for all such arguments, 0 for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_set_bind_arguments(
    options: *mut symmc_options,
    all: i32,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let options = unsafe { borrow_handle_mut(options, "options") }?;
        options.0.bind = if all == 0 { ArgumentBinding::None } else { ArgumentBinding::All };
        Ok(())
    })
}

/// Sets the largest size of the symmetric arena in bytes; 0 for no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_set_symmetric_limit(
    options: *mut symmc_options,
    bytes: u64,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let options = unsafe { borrow_handle_mut(options, "options") }?;
        options.0.symm_limit = Some(bytes).filter(|&bytes| bytes > 0);
        Ok(())
    })
}

/// Sets whether several collectives may be combined into one if a run is estimated to become faster: 1 (the default) or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_set_coalesce(
    options: *mut symmc_options,
    coalesce: i32,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let options = unsafe { borrow_handle_mut(options, "options") }?;
        options.0.coalesce = coalesce != 0;
        Ok(())
    })
}

/// Sets the changes of rounding that the plan may make: `exact` for none, or one or more of `reassociate`, `narrow` and
/// `narrow-f16`, separated by commas.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_set_numerics(
    options: *mut symmc_options,
    classes: *const c_char,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let (options, classes) =
            unsafe { (borrow_handle_mut(options, "options")?, read_text(classes, "the classes")?) };
        let numerics = classes.parse::<Numerics>();
        options.0.numerics = numerics.map_err(|e| Error::new(ErrorKind::Input, format!("numerics: {e}")))?;
        Ok(())
    })
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_options_free(options: *mut symmc_options) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(options) }
}

/// Compiles a program into a plan and proves the plan safe. `options` may be NULL. All ranks of a session need the same plan:
/// compile it once and pass it on with `symmc_plan_write`, or compile the same program with the same options everywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_compile(
    program: *const symmc_program,
    options: *const symmc_options,
    out: *mut *mut symmc_plan,
) -> symmc_status {
    let compile = || {
        // SAFETY: the caller ensures it.
        let (program, options) = unsafe { (borrow_handle(program, "program")?, options.as_ref()) };
        let plan = match options {
            Some(options) => symmc::compile(&program.0, &options.0),
            None => symmc::compile(&program.0, &CompileConfig::default()),
        };
        plan.map(symmc_plan::new)
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, compile) }
}

/// Reads a plan from a file and proves it safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_read(path: *const c_char, out: *mut *mut symmc_plan) -> symmc_status {
    let read = || {
        // SAFETY: the caller ensures it.
        let path = unsafe { read_text(path, "the path of the plan") }?;
        symmc::into_checked_plan(symmc::read_plan(Path::new(path))?).map(symmc_plan::new)
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, read) }
}

/// Writes a plan to a file. An existing file is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_write(plan: *const symmc_plan, path: *const c_char) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let (plan, path) =
            unsafe { (borrow_handle(plan, "plan")?, read_text(path, "the path of the plan")?) };
        symmc::write_file(path.as_ref(), plan.plan.to_json().as_bytes())
    })
}

/// The number of ranks of a plan; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_ranks(plan: *const symmc_plan) -> u32 {
    // SAFETY: the caller ensures it.
    unsafe { plan.as_ref() }.map_or(0, |plan| plan.plan.ranks)
}

/// A summary of the plan's decisions as text. The plan owns the text, which is valid as long as the plan; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_report(plan: *const symmc_plan) -> *const c_char {
    // SAFETY: the caller ensures it.
    unsafe { plan.as_ref() }.map_or(std::ptr::null(), |plan| plan.report.as_ptr())
}

/// Compares a plan with the source that it carries, node by node. Differing nodes are compared on random values. Differences
/// give `SYMMC_ERROR_CHECK`. If `require_compared` is not 0, parts that were not compared at all sizes do, too.
/// `symmc_plan_comparison` says what was compared. The first call compares, and later calls return its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_compare(plan: *const symmc_plan, require_compared: i32) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let plan = unsafe { borrow_handle(plan, "plan") }?;
        let comparison = plan.comparison().0.clone().into_agreement()?;
        if require_compared != 0 { symmc::require_full_comparison(&comparison) } else { Ok(()) }
    })
}

/// The parts that `symmc_plan_compare` compared and left out, as text. The plan owns the text, which is valid as long as the
/// plan; NULL before that call, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_comparison(plan: *const symmc_plan) -> *const c_char {
    // SAFETY: the caller ensures it.
    let comparison = unsafe { plan.as_ref() }.and_then(|plan| plan.comparison.get());
    comparison.map_or(std::ptr::null(), |(_, text)| text.as_ptr())
}

/// Frees a plan. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_free(plan: *mut symmc_plan) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(plan) }
}
