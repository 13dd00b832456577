//! Random delays from a seed, before and after a rank accesses a peer, if the run asks for chaos.
//!
//! The same seed, rank, run, step and access always give the same delay. Most accesses have no delay; some
//! spin, some yield the processor, few sleep for up to two milliseconds.

use std::time::{Duration, Instant};

use symmc_support::random::SplitMix;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Chaos {
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delay {
    None,
    Spin(Duration),
    Yield(u32),
    Sleep(Duration),
}

impl Chaos {
    pub fn new(seed: u64, rank: u32) -> Self {
        Chaos { seed: mix_bits(seed ^ mix_bits(u64::from(rank) + 1)) }
    }

    pub fn delay(&self, run: u64, step: usize, touch: u32) {
        match self.choose_delay(run, step, touch) {
            Delay::None => {}
            Delay::Spin(time) => {
                let start = Instant::now();
                while start.elapsed() < time {
                    std::hint::spin_loop();
                }
            }
            Delay::Yield(times) => (0..times).for_each(|_| std::thread::yield_now()),
            Delay::Sleep(time) => std::thread::sleep(time),
        }
    }

    fn choose_delay(&self, run: u64, step: usize, touch: u32) -> Delay {
        let h = mix_bits(self.seed ^ mix_bits(run ^ mix_bits(step as u64 ^ mix_bits(u64::from(touch)))));
        let amount = h >> 32;
        match h % 100 {
            0..70 => Delay::None,
            70..85 => Delay::Spin(Duration::from_nanos(amount % 5_000)),
            85..94 => Delay::Yield(1 + (amount % 4) as u32),
            94..99 => Delay::Sleep(Duration::from_micros(amount % 200)),
            _ => Delay::Sleep(Duration::from_micros(amount % 2_000)),
        }
    }
}

/// A bijection that scatters all bits.
fn mix_bits(x: u64) -> u64 {
    SplitMix(x).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_repeat_and_differ_by_rank() {
        let delays = |rank| {
            let chaos = Chaos::new(7, rank);
            (0..200).map(|t| chaos.choose_delay(1, 2, t)).collect::<Vec<_>>()
        };
        assert_eq!(delays(0), delays(0));
        assert_ne!(delays(0), delays(1));
        assert!(delays(0).iter().filter(|&&d| d == Delay::None).count() > 100);
        assert!(delays(0).iter().any(|d| matches!(d, Delay::Sleep(_))));
    }
}
