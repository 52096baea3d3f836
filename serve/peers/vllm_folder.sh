#!/bin/bash
# Makes a folder with vLLM 0.24.0 for a machine without network: `PYTHONPATH` at that folder is all that is needed there. The
# machine must have Python 3.12, PyTorch 2.11.0 for CUDA 13 with torchvision and torchaudio, transformers 5, and their own needs.
#
#     vllm_folder.sh OUT [PARTS]
#
# With PARTS the folder is also packed there, in parts of at most 55 MB, which unpack.sh joins. Needs 1 GB of disk.
# PYTHON names the Python whose pip downloads (python3; any version), PART_MB and XZ_LEVEL the packing (55, 2).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
out=$1 parts=${2:-} python=${PYTHON:-python3} here=$(dirname "$0")
[ ! -e "$out" ] || { echo "$out is there already" >&2; exit 1; }

# pip takes a wheel's platform as it stands, not as "up to".
platforms=()
for number in 2_31 2_28 2_27 2_26 2_24 2_17 2014 2_12 2010 2_5 1; do
  case $number in 2_*) name=manylinux_$number ;; *) name=manylinux$number ;; esac
  platforms+=(--platform "${name}_x86_64")
done
"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile --only-binary=:all: \
  --implementation cp --python-version 3.12 "${platforms[@]}" --target "$out" -r "$here/vllm.txt"

cd "$out"
# Kernels for other models and GPUs. A dense model on Hopper runs FlashAttention 3 and cuBLAS, and vLLM looks for each of these
# and goes on without it (without _qutlass_C it warns).
rm -rf vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/_moe_C_stable_libtorch.abi3.so vllm/_flashmla_C.abi3.so \
  vllm/_qutlass_C.abi3.so vllm/third_party/deep_gemm vllm/third_party/fmha_sm100 vllm/vllm-rs
# Mistral's vocabularies, names of countries in other languages, and what only compilers, tests and shells read.
rm -rf mistral_common/data/tekken_*.json pycountry/locales bin share include
find . -depth -type d \( -name __pycache__ -o -name tests -o -name include \) -exec rm -rf {} +
find . -type f \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.cuh' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' \) -delete
cd - >/dev/null
du -sh "$out"

[ -n "$parts" ] || exit 0
mkdir -p "$parts"
rm -f "$parts"/vllm.part-*
# Sorted and without times, so that the same folder gives the same parts.
tar -C "$out" --sort=name --owner=0 --group=0 --mtime=@0 -c . | xz "-${XZ_LEVEL:-2}" -T2 |
  split -b "${PART_MB:-55}MB" -d - "$parts/vllm.part-"
(cd "$parts" && sha256sum vllm.part-* >vllm.sha256)
ls -l "$parts"
