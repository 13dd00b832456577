//! Values of arguments, as they are written.

use symmc::{CollectiveVariant, DType, SymbolConstraint};

fn parse_assignment(text: &str) -> Result<(&str, &str), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found {text}"))?;
    if name.is_empty() { Err(format!("expected NAME=VALUE, found {text}")) } else { Ok((name, value)) }
}

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
    // What is summed is compared with the sum of numbers, which bool has not.
    let numbers = || DType::ALL.iter().copied().filter(|&d| d != DType::Bool);
    let names = || numbers().map(DType::name).collect::<Vec<_>>().join(", ");
    match numbers().find(|d| d.name() == text) {
        Some(dtype) => Ok(dtype.name().into()),
        None => Err(format!("no numbers of dtype {text}; expected one of {}", names())),
    }
}

/// A variant, by its name in programs.
pub fn parse_variant(text: &str) -> Result<CollectiveVariant, String> {
    CollectiveVariant::from_name(text).ok_or_else(|| {
        format!("no variant {text}; expected {}", CollectiveVariant::describe_expected_names(text))
    })
}

/// Rows and their elements: `8x4096`.
pub fn parse_rows(text: &str) -> Result<[usize; 2], String> {
    let parts = text.split_once('x').and_then(|(r, e)| Some([r.parse().ok()?, e.parse().ok()?]));
    let few = |[rows, elements]: &[usize; 2]| {
        (1..=1 << 16).contains(rows) && (1..=1 << 16).contains(elements) && rows * elements <= 1 << 26
    };
    parts.filter(few).ok_or_else(|| {
        format!("expected rows and elements of a row, at most 65536 of each and 2^26 in all, like 8x4096; found {text:?}")
    })
}

/// A size of a collective: at least a few elements for each rank, and what a GPU can hold several times.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes: usize = text.parse().map_err(|_| format!("expected a number of bytes, found {text:?}"))?;
    match bytes {
        64..=0x1_0000_0000 => Ok(bytes),
        _ => Err(format!("expected 64 bytes to 4 GiB, found {bytes}")),
    }
}
