//! Parsers of argument values. Each returns the value or an error that says what was expected and what was found.
//!
//! clap puts the option in front of these errors, so they do not name it.

use symmc::{CollectiveVariant, DType, SymbolConstraint};

fn parse_assignment(text: &str) -> Result<(&str, &str), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found {text}"))?;
    if name.is_empty() { Err(format!("expected NAME=VALUE, found {text}")) } else { Ok((name, value)) }
}

/// A name that is not empty, with or without the `%` of values.
pub fn parse_name(text: &str) -> Result<String, String> {
    if text.trim_start_matches('%').is_empty() { Err("expected a name".into()) } else { Ok(text.to_string()) }
}

fn parse_integer(text: &str) -> Result<i64, String> {
    text.trim().parse().map_err(|_| format!("expected an integer, found {text:?}"))
}

pub fn parse_setting(text: &str) -> Result<(String, i64), String> {
    let (name, value) = parse_assignment(text)?;
    Ok((name.to_string(), parse_integer(value)?))
}

pub fn parse_bucket(text: &str) -> Result<(String, Vec<i64>), String> {
    let (name, values) = parse_assignment(text)?;
    Ok((name.to_string(), values.split(',').map(parse_integer).collect::<Result<_, _>>()?))
}

pub fn parse_dim(text: &str) -> Result<(String, SymbolConstraint), String> {
    let (name, extent) = parse_assignment(text)?;
    Ok((name.trim().to_string(), SymbolConstraint::parse(extent)?))
}

pub fn parse_group(text: &str) -> Result<(String, Vec<Vec<u32>>), String> {
    let (name, cells) = parse_assignment(text)?;
    let rank = |r: &str| r.trim().parse().map_err(|_| format!("expected a rank, found {r:?}"));
    let cells = cells.split(';').map(|c| c.split(',').map(rank).collect()).collect::<Result<_, _>>()?;
    Ok((name.to_string(), cells))
}

pub fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 => Ok(x),
        _ => Err(format!("expected a number of 0 or more, found {text:?}")),
    }
}

pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=86_400.0).contains(&s) => Ok(s),
        _ => Err(format!("expected seconds between 0.001 and 86400, found {text:?}")),
    }
}

pub fn parse_dtype(text: &str) -> Result<String, String> {
    // Measurements check sums, and bool has none.
    let numbers = || DType::ALL.iter().copied().filter(|&d| d != DType::Bool);
    let names = || numbers().map(DType::name).collect::<Vec<_>>().join(", ");
    match numbers().find(|d| d.name() == text) {
        Some(dtype) => Ok(dtype.name().into()),
        None => Err(format!("expected a dtype of numbers ({}), found {text}", names())),
    }
}

/// The name of a variant of collectives, as `.symm` text writes it after `via=`.
pub fn parse_variant(text: &str) -> Result<CollectiveVariant, String> {
    CollectiveVariant::from_name(text)
        .ok_or_else(|| format!("unknown variant {text}; expected one of {}", CollectiveVariant::names()))
}

/// The number of rows and the number of elements in a row: `8x4096`.
pub fn parse_rows(text: &str) -> Result<[usize; 2], String> {
    let rows = text.split_once('x').and_then(|(r, e)| Some([r.parse().ok()?, e.parse().ok()?]));
    let is_supported = |[rows, elements]: &[usize; 2]| {
        (1..=1 << 16).contains(rows) && (1..=1 << 16).contains(elements) && rows * elements <= 1 << 26
    };
    rows.filter(is_supported).ok_or_else(|| {
        format!(
            "expected ROWSxELEMENTS such as 8x4096, at most 65536 of each and 2^26 elements in all; found {text:?}"
        )
    })
}

/// The units that sizes in bytes may have, with the bytes of each. Letters of either case are accepted.
const BYTE_UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// A number of bytes: `65536`, `512KiB`, `64 MiB`, `1.5GiB` or `1GB`. Binary units are powers of 1024, decimal units
/// powers of 1000. A fraction is rounded down to whole bytes.
pub fn parse_byte_count(text: &str) -> Result<u64, String> {
    let expected = || {
        format!(
            "expected a number of bytes, such as 65536, 512KiB, 64MiB or 1GiB (powers of 1024) or 1GB (powers of \
             1000), found {text:?}"
        )
    };
    let trimmed = text.trim();
    let digits = trimmed.find(|ch: char| !ch.is_ascii_digit() && ch != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim_start();
    let (_, unit_bytes) =
        BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(expected)?;
    if let Ok(count) = number.parse::<u64>() {
        return count.checked_mul(*unit_bytes).ok_or_else(|| format!("{text} is more than 2^64 - 1 bytes"));
    }
    let is_fraction = *unit_bytes > 1 && number.starts_with(|ch: char| ch.is_ascii_digit());
    let count = number.parse::<f64>().ok().filter(|_| is_fraction).ok_or_else(expected)?;
    let bytes = count * *unit_bytes as f64;
    if bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(format!("{text} is more than 2^64 - 1 bytes"))
    }
}

/// The size of a collective that is measured: 64 bytes, which are a few elements per rank, to 4 GiB, which fits in the
/// memory of a GPU several times.
pub fn parse_collective_size(text: &str) -> Result<usize, String> {
    match parse_byte_count(text)? {
        bytes @ 64..=0x1_0000_0000 => Ok(bytes as usize),
        bytes => Err(format!("expected 64 bytes to 4 GiB, found {bytes} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_have_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("512KiB", 512 << 10),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1gib", 1 << 30),
            ("1GB", 1_000_000_000),
            ("17.5 KiB", 17_920),
            ("2TiB", 2 << 40),
            ("100B", 100),
        ] {
            assert_eq!(parse_byte_count(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "1.5", "-1", "1QB", "1G iB", "0x10", "1e9", "1.2.3KiB", ".KiB"] {
            let error = parse_byte_count(text).expect_err(text);
            assert!(error.contains("512KiB") && error.contains("1GB") && error.contains(text), "{error}");
        }
        for text in ["99999999TiB", "99999999.5TiB"] {
            assert!(parse_byte_count(text).expect_err(text).contains("more than 2^64"), "{text}");
        }
        assert_eq!(parse_collective_size("4KiB"), Ok(4096));
        assert!(parse_collective_size("5GiB").expect_err("too large").contains("64 bytes to 4 GiB"));
    }
}
