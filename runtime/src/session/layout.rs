//! The programs of a session: the placement of each in the symmetric arena, and the groups that they share.
//!
//! ```text
//! 0                                                                      end of the symmetric arena
//! | buffers of all programs, overlapping ...     |   free   | fixed 2 | fixed 1 | fixed 0 |
//! ```
//!
//! Programs take turns, so their buffers share bytes. Memory that keeps its contents from run to run (landing
//! zones, and inputs that are held in symmetric memory) has separate bytes: flags of an old message must
//! never lie where another program stores data.
//!
//! Groups with the same cells have the same number in all programs, and therefore share one set of flags and
//! communicators. Groups with landing zones are not shared: the epoch of a message must be new in the zone
//! that receives it.

use symmc_plan::{ArenaKind, FixedRole, PAGE, ParsedPlan, Plan};

use crate::error::{Result, RunError};
use crate::exec::{ProgramPlacement, RelocatedRange};

/// All programs of a session, including closed ones.
#[derive(Clone, Debug)]
pub struct SessionLayout {
    ranks: u32,
    /// The bytes of the symmetric arena, if its size cannot change.
    fixed_capacity: Option<usize>,
    programs: Vec<ProgramLayout>,
    /// The cells of each group that programs share; `None` for a group of a single program.
    groups: Vec<Option<CellRanks>>,
    /// The group of all ranks, once there are several programs.
    barrier: Option<usize>,
}

type CellRanks = Vec<Vec<u32>>;

#[derive(Clone, Debug)]
struct ProgramLayout {
    is_open: bool,
    ordinary: usize,
    /// The end of its fixed memory in the arena of the plan; its buffers follow.
    fixed_end: usize,
    symmetric: usize,
    groups: Vec<usize>,
}

impl ProgramLayout {
    /// The start of its buffers in the session's arena: they keep their alignment.
    fn buffer_offset(&self) -> usize {
        self.fixed_end % PAGE as usize
    }

    fn buffer_bytes(&self) -> usize {
        round_up_to_pages((self.symmetric - self.fixed_end).saturating_add(self.buffer_offset()))
    }
}

impl SessionLayout {
    /// The program that a session is opened with. `room` is the size of the symmetric arena in bytes, if it
    /// cannot grow.
    pub fn new(plan: &ParsedPlan, room: Option<usize>) -> SessionLayout {
        let mut layout = SessionLayout {
            ranks: plan.ranks,
            fixed_capacity: room,
            programs: Vec::new(),
            groups: Vec::new(),
            barrier: None,
        };
        layout.append_program(plan);
        layout
    }

    /// The bytes of a symmetric arena that cannot grow, for a session that begins with this plan and may get
    /// other programs. Pages that nothing touches use no memory.
    pub fn reserved_capacity(plan: &Plan) -> usize {
        const LEAST: usize = 64 << 20;
        let needed = round_up_to_pages(saturating_bytes(plan.arenas.symmetric)).saturating_add(PAGE as usize);
        needed.saturating_add(needed.saturating_mul(7).max(LEAST))
    }

    /// Adds a program and returns its number. Fails if it does not fit into the symmetric arena, or the
    /// session has not enough groups. Nothing changes in this case.
    pub fn add_program(&mut self, plan: &ParsedPlan, groups: Option<usize>) -> Result<usize> {
        let before = self.clone();
        if self.barrier.is_none() {
            self.barrier = Some(self.groups.len());
            self.groups.push(None);
        }
        self.append_program(plan);
        let needed = self.required_bytes();
        let capacity = self.fixed_capacity.unwrap_or(usize::MAX);
        let group_count = self.groups.len();
        let max_groups = groups.unwrap_or(usize::MAX);
        if needed <= capacity && group_count <= max_groups {
            return Ok(self.programs.len() - 1);
        }
        *self = before;
        Err(RunError::Invalid(if needed <= capacity {
            format!("the programs of the session have {group_count} groups: expected at most {max_groups}")
        } else {
            format!(
                "the programs of the session need {needed} bytes of the symmetric arena: expected at most {capacity}"
            )
        }))
    }

    /// Closes a program without runs in progress. Its memory is freed when the arena is allocated again for
    /// another program.
    pub fn close_program(&mut self, number: usize) {
        if let Some(program) = self.programs.get_mut(number) {
            program.is_open = false;
        }
    }

    /// The number of programs that were opened.
    pub fn program_count(&self) -> usize {
        self.programs.len()
    }

    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Whether a program was opened and not closed.
    pub fn is_open(&self, number: usize) -> bool {
        self.programs.get(number).is_some_and(|program| program.is_open)
    }

    pub fn ordinary_bytes(&self) -> usize {
        self.allocated_programs().map(|program| program.ordinary).max().unwrap_or(0)
    }

    pub fn symmetric_bytes(&self) -> usize {
        self.fixed_capacity.unwrap_or_else(|| self.required_bytes())
    }

    pub fn required_bytes(&self) -> usize {
        let buffers = self.allocated_programs().map(ProgramLayout::buffer_bytes).max().unwrap_or(0);
        self.allocated_programs()
            .fold(buffers, |sum, program| sum.saturating_add(round_up_to_pages(program.fixed_end)))
    }

    pub fn program_placement(&self, number: usize) -> ProgramPlacement {
        let end = self.symmetric_bytes();
        let Some(program) = self.programs.get(number) else { return ProgramPlacement::default() };
        let earlier = self
            .programs
            .iter()
            .take(number)
            .filter(|program| program.is_open || self.fixed_capacity.is_some())
            .map(|program| round_up_to_pages(program.fixed_end));
        let fixed =
            end.saturating_sub(earlier.fold(round_up_to_pages(program.fixed_end), usize::saturating_add));
        let moves = vec![
            RelocatedRange { from: 0..program.fixed_end, to: fixed },
            RelocatedRange { from: program.fixed_end..usize::MAX, to: program.buffer_offset() },
        ];
        let barrier = self.barrier.filter(|_| self.ranks > 1);
        let groups = program.groups.clone();
        ProgramPlacement {
            program: number,
            relocations: moves,
            symmetric_bytes: end,
            ranks: self.ranks,
            groups,
            barrier,
        }
    }

    /// The programs that occupy memory. If the arena cannot change, closed programs keep theirs: others would
    /// have to move.
    fn allocated_programs(&self) -> impl Iterator<Item = &ProgramLayout> {
        self.programs.iter().filter(|program| program.is_open || self.fixed_capacity.is_some())
    }

    fn append_program(&mut self, plan: &ParsedPlan) {
        let mut groups = Vec::new();
        for cells in cells_of_groups(plan) {
            let group = self.assign_group(cells, &groups);
            groups.push(group);
        }
        let symmetric = saturating_bytes(plan.arenas.symmetric);
        let fixed = fixed_end(plan);
        let ordinary = saturating_bytes(plan.arenas.ordinary);
        self.programs.push(ProgramLayout { is_open: true, ordinary, fixed_end: fixed, symmetric, groups });
    }

    /// The number of a group with these cells that the program does not use already (`taken`): collectives of
    /// two groups of one program may run at the same time, whatever their cells are.
    fn assign_group(&mut self, cells: Option<CellRanks>, taken: &[usize]) -> usize {
        let existing = self
            .groups
            .iter()
            .enumerate()
            .find(|(number, group)| group.is_some() && **group == cells && !taken.contains(number));
        existing.map(|(number, _)| number).unwrap_or_else(|| {
            self.groups.push(cells.clone());
            self.groups.len() - 1
        })
    }
}

fn saturating_bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn round_up_to_pages(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(PAGE as usize).unwrap_or(usize::MAX)
}

/// The end of the fixed memory of a plan, after which its buffers lie; the whole arena if a buffer lies
/// before it.
fn fixed_end(plan: &ParsedPlan) -> usize {
    let end = plan.fixed.iter().map(|fixed| fixed.offset.saturating_add(fixed.size)).max().unwrap_or(0);
    let buffers = plan.buckets.iter().flat_map(|bucket| &bucket.buffers);
    let mut symmetric = buffers.filter(|buffer| buffer.arena == ArenaKind::Symmetric);
    let is_apart = symmetric.all(|buffer| buffer.offset >= end);
    saturating_bytes(if is_apart { end.min(plan.arenas.symmetric) } else { plan.arenas.symmetric })
}

/// The cells of each group of a plan by number; `None` if the group has landing zones, or if another program
/// of the plan has another group of this number.
fn cells_of_groups(plan: &ParsedPlan) -> Vec<Option<CellRanks>> {
    let mut cells_by_group: Vec<Option<CellRanks>> = Vec::new();
    for program in plan.programs().flatten() {
        let graph = &program.graph;
        for (number, (id, group)) in graph.groups.iter().enumerate() {
            let has_landing = plan.fixed.iter().any(|fixed| match &fixed.role {
                FixedRole::Landing { group: name, .. } => *name == group.name,
                _ => false,
            });
            let cells = graph.cells(id).filter(|_| !has_landing);
            match cells_by_group.get_mut(number) {
                None => cells_by_group.push(cells),
                Some(group) if *group == cells => {}
                Some(group) => *group = None,
            }
        }
    }
    cells_by_group
}

/// The proposal that a rank sends when it opens another program: the plan, and whether the rank can open it.
pub fn encode_proposal(plan: &Plan, refusal: Option<&RunError>) -> Vec<u8> {
    let mut proposal = plan.hash().into_bytes();
    proposal.push(u8::from(refusal.is_some()));
    proposal
}

/// Checks the proposals of all ranks, with the same result on all of them. Fails if a rank cannot open the
/// program, or ranks open different plans.
pub fn check_proposals(proposals: &[Vec<u8>]) -> Result<()> {
    let first = proposals.first();
    for (rank, proposal) in (0u32..).zip(proposals) {
        if proposal.last() != Some(&0) {
            return Err(RunError::Invalid(format!("rank {rank} cannot open another program in the session")));
        }
    }
    match (0u32..).zip(proposals).find(|(_, proposal)| Some(*proposal) != first) {
        None => Ok(()),
        Some((rank, proposal)) => Err(RunError::TermsDiffer {
            rank,
            expected: first.map_or_else(String::new, |first| describe_proposal(first)),
            found: describe_proposal(proposal),
        }),
    }
}

fn describe_proposal(proposal: &[u8]) -> String {
    let plan = String::from_utf8_lossy(proposal.get(..12).unwrap_or(proposal));
    format!("another program, of the plan {plan}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrangement() -> SessionLayout {
        SessionLayout {
            ranks: 4,
            fixed_capacity: None,
            programs: Vec::new(),
            groups: Vec::new(),
            barrier: None,
        }
    }

    #[test]
    fn groups_are_shared_by_cells_and_never_within_a_program() {
        let world = || Some(vec![vec![0, 1, 2, 3]]);
        let pairs = || Some(vec![vec![0, 1], vec![2, 3]]);
        let mut layout = arrangement();
        let mut numbers = |cells: &[Option<CellRanks>]| {
            let mut groups = Vec::new();
            for cells in cells {
                let group = layout.assign_group(cells.clone(), &groups);
                groups.push(group);
            }
            groups
        };
        assert_eq!(numbers(&[world(), pairs(), world(), None]), [0, 1, 2, 3]);
        // The second of two groups of all ranks shares that of the first program; one with landing zones is
        // separate.
        assert_eq!(numbers(&[pairs(), world(), world(), world(), None]), [1, 0, 2, 4, 5]);
    }

    #[test]
    fn fixed_memory_is_apart_and_buffers_keep_their_alignment() {
        for room in [None, Some(1 << 20)] {
            let mut layout = SessionLayout { fixed_capacity: room, ..arrangement() };
            for (fixed, symmetric) in [(0, 5000), (4160, 9000), (64, 64), (8192, 8192), (12_352, 100_000)] {
                let (is_open, ordinary) = (true, symmetric);
                layout.programs.push(ProgramLayout {
                    is_open,
                    ordinary,
                    fixed_end: fixed,
                    symmetric,
                    groups: vec![],
                });
            }
            assert_eq!(layout.ordinary_bytes(), 100_000);
            layout.close_program(1);
            let open = (0..layout.program_count()).filter(|&number| layout.is_open(number));
            let mut fixed: Vec<(usize, usize)> = Vec::new();
            for number in open {
                let (placement, program) = (layout.program_placement(number), &layout.programs[number]);
                assert_eq!(placement.symmetric_bytes, layout.symmetric_bytes());
                let range = (placement.session_offset(0), placement.session_offset(0) + program.fixed_end);
                let buffers = placement.session_offset(program.fixed_end);
                assert!(buffers % 4096 == program.fixed_end % 4096, "program {number}");
                let end = buffers + program.symmetric - program.fixed_end;
                assert!(end <= layout.required_bytes(), "program {number}");
                if program.fixed_end > 0 {
                    assert!(
                        range.1 <= layout.symmetric_bytes()
                            && fixed.iter().all(|f| range.1 <= f.0 || f.1 <= range.0)
                    );
                    fixed.push(range);
                }
            }
            let max_buffer_bytes = (0..layout.program_count())
                .filter(|&n| layout.is_open(n))
                .map(|n| layout.programs[n].buffer_bytes())
                .max();
            assert!(
                fixed.iter().all(|&(start, _)| Some(start) >= max_buffer_bytes),
                "{fixed:?}, buffers {max_buffer_bytes:?}"
            );
        }
    }
}
