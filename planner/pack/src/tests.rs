//! Tests of packings: lifetimes in, expected offsets out.

use proptest::prelude::*;

use super::exact::{ExactAnswer, ExactProblem};
use super::*;

/// Packs blocks written as words `start..end:size`. A suffix `@offset` gives an offset.
fn offsets(text: &str) -> Vec<u64> {
    packed(text).offsets
}

fn packed(text: &str) -> Packing {
    pack(&blocks(text), &Config::default()).expect("packs")
}

fn blocks(text: &str) -> Vec<Block> {
    text.split_whitespace()
        .map(|word| {
            let (life, rest) = word.split_once(':').expect("a colon");
            let (start, end) = life.split_once("..").expect("a range");
            let (size, offset) = match rest.split_once('@') {
                Some((size, offset)) => (size, Some(parse_number(offset))),
                None => (rest, None),
            };
            Block {
                start: parse_number(start) as usize,
                end: parse_number(end) as usize,
                size: parse_number(size),
                align: 1,
                offset,
            }
        })
        .collect()
}

fn parse_number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn is_alive(block: &Block, instant: usize) -> bool {
    if block.start < block.end {
        (block.start..block.end).contains(&instant)
    } else {
        instant >= block.start || instant < block.end
    }
}

#[test]
fn blocks_that_are_never_alive_together_share_bytes() {
    assert_eq!(offsets("0..2:8 2..4:8 4..5:8"), [0, 0, 0]);
}

#[test]
fn blocks_that_are_alive_together_stack() {
    assert_eq!(offsets("0..3:8 1..2:4 2..3:4"), [0, 8, 8]);
}

#[test]
fn a_chain_needs_two_places() {
    let p = packed("0..2:8 1..3:8 2..4:8 3..5:8");
    assert_eq!((p.offsets, p.peak, p.bound), (vec![0, 8, 0, 8], 16, 16));
}

#[test]
fn a_given_offset_stays_and_others_go_around_it() {
    assert_eq!(offsets("0..4:8@4 0..4:4 1..2:8"), [4, 0, 12]);
}

#[test]
fn a_wrapped_lifetime_meets_both_ends_of_time() {
    // The first block is alive over 3..5 and 0..1.
    assert_eq!(offsets("3..1:8 0..1:4 1..3:4 4..5:4"), [0, 8, 0, 8]);
    let p = packed("3..1:8 0..1:4 1..3:4 4..5:4");
    assert_eq!((p.bound, p.peak), (12, 12));
}

#[test]
fn a_lifetime_that_starts_where_it_ends_is_everything() {
    assert_eq!(packed("2..2:8 0..9:4").bound, 12);
}

#[test]
fn alignment_is_kept() {
    let mut b = blocks("0..2:10 0..2:10 0..2:10");
    for block in &mut b {
        block.align = 16;
    }
    let p = pack(&b, &Config::default()).expect("packs");
    assert_eq!((p.offsets, p.peak, p.bound), (vec![0, 16, 32], 42, 30));
}

#[test]
fn best_fit_takes_the_smallest_gap() {
    let mut o = Occupancy::new(1);
    for (from, to) in [(0, 10), (30, 40), (45, 50)] {
        o.occupy(0, 1, from, to);
    }
    let occupied = || o.occupied_during([(0, 1)].into_iter());
    assert_eq!((occupied().lowest_gap(4, 1), occupied().tightest_gap(4, 1)), (10, 40));
    assert_eq!((occupied().lowest_gap(6, 4), occupied().tightest_gap(6, 4)), (12, 12));
    assert_eq!((occupied().lowest_gap(21, 1), occupied().tightest_gap(21, 1)), (50, 50));
}

#[test]
fn blocks_at_the_bound_are_reported() {
    assert_eq!(packed("0..2:8 1..3:8 2..4:4").at_bound, [0, 1]);
}

#[test]
fn blocks_at_any_instant_of_the_bound_come_first() {
    // The bound is reached at 1 and at 5. The largest of the other blocks is not alive then.
    let b = blocks("0..3:1 1..2:9 4..7:6 5..6:4 8..9:9");
    let spans = BlockSpans::new(&b);
    let loads = spans.loads(&b);
    let first = orders::portfolio(&b, &spans, &loads).next().expect("an order");
    assert_eq!(first.sequence(), [2, 0, 1, 3, 4]);
}

#[test]
fn contradictions_are_refused() {
    let clash = pack(&blocks("0..2:8@0 1..3:8@4"), &Config::default());
    assert_eq!(clash, Err(PackError::Overlap { first: 0, second: 1 }));
    let mut b = blocks("0..2:8@4");
    b[0].align = 8;
    assert_eq!(pack(&b, &Config::default()), Err(PackError::Misaligned { block: 0, offset: 4, align: 8 }));
    assert_eq!(pack(&blocks("0..1:4611686018427387904"), &Config::default()), Err(PackError::TooLarge));
}

#[test]
fn empty_problem_has_empty_packing() {
    assert_eq!(pack(&[], &Config::default()), Ok(Packing { order: packed("").order, ..Packing::default() }));
    assert_eq!(packed("0..1:0").peak, 0);
}

#[test]
fn time_ordered_problem_is_packed_in_one_sweep() {
    // On either side of the bound at 2, gaps merge again, and the last block finds a gap of its own size.
    let p = packed("0..4:4 1..3:4 2..6:4 3..5:3 4..6:4 6..8:12 0..1:8 3..4:1");
    assert_eq!((p.peak, p.work, p.order), (12, 8, "away from the bound"));
    verify(&blocks("0..4:4 1..3:4 2..6:4 3..5:3 4..6:4 6..8:12 0..1:8 3..4:1"), &p.offsets)
        .expect("no overlap");
}

#[test]
fn a_sweep_keeps_alignments_where_many_gaps_are_tight() {
    // When half of the small blocks end, they leave more gaps of 16 bytes than are tried, at 8 above a multiple
    // of 16.
    let mut b = vec![Block::new(0, 5, 4104)];
    b.extend((0..40).map(|i| Block::new(0, if i % 2 == 0 { 5 } else { 9 }, 16)));
    b.extend((0..40).map(|_| Block { align: 16, ..Block::new(5, 9, 16) }));
    b.extend((0..3).map(|_| Block { align: 4, ..Block::new(5, 9, 16) }));
    let spans = BlockSpans::new(&b);
    let (peak, offsets) =
        sweep::sweep(&b, &spans, &spans.loads(&b)).expect("neither wraps nor given offsets");
    let verified = verify(&b, &offsets).expect("no overlap");
    assert_eq!((verified.peak, verified.bound), (4744, 4744));
    assert_eq!(peak, verified.peak);
    assert!(b.iter().zip(&offsets).all(|(b, o)| o.is_multiple_of(b.align)));
}

#[test]
fn parts_of_one_shape_are_packed_once() {
    let p = packed("0..2:8 1..3:4 1..2:2 7..9:2 6..8:8 7..9:4 20..21:5");
    let alike = [p.offsets[0] == p.offsets[4], p.offsets[1] == p.offsets[5]];
    // Two parts in which the same blocks overlap in time, although one of them ends later, and a third part.
    assert_eq!((p.bound, p.peak, p.work, alike, p.offsets[6]), (14, 14, 4, [true; 2], 0));
    // In the second part two of the blocks do not overlap in time.
    let p = packed("0..2:8 1..3:4 1..2:2 7..9:2 6..8:8 8..9:4 20..21:5");
    assert_eq!((p.bound, p.peak, p.work), (14, 14, 7));
    let p = packed("0..2:8 1..3:4 1..2:2 7..8:2 6..8:8 7..9:4");
    assert_eq!((p.bound, p.peak, p.work), (14, 14, 3));
    assert_eq!([p.offsets[4], p.offsets[5], p.offsets[3]], p.offsets[..3]);
}

#[test]
fn empty_blocks_do_not_prevent_packing_in_parts() {
    // In the first problem one block wraps and has a given offset. In the second one lies between two equal
    // parts.
    let p = packed("0..2:8 1..3:4 0..0:0@64 2..8:0 7..9:8 8..10:4");
    assert_eq!((p.bound, p.peak, p.work), (12, 12, 3));
    assert_eq!((p.offsets[2], &p.offsets[4..]), (64, &p.offsets[..2]));
}

fn arbitrary_block() -> impl Strategy<Value = Block> {
    (0usize..20, 0usize..20, 0u64..100, prop_oneof![Just(0u64), Just(1), Just(16), Just(64)])
        .prop_map(|(start, end, size, align)| Block { start, end, size, align, offset: None })
}

proptest! {
    #[test]
    fn a_packing_is_a_packing(blocks in prop::collection::vec(arbitrary_block(), 0..40), work in 0u64..400, exact in 0u64..400) {
        let p = pack(&blocks, &Config { work, exact, ..Config::default() }).expect("packs");
        let loads = (0..21).map(|t| blocks.iter().filter(|b| is_alive(b, t)).map(|b| b.size).sum::<u64>());
        prop_assert_eq!(p.bound, loads.max().unwrap_or(0));
        prop_assert!(p.bound <= p.peak || blocks.iter().all(|b| b.size == 0));
        let ends = blocks.iter().zip(&p.offsets).map(|(b, o)| if b.size > 0 { b.size + o } else { 0 });
        prop_assert_eq!(p.peak, ends.max().unwrap_or(0));
        prop_assert!(verify(&blocks, &p.offsets).is_ok_and(|v| (v.peak, v.bound) == (p.peak, p.bound)));
        for (i, a) in blocks.iter().enumerate() {
            prop_assert_eq!(p.offsets[i] % a.align.max(1), 0);
            for (j, b) in blocks.iter().enumerate().skip(i + 1) {
                let together = (0..21).any(|t| is_alive(a, t) && is_alive(b, t));
                let overlap = p.offsets[i] < p.offsets[j] + b.size && p.offsets[j] < p.offsets[i] + a.size;
                prop_assert!(!(together && overlap && a.size > 0 && b.size > 0), "{i} and {j} in {:?}", p);
            }
        }
    }

    #[test]
    fn parts_make_a_packing(lives in prop::collection::vec((0usize..6, 1usize..4, 0u64..9), 1..12), copies in 1usize..4) {
        // Copies one after another, with their blocks interleaved.
        let block = |(i, &(start, length, size)): (usize, &(usize, usize, u64)), copy: usize| {
            let start = 9 * copy + start;
            Block { align: 1 + i as u64 % 3, ..Block::new(start, start + length, size) }
        };
        let blocks: Vec<Block> =
            lives.iter().enumerate().flat_map(|l| (0..copies).map(move |copy| block(l, copy))).collect();
        let once: Vec<Block> = lives.iter().enumerate().map(|l| block(l, 0)).collect();
        let p = pack(&blocks, &Config::default()).expect("packs");
        let packed_once = pack(&once, &Config::default()).expect("packs");
        prop_assert_eq!(verify(&blocks, &p.offsets), Ok(VerifiedPacking { peak: p.peak, bound: p.bound }));
        prop_assert_eq!((p.peak, p.bound), (packed_once.peak, packed_once.bound));
    }

    #[test]
    fn contention_is_the_largest_load_of_a_life(blocks in prop::collection::vec(arbitrary_block(), 0..30)) {
        let spans = BlockSpans::new(&blocks);
        let loads = spans.loads(&blocks);
        let expected: Vec<u64> = (0..blocks.len())
            .map(|b| spans.ranges_of(b).flat_map(|(from, to)| &loads[from..to]).max().copied().unwrap_or(0))
            .collect();
        prop_assert_eq!(orders::contention(&spans, &loads, blocks.len()), expected);
    }

    #[test]
    fn a_packing_is_deterministic(blocks in prop::collection::vec(arbitrary_block(), 0..30)) {
        prop_assert_eq!(pack(&blocks, &Config::default()), pack(&blocks, &Config::default()));
    }
}

fn read_error(text: &str) -> TableError {
    BlockTable::read(text).expect_err("no table")
}

#[test]
fn a_table_is_read_with_either_kind_of_lifetime() {
    let half_open = BlockTable::read("id,lower,upper,size\na,0,2,8\nb,2,3,4\n").expect("a table");
    let inclusive = BlockTable::read("\u{feff}size, id,end,start,color\r\n8,a,1,0,red\r\n\r\n4,b,2,2,\r\n")
        .expect("a table");
    assert_eq!(half_open, inclusive);
    assert_eq!((half_open.ids.iter().collect(), half_open.blocks), (vec!["a", "b"], blocks("0..2:8 2..3:4")));
    assert_eq!(inclusive.write(&[0, 0]), "id,lower,upper,size,offset\na,0,2,8,0\nb,2,3,4,0\n");
}

#[test]
fn alignments_and_offsets_of_a_table_are_honoured() {
    let text = "id,lower,upper,size,alignment,offset\na,0,2,8,1,16\nb,0,2,4,8,\nc,0,2,2,8,-1\n";
    let table = BlockTable::read(text).expect("a table");
    let p = pack(&table.blocks, &Config::default()).expect("packs");
    assert_eq!(p.offsets, [16, 0, 8]);
    assert!(table.write(&p.offsets).ends_with("a,0,2,8,1,16\nb,0,2,4,8,0\nc,0,2,2,8,8\n"));
}

#[test]
fn malformed_tables_are_rejected_with_the_line() {
    assert_eq!(read_error(""), TableError::Empty);
    assert_eq!(
        read_error("id,lower,size\n"),
        TableError::Column { found: "id,lower,size".into(), missing: "upper" }
    );
    assert_eq!(read_error("id,lower,upper,size,size\n"), TableError::Repeated("size".into()));
    let body =
        |line: &str| read_error(&format!("id,lower,upper,size,alignment\na,0,1,8,1\n{line}\n")).to_string();
    for (line, message) in [
        ("b,0,1,8", "line 3: found 4 cells, expected 5 as in the header"),
        ("b,0,1,x,1", "line 3: size is \"x\", expected an integer from 0 to 2^62 - 1"),
        ("b,-1,1,8,1", "line 3: lower is \"-1\", expected an integer from 0 to 2^62 - 1"),
        ("b,0,1,8,0", "line 3: alignment is \"0\", expected a positive integer"),
        ("b,1,1,8,1", "line 3: the lifetime 1..1 is empty, expected lower < upper"),
        ("a,0,1,8,1", "line 3: the id a occurs already in line 2, expected unique ids"),
    ] {
        assert_eq!(body(line), message);
    }
}

#[test]
fn ids_differ_whether_they_ascend_or_not() {
    let read = |ids: &str| {
        let lines: Vec<String> =
            ids.split(' ').map(|id| if id == "-" { String::new() } else { format!("0,{id},1,8") }).collect();
        BlockTable::read(&format!("lower,id,upper,size\n{}\n", lines.join("\n")))
    };
    let duplicate = |ids: &str| match read(ids) {
        Err(TableError::Id { line, id, first }) => (id, first, line),
        other => panic!("{ids}: {other:?}"),
    };
    // A dash marks an empty line.
    assert_eq!(duplicate("0 - 3 7 - 3"), ("3".into(), 4, 7));
    assert_eq!(duplicate("5 5"), ("5".into(), 2, 3));
    assert_eq!(duplicate("a 5 a"), ("a".into(), 2, 4));
    assert_eq!(duplicate("1 2 a 2"), ("2".into(), 3, 5));
    for ids in ["0 1 2 10", "10 2 1 0", "7 07 +7 x", "9 10 a b bb", "2 b 3 1"] {
        let table = read(ids).expect("ids that differ");
        assert_eq!(table.ids.iter().collect::<Vec<_>>().join(" "), ids);
    }
}

#[test]
fn numbers_are_written_as_they_are_read() {
    for number in [0u64, 7, 10, 99, 100, 4_611_686_018_427_387_903] {
        let table = BlockTable::read(&format!("id,lower,upper,size\na,0,1,{number}\n")).expect("a table");
        let written = table.write(&[u64::MAX]);
        assert_eq!(written, format!("id,lower,upper,size,offset\na,0,1,{number},18446744073709551615\n"));
    }
}

#[test]
fn the_sweep_finds_what_is_no_packing() {
    let b = blocks("0..3:8 1..2:8 4..2:4 2..4:4");
    assert_eq!(verify(&b, &[0, 8, 16, 8]), Ok(VerifiedPacking { peak: 20, bound: 20 }));
    assert_eq!(verify(&b, &[0, 7, 16, 8]), Err(VerifyError::Overlap { first: 0, second: 1 }));
    // The wrapped block is alive at the beginning.
    assert_eq!(verify(&b, &[0, 8, 7, 8]), Err(VerifyError::Overlap { first: 0, second: 2 }));
    assert_eq!(verify(&b, &[0, 8, 16]), Err(VerifyError::Count { found: 3, blocks: 4 }));
    let mut b = blocks("0..1:8@8 0..1:8");
    assert_eq!(verify(&b, &[0, 8]), Err(VerifyError::Misplaced { block: 0, offset: 0 }));
    b[1].align = 16;
    assert_eq!(verify(&b, &[8, 24]), Err(VerifyError::Misplaced { block: 1, offset: 24 }));
}

proptest! {
    #[test]
    fn exact_search_agrees_with_all_orders(
        // Small sizes often fit without waste. With large sizes, little is wasted compared with the capacity.
        blocks in prop_oneof![problem(6), problem(200)]
    ) {
        let min_peak = least_peak(&blocks, &mut vec![None; blocks.len()]);
        let spans = BlockSpans::new(&blocks);
        let exact = ExactProblem::new(&blocks, &spans, 10).expect("neither wrapped nor given");
        let ExactAnswer::Found(offsets) = exact.search(min_peak).run(1_000_000, 1_000_000) else {
            panic!("there is a packing of {min_peak}: {blocks:?}");
        };
        prop_assert_eq!(verify(&blocks, &offsets).map(|v| v.peak), Ok(min_peak));
        if min_peak > 0 {
            prop_assert_eq!(exact.search(min_peak - 1).run(1_000_000, 1_000_000), ExactAnswer::Impossible);
        }
    }
}

/// A few small blocks of sizes below `most`.
fn problem(most: u64) -> impl Strategy<Value = Vec<Block>> {
    let block = (0usize..5, 1usize..5, 0..most, 1u64..4)
        .prop_map(|(start, length, size, align)| Block { align, ..Block::new(start, start + length, size) });
    prop::collection::vec(block, 0..7)
}

/// The smallest peak. Every packing can be pushed down into one that first fit makes in some order.
fn least_peak(blocks: &[Block], offsets: &mut Vec<Option<u64>>) -> u64 {
    let mut best = u64::MAX;
    for b in 0..blocks.len() {
        if offsets[b].is_some() {
            continue;
        }
        let block = &blocks[b];
        let placed =
            blocks.iter().zip(offsets.iter()).filter_map(|(other, offset)| Some((other, (*offset)?)));
        let ends = placed.clone().map(|(other, offset)| other.size + offset);
        let starts = ends.chain([0]).map(|end| end.next_multiple_of(block.align));
        let free = starts.filter(|&start| {
            let mut meets = placed.clone().filter(|(o, _)| o.start < block.end && block.start < o.end);
            block.size == 0
                || meets.all(|(o, offset)| start + block.size <= offset || offset + o.size <= start)
        });
        offsets[b] = free.min();
        best = best.min(least_peak(blocks, offsets));
        offsets[b] = None;
    }
    if best < u64::MAX {
        return best;
    }
    let ends = blocks.iter().zip(offsets.iter()).filter(|(b, _)| b.size > 0);
    ends.map(|(b, at)| b.size + at.unwrap_or(0)).max().unwrap_or(0)
}

#[test]
fn exact_search_counts_how_long_lives_are() {
    // There are three times as many blocks, and the long ones are twenty times as long.
    let short = search_work(30);
    let long = search_work(600);
    assert!(long > 6 * short, "{short} {long}");
}

/// The work of an exact search over 300 blocks that live in all sections and one that lives in each.
fn search_work(sections: usize) -> u64 {
    let long = (0..300).map(|_| Block::new(0, sections, 3));
    let blocks: Vec<Block> = long.chain((0..sections).map(|s| Block::new(s, s + 1, 1))).collect();
    let exact =
        ExactProblem::new(&blocks, &BlockSpans::new(&blocks), 1_000).expect("neither wrapped nor given");
    let mut search = exact.search(901);
    assert!(matches!(search.run(u64::MAX, u64::MAX), ExactAnswer::Found(_)));
    search.work()
}

#[test]
fn minimalloc_d_has_a_packing_at_its_bound() {
    let problem =
        BlockTable::read(include_str!("../../../tests/packing/minimalloc/D.1048576.csv")).expect("a table");
    let packed =
        BlockTable::read(include_str!("../../../tests/packing/minimalloc/D.986112.csv")).expect("a table");
    let offsets: Vec<u64> = packed.blocks.iter().filter_map(|b| b.offset).collect();
    assert_eq!(packed.ids, problem.ids);
    assert_eq!(verify(&problem.blocks, &offsets), Ok(VerifiedPacking { peak: 986_112, bound: 986_112 }));
    assert_eq!(pack(&packed.blocks, &Config::default()).map(|p| p.offsets), Ok(offsets));
}

#[test]
fn exact_search_is_for_problems_that_it_knows() {
    for text in ["3..1:8 0..1:4", "0..2:8@0", "0..1:1 0..1:1 0..1:1"] {
        let b = blocks(text);
        assert!(ExactProblem::new(&b, &BlockSpans::new(&b), 2).is_none(), "{text}");
    }
    // Sizes that are many units are rounded up to larger units, unless an alignment is not a multiple of these.
    let mut b = blocks("0..1:1 0..2:70368744177665");
    let exact = ExactProblem::new(&b, &BlockSpans::new(&b), 2).expect("a problem");
    let ExactAnswer::Found(offsets) = exact.search(71 << 40).run(9, 9) else { panic!("there is room") };
    assert!(verify(&b, &offsets).is_ok_and(|v| v.peak <= 71 << 40));
    b[0].align = 6;
    assert!(ExactProblem::new(&b, &BlockSpans::new(&b), 2).is_none());
    // With no budget the answer is that it is unknown.
    let b = blocks("0..1:1 0..1:1");
    let exact = ExactProblem::new(&b, &BlockSpans::new(&b), 2).expect("a problem");
    assert_eq!(exact.search(2).run(0, 0), ExactAnswer::Open);
}
