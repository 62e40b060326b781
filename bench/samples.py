# SPDX-License-Identifier: Apache-2.0
"""Medians and quartiles of times, and their quotients. Needs nothing but Python.

A quotient has a range: the least and the most that the quartiles of both sides make of it. Whether it keeps a goal is
said only where the whole range agrees; else the difference is within noise. So with a goal of 1, one of two contenders is
called faster only where their quartile ranges do not meet."""

import statistics


def summary(times):
    """Median and quartiles of some times."""
    low, median, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * times
    return {"median_ms": median, "quartile_ms": [low, high]}


def interleaved(clock, runs, repetitions):
    """Times each of {name: run} as often as asked, one after the other, so that all see the same clocks and the same
    heat; the order turns with every round. {name: summary}"""
    names = list(runs)
    times = {name: [] for name in names}
    for round_ in range(repetitions):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(clock.time(runs[name]))
    return {name: summary(t) for name, t in times.items()}


def quotient(numerator, denominator, *, factor=1.0, goal=None):
    """Of two summaries; None where one was not measured."""
    if "median_ms" not in numerator or "median_ms" not in denominator:
        return None
    (low, high), (least, most) = numerator["quartile_ms"], denominator["quartile_ms"]
    return {
        "value": numerator["median_ms"] / denominator["median_ms"] * factor,
        "range": [low / most * factor, high / least * factor],
        "goal": goal,
    }


def verdict(ratio):
    """What may be said of a ratio and its goal: "<=", ">", or "~" where that is within noise."""
    low, high = ratio.get("range") or 2 * [ratio["value"]]
    if high <= ratio["goal"]:
        return "<="
    return ">" if low > ratio["goal"] else "~"
