//! A line that says what takes time, for a terminal that watches; anything else sees nothing of it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Runs `work` under a spinner with this message on standard error.
pub fn spin<T>(message: &str, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.set_message(message.to_string());
    bar.enable_steady_tick(Duration::from_millis(120));
    let result = work();
    bar.finish_and_clear();
    result
}
