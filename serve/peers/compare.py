"""Vectors of two servers of /v1/embeddings for the same texts: fails if a cosine is below 0.999.

    compare.py URL URL
"""
import json
import sys
import urllib.request

TEXTS = ["a cat sleeps on the windowsill", "water and time", "the music of the city " * 20, "x", "people in the house " * 60]


def vector(url, text):
    body = json.dumps({"model": "bert", "input": text, "encoding_format": "float"}).encode()
    request = urllib.request.Request(url + "/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["data"][0]["embedding"]


for text in TEXTS:
    a, b = (vector(url, text) for url in sys.argv[1:3])
    cosine = sum(x * y for x, y in zip(a, b))
    worst = max(abs(x - y) for x, y in zip(a, b))
    print(f"{len(text):>5} bytes: cosine {cosine:.6f}, largest difference {worst:.2e}")
    assert cosine > 0.999, (text, cosine)
