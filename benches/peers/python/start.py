"""Which tensor of a start file is which weight of a PyTorch module. `--example training -- --start FILE` writes such files.

Needs no framework.
"""

import re
from dataclasses import dataclass

Shapes = dict[str, tuple[int, ...]]
BATCH = ("batch.0", "batch.1")


class StartError(Exception):
    """The file is not of this module."""


@dataclass(frozen=True)
class Rules:
    """From names of the file to names of the module. A name that no rename matches is the same in both."""

    # A pattern of whole names of the file, and the module's name. Behind `#` is the number of a part, along the first axis.
    renames: tuple[tuple[str, str], ...] = ()
    # Whole names of the module whose matrices lie the other way in the file.
    transposed: str | None = None

    def renamed(self, name: str) -> tuple[str, int]:
        """The module's name, and the number of the part."""
        for pattern, to in self.renames:
            if match := re.fullmatch(pattern, name):
                name = match.expand(to)
                break
        name, _, part = name.partition("#")
        return name, int(part or 0)

    def is_transposed(self, name: str) -> bool:
        return self.transposed is not None and re.fullmatch(self.transposed, name) is not None


def placed(rules: Rules, given: Shapes, wanted: Shapes) -> dict[str, list[str]]:
    """For each weight of the module the names of its parts in the file, in order.

    Every weight must be given, every tensor used, and shapes equal; a `StartError` names all that is not so.
    """
    parts: dict[str, dict[int, str]] = {}
    for name in given:
        to, part = rules.renamed(name)
        if part in parts.setdefault(to, {}):
            raise StartError(f"two tensors of the file are part {part} of `{to}`: `{parts[to][part]}` and `{name}`")
        parts[to][part] = name
    of = {to: [names for _, names in sorted(named.items())] for to, named in parts.items()}
    missing, unused = sorted(wanted.keys() - of.keys()), sorted(name for to in of.keys() - wanted.keys() for name in of[to])
    wrong = [
        f"`{to}` has the shape {shape} and the file's is {other}"
        for to, shape in wanted.items()
        if to in of and (other := shape_of(rules, to, [given[name] for name in of[to]])) != shape
    ]
    told = [f"the file has no tensor for {listed(missing)}"] if missing else []
    told += [f"the module has no weight for {listed(unused)}"] if unused else []
    if told + wrong:
        raise StartError("; ".join(told + wrong))
    return of


def shape_of(rules: Rules, name: str, parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of parts behind each other."""
    if not parts[0]:
        return ()
    shape = (sum(part[0] for part in parts), *parts[0][1:])
    return shape[::-1] if rules.is_transposed(name) else shape


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
