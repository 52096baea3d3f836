import unittest

import join_training


def line(contestant: str, ms: float | None, **more) -> dict:
    return {"model": "mlp", "dtype": "f32", "batch": 64, "contestant": contestant, "ms": ms} | more


class JoinTraining(unittest.TestCase):
    def test_a_row_has_the_fastest_of_each_side(self):
        ours = [line("candle", 2.0), line("exact", 0.2, peak_mib=9), line("accurate", 0.1, peak_mib=8)]
        torch = [line("eager", 0.9, device="G"), line("graph", 0.3, peak_mib=7, device="G")]
        [row] = join_training.rows(ours, torch)
        self.assertEqual((row["ours_ms"], row["torch_best_ms"], row["candle_ms"]), (0.1, 0.3, 2.0))
        self.assertEqual((row["peak_mib"], row["torch_peak_mib"], row["gpu"]), (8, 7, "G"))

    def test_what_failed_is_told_and_is_no_time(self):
        [row] = join_training.rows([line("accurate", None, failed="no gradient")], [])
        self.assertEqual((row["ours_ms"], row["torch_best_ms"]), (None, None))
        self.assertEqual(row["of"]["accurate"]["failed"], "no gradient")


if __name__ == "__main__":
    unittest.main()
