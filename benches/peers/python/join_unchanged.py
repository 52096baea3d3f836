"""Joins the lines of `--example zoo -- --unchanged` and of zoo.py into benches/results/unchanged.json. Needs no framework.

    python3 benches/peers/python/join_unchanged.py FILE... -o benches/results/unchanged.json --device NAME --driver VERSION --commit HASH

A row for each model, dtype and batch, in the order of the files (of the script: by name). What was not measured is null. What failed
in PyTorch is in `torch_errors`. Of two lines for the same number the last one counts.

With --onto the output keeps its head and what no line is about; rows of which our side is measured anew get a commit of their own, and
those of another device than the head's begin anew and name it.
"""

import argparse
import json
import sys
from pathlib import Path

COMMAND = "scripts/unchanged.sh FOLDER"
NOTE = (
    "Unchanged models of candle-transformers and the same architectures in PyTorch, a process a model and side; medians "
    "of GPU time. torch_graph_us, torch_channels_last_us and torch_compile_us are benches/peers/python/zoo.py's graph, channels-last "
    "and compile. The models by candle are this library's own, kept to candle's operators, and native_us is the same model without that. "
    "error and candle_error are those of the worst rewritten run, in roundings. accurate_build_ms is without the module's own passes. "
    "notes are those of building with accuracy: rules that stay out, and why. "
    "null was not measured or failed."
)
# Contestants of zoo.py.
TORCH = {"graph": "torch_graph_us", "channels-last": "torch_channels_last_us", "compile": "torch_compile_us"}
EMPTY = dict.fromkeys(
    ["exact_us", "accurate_us", *TORCH.values(), "native_us", "error", "candle_error", "accurate_build_ms"]
)


# What a row is of.
KEY = ("model", "dtype", "batch")


def rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def of_torch(row: dict, line: dict) -> None:
    column = TORCH.get(line["contestant"])
    if column is None:
        raise ValueError(f"unknown contestant {line['contestant']!r}")
    row[column] = line.get("us")
    errors = row.pop("torch_errors", {})
    errors.pop(line["contestant"], None)
    if "error" in line:
        errors[line["contestant"]] = line["error"]
    if errors:
        row["torch_errors"] = errors


def of_candle(row: dict, line: dict) -> None:
    for column in ("exact_us", "accurate_us", "native_us"):
        # What a call did not measure stays.
        if line.get(column) is not None:
            row[column] = rounded(line[column], 1)
    # Without an error the exact launches stayed.
    if line.get("accurate_us") is not None:
        row["error"], row["candle_error"] = rounded(line["error"], 3), rounded(line["candle_error"], 3)
    accurate = dict(line["reports"]).get("accurate")
    if accurate is not None:
        row["accurate_build_ms"] = round(sum(ms for stage, ms in accurate["build_ms"].items() if stage != "forward"))
        row["notes"] = accurate["notes"]


def joined(
    lines: list[dict], onto: list[dict] = (), commit: str | None = None, device: str | None = None
) -> list[dict]:
    """A row for each model, dtype and batch. Those that a commit or a device is given with are of that one."""
    rows = {tuple(row[name] for name in KEY): dict(row) for row in onto}
    for line in lines:
        key = {name: line[name] for name in KEY}
        at, named = tuple(key.values()), {} if device is None else {"device": device}
        if at in rows and rows[at].get("device") != device:
            del rows[at]
        row = rows.setdefault(at, key | EMPTY | named)
        if "contestant" in line:
            of_torch(row, line)
            continue
        of_candle(row, line)
        if commit is not None and line.get("accurate_us") is not None:
            row["commit"] = commit
    return list(rows.values())


def written(head: dict, rows: list[dict]) -> str:
    """JSON with a line for each row."""
    entries = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    entries.append('  "rows": [\n' + ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def read(path: Path) -> list[dict]:
    """The lines of a file. One that a killed process did not finish is left out."""
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            print(f"{path}: a line is not complete", file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    for name in ("device", "driver", "commit"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--iters", type=int, default=30)
    parser.add_argument("--onto", action="store_true", help="add to what the output has")
    args = parser.parse_args()
    lines = [line for path in args.files for line in read(path)]
    if args.onto:
        head = json.loads(args.output.read_text())
        rows = joined(lines, head.pop("rows"), args.commit, None if args.device == head["device"] else args.device)
        args.output.write_text(written(head, rows))
        return
    torch = sorted({line["torch"] for line in lines if "torch" in line})
    head = {"device": args.device, "driver": args.driver, "commit": args.commit, "torch": ", ".join(torch) or None}
    head |= {"command": COMMAND, "iters": args.iters, "note": NOTE}
    args.output.write_text(written(head, joined(lines)))


if __name__ == "__main__":
    sys.exit(main())
