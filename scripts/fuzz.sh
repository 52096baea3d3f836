#!/usr/bin/env bash
# Runs the fuzz targets of fuzz/ on the stable compiler. A finding is a panic, arithmetic that wraps, an input that takes more than
# 10 seconds, or more than 2 GiB of memory. It ends the run, and its input lies in the target's folder of artifacts.
#
#     scripts/fuzz.sh [SECONDS [TARGET...]]     # 60 seconds each, all targets
#
# Corpora grow in FUZZ_CORPUS (~/.cache/opara-candle/fuzz unless set). Inputs of earlier findings are in fuzz/regressions.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(config gguf pickle request safetensors template tokenizer trace)
corpus=${FUZZ_CORPUS:-${XDG_CACHE_HOME:-$HOME/.cache}/opara-candle/fuzz}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz

# Coverage of edges and comparisons, as cargo-fuzz sets it without a sanitizer: those need a nightly compiler.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# A target is named, so that build scripts and macros are built without coverage, which they cannot link.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --locked --target "$host" --bins
bin=$CARGO_TARGET_DIR/$host/release

for target in "${targets[@]}"; do
    mkdir -p "$corpus/$target" "$corpus/seeds/$target" "$corpus/artifacts/$target" "regressions/$target"
    echo "fuzz $target"
    FUZZ_SEEDS=$corpus/seeds/$target "$bin/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 \
        -artifact_prefix="$corpus/artifacts/$target/" "$corpus/$target" "$corpus/seeds/$target" "regressions/$target"
done
