#!/bin/bash
# Joins the parts of vllm_folder.sh and unpacks them. Parts may lie in several folders. Without the sums of all parts it fails.
#
#     unpack.sh PARTS.. TARGET
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
target=${*: -1}
sums=()
for folder in "${@:1:$#-1}"; do
  [ ! -e "$folder/vllm.sha256" ] || sums=("$folder/vllm.sha256")
done
[ ${#sums[@]} = 1 ] || { echo "vllm.sha256 is in none of these folders" >&2; exit 1; }
files=()
while read -r sum name; do
  found=
  for folder in "${@:1:$#-1}"; do
    [ ! -e "$folder/$name" ] || found=$folder/$name
  done
  [ -n "$found" ] || { echo "$name is missing" >&2; exit 1; }
  echo "$sum  $found" | sha256sum --check --quiet
  files+=("$found")
done <"${sums[0]}"
mkdir -p "$target"
cat "${files[@]}" | xz -d -T0 | tar -x -C "$target"
du -sh "$target"
