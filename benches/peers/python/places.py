"""Files and folders of the repository that these programs read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# The measured models as PyTorch has them.
REFERENCE = ROOT / "models/tests/reference"
# Published sizes of decoders.
SIZES = ROOT / "models/src/decoder/sizes.json"
# The entries of the zoo.
ZOO = ROOT / "benches/zoo"
UNCHANGED = ROOT / "benches/results/unchanged.json"
PLACES = (REFERENCE, SIZES, ZOO, UNCHANGED)
