"""Writes torch's results for full-size models with seeded weights (seed 0) and seeded inputs, for `examples/parity.rs`.

Usage: python3 full.py FOLDER [MODEL...]
       cargo run --release --features cudnn --example parity -- FOLDER

Writes FOLDER/MODEL.DTYPE.safetensors for each of the models (all without a list) and for f32 and f16; TF32 is off. It
runs on the GPU where there is one. Inputs are those of `torch_seeded.py`.
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

from torch_seeded import fill, ids, images

SEED = 0


def bert(device, dtype):
    """BERT-base: two sentences of 128 tokens. Names start with `bert.`, as in checkpoints of the whole."""
    import transformers

    model = fill(transformers.BertForMaskedLM(transformers.BertConfig()), SEED).bert.to(device, dtype)
    return {"hidden": model(input_ids=ids((2, 128), 30522).to(device)).last_hidden_state}


def t5(device, dtype):
    """T5-small: the encoder on two sentences of 128 tokens, then the decoder on 16 tokens each."""
    import transformers

    config = transformers.T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8)
    model = fill(transformers.T5ForConditionalGeneration(config), SEED).to(device, dtype)
    source, target = ids((2, 128), 32000).to(device), ids((2, 16), 32000).to(device)
    out = model(input_ids=source, decoder_input_ids=target, use_cache=False)
    return {"encoder": out.encoder_last_hidden_state, "logits": out.logits}


def googlenet(device, dtype):
    import torchvision

    model = torchvision.models.GoogLeNet(aux_logits=False, init_weights=False)
    model = fill(model, SEED, gain=2**0.5).to(device, dtype)
    return {"logits": model(images(SEED, (2, 3, 224, 224)).to(device, dtype))}


def inception_v3(device, dtype):
    import torchvision

    model = torchvision.models.Inception3(aux_logits=False, init_weights=False)
    model = fill(model, SEED, gain=2**0.5).to(device, dtype)
    return {"logits": model(images(SEED, (2, 3, 299, 299)).to(device, dtype))}


def nasnet(device, dtype):
    """NASNet-A Large."""
    import timm

    model = fill(timm.create_model("nasnetalarge"), SEED, gain=1.2).to(device, dtype)
    return {"logits": model(images(SEED, (2, 3, 331, 331)).to(device, dtype))}


class DeepFM(torch.nn.Module):
    def __init__(self, fields=26, vocab=10000, dim=16):
        super().__init__()
        self.second = torch.nn.ModuleList([torch.nn.Embedding(vocab, dim) for _ in range(fields)])
        self.first = torch.nn.ModuleList([torch.nn.Embedding(vocab, 1) for _ in range(fields)])
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(fields * dim, 400),
            torch.nn.ReLU(),
            torch.nn.Linear(400, 400),
            torch.nn.ReLU(),
            torch.nn.Linear(400, 1),
        )

    def forward(self, x):
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.second)], 1)
        linear = sum(table(x[:, i]) for i, table in enumerate(self.first))
        fm = 0.5 * ((e.sum(1) ** 2) - (e**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(linear + fm + self.deep(e.flatten(1)))


def deepfm(device, dtype):
    """64 rows of 26 fields with 10,000 values each."""
    return {"probability": fill(DeepFM(), SEED).to(device, dtype)(ids((64, 26), 10000).to(device))}


MODELS = {f.__name__: f for f in (bert, t5, googlenet, inception_v3, nasnet, deepfm)}


def main():
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:] or MODELS
    folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in names:
        for dtype, suffix in ((torch.float32, "f32"), (torch.float16, "f16")):
            with torch.no_grad():
                outputs = MODELS[name](device, dtype)
            outputs = {key: value.cpu().contiguous() for key, value in outputs.items()}
            save_file(outputs, folder / f"{name}.{suffix}.safetensors")
            for key, value in outputs.items():
                print(f"{name:14}{suffix:6}{key:14}{tuple(value.shape)}  max {value.float().abs().max():.4g}", flush=True)


if __name__ == "__main__":
    main()
