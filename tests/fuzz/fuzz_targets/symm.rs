//! Reads any bytes as a program in text form.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| symmc_ir::fuzz::check(data));
