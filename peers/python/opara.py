"""Opara's two algorithms (Chen et al., IEEE Transactions on Computers 2024) on any DAG.

A DAG is a mapping from each operator to the operators whose results it reads, in an order in which an operator comes
after all that it reads.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Op = TypeVar("Op", bound=Hashable)
Dag = Mapping[Op, Sequence[Op]]


def chains(dag: Dag) -> dict[Op, int]:
    """Alg. 1: the stream of each operator, counted from 0.

    An operator goes on in the stream of the first of those that it reads that nobody else goes on from yet. It opens a
    stream where there is none.
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
    """Alg. 2 with equal demands: the order of launches, in turns compute- and memory-intensive while both are ready.

    The paper takes from each kind the operator that demands the least resources; here it is the one that is ready for
    longest.
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
    """The operators that are read on another stream than their own, hence need an event."""
    return {other for op, reads in dag.items() for other in reads if stream[other] != stream[op]}


def with_hazards(dag: Dag, touched: Mapping[Op, set], written: Mapping[Op, set]) -> dict[Op, list[Op]]:
    """`dag` with an edge wherever one of two operators changes in place a buffer that the other touches.

    `touched` has the buffers that an operator is given, `written` those of them that it changes. Edges go the way of
    the order of `dag`, which is that of the program.
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
