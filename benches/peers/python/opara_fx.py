"""Opara over torch.fx: the operators of a module on several streams, captured into one CUDA graph.

Two things differ from the paper: all operators are assumed to have equal resource demand (`opara.launch_order`), and
compute-intensive operators are recognized by name. The input and the weights exist beforehand and have no stream.
"""

from collections.abc import Callable

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

import capture
import opara

# Compute-bound operators and module classes, in lower case; all others are assumed to be memory-bound.
COMPUTE = {
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    "scaled_dot_product_attention",
}
# Checks that torch.export leaves in a graph. They launch nothing, but would occupy positions in chains.
CHECKS = {"_assert_tensor_metadata"}


def trace(model: torch.nn.Module, x: torch.Tensor, symbolic: bool) -> tuple[GraphModule, str]:
    """The graph of `model` and the tracer's name: symbolic_trace if `symbolic` and possible, else torch.export."""
    module = traced_by = None
    if symbolic:
        try:
            module, traced_by = torch.fx.symbolic_trace(model), "symbolic_trace"
        except Exception:  # The model's code may raise anything when it is given a proxy.
            pass
    if module is None:
        # Guards would become operators in the graph, and this input is the only one.
        module, traced_by = torch.export.export(model, (x,)).module(check_guards=False), "torch.export"
    for n in list(module.graph.nodes):
        if is_call(n) and operator(module, n) in CHECKS:
            module.graph.erase_node(n)
    if traced_by == "torch.export":
        # Removes inputs of the checks. Not after symbolic_trace, whose nodes do not show in-place operators.
        module.graph.eliminate_dead_code()
    return module, traced_by


def is_call(node: Node) -> bool:
    return node.op.startswith("call_")


def operator(module: GraphModule, node: Node) -> str:
    """The name of a node's operator or module class, in lower case and without the overload."""
    if node.op == "call_module":
        return type(module.get_submodule(node.target)).__name__.lower()
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name.split(".")[0].lower()


class Plan:
    """The operators of a module, their dependencies, their streams, and the launch order."""

    def __init__(self, module: GraphModule, x: torch.Tensor):
        self.module = module
        self.ready = [n for n in module.graph.nodes if n.op in ("placeholder", "get_attr")]
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        self.output = output.all_input_nodes[0]
        data = {n: [p for p in n.all_input_nodes if is_call(p)] for n in module.graph.nodes if is_call(n)}
        self.dag = opara.with_hazards(data, *self.memory(data, x.clone()))
        self.chain = opara.chains(self.dag)
        self.chains = max(self.chain.values()) + 1
        self.order = opara.launch_order(self.dag, lambda n: operator(module, n) in COMPUTE)

    def start(self, x: torch.Tensor) -> Interpreter:
        """An interpreter that holds the input and the weights, and keeps all values."""
        interpreter = Interpreter(self.module, garbage_collect_values=False)
        interpreter.env, interpreter.args_iter = {}, iter([x])
        for n in self.ready:
            interpreter.env[n] = interpreter.run_node(n)
        return interpreter

    def memory(self, operators, x: torch.Tensor) -> tuple[dict[Node, set[int]], dict[Node, set[int]]]:
        """The storages that each operator uses, and those that it modifies in place, observed in one run.

        All values are kept until the end, so that an address identifies a storage. Views share the storage and its
        version counter.
        """
        interpreter, touched, written = self.start(x), {}, {}
        for n in operators:
            leaves = tree_leaves([interpreter.env[p] for p in n.all_input_nodes])
            before = [(t, t._version) for t in leaves if isinstance(t, torch.Tensor)]
            interpreter.env[n] = interpreter.run_node(n)
            touched[n] = {t.untyped_storage().data_ptr() for t, _ in before}
            written[n] = {t.untyped_storage().data_ptr() for t, version in before if t._version != version}
        return touched, written


def parallel(plan: Plan, x: torch.Tensor) -> tuple[Callable[[], torch.Tensor], str]:
    """Captures `plan` with one stream per chain. Returns the call that copies `x` and replays, and a note."""
    # torch hands out 32 streams in rotation, so that some of more than 32 chains share one. Comparing streams instead
    # of chains is still correct, because an operator is launched after its predecessors.
    streams = [torch.cuda.Stream() for _ in range(plan.chains)]
    stream = {n: streams[chain] for n, chain in plan.chain.items()}
    main, others = streams[0], [s for s in dict.fromkeys(streams) if s != streams[0]]
    awaited = opara.crossings(plan.dag, stream)

    def launch(static: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Forks from `main`, launches all operators, and joins. Returns the output, and all values to keep alive.

        The allocator tracks a tensor only by the stream that created it. Once the tensor is dropped, it gives the memory
        to that stream's next operator, even if another stream still reads it. So nothing is dropped before the end.
        """
        interpreter, done = plan.start(static), {}
        for s in others:
            s.wait_stream(main)
        for n in plan.order:
            with torch.cuda.stream(stream[n]):
                for p in plan.dag[n]:
                    if stream[p] != stream[n]:
                        stream[n].wait_event(done[p])
                interpreter.env[n] = interpreter.run_node(n)
                if n in awaited:
                    done[n] = stream[n].record_event()
        for s in others:
            main.wait_stream(s)
        return interpreter.env[plan.output], interpreter.env

    call = capture.captured(launch, x, main)
    used = len(others) + 1
    return call, f"{used} streams" + (f" for {plan.chains} chains" if used < plan.chains else "")
