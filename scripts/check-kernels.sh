#!/usr/bin/env bash
# Compiles and assembles the kernels of opara-candle for every architecture that builds are made for, without a GPU and
# without candle's kernels. The assembler (ptxas) checks registers and shared memory against the limits of the architecture.
# Fails if a kernel does not compile, exceeds these limits, or is empty.
#
#     eval "$(scripts/cuda-toolkit.sh)"
#     scripts/check-kernels.sh [ARCHITECTURE...]      # 80 86 89 90a unless given
#
# The kernels that are compiled at run time (chain.cuh) are checked for the same architectures by
# `cargo test --release --features cudnn --lib -- cuda::fuse`.
set -euo pipefail
cd "$(dirname "$0")/../opara-candle/src"

architectures=("$@")
[ ${#architectures[@]} -gt 0 ] || architectures=(80 86 89 90a)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

check() {
    local arch=$1 source=$2 out=$3 name kernels
    name=$out/$(basename "$source" .cu).$arch
    # As build.rs does it.
    if ! { nvcc --ptx -std=c++17 -O3 -Icuda/include "-arch=sm_$arch" -o "$name.ptx" "$source" &&
        ptxas "-arch=sm_$arch" -o "$name.cubin" "$name.ptx"; } >"$name.log" 2>&1; then
        cat "$name.log" >&2
        return 1
    fi
    # A body of no instruction but the last one.
    if awk '/\.entry/ { name = $0; n = 0 } /^\t[a-z@]/ { n++ } /^}/ { if (name && n <= 1) { print name; bad = 1 }; name = "" } END { exit !bad }' \
        "$name.ptx" >&2; then
        echo "$source for sm_$arch: these kernels are empty" >&2
        return 1
    fi
    kernels=$(grep -c '\.entry' "$name.ptx" || true)
    echo "$source for sm_$arch: $kernels kernels"
}
export -f check

for arch in "${architectures[@]}"; do
    find . -name '*.cu' -printf '%P\0' | sort -z | while IFS= read -rd '' source; do printf '%s\0%s\0' "$arch" "$source"; done
done | xargs -0 -n 2 -P "$(nproc)" bash -c 'set -euo pipefail; check "$1" "$2" "$0"' "$out"
