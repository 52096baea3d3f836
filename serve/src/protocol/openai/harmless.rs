//! What requests say beside what they ask for.

/// Fields that change no answer: whose a request is, how it is paid for, and when it comes to its turn.
pub(super) const HARMLESS: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];
