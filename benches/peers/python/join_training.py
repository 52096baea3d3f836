"""Joins the lines of `--example training` and `train.py` to one row a model, dtype and batch: `scripts/training.sh` calls it.

Milliseconds of a step on the clock. `ours_ms` is the faster one of the exact and the accurate graph, `torch_best_ms` PyTorch's fastest
contestant, `candle_ms` candle with its own AdamW. The rest of a row says all of them.
"""

import argparse
import json
from pathlib import Path


def lines(folder: Path, side: str) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob(f"*.{side}.jsonl")) for line in path.read_text().splitlines() if line]


def rows(ours: list[dict], torch: list[dict]) -> list[dict]:
    """One row a cell, in the order of names."""
    cells = sorted({(line["model"], line["dtype"], line["batch"]) for line in ours + torch})
    return [row(cell, *(of_cell(side, cell) for side in (ours, torch))) for cell in cells]


def of_cell(side: list[dict], cell: tuple) -> dict[str, dict]:
    return {line["contestant"]: line for line in side if (line["model"], line["dtype"], line["batch"]) == cell}


def fastest(side: dict[str, dict], names: list[str]) -> dict:
    measured = [side[name] for name in names if side.get(name, {}).get("ms") is not None]
    return min(measured, key=lambda line: line["ms"], default={})


def row(cell: tuple, ours: dict[str, dict], torch: dict[str, dict]) -> dict:
    best, best_torch = fastest(ours, ["exact", "accurate"]), fastest(torch, list(torch))
    model, dtype, batch = cell
    return {
        "model": model,
        "dtype": dtype,
        "batch": batch,
        "gpu": next((line["device"] for line in torch.values()), None),
        "ours_ms": best.get("ms"),
        "torch_best_ms": best_torch.get("ms"),
        "candle_ms": ours.get("candle", {}).get("ms"),
        "peak_mib": best.get("peak_mib"),
        "torch_peak_mib": best_torch.get("peak_mib"),
        "of": {name: {key: line.get(key) for key in ("ms", "gpu_ms", "first_loss", "last_loss", "peak_mib", "failed") if key in line}
               for name, line in [*ours.items(), *((f"torch {name}", line) for name, line in torch.items())]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    args = parser.parse_args()
    ours, torch = lines(args.folder, "ours"), lines(args.folder, "torch")
    head = {"commit": args.commit, "torch": next((line["torch"] for line in torch), None), "command": "scripts/training.sh FOLDER"}
    body = ",\n    ".join(json.dumps(row) for row in rows(ours, torch))
    text = json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n    {body}\n  ]\n}}\n'
    args.output.write_text(text)


if __name__ == "__main__":
    main()
