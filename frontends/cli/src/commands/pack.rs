//! `symmc pack`: runs the planner's packer on a table of buffers, and verifies the offsets.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use symmc::unstable::pack::{self, BlockTable, Config, PackError, Packing, VerifiedPacking};
use symmc::{Error, ErrorKind};

use crate::args::{PackArgs, PackFormat};
use crate::progress::with_spinner;
use crate::stdout::{print_exact, print_text, refuse_overwrite};
use crate::units::{format_count, format_gap};

/// Packs a table, verifies the offsets, writes them if `--output` is given, and prints a report.
pub fn pack(args: &PackArgs) -> Result<ExitCode> {
    let name = args.file.display();
    refuse_overwrite(args.output.as_deref(), std::slice::from_ref(&args.file))?;
    let text = read_table(&args.file).with_context(|| name.to_string())?;
    let table = BlockTable::read(&text).map_err(|e| anyhow!("{name}: {e}"))?;
    drop(text);
    let start = Instant::now();
    let config = Config { capacity: args.capacity, ..Config::thorough() };
    let packing = with_spinner("packing", || pack::pack(&table.blocks, &config))
        .map_err(|e| anyhow!("{name}: {}", describe_error(&table, &e)))?;
    let seconds = start.elapsed().as_secs_f64();
    let verified = pack::verify(&table.blocks, &packing.offsets)
        .map_err(|e| Error::new(ErrorKind::Defect, format!("{name}: the packer gave wrong offsets: {e}")))?;
    if let Some(path) = &args.output {
        symmc::write_file(path, table.write(&packing.offsets).as_bytes())?;
    }
    let result = PackOutcome { table: &table, packing: &packing, verified, seconds, capacity: args.capacity };
    match args.format {
        PackFormat::Text => print_text(&result.format_text(&name.to_string()))?,
        PackFormat::Json => print_exact(&result.format_json())?,
    }
    Ok(ExitCode::from(u8::from(!result.fits())))
}

/// The largest table that is read, in bytes. A device may have no end.
const LONGEST: u64 = 1 << 30;

fn read_table(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    if text.len() as u64 >= LONGEST {
        return Err(std::io::Error::other(format!(
            "expected a table of less than {} MiB, found more",
            LONGEST >> 20
        )));
    }
    Ok(text)
}

/// The text of an error of the packer, with the names of the buffers in the table.
fn describe_error(table: &BlockTable, error: &PackError) -> String {
    match error {
        PackError::Overlap { first, second } => format!(
            "buffers {} and {} overlap: the table gives both an offset, and they are alive at the same time",
            &table.ids[*first], &table.ids[*second]
        ),
        PackError::Misaligned { block, offset, align } => format!(
            "buffer {}: expected an offset that is a multiple of its alignment {align}, found {offset}",
            &table.ids[*block]
        ),
        PackError::TooLarge => error.to_string(),
    }
}

struct PackOutcome<'a> {
    table: &'a BlockTable,
    packing: &'a Packing,
    verified: VerifiedPacking,
    seconds: f64,
    capacity: Option<u64>,
}

impl PackOutcome<'_> {
    fn fits(&self) -> bool {
        self.capacity.is_none_or(|c| self.verified.peak <= c)
    }

    /// The names of the buffers that end above a limit.
    fn buffers_above(&self, limit: u64) -> Vec<&str> {
        let placed = self.table.blocks.iter().zip(&self.packing.offsets).zip(self.table.ids.iter());
        let above = placed.filter(|((block, offset), _)| block.size > 0 && block.size + **offset > limit);
        above.map(|(_, id)| id).collect()
    }

    /// The names of the buffers that are alive at the same time and make up the bound.
    fn buffers_at_bound(&self) -> Vec<&str> {
        self.packing.at_bound.iter().map(|&b| &self.table.ids[b]).collect()
    }

    fn format_text(&self, name: &str) -> String {
        let VerifiedPacking { peak, bound } = self.verified;
        let mut out = format!(
            "{name}: {}\n  bound  {bound}\n  peak   {peak}\n  gap    {}\n  order  {}\n  work   {}\n  time   {:.1} ms\n",
            format_count(self.packing.offsets.len() as u64, "buffer"),
            format_gap(peak, bound),
            self.packing.order,
            self.packing.work,
            self.seconds * 1e3,
        );
        if let Some(capacity) = self.capacity.filter(|_| !self.fits()) {
            out += &format!(
                "FAILED: the peak {peak} is {} above the capacity {capacity}; buffers that end above the capacity: {}\n",
                peak - capacity,
                first_names(&self.buffers_above(capacity)),
            );
            if bound > capacity {
                out += &format!(
                    "  no packing fits, because these buffers are alive at the same time: {}\n",
                    first_names(&self.buffers_at_bound())
                );
            }
        }
        out
    }

    fn format_json(&self) -> String {
        let VerifiedPacking { peak, bound } = self.verified;
        let value = serde_json::json!({
            "buffers": self.packing.offsets.len(),
            "bound": bound,
            "peak": peak,
            "order": self.packing.order,
            "work": self.packing.work,
            "seconds": self.seconds,
            "capacity": self.capacity,
            "fits": self.fits(),
            "at_bound": self.buffers_at_bound(),
            "above_capacity": self.capacity.map(|c| self.buffers_above(c)),
        });
        format!("{value:#}\n")
    }
}

/// The first names of a list, with a count of the others.
fn first_names(names: &[&str]) -> String {
    const SHOWN: usize = 20;
    let hidden = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - hidden].join(", ");
    if hidden == 0 { shown } else { format!("{shown} and {hidden} more") }
}
