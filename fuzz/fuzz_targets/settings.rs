//! Texts of allocator settings, PyTorch's and those of a choice.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    plimsoll_timeline::fuzz_settings(data);
    plimsoll_timeline::fuzz_choice(data);
});
