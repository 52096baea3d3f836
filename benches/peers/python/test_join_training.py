import unittest

import join_training


def line(contestant: str, ms: float | None, losses: list | None = None, **more) -> dict:
    return {"model": "mlp", "dtype": "f32", "batch": 64, "contestant": contestant, "ms": ms, "losses": losses or [2.0, 1.0]} | more


class JoinTraining(unittest.TestCase):
    def test_a_row_has_the_fastest_of_each_side(self):
        ours = [line("candle", 2.0), line("exact", 0.2, peak_mib=9), line("accurate", 0.1, peak_mib=8)]
        torch = [line("eager", 0.9, device="G"), line("graph", 0.3, peak_mib=7, device="G")]
        [row] = join_training.rows(ours, torch)
        self.assertEqual((row["ours_ms"], row["torch_best_ms"], row["candle_ms"]), (0.1, 0.3, 2.0))
        self.assertEqual((row["peak_mib"], row["torch_peak_mib"], row["gpu"], row["loss_gap"]), (8, 7, "G", 0.0))

    def test_what_failed_is_told_and_is_no_time(self):
        [row] = join_training.rows([{**line("accurate", None, failed="no gradient"), "losses": None}], [])
        self.assertEqual((row["ours_ms"], row["torch_best_ms"], row["loss_gap"]), (None, None, None))
        self.assertEqual(row["of"]["accurate"], {"ms": None, "failed": "no gradient"})

    def test_without_pytorch_no_losses_are_compared(self):
        [row] = join_training.rows([line("exact", 0.2)], [])
        self.assertEqual((row["ours_ms"], row["loss_gap"]), (0.2, None))
        self.assertNotIn("no_times", row)

    def test_a_gap_is_of_the_worst_step_and_relative_to_the_first_loss(self):
        torch = [line("eager", 0.9, [2.0, 1.0, 0.5], device="G")]
        [row] = join_training.rows([line("exact", 0.2, [2.0, 1.001, 0.5])], torch)
        self.assertAlmostEqual(row["loss_gap"], 0.0005)
        self.assertEqual((row["ours_ms"], row["of"]["exact"]["first_loss"], row["of"]["exact"]["last_loss"]), (0.2, 2.0, 0.5))

    def test_a_row_whose_losses_differ_has_no_times_and_says_so(self):
        ours = [line("candle", 2.0), line("exact", 0.2, [2.0, 1.2])]
        [row] = join_training.rows(ours, [line("eager", 0.9, device="G"), line("graph", 0.3, device="G")])
        self.assertEqual((row["ours_ms"], row["torch_best_ms"], row["candle_ms"]), (None, None, None))
        self.assertAlmostEqual(row["loss_gap"], 0.1)
        reason = "differ by more than 0.05 of the first one, or the first ones by more than 0.0001"
        self.assertEqual(row["no_times"], f"losses of our steps and of torch eager {reason}")

    def test_first_losses_are_held_closer(self):
        torch = [line("eager", 0.9, [2.0, 1.0], device="G")]
        for losses, ms in [([2.0, 1.05], 0.2), ([2.001, 1.0], None)]:
            [row] = join_training.rows([line("exact", 0.2, losses)], torch)
            self.assertEqual((row["ours_ms"], "no_times" in row), (ms, ms is None))

    def test_a_contestant_whose_losses_differ_is_left_out_alone(self):
        ours = [line("candle", 2.0, [2.0, 1.9]), line("exact", 0.1, [2.0, 1.9]), line("accurate", 0.2)]
        torch = [line("eager", 0.9, device="G"), line("graph", 0.3, [1.0, 0.5], device="G")]
        [row] = join_training.rows(ours, torch)
        self.assertEqual((row["ours_ms"], row["torch_best_ms"], row["candle_ms"]), (0.2, 0.9, None))
        self.assertAlmostEqual(row["of"]["torch graph"]["loss_gap"], 0.5)

    def test_losses_of_other_steps_or_not_finite_are_no_equal_losses(self):
        torch = [line("eager", 0.9, device="G")]
        for losses in ([2.0, 1.0, 0.9], [2.0, None]):
            [row] = join_training.rows([line("exact", 0.2, losses)], torch)
            self.assertEqual((row["ours_ms"], row["torch_best_ms"], row["loss_gap"]), (None, None, None))
            self.assertEqual(row["no_times"], "losses of our steps and of torch eager are of other steps, or not finite")

    def test_tolerances_are_of_the_dtype(self):
        [row] = join_training.rows(
            [line("exact", 0.2, [2.0, 1.05], dtype="bf16")], [line("eager", 0.9, dtype="bf16", device="G")]
        )
        self.assertEqual(row["ours_ms"], 0.2)


if __name__ == "__main__":
    unittest.main()
