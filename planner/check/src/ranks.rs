//! Which ranks are simulated, and on which memory is examined.
//!
//! A conflict is between two ranks over the memory of a third. When every group that is used holds all ranks
//! in one cell, the ranks are exchangeable: what a rank knows of another is the same for all pairs, and three
//! ranks show all there is to see. Elsewhere, and where pairs of ranks meet, all ranks are simulated; memory is
//! then examined on one of each class of ranks that symmetries of all groups and pairs exchange
//! ([`Ranks::examined`]).
//!
//! A symmetry is a permutation of the ranks that takes every cell of a group to a cell of that group and every pair
//! of an exchange to a pair of that exchange. Tried are those that meshes have, which turn one digit of the rank's
//! number in a mixed base, all rotations, all exclusive ors, and exchanges of two ranks.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::GroupMembers;
use symmc_ir::collective::SyncScope;

use super::program::PlanGroup;
use super::step::CheckStep;

pub struct SimulatedRanks {
    pub count: usize,
    /// The cells of each group; none for a group that is not used.
    pub cells: Vec<Vec<Vec<usize>>>,
    /// The cell of each rank, for each group that is used.
    cell_of: Vec<Vec<usize>>,
    pub examined: Vec<usize>,
}

/// The pairs of ranks that meet in a step: its group, and their numbers within each cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PairExchange<'a> {
    group: usize,
    pairs: &'a [(u32, u32)],
}

impl<'a> PairExchange<'a> {
    /// That of a step in which pairs meet.
    pub fn from_step(step: &'a CheckStep) -> Option<Self> {
        let sync = step.sync.filter(|s| s.meets == SyncScope::Pairs)?;
        Some(PairExchange { group: sync.group, pairs: &step.pairs })
    }

    /// The ranks of the pairs, sender first.
    pub fn rank_pairs(self, cells: &[Vec<Vec<usize>>]) -> impl Iterator<Item = (usize, usize)> {
        let rank = |cell: &[usize], number: u32| cell.get(number as usize).copied();
        cells[self.group].iter().flat_map(move |cell| {
            self.pairs.iter().filter_map(move |&(from, to)| Some((rank(cell, from)?, rank(cell, to)?)))
        })
    }
}

impl SimulatedRanks {
    /// The ranks to simulate for `ranks` ranks of which the groups in `used` and `exchanges` order some.
    pub fn new(
        ranks: usize,
        groups: &[PlanGroup],
        used: &[bool],
        exchanges: &BTreeSet<PairExchange<'_>>,
    ) -> Self {
        let whole = |g: &PlanGroup| match &g.members {
            GroupMembers::World => true,
            GroupMembers::Cells(cells) => cells.len() == 1,
        };
        let in_use = || groups.iter().zip(used).filter(|(_, used)| **used).map(|(g, _)| g);
        if exchanges.is_empty() && in_use().all(whole) {
            let count = ranks.min(3);
            let of_group = |&u: &bool| if u { vec![(0..count).collect()] } else { Vec::new() };
            return SimulatedRanks::from_cells(count, used.iter().map(of_group).collect(), vec![0]);
        }
        let cells: Vec<Vec<Vec<usize>>> =
            groups.iter().zip(used).map(|(g, &u)| cells_of(g, u, ranks)).collect();
        let pairs: Vec<BTreeSet<(usize, usize)>> =
            exchanges.iter().map(|e| e.rank_pairs(&cells).collect()).collect();
        let mut out = SimulatedRanks::from_cells(ranks, cells, Vec::new());
        out.examined = GroupStructure { ranks: &out, pairs: &pairs }.one_of_each_class();
        out
    }

    fn from_cells(count: usize, cells: Vec<Vec<Vec<usize>>>, examined: Vec<usize>) -> Self {
        let of_group = |cells: &Vec<Vec<usize>>| {
            let mut cell_of = vec![usize::MAX; if cells.is_empty() { 0 } else { count }];
            for (c, cell) in cells.iter().enumerate() {
                cell.iter().filter(|&&r| r < count).for_each(|&r| cell_of[r] = c);
            }
            cell_of
        };
        let cell_of = cells.iter().map(of_group).collect();
        SimulatedRanks { count, cells, cell_of, examined }
    }

    /// The number of the cell of a group that a rank is in; `None` if the group is not used.
    pub fn cell_of(&self, group: usize, rank: usize) -> Option<usize> {
        self.cell_of[group].get(rank).copied().filter(|&c| c != usize::MAX)
    }

    pub fn peers(&self, group: usize, rank: usize) -> impl Iterator<Item = usize> {
        let cell = self.cell_of(group, rank).map_or(&[][..], |c| &self.cells[group][c]);
        cell.iter().copied().filter(move |&r| r != rank)
    }
}

fn cells_of(group: &PlanGroup, used: bool, ranks: usize) -> Vec<Vec<usize>> {
    match (&group.members, used) {
        (_, false) => Vec::new(),
        (GroupMembers::World, true) => vec![(0..ranks).collect()],
        (GroupMembers::Cells(cells), true) => {
            cells.iter().map(|c| c.iter().map(|&r| r as usize).collect()).collect()
        }
    }
}

/// The cells of each group, and the pairs that meet in each exchange.
struct GroupStructure<'a> {
    ranks: &'a SimulatedRanks,
    pairs: &'a [BTreeSet<(usize, usize)>],
}

impl GroupStructure<'_> {
    /// The lowest rank of each class.
    fn one_of_each_class(&self) -> Vec<usize> {
        let n = self.ranks.count;
        let mut classes = RankClasses::new(n);
        let digits = (1..=n).filter(|s| n.is_multiple_of(*s)).flat_map(|stride| {
            let bases = (2..=n / stride).filter(move |base| (n / stride).is_multiple_of(*base));
            bases.map(move |base| (stride, base))
        });
        for (stride, base) in digits {
            self.apply_permutation(&mut classes, &move |r: usize| {
                let digit = r / stride % base;
                r - digit * stride + (digit + 1) % base * stride
            });
        }
        for by in 1..n {
            self.apply_permutation(&mut classes, &move |r: usize| (r + by) % n);
            if n.is_power_of_two() {
                self.apply_permutation(&mut classes, &move |r: usize| r ^ by);
            }
        }
        self.join_exchangeable(&mut classes);
        (0..n).filter(|&r| classes.representative(r) == r).collect()
    }

    /// Puts together what a permutation exchanges, if it is a symmetry.
    fn apply_permutation(&self, classes: &mut RankClasses, map: &dyn Fn(usize) -> usize) {
        if classes.count > 1 && self.keeps_pairs(map) && self.keeps_cells(map) {
            (0..self.ranks.count).for_each(|r| classes.join(r, map(r)));
        }
    }

    fn keeps_pairs(&self, map: &dyn Fn(usize) -> usize) -> bool {
        self.pairs.iter().all(|of| of.iter().all(|&(from, to)| of.contains(&(map(from), map(to)))))
    }

    fn keeps_cells(&self, map: &dyn Fn(usize) -> usize) -> bool {
        self.ranks.cells.iter().enumerate().filter(|(_, cells)| !cells.is_empty()).all(|(g, cells)| {
            let target = |r: usize| self.ranks.cell_of(g, map(r));
            cells.iter().all(|cell| cell.windows(2).all(|w| target(w[0]) == target(w[1])))
        })
    }

    /// Puts together ranks of which each two can be exchanged: those that are in the same cells, but for cells of one
    /// rank, and form the same pairs.
    fn join_exchangeable(&self, classes: &mut RankClasses) {
        let mut pairs_of: Vec<Vec<(usize, usize, usize)>> = vec![Vec::new(); self.ranks.count];
        for (e, of) in self.pairs.iter().enumerate() {
            for &(from, to) in of {
                pairs_of[from].push((e, from, to));
                pairs_of[to].push((e, from, to));
            }
        }
        let twins = |a: usize, b: usize| {
            let swap = |r: usize| match r {
                r if r == a => b,
                r if r == b => a,
                r => r,
            };
            let mut touched = pairs_of[a].iter().chain(&pairs_of[b]);
            touched.all(|&(e, from, to)| self.pairs[e].contains(&(swap(from), swap(to))))
        };
        let mut first: HashMap<Vec<Option<usize>>, Vec<usize>> = HashMap::new();
        for r in 0..self.ranks.count {
            let cell = |(g, cells): (usize, &Vec<Vec<usize>>)| {
                self.ranks.cell_of(g, r).filter(|&c| cells[c].len() > 1)
            };
            let alike = first.entry(self.ranks.cells.iter().enumerate().map(cell).collect()).or_default();
            match alike.iter().find(|&&a| twins(a, r)) {
                Some(&a) => classes.join(a, r),
                None => alike.push(r),
            }
        }
    }
}

/// Disjoint classes of ranks, each with its lowest rank as the first.
struct RankClasses {
    above: Vec<usize>,
    count: usize,
}

impl RankClasses {
    fn new(ranks: usize) -> Self {
        RankClasses { above: (0..ranks).collect(), count: ranks }
    }

    fn representative(&mut self, rank: usize) -> usize {
        let mut at = rank;
        while self.above[at] != at {
            self.above[at] = self.above[self.above[at]];
            at = self.above[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.representative(a), self.representative(b));
        if a != b {
            self.above[a.max(b)] = a.min(b);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::tests::{exchange_step, group, ranks};
    use super::*;

    fn cells(cells: impl Iterator<Item = Vec<u32>>) -> GroupMembers {
        GroupMembers::Cells(cells.collect())
    }

    fn pairs(cells: &[[u32; 2]]) -> GroupMembers {
        GroupMembers::Cells(cells.iter().map(|c| c.to_vec()).collect())
    }

    #[test]
    fn ranks_that_symmetry_exchanges_are_examined_once() {
        let mesh = [group(pairs(&[[0, 1], [2, 3]]), 2), group(pairs(&[[0, 2], [1, 3]]), 2)];
        let found = ranks(4, &mesh, &[]);
        assert_eq!((found.count, found.examined.as_slice()), (4, &[0][..]));
        assert_eq!(found.peers(1, 0).collect::<Vec<_>>(), [2]);
        let odd =
            [group(pairs(&[[0, 1], [2, 3]]), 2), group(GroupMembers::Cells(vec![vec![0, 1, 2], vec![3]]), 3)];
        assert!(ranks(4, &odd, &[]).examined.len() > 1);
        let world = [group(GroupMembers::World, 8)];
        assert_eq!(ranks(8, &world, &[]).count, 3);
        let of = |pairs: &[(u32, u32)]| {
            let found = ranks(8, &world, &[exchange_step(pairs)]);
            assert_eq!(found.count, 8);
            found.examined
        };
        let to_all: Vec<(u32, u32)> = [0, 1, 2, 4, 5, 6, 7].map(|r| (3, r)).to_vec();
        assert_eq!(of(&to_all), [0, 3]);
        assert_eq!(of(&(0..8).map(|r| (r, (r + 1) % 8)).collect::<Vec<_>>()), [0]);
        assert_eq!(of(&[(0, 1), (1, 2)]), [0, 1, 2, 3]);
        assert_eq!(of(&[]), [0]);
    }

    #[test]
    fn meshes_of_any_base_have_one_class() {
        // Three by four by two ranks, each axis and each plane a group.
        let along = |stride: u32, size: u32, n: u32| {
            let first = move |r: &u32| (r / stride).is_multiple_of(size);
            cells((0..n).filter(first).map(move |r| (0..size).map(|i| r + i * stride).collect()))
        };
        let mesh = [group(along(1, 2, 24), 2), group(along(2, 4, 24), 4), group(along(8, 3, 24), 3)];
        assert_eq!(ranks(24, &mesh, &[]).examined, [0]);
        let planes = [group(along(1, 8, 24), 8), group(along(2, 12, 24), 12)];
        assert_eq!(ranks(24, &planes, &[]).examined, [0]);
        // Stages that send to the next and not around: one class for each.
        let down: Vec<(u32, u32)> = (0..16).map(|r| (r, r + 8)).collect();
        let staged = [group(GroupMembers::World, 24), group(along(1, 8, 24), 8)];
        assert_eq!(ranks(24, &staged, &[exchange_step(&down)]).examined, [0, 8, 16]);
    }
}
