#!/usr/bin/env bash
# Measures what docs/benchmarks.md shows, on all GPUs of this machine at once, and draws it:
#
#     scripts/benchmarks.sh FOLDER
#
# FOLDER gets a file for each model and type, tables and plots, and FOLDER/cells a file for each model, type and batch. A cell
# that is there is not measured again, so an interrupted run goes on where it ended. Cells that take the least time come first.
#
# BATCHES=1,8,32   PEERS: the program, if it is built   COMMIT: what it was built of   CACHE: of the frameworks' compilers
# GPUS="0 1": which to use, else all   LIMIT=3600: seconds after which no cell is begun   CELL=600: seconds after which a cell is given up
set -euo pipefail
folder=$(realpath -m "${1:?"give a folder for the results"}")
cd "$(dirname "$0")/.."
batches=${BATCHES:-1,8,32}
cache=${CACHE:-$folder/cache}
commit=${COMMIT:-$(git rev-parse --short HEAD)}
gpus=$(if [ -n "${GPUS:-}" ]; then tr ' ' '\n' <<<"$GPUS"; else nvidia-smi --query-gpu=index --format=csv,noheader; fi)
if [ -z "${PEERS:-}" ]; then
    cargo build --release -p opara-peers --features cudnn
    PEERS=${CARGO_TARGET_DIR:-target}/release/peers
fi
mkdir -p "$folder/cells" "$cache"
compiled="torch reduce-overhead,onnxruntime graph"
ours="candle,eager,sequential,dag,nimble,rammer,ios,critical-path,opara,tuned"
peers="torch eager,torch graph,torch opara,$compiled"
end=$(($(date +%s) + ${LIMIT:-3600}))

# Compilers first, since they would disturb the measurements. One process for each type and GPU in turn.
if [ ! -e "$cache/complete" ]; then
    for dtype in f32 f16; do
        gpu=$(echo "$gpus" | sed -n "$([ $dtype = f16 ] && echo '$' || echo 1)p")
        CUDA_VISIBLE_DEVICES=$gpu TORCHINDUCTOR_COMPILE_THREADS=4 "$PEERS" compile --cache "$cache" --dtypes $dtype --batches "$batches" \
            --jobs $(($(nproc) / 4 + 1)) --only "$compiled" >"$folder/compile-$dtype.log" 2>&1 &
    done
    wait
    touch "$cache/complete"
fi

# One cell. candle's own operators replay in BERT, T5 and DeepFM only: for one convolution in f16 candle launches hundreds of kernels,
# and building takes minutes. A call of NASNet on them takes too long to be repeated.
cell() {
    local gpu=$1 model=$2 dtype=$3 batch=$4 only=$ours,$peers
    local to=$folder/cells/$model-$dtype-$batch
    [[ $model =~ ^(bert|t5|deepfm)$ ]] && only="candle tuned,$only"
    [ "$model" = nasnet ] && only=${only#candle,}
    [ ! -e "$to.json" ] && mkdir "$to.running" 2>/dev/null || return 0
    if CUDA_VISIBLE_DEVICES=$gpu timeout "${CELL:-600}" "$PEERS" measure --cache "$cache" --models "$model" --dtypes "$dtype" \
        --batches "$batch" --calls 200 --turn 10 --seconds 0.7 --commit "$commit" --only "$only" -o "$to.part" </dev/null >"$to.log" 2>&1; then
        mv "$to.part" "$to.json"
    else
        echo "$model $dtype $batch failed: $to.log" >&2
    fi
    rmdir "$to.running"
}
rmdir "$folder"/cells/*.running 2>/dev/null || true
for gpu in $gpus; do
    for model in deepfm bert t5 googlenet inception nasnet; do
        for batch in ${batches//,/ }; do
            for dtype in f16 f32; do
                [ "$(date +%s)" -lt "$end" ] && cell "$gpu" $model $dtype "$batch"
            done
        done
    done &
done
wait

"$PEERS" merge "$folder"/cells/*.json -o "$folder"
"$PEERS" draw "$folder"/*.json -o "$folder" --baseline "torch graph"
