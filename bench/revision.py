#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is measured, and by what: the commit, and git's ids of the folders whose change makes a measurement stale. Run by
itself, prints them as options for peers.py, for a machine that has the files but no git."""

import contextlib
import pathlib
import subprocess

SOURCES = ("src/attention", "src/cache", "src/selection")  #: what is measured
GPU_BENCH, PEERS = "tests/gpu/bench", "bench"  #: what measures
FOLDERS = (*SOURCES, GPU_BENCH, PEERS)
ROOT = pathlib.Path(__file__).resolve().parents[1]


def output_of(*command):
    """What a command prints, in the root of the repository; None where it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()
    return None


def tree_of(folder):
    """The id of a folder at HEAD; of bench/, that of the list of its own files: results do not make it another."""
    if folder != PEERS:
        return output_of("git", "rev-parse", f"HEAD:{folder}")
    return output_of("bash", "-o", "pipefail", "-c", f"git ls-tree HEAD {folder}/ | grep ' blob ' | git hash-object --stdin")


def commit_and_trees():
    """The commit and {folder: tree id}, with "+changes" where files differ from it; None and {} without git."""
    trees = {}
    for folder in FOLDERS:
        tree = tree_of(folder)
        if tree:
            changes = output_of("git", "status", "--porcelain", "--", folder, ":!bench/results")
            trees[folder] = tree + ("+changes" if changes else "")
    return output_of("git", "rev-parse", "HEAD"), trees


def for_peers(trees):
    """The trees on which results of peers.py depend."""
    return {folder: tree for folder, tree in trees.items() if folder != GPU_BENCH}


if __name__ == "__main__":
    commit, trees = commit_and_trees()
    print(f"--commit {commit} --trees {','.join(f'{folder}={tree}' for folder, tree in trees.items())}")
