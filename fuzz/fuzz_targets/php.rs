#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| artisand_fuzz::php::check(bytes));
