"""Usage: python3 -m unittest      (in this folder)"""

import pathlib
import tempfile
import unittest

import serving
import side_by_side
import soak

CELL = {"model": "null", "vocab": 2048, "workload": "8/8", "clients": 2, "seed": 0, "shared_prefix": 0}


def row(engine, number, tok_s):
    told = {"model": "m", "dtype": "bf16", "workload": "8/8", "clients": 2, "gpu": "G", "settings": {}, "engine": engine, "round": number}
    return told | dict.fromkeys(side_by_side.NUMBERS, 1.0) | {"tok_s": tok_s}


class Client(unittest.TestCase):
    def test_it_reads_what_a_server_streams(self):
        with serving.null_servers(2) as ports:
            row = serving.measure("127.0.0.1", ports, "null", 2048, "8/5", 4, count=12, processes=2, timeout=30)
        self.assertEqual((row["requests"], row["tokens"], row["tokens_per_part"]), (12, 60, 1.0))

    def test_replies_of_other_lengths_fail(self):
        usage = b'{"prompt_tokens": 8, "completion_tokens": 7}'
        parts = [(1.0, b'data: {"choices": [{"text": "a", "finish_reason": "stop"}], "usage": %b}\n\n' % usage)]
        with self.assertRaisesRegex(serving.Failed, r"reply 3 .*7 tokens for 8, not 9 \(stop\)"):
            serving.read_reply(3, (b"", 8, 9), 0.0, 200, parts)

    def test_a_server_that_is_not_there(self):
        with self.assertRaisesRegex(serving.Failed, "refused|Connect"):
            serving.measure("127.0.0.1", [1], "null", 2048, "8/5", 1, timeout=30)

    def test_lengths_have_the_means_of_sharegpt(self):
        of = serving.lengths("sharegpt", 256, serving.random.Random(0))
        for side, mean in enumerate((217, 200)):
            self.assertAlmostEqual(sum(pair[side] for pair in of) / len(of), mean, delta=3)

    def test_prompts_differ_and_are_the_same_for_both_engines(self):
        first, again, warm = (serving.requests(CELL, 3, phase) for phase in ("measured", "measured", "warm-up"))
        self.assertEqual(first, again)
        self.assertEqual(len({body for body, _, _ in first + warm}), 6)


class Rows(unittest.TestCase):
    def test_a_row_replaces_that_of_its_cell_and_turn(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.json"
            for number, tok_s in ((1, 1.0), (2, 2.0), (1, 3.0)):
                side_by_side.write_row(path, row("opara", number, tok_s))
            self.assertEqual([row["tok_s"] for row in side_by_side.read_rows(path)], [3.0, 2.0])

    def test_losses_are_told(self):
        turns = [row("opara", 1, 90.0), row("opara", 2, 91.0)]
        self.assertIn("tokens/s: 90.5, vLLM 120.0: LOST by 32.6%", side_by_side.table([*turns, row("vllm", 1, 120.0)]))
        self.assertIn("behind by 0.6%, but turns of one engine differ by 1.1%", side_by_side.table([*turns, row("vllm", 1, 91.0)]))
        self.assertIn("In none of 1 cells", side_by_side.table([*turns, row("vllm", 1, 50.0)]))


class Soak(unittest.TestCase):
    def test_prompts_leave_room_for_the_longest_answer(self):
        for context in (512, 1024, 8192):
            of = soak.prompts(2048, context, 0)
            self.assertTrue(all(0 < len(prompt) <= context - soak.LONGEST for prompt in of))
            self.assertEqual(of, soak.prompts(2048, context, 0))

    def test_an_answer_is_the_beginning_of_the_longest_one(self):
        of = soak.Soak(("127.0.0.1", 1), "null", [[1, 2]], 512)
        of.longest[0] = list(range(soak.LONGEST))
        for got, tokens in (([0, 1, 2], 3), ([], None), ([0, 1], None)):
            of.check(0, got, tokens, "whole")
        self.assertEqual(of.wrong, [])
        for got, tokens in (([0, 1, 3], 3), ([0, 1], 3), ([1], None), ([*range(soak.LONGEST), 7], None)):
            before = len(of.wrong)
            of.check(0, got, tokens, "whole")
            self.assertEqual(len(of.wrong), before + 1, got)


if __name__ == "__main__":
    unittest.main()
