#!/usr/bin/env bash
# Runs the fuzz targets of fuzz/ with libFuzzer, on the stable compiler. A finding is a panic, arithmetic that wraps, an input that takes
# more than 10 seconds, or more than 512 MiB of memory. It ends the run, and its input lies in the target's folder of artifacts.
#
#     scripts/fuzz.sh [SECONDS [TARGET...]]     # 60 seconds each, all targets
#
# Corpora grow in FUZZ_CORPUS (~/.cache/opara-candle/fuzz unless set). Inputs of earlier findings are in fuzz/regressions.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(config gguf pickle request safetensors sentences template tokenizer trace)
corpus=${FUZZ_CORPUS:-${XDG_CACHE_HOME:-$HOME/.cache}/opara-candle/fuzz}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/libfuzzer/target}

# A target is named, so that build scripts and macros are built without coverage, which they cannot link.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTC_WRAPPER=$PWD/libfuzzer/rustc.sh cargo build --release --manifest-path libfuzzer/Cargo.toml --target "$host"

for target in "${targets[@]}"; do
    mkdir -p "$corpus/$target" "$corpus/seeds/$target" "$corpus/artifacts/$target" "regressions/$target"
    echo "fuzz $target"
    # The program writes the dictionary before libFuzzer reads it.
    FUZZ_TARGET=$target FUZZ_SEEDS=$corpus/seeds/$target "$CARGO_TARGET_DIR/$host/release/fuzz" \
        -dict="$corpus/seeds/$target.dict" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$corpus/artifacts/$target/" "$corpus/$target" "$corpus/seeds/$target" "regressions/$target"
done
