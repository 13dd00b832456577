//! Reads any bytes as a plan, and checks it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| symmc_check::fuzz::check(data));
