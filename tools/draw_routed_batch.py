#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a plan as an SVG: a bar of tokens for each kind of request, coloured by path, with the reasons.

    headrace route --model glm-5.3-flash --tp 4 --threads 2 --profile nominal --batch 2048,1x3000+1096,12k,4x1+8k --json |
        tools/draw_routed_batch.py --title '...' --subtitle '...' > docs/images/routed-batch.svg

The picture brings its own background and follows the reader's light or dark preference.
"""

import argparse
import itertools
import json
import sys
import textwrap
from html import escape

WIDTH, MARGIN = 880, 28
BAR_LEFT, BAR_RIGHT, PATH_LEFT = 168, 650, 672
BAR, LINE, GAP = 26, 17, 26
NOTE_CHARACTERS = 106
# What a label in a bar takes at most, so that it is left out where it does not fit.
CHARACTER_WIDTH, LABEL_PADDING = 7.6, 10

PATHS = ("dense_mha", "masked_mha", "topk_mqa")

STYLE = """
  text { font-family: ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
  text { font-size: 13px } .title { font-size: 17px; font-weight: 600 } .strong { font-weight: 600 }
  .code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 12px }
  .note { fill: #59636e; font-size: 12px } .card { fill: #ffffff; stroke: #d1d9e0 } .rule { stroke: #d1d9e0 }
  .grid { stroke: #d1d9e0 } .context { fill: #d8dee4 } .on-context { font-size: 12px; fill: #424a53 }
  .dense_mha { fill: #1a7f37 } .masked_mha { fill: #9a6700 } .topk_mqa { fill: #0969da }
  .on-path { font-size: 12px; font-weight: 600; fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d } .rule { stroke: #3d444d }
    .grid { stroke: #3d444d } .context { fill: #30363d } .on-context { fill: #c9d1d9 }
    .dense_mha { fill: #3fb950 } .masked_mha { fill: #d29922 } .topk_mqa { fill: #58a6ff } .on-path { fill: #0d1117 }
  }
"""


def duration(milliseconds):
    """As `headrace route` prints it: three digits."""
    value, unit = (milliseconds / 1000, "s") if milliseconds >= 1000 else (milliseconds, "ms")
    decimals = max(0, 2 - (len(str(int(value))) - 1))
    return f"{value:.{decimals}f} {unit}"


def paths_of(request):
    return list(dict.fromkeys(segment["path"] for segment in request["segments"]))


def reasons(request):
    """The notes below a request's bar: why this path, and what speaks against each other one."""
    notes = []
    if request["skip_scoring"]:
        notes.append("Every key of every row is selected, so the indexer's scoring is left out.")
    if len(request["segments"]) > 1:
        covered = request["segments"][0]["end"]
        notes.append(f"Every key is selected for the rows at positions below {covered}, which take a path of their own.")
    for other in request["alternatives"]:
        if not other["unmet"]:
            times = other["predicted_ms"] / request["predicted_ms"]
            notes.append(f"{other['path']} would take {times:.{2 if times < 10 else 0}f} times as long.")
        elif other["path"] not in paths_of(request):
            # What a requirement says in its first clause is enough here.
            notes.append(f"{other['path']} cannot run: {other['unmet'][0].split(': ')[0]}.")
    return list(itertools.chain.from_iterable(textwrap.wrap(note, NOTE_CHARACTERS) for note in notes))


def groups(requests):
    """Runs of requests that differ in nothing but their number, once each, with how many there are."""
    for _, same in itertools.groupby(requests, key=lambda r: json.dumps({**r, "request": 0}, sort_keys=True)):
        same = list(same)
        yield same[0], len(same)


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, style="", anchor="start"):
        anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{style}"{anchored}>{escape(words)}</text>')

    def line(self, x1, y1, x2, y2, style):
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{style}"/>')

    def bar(self, x, y, width, height, style, labels=(), label_style=""):
        """A bar with the longest of its labels that fits."""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height}" rx="3" class="{style}"/>')
        for label in labels:
            if len(label) * CHARACTER_WIDTH + LABEL_PADDING <= width:
                self.text(round(x + width / 2, 1), y + height / 2 + 4, label, label_style, "middle")
                break


def draw_legend(drawing, y):
    x = MARGIN
    for style, words in [("context", "cached"), *((path, f"new, {path}") for path in PATHS)]:
        drawing.bar(x, y - 10, 12, 12, style)
        drawing.text(x + 18, y, words, "note")
        x += 44 + 7 * len(words)


def ticks(longest):
    """Round numbers of tokens, at most eight."""
    step = 1
    while longest / step > 7:
        step *= 2
    return range(0, longest + 1, step)


def draw_axis(drawing, y, longest, scale):
    drawing.line(BAR_LEFT, y, BAR_RIGHT, y, "rule")
    drawing.text(MARGIN, y + 20, "tokens", "note")
    for tokens in ticks(longest):
        x = round(BAR_LEFT + tokens * scale, 1)
        drawing.line(x, y, x, y + 4, "rule")
        drawing.text(x, y + 20, f"{tokens // 1024}k" if tokens >= 1024 else f"{tokens}", "note", "middle")


def draw_request(drawing, y, request, count, longest, scale):
    """Draws one kind of request at height y; returns the height below it."""
    new, cached = request["query_len"], request["context_len"]
    drawing.text(MARGIN, y + 11, (f"{count} × " if count > 1 else "") + f"{new} new", "strong")
    drawing.text(MARGIN, y + 27, f"after {cached} cached" if cached else "nothing cached", "note")

    for tokens in ticks(longest):
        x = round(BAR_LEFT + tokens * scale, 1)
        drawing.line(x, y - 4, x, y + BAR + 4, "grid")
    drawing.bar(BAR_LEFT, y, cached * scale, BAR, "context", (f"{cached} cached", f"{cached}"), "on-context")
    for segment in request["segments"]:
        rows = segment["end"] - segment["begin"]
        # A single new token would be too thin to see; one pixel of background parts it from what is before.
        x = BAR_LEFT + segment["begin"] * scale + (1 if segment["begin"] else 0)
        width = max(rows * scale - (1 if segment["begin"] else 0), 4)
        drawing.bar(x, y, width, BAR, segment["path"], (f"{rows} new", f"{rows}"), "on-path")

    drawing.text(PATH_LEFT, y + 11, " + ".join(paths_of(request)), "code strong")
    drawing.text(PATH_LEFT, y + 27, duration(request["predicted_ms"]) + (" each" if count > 1 else ""), "note")
    y += BAR + 20
    for note in reasons(request):
        drawing.text(BAR_LEFT, y, note, "note")
        y += LINE
    return y - LINE + GAP


def draw(plan, title, subtitle):
    requests = [(request, count) for request, count in groups(plan["requests"]) if request["query_len"] > 0]
    longest = max(request["query_len"] + request["context_len"] for request, _ in requests)
    scale = (BAR_RIGHT - BAR_LEFT) / longest

    drawing = Drawing()
    drawing.text(MARGIN, 38, title, "title")
    drawing.text(MARGIN, 59, subtitle, "note code")
    draw_legend(drawing, 90)
    drawing.text(PATH_LEFT, 90, f"predicted, {plan['threads']} threads", "note")
    y = 116
    for request, count in requests:
        y = draw_request(drawing, y, request, count, longest, scale)
    draw_axis(drawing, y - 8, longest, scale)

    height = y + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="card"/>\n'
        + "\n".join(drawing.parts)
        + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=argparse.FileType(), default=sys.stdin, help="default: standard input")
    parser.add_argument("--title", default="One batch, routed")
    parser.add_argument("--subtitle", default="", help="the command that made the plan, say")
    arguments = parser.parse_args()
    plan = json.load(arguments.plan)
    if plan.get("schema") != 1 or not any(request["query_len"] > 0 for request in plan.get("requests", [])):
        sys.exit("draw_routed_batch: expected the output of `headrace route --json` with at least one new token")
    sys.stdout.write(draw(plan, arguments.title, arguments.subtitle))


if __name__ == "__main__":
    main()
