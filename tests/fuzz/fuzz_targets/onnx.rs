//! Reads any bytes as an `.onnx` model.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    symmc_onnx::fuzz::check_bytes(data);
});
