#!/usr/bin/env bash
# Compiles and assembles the kernels of opara-candle for every architecture that builds are made for, without a GPU and
# without candle's kernels. The assembler (ptxas) checks registers and shared memory against the limits of the architecture.
# Fails if a kernel does not compile, exceeds these limits, or is empty.
#
#     eval "$(scripts/cuda-toolkit.sh)"
#     scripts/check-kernels.sh [ARCHITECTURE...]      # 80 90a unless given
#
# The PTX for 80 is assembled for 86 and 89, too: no source tells these three apart, which is checked.
#
# The kernels that are compiled at run time (chain.cuh) are checked for the same architectures by
# `cargo test --release --features cudnn --lib -- cuda::fuse`.
set -euo pipefail
cd "$(dirname "$0")/../opara-candle/kernels/src"

if grep -rnE '__CUDA_ARCH__[^0-9]*8[1-9]' --include='*.cu' --include='*.cuh' . >&2; then
    echo "compile for each of the architectures that these lines tell apart" >&2
    exit 1
fi
architectures=("$@")
[ ${#architectures[@]} -gt 0 ] || architectures=(80 90a)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

check() {
    local arch=$1 source=$2 out=$3 name target targets kernels
    name=$out/$(basename "$source" .cu).$arch
    targets=("$arch")
    [ "$arch" != 80 ] || targets+=(86 89)
    # As build.rs does it.
    nvcc --ptx -std=c++17 -O3 -Iinclude "-arch=sm_$arch" -o "$name.ptx" "$source" >"$name.log" 2>&1 || { cat "$name.log" >&2; return 1; }
    for target in "${targets[@]}"; do
        ptxas "-arch=sm_$target" -o "$name.cubin" "$name.ptx" >"$name.log" 2>&1 || { cat "$name.log" >&2; return 1; }
    done
    # A body of no instruction but the last one.
    if awk '/\.entry/ { name = $0; n = 0 } /^\t[a-z@]/ { n++ } /^}/ { if (name && n <= 1) { print name; bad = 1 }; name = "" } END { exit !bad }' \
        "$name.ptx" >&2; then
        echo "$source for sm_$arch: these kernels are empty" >&2
        return 1
    fi
    kernels=$(grep -c '\.entry' "$name.ptx" || true)
    echo "$source for sm_${targets[*]}: $kernels kernels"
}
export -f check

for arch in "${architectures[@]}"; do
    find . -name '*.cu' -printf '%P\0' | sort -z | while IFS= read -rd '' source; do printf '%s\0%s\0' "$arch" "$source"; done
done | xargs -0 -n 2 -P "$(nproc)" bash -c 'set -euo pipefail; check "$1" "$2" "$0"' "$out"
