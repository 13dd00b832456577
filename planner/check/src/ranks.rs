//! Selects the ranks to simulate, and the ranks whose memory is examined.
//!
//! A conflict involves at most three ranks: two ranks access the memory of a third. If every used group holds all
//! ranks in one cell and no pairs meet, then all ranks are interchangeable, and three ranks represent all others.
//! Otherwise all ranks are simulated. Symmetries of all groups and exchanges divide them into classes. The memory
//! of one rank of each class is examined ([`SimulatedRanks::examined`]).
//!
//! A symmetry is a permutation of the ranks that maps every cell of a group to a cell of that group, and every pair
//! of an exchange to a pair of that exchange. Four kinds of permutations are tried:
//! - rotations of one digit of the rank in a mixed base, which are the symmetries of meshes;
//! - rotations of all ranks;
//! - exclusive or with a constant;
//! - exchanges of two ranks.
//!
//! A symmetry that is not found costs time only: more ranks are examined.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::GroupMembers;
use symmc_ir::collective::SyncScope;

use super::program::PlanGroup;
use super::step::CheckStep;

pub struct SimulatedRanks {
    pub count: usize,
    /// The cells of each group. A group that is not used has none.
    pub cells: Vec<Vec<Vec<usize>>>,
    /// For each used group the cell of each rank.
    cell_of: Vec<Vec<usize>>,
    /// The ranks whose memory is examined: one of each class.
    pub examined: Vec<usize>,
}

/// The pairs of ranks that meet in a step: its group, and the numbers of both ranks within each cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PairExchange<'a> {
    group: usize,
    pairs: &'a [(u32, u32)],
}

impl<'a> PairExchange<'a> {
    /// The exchange of a step. `None` unless the contract of the step says that pairs meet.
    pub fn from_step(step: &'a CheckStep) -> Option<Self> {
        let sync = step.sync.filter(|s| s.meets == SyncScope::Pairs)?;
        Some(PairExchange { group: sync.group, pairs: &step.pairs })
    }

    /// The ranks of the pairs, sender first.
    pub fn rank_pairs(self, cells: &[Vec<Vec<usize>>]) -> impl Iterator<Item = (usize, usize)> {
        cells[self.group].iter().flat_map(move |cell| {
            let pairs = self.pairs.iter();
            pairs.filter_map(move |&(from, to)| Some((*cell.get(from as usize)?, *cell.get(to as usize)?)))
        })
    }
}

impl SimulatedRanks {
    /// Selects the ranks for a plan of `ranks` ranks. `used` says for each group whether a step uses it.
    pub fn new(
        ranks: usize,
        groups: &[PlanGroup],
        used: &[bool],
        exchanges: &BTreeSet<PairExchange<'_>>,
    ) -> Self {
        let mut in_use = groups.iter().zip(used).filter(|(_, used)| **used).map(|(g, _)| g);
        let only_worlds = exchanges.is_empty()
            && in_use.all(|g| match &g.members {
                GroupMembers::World => true,
                GroupMembers::Cells(cells) => cells.len() == 1,
            });
        if only_worlds {
            let count = ranks.min(3);
            let cells = used
                .iter()
                .map(|&is_used| if is_used { vec![(0..count).collect()] } else { Vec::new() })
                .collect();
            return SimulatedRanks::from_cells(count, cells, vec![0]);
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
        let mut cell_of = Vec::with_capacity(cells.len());
        for group_cells in &cells {
            let mut cell_of_rank = vec![usize::MAX; if group_cells.is_empty() { 0 } else { count }];
            for (c, cell) in group_cells.iter().enumerate() {
                cell.iter().filter(|&&rank| rank < count).for_each(|&rank| cell_of_rank[rank] = c);
            }
            cell_of.push(cell_of_rank);
        }
        SimulatedRanks { count, cells, cell_of, examined }
    }

    /// The index of the cell of a group that contains the rank. `None` if the group is not used.
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

/// The structure that symmetries preserve: the cells of each group, and the pairs of ranks of each exchange.
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

    /// Joins the classes of each rank and its image, if the permutation is a symmetry.
    fn apply_permutation(&self, classes: &mut RankClasses, map: &dyn Fn(usize) -> usize) {
        if classes.count > 1 && self.keeps_pairs(map) && self.keeps_cells(map) {
            (0..self.ranks.count).for_each(|r| classes.join(r, map(r)));
        }
    }

    fn keeps_pairs(&self, map: &dyn Fn(usize) -> usize) -> bool {
        self.pairs.iter().all(|pairs| pairs.iter().all(|&(from, to)| pairs.contains(&(map(from), map(to)))))
    }

    fn keeps_cells(&self, map: &dyn Fn(usize) -> usize) -> bool {
        self.ranks.cells.iter().enumerate().filter(|(_, cells)| !cells.is_empty()).all(|(g, cells)| {
            cells.iter().all(|cell| {
                cell.windows(2).all(|w| self.ranks.cell_of(g, map(w[0])) == self.ranks.cell_of(g, map(w[1])))
            })
        })
    }

    /// Joins the classes of two ranks if exchanging them is a symmetry: both are in the same cells, except cells of
    /// one rank, and the exchange maps the pairs of both to pairs.
    fn join_exchangeable(&self, classes: &mut RankClasses) {
        let mut pairs_of: Vec<Vec<(usize, usize, usize)>> = vec![Vec::new(); self.ranks.count];
        for (e, pairs) in self.pairs.iter().enumerate() {
            for &(from, to) in pairs {
                pairs_of[from].push((e, from, to));
                pairs_of[to].push((e, from, to));
            }
        }
        let mut first: HashMap<Vec<Option<usize>>, Vec<usize>> = HashMap::new();
        for r in 0..self.ranks.count {
            let groups = self.ranks.cells.iter().enumerate();
            let shared_cells =
                groups.map(|(g, cells)| self.ranks.cell_of(g, r).filter(|&c| cells[c].len() > 1)).collect();
            let same_cells = first.entry(shared_cells).or_default();
            let exchangeable = same_cells.iter().find(|&&a| {
                let mut touched = pairs_of[a].iter().chain(&pairs_of[r]);
                touched.all(|&(e, from, to)| {
                    self.pairs[e].contains(&(swap_ranks(from, a, r), swap_ranks(to, a, r)))
                })
            });
            match exchangeable {
                Some(&a) => classes.join(a, r),
                None => same_cells.push(r),
            }
        }
    }
}

fn swap_ranks(rank: usize, a: usize, b: usize) -> usize {
    match rank {
        r if r == a => b,
        r if r == b => a,
        r => r,
    }
}

/// Disjoint classes of ranks as a union-find structure. The lowest rank of a class represents it.
struct RankClasses {
    parent: Vec<usize>,
    count: usize,
}

impl RankClasses {
    fn new(ranks: usize) -> Self {
        RankClasses { parent: (0..ranks).collect(), count: ranks }
    }

    fn representative(&mut self, rank: usize) -> usize {
        let mut root = rank;
        while self.parent[root] != root {
            self.parent[root] = self.parent[self.parent[root]];
            root = self.parent[root];
        }
        root
    }

    fn join(&mut self, a: usize, b: usize) {
        let a = self.representative(a);
        let b = self.representative(b);
        if a != b {
            self.parent[a.max(b)] = a.min(b);
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
        let classes = ranks(4, &mesh, &[]);
        assert_eq!((classes.count, classes.examined.as_slice()), (4, &[0][..]));
        assert_eq!(classes.peers(1, 0).collect::<Vec<_>>(), [2]);
        let odd =
            [group(pairs(&[[0, 1], [2, 3]]), 2), group(GroupMembers::Cells(vec![vec![0, 1, 2], vec![3]]), 3)];
        assert!(ranks(4, &odd, &[]).examined.len() > 1);
        let world = [group(GroupMembers::World, 8)];
        assert_eq!(ranks(8, &world, &[]).count, 3);
        let examined = |pairs: &[(u32, u32)]| {
            let classes = ranks(8, &world, &[exchange_step(pairs)]);
            assert_eq!(classes.count, 8);
            classes.examined
        };
        let to_all: Vec<(u32, u32)> = [0, 1, 2, 4, 5, 6, 7].map(|r| (3, r)).to_vec();
        assert_eq!(examined(&to_all), [0, 3]);
        assert_eq!(examined(&(0..8).map(|r| (r, (r + 1) % 8)).collect::<Vec<_>>()), [0]);
        assert_eq!(examined(&[(0, 1), (1, 2)]), [0, 1, 2, 3]);
        assert_eq!(examined(&[]), [0]);
    }

    #[test]
    fn meshes_of_any_base_have_one_class() {
        // Three by four by two ranks, each axis and each plane a group.
        let along = |stride: u32, size: u32, n: u32| {
            let firsts = (0..n).filter(move |r| (r / stride).is_multiple_of(size));
            cells(firsts.map(move |r| (0..size).map(|i| r + i * stride).collect()))
        };
        let mesh = [group(along(1, 2, 24), 2), group(along(2, 4, 24), 4), group(along(8, 3, 24), 3)];
        assert_eq!(ranks(24, &mesh, &[]).examined, [0]);
        let planes = [group(along(1, 8, 24), 8), group(along(2, 12, 24), 12)];
        assert_eq!(ranks(24, &planes, &[]).examined, [0]);
        // Stages send to the next stage and do not wrap around, so each stage is a class.
        let down: Vec<(u32, u32)> = (0..16).map(|r| (r, r + 8)).collect();
        let staged = [group(GroupMembers::World, 24), group(along(1, 8, 24), 8)];
        assert_eq!(ranks(24, &staged, &[exchange_step(&down)]).examined, [0, 8, 16]);
    }
}
