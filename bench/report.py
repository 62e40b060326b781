# SPDX-License-Identifier: Apache-2.0
"""The results of peers.py as text. Needs nothing but Python."""

import samples

LEGEND = (
    "ratios are of medians; <= and > a goal where the quotients of all quartiles agree, ~ where they do not: within noise"
)


def table(rows):
    """Text in columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    )


def text_of_time(entry):
    if "median_ms" not in entry:
        return "-"
    low, high = entry["quartile_ms"]
    return f"{entry['median_ms']:.3f} [{low:.3f} {high:.3f}]"


def text_of_ratio(ratio):
    if ratio is None:
        return "-"
    verdict = "" if ratio["goal"] is None else f" {samples.verdict(ratio)} {ratio['goal']:g}"
    return f"{ratio['value']:.3f}{verdict}"


def not_measured(cases):
    """{(contender, reason): names of the cases}"""
    reasons = {}
    for case in cases:
        for name, entry in case["contenders"].items():
            if "not_measured" in entry:
                reasons.setdefault((name, entry["not_measured"]), []).append(case["case"])
    return reasons


def part_table(part, cases):
    """Times and ratios of one part's cases."""
    measured = [name for case in cases for name, entry in case["contenders"].items() if "median_ms" in entry]
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"] if name in measured))
    ratios = list(dict.fromkeys(name for case in cases for name in case["ratios"]))
    rows = [[f"{part}: median [quartiles], ms", *names, *ratios]]
    for case in cases:
        path = f" ({', '.join(case['paths'])})" if "paths" in case else ""
        times = [text_of_time(case["contenders"].get(name, {})) for name in names]
        rows.append([case["case"] + path, *times, *(text_of_ratio(case["ratios"].get(name)) for name in ratios)])
    return table(rows)


def text_of(cases, tolerance):
    """One table a part, then what was not measured and why."""
    lines = [LEGEND]
    for part in dict.fromkeys(case["part"] for case in cases):
        mine = [case for case in cases if case["part"] == part]
        lines += ["", part_table(part, mine)]
        for (name, reason), where in not_measured(mine).items():
            lines.append(
                f"not measured: {name}, {'every case' if len(where) == len(mine) else '; '.join(where)}: {reason}"
            )
    errors = [e["worst_row"] for c in cases for e in c["contenders"].values() if "median_ms" in e and "worst_row" in e]
    if errors:
        lines += ["", f"worst sampled row of what was measured: {max(errors):.1e} (at most {tolerance:g})"]
    return "\n".join(lines)
