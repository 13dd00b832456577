//! The time of a list of steps on two concurrent lanes: computation and communication.
//!
//! Each lane runs its steps in the order of the list. A step starts when its lane is free and the steps that it
//! waits for have ended. While both lanes run, each step progresses at the rate that the other leaves it: a
//! collective takes memory bandwidth and multiprocessors from computation, and a kernel that communicates waits
//! for multiprocessors that computation occupies. All arithmetic uses integers, so that every rank computes the
//! same times.

/// The unit of rates: full speed.
pub const FULL_RATE: u32 = 1024;

/// The duration in nanoseconds from which on computation is assumed to fill the machine: kernels of several
/// waves of blocks, between which a kernel that communicates finds no free multiprocessor. Shorter kernels end
/// before that matters.
pub const MACHINE_FILLING_NS: u64 = 50_000;

/// The most that a collective takes from concurrent computation that does not fill the machine. It and
/// `MIN_RATE_NEXT_TO_SHORT_KERNELS` fit the times of 60 plans of nine programs on two H200 (2026-11-30).
const MAX_SHARE_OF_SHORT_KERNELS: u32 = FULL_RATE * 3 / 5;

/// The least rate of a collective next to computation that does not fill the machine.
const MIN_RATE_NEXT_TO_SHORT_KERNELS: u32 = FULL_RATE * 9 / 10;

/// Converts microseconds to nanoseconds, at most a thousand seconds.
pub fn us_to_ns(us: f64) -> u64 {
    (us * 1000.0).clamp(0.0, 1e12) as u64
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedStep {
    /// Whether the step runs on the communication lane.
    pub communicates: bool,
    /// The time of the step alone, in nanoseconds.
    pub time: u64,
    /// For a step that computes: whether it occupies all multiprocessors for long ([`MACHINE_FILLING_NS`]).
    pub fills_machine: bool,
    /// For a step that communicates: the share of [`FULL_RATE`] that it takes from computation when it runs at
    /// full speed.
    pub compute_share: u32,
    /// For a step that communicates: its rate, relative to [`FULL_RATE`], next to computation that fills the
    /// machine. Next to other computation it is at least `MIN_RATE_NEXT_TO_SHORT_KERNELS`.
    pub rate: u32,
}

impl TimedStep {
    pub fn compute(time: u64) -> TimedStep {
        TimedStep {
            communicates: false,
            time,
            fills_machine: time >= MACHINE_FILLING_NS,
            compute_share: 0,
            rate: FULL_RATE,
        }
    }
}

impl TimedStep {
    /// The rates of this computation and of a collective while both run. A collective slows computation that
    /// fills the machine in proportion to its own rate. It takes at most a fixed share of other computation,
    /// which slows it slightly.
    fn concurrent_rates(&self, collective: &TimedStep) -> [u32; 2] {
        let compute_share = collective.compute_share.min(FULL_RATE);
        if !self.fills_machine {
            let rate = collective.rate.clamp(MIN_RATE_NEXT_TO_SHORT_KERNELS, FULL_RATE);
            return [FULL_RATE - compute_share.min(MAX_SHARE_OF_SHORT_KERNELS), rate];
        }
        let rate = collective.rate.clamp(1, FULL_RATE);
        [FULL_RATE - (u64::from(compute_share) * u64::from(rate) / u64::from(FULL_RATE)) as u32, rate]
    }
}

/// The start and end of each step, in nanoseconds from the start of the run, and totals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    pub spans: Vec<(u64, u64)>,
    /// For each step that communicates, the increase of the run's time because of it: the time in which it runs
    /// and nothing computes, plus the slowdown of the computation.
    pub exposed: Vec<u64>,
    /// For each step that communicates, the time in which computation runs concurrently.
    pub overlapped: Vec<u64>,
    /// The end of the last step.
    pub total: u64,
}

/// Simulates the timeline of these steps. `waits(i, f)` calls `f` with each step that step `i` waits for; all
/// of them are earlier in the list. A step starts at least `crossing` nanoseconds after the end of a step of
/// the other lane that it waits for. There is no crossing if the communicating one of both starts while nothing
/// computes.
pub fn simulate_timeline(
    steps: &[TimedStep],
    crossing: u64,
    waits: impl Fn(usize, &mut dyn FnMut(usize)),
) -> Timeline {
    let lanes = [false, true].map(|communicates| LaneState {
        steps: (0..steps.len()).filter(|&i| steps[i].communicates == communicates).collect(),
        next: 0,
        running: None,
        awaited: None,
    });
    let mut simulation = TimelineSimulation {
        timed: steps,
        crossing,
        lanes,
        ended: vec![false; steps.len()],
        inline: vec![false; steps.len()],
        out: Timeline {
            spans: vec![(0, 0); steps.len()],
            exposed: vec![0; steps.len()],
            overlapped: vec![0; steps.len()],
            total: 0,
        },
    };
    while simulation.advance(&waits) {}
    simulation.out
}

struct LaneState {
    steps: Vec<usize>,
    /// The number of steps that have started.
    next: usize,
    /// The running step, with the rest of its time at full speed.
    running: Option<(usize, u64)>,
    /// The last step of the other lane that the next step waits for, once known. The other lane runs in order,
    /// so all other steps that it waits for have ended by then.
    awaited: Option<usize>,
}

impl LaneState {
    /// The time until the running step ends at this rate, or `None` if it does not end.
    fn time_left(&self, rate: u32) -> Option<u64> {
        let (_, remaining) = self.running?;
        let scaled = u128::from(remaining) * u128::from(FULL_RATE);
        (rate > 0 || remaining == 0).then(|| scaled.div_ceil(u128::from(rate.max(1))) as u64)
    }
}

struct TimelineSimulation<'a> {
    timed: &'a [TimedStep],
    crossing: u64,
    lanes: [LaneState; 2],
    ended: Vec<bool>,
    /// The steps that communicate while nothing computes. They run in line with the computation, as on one
    /// lane.
    inline: Vec<bool>,
    out: Timeline,
}

impl TimelineSimulation<'_> {
    /// Starts the next step of an idle lane, if all steps that it waits for have ended.
    fn start_next(&mut self, l: usize, waits: &impl Fn(usize, &mut dyn FnMut(usize))) {
        let now = self.out.total;
        let computes = self.lanes[0].running.is_some();
        let lane = &mut self.lanes[l];
        let Some(&step) = lane.steps.get(lane.next).filter(|_| lane.running.is_none()) else { return };
        if lane.awaited.is_some_and(|w| !self.ended[w]) {
            return;
        }
        // The last unfinished step to wait for, and the last end of a step of the other lane that delays this
        // one by the crossing.
        let mut awaited = None;
        let mut crossed = None;
        waits(step, &mut |w| match self.ended.get(w) {
            Some(false) => awaited = awaited.max(Some(w)),
            Some(true) if self.timed[w].communicates != (l == 1) && !self.inline[w] => {
                crossed = crossed.max(Some((self.out.spans[w].1, w)));
            }
            _ => {}
        });
        lane.awaited = awaited;
        if awaited.is_some() {
            return;
        }
        self.inline[step] = l == 1 && !computes;
        let crossed = crossed.filter(|_| !self.inline[step]);
        let delay = crossed.map_or(0, |(end, _)| end.saturating_add(self.crossing).saturating_sub(now));
        if let Some((_, w)) = crossed.filter(|_| l == 0) {
            self.out.exposed[w] += delay;
        }
        lane.running = Some((step, self.timed[step].time.saturating_add(delay)));
        lane.next += 1;
        self.out.spans[step].0 = now.saturating_add(delay);
    }

    /// Advances to the next end of a step; returns false if nothing runs any more.
    fn advance(&mut self, waits: &impl Fn(usize, &mut dyn FnMut(usize))) -> bool {
        let now = self.out.total;
        for l in 0..self.lanes.len() {
            self.start_next(l, waits);
        }
        let rates = match (self.lanes[0].running, self.lanes[1].running) {
            (None, None) => return false,
            (Some((s, _)), Some((c, _))) => self.timed[s].concurrent_rates(&self.timed[c]),
            _ => [FULL_RATE; 2],
        };
        let passed = self.lanes.iter().zip(rates).filter_map(|(lane, rate)| lane.time_left(rate)).min();
        let passed = passed.unwrap_or(0);
        let mut computed = 0;
        let computes = self.lanes[0].running.is_some();
        self.out.total = now.saturating_add(passed);
        for (l, (lane, rate)) in self.lanes.iter_mut().zip(rates).enumerate() {
            let Some((step, remaining)) = lane.running else { continue };
            let done = (u128::from(passed) * u128::from(rate) / u128::from(FULL_RATE)) as u64;
            let over = lane.time_left(rate).is_some_and(|n| n <= passed);
            if l == 0 {
                computed = done.min(remaining);
            } else {
                self.out.exposed[step] += passed - computed.min(passed);
                self.out.overlapped[step] += if computes { passed } else { 0 };
            }
            lane.running = Some((step, remaining.saturating_sub(done))).filter(|_| !over);
            if over {
                self.ended[step] = true;
                self.out.spans[step].1 = self.out.total;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn communicate(time: u64, taken: u32, rate: u32) -> TimedStep {
        TimedStep { communicates: true, compute_share: taken, rate, ..TimedStep::compute(time) }
    }

    fn filling(time: u64) -> TimedStep {
        TimedStep { fills_machine: true, ..TimedStep::compute(time) }
    }

    fn of(steps: &[(TimedStep, &[usize])]) -> Timeline {
        let timed: Vec<TimedStep> = steps.iter().map(|s| s.0).collect();
        simulate_timeline(&timed, 0, |i, f| steps[i].1.iter().for_each(|&w| f(w)))
    }

    #[test]
    fn lanes_run_side_by_side_and_wait_for_each_other() {
        let t = of(&[
            (TimedStep::compute(100), &[]),
            (communicate(40, 0, FULL_RATE), &[]),
            (communicate(80, 0, FULL_RATE), &[0]),
            (TimedStep::compute(50), &[2]),
        ]);
        assert_eq!(t.spans, [(0, 100), (0, 40), (100, 180), (180, 230)]);
        assert_eq!((t.exposed, t.overlapped, t.total), (vec![0, 0, 80, 0], vec![0, 40, 0, 0], 230));
    }

    #[test]
    fn a_collective_slows_computation_and_is_slowed() {
        // At half speed each. The collective would take all; when it has ended, the computation continues at
        // full speed.
        let t = of(&[(filling(100), &[]), (communicate(20, FULL_RATE, FULL_RATE / 2), &[])]);
        assert_eq!(t.spans, [(0, 120), (0, 40)]);
        assert_eq!((t.exposed[1], t.total), (20, 120));
        // It leaves nothing: the computation starts over at its end.
        let t = of(&[(filling(100), &[]), (communicate(20, FULL_RATE, FULL_RATE), &[])]);
        assert_eq!((t.spans[0].1, t.exposed[1]), (120, 20));
        // Kernels that do not fill the machine keep a part of it.
        let t = of(&[(TimedStep::compute(300), &[]), (communicate(90, FULL_RATE, FULL_RATE / 4), &[])]);
        assert_eq!((t.spans[1].1, t.total), (101, 361));
    }

    #[test]
    fn communication_after_all_computation_is_exposed() {
        let t = of(&[(TimedStep::compute(10), &[]), (communicate(30, 0, FULL_RATE), &[])]);
        assert_eq!((t.exposed[1], t.total), (20, 30));
        assert_eq!(of(&[]).total, 0);
    }

    #[test]
    fn steps_without_time_end_at_once() {
        let t = of(&[
            (communicate(0, 0, FULL_RATE), &[]),
            (TimedStep::compute(0), &[0]),
            (TimedStep::compute(7), &[1]),
        ]);
        assert_eq!(t.total, 7);
    }

    #[test]
    fn crossing_between_lanes_takes_time_where_both_run() {
        let steps = [
            TimedStep::compute(100),
            communicate(40, 0, FULL_RATE),
            TimedStep::compute(100),
            TimedStep::compute(50),
            communicate(10, 0, FULL_RATE),
        ];
        // The first collective runs concurrently with step 2, the second one after all computation.
        let waits: [&[usize]; 5] = [&[], &[0], &[], &[1], &[3]];
        let t = simulate_timeline(&steps, 5, |i, f| waits[i].iter().for_each(|&w| f(w)));
        assert_eq!(t.spans, [(0, 100), (105, 145), (100, 200), (200, 250), (250, 260)]);
        // A step that waits for a collective that ran concurrently with others starts later by the crossing.
        let waits: [&[usize]; 4] = [&[], &[], &[1], &[]];
        let steps = [
            TimedStep::compute(10),
            communicate(40, 0, FULL_RATE),
            TimedStep::compute(50),
            TimedStep::compute(1),
        ];
        let t = simulate_timeline(&steps, 5, |i, f| waits[i].iter().for_each(|&w| f(w)));
        assert_eq!((t.spans[2].0, t.exposed[1], t.total), (45, 35, 96));
    }

    /// The work is proportional to steps and waits, even for a step that waits for very many steps.
    #[test]
    fn each_wait_is_looked_at_a_few_times() {
        for n in [1000, 100_000] {
            // Collectives, half of which the last computation waits for.
            let steps: Vec<TimedStep> = (0..n)
                .map(|i| if i % 2 == 0 { communicate(5, 0, FULL_RATE) } else { TimedStep::compute(7) })
                .collect();
            let looked = std::cell::Cell::new(0usize);
            let waits = |i: usize, f: &mut dyn FnMut(usize)| {
                let mut wait = |w: usize| {
                    looked.set(looked.get() + 1);
                    f(w);
                };
                match i {
                    i if i == n - 1 => (0..n - 1).step_by(2).for_each(&mut wait),
                    i if i > 2 => wait(i - 3),
                    _ => {}
                }
            };
            assert!(simulate_timeline(&steps, 3, waits).total > 0);
            assert!(looked.get() <= 4 * (n + n / 2), "{n}: {}", looked.get());
        }
    }

    /// The time of a run minus its computation is the exposed time.
    #[test]
    fn exposed_times_add_up() {
        let mut rng = symmc_support::random::SplitMix(9);
        for _ in 0..300 {
            let n = 1 + rng.below(40);
            let waits: Vec<Vec<usize>> = (0..n)
                .map(|i| (0..rng.below(3)).filter(|_| i > 0).map(|_| rng.below(i.max(1))).collect())
                .collect();
            let steps: Vec<TimedStep> = (0..n)
                .map(|_| match rng.one_in(3) {
                    true => {
                        communicate(rng.below(500) as u64, rng.below(1025) as u32, 1 + rng.below(1024) as u32)
                    }
                    false => TimedStep {
                        fills_machine: rng.one_in(2),
                        ..TimedStep::compute(rng.below(500) as u64)
                    },
                })
                .collect();
            let t =
                simulate_timeline(&steps, rng.pick(&[0, 7, 100]), |i, f| waits[i].iter().for_each(|&w| f(w)));
            let compute: u64 = steps.iter().filter(|s| !s.communicates).map(|s| s.time).sum();
            let exposed: u64 = t.exposed.iter().sum();
            // Rates are rounded at each of the ends.
            assert!(t.total.abs_diff(compute + exposed) <= 2 * n as u64, "{} {compute} {exposed}", t.total);
        }
    }

    /// Without contention the time is that of the longest path through lanes and waits.
    #[test]
    fn random_lists_take_the_time_of_their_longest_path() {
        let mut rng = symmc_support::random::SplitMix(7);
        for _ in 0..200 {
            let n = 1 + rng.below(30);
            let waits: Vec<Vec<usize>> = (0..n)
                .map(|i| (0..rng.below(3)).filter(|_| i > 0).map(|_| rng.below(i.max(1))).collect())
                .collect();
            let steps: Vec<TimedStep> = (0..n)
                .map(|_| TimedStep {
                    communicates: rng.one_in(3),
                    ..TimedStep::compute(rng.below(50) as u64)
                })
                .collect();
            let t = simulate_timeline(&steps, 0, |i, f| waits[i].iter().for_each(|&w| f(w)));
            let mut ends = vec![0u64; n];
            let mut free = [0u64; 2];
            for i in 0..n {
                let lane = usize::from(steps[i].communicates);
                let start = waits[i].iter().map(|&w| ends[w]).fold(free[lane], u64::max);
                ends[i] = start + steps[i].time;
                free[lane] = ends[i];
                assert_eq!(t.spans[i], (start, ends[i]));
            }
            assert_eq!(t.total, free[0].max(free[1]));
        }
    }
}
