//! The spread of elements: how far they move if every rounding of the run that computed them is moved
//! ([`run_with_noise`]).
//!
//! A spread bounds the results of other correct backends. It is kept for all elements, or only for those beyond
//! their tolerance, so that rounds of noise skip all other elements.
//!
//! [`run_with_noise`]: super::run_with_noise

use crate::tensor::Tensor;

#[derive(Clone, PartialEq, Debug)]
pub struct NoiseSpread {
    /// The elements in ascending order; `None` for all.
    elements: Option<Vec<usize>>,
    moves: Vec<ElementSpread>,
}

/// The values that runs with noise gave instead of an element.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct ElementSpread {
    /// For a finite element the largest move to another finite number. For an infinite element the smallest
    /// finite magnitude that was seen, for NaN the largest.
    largest_move: f64,
    /// The flags [`POSITIVE_INFINITE_CLASS`], [`NEGATIVE_INFINITE_CLASS`], [`NAN_CLASS`] and [`FINITE_CLASS`] of the
    /// values that were seen.
    classes: u8,
}

const POSITIVE_INFINITE_CLASS: u8 = 1;
const NEGATIVE_INFINITE_CLASS: u8 = 2;
const NAN_CLASS: u8 = 4;
const FINITE_CLASS: u8 = 8;

/// Correct results may differ by this factor times the largest move that was seen.
pub(super) const SPREAD_FACTOR: f64 = 4.0;

fn classify(x: f64) -> u8 {
    match x {
        x if x.is_nan() => NAN_CLASS,
        f64::INFINITY => POSITIVE_INFINITE_CLASS,
        f64::NEG_INFINITY => NEGATIVE_INFINITE_CLASS,
        _ => FINITE_CLASS,
    }
}

impl NoiseSpread {
    pub fn without_moves(expected: &Tensor) -> NoiseSpread {
        NoiseSpread { elements: None, moves: vec![ElementSpread::default(); expected.numel()] }
    }

    /// A spread without moves for these elements, and without information about others.
    pub fn for_elements(mut elements: Vec<usize>) -> NoiseSpread {
        elements.sort_unstable();
        elements.dedup();
        NoiseSpread { moves: vec![ElementSpread::default(); elements.len()], elements: Some(elements) }
    }

    /// Adds one run with noise. Returns whether an element moved farther than before.
    pub fn widen(&mut self, expected: &Tensor, noisy: &Tensor) -> bool {
        let count = expected.numel().min(noisy.numel());
        let mut wider = false;
        for (k, moves) in self.moves.iter_mut().enumerate() {
            let i = self.elements.as_ref().map_or(k, |elements| elements[k]);
            if i < count {
                let before = *moves;
                moves.widen(expected, noisy, i);
                wider |= *moves != before;
            }
        }
        wider
    }

    /// The elements that the spread covers.
    pub fn elements(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.moves.len()).map(|k| self.elements.as_ref().map_or(k, |elements| elements[k]))
    }

    fn element_spread(&self, element: usize) -> Option<&ElementSpread> {
        let index = match &self.elements {
            Some(elements) => elements.binary_search(&element).ok()?,
            None => element,
        };
        self.moves.get(index)
    }

    /// Whether noise explains the element that was found.
    pub(super) fn explains(&self, element: usize, actual: &Tensor, expected: &Tensor) -> bool {
        let Some(moves) = self.element_spread(element) else { return false };
        if !actual.dtype().is_float() {
            return distance(actual, expected, element) <= SPREAD_FACTOR * moves.largest_move;
        }
        let actual = actual.get_f64(element);
        let expected = expected.get_f64(element);
        match (actual.is_finite(), expected.is_finite()) {
            (false, _) => moves.explains_nonfinite(actual),
            // Values on the way to an infinity that was seen are possible, too.
            (true, true) => {
                let beyond =
                    if actual > expected { POSITIVE_INFINITE_CLASS } else { NEGATIVE_INFINITE_CLASS };
                (actual - expected).abs() <= SPREAD_FACTOR * moves.largest_move || moves.classes & beyond != 0
            }
            (true, false) if moves.classes & FINITE_CLASS == 0 => false,
            (true, false) if expected.is_nan() => actual.abs() <= SPREAD_FACTOR * moves.largest_move,
            (true, false) => {
                actual.signum() == expected.signum() && actual.abs() * SPREAD_FACTOR >= moves.largest_move
            }
        }
    }
}

impl ElementSpread {
    fn widen(&mut self, expected: &Tensor, noisy: &Tensor, i: usize) {
        if !expected.dtype().is_float() {
            self.largest_move = self.largest_move.max(distance(noisy, expected, i));
            return;
        }
        let x = noisy.get_f64(i);
        let expected = expected.get_f64(i);
        let is_first = self.classes & FINITE_CLASS == 0;
        self.classes |= classify(x);
        if !x.is_finite() {
            return;
        }
        self.largest_move = match expected {
            e if e.is_finite() => self.largest_move.max((x - e).abs()),
            e if e.is_nan() || is_first => self.largest_move.max(x.abs()),
            _ => self.largest_move.min(x.abs()),
        };
    }

    /// Whether a run with noise gave a non-finite number of this kind. After a NaN all of them are possible,
    /// because rounding decides which of several terms are infinite.
    fn explains_nonfinite(&self, found: f64) -> bool {
        self.classes & (classify(found) | NAN_CLASS) != 0
    }
}

/// The distance of two elements; NaN if exactly one of them is NaN.
pub(super) fn distance(found: &Tensor, expected: &Tensor, i: usize) -> f64 {
    if found.dtype().is_float() {
        float_distance(found.get_f64(i), expected.get_f64(i))
    } else {
        found.get_i64(i).abs_diff(expected.get_i64(i)) as f64
    }
}

/// The distance of two floats: 0 if both are NaN or the same infinity, NaN if exactly one of them is NaN.
fn float_distance(found: f64, expected: f64) -> f64 {
    if found == expected || (found.is_nan() && expected.is_nan()) { 0.0 } else { (found - expected).abs() }
}
