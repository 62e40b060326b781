#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a plan as an SVG: one bar for each kind of request, coloured by the path it takes, with the reasons.

    headrace route --model glm-5.3-flash --tp 4 --batch 2048,1x3000+1096,4x1+8k --json |
        tools/draw_routed_batch.py --title '...' > docs/images/routed-batch.svg

The picture brings its own background and follows the reader's light or dark preference.
"""

import argparse
import itertools
import json
import sys
import textwrap
from html import escape

WIDTH, MARGIN, BAR_LEFT, BAR_RIGHT = 920, 24, 214, 668
HEADER, LEGEND, BAR, LINE, GAP = 66, 44, 26, 17, 22
REASON_CHARACTERS = 96

STYLE = """
  text { font-family: ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 } .path { font-weight: 600 }
  .note { fill: #59636e; font-size: 12px }
  .card { fill: #ffffff; stroke: #d1d9e0 } .context { fill: #d8dee4 }
  .dense_mha { fill: #1a7f37 } .masked_mha { fill: #9a6700 } .topk_mqa { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 }
    .card { fill: #0d1117; stroke: #3d444d } .context { fill: #3d444d }
    .dense_mha { fill: #3fb950 } .masked_mha { fill: #d29922 } .topk_mqa { fill: #4493f8 }
  }
"""


def milliseconds(value):
    return f"{value:.3g} ms" if value < 1000 else f"{value:.0f} ms"


def lengths(request):
    """The lengths of a request in words."""
    new, cached = request["query_len"], request["context_len"]
    words = f"{new} new token" + ("s" if new != 1 else "")
    return words, f"after {cached} cached" if cached else "nothing cached"


def reasons(request):
    """The notes below a request's bar: why this path, and what speaks against each other one."""
    notes = [request["reason"] + ("; scoring is left out" if request["skip_scoring"] else "")]
    for other in request["alternatives"]:
        against = "; ".join(other["unmet"]) or f"predicted {milliseconds(other['predicted_ms'])}"
        notes.append(f"not {other['path']}: {against}")
    return list(itertools.chain.from_iterable(textwrap.wrap(note, REASON_CHARACTERS) for note in notes))


def groups(requests):
    """Requests that differ in nothing but their number, once each, with how many there are."""
    for _, same in itertools.groupby(requests, key=lambda r: json.dumps({**r, "request": 0}, sort_keys=True)):
        same = list(same)
        yield same[0], len(same)


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, style="", anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>')

    def bar(self, x, y, width, height, style):
        self.parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2" class="{style}"/>')


def draw_request(drawing, y, request, count, scale):
    """Draws one request at height y; returns the height below it."""
    new, cached = lengths(request)
    drawing.text(MARGIN, y + 11, (f"{count} × " if count > 1 else "") + new)
    drawing.text(MARGIN, y + 27, cached, "note")
    context = request["context_len"] * scale
    drawing.bar(BAR_LEFT, y, context, BAR, "context")
    # A single new token would be too thin to see.
    drawing.bar(BAR_LEFT + context, y, max(request["query_len"] * scale, 4), BAR, request["path"])
    drawing.text(BAR_RIGHT + 20, y + 17, request["path"], f"path {request['path']}")
    cost = milliseconds(request["predicted_ms"]) + (" each" if count > 1 else "")
    drawing.text(WIDTH - MARGIN, y + 17, cost, anchor="end")
    y += BAR + 18
    for note in reasons(request):
        drawing.text(BAR_LEFT, y, note, "note")
        y += LINE
    return y + GAP


def draw(plan, title):
    requests = list(groups(plan["requests"]))
    longest = max(r["query_len"] + r["context_len"] for r, _ in requests)
    scale = (BAR_RIGHT - BAR_LEFT) / max(longest, 1)
    drawing = Drawing()
    drawing.text(MARGIN, 34, title, "title")
    drawing.text(WIDTH - MARGIN, 34, "predicted", "note", anchor="end")
    y = HEADER
    for request, count in requests:
        y = draw_request(drawing, y, request, count, scale)
    x = BAR_LEFT
    for style, words in [("context", "cached"), *((p, f"new, {p}") for p in ("dense_mha", "masked_mha", "topk_mqa"))]:
        drawing.bar(x, y, 12, 12, style)
        drawing.text(x + 18, y + 11, words, "note")
        x += 48 + 7 * len(words)
    height = y + LEGEND - 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6" class="card"/>\n'
        + "\n".join(drawing.parts)
        + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=argparse.FileType(), default=sys.stdin, help="default: standard input")
    parser.add_argument("--title", default="One batch, routed")
    arguments = parser.parse_args()
    plan = json.load(arguments.plan)
    if plan.get("schema") != 1 or not plan.get("requests"):
        sys.exit("draw_routed_batch: expected the output of `headrace route --json` with at least one request")
    sys.stdout.write(draw(plan, arguments.title))


if __name__ == "__main__":
    main()
