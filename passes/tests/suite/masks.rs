//! Masks of random rules in random styles of writing: every recognised mask computes the same, and every
//! mask in the list of recognisable ones is recognised.
//!
//! A program is text: positions, comparisons of them, combinations of these, and the use of the mask in
//! attention are each written in one of several ways. Mutations (a side swapped, a limit one off, an axis
//! exchanged) are programs like the others: they need not be recognised, and must keep their values.

use std::fmt::Write as _;

use proptest::prelude::*;
use symmc_ir::attention::AttentionOperands;
use symmc_ir::interp::{self, SeedConfig, seeded_inputs};
use symmc_ir::{Graph, Op, SymbolBindings, text};
use symmc_passes::canonicalize;
use symmc_support::random::SplitMix;

use crate::common::difference;

/// A value of the text: its name and extents.
type Named = (String, Vec<&'static str>);

/// Writes a program.
struct MaskWriter {
    r: SplitMix,
    text: String,
    next: usize,
}

/// The symbols: rows, and columns in addition to rows.
const ROWS: &str = "l";
const COLUMNS: &str = "l + m";

impl MaskWriter {
    fn new(seed: u64) -> MaskWriter {
        let header = "program \"p\" ranks 1\nsymbol b in 1..=3\nsymbol l in 1..=9\nsymbol m in 0..=6\n\
                      arg %q: f32[b, 2, l, 4]\narg %k: f32[b, 1, l + m, 4]\narg %at: i64[]\narg %steps: i32[l]\n\
                      arg %lengths: i64[b]\narg %shown: bool[b, l + m]\narg %asked: bool[b, l]\nparam %sinks: f32[2]\n\
                      arg %given_sinks: f32[2]\n";
        MaskWriter { r: SplitMix(seed), text: header.into(), next: 0 }
    }

    fn emit(&mut self, dtype: &str, shape: &[&'static str], right: &str) -> Named {
        let name = format!("%v{}", self.next);
        self.next += 1;
        writeln!(self.text, "{name}: {dtype}[{}] = {right}", shape.join(", ")).unwrap();
        (name, shape.to_vec())
    }

    /// `offset + i` along one axis.
    fn iota(&mut self, extent: &'static str, offset: i64) -> Named {
        let n = &[extent];
        match self.r.below(8) {
            0 => self.emit("i64", n, &format!("iota start={offset} step=1")),
            1 => {
                let (x, _) = self.emit("i64", n, "iota start=0 step=1");
                self.emit("i64", n, &format!("add {x}, {offset}"))
            }
            2 => {
                let (x, _) = self.emit("i32", n, &format!("iota start={} step=-1", -offset));
                let (x, _) = self.emit("i32", n, &format!("neg {x}"));
                self.emit("i64", n, &format!("cast {x}"))
            }
            3 => {
                let longer: &'static str = if extent == ROWS { "l + 7" } else { "l + m + 7" };
                let (x, _) = self.emit("i64", &[longer], &format!("iota start={} step=1", offset - 3));
                self.emit("i64", n, &format!("slice {x} axis=0 start=3 step=1"))
            }
            4 => {
                let (x, _) = self.emit("i64", n, "full value=1");
                let (x, _) = self.emit("i64", n, &format!("cumsum {x} axis=0"));
                self.emit("i64", n, &format!("sub {x}, {}", 1 - offset))
            }
            5 => {
                let (x, _) = self.emit("i64", n, &format!("iota start={offset} step=1"));
                let (at, _) = self.emit("i64", n, "iota start=0 step=1");
                self.emit("i64", n, &format!("take {x}, {at} axis=0"))
            }
            6 => {
                let (x, _) = self.emit("i64", n, "iota start=0 step=2");
                let (x, _) = self.emit("i64", n, &format!("floor_div {x}, 2"));
                let (y, _) = self.emit("i64", &[], &format!("full value={offset}"));
                self.emit("i64", n, &format!("add {y}, {x}"))
            }
            _ => {
                let (x, _) = self.emit("i64", n, "iota start=0 step=1");
                let (x, _) = self.emit("i64", &["1", extent], &format!("reshape {x}"));
                let (zero, _) = self.emit("i64", n, "full value=0");
                let (at, _) = self.emit("i64", n, "iota start=0 step=1");
                let (x, _) = self.emit("i64", n, &format!("index {x}, {zero}, {at} axis=0"));
                self.emit("i64", n, &format!("sub {x}, {}", -offset))
            }
        }
    }

    /// Positions of rows, `[l, 1]`.
    fn row(&mut self, offset: i64) -> Named {
        let (x, _) = self.iota(ROWS, offset);
        self.emit("i64", &[ROWS, "1"], &format!("reshape {x}"))
    }

    /// Positions of columns, `[l + m]` or with an axis before.
    fn column(&mut self, offset: i64) -> Named {
        let x = self.iota(COLUMNS, offset);
        match self.r.one_in(2) {
            true => x,
            false => self.emit("i64", &["1", COLUMNS], &format!("reshape {}", x.0)),
        }
    }

    /// `x op y` of integers whose result has this shape.
    fn compare(&mut self, x: &str, op: &str, y: &str, shape: &[&'static str]) -> Named {
        let contrary =
            |op: &str| ["le", "gt", "lt", "ge", "eq", "ne"].iter().position(|o| *o == op).unwrap() ^ 1;
        let swapped = match op {
            "le" => "ge",
            "lt" => "gt",
            "ge" => "le",
            "gt" => "lt",
            same => same,
        };
        match self.r.below(5) {
            0 => self.emit("bool", shape, &format!("{op} {x}, {y}")),
            1 => self.emit("bool", shape, &format!("{swapped} {y}, {x}")),
            2 => {
                let opposite = ["le", "gt", "lt", "ge", "eq", "ne"][contrary(op)];
                let (not, _) = self.emit("bool", shape, &format!("{opposite} {x}, {y}"));
                self.emit("bool", shape, &format!("not {not}"))
            }
            3 => {
                let (d, _) = self.emit("i64", shape, &format!("sub {x}, {y}"));
                self.emit("bool", shape, &format!("{op} {d}, 0"))
            }
            _ => {
                let (d, _) = self.emit("i64", shape, &format!("sub {y}, {x}"));
                let (c, _) = self.emit("bool", shape, &format!("{swapped} {d}, 0"));
                let (n, _) = self.emit("i64", shape, &format!("cast {c}"));
                match self.r.one_in(2) {
                    true => self.emit("bool", shape, &format!("eq {n}, 1")),
                    false => self.emit("bool", shape, &format!("cast {n}")),
                }
            }
        }
    }

    /// A random rule of visibility.
    fn rule(&mut self, kind: usize) -> Named {
        let (rc, off) = (&[ROWS, COLUMNS][..], self.r.below(9) as i64 - 3);
        match kind {
            // Causal from an offset, as bounds on either side.
            0 | 1 => {
                let (i, j) = (self.row(off), self.column(self.r.0 as i64 & 1));
                let op = if kind == 0 { self.r.pick(&["le", "lt"]) } else { self.r.pick(&["ge", "gt"]) };
                self.compare(&j.0, op, &i.0, rc)
            }
            // Both sides at once.
            2 => {
                let (i, j) = (self.row(off), self.column(0));
                let (d, _) = self.emit("i64", rc, &format!("sub {}, {}", i.0, j.0));
                let (d, _) = self.emit("i64", rc, &format!("abs {d}"));
                let (w, _) = self.emit("i64", &[], &format!("full value={}", 1 + off.abs()));
                let op = self.r.pick(&["le", "lt"]);
                self.compare(&d, op, &w, rc)
            }
            // Chunks.
            3 => {
                let size = 1 + self.r.below(5);
                let shift = size as i64 * (self.r.below(3) as i64 - 1);
                let (i, j) = (self.row(off), self.column(shift));
                let (i, _) = self.emit("i64", &i.1, &format!("floor_div {}, {size}", i.0));
                let (j, _) = self.emit("i64", &j.1, &format!("floor_div {}, {size}", j.0));
                let op = self.r.pick(&["eq", "ge", "le"]);
                self.compare(&i, op, &j, rc)
            }
            // Rows at positions that are known when the program runs.
            4 => {
                let (i, _) = self.iota(ROWS, off);
                let steps: Named = match self.r.below(3) {
                    0 => self.emit("i64", &[ROWS], &format!("add {i}, %at")),
                    1 => self.emit("i64", &[ROWS], "cast %steps"),
                    _ => self.emit("i64", &[ROWS], &format!("sub {i}, %at")),
                };
                let (i, j) =
                    (self.emit("i64", &[ROWS, "1"], &format!("reshape {}", steps.0)), self.column(0));
                let op = self.r.pick(&["le", "lt", "ge", "gt"]);
                self.compare(&j.0, op, &i.0, rc)
            }
            // Lengths of a batch.
            5 => {
                let wide = &["b", "1", "1", COLUMNS];
                let (n, _) = self.emit("i64", &["b", "1", "1", "1"], "reshape %lengths");
                let j = self.column(off);
                let op = self.r.pick(&["lt", "le", "ge"]);
                self.compare(&j.0, op, &n, wide)
            }
            // Chunks that begin with each sequence.
            9 => {
                let size = 1 + self.r.below(5);
                let (n, _) = self.emit("i64", &["b", "1", "1", "1"], "reshape %lengths");
                let (i, j) = (self.row(off), self.column(0));
                let (i_shape, j_shape) = (&["b", "1", ROWS, "1"], &["b", "1", "1", COLUMNS]);
                let (i, _) = self.emit("i64", i_shape, &format!("sub {}, {n}", i.0));
                let (j, _) = self.emit("i64", j_shape, &format!("sub {}, {n}", j.0));
                let (i, _) = self.emit("i64", i_shape, &format!("floor_div {i}, {size}"));
                let (j, _) = self.emit("i64", j_shape, &format!("floor_div {j}, {size}"));
                let op = self.r.pick(&["eq", "ge", "le"]);
                self.compare(&i, op, &j, &["b", "1", ROWS, COLUMNS])
            }
            // Sequences that are packed into one.
            10 => {
                let (s, _) = self.emit("i64", &["b", COLUMNS], "cumsum %shown axis=1");
                let start = self.r.pick(&["0", "m"]);
                let (i, _) =
                    self.emit("i64", &["b", ROWS], &format!("slice {s} axis=1 start={start} step=1"));
                let (i, _) = self.emit("i64", &["b", "1", ROWS, "1"], &format!("reshape {i}"));
                let (j, _) = self.emit("i64", &["b", "1", "1", COLUMNS], &format!("reshape {s}"));
                let op = self.r.pick(&["eq", "ge", "le"]);
                self.compare(&i, op, &j, &["b", "1", ROWS, COLUMNS])
            }
            // Padding of columns and of rows.
            6 => self.emit("bool", &["b", "1", "1", COLUMNS], "reshape %shown"),
            7 => self.emit("bool", &["b", "1", ROWS, "1"], "reshape %asked"),
            _ => {
                let (i, _) = self.emit("i64", &["b"], "iota start=0 step=1");
                let (i, _) = self.emit("i64", &["b", "1", "1", "1"], &format!("reshape {i}"));
                let (j, _) = self.iota(COLUMNS, 0);
                let (j, _) = self.emit("i64", &["1", "1", "1", COLUMNS], &format!("reshape {j}"));
                self.emit("bool", &["b", "1", "1", COLUMNS], &format!("index %shown, {i}, {j} axis=0"))
            }
        }
    }

    fn both(&mut self, x: Named, y: Named) -> Named {
        let shape = broadcast(&x.1, &y.1);
        match self.r.below(4) {
            0 | 1 => self.emit("bool", &shape, &format!("and {}, {}", x.0, y.0)),
            2 => {
                let (a, _) = self.emit("bool", &x.1, &format!("not {}", x.0));
                let (b, _) = self.emit("bool", &y.1, &format!("not {}", y.0));
                let (o, _) = self.emit("bool", &shape, &format!("or {a}, {b}"));
                self.emit("bool", &shape, &format!("xor {o}, true"))
            }
            _ => {
                let (never, _) = self.emit("bool", &[], "full value=false");
                self.emit("bool", &shape, &format!("select {}, {}, {never}", x.0, y.0))
            }
        }
    }

    /// The mask under views that leave it the same.
    fn viewed(&mut self, x: Named) -> Named {
        let wide = [&["1"; 4][..4 - x.1.len()], &x.1].concat();
        match self.r.below(4) {
            0 => self.emit("bool", &wide, &format!("reshape {}", x.0)),
            1 => {
                let (y, _) = self.emit("bool", &wide, &format!("reshape {}", x.0));
                let full = ["b", "1", ROWS, COLUMNS];
                self.emit("bool", &full, &format!("expand {y}"))
            }
            2 => {
                let mut turned = wide.clone();
                turned.swap(2, 3);
                let (y, _) = self.emit("bool", &wide, &format!("reshape {}", x.0));
                let (y, _) = self.emit("bool", &turned, &format!("permute {y} perm=[0, 1, 3, 2]"));
                self.emit("bool", &wide, &format!("permute {y} perm=[0, 1, 3, 2]"))
            }
            _ => x,
        }
    }

    /// Attention with a mask.
    fn attend(&mut self, mask: Named, style: usize) {
        let scores = ["b", "2", ROWS, COLUMNS];
        let lowest = self.r.pick(&["-3.4028234663852886e38", "-3.3895313892515355e38"]);
        let infinite = match style {
            SINK | GIVEN_SINK => self.r.one_in(2),
            _ => style.is_multiple_of(2),
        };
        let hides = if infinite { "-inf" } else { lowest };
        let result = ["b", "2", ROWS, "4"];
        if style == 0 {
            let causal = self.r.one_in(4);
            let right = format!("attention %q, %k, %k, {} causal={causal} scale=0.5", mask.0);
            let y = self.emit("f32", &result, &right);
            writeln!(self.text, "return {}", y.0).unwrap();
            return;
        }
        let (zero, _) = self.emit("f32", &[], "full value=0.0");
        let (never, _) = self.emit("f32", &[], &format!("full value={hides}"));
        let added = match self.r.one_in(2) {
            true => self.emit("f32", &mask.1, &format!("select {}, {zero}, {never}", mask.0)),
            false => {
                let (not, shape) = self.emit("bool", &mask.1, &format!("not {}", mask.0));
                self.emit("f32", &shape, &format!("select {not}, {never}, {zero}"))
            }
        };
        let right = match style {
            1 | 2 => format!("attention %q, %k, %k, {} causal=false scale=0.5", added.0),
            _ => {
                let (kt, _) = self.emit("f32", &["b", "1", "4", COLUMNS], "permute %k perm=[0, 1, 3, 2]");
                let (s, _) = self.emit("f32", &scores, &format!("matmul %q, {kt}"));
                let (s, _) = self.emit("f32", &scores, &format!("mul {s}, 0.5"));
                let (s, _) = match self.r.one_in(2) {
                    true => self.emit("f32", &scores, &format!("add {s}, {}", added.0)),
                    false => self.emit("f32", &scores, &format!("select {}, {s}, {never}", mask.0)),
                };
                // With a floor, rows of minus infinity behave like those of lowest numbers.
                let (s, _) = match self.r.one_in(3) {
                    true => self.emit("f32", &scores, &format!("max {s}, {lowest}")),
                    false => (s, scores.to_vec()),
                };
                let w = match style {
                    SINK => self.sunk(&s, "%sinks"),
                    GIVEN_SINK => self.sunk(&s, "%given_sinks"),
                    _ => self.emit("f32", &scores, &format!("softmax {s} axis=3 log=false")).0,
                };
                format!("matmul {w}, %k")
            }
        };
        let y = self.emit("f32", &result, &right);
        writeln!(self.text, "return {}", y.0).unwrap();
    }
}

/// The style of attention that is written out with an additional score in each row.
const SINK: usize = 5;
/// The same with sinks that the caller passes, which may be of any size.
const GIVEN_SINK: usize = 6;

impl MaskWriter {
    /// The weights of scores next to a sink of each head.
    fn sunk(&mut self, s: &str, sinks: &str) -> String {
        let wide = ["b", "2", ROWS, "l + m + 1"];
        let (sinks, _) = self.emit("f32", &["1", "2", "1", "1"], &format!("reshape {sinks}"));
        let (sinks, _) = self.emit("f32", &["b", "2", ROWS, "1"], &format!("expand {sinks}"));
        let (mut all, _) = self.emit("f32", &wide, &format!("concat {s}, {sinks} axis=3"));
        if self.r.one_in(2) {
            let column = ["b", "2", ROWS, "1"];
            let (most, _) = self.emit("f32", &column, &format!("reduce {all} op=max axes=[3] keep=true"));
            all = self.emit("f32", &wide, &format!("sub {all}, {most}")).0;
        }
        let (w, _) = self.emit("f32", &wide, &format!("softmax {all} axis=3 log=false"));
        self.emit("f32", &["b", "2", ROWS, COLUMNS], &format!("slice {w} axis=3 start=0 step=1")).0
    }
}

fn broadcast(x: &[&'static str], y: &[&'static str]) -> Vec<&'static str> {
    let rank = x.len().max(y.len());
    let extent = |s: &[&'static str], i: usize| i.checked_sub(rank - s.len()).map_or("1", |i| s[i]);
    (0..rank).map(|i| if extent(x, i) == "1" { extent(y, i) } else { extent(x, i) }).collect()
}

/// A program with a mask of some rules, and the style in which attention takes it.
fn program(seed: u64) -> (String, usize) {
    let mut w = MaskWriter::new(seed);
    let style = w.r.below(7);
    let mut mask = None;
    for _ in 0..1 + w.r.below(3) {
        let kind = w.r.below(11);
        let rule = w.rule(kind);
        mask = Some(match mask {
            None => rule,
            Some(other) => w.both(other, rule),
        });
    }
    let mask = w.viewed(mask.unwrap());
    w.attend(mask, style);
    (w.text, style)
}

/// Whether a mask remains that depends on rows and columns, or attention that is written out.
fn is_large(graph: &Graph) -> bool {
    graph.nodes.values().any(|node| match &node.op {
        Op::Attention { bounds, sink, .. } => {
            let mask = AttentionOperands::from_operands(bounds, *sink, &node.inputs).and_then(|o| o.mask);
            mask.is_some_and(|&m| {
                let shape = &graph.ty(m).shape;
                shape.iter().rev().take(2).filter(|d| d.as_const() != Some(1)).count() == 2
            })
        }
        Op::Softmax { .. } => true,
        _ => false,
    })
}

fn check(source: &str, seed: u64) -> Graph {
    let graph = text::parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    symmc_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{:?}\n{source}", e[0]));
    let canonical = canonicalize(&graph).unwrap().0;
    symmc_ir::verify::verify(&canonical)
        .unwrap_or_else(|e| panic!("{:?}\n{source}\n{}", e[0], text::print(&canonical)));
    let mut r = SplitMix(seed ^ 0x5eed);
    for _ in 0..3 {
        let mut sizes = SymbolBindings::new();
        for (id, s) in graph.symbols.iter() {
            sizes.set(id, s.min + r.below((s.max - s.min + 1) as usize) as i64);
        }
        let seed = r.next();
        let inputs = vec![seeded_inputs(&graph, &sizes, &SeedConfig::new(seed), 0).unwrap()];
        // A mutated program may read outside of an axis.
        if interp::run(&graph, &sizes, &inputs).is_err() {
            continue;
        }
        let worst = difference(&graph, &canonical, &sizes, seed);
        assert!(worst <= 1e-5, "differs by {worst} at {sizes:?}\n{source}\n{}", text::print(&canonical));
    }
    canonical
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn masks_keep_their_values_and_are_recognised(seed: u64) {
        let (source, style) = program(seed);
        let canonical = check(&source, seed);
        // The result of rows that see nothing depends on the style. It is zero in attention with bools and
        // minus infinity, and next to a sink. It is the mean of the values if a lowest number hides, and NaN
        // in a softmax of minus infinity. A sink that the caller passes may have a part of their weight.
        if style != 4 && style != GIVEN_SINK {
            prop_assert!(!is_large(&canonical), "{}\n{}", source, text::print(&canonical));
        }
    }

    #[test]
    fn mutated_masks_keep_their_values(seed: u64) {
        let (source, _) = program(seed);
        check(&mutated(&source, seed), seed);
    }
}

/// The program with one comparison, number or axis changed.
fn mutated(source: &str, seed: u64) -> String {
    let mut r = SplitMix(seed ^ 0xbad);
    let swaps = [
        (" = le ", " = lt "),
        (" = lt ", " = le "),
        (" = ge ", " = gt "),
        (" = gt ", " = le "),
        (" = eq ", " = ne "),
        (" = and ", " = or "),
        (" = or ", " = and "),
        (" = add ", " = sub "),
        (" = sub ", " = add "),
        ("start=0", "start=1"),
        ("start=3 ", "start=2 "),
        ("step=1", "step=2"),
        ("step=2", "step=3"),
        ("step=-1", "step=-2"),
        ("abs ", "neg "),
        ("value=1", "value=2"),
        (", 0\n", ", 1\n"),
        (", 1\n", ", 0\n"),
        ("xor", "and"),
    ];
    let mut out = source.to_string();
    for _ in 0..20 {
        let (from, to) = r.pick(&swaps);
        let places: Vec<usize> = source.match_indices(from).map(|m| m.0).collect();
        if places.is_empty() {
            continue;
        }
        let start = r.pick(&places);
        // Slices and rows that are read keep their positions.
        let line = source[..start].rfind('\n').map_or(0, |n| n + 1);
        if source[line..]
            .lines()
            .next()
            .is_some_and(|l| l.contains("slice") || l.contains("iota start=0 step=1"))
        {
            continue;
        }
        out = format!("{}{to}{}", &source[..start], &source[start + from.len()..]);
        break;
    }
    out
}
