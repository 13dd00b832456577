//! Numbers and tables as text for people. All numbers have three significant digits.

/// Bytes with a binary unit and three significant digits: `512 B`, `17.0 KiB`, `1.25 GiB`.
pub fn format_bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", format_digits(value), UNITS[unit])
}

/// A number of things: `1 rank`, `4 ranks`.
pub fn format_count(n: impl Into<u64>, thing: &str) -> String {
    match n.into() {
        1 => format!("1 {thing}"),
        n => format!("{n} {thing}s"),
    }
}

/// Microseconds with three significant digits, as ms from 10 ms on and as s from 10 s on.
pub fn format_micros(us: f64) -> String {
    match us {
        us if us < 1e4 => format!("{} µs", format_digits(us)),
        us if us < 1e7 => format!("{} ms", format_digits(us / 1e3)),
        us => format!("{} s", format_digits(us / 1e6)),
    }
}

/// A number with three significant digits, or with all digits before the decimal point if there are more.
pub fn format_digits(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// How far `peak` is above `bound`, in percent of the bound.
pub fn format_gap(peak: u64, bound: u64) -> String {
    let percent = if bound == 0 { 0.0 } else { (peak as f64 / bound as f64 - 1.0) * 100.0 };
    format!("{percent:.2} %")
}

/// A table with an indent of two and two spaces between columns. The first column and text are aligned left, numbers right.
pub fn format_table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            let is_text = cell.chars().next().is_some_and(|ch| !ch.is_ascii_digit());
            line.push(' ');
            if c == 0 || is_text {
                line.extend([cell.as_str(), &pad])
            } else {
                line.extend([&pad, cell.as_str()])
            }
            line.push(' ');
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let shown = [0, 1023, 1024, 17 * 1024, 1 << 20, (1 << 20) - 1, 5 << 30].map(format_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "17.0 KiB", "1.00 MiB", "1.00 MiB", "5.00 GiB"]);
    }

    #[test]
    fn gap_is_relative_to_the_bound() {
        assert_eq!(
            [format_gap(101, 100), format_gap(100, 100), format_gap(0, 0)],
            ["1.00 %", "0.00 %", "0.00 %"]
        );
    }
}
