#!/usr/bin/env bash
# Times steps of training beside PyTorch on one GPU, and writes benches/results/training.json:
#
#     scripts/training.sh FOLDER [MODEL DTYPE BATCH]...
#
# FOLDER gets the lines of each cell and side. What is there is not measured again. Both sides begin with the weights and the batch of one
# file and take the same steps. A row without equal losses has no times. Without a GPU that compares losses, with PyTorch's eager steps.
#
# TRAINING: the program, if it is built   COMMIT: what it was built of   PYTHON=python3   OUTPUT: the file   STEPS=30: steps of each
# contestant   CELL=90: seconds for a cell on one side
set -uo pipefail
folder=$(realpath -m "${1:?"give a folder for the lines"}")
shift
cd "$(dirname "$0")/.."
commit=${COMMIT:-$(git rev-parse --short HEAD)}
python=${PYTHON:-python3}
steps=${STEPS:-30}
features=cudnn,zoo
cpu=()
nvidia-smi -L >/dev/null 2>&1 || { features=zoo cpu=(--cpu); }
if [ $# = 0 ]; then
    set -- mlp f32 64 resnet18-32 f32 32 resnet18-32 bf16 32 resnet18-32 bf16 128 resnet50-32 f32 32 resnet50-32 bf16 32 \
        mobilenet2-32 f32 32 mobilenet2-32 bf16 32 efficientnet0-32 f32 32 efficientnet0-32 bf16 32 \
        bert-base f32 8 bert-base bf16 8 bert-base bf16 32 gpt2 bf16 8 llama-1b-lora bf16 1 vit-small f32 32 vit-small bf16 256
fi
if [ -z "${TRAINING:-}" ]; then
    cargo build --release --features $features --example training || exit
    TRAINING=${CARGO_TARGET_DIR:-target}/release/examples/training
fi
mkdir -p "$folder"
while [ $# -ge 3 ]; do
    to=$folder/$1-$2-$3
    cell=(--only "$1" --dtype "$2" --batch "$3")
    [ -e "$to.ours.jsonl" ] ||
        timeout "${CELL:-90}" "$TRAINING" "${cell[@]}" --steps "$steps" --kernels --json "$to.ours.jsonl" >"$to.ours.log" 2>&1
    # A file of some models has gigabytes, so it goes as soon as PyTorch has had it.
    [ -e "$to.torch.jsonl" ] || {
        timeout "${CELL:-90}" "$TRAINING" "${cell[@]}" --start "$to.safetensors" >"$to.start.log" 2>&1 &&
            timeout "${CELL:-90}" "$python" benches/peers/python/train.py --models "$1" --dtype "$2" --batch "$3" --steps "$steps" \
                --start "$to.safetensors" "${cpu[@]}" >"$to.torch.jsonl" 2>"$to.torch.log"
        rm -f "$to.safetensors"
    }
    shift 3
done
"$python" benches/peers/python/join_training.py "$folder" -o "${OUTPUT:-benches/results/training.json}" --commit "$commit"
