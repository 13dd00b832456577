//! Reads any bytes as a `.pt2` archive, or as the JSON of a program within one.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    symmc_torch::fuzz::check_bytes(data);
});
