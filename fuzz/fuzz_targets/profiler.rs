#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_formats::fuzz::fuzz_profiler(data));
