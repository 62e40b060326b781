#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what `compute-sanitizer --tool racecheck` prints, and tells the pairs of accesses that are explained from the
others, which are failures.

    compute-sanitizer --tool racecheck --print-limit 10000 gpu_tests ... | bench/races.py

Each pair comes with the number of its reports. An access is known by its statement: by the text of the line that the
report names, for which the kernels are compiled with -lineinfo. KNOWN says why a pair is no race.
"""

import collections
import functools
import pathlib
import re
import sys

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "src"

#: (what the written line holds, what the read one holds, why one comes after the other): of src/attention/mqa.
KNOWN = [
    ("smem_.highest[row_ + 8 * r] = highest_[r]", "raise(r, smem_.highest[row_ + 8 * r])",
     "maxima: bar.arrive after the store, bar.sync of the same barrier before the load"),
    ("sums[kGroup][row_ + 8 * r] = own", "sums[0][row] + sums[1][row]",
     "sums: bar.arrive after the store, bar.sync of the same barrier before the load"),
    ("smem_.work[slot.index] = describe(p_, next)", "const TileWork work = smem_.work[slot.index]",
     "tiles of work: every warp arrives at empty_work past its reads, for which the store waits"),
    ("smem_.work[slot.index] = describe(p_, next)", "work_->",
     "tiles of work: every warp arrives at empty_work past its reads, for which the store waits"),
]
#: A kernel of a library that comes without sources.
CLOSED = re.compile(r"nvjet_\w+")

ACCESS = re.compile(r"(Read|Write) access at (.*?)\+0x[0-9a-f]+(?: in (\S+):(\d+))?(?: \[\d+ hazards?\])?$")


@functools.cache
def statement(file, line, function):
    """The text of a line. A report has the file's name without its folder, which is among the function's namespaces."""
    if file is None:
        return None
    spaces = set(re.split(r"\W+", function))
    found = [path for path in SOURCES.rglob(pathlib.Path(file).name) if path.parent.name in spaces]
    lines = found[0].read_text().splitlines() if len(found) == 1 else []
    return lines[int(line) - 1].strip() if 0 < int(line) <= len(lines) else None


def read(lines):
    """(pairs of accesses, the number that the tool says it reported, other lines). An access is a kind, a function and a
    statement. A report names one access and then every one that races with it."""
    pairs, reported, others = [], 0, []
    first = None
    for line in lines:
        text = line.removeprefix("=========").strip()
        found = ACCESS.search(text) if line.startswith("=========") else None
        if found:
            access = (found[1], found[2], statement(found[3], found[4], found[2]))
            if "Race reported between" in text:
                first = access
            else:
                pairs.append((first, access))
            continue
        summary = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed", text)
        reported += int(summary[1]) if summary else 0
        others.append(line.rstrip("\n"))
    return pairs, reported, others


def reason(first, second):
    """Why a pair is no race; None where it may be one."""
    kernels = [CLOSED.search(access[1]) for access in (first, second)]
    if all(kernels) and kernels[0][0] == kernels[1][0]:
        return "cuBLASLt's own"
    of = {kind: text for kind, _, text in (first, second)}
    functions = {kind: function for kind, function, _ in (first, second)}
    for written, read, why in KNOWN:
        if written in (of.get("Write") or ""):
            # The compiler moves some loads to where no line is known; they are of the same kernel then.
            if read in (of.get("Read") or "") or (of.get("Read") is None and "mqa_kernel" in functions.get("Read", "")):
                return why
    return None


def main():
    found, reported, others = read(sys.stdin)
    for line in others:
        if re.match(r"\$|.*(PASSED|FAILED|SUMMARY)|failed", line):
            print(line)
    failed = 0
    explained = collections.Counter()
    for (first, second), count in collections.Counter(found).items():
        why = reason(first, second)
        if why is not None:
            explained[why] += count
            continue
        failed += count
        both = " and ".join(f"{kind} of {text or function}" for kind, function, text in (first, second))
        print(f"failed: {count} x {both}")
    for why, count in explained.most_common():
        print(f"{count} x {why}")
    if len(found) < reported:
        failed += 1
        print(f"failed: {len(found)} pairs were read of {reported} reports")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
