"""Joins the lines of `--example training` and `train.py` to one row a model, dtype and batch: `scripts/training.sh` calls it.

Milliseconds of a step on the clock. `ours_ms` is the faster one of the exact and the accurate graph, `torch_best_ms` PyTorch's fastest
contestant, `candle_ms` candle with its own AdamW. The rest of a row says all of them.

A contestant has a time if its losses are those of PyTorch's eager steps. `loss_gap` is the largest difference of two losses of one step,
over all steps, relative to the first loss; that of a row is of `ours_ms`. `TOLERANCES` says how large gaps may be. A row whose exact and
accurate graphs have none but larger gaps has no times, and `no_times` says why.
"""

import argparse
import json
from pathlib import Path

# Largest gaps by dtype: of the first loss, which no update has changed yet, and of all. AdamW moves each weight by the sign of its first
# gradient, so that rounding decides updates where a gradient is about zero. Losses of f64 say whether derivatives are equal.
TOLERANCES = {"f64": (1e-12, 1e-9), "f32": (1e-4, 5e-2), "f16": (1e-2, 1e-1), "bf16": (3e-2, 2e-1)}
OURS = ["exact", "accurate"]


def lines(folder: Path, side: str) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob(f"*.{side}.jsonl")) for line in path.read_text().splitlines() if line]


def rows(ours: list[dict], torch: list[dict]) -> list[dict]:
    """One row a cell, in the order of names."""
    cells = sorted({(line["model"], line["dtype"], line["batch"]) for line in ours + torch})
    return [row(cell, *(of_cell(side, cell) for side in (ours, torch))) for cell in cells]


def of_cell(side: list[dict], cell: tuple) -> dict[str, dict]:
    return {line["contestant"]: line for line in side if (line["model"], line["dtype"], line["batch"]) == cell}


def reference(torch: dict[str, dict]) -> tuple[str, list] | None:
    """The name and the losses of PyTorch's eager steps, or of its first contestant that has losses."""
    having = [name for name in ["torch eager", *torch] if torch.get(name, {}).get("losses")]
    return (having[0], torch[having[0]]["losses"]) if having else None


def gap(losses: list | None, right: list) -> float | None:
    """None if they are of other numbers of steps, or if one is not finite."""
    if not losses or len(losses) != len(right) or None in losses or None in right:
        return None
    return max(abs(a - b) for a, b in zip(losses, right)) / max(abs(right[0]), 1e-30)


def are_equal(line: dict, of_all: float | None, right: list, most: tuple) -> bool:
    return of_all is not None and of_all <= most[1] and gap(line["losses"][:1], right[:1]) <= most[0]


def fastest(side: dict[str, dict], names: list[str]) -> dict:
    measured = [side[name] for name in names if side.get(name, {}).get("ms") is not None]
    return min(measured, key=lambda line: line["ms"], default={})


def told(line: dict, of_loss: float | None) -> dict:
    """What a row says of a contestant."""
    losses = line.get("losses") or []
    of = {"steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1], "loss_gap": of_loss} if losses else {}
    return {key: (line | of)[key] for key in ("ms", "gpu_ms", *of, "peak_mib", "failed") if key in line | of}


def row(cell: tuple, ours: dict[str, dict], torch: dict[str, dict]) -> dict:
    model, dtype, batch = cell
    torch = {f"torch {name}": line for name, line in torch.items()}
    all_lines, right, most = ours | torch, reference(torch), TOLERANCES[dtype]
    gaps = {name: gap(line.get("losses"), right[1]) if right else None for name, line in all_lines.items()}
    # Where PyTorch has no losses, nothing is compared.
    equal = {name: line for name, line in all_lines.items() if not right or are_equal(line, gaps[name], right[1], most)}
    graphs = [name for name in OURS if ours.get(name, {}).get("ms") is not None]
    no_times = None
    if graphs and not any(name in equal for name in graphs):
        are_known = any(gaps[name] is not None for name in graphs)
        reason = f"differ by more than {most[1]} of the first one, or the first ones by more than {most[0]}" if are_known else "are of other steps, or not finite"
        no_times, equal = f"losses of our steps and of {right[0]} {reason}", {}
    best, best_torch = fastest(equal, OURS), fastest(equal, list(torch))
    # The fastest one's. If none agrees, the least.
    known = [gaps[name] for name in graphs if gaps[name] is not None and (no_times or ours[name] is best)]
    return {
        "model": model,
        "dtype": dtype,
        "batch": batch,
        "gpu": next((line["device"] for line in torch.values()), None),
        "ours_ms": best.get("ms"),
        "torch_best_ms": best_torch.get("ms"),
        "candle_ms": equal.get("candle", {}).get("ms"),
        "peak_mib": best.get("peak_mib"),
        "torch_peak_mib": best_torch.get("peak_mib"),
        "loss_gap": min(known, default=None),
        **({"no_times": no_times} if no_times else {}),
        "of": {name: told(line, gaps[name]) for name, line in all_lines.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    args = parser.parse_args()
    ours, torch = lines(args.folder, "ours"), lines(args.folder, "torch")
    head = {"commit": args.commit, "torch": next((line["torch"] for line in torch), None), "command": "scripts/training.sh FOLDER",
            "loss_gaps": TOLERANCES}
    body = ",\n    ".join(json.dumps(row) for row in rows(ours, torch))
    text = json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n    {body}\n  ]\n}}\n'
    args.output.write_text(text)


if __name__ == "__main__":
    main()
