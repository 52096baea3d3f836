#!/usr/bin/env bash
# Prepares CUDA's compiler and link libraries on a machine that has neither a GPU nor NVIDIA's toolkit, so that the
# `cuda` and `cudnn` features build there. Programs that call the driver do not run there. Real GPU machines use their own
# toolkit.
#
#     eval "$(scripts/cuda-toolkit.sh [DIR])"     # DIR: ~/.cache/opara-candle/cuda-13.0 unless given
#
# Standard output is the environment to set; progress goes to standard error. A second call only prints.
set -euo pipefail

root=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/opara-candle/cuda-13.0}
packages=(
    nvidia-cuda-nvcc==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.*
    nvidia-cuda-cccl==13.0.* nvidia-cublas==13.0.* nvidia-cuda-nvrtc==13.0.* nvidia-cuda-cupti==13.0.*
    nvidia-curand nvidia-cudnn-cu13
)

prepare() {
    command -v python3 >/dev/null || { echo "cuda-toolkit: python3 with pip is needed to fetch nvcc" >&2; exit 1; }
    command -v gcc >/dev/null || { echo "cuda-toolkit: gcc is needed to build the driver's link stub" >&2; exit 1; }
    echo "cuda-toolkit: fetching CUDA 13.0's compiler and libraries into $root" >&2
    rm -rf "$root"
    mkdir -p "$root/site" "$root/lib"
    python3 -m pip install --quiet --no-deps --target "$root/site" "${packages[@]}" >&2

    local cu=$root/site/nvidia/cu13 dnn=$root/site/nvidia/cudnn file name
    ln -s "$cu/bin" "$root/bin"
    ln -s "$cu/nvvm" "$root/nvvm"
    cp -rs "$cu/include" "$root/include"
    cp -rs "$dnn/include/." "$root/include/"

    # Linkers look for the unversioned name; wheels carry only the versioned one.
    for file in "$cu"/lib/* "$dnn"/lib/*; do
        [ -f "$file" ] || continue
        name=$(basename "$file")
        ln -s "$file" "$root/lib/$name"
        case $name in *.so.*) ln -sf "$file" "$root/lib/${name%%.so.*}.so" ;; esac
    done

    stub
    ln -sf "$root/lib" "$root/lib64"
    touch "$root/.ready"
}

stub() {
    # libcuda.so comes with the driver. This one only serves to link: every function returns CUDA_ERROR_STUB_LIBRARY.
    grep -ohE '\bcu[A-Z][A-Za-z0-9_]*[ ]*\(' "$root/include/cuda.h" | tr -d ' (' | sort -u |
        sed 's/.*/int &(void) { return 34; }/' >"$root/stub.c"
    # cuda.h renames some functions with macros; the exported names carry the suffix.
    grep -ohE '#define cu[A-Z][A-Za-z0-9_]* +(__CUDA_API_PT[SDZ]+\()?cu[A-Za-z0-9_]+' "$root/include/cuda.h" |
        grep -oE 'cu[A-Za-z0-9_]+$' | sort -u | sed 's/.*/int &(void) { return 34; }/' >>"$root/stub.c"
    sort -u -o "$root/stub.c" "$root/stub.c"
    gcc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$root/lib/libcuda.so" "$root/stub.c"
}

[ -e "$root/.ready" ] || prepare
# A folder that was prepared when the stub's functions returned nothing at all.
grep -q 'return 34' "$root/stub.c" || stub
# Programs ask for the driver by its soname: with `lib` on LD_LIBRARY_PATH they start, as far as they never call it.
ln -sfn libcuda.so "$root/lib/libcuda.so.1"
cat <<ENV
export CUDA_HOME="$root" CUDA_PATH="$root" CUDA_ROOT="$root" CUDA_TOOLKIT_ROOT_DIR="$root"
export PATH="$root/bin:\$PATH"
export LIBRARY_PATH="$root/lib\${LIBRARY_PATH:+:\$LIBRARY_PATH}"
export CUDA_COMPUTE_CAP="\${CUDA_COMPUTE_CAP:-90}"
export CUDAFORGE_THREADS="\${CUDAFORGE_THREADS:-$(nproc)}"
ENV
