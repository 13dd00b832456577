//! Where a dim changes its form: at which values of symbols a `min` or `max` takes its other argument, and where a quotient or
//! a remainder steps.

use super::{Atom, Dim};

/// A condition of a dim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Switch {
    /// The form changes where this changes its sign: the difference of the arguments of a `min` or `max`.
    Sign(Dim),
    /// The value steps where the first is a multiple of the second.
    Multiple(Dim, Dim),
}

impl Dim {
    /// All conditions of the dim, those within arguments included.
    pub fn switches(&self) -> Vec<Switch> {
        let mut out = Vec::new();
        self.collect_switches(&mut out);
        out
    }

    fn collect_switches(&self, out: &mut Vec<Switch>) {
        for atom in self.parts().0.iter().flat_map(|t| &t.product) {
            let (Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b)) = atom else {
                continue;
            };
            out.push(match atom {
                Atom::Max(..) | Atom::Min(..) => Switch::Sign(a.clone() - b.clone()),
                _ => Switch::Multiple(a.clone(), b.clone()),
            });
            a.collect_switches(out);
            b.collect_switches(out);
        }
    }
}
