"""Two replicas behind HAProxy, one killed in the midst and one drained and started again: no request without an answer or an
error of its own.

    proxy.py OPARA-SERVE HAPROXY
"""
import collections
import concurrent.futures
import http.client
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SERVE, HAPROXY = sys.argv[1:3]
PORTS, FRONT, REQUESTS, CLIENTS = (18101, 18102), 18100, 3000, 16
# Instead of a status.
CLOSED = 0
CONFIG = pathlib.Path(__file__).parents[3] / "deploy/haproxy.cfg"


def start(port):
    arguments = [SERVE, "--cpu", "--size", "tiny", "--port", str(port), "--drain-delay-seconds", "1.5"]
    return subprocess.Popen(arguments, stderr=subprocess.DEVNULL)


def wait_ready(port):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"nothing is ready on port {port}")


def ask(index):
    """The status of one request, after a look at its answer."""
    body = json.dumps({"model": "bert", "input": f"text {index}", "encoding_format": "float"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{FRONT}/v1/embeddings", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.load(reply)
            assert len(answer["data"]) == 1 and len(answer["data"][0]["embedding"]) == 32, answer
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
        # The proxy closes a connection whose replica was killed in the middle of its answer.
        return CLOSED


def main():
    replicas = {port: start(port) for port in PORTS}
    text = CONFIG.read_text()
    for example, port in (("8000", PORTS[0]), ("8001", PORTS[1])):
        text = text.replace(f"127.0.0.1:{example}", f"127.0.0.1:{port}")
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(text.replace("bind :8080", f"bind 127.0.0.1:{FRONT}"))
        config.flush()
        proxy = subprocess.Popen([HAPROXY, "-f", config.name, "-db"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            for port in PORTS:
                wait_ready(port)
            wait_ready(FRONT)
            done = threading.Semaphore(0)

            def counted(index):
                status = ask(index)
                done.release()
                return status

            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                answers = pool.map(counted, range(REQUESTS))

                def after(requests):
                    for _ in range(requests):
                        done.acquire()

                after(REQUESTS // 4)
                replicas[PORTS[0]].kill()
                replicas[PORTS[0]].wait()
                after(REQUESTS // 4)
                replicas[PORTS[0]] = start(PORTS[0])
                wait_ready(PORTS[0])
                # HAProxy looks every half second, and twice before it trusts a replica again.
                time.sleep(2)
                second = replicas[PORTS[1]]
                second.send_signal(signal.SIGTERM)
                assert second.wait(60) == 0, "a drained replica ends well"
                statuses = collections.Counter(answers)
        finally:
            proxy.kill()
            for replica in replicas.values():
                replica.kill()
    print("statuses behind the proxy:", dict(statuses))
    assert sum(statuses.values()) == REQUESTS, statuses
    assert set(statuses) <= {200, 502, 503, 504, CLOSED}, statuses
    failed = REQUESTS - statuses[200]
    # What a killed process had in its hands, at most one request a client; a drained one loses none.
    assert failed <= CLIENTS, statuses


main()
