#!/usr/bin/env bash
# Measures unchanged models of candle-transformers (benches/zoo/) beside PyTorch, on all GPUs of this machine, and writes
# benches/results/unchanged.json:
#
#     scripts/unchanged.sh FOLDER
#
# The models by candle are this library's own, kept to candle's operators, beside themselves on the library's; PyTorch does not run them.
#
# FOLDER gets the lines and the log of each model, dtype and side. What is there is not measured again, so another call goes on where
# one ended. A side that fails leaves null in its row.
#
# F16, BF16, F32: models, in the order of importance   BATCH=1   OUTPUT: the file   GPUS="0 1": which to use, else all
# ZOO: the program, if it is built   COMMIT: what it was built of   PYTHON=python3   CACHE: of PyTorch's compiler, else in FOLDER
# NUMERICS=exact,accurate: what to measure of ours   LIMIT=520: seconds after which everything ends   CELL=100: seconds for a model on one side
set -uo pipefail
folder=$(realpath -m "${1:?"give a folder for the lines"}")
cd "$(dirname "$0")/.."
f16=${F16-resnet18 resnet50 vgg16 convnext-tiny mobilenetv4-small vit-base beit-base dinov2-small eva2-base hiera-tiny bert-base \
qwen2-0.5b sd-1.5-unet-64 sd-1.5-vae-decoder-64 sd-1.5-unet sd-1.5-vae-decoder efficientnet-b0 clip-vit-b32-vision siglip-base \
segformer-b0 t5-small-encoder bert-by-candle t5-by-candle deepfm-by-candle googlenet-by-candle inception-by-candle nasnet-by-candle}
f32=${F32-resnet18 resnet50 vgg16 mobilenetv4-small vit-base bert-base modernbert-base whisper-tiny-encoder}
bf16=${BF16-bert-base vit-base qwen2-0.5b}
batch=${BATCH:-1}
commit=${COMMIT:-$(git rev-parse --short HEAD)}
python=${PYTHON:-python3}
if [ -z "${ZOO:-}" ]; then
    cargo build --release --features cudnn,zoo --example zoo || exit
    ZOO=${CARGO_TARGET_DIR:-target}/release/examples/zoo
fi
gpus=$(if [ -n "${GPUS:-}" ]; then tr ' ' '\n' <<<"$GPUS"; else nvidia-smi --query-gpu=index --format=csv,noheader; fi)
mkdir -p "$folder"
export TORCHINDUCTOR_CACHE_DIR=${CACHE:-$folder/cache} TORCHINDUCTOR_COMPILE_THREADS=2
end=$(($(date +%s) + ${LIMIT:-520}))
cells=$(for model in $f16; do echo "$model f16"; done; for model in $bf16; do echo "$model bf16"; done
    for model in $f32; do echo "$model f32"; done)

# Runs a command for at most CELL seconds, and not beyond the end of the script. 124 or 137 if it was stopped.
limited() {
    local left=$((end - $(date +%s)))
    [ $left -gt 0 ] || return 124
    timeout -k 5 $((left < ${CELL:-100} ? left : ${CELL:-100})) "$@" </dev/null
}

torch() {
    [[ $1 != *-by-candle ]] || return 0
    limited "$python" benches/peers/python/zoo.py --models "$1" --dtypes "$2" --batch "$batch" "${@:3}"
}

# Compilers first, since they would disturb the measurements: several processes at once on each GPU, whose numbers do not count, for
# at most half of the time and the time of a model.
compile() {
    local to=$folder/$1-$2-$batch
    [ -e "$to.compiled" ] || [ -e "$to.done" ] && return
    torch "$1" "$2" --only compile --iters 1 >"$to.compile.log" 2>&1 && touch "$to.compiled"
}
jobs=$(($(nproc) / 2 + 1))
half=$((end - ${LIMIT:-520} / 2))
at=0
while read -r model dtype; do
    while [ "$(jobs -rp | wc -l)" -ge $jobs ]; do wait -n; done
    [ "$(date +%s)" -lt $half ] || break
    at=$((at % $(wc -w <<<"$gpus") + 1))
    CUDA_VISIBLE_DEVICES=$(sed -n ${at}p <<<"$gpus") compile "$model" "$dtype" &
done <<<"$cells"
wait

# Both sides of a model on one GPU.
cell() {
    local to=$folder/$1-$2-$batch
    [ ! -e "$to.done" ] && mkdir "$to.running" 2>/dev/null || return
    limited "$ZOO" --only "$1" --dtype "$2" --batch "$batch" --iters 30 --unchanged "${NUMERICS:-exact,accurate}" --json "$to.candle.jsonl" \
        >"$to.candle.log" 2>&1
    local candle=$?
    torch "$1" "$2" --json "$to.torch.jsonl" >"$to.torch.log" 2>&1
    if [[ " $candle $? " =~ " 124 "|" 137 " ]]; then echo "$1 $2 was stopped" >&2; else touch "$to.done"; fi
    rmdir "$to.running"
}
rmdir "$folder"/*.running 2>/dev/null
for gpu in $gpus; do
    while read -r model dtype && [ "$(date +%s)" -lt $end ]; do
        CUDA_VISIBLE_DEVICES=$gpu cell "$model" "$dtype"
    done <<<"$cells" &
done
wait

# Of earlier calls with other models or batches, too.
shopt -s nullglob
lines=("$folder"/*.jsonl)
[ ${#lines[@]} -gt 0 ] || { echo "nothing was measured: see $folder/*.log" >&2 && exit 1; }
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
"$python" benches/peers/python/join_unchanged.py "${lines[@]}" -o "${OUTPUT:-benches/results/unchanged.json}" --device "${gpu%, *}" \
    --driver "${gpu##*, }" --commit "$commit"
