#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_explain::message::fuzz::fuzz_log(data));
