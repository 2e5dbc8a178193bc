#!/usr/bin/env python3
"""Draws a flame graph of a recorded profile as an SVG without scripts.

    perf record --freq 499 --call-graph dwarf,49152 --pid <pid> --output FILE -- sleep 10
    perf script --input FILE | scripts/flame_graph.py --title TEXT > graph.svg

The width of a frame is its share of the samples. Threads of one name are drawn as one. A frame's tooltip has its
name and share.
"""

import argparse
import html
import re
import sys

WIDTH = 1200
ROW = 16
# Frames with a smaller share are not drawn.
LEAST = 0.005
# Characters of a frame's name in its tooltip; names of generic Rust functions have thousands.
NAME_MAX = 160
HEADER = re.compile(r"^(\S.*?)\s+\d+(?:/\d+)?\s+(?:\[\d+\]\s+)?[\d.]+:")
FRAME = re.compile(r"^\s+[0-9a-f]+ (.+?)(?:\+0x[0-9a-f]+)? \(.*\)$")
HASH = re.compile(r"::h[0-9a-f]{16}$")


def stacks(lines):
    """Each sample as frames from the thread's name inwards."""
    thread, frames = None, []
    for line in lines:
        if header := HEADER.match(line):
            thread, frames = re.sub(r"[-\d]+$", "", header[1]), []
        elif frame := FRAME.match(line):
            frames.append(HASH.sub("", frame[1]))
        elif thread and not line.strip():
            yield [thread, *reversed(frames)]
            thread = None


class Node:
    """Samples of one frame, with those that it calls."""

    def __init__(self):
        self.samples = 0
        self.callees = {}

    def add(self, frames):
        self.samples += 1
        if frames:
            self.callees.setdefault(frames[0], Node()).add(frames[1:])

    def depth(self, total):
        drawn = [node for node in self.callees.values() if node.samples >= LEAST * total]
        return 1 + max((node.depth(total) for node in drawn), default=0)


def colour(name):
    """By origin: the kernel, the product, other crates."""
    if name.startswith("trust_fabric"):
        return "#f5a15a"
    if "::" in name:
        return "#f2d16b"
    return "#9ec5e8"


def draw(name, node, left, row, total, rows, out):
    width = WIDTH * node.samples / total
    y = (rows - row) * ROW
    share = f"{100 * node.samples / total:.1f} %"
    shown = name[: max(0, int(width / 6.4))] if width > 20 else ""
    out.append(
        f'<g><title>{html.escape(name[:NAME_MAX])}: {share}</title>'
        f'<rect x="{left:.1f}" y="{y}" width="{max(width - 0.3, 0.3):.1f}" height="{ROW - 1}" fill="{colour(name)}"/>'
        f'<text x="{left + 2:.1f}" y="{y + 11}">{html.escape(shown)}</text></g>'
    )
    for callee, samples in sorted(node.callees.items()):
        if samples.samples >= LEAST * total:
            draw(callee, samples, left, row + 1, total, rows, out)
            left += WIDTH * samples.samples / total


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--title", required=True, help="text above the graph")
    options = arguments.parse_args()
    root = Node()
    for frames in stacks(sys.stdin):
        root.add(frames)
    if not root.samples:
        sys.exit("no samples: give the output of perf script")
    rows = root.depth(root.samples) + 1
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{(rows + 1) * ROW}"'
        ' font-family="monospace" font-size="10">',
        f'<text x="4" y="12">{html.escape(options.title)}: {root.samples} samples</text>',
    ]
    draw("all", root, 0, 0, root.samples, rows, out)
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()
