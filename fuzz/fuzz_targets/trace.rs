#![no_main]
//! A trace file.

use opara_plan::trace::Trace;

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("trace"), |bytes: &[u8]| {
    if let Ok(trace) = Trace::read_from(bytes) {
        let mut written = Vec::new();
        trace.write_to(&mut written).expect("a trace that was read can be written");
        let again = Trace::read_from(written.as_slice()).expect("a trace that was written can be read");
        assert_eq!(format!("{trace:?}"), format!("{again:?}"));
    }
});
