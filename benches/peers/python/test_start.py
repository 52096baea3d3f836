import unittest

from start import Rules, StartError, placed


class Placed(unittest.TestCase):
    def test_a_name_without_a_rule_is_the_same(self):
        self.assertEqual(placed(Rules(), {"head.bias": (2,)}, {"head.bias": (2,)}), {"head.bias": ["head.bias"]})

    def test_parts_are_in_the_order_of_their_numbers(self):
        rules = Rules(((r"(\d)\.value", r"h.\1.qkv#2"), (r"(\d)\.query", r"h.\1.qkv#0"), (r"(\d)\.key", r"h.\1.qkv#1")))
        given = {f"7.{name}": (4, 3) for name in ("value", "key", "query")}
        self.assertEqual(placed(rules, given, {"h.7.qkv": (12, 3)}), {"h.7.qkv": ["7.query", "7.key", "7.value"]})

    def test_matrices_lie_the_other_way_where_a_rule_says_so(self):
        rules = Rules(transposed=r"\d+\.weight")
        self.assertEqual(placed(rules, {"0.weight": (4, 3)}, {"0.weight": (3, 4)}), {"0.weight": ["0.weight"]})
        with self.assertRaisesRegex(StartError, r"`0.weight` has the shape \(4, 3\) and the file's is \(3, 4\)"):
            placed(rules, {"0.weight": (4, 3)}, {"0.weight": (4, 3)})

    def test_all_that_is_left_is_named(self):
        message = "the file has no tensor for `a`, `b`; the module has no weight for `c`, `d`"
        with self.assertRaisesRegex(StartError, message):
            placed(Rules(), {"d": (1,), "c": (1,), "same": (1,)}, {"b": (1,), "a": (1,), "same": (1,)})

    def test_a_missing_part_is_another_shape(self):
        with self.assertRaisesRegex(StartError, "`qkv` has the shape"):
            placed(Rules((("query", "qkv#0"),)), {"query": (4, 3)}, {"qkv": (12, 3)})

    def test_two_tensors_of_one_name_are_refused(self):
        with self.assertRaisesRegex(StartError, "two tensors of the file are part 0 of `c`: `a` and `b`"):
            placed(Rules((("[ab]", "c"),)), {"a": (1,), "b": (1,)}, {"c": (1,)})


if __name__ == "__main__":
    unittest.main()
