#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is measured: the commit, and git's tree ids of the folders whose change makes a measurement stale. Run by
itself, prints them as options for peers.py, for a machine that has the files but no git."""

import contextlib
import pathlib
import subprocess

FOLDERS = ("src/attention", "src/cache", "src/selection")
ROOT = pathlib.Path(__file__).resolve().parents[1]


def output_of(*command):
    """What a command prints, in the root of the repository; None where it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()
    return None


def commit_and_trees():
    """The commit and {folder: tree id}, with "+changes" where files differ from it; None and {} without git."""
    trees = {}
    for folder in FOLDERS:
        tree = output_of("git", "rev-parse", f"HEAD:{folder}")
        if tree:
            changes = output_of("git", "status", "--porcelain", "--", folder)
            trees[folder] = tree + ("+changes" if changes else "")
    return output_of("git", "rev-parse", "HEAD"), trees


if __name__ == "__main__":
    commit, trees = commit_and_trees()
    print(f"--commit {commit} --trees {','.join(f'{folder}={tree}' for folder, tree in trees.items())}")
