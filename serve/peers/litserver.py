"""sentence-transformers under LitServe, with its dynamic batching, behind the path and messages of OpenAI's embeddings.

    litserver.py MODEL-FOLDER PORT DEVICE DTYPE [BATCH [SECONDS [PROCESSES]]]
"""
import sys

import litserve
import torch
from sentence_transformers import SentenceTransformer

FOLDER, PORT, DEVICE, DTYPE = sys.argv[1:5]
BATCH = int(sys.argv[5]) if len(sys.argv) > 5 else 64
SECONDS = float(sys.argv[6]) if len(sys.argv) > 6 else 0.005
PROCESSES = int(sys.argv[7]) if len(sys.argv) > 7 else 1


class Embeddings(litserve.LitAPI):
    def setup(self, device):
        self.model = SentenceTransformer(FOLDER, device=DEVICE, model_kwargs={"dtype": getattr(torch, DTYPE)})

    def decode_request(self, request):
        return request["input"]

    def batch(self, texts):
        return texts

    def predict(self, texts):
        return self.model.encode(texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)

    def unbatch(self, vectors):
        return list(vectors)

    def encode_response(self, vector):
        item = {"object": "embedding", "index": 0, "embedding": vector.astype("float32").tolist()}
        return {"object": "list", "data": [item]}


if __name__ == "__main__":
    api = Embeddings(max_batch_size=BATCH, batch_timeout=SECONDS, api_path="/v1/embeddings")
    accelerator = "cuda" if DEVICE.startswith("cuda") else "cpu"
    litserve.LitServer(api, accelerator=accelerator, workers_per_device=PROCESSES, timeout=60).run(
        port=int(PORT), host="127.0.0.1", log_level="warning", generate_client_file=False
    )
