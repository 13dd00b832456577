//! Ranks that are threads of a test.

use std::thread;

use symmc::Group;

/// The same work on every rank, each a thread.
pub fn on_ranks<T: Send>(ranks: u32, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let groups = Group::threads(ranks);
    thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| work(group))).collect();
        threads.into_iter().map(|t| t.join().expect("a rank")).collect()
    })
}

/// The memory of these numbers.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}
