//! Independent work on several threads, with results in the order of the items.
//!
//! Results do not depend on the number of threads. If the system provides fewer threads than there are cores,
//! or none, the remaining threads do the work. Worker threads end with the call, so that a process has a single
//! thread again when it forks. Threads that callers start ([`spawn_scoped`], [`spawn_detached`]) live as long
//! as their work.

use std::io::Result;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle, Scope, ScopedJoinHandle};

use memmap2::MmapOptions;

/// The memory that a thread needs at its start: its stack, with the standard library's size, and its first
/// allocations.
const THREAD_START_BYTES: usize = 4 << 20;

/// Starts a thread. Fails if the system provides none, or if there is no memory for it. A thread that finds no
/// memory at its start would end the process, so memory is mapped on trial before.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    MmapOptions::new().len(THREAD_START_BYTES).map_anon().map(drop)?;
    Builder::new().spawn_scoped(scope, work)
}

/// Starts a detached thread; fails as [`spawn_scoped`].
pub fn spawn_detached<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    MmapOptions::new().len(THREAD_START_BYTES).map_anon().map(drop)?;
    Builder::new().spawn(work)
}

/// The number of graph nodes below which starting threads costs more than it saves.
const MIN_PARALLEL_NODES: usize = 1000;

/// The results of `work` for each item. `nodes` is the total size of the items in graph nodes; small work stays
/// on this thread.
pub fn map<T: Send, R: Send>(items: Vec<T>, nodes: usize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let cores =
        if nodes < MIN_PARALLEL_NODES { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let helpers = cores.min(items.len()).saturating_sub(1);
    if helpers == 0 {
        return items.into_iter().map(work).collect();
    }
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        let mut done = Vec::new();
        while let Some((i, item)) = next() {
            done.push((i, work(item)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers).map_while(|_| spawn_scoped(scope, run).ok()).collect();
        let mut done = run();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_items() {
        for nodes in [0, MIN_PARALLEL_NODES] {
            let slow_first = |i: u64| {
                thread::sleep(Duration::from_micros(500 - 10 * i));
                i * i
            };
            let expected: Vec<u64> = (0..50).map(|i| i * i).collect();
            assert_eq!(map((0..50).collect(), nodes, slow_first), expected);
        }
        assert!(map(Vec::<u8>::new(), MIN_PARALLEL_NODES, |x| x).is_empty());
    }

    #[test]
    fn a_panic_of_an_item_is_that_of_the_call() {
        let call = || map(vec![1, 2, 3, 4], MIN_PARALLEL_NODES, |x| assert!(x < 3, "item {x}"));
        let panic = std::panic::catch_unwind(call).expect_err("an item panics");
        assert!(panic.downcast_ref::<String>().is_some_and(|m| m.starts_with("item ")));
    }
}
