"""Opara over torch.fx: the operators of a module on several streams, captured into one CUDA graph.

Two things differ from the paper: every operator's demand is taken as equal (`opara.launch_order`), and whether one is
compute-intensive is read from its name. The input and the weights have no stream: they are there beforehand.
"""

from collections.abc import Callable

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

import capture
import opara

# Operators and classes of modules, in lower case, that arithmetic bounds; all others are taken as bound by memory.
COMPUTE = {
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    "scaled_dot_product_attention",
}
# Checks that torch.export leaves in a graph: they launch nothing, and would hold places in chains.
CHECKS = {"_assert_tensor_metadata"}


def trace(model: torch.nn.Module, x: torch.Tensor, symbolic: bool) -> tuple[GraphModule, str]:
    """The graph of `model` and who traced it: symbolic_trace where `symbolic` and it can, torch.export otherwise."""
    module = traced_by = None
    if symbolic:
        try:
            module, traced_by = torch.fx.symbolic_trace(model), "symbolic_trace"
        except Exception:  # Whatever a model's own code raises when it meets a proxy.
            pass
    if module is None:
        # Guards would be operators in the graph, and this input is the only one.
        module, traced_by = torch.export.export(model, (x,)).module(check_guards=False), "torch.export"
    for n in list(module.graph.nodes):
        if is_call(n) and operator(module, n) in CHECKS:
            module.graph.erase_node(n)
    if traced_by == "torch.export":
        # What only checks read. Nodes of symbolic_trace do not say which of them change something in place.
        module.graph.eliminate_dead_code()
    return module, traced_by


def is_call(node: Node) -> bool:
    return node.op.startswith("call_")


def operator(module: GraphModule, node: Node) -> str:
    """The name of a node's operator or module class, in lower case and without overload."""
    if node.op == "call_module":
        return type(module.get_submodule(node.target)).__name__.lower()
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name.split(".")[0].lower()


class Plan:
    """Which operators a module has, what each waits for, the stream of each, and the order of launches."""

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
        """An interpreter that has the input and the weights, and drops nothing."""
        interpreter = Interpreter(self.module, garbage_collect_values=False)
        interpreter.env, interpreter.args_iter = {}, iter([x])
        for n in self.ready:
            interpreter.env[n] = interpreter.run_node(n)
        return interpreter

    def memory(self, operators, x: torch.Tensor) -> tuple[dict[Node, set[int]], dict[Node, set[int]]]:
        """The storages that each operator is given, and those of them that it changes in place, seen in one run.

        All values live until its end, so that an address is one storage; views share it, and the counter of changes.
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
    """Captures `plan` with a stream a chain, and returns the call that copies `x` and replays, with a note."""
    # torch hands out 32 streams in turns, so that of more chains some share one. Comparing streams and not chains is
    # right then too, since an operator is launched after all that it waits for.
    streams = [torch.cuda.Stream() for _ in range(plan.chains)]
    stream = {n: streams[chain] for n, chain in plan.chain.items()}
    main, others = streams[0], [s for s in dict.fromkeys(streams) if s != streams[0]]
    awaited = opara.crossings(plan.dag, stream)

    def launch(static: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Launches all between a fork from and a join to `main`; returns the output, and all values, to be kept.

        The allocator knows a tensor only by the stream that made it, and gives its memory to that stream's next
        operator once it is dropped, though another stream may read it still. So nothing is dropped before the end.
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
