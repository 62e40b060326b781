# SPDX-License-Identifier: Apache-2.0
"""bench/races.py explains pairs of accesses by their statements, and none that it does not know."""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = "sm90_attend.cuh"
SPACE = "headrace::attention::mqa::sm90::Consumer<(int)576, (int)1>"
STORE, LOAD, OTHER = "smem_.highest[row_ + 8 * r] = highest_[r]", "raise(r, smem_.highest[row_ + 8 * r])", "attend();"


def access(kind, statement, tail=""):
    lines = (ROOT / "src/attention/mqa" / FILE).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if statement in text)
    return f"{kind} access at {SPACE}::f()+0x3d70 in {FILE}:{line}{tail}"


def judge(*reports, hazards=None):
    """What the script says of reports: a written statement and what races with it."""
    lines = []
    for written, *others in reports:
        lines.append(f"========= Error: Race reported between {access('Write', written)}")
        lines += [f"=========     and {access('Read', other, ' [4 hazards]')}" for other in others]
    count = len(reports) if hazards is None else hazards
    lines.append(f"========= RACECHECK SUMMARY: {count} hazards displayed ({count} errors, 0 warnings)")
    ran = subprocess.run([sys.executable, ROOT / "bench/races.py"], input="\n".join(lines), text=True, check=False,
                         capture_output=True)
    return ran.returncode, ran.stdout


class Races(unittest.TestCase):
    def test_known_pairs_pass(self):
        code, text = judge((STORE, LOAD), (STORE, LOAD))
        self.assertEqual(code, 0)
        self.assertIn("2 x maxima", text)

    def test_other_pairs_fail(self):
        code, text = judge((STORE, OTHER))
        self.assertEqual(code, 1)
        self.assertIn("failed: 1 x", text)

    def test_a_second_access_of_a_report_is_seen(self):
        self.assertEqual(judge((STORE, LOAD, OTHER))[0], 1)

    def test_reports_that_could_not_be_read_fail(self):
        code, text = judge((STORE, LOAD), hazards=3)
        self.assertEqual(code, 1)
        self.assertIn("1 pairs were read of 3 reports", text)


if __name__ == "__main__":
    unittest.main()
