"""Tests of join_unchanged.py, which need no framework.

Usage: python3 -m unittest      (in this folder)
"""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import join_unchanged
import places
from join_unchanged import joined, read, written

CELL = {"model": "resnet18", "dtype": "f16", "batch": 1}
CANDLE = CELL | {
    "exact_us": 1109.84,
    "accurate_us": 195.76,
    "error": 1.00912,
    "candle_error": 3.19371,
    "reports": [
        ["exact", {"build_ms": {"fuse": 7.0}, "notes": []}],
        ["accurate", {"build_ms": {"forward": 9.0, "fuse": 2.4, "trace": 1.3}, "notes": ["row-norm stays out"]}],
    ],
}


def torch(contestant, **numbers):
    return CELL | {"contestant": contestant, "torch": "2.11"} | numbers


class Join(unittest.TestCase):
    def test_both_sides_are_one_row(self):
        [row] = joined([CANDLE, torch("graph", us=250.1), torch("channels-last", us=180.2), torch("compile", us=190.3)])
        self.assertEqual(
            row,
            CELL
            | {
                "exact_us": 1109.8,
                "accurate_us": 195.8,
                "torch_graph_us": 250.1,
                "torch_channels_last_us": 180.2,
                "torch_compile_us": 190.3,
                "native_us": None,
                "error": 1.009,
                "candle_error": 3.194,
                "accurate_build_ms": 4,
                "notes": ["row-norm stays out"],
            },
        )

    def test_a_side_that_is_missing_is_null(self):
        [row] = joined([torch("graph", us=250.1)])
        self.assertEqual((row["torch_graph_us"], row["exact_us"], row["accurate_build_ms"]), (250.1, None, None))
        exact = CANDLE | {"accurate_us": None, "error": None, "candle_error": None, "reports": CANDLE["reports"][:1]}
        [row] = joined([exact])
        self.assertEqual((row["exact_us"], row["accurate_us"], row["torch_compile_us"], row["error"]), (1109.8, None, None, None))
        self.assertIsNone(row["accurate_build_ms"])

    def test_what_is_measured_anew_goes_onto_what_is_there(self):
        onto = joined([CANDLE, torch("graph", us=250.1), CANDLE | {"model": "vgg16"}])
        rows = joined([torch("graph", us=240.0), CANDLE | {"model": "vgg16", "accurate_us": 180.0}], onto, "0123abc")
        self.assertEqual([row["model"] for row in rows], ["resnet18", "vgg16"])
        self.assertEqual([(row["accurate_us"], row["torch_graph_us"]) for row in rows], [(195.8, 240.0), (180.0, None)])
        self.assertEqual([row.get("commit") for row in rows], [None, "0123abc"])

    def test_what_was_not_measured_anew_stays(self):
        exact = CANDLE | {"exact_us": 900.0, "accurate_us": None, "error": None, "candle_error": None}
        [before], [after] = joined([CANDLE]), joined([exact], joined([CANDLE]), "0123abc")
        self.assertEqual(after, before | {"exact_us": 900.0})

    def test_a_row_of_another_device_begins_anew_and_names_it(self):
        onto = joined([CANDLE, torch("graph", us=250.1), CANDLE | {"model": "vgg16"}])
        rows = joined([torch("graph", us=240.0), torch("compile", us=200.0)], onto, "0123abc", "H200")
        [vgg, resnet] = rows
        self.assertEqual((vgg.get("device"), resnet["device"]), (None, "H200"))
        self.assertEqual((resnet["accurate_us"], resnet["torch_graph_us"], resnet["torch_compile_us"]), (None, 240.0, 200.0))
        [_, back] = joined([CANDLE], rows)
        self.assertEqual((back.get("device"), back["accurate_us"], back["torch_graph_us"]), (None, 195.8, None))

    def test_a_contestant_that_failed_has_its_error(self):
        [row] = joined([torch("compile", error="OutOfMemoryError: CUDA"), torch("graph", us=1.0)])
        self.assertIsNone(row["torch_compile_us"])
        self.assertEqual(row["torch_errors"], {"compile": "OutOfMemoryError: CUDA"})

    def test_the_last_line_counts(self):
        [row] = joined([torch("graph", error="killed"), torch("graph", us=2.0)])
        self.assertEqual(row["torch_graph_us"], 2.0)
        self.assertNotIn("torch_errors", row)

    def test_models_dtypes_and_batches_have_rows_in_order(self):
        lines = [torch("graph", us=1.0) | {"batch": 8}, CANDLE, torch("graph", us=1.0) | {"dtype": "f32"}, torch("graph", us=3.0)]
        rows = [(row["dtype"], row["batch"]) for row in joined(lines)]
        self.assertEqual(rows, [("f16", 8), ("f16", 1), ("f32", 1)])

    def test_an_unknown_contestant_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "eager"):
            joined([torch("eager", us=1.0)])

    def test_a_row_has_a_line(self):
        rows = joined([CANDLE, torch("graph", us=1.0) | {"dtype": "f32"}])
        text = written({"device": "H100", "iters": 30}, rows)
        self.assertEqual(json.loads(text), {"device": "H100", "iters": 30, "rows": rows})
        self.assertEqual(len([line for line in text.splitlines() if '"model"' in line]), 2)

    def test_a_line_of_a_killed_process_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as errors:
            path = pathlib.Path(folder) / "torch.jsonl"
            path.write_text(json.dumps(CANDLE) + '\n{"model": "resn')
            self.assertEqual(read(path), [CANDLE])
        self.assertIn("not complete", errors.getvalue())

    def test_the_stored_table_has_the_columns(self):
        stored = json.loads(places.UNCHANGED.read_text())
        for row in stored["rows"]:
            self.assertLessEqual(set(row), {*CELL, *join_unchanged.EMPTY, "torch_errors", "notes", "commit", "device"})


if __name__ == "__main__":
    unittest.main()
