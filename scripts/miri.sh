#!/usr/bin/env bash
# Runs the planners' tests under Miri, which finds undefined behaviour of all code that they reach, and installs it. It takes a
# thousand times as long as the tests alone, so these tests have few and small cases.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo +nightly miri --version >/dev/null 2>&1 ||
    rustup toolchain install nightly --profile minimal --component miri,rust-src --allow-downgrade --no-self-update
tests=(
    device:: duration:: fusion:: graph:: latency:: optimize:: profile:: timeline:: schedule::critical_path schedule::dag
    # Of the trace file, those that read a small one.
    file::tests::a_trace_that file::tests::files_are file::tests::functions_and
)
# Tests read files and measure times.
export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=${PROPTEST_CASES:-3}
# The one that is left out takes as long as all others together.
cargo +nightly miri test -p opara-plan --lib -- "${tests[@]}" --skip fused_ops_leave_the_same_memory
