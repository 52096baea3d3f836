"""Opara's two algorithms (Chen et al., IEEE Transactions on Computers 2024) on any DAG.

A DAG maps each operator to the operators whose results it reads, in topological order.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Op = TypeVar("Op", bound=Hashable)
Dag = Mapping[Op, Sequence[Op]]


def chains(dag: Dag) -> dict[Op, int]:
    """Alg. 1: the stream of each operator, counted from 0.

    An operator continues the stream of the first of its predecessors that no other operator continues yet. Without such
    a predecessor it opens a new stream.
    """
    stream, continued, count = {}, set(), 0
    for op, reads in dag.items():
        before = next((other for other in reads if other not in continued), None)
        if before is None:
            stream[op] = count
            count += 1
        else:
            continued.add(before)
            stream[op] = stream[before]
    return stream


def launch_order(dag: Dag, is_compute: Callable[[Op], bool]) -> list[Op]:
    """Alg. 2 with equal demands: the launch order, alternately compute- and memory-intensive while both are ready.

    From each kind, the paper takes the operator with the least resource demand; here it is the one that has been ready
    the longest.
    """
    readers = {op: [] for op in dag}
    waiting = {op: len(set(reads)) for op, reads in dag.items()}
    for op, reads in dag.items():
        for other in set(reads):
            readers[other].append(op)

    ready = {True: deque(), False: deque()}
    for op, count in waiting.items():
        if count == 0:
            ready[is_compute(op)].append(op)
    order, compute = [], True
    while ready[True] or ready[False]:
        queue = ready[compute] or ready[not compute]
        op = queue.popleft()
        order.append(op)
        for reader in readers[op]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready[is_compute(reader)].append(reader)
        compute = not compute
    return order


def crossings(dag: Dag, stream: Mapping[Op, Hashable]) -> set[Op]:
    """The operators whose results are read on another stream, so that they need an event."""
    return {other for op, reads in dag.items() for other in reads if stream[other] != stream[op]}


def with_hazards(dag: Dag, touched: Mapping[Op, set], written: Mapping[Op, set]) -> dict[Op, list[Op]]:
    """Adds an edge to `dag` between two operators if one of them modifies a buffer in place that the other uses.

    `touched` maps an operator to its buffers, `written` to those that it modifies. Edges follow the order of `dag`,
    which is program order.
    """
    ordered, writer, readers = {}, {}, defaultdict(list)
    for op, reads in dag.items():
        before = []
        for buffer in touched[op]:
            if buffer in writer:
                before.append(writer[buffer])
            if buffer in written[op]:
                before.extend(readers.pop(buffer, ()))
                writer[buffer] = op
            else:
                readers[buffer].append(op)
        ordered[op] = list(dict.fromkeys((*reads, *before)))
    return ordered
