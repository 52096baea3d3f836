#!/usr/bin/env bash
# Checks the four published packages with the lowest versions of their dependencies that their manifests allow.
set -euo pipefail
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r opara-candle "$copy"
# The workspace of these four alone, without the root package.
sed -e '/^\[package\]/,$d' -e '/^default-members/d' \
    -e 's|^members = .*|members = ["opara-candle", "opara-candle/interpose", "opara-candle/kernels", "opara-candle/plan"]|' Cargo.toml > "$copy/Cargo.toml"

cd "$copy"
# `-Z direct-minimal-versions` is unstable; the environment variable lets a stable cargo take it.
RUSTC_BOOTSTRAP=1 cargo generate-lockfile -Z direct-minimal-versions
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/opara-candle/target}/minimal-versions \
    cargo check --locked -p opara-plan -p opara-interpose -p opara-kernels -p opara-candle --features opara-candle/svg,opara-candle/span-labels
