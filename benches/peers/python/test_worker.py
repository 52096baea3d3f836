"""Tests that need no GPU; some need torch.

Usage: python3 -m unittest      (in this folder)
"""

import importlib.util
import io
import json
import pathlib
import tempfile
import unittest
import unittest.mock

import opara
import worker

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = unittest.skipUnless(TORCH, "torch is not installed")
TRANSFORMERS = TORCH and importlib.util.find_spec("transformers") is not None

# Two branches that join: a relu, and a chain of two convs.
DIAMOND = {"in": [], "relu": ["in"], "conv1": ["in"], "conv2": ["conv1"], "cat": ["relu", "conv2"]}


class Fake:
    def hello(self):
        return {"modes": ["eager"]}

    def run(self, mode, iters, flush=False):
        raise RuntimeError("first line\n" + "x" * 1000)


def serve(*lines):
    """The parsed answers to `lines`."""
    answers = io.StringIO()
    with unittest.mock.patch("traceback.print_exc"):
        worker.serve(Fake, lines, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


class Protocol(unittest.TestCase):
    def test_one_answer_a_line_and_blank_lines_are_none(self):
        self.assertEqual(serve('{"do":"hello"}\n', "\n", '{"do":"hello"}\n'), [{"modes": ["eager"]}] * 2)

    def test_errors_are_one_short_line_and_the_worker_lives_on(self):
        lines = ["{", "3", "{}", '{"do":"serve"}', '{"do":"hello","x":1}', '{"do":"run","mode":"a","iters":1}']
        *errors, last = serve(*lines, '{"do":"hello"}')
        self.assertEqual(len(errors), len(lines))
        for answer in errors:
            self.assertEqual(list(answer), ["error"])
            self.assertLessEqual(len(answer["error"]), worker.ERROR_CHARS)
            self.assertNotIn("\n", answer["error"])
        self.assertTrue(errors[-1]["error"].startswith("RuntimeError: first line x"))
        self.assertEqual(last, {"modes": ["eager"]})

    def test_quit_ends(self):
        self.assertEqual(serve('{"do":"quit"}', '{"do":"hello"}'), [{}])

    def test_an_error_names_the_first_of_its_chain(self):
        try:
            try:
                raise ValueError("the reason")
            finally:
                raise RuntimeError("the end" + "x" * 1000)
        except RuntimeError as error:
            text = worker.one_line(error)
        self.assertTrue(text.startswith("RuntimeError: the end"))
        self.assertTrue(text.endswith("(after ValueError: the reason)"))
        self.assertLessEqual(len(text), worker.ERROR_CHARS)


class Opara(unittest.TestCase):
    def test_a_chain_goes_on_until_somebody_else_has_taken_its_end(self):
        self.assertEqual(opara.chains(DIAMOND), {"in": 0, "relu": 0, "conv1": 1, "conv2": 1, "cat": 0})

    def test_crossings_are_read_on_other_streams(self):
        self.assertEqual(opara.crossings(DIAMOND, opara.chains(DIAMOND)), {"in", "conv2"})
        self.assertEqual(opara.crossings(DIAMOND, dict.fromkeys(DIAMOND, 0)), set())

    def test_launches_take_turns(self):
        dag = {"c1": [], "c2": [], "m1": [], "m2": [], "end": ["c2", "m2", "m2"]}
        order = opara.launch_order(dag, lambda op: op.startswith("c"))
        self.assertEqual(order, ["c1", "m1", "c2", "m2", "end"])

    def test_each_is_launched_once_after_what_it_reads(self):
        dag = {i: sorted({i // 2, i // 3, i - 1 if i % 7 else i // 5} - {i}) if i else [] for i in range(200)}
        for compute in (lambda _: True, lambda _: False, lambda i: i % 3 == 0):
            order = opara.launch_order(dag, compute)
            place = {op: i for i, op in enumerate(order)}
            self.assertEqual(sorted(order), list(dag))
            self.assertTrue(all(place[other] < place[op] for op, reads in dag.items() for other in reads))

    def test_each_is_continued_once_at_most(self):
        dag = {i: sorted({i // 2, i // 3} - {i}) for i in range(200)}
        stream = opara.chains(dag)
        self.assertEqual(set(stream.values()), set(range(max(stream.values()) + 1)))
        before = {}
        for op, reads in dag.items():
            if stream[op] in before:
                self.assertIn(before[stream[op]], reads)
            before[stream[op]] = op

    def test_a_change_in_place_waits_for_readers_and_is_waited_for(self):
        dag = {"make": [], "read": ["make"], "change": ["make"], "late": ["make"]}
        touched = {"make": set(), "read": {1}, "change": {1}, "late": {1}}
        written = {"make": set(), "read": set(), "change": {1}, "late": set()}
        ordered = opara.with_hazards(dag, touched, written)
        self.assertEqual(ordered, dag | {"change": ["make", "read"], "late": ["make", "change"]})


@needs_torch
class Torch(unittest.TestCase):
    @unittest.skipUnless(TRANSFORMERS, "transformers is not installed")
    def test_attention_is_such_as_fused_kernels_take(self):
        import torch

        import models

        for model, has_bias in (("bert", False), ("t5", True)):
            device = torch.device("cpu")
            module, x = models.build(model, "f32", 0, device), models.example(model, "f32", 2, 0, device)
            graph = torch.export.export(module, (x,)).graph
            attentions = [node for node in graph.nodes if "scaled_dot_product_attention" in str(node.target)]
            self.assertGreater(len(attentions), 0)
            for node in attentions:
                mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
                self.assertEqual(mask is not None, has_bias)
                if has_bias:
                    self.assertEqual(mask.meta["val"].stride(-1), 1)

    def test_a_plan_of_a_traced_module_sees_changes_in_place(self):
        import torch

        import opara_fx

        class Module(torch.nn.Module):
            def forward(self, x):
                y = x * 2
                view = y[0]
                before = view + 1
                torch.relu_(y)
                return before + view

        x = torch.arange(-3.0, 3.0).reshape(2, 3)
        for symbolic, traced_by in ((True, "symbolic_trace"), (False, "torch.export")):
            with torch.no_grad():
                module, by = opara_fx.trace(Module(), x, symbolic)
                plan = opara_fx.Plan(module, x)
                interpreter = plan.start(x.clone())
                for n in plan.order:
                    interpreter.env[n] = interpreter.run_node(n)
                self.assertTrue(torch.equal(interpreter.env[plan.output], Module()(x)))
            self.assertEqual(by, traced_by)
            (relu,) = (n for n in plan.dag if opara_fx.operator(module, n) in ("relu_", "relu"))
            self.assertEqual(sum(opara_fx.operator(module, n) == "add" for n in plan.dag[relu]), 1)

    def test_inputs(self):
        import torch

        import models

        cpu = torch.device("cpu")
        tokens = models.example("bert", "f16", 3, 0, cpu)
        self.assertEqual((tokens.dtype, tuple(tokens.shape)), (torch.int64, (3, 128)))
        self.assertEqual(tokens[2, 5].item(), (2 * 128 + 5) * 37 % 10000)
        picture = models.example("googlenet", "f16", 2, 0, cpu)
        self.assertEqual((picture.dtype, tuple(picture.shape)), (torch.float16, (2, 3, 224, 224)))
        # A batch starts with the items of a smaller one, so that results can be compared.
        self.assertTrue(torch.equal(picture[:1], models.example("googlenet", "f16", 1, 0, cpu)))

    def test_kernels_are_means_of_a_call(self):
        import sample

        events = [{"cat": "kernel", "name": "a", "dur": 2.0}] * 20 + [{"cat": "gpu_memcpy", "name": "b", "dur": 5}] * 10
        events += [{"cat": "cuda_runtime", "name": "c", "dur": 9}, {"ph": "M", "name": "process_name"}]
        rows = [{"name": "b", "calls": 1, "us": 5.0}, {"name": "a", "calls": 2, "us": 4.0}]
        self.assertEqual(sample.summary(events), rows)

    @unittest.skipIf(TORCH and __import__("torch").cuda.is_available(), "the answers of the CPU")
    def test_a_session_on_the_cpu(self):
        from safetensors import safe_open

        import session

        worked = session.Session("torch", None)
        self.assertEqual(worked.hello()["modes"], ["eager"])
        with self.assertRaisesRegex(RuntimeError, "nothing is loaded"):
            worked.prepare("eager", "unused")
        worked.load("deepfm", "f32", 2)
        module = worked.cell.module
        with self.assertRaisesRegex(ValueError, "not prepared"):
            worked.run("eager", 1)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.safetensors"
            self.assertIsNone(worked.prepare("eager", str(path))["peak_bytes"])
            with safe_open(path, "pt") as file:
                self.assertEqual(file.get_tensor("output").shape, (2, 1))
        samples = worked.run("eager", 3, flush=True)
        self.assertEqual([len(samples[key]) for key in ("gpu_us", "wall_us", "host_us")], [3, 3, 3])
        self.assertGreaterEqual(worked.spin("eager", 0.01)["calls"], 1)
        worked.load("deepfm", "f32", 1)
        self.assertIs(worked.cell.module, module)
        worked.load("deepfm", "f16", 1)
        self.assertIsNot(worked.cell.module, module)


if __name__ == "__main__":
    unittest.main()
