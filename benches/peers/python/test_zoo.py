"""Tests of zoo.py without a GPU.

Usage: python3 -m unittest      (in this folder)
"""

import contextlib
import importlib.util
import io
import json
import re
import tempfile
import unittest
import unittest.mock

import places

TORCH = importlib.util.find_spec("torch") is not None
TORCHVISION = TORCH and importlib.util.find_spec("torchvision") is not None


@unittest.skipUnless(TORCH, "torch is not installed")
class Zoo(unittest.TestCase):
    def test_models_are_entries_of_the_zoo(self):
        import zoo_models

        source = "".join(path.read_text() for path in places.ZOO.glob("*.rs"))
        self.assertLessEqual(set(zoo_models.MODELS), set(re.findall(r'name: "([^"]+)"', source)))

    def test_tokens_are_those_of_the_zoo(self):
        import torch
        import zoo_models

        at = zoo_models.Target(torch.device("cpu"), torch.float16, 2)
        tokens = at.tokens(3, 10000)
        self.assertEqual(tokens.tolist(), [[101, 8020, 5939], [3858, 1777, 9696]])
        self.assertEqual((at.image(8).shape, at.image(8).dtype), ((2, 3, 8, 8), torch.float16))

    def test_what_fails_is_a_result(self):
        import torch
        import zoo

        def failing(cell):
            raise RuntimeError("no memory")

        ways = {"fine": zoo.eager, "failing": failing, "again": zoo.eager}
        linear = torch.nn.Linear(2, 2)
        with unittest.mock.patch("zoo.zoo_models.build", lambda *_: (lambda x: linear(x[0]), (torch.zeros(1, 2),))):
            rows = list(zoo.rows("linear", "f32", 1, ways, 3, torch.device("cpu")))
        self.assertEqual([row["contestant"] for row in rows], list(ways))
        self.assertEqual(rows[1]["error"], "RuntimeError: no memory")
        self.assertGreaterEqual(rows[2]["us"], 0)

    def test_a_model_that_cannot_be_built_has_an_error_for_each_contestant(self):
        import torch
        import zoo

        with unittest.mock.patch("zoo.zoo_models.build", side_effect=ImportError("no diffusers")):
            rows = list(zoo.rows("sd-1.5-unet", "f32", 1, zoo.ON_CPU, 3, torch.device("cpu")))
        self.assertEqual([row["error"] for row in rows], ["ImportError: no diffusers"] * len(zoo.ON_CPU))

    def test_channels_last_leaves_the_model_to_the_others(self):
        import torch
        import zoo

        conv = torch.nn.Conv2d(3, 4, 3)
        module = zoo.zoo_models.Forward(conv)
        cell = zoo.Cell("conv", "f32", 1, 0, module, (torch.zeros(1, 3, 8, 8),))
        seen = []
        zoo.channels_last(lambda cell: seen.append(cell))(cell)
        order = {"memory_format": torch.channels_last}
        self.assertTrue(seen[0].module.model.weight.is_contiguous(**order) and seen[0].input[0].is_contiguous(**order))
        self.assertFalse(conv.weight.is_contiguous(**order) or cell.input[0].is_contiguous(**order))

    @unittest.skipUnless(TORCHVISION, "torchvision is not installed")
    def test_a_line_for_each_contestant(self):
        import zoo

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "torch.jsonl"
            arguments = ["--cpu", "--models", "resnet18", "--dtypes", "float32", "--iters", "1", "--json", str(path)]
            with unittest.mock.patch("sys.argv", ["zoo.py", *arguments]), contextlib.redirect_stdout(io.StringIO()) as out:
                zoo.main()
            lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(out.getvalue().count("\n"), 2)
        self.assertEqual([line["contestant"] for line in lines], ["eager", "channels-last"])
        self.assertEqual({(line["model"], line["dtype"], line["batch"]) for line in lines}, {("resnet18", "f32", 1)})


if __name__ == "__main__":
    unittest.main()
