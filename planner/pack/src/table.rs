//! Packing problems as the published CSV format: a header, then one buffer per line.
//!
//! The columns `id`, `lower`, `upper` and `size` may come in any order, and lifetimes are half-open. Older
//! files have `start` and `end` with an inclusive end. `alignment` and `offset` are honoured, and an empty
//! offset or -1 means none. Other columns are ignored. Tables are written with half-open lifetimes.
//!
//! Deliberately absent: quoted cells, wrapped lifetimes, and minimalloc's gaps. A buffer with gaps is taken to
//! be alive throughout.

use std::collections::HashMap;
use std::ops::Index;

use thiserror::Error;

use crate::block::Block;

/// A packing problem whose buffers have names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockTable {
    pub ids: NameList,
    pub blocks: Vec<Block>,
}

/// Names, concatenated in one text, which saves memory for a million of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NameList {
    text: String,
    ends: Vec<usize>,
}

impl NameList {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|i| &self[i])
    }

    fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }
}

impl Index<usize> for NameList {
    type Output = str;

    fn index(&self, i: usize) -> &str {
        &self.text[i.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[i]]
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TableError {
    #[error("the file is empty; expected a header with id, lower, upper and size")]
    Empty,
    #[error("line 1: found the columns {found}; expected {missing} among them")]
    Column { found: String, missing: &'static str },
    #[error("line 1: the column {0} occurs twice")]
    Repeated(String),
    #[error("line {line}: found {found} cells, expected {expected} as in the header")]
    Cells {
        /// The line number, from 1.
        line: usize,
        found: usize,
        expected: usize,
    },
    #[error("line {line}: {column} is {found:?}, expected {expected}")]
    Cell {
        line: usize,
        column: &'static str,
        found: String,
        /// The values that the cell may hold.
        expected: &'static str,
    },
    #[error("line {line}: the lifetime {lower}..{upper} is empty, expected lower < upper")]
    Lifetime {
        line: usize,
        lower: usize,
        /// The end, exclusive.
        upper: usize,
    },
    #[error("line {line}: the id {id} occurs already in line {first}, expected unique ids")]
    Id { line: usize, id: String, first: usize },
}

struct TableColumns {
    count: usize,
    id: usize,
    start: usize,
    end: usize,
    /// Whether the end is the last instant instead of the instant after it.
    inclusive: bool,
    size: usize,
    alignment: Option<usize>,
    offset: Option<usize>,
}

impl TableColumns {
    fn read(header: &str) -> Result<Self, TableError> {
        let names: Vec<String> = header.split(',').map(|c| c.trim().to_ascii_lowercase()).collect();
        let column_names = ["id", "lower", "upper", "start", "end", "size", "alignment", "offset"];
        if let Some(twice) = column_names.iter().find(|k| names.iter().filter(|n| n == *k).count() > 1) {
            return Err(TableError::Repeated((*twice).to_string()));
        }
        let find = |name: &str| names.iter().position(|n| n == name);
        let need = |name: &'static str| {
            find(name).ok_or_else(|| TableError::Column { found: header.trim().into(), missing: name })
        };
        let inclusive = find("lower").is_none() && find("start").is_some();
        let (start, end) = if inclusive { ("start", "end") } else { ("lower", "upper") };
        Ok(TableColumns {
            count: names.len(),
            id: need("id")?,
            start: need(start)?,
            end: need(end)?,
            inclusive,
            size: need("size")?,
            alignment: find("alignment"),
            offset: find("offset"),
        })
    }
}

impl BlockTable {
    pub fn read(text: &str) -> Result<Self, TableError> {
        let text = text.trim_start_matches('\u{feff}');
        let header = text.lines().next().filter(|line| !line.trim().is_empty()).ok_or(TableError::Empty)?;
        let columns = TableColumns::read(header)?;
        let mut table = BlockTable::default();
        let line_count = text.bytes().filter(|&c| c == b'\n').count();
        table.ids.ends.reserve(line_count);
        table.blocks.reserve(line_count);
        let mut line_of_id: HashMap<&str, usize> = HashMap::new();
        // Ids are unique as long as each is longer than the one before, or equally long and greater, as
        // ascending numbers are.
        let mut ascending = true;
        let mut previous_id = "";
        let mut cells: Vec<&str> = Vec::new();
        for (line, row) in rows(text) {
            split(row, &mut cells);
            if cells.len() != columns.count {
                return Err(TableError::Cells { line, found: cells.len(), expected: columns.count });
            }
            let id = cells[columns.id];
            let first = table.blocks.is_empty();
            if ascending && !first && (id.len(), id) <= (previous_id.len(), previous_id) {
                ascending = false;
                line_of_id.reserve(line_count);
                let before = rows(text).take(table.blocks.len());
                line_of_id.extend(
                    before.map(|(line, row)| (row.split(',').nth(columns.id).unwrap_or("").trim(), line)),
                );
            }
            if !ascending && let Some(first) = line_of_id.insert(id, line) {
                return Err(TableError::Id { line, id: id.into(), first });
            }
            previous_id = id;
            table.ids.push(id);
            table.blocks.push(parse_block(&columns, &cells, line)?);
        }
        Ok(table)
    }

    /// Writes the table with these offsets.
    pub fn write(&self, offsets: &[u64]) -> String {
        let aligned = self.blocks.iter().any(|b| b.align > 1);
        let mut out = String::from(if aligned {
            "id,lower,upper,size,alignment,offset\n"
        } else {
            "id,lower,upper,size,offset\n"
        });
        out.reserve(self.ids.text.len() + 48 * self.blocks.len());
        for ((id, block), &offset) in self.ids.iter().zip(&self.blocks).zip(offsets) {
            out.push_str(id);
            let alignment = aligned.then_some(block.align);
            let numbers =
                [Some(block.start as u64), Some(block.end as u64), Some(block.size), alignment, Some(offset)];
            for number in numbers.into_iter().flatten() {
                out.push(',');
                push_number(&mut out, number);
            }
            out.push('\n');
        }
        out
    }
}

/// The non-empty lines below the header, with their numbers.
fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).skip(1).filter(|(_, line)| !line.trim().is_empty())
}

fn split<'t>(line: &'t str, cells: &mut Vec<&'t str>) {
    cells.clear();
    let mut from = 0;
    for (comma, _) in line.bytes().enumerate().filter(|&(_, c)| c == b',') {
        cells.push(line[from..comma].trim());
        from = comma + 1;
    }
    cells.push(line[from..].trim());
}

/// Appends a number without a formatter, whose cost is noticeable for millions of numbers.
fn push_number(out: &mut String, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len() - 1;
    while number > 9 {
        digits[first] += (number % 10) as u8;
        number /= 10;
        first -= 1;
    }
    digits[first] += number as u8;
    out.extend(digits[first..].iter().map(|&digit| char::from(digit)));
}

fn parse_block(columns: &TableColumns, cells: &[&str], line: usize) -> Result<Block, TableError> {
    const EXPECTED_INTEGER: &str = "an integer from 0 to 2^62 - 1";
    let number = |index: usize, column: &'static str, expected: &'static str| {
        let value = cells[index].parse::<u64>().ok().filter(|&v| v < 1 << 62);
        value.ok_or_else(|| TableError::Cell { line, column, found: cells[index].into(), expected })
    };
    let (from, to) = if columns.inclusive { ("start", "end") } else { ("lower", "upper") };
    let lower = number(columns.start, from, EXPECTED_INTEGER)? as usize;
    let upper = number(columns.end, to, EXPECTED_INTEGER)? as usize + usize::from(columns.inclusive);
    if lower >= upper {
        return Err(TableError::Lifetime { line, lower, upper });
    }
    let offset_column = columns.offset.filter(|&index| !matches!(cells[index], "" | "-1"));
    let align =
        columns.alignment.map(|index| number(index, "alignment", "a positive integer")).transpose()?;
    if let (Some(0), Some(index)) = (align, columns.alignment) {
        let column = "alignment";
        let expected = "a positive integer";
        return Err(TableError::Cell { line, column, found: cells[index].into(), expected });
    }
    Ok(Block {
        start: lower,
        end: upper,
        size: number(columns.size, "size", EXPECTED_INTEGER)?,
        align: align.unwrap_or(1),
        offset: offset_column
            .map(|index| number(index, "offset", "an integer from 0 to 2^62 - 1, or nothing"))
            .transpose()?,
    })
}
