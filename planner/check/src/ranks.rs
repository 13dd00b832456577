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

use symmc_ir::Members;
use symmc_ir::collective::Meets;

use super::program::Group;
use super::step::Step;

pub struct Ranks {
    pub count: usize,
    /// The cells of each group; none for a group that is not used.
    pub cells: Vec<Vec<Vec<usize>>>,
    /// The cell of each rank, for each group that is used.
    cell_of: Vec<Vec<usize>>,
    pub examined: Vec<usize>,
}

/// The pairs of ranks that meet in a step: its group, and their numbers within each cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Exchange<'a> {
    group: usize,
    pairs: &'a [(u32, u32)],
}

impl<'a> Exchange<'a> {
    /// That of a step in which pairs meet.
    pub fn of(step: &'a Step) -> Option<Self> {
        let sync = step.sync.filter(|s| s.meets == Meets::Pairs)?;
        Some(Exchange { group: sync.group, pairs: &step.pairs })
    }

    /// The ranks of the pairs, sender first.
    pub fn ranks(self, cells: &[Vec<Vec<usize>>]) -> impl Iterator<Item = (usize, usize)> {
        let rank = |cell: &[usize], number: u32| cell.get(number as usize).copied();
        cells[self.group].iter().flat_map(move |cell| {
            self.pairs.iter().filter_map(move |&(from, to)| Some((rank(cell, from)?, rank(cell, to)?)))
        })
    }
}

impl Ranks {
    /// The ranks to simulate for `ranks` ranks of which the groups in `used` and `exchanges` order some.
    pub fn new(ranks: usize, groups: &[Group], used: &[bool], exchanges: &BTreeSet<Exchange<'_>>) -> Self {
        let whole = |g: &Group| match &g.members {
            Members::World => true,
            Members::Cells(cells) => cells.len() == 1,
        };
        let in_use = || groups.iter().zip(used).filter(|(_, used)| **used).map(|(g, _)| g);
        if exchanges.is_empty() && in_use().all(whole) {
            let count = ranks.min(3);
            let of_group = |&u: &bool| if u { vec![(0..count).collect()] } else { Vec::new() };
            return Ranks::with(count, used.iter().map(of_group).collect(), vec![0]);
        }
        let cells: Vec<Vec<Vec<usize>>> =
            groups.iter().zip(used).map(|(g, &u)| cells_of(g, u, ranks)).collect();
        let pairs: Vec<BTreeSet<(usize, usize)>> =
            exchanges.iter().map(|e| e.ranks(&cells).collect()).collect();
        let mut out = Ranks::with(ranks, cells, Vec::new());
        out.examined = Structure { ranks: &out, pairs: &pairs }.one_of_each_class();
        out
    }

    fn with(count: usize, cells: Vec<Vec<Vec<usize>>>, examined: Vec<usize>) -> Self {
        let of_group = |cells: &Vec<Vec<usize>>| {
            let mut cell_of = vec![usize::MAX; if cells.is_empty() { 0 } else { count }];
            for (c, cell) in cells.iter().enumerate() {
                cell.iter().filter(|&&r| r < count).for_each(|&r| cell_of[r] = c);
            }
            cell_of
        };
        let cell_of = cells.iter().map(of_group).collect();
        Ranks { count, cells, cell_of, examined }
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

fn cells_of(group: &Group, used: bool, ranks: usize) -> Vec<Vec<usize>> {
    match (&group.members, used) {
        (_, false) => Vec::new(),
        (Members::World, true) => vec![(0..ranks).collect()],
        (Members::Cells(cells), true) => {
            cells.iter().map(|c| c.iter().map(|&r| r as usize).collect()).collect()
        }
    }
}

/// The cells of each group, and the pairs that meet in each exchange.
struct Structure<'a> {
    ranks: &'a Ranks,
    pairs: &'a [BTreeSet<(usize, usize)>],
}

impl Structure<'_> {
    /// The lowest rank of each class.
    fn one_of_each_class(&self) -> Vec<usize> {
        let n = self.ranks.count;
        let mut classes = Classes::new(n);
        let digits = (1..=n).filter(|s| n.is_multiple_of(*s)).flat_map(|stride| {
            let bases = (2..=n / stride).filter(move |base| (n / stride).is_multiple_of(*base));
            bases.map(move |base| (stride, base))
        });
        for (stride, base) in digits {
            self.exchange(&mut classes, &move |r: usize| {
                let digit = r / stride % base;
                r - digit * stride + (digit + 1) % base * stride
            });
        }
        for by in 1..n {
            self.exchange(&mut classes, &move |r: usize| (r + by) % n);
            if n.is_power_of_two() {
                self.exchange(&mut classes, &move |r: usize| r ^ by);
            }
        }
        self.exchange_two(&mut classes);
        (0..n).filter(|&r| classes.first(r) == r).collect()
    }

    /// Puts together what a permutation exchanges, if it is a symmetry.
    fn exchange(&self, classes: &mut Classes, map: &dyn Fn(usize) -> usize) {
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
    fn exchange_two(&self, classes: &mut Classes) {
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
struct Classes {
    above: Vec<usize>,
    count: usize,
}

impl Classes {
    fn new(ranks: usize) -> Self {
        Classes { above: (0..ranks).collect(), count: ranks }
    }

    fn first(&mut self, rank: usize) -> usize {
        let mut at = rank;
        while self.above[at] != at {
            self.above[at] = self.above[self.above[at]];
            at = self.above[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.first(a), self.first(b));
        if a != b {
            self.above[a.max(b)] = a.min(b);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::tests::{group, put, ranks};
    use super::*;

    fn cells(cells: impl Iterator<Item = Vec<u32>>) -> Members {
        Members::Cells(cells.collect())
    }

    fn pairs(cells: &[[u32; 2]]) -> Members {
        Members::Cells(cells.iter().map(|c| c.to_vec()).collect())
    }

    #[test]
    fn ranks_that_symmetry_exchanges_are_examined_once() {
        let mesh = [group(pairs(&[[0, 1], [2, 3]]), 2), group(pairs(&[[0, 2], [1, 3]]), 2)];
        let found = ranks(4, &mesh, &[]);
        assert_eq!((found.count, found.examined.as_slice()), (4, &[0][..]));
        assert_eq!(found.peers(1, 0).collect::<Vec<_>>(), [2]);
        let odd =
            [group(pairs(&[[0, 1], [2, 3]]), 2), group(Members::Cells(vec![vec![0, 1, 2], vec![3]]), 3)];
        assert!(ranks(4, &odd, &[]).examined.len() > 1);
        let world = [group(Members::World, 8)];
        assert_eq!(ranks(8, &world, &[]).count, 3);
        let of = |pairs: &[(u32, u32)]| {
            let found = ranks(8, &world, &[put(pairs)]);
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
        let staged = [group(Members::World, 24), group(along(1, 8, 24), 8)];
        assert_eq!(ranks(24, &staged, &[put(&down)]).examined, [0, 8, 16]);
    }
}
