//! A timeline in the Chrome trace-event format, which Perfetto and `chrome://tracing` open.

use serde_json::{json, Value};

use super::Timeline;
use crate::profile::profile;
use crate::trace::Trace;

impl Timeline {
    /// The timeline of this trace's ops as JSON, with one thread per stream and one complete event per op.
    pub fn to_chrome_json(&self, trace: &Trace) -> String {
        let profile = profile(trace);
        let metadata = |stream: usize, name: &str, args: Value| json!({ "ph": "M", "name": name, "pid": 0, "tid": stream, "args": args });
        let streams = (0..self.streams()).flat_map(|stream| {
            [
                metadata(stream, "thread_name", json!({ "name": format!("stream {stream}") })),
                metadata(stream, "thread_sort_index", json!({ "sort_index": stream })),
            ]
        });
        let device = json!({ "ph": "M", "name": "process_name", "pid": 0, "args": { "name": trace.device.name } });
        let ops = self.spans.iter().filter_map(|span| {
            let (op, cost) = (trace.ops.get(span.op)?, profile.get(span.op)?);
            Some(json!({
                "ph": "X",
                "name": op.name,
                "cat": cost.class,
                "ts": span.start_us,
                "dur": span.end_us - span.start_us,
                "pid": 0,
                "tid": span.stream,
                "args": { "op": span.op, "label": op.label, "class": cost.class, "demand": cost.demand },
            }))
        });
        let events: Vec<Value> = std::iter::once(device).chain(streams).chain(ops).collect();
        json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
    }
}
