#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/stale_results.sh and bench/revision.py in a repository made for it: which results are called STALE, and why."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = ("src/attention", "src/cache", "src/selection")
#: Whoever runs this may sign commits or have hooks.
ENVIRONMENT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def run(command, folder):
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True)


@unittest.skipUnless(shutil.which("git"), "there is no git")
class StaleResults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for file in ("tools/stale_results.sh", "tools/options.sh", "bench/revision.py"):
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.root / file)
        for name in (*SOURCES, "tests/gpu/bench", "bench/results"):
            self.write(f"{name}/file", "as it was")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *arguments):
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        return run(("git", *identity, *arguments), self.root)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "changed")

    def trees(self):
        """{folder: id} as the option that revision.py prints has it."""
        printed = run((sys.executable, "-B", "bench/revision.py"), self.root).stdout
        return dict(item.split("=") for item in printed.split()[3].split(","))

    def measure(self, name, folders):
        """A results file with the ids of folders as they are."""
        trees = self.trees()
        self.write(f"bench/results/{name}", "".join(f'"{folder}": "{trees[folder]}"\n' for folder in folders))
        self.commit()

    def stale(self):
        """Lines about results, without the STALE before them."""
        done = run(("bash", "tools/stale_results.sh"), self.root)
        self.assertEqual(done.stderr, "")
        return [line.removeprefix("STALE bench/results/") for line in done.stdout.splitlines()]

    def test_results_of_the_trees_own_sources_are_not_stale(self):
        self.measure("h200-gpu_bench.txt", (*SOURCES, "tests/gpu/bench"))
        self.measure("h200-peers.txt", (*SOURCES, "bench"))
        self.measure("h200-checks.txt", SOURCES)
        self.write("bench/results/cpu.json", "{}")
        self.assertEqual(self.stale(), [])

    def test_changed_sources_are_named(self):
        self.measure("h200-checks.txt", SOURCES)
        self.write("src/cache/file", "changed")
        self.commit()
        (line,) = self.stale()
        self.assertRegex(line, "^h200-checks.txt: measured on src/cache [0-9a-f]{10}, the tree has [0-9a-f]{10}$")

    def test_a_changed_benchmark_makes_only_its_own_results_stale(self):
        self.measure("h200-gpu_bench.txt", (*SOURCES, "tests/gpu/bench"))
        self.measure("h200-peers.json", (*SOURCES, "bench"))
        self.write("tests/gpu/bench/file", "another definition")
        self.commit()
        (line,) = self.stale()
        self.assertIn("h200-gpu_bench.txt: measured on tests/gpu/bench", line)
        self.write("bench/samples.py", "another definition")
        self.commit()
        self.assertEqual(len(self.stale()), 2)

    def test_results_that_do_not_say_what_measured_them_are_stale(self):
        self.measure("h200-gpu_bench.txt", SOURCES)
        self.measure("h200-peers.txt", SOURCES)
        expected = ["h200-gpu_bench.txt: does not say by which tests/gpu/bench it was measured"]
        expected.append("h200-peers.txt: does not say by which bench it was measured")
        self.assertEqual(self.stale(), expected)

    def test_measured_with_changes_is_stale_once_they_are_committed(self):
        self.write("src/attention/file", "changed")
        self.assertTrue(self.trees()["src/attention"].endswith("+changes"))
        self.measure("h200-checks.txt", SOURCES)
        (line,) = self.stale()
        self.assertIn("measured on src/attention", line)

    def test_new_results_are_no_change_of_what_measures(self):
        before = self.trees()["bench"]
        self.write("bench/results/h200-peers.txt", "")
        self.assertEqual(self.trees()["bench"], before)
        self.commit()
        self.assertEqual(self.trees()["bench"], before)

    def test_a_folder_that_is_gone_is_no_error(self):
        self.measure("h200-checks.txt", SOURCES)
        shutil.rmtree(self.root / "src/selection")
        self.commit()
        (line,) = self.stale()
        self.assertIn("measured on src/selection", line)


if __name__ == "__main__":
    unittest.main()
