//! Computes the waits between lanes.
//!
//! Lanes run concurrently, so the order of the list alone orders nothing between them. A step waits for the
//! latest step of the other lane that does one of the following:
//! - It defines one of the step's operands.
//! - It accessed bytes that the step writes, as a value of the same class or of a class that had the bytes
//!   before.
//! - It is the rendezvous after which peers no longer access bytes that the step writes.
//!
//! A lane runs in order, so a wait for the latest step covers all earlier ones. A wait that an earlier step of
//! the lane has made is left out. The remaining waits are the smallest sufficient set.

use std::collections::{BTreeMap, HashMap};

use symmc_ir::ValueId;
use symmc_plan::{ArenaKind, Lane};

use crate::liveness::{ExitChoice, Liveness, NextRendezvous};
use crate::memory_classes::{BufferClasses, ClassLocation, SharingReason};
use crate::steps::StepList;

/// The latest step of each lane as `step + 1`. 0 means none.
type LatestSteps = [u32; 2];

/// The bytes of a class in an arena.
pub struct PlacedClass {
    pub class: usize,
    pub arena: ArenaKind,
    pub start: u64,
    /// The exclusive end.
    pub end: u64,
    pub wraps: Option<u32>,
}

/// The steps for which each step waits. `extents` are the bytes of the classes that lie in an arena.
pub fn waits(
    steps: &StepList,
    live: &Liveness,
    classes: &BufferClasses,
    extents: &[PlacedClass],
) -> Vec<Vec<usize>> {
    let before_class = predecessors(extents, classes, &last_accesses(steps, live, classes));
    // For each value that lies inside of a larger one, the larger value.
    let inside: HashMap<ValueId, ValueId> = classes
        .iter()
        .flat_map(|(_, c)| &c.members)
        .filter_map(|m| match m.shares {
            SharingReason::Piece(outer) | SharingReason::Shard(outer) => Some((m.value, outer)),
            _ => None,
        })
        .collect();
    // The accesses to parts of values that are parts themselves. No other value of the class has their bytes.
    let mut part_steps: HashMap<ValueId, LatestSteps> =
        inside.values().filter(|outer| inside.contains_key(outer)).map(|&outer| (outer, [0; 2])).collect();
    // The accesses to each class so far.
    let mut so_far: Vec<LatestSteps> = vec![[0; 2]; classes.list.len()];
    // The accesses to inputs that are replaced. An input has all bytes of the output that replaces it.
    let mut replaced: Vec<LatestSteps> = vec![[0; 2]; classes.list.len()];
    // For each lane the latest step of the other lane for which it has waited.
    let mut waited: LatestSteps = [0; 2];
    let mut out = Vec::with_capacity(steps.list.len());
    for (s, step) in steps.list.iter().enumerate() {
        let own_lane = step.lane as usize;
        let other_lane = 1 - own_lane;
        // The latest step of the other lane for which this step must wait, plus 1.
        let mut need = 0;
        for &v in &step.reads {
            if let Some(def) = steps.def[v].filter(|&d| steps.list[d as usize].lane as usize == other_lane) {
                need = need.max(def + 1);
            }
        }
        for &v in &step.writes {
            let Some(c) = classes.class_of[v].map(|c| c as usize) else { continue };
            need = need.max(before_class[c][other_lane]);
            need = need.max(match (inside.contains_key(&v), part_steps.get(&v)) {
                (false, _) => so_far[c][other_lane],
                (true, Some(latest)) => latest[other_lane].max(replaced[c][other_lane]),
                (true, None) => replaced[c][other_lane],
            });
        }
        for (v, lane, until) in step_accesses(steps, live, s) {
            if let Some(c) = classes.class_of[v] {
                raise_latest(&mut so_far[c as usize], lane, until);
                if steps.def[v].is_none() {
                    raise_latest(&mut replaced[c as usize], lane, until);
                }
            }
            let mut inner = v;
            while let Some(&outer) = inside.get(&inner) {
                if let Some(latest) = part_steps.get_mut(&outer) {
                    raise_latest(latest, lane, until);
                }
                inner = outer;
            }
        }
        debug_assert!(need as usize <= s, "step {s} would wait for step {need}");
        let must_wait = need > waited[own_lane];
        waited[own_lane] = waited[own_lane].max(need);
        out.push(if must_wait { vec![need as usize - 1] } else { Vec::new() });
    }
    out
}

/// The accesses of step `s`: values, each with a lane and the last step of that lane that accesses it, plus 1.
fn step_accesses(steps: &StepList, live: &Liveness, s: usize) -> impl Iterator<Item = (ValueId, Lane, u32)> {
    let step = &steps.list[s];
    let own = step.reads.iter().chain(&step.writes).map(move |&v| (v, step.lane, s as u32 + 1));
    let until = match live.exits[s] {
        ExitChoice::Dropped(NextRendezvous::Later(y)) => Some(y + 1),
        _ => None,
    };
    let peers = step.communicated_bases().iter().filter_map(move |&v| Some((v, Lane::Comm, until?)));
    own.chain(peers)
}

fn raise_latest(touches: &mut LatestSteps, lane: Lane, until: u32) {
    let latest = &mut touches[lane as usize];
    *latest = (*latest).max(until);
}

fn last_accesses(steps: &StepList, live: &Liveness, classes: &BufferClasses) -> Vec<LatestSteps> {
    let mut touches = vec![[0; 2]; classes.list.len()];
    for (v, lane, until) in (0..steps.list.len()).flat_map(|s| step_accesses(steps, live, s)) {
        if let Some(c) = classes.class_of[v] {
            raise_latest(&mut touches[c as usize], lane, until);
        }
    }
    touches
}

/// For each class the last accesses of the classes that had its bytes before. A class comes after all accesses
/// of the classes that it follows, so only the latest owner of each byte counts.
fn predecessors(extents: &[PlacedClass], classes: &BufferClasses, last: &[LatestSteps]) -> Vec<LatestSteps> {
    let mut owners = [ByteOwners::default(), ByteOwners::default()];
    let mut out = vec![[0; 2]; last.len()];
    for e in extents {
        if let Some(y) = e.wraps {
            let mut met = [0; 2];
            met[Lane::Comm as usize] = y + 1;
            owners[e.arena as usize].assign(e.start, e.end, met);
        }
    }
    let mut by_birth: Vec<&PlacedClass> = extents.iter().filter(|e| e.start < e.end).collect();
    by_birth.sort_by_key(|e| (classes.list[e.class].first, e.class));
    for e in by_birth {
        debug_assert!(matches!(classes.list[e.class].space, ClassLocation::Arena(_)));
        out[e.class] = owners[e.arena as usize].assign(e.start, e.end, last[e.class]);
    }
    out
}

/// The latest owner of each byte of an arena.
#[derive(Default)]
struct ByteOwners(BTreeMap<u64, (u64, LatestSteps)>);

impl ByteOwners {
    /// Assigns `start..end` to an owner with these accesses. Returns the latest accesses of the previous
    /// owners.
    fn assign(&mut self, start: u64, end: u64, touches: LatestSteps) -> LatestSteps {
        let mut before = [0; 2];
        let first = self.0.range(..=start).next_back().map_or(start, |(&s, _)| s);
        let hit: Vec<(u64, u64, LatestSteps)> =
            self.0.range(first..end).filter(|(_, r)| r.0 > start).map(|(&s, &(e, t))| (s, e, t)).collect();
        for (s, e, t) in hit {
            before = [before[0].max(t[0]), before[1].max(t[1])];
            self.0.remove(&s);
            if s < start {
                self.0.insert(s, (start, t));
            }
            if e > end {
                self.0.insert(end, (e, t));
            }
        }
        self.0.insert(start, (end, touches));
        before
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use symmc_ir::text;

    use super::*;
    use crate::liveness::{LivenessChoices, NextRun, joins_at_first_use};
    use crate::memory_classes::SeparateResults;
    use crate::prepare::{PreparedGraph, prepare};
    use crate::views::ValueViews;

    /// The waits of a program whose classes have these offsets. The layout consists of word triples `value
    /// start end`. A class that is not listed shares no bytes.
    fn waits_of(program: &str, layout: &str) -> Vec<Vec<usize>> {
        let head = "program \"w\" ranks 2\ngroup @g world\narg %x: f32[16, 16]\nparam %w: f32[16, 16]\n";
        let graph = text::parse(&format!("{head}{program}")).unwrap_or_else(|e| panic!("{e}"));
        let none = BTreeSet::new();
        let p: PreparedGraph = prepare(&graph, &ValueViews::new(&graph), &none).expect("prepares");
        let steps = StepList::new(&p.graph, &p.base).expect("steps");
        let choices = LivenessChoices { joined: joins_at_first_use(&steps), kept: BTreeSet::new() };
        let live = Liveness::new(&p.graph, &steps, &none, NextRun::Unknown, choices);
        let classes = BufferClasses::new(&p, &steps, &live, &SeparateResults::default());
        let words: Vec<&str> = layout.split_whitespace().collect();
        let extents: Vec<PlacedClass> = words
            .chunks(3)
            .map(|c| {
                let value =
                    p.graph.values.iter().find(|(_, v)| v.name == c[0]).map(|(id, _)| id).expect(c[0]);
                let class = classes.class_of[value].expect("a class") as usize;
                let start = c[1].parse().expect("a number");
                let end = c[2].parse().expect("a number");
                PlacedClass { class, arena: ArenaKind::Ordinary, start, end, wraps: None }
            })
            .collect();
        waits(&steps, &live, &classes, &extents)
    }

    const PROGRAM: &str = "%a: f32[16, 16] = matmul %x, %w\n%b: f32[16, 16] = matmul %a, %w\n\
        %c: f32[16, 16] = all_reduce %x op=sum group=@g via=plain\n%d: f32[16, 16] = matmul %b, %w\n\
        %e: f32[16, 16] = matmul %c, %d\nreturn %e\n";

    #[test]
    fn lanes_wait_for_operands_alone_when_nothing_shares_bytes() {
        assert_eq!(
            waits_of(PROGRAM, "a 0 9 b 10 19 c 20 29 d 30 39"),
            [vec![], vec![], vec![], vec![], vec![2]]
        );
    }

    #[test]
    fn a_result_waits_for_the_last_access_to_its_bytes_in_the_other_lane() {
        // `c` takes the bytes of `a`, which `b` read last.
        assert_eq!(
            waits_of(PROGRAM, "a 0 9 b 10 19 c 0 9 d 30 39"),
            [vec![], vec![], vec![1], vec![], vec![2]]
        );
        // One byte is enough.
        assert_eq!(waits_of(PROGRAM, "a 0 9 b 10 19 c 8 10 d 30 39")[2], [1]);
        assert_eq!(waits_of(PROGRAM, "a 0 9 b 10 19 c 9 10 d 30 39")[2], [0usize; 0]);
    }

    #[test]
    fn bytes_reach_back_to_every_owner_that_is_still_the_latest() {
        // `d` takes parts of the bytes of `a` and of `c`. The value `c` is written on the communication lane.
        let program = "%a: f32[16, 16] = matmul %x, %w\n%b: f32[16, 16] = matmul %a, %w\n\
            %c: f32[16, 16] = all_reduce %b op=sum group=@g via=plain\n%d: f32[16, 16] = matmul %w, %w\n\
            %z: f32[16, 16] = matmul %d, %d\nreturn %z\n";
        assert_eq!(waits_of(program, "a 0 9 b 50 60 c 10 19 d 5 15")[3], [2]);
        assert_eq!(waits_of(program, "a 0 9 b 50 60 c 10 19 d 5 10")[3], [0usize; 0]);
    }

    #[test]
    fn parts_of_what_replaces_an_input_wait_for_who_reads_the_input() {
        let program = "%n: f32[16, 16] = neg %x\n%m: f32[16, 16] = exp %x\n\
            %c: f32[8, 16] = reduce_scatter %n op=sum group=@g via=plain\n%p: f32[8, 16] = neg %c\n\
            %t: f32[16, 16] = concat %c, %p axis=0\nreturn %m\nmutate %x = %t\n";
        let waits = waits_of(program, "n 0 1024");
        assert_eq!(waits[2], [1], "{waits:?}");
    }

    #[test]
    fn a_wait_that_the_lane_has_made_is_not_repeated() {
        let program = "%a: f32[16, 16] = all_reduce %x op=sum group=@g via=plain\n\
            %b: f32[16, 16] = matmul %a, %w\n%c: f32[16, 16] = matmul %a, %b\n\
            %d: f32[16, 16] = all_reduce %c op=sum group=@g via=plain\n\
            %e: f32[16, 16] = all_reduce %b op=sum group=@g via=plain\n\
            %f: f32[16, 16] = matmul %d, %e\nreturn %f\n";
        assert_eq!(waits_of(program, ""), [vec![], vec![0], vec![], vec![2], vec![], vec![4]]);
    }
}
