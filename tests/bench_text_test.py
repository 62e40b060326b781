#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/ that need nothing but Python: medians, quotients and verdicts, tables, versions of peers."""

import argparse
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

import goals
import report
import samples
import versions


def times(low, median, high):
    return {"median_ms": median, "quartile_ms": [low, high]}


class Samples(unittest.TestCase):
    def test_summary_has_median_and_inclusive_quartiles(self):
        self.assertEqual(samples.summary([4.0, 1.0, 3.0, 2.0]), times(1.75, 2.5, 3.25))
        self.assertEqual(samples.summary([5.0]), times(5.0, 5.0, 5.0))

    def test_interleaved_runs_take_turns_at_being_first(self):
        class Clock:
            def __init__(self):
                self.order = []

            def time(self, run):
                self.order.append(run)
                return len(self.order)

        clock = Clock()
        found = samples.interleaved(clock, {"a": "A", "b": "B", "c": "C"}, 4)
        self.assertEqual("".join(clock.order), "ABC" "BCA" "CAB" "ABC")
        self.assertEqual(found["a"], samples.summary([1, 6, 8, 10]))

    def test_quotient_has_the_range_of_the_quartiles(self):
        ratio = samples.quotient(times(1.0, 2.0, 3.0), times(4.0, 5.0, 8.0), factor=10.0, goal=7.0)
        self.assertAlmostEqual(ratio["value"], 4.0)
        self.assertAlmostEqual(ratio["range"][0], 1.25)
        self.assertAlmostEqual(ratio["range"][1], 7.5)
        self.assertEqual(ratio["goal"], 7.0)

    def test_what_was_not_measured_has_no_quotient(self):
        measured, missing = times(1.0, 2.0, 3.0), {"not_measured": "no such module"}
        self.assertIsNone(samples.quotient(measured, missing))
        self.assertIsNone(samples.quotient(missing, measured))

    def test_of_two_contenders_one_is_faster_only_where_quartile_ranges_are_apart(self):
        def verdict(one, other):
            return samples.verdict(samples.quotient(one, other, goal=1.0))

        self.assertEqual(verdict(times(0.9, 1.0, 1.1), times(1.2, 1.3, 1.4)), "<=")
        self.assertEqual(verdict(times(1.2, 1.3, 1.4), times(0.9, 1.0, 1.1)), ">")
        self.assertEqual(verdict(times(0.9, 1.0, 1.1), times(1.0, 1.2, 1.4)), "~")
        self.assertEqual(verdict(times(1.0, 1.2, 1.4), times(0.9, 1.0, 1.1)), "~")
        # A median 2 % lower, of times that spread 9 %.
        self.assertEqual(verdict(times(6.2, 6.70, 6.8), times(6.3, 6.84, 6.9)), "~")

    def test_a_number_without_quartiles_is_held_against_its_goal_as_it_is(self):
        self.assertEqual(samples.verdict({"value": 1.2, "range": None, "goal": 1.2}), "<=")
        self.assertEqual(samples.verdict({"value": 1.3, "range": None, "goal": 1.2}), ">")


class Goals(unittest.TestCase):
    missing = {"not_measured": "no such module"}

    def test_flash_attention_3_is_not_estimated_where_it_is_measured(self):
        contenders = {"kernel": times(1.0, 1.0, 1.0), "cuDNN": times(2.0, 2.0, 2.0), "flash_attn 3": times(4.0, 4.0, 4.0)}
        found = goals.fa3_ratios(contenders, 1.0, 3.0)
        self.assertEqual(list(found), ["kernel / FA3"])
        self.assertEqual(found["kernel / FA3"]["value"], 0.25)

    def test_flash_attention_3_that_cannot_be_run_is_as_far_from_cudnn_as_it_was(self):
        contenders = {"kernel": times(1.0, 1.0, 1.0), "cuDNN": times(2.0, 2.0, 2.0), "flash_attn 3": self.missing}
        found = goals.fa3_ratios(contenders, 1.0, 3.0)
        self.assertEqual(list(found), ["kernel / FA3 (estimate)"])
        self.assertEqual(found["kernel / FA3 (estimate)"]["value"], 1.5)
        self.assertEqual(goals.fa3_ratios({"kernel": times(1.0, 1.0, 1.0)}, 1.0, 3.0), {})

    def test_the_goal_of_packing_is_a_share_of_flash_mlas_time(self):
        found = goals.packed_ratios(times(2.0, 3.0, 4.0), times(6.0, 6.0, 6.0), 8.0, 2.0)
        self.assertEqual(list(found), ["packed / goal"])
        self.assertAlmostEqual(found["packed / goal"]["value"], 2.0)
        self.assertAlmostEqual(found["packed / goal"]["range"][0], 2.0 / 6.0 * 4.0)

    def test_without_flash_mla_the_goal_is_in_milliseconds_and_the_name_says_so(self):
        found = goals.packed_ratios(times(2.0, 3.0, 4.0), self.missing, 8.0, 2.0)
        self.assertEqual(found, {"packed / goal, unscaled": {"value": 1.5, "range": [1.0, 2.0], "goal": 1.0}})
        self.assertEqual(goals.packed_ratios(self.missing, self.missing, 8.0, 2.0), {})
        self.assertEqual(goals.packed_ratios(times(2.0, 3.0, 4.0), self.missing, 8.0, None), {})


class Report(unittest.TestCase):
    def test_ratio_shows_its_verdict_and_its_goal(self):
        self.assertEqual(report.text_of_ratio({"value": 0.9, "range": [0.8, 0.95], "goal": 1.0}), "0.900 <= 1")
        self.assertEqual(report.text_of_ratio({"value": 0.99, "range": [0.98, 1.02], "goal": 1.0}), "0.990 ~ 1")
        self.assertEqual(report.text_of_ratio({"value": 1.2, "range": [1.16, 1.3], "goal": 1.15}), "1.200 > 1.15")
        self.assertEqual(report.text_of_ratio({"value": 0.5, "range": [0.4, 0.6], "goal": None}), "0.500")
        self.assertEqual(report.text_of_ratio(None), "-")

    def test_table_keeps_columns(self):
        self.assertEqual(report.table([["a", "bb"], ["cc", "d"]]), "a   bb\ncc   d")

    def test_text_has_a_table_a_part_and_what_was_not_measured(self):
        cases = [
            {
                "part": "dense",
                "case": "1 x 8",
                "contenders": {
                    "kernel": {**times(1.0, 2.0, 3.0), "worst_row": 1e-3},
                    "peer": {"not_measured": "ImportError: no peer"},
                },
                "ratios": {},
            },
            {
                "part": "dense",
                "case": "2 x 8",
                "contenders": {
                    "kernel": {**times(1.0, 2.0, 3.0), "worst_row": 3e-3},
                    "peer": {**times(4.0, 4.0, 4.0), "worst_row": 2e-3},
                },
                "ratios": {"kernel / peer": {"value": 0.5, "range": [0.25, 0.75], "goal": 1.0}},
            },
            {"part": "step", "case": "3 x 8", "paths": ["topk_mqa"], "contenders": {}, "ratios": {}},
        ]
        lines = report.text_of(cases, 2e-2).splitlines()
        self.assertEqual(lines[0], report.LEGEND)
        self.assertEqual(lines[2].split("  ")[0], "dense: median [quartiles], ms")
        self.assertRegex(lines[3], r"^1 x 8 +2\.000 \[1\.000 3\.000\] +- +-$")
        self.assertRegex(lines[4], r"^2 x 8 +2\.000 \[1\.000 3\.000\] +4\.000 \[4\.000 4\.000\] +0\.500 <= 1$")
        self.assertEqual(lines[5], "not measured: peer, 1 x 8: ImportError: no peer")
        self.assertEqual(lines[8], "3 x 8 (topk_mqa)")
        self.assertEqual(lines[-1], "worst sampled row of what was measured: 3.0e-03 (at most 0.02)")


class Versions(unittest.TestCase):
    def test_a_module_of_no_package_is_told_by_its_files_hash(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "headrace_bench_peer.py").write_text("x = 1\n")
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)
            # sha256sum of "x = 1\n"
            self.assertEqual(
                versions.version_of("headrace_bench_peer"), "headrace_bench_peer.py, sha256 9e26bf369911"
            )

    def test_a_module_of_a_package_is_told_by_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "headrace_bench_packaged.py").write_text("")
            info = pathlib.Path(folder, "some_peer-1.2.3.dist-info")
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-peer\nVersion: 1.2.3\n")
            (info / "top_level.txt").write_text("headrace_bench_packaged\n")
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)
            self.assertEqual(versions.version_of("headrace_bench_packaged"), "some-peer 1.2.3")

    def test_what_is_given_goes_before_what_is_found_and_what_is_missing_is_left_out(self):
        found = versions.versions({"flash_attn_interface": "another 1.0"})
        self.assertEqual(found["flash_attn 3"], "another 1.0")
        self.assertIsNone(versions.version_of("headrace_bench_no_such_module"))
        self.assertNotIn("headrace_bench_no_such_module", found.values())

    def test_given_versions_name_a_module_of_a_peer(self):
        self.assertEqual(versions.parse_given("flash_mla=wheel 1.0"), ("flash_mla", "wheel 1.0"))
        for text in ("flash_mla", "flash_mla=", "flash_mla= ", "cuDNN=9"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "flash_attn_interface"):
                versions.parse_given(text)

    def test_cudnn_tells_its_version_as_one_number(self):
        self.assertEqual(versions.text_of_cudnn(91900), "9.19.0")
        self.assertEqual(versions.text_of_cudnn(90102), "9.1.2")
        self.assertIsNone(versions.text_of_cudnn(None))


if __name__ == "__main__":
    unittest.main()
