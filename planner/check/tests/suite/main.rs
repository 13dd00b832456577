//! The rules of the check, each with plans that break it. They are written by hand, so that nothing but the check is tested.

mod rules;
mod sizes;
mod strangers;
mod sums;
