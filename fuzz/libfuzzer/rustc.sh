#!/usr/bin/env bash
# Cargo's RUSTC_WRAPPER: crates that read what strangers write are built with the coverage that libFuzzer follows, all others as they
# are. Sums of matrices and a runtime's threads would only be noise, and slow.
set -euo pipefail
read_by=' candle_core minijinja minijinja_contrib miniz_oxide opara_models opara_plan opara_serve opara_weights postcard prost '
read_by+=' safetensors serde serde_core serde_json serde_path_to_error tokenizers zip '
name='' crosses=''
previous=''
for argument in "$@"; do
    [ "$previous" = --crate-name ] && name=$argument
    [ "$argument" = --target ] && crosses=yes
    previous=$argument
done
# Build scripts and macros are for the host, without a target's name, and could not link the coverage.
if [ -n "$crosses" ] && [[ $read_by == *" $name "* ]]; then
    set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1
fi
exec "$@"
