//! Sizes that are multiples of a number, plus a rest.
//!
//! Code that divides rows among ranks or into slices asks whether the division has a remainder. The answer is
//! a guard, so it holds in every call of the graph. The program then has a symbol for the quotient, and the
//! size is an expression of that symbol.

use indexmap::IndexMap;
use symmc_ir::Dim;
use symmc_ir::dim::DimBreakpoint;

use super::SizeSymbols;
use crate::ranges::{RangeError, range_error};
use crate::sympy::{self, SizeExpr};

/// The largest common multiple of divisors. A size with a larger one keeps its symbol.
const MAX_PERIOD: i64 = 4096;

/// A size of the form `step * quotient + rest`. The quotient is another symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeStep {
    pub symbol: String,
    /// At least 2.
    pub step: i64,
    /// At least 0 and less than the step.
    pub rest: i64,
}

impl SizeStep {
    pub fn quotient(&self) -> String {
        format!("{}_by_{}", self.symbol, self.step)
    }

    /// The largest quotient of a size that is at most this one.
    pub fn divide_down(&self, size: i64) -> i64 {
        size.saturating_sub(self.rest).div_euclid(self.step)
    }

    /// The quotient of a size.
    ///
    /// # Errors
    /// The size is not a multiple of the step plus the rest.
    pub fn divide(&self, size: i64) -> Result<i64, RangeError> {
        if size.rem_euclid(self.step) == self.rest {
            return Ok(self.divide_down(size));
        }
        let remainder = if self.rest == 0 { String::new() } else { format!(" plus {}", self.rest) };
        Err(range_error(&self.symbol, &format!("a multiple of {}{remainder}", self.step), size.to_string()))
    }
}

/// The possible remainders of a size after division by the period.
#[derive(Clone, Debug)]
struct PossibleRemainders {
    period: i64,
    possible: Vec<i64>,
}

/// The step and the rest of each symbol, for the sizes that satisfy the guards. Symbols without a step are
/// left out.
pub fn find_size_steps(guards: &[String], symbols: &[String]) -> Vec<SizeStep> {
    let mut remainders: IndexMap<&str, Vec<PossibleRemainders>> = IndexMap::new();
    for (symbol, possible) in guards.iter().filter_map(|guard| solve_guard(guard)) {
        if symbols.iter().any(|s| s == symbol) {
            remainders.entry(symbol).or_default().push(possible);
        }
    }
    let steps = remainders.into_iter().filter_map(|(symbol, possible)| {
        let (step, rest) = common_step(&possible)?;
        Some(SizeStep { symbol: symbol.to_string(), step, rest })
    });
    steps.collect()
}

/// The symbol whose remainder decides a guard, for all values of the other symbols. The guard must be an
/// equation.
fn solve_guard(guard: &str) -> Option<(&str, PossibleRemainders)> {
    let parsed = sympy::parse(guard).ok()?;
    let SizeExpr::Call("Eq" | "Equality", sides) = &parsed else { return None };
    let [left, right] = sides.as_slice() else { return None };
    let mut symbols = SizeSymbols::default();
    let difference = symbols.expression_dim(left)? - symbols.expression_dim(right)?;
    let breakpoints = difference.breakpoints().into_iter();
    let divisors = breakpoints.filter_map(|breakpoint| match breakpoint {
        DimBreakpoint::Multiple(_, by) => by.as_const().filter(|&n| n > 0),
        _ => None,
    });
    let divisors: Vec<i64> = divisors.collect();
    let period = (1..=MAX_PERIOD).find(|n| divisors.iter().all(|divisor| n % divisor == 0))?;
    let quotient = Dim::from(symbols.id("the quotient")) - 1.into();
    sympy::symbols_in(&parsed).into_iter().find_map(|symbol| {
        let size = symbols.id(symbol);
        let mut possible = Vec::new();
        for rest in 1..=period {
            let stepped = Dim::from(period) * quotient.clone() + rest.into();
            let at_rest = difference.substitute(&|s| if s == size { stepped.clone() } else { s.into() });
            match at_rest.bounds(&symbols.0) {
                (0, 0) => possible.push(rest % period),
                (low, high) if low <= 0 && high >= 0 => return None,
                _ => {}
            }
        }
        Some((symbol, PossibleRemainders { period, possible }))
    })
}

/// The step and the rest of the sizes with all of these remainders, if the step is more than 1.
fn common_step(all: &[PossibleRemainders]) -> Option<(i64, i64)> {
    let period = (1..=MAX_PERIOD).find(|n| all.iter().all(|one| n % one.period == 0))?;
    let sizes: Vec<i64> = (0..period)
        .filter(|size| all.iter().all(|one| one.possible.contains(&(size % one.period))))
        .collect();
    let remainder = *sizes.first()?;
    let count = sizes.len() as i64;
    let step = period / count;
    let is_even = step * count == period && sizes.iter().all(|size| size % step == remainder);
    (step > 1 && is_even).then_some((step, remainder))
}

#[cfg(test)]
mod tests {
    use symmc_support::random::SplitMix;

    use super::super::{CallSizes, evaluate_size};
    use super::*;

    fn number(random: &mut SplitMix, low: i64, high: i64) -> i64 {
        low + random.below((high - low + 1) as usize) as i64
    }

    fn steps(guards: &[String]) -> Vec<(String, i64, i64)> {
        let steps = find_size_steps(guards, &["s0".into(), "s1".into()]);
        steps.into_iter().map(|step| (step.symbol, step.step, step.rest)).collect()
    }

    #[test]
    fn guards_say_which_sizes_go_in_steps() {
        for (guard, expected) in [
            ("Eq(Mod(s0, 4), 0)", Some((4, 0))),
            ("Eq(Mod(s0, 4), 3)", Some((4, 3))),
            ("Equality(Mod(Symbol('s0', integer=True), Integer(4)), Integer(3))", Some((4, 3))),
            ("Eq(4*((s0//4)), s0)", Some((4, 0))),
            ("Eq(s0, 4*((s0//4)) + 1)", Some((4, 1))),
            ("Eq(s0 - 4*((s0//4)) - 1, 0)", Some((4, 1))),
            ("Eq(Mod(3*s0 + 1, 6), 1)", Some((2, 0))),
            ("Eq(s1*s0 - 2*s1*((s0//2)), 0)", Some((2, 0))),
            ("Eq(8*s1**2*(((s0 + 1)//8)), s1**2*(s0 + 1))", Some((8, 7))),
            ("Eq(s0*Mod(s0, 4), s0)", Some((4, 1))),
            ("Eq(Mod(s0, 6) + Mod(s0, 4), 0)", Some((12, 0))),
            ("Eq(Max(1, Mod(s0, 4)), 3)", Some((4, 3))),
            // No steps: the guard holds for no size, for all sizes, in unequal steps, depending on another
            // symbol, or for few sizes.
            ("Eq(Mod(s0, 4), 5)", None),
            ("Eq(Mod(2*s0, 4), 1)", None),
            ("Eq(2*Mod(s0, 4), Mod(2*s0, 8))", None),
            ("Eq(Mod(s0, 4)*(Mod(s0, 4) - 1), 0)", None),
            ("Eq(Mod(s0, 6) + Mod(s0, 4), 4)", None),
            ("Eq((s1 - 1)*Mod(s0, 4), 0)", None),
            ("Eq(Mod(s0 + s1, 4), 0)", None),
            ("Eq(Mod((s0//2), 4), 0)", None),
            ("Eq((s0//4), 2)", None),
            ("Eq((s0//4), 0)", None),
            ("Eq(s0, s1)", None),
            ("Ne(Mod(s0, 4), 0)", None),
            ("s0 < 4", None),
            ("Eq(Mod(s0, 5000), 0)", None),
            ("Eq(Mod(s9, 2), 0)", None),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(n, rest)| ("s0".to_string(), n, rest)).collect();
            assert_eq!(steps(&[guard.to_string()]), expected, "{guard}");
        }
    }

    #[test]
    fn all_guards_of_a_size_make_one_step() {
        let steps = |guards: &[&str]| steps(&guards.iter().map(ToString::to_string).collect::<Vec<_>>());
        let size_steps = steps(&["Eq(Mod(s1, 3), 1)", "Eq(Mod(s0, 4), 2)", "Eq(Mod(2*s0, 3), 0)"]);
        assert_eq!(size_steps, [("s1".to_string(), 3, 1), ("s0".to_string(), 12, 6)]);
        assert_eq!(steps(&["Eq(Mod(s0, 2), 1)", "Eq(Mod(s0, 4), 0)"]), []);
        assert_eq!(steps(&["Eq(Mod(s0, 4096), 1)", "Eq(Mod(s0, 3), 0)"]), []);
        let step = SizeStep { symbol: "s0".into(), step: 4, rest: 1 };
        assert_eq!((step.divide(9), step.divide_down(12), step.divide_down(0)), (Ok(2), 2, -1));
        let error = step.divide(8).expect_err("another rest").to_string();
        assert_eq!(error, "symbol `s0`: expected a multiple of 4 plus 1, found 8");
    }

    #[test]
    fn random_congruences_have_the_step_of_their_solutions() {
        let mut random = SplitMix(7);
        let mut found_steps = 0;
        for _ in 0..500 {
            let mut draw = |low, high| number(&mut random, low, high);
            let congruences: Vec<_> =
                (0..draw(1, 3)).map(|_| (draw(1, 9), draw(-9, 9), draw(1, 12))).collect();
            let holds = |size: &i64| congruences.iter().all(|(a, b, n)| (a * size + b) % n == 0);
            let solutions: Vec<i64> = (1..5000).filter(holds).collect();
            let guards = congruences.iter().map(|(a, b, n)| format!("Eq(Mod({a}*s0 + {b}, {n}), 0)"));
            match steps(&guards.collect::<Vec<_>>()).as_slice() {
                [(_, step, rest)] => {
                    let expected: Vec<i64> = (1..5000).filter(|n| n % step == *rest).collect();
                    assert_eq!(solutions, expected, "{congruences:?}");
                    found_steps += 1;
                }
                _ => assert!(solutions.is_empty() || solutions.len() == 4999, "{congruences:?}"),
            }
        }
        assert!(found_steps > 100);
    }

    #[test]
    fn random_guards_hold_in_their_steps_alone() {
        let mut random = SplitMix(11);
        let mut found_steps = 0;
        for _ in 0..1000 {
            let mut draw = |low, high| number(&mut random, low, high);
            let n = draw(1, 9);
            let m = draw(1, 9);
            let remainder = draw(0, 9);
            let offset = draw(0, 9);
            let size = format!("({}*s0 + {})", draw(1, 5), draw(0, 9));
            let (left, right) = match draw(0, 4) {
                0 => (format!("Mod({size}, {n})"), format!("{remainder}")),
                1 => (format!("{n}*({size}//{n})"), format!("{size} - {remainder}")),
                2 => (format!("s1*Mod({size}, {n}) + {offset}"), format!("{remainder}*s1 + {offset}")),
                3 => (format!("Mod({size}, {n}) + Mod(s0, {m})"), format!("{remainder}")),
                _ => (format!("{size} + {offset}"), format!("{} + {n}*({size}//{n})", remainder + offset)),
            };
            let steps = steps(&[format!("Eq({left}, {right})")]);
            found_steps += steps.len();
            let holds = |s0: i64| {
                let sizes = CallSizes::from([("s0".to_string(), s0), ("s1".to_string(), 2)]);
                evaluate_size(&left, &sizes).expect("a value")
                    == evaluate_size(&right, &sizes).expect("a value")
            };
            for (_, step, rest) in steps {
                for s0 in 1..100 {
                    assert_eq!(holds(s0), s0 % step == rest, "{left} == {right} at {s0}");
                }
            }
        }
        assert!(found_steps > 200, "{found_steps}");
    }
}
