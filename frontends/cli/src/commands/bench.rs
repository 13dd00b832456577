//! `symmc bench collectives` and `symmc tune`: measurements of this machine's GPUs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use symmc::MachineProfile;
use symmc::bench::{BenchConfig, Measurements, TuneResult};
use symmc::unstable::cuda::bench::{MeasuredCollective, MeasuredNorm, NormImplementation};

use crate::args::{BenchArgs, BenchFormat, TuneArgs};
use crate::load;
use crate::messages;
use crate::progress::with_spinner;
use crate::self_command::SelfCommand;
use crate::stdout::{print_exact, print_text};
use crate::units;

/// Measures collectives on GPUs, and prints the times of all variants and of the vendor's library.
pub fn collectives(args: &BenchArgs, self_command: &SelfCommand) -> Result<ExitCode> {
    let config = BenchConfig::default()
        .with_bytes(args.bytes.clone())
        .with_dtype(&args.dtype)
        .with_replays(args.replays as usize)
        .with_norms(args.norms.clone());
    let command = self_command.rank_command();
    let measured = with_spinner("measuring collectives", || {
        symmc::bench::measure_collectives(args.ranks, &args.gpus, &config, &command)
    })?;
    let Some(first) = measured.first() else { bail!("no rank reported measurements") };
    match args.format {
        BenchFormat::Text => print_text(&format!(
            "{}\n\n{}{}",
            first.machine,
            collective_tables(&first.collectives),
            norm_table(&first.norms)
        ))?,
        BenchFormat::Json => print_exact(&(serde_json::to_string_pretty(first)? + "\n"))?,
    }
    Ok(ExitCode::from(u8::from(!report_wrong_results(&measured))))
}

/// Prints the cases that failed. Returns false if one of them gave a wrong result, which has a time all the same.
fn report_wrong_results(measured: &[Measurements]) -> bool {
    let collectives = measured.iter().flat_map(|m| &m.collectives);
    let mut ok = true;
    for m in collectives.filter(|m| m.failed.is_some()) {
        ok &= m.us.is_none();
        let failed = m.failed.as_deref().unwrap_or("");
        messages::print_line(&format!("{} {} of {} bytes: {failed}", m.collective, m.variant, m.bytes));
    }
    for m in measured.iter().flat_map(|m| &m.norms).filter(|m| m.failed.is_some()) {
        ok &= m.us.is_none();
        let failed = m.failed.as_deref().unwrap_or("");
        messages::print_line(&format!(
            "all_reduce with norm, {:?}, of {}x{}: {failed}",
            m.how, m.rows, m.hidden
        ));
    }
    ok
}

/// Measures this machine's GPUs into a profile.
pub fn tune(args: &TuneArgs, self_command: &SelfCommand) -> Result<ExitCode> {
    // Measuring takes minutes, so the file is checked first.
    symmc::check_writable(&args.output)?;
    let profile = match &args.curves {
        Some(name) => MachineProfile { name: args.name.clone(), ..load::machine_profile(name)? },
        None => match measured_curves(args, self_command)? {
            Some(profile) => profile,
            None => return Ok(ExitCode::FAILURE),
        },
    };
    let command = self_command.rank_command();
    let TuneResult { profile, notes } = with_spinner("measuring computation (2 of 2)", || {
        symmc::bench::measure_computation(profile, args.ranks, &args.gpus, args.replays, &command)
    });
    // Values that could not be measured are those of the nearest built-in profile, or of the model.
    notes.iter().for_each(|note| messages::note(note));
    let path = args.output.display();
    symmc::write_file(&args.output, profile.to_json().as_bytes())?;
    print_text(&format!(
        "{path}: {} curves, {} rates of products, contention of {} variants. {}\n",
        profile.curves.len(),
        profile.product_rates.len(),
        profile.contention.len(),
        profile.about
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A profile with the times of collectives; `None` if a collective gave wrong results.
fn measured_curves(args: &TuneArgs, self_command: &SelfCommand) -> Result<Option<MachineProfile>> {
    let mut bytes: Vec<usize> =
        if args.bytes.is_empty() { (10..=28).map(|k| 1 << k).collect() } else { args.bytes.clone() };
    bytes.sort_unstable();
    bytes.dedup();
    let config = BenchConfig::default().with_bytes(bytes).with_replays(args.replays as usize);
    let config = config.with_blocks(args.blocks.clone());
    let command = self_command.rank_command();
    let measured = with_spinner("measuring collectives (1 of 2)", || {
        symmc::bench::measure_collectives(args.ranks, &args.gpus, &config, &command)
    })?;
    if !report_wrong_results(&measured) {
        return Ok(None);
    }
    Ok(Some(symmc::bench::build_profile(&args.name, &measured, &today())?))
}

/// The date in UTC, `2026-11-21`: days since 1970 to year, month and day (Howard Hinnant, "chrono-compatible
/// low-level date algorithms").
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date_of_days((seconds / 86_400) as i64)
}

fn date_of_days(days: i64) -> String {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A table for each collective with the medians in microseconds. Each size has a row and each variant a column; the last
/// column is the ratio of the best variant to plain.
fn collective_tables(measured: &[MeasuredCollective]) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    measured.iter().for_each(|m| {
        if !kinds.contains(&m.collective.as_str()) {
            kinds.push(&m.collective);
        }
    });
    let mut out = String::new();
    for kind in kinds {
        let of_kind = || measured.iter().filter(|m| m.collective == kind);
        let mut columns: Vec<String> = Vec::new();
        let mut rows: BTreeMap<usize, BTreeMap<String, f64>> = BTreeMap::new();
        for m in of_kind() {
            let exit = if m.exit == Some(false) { " (no exit)" } else { "" };
            let name = format!("{}{exit}", m.variant);
            if !columns.contains(&name) {
                columns.push(name.clone());
            }
            let row = rows.entry(m.bytes).or_default();
            if let Some([_, median, _]) = m.us {
                row.insert(name, median);
            }
        }
        let mut table: Vec<Vec<String>> = vec![
            std::iter::once("bytes".into())
                .chain(columns.iter().cloned())
                .chain(["best / plain".into()])
                .collect(),
        ];
        for (bytes, row) in rows {
            let cell = |name: &String| row.get(name).map_or("–".into(), |us| format!("{us:.2}"));
            let best = row.values().copied().fold(f64::INFINITY, f64::min);
            let ratio = row.get("plain").map_or("–".into(), |plain| format!("{:.2}", best / plain));
            let cells = columns.iter().map(cell);
            table.push(
                std::iter::once(units::format_bytes(bytes as u64)).chain(cells).chain([ratio]).collect(),
            );
        }
        out.push_str(&format!("{kind}, µs (median)\n{}\n", units::format_table(&table)));
    }
    out
}

/// A table of all-reduces with a residual and a norm, with medians in microseconds.
fn norm_table(measured: &[MeasuredNorm]) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let mut table: Vec<Vec<String>> = vec![["rows", "one kernel", "separate"].map(String::from).into()];
    let mut rows: BTreeMap<(usize, usize), [Option<f64>; 2]> = BTreeMap::new();
    for m in measured {
        rows.entry((m.hidden, m.rows)).or_default()[usize::from(m.how == NormImplementation::Separate)] =
            m.us.map(|us| us[1]);
    }
    for ((hidden, rows), us) in rows {
        let cells = us.map(|us| us.map_or("–".into(), |us| format!("{us:.2}")));
        table.push(std::iter::once(format!("{rows}x{hidden}")).chain(cells).collect());
    }
    format!("all_reduce, residual and RMS norm, µs (median)\n{}\n", units::format_table(&table))
}

#[cfg(test)]
mod tests {
    use super::date_of_days;

    #[test]
    fn days_are_dates() {
        let dates = [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_778, "2026-11-21")];
        for (days, text) in dates {
            assert_eq!(date_of_days(days), text);
        }
    }
}
