# SPDX-License-Identifier: MIT
"""Draws a dispatch and its combine from a trace as a picture for the pages:

    ep_bench --ranks 3 --trace trace.json
    python3 trace.py trace.json 17 > docs/trace.svg    # 17: the dispatch
"""

import html
import json
import sys

WIDTH, LEFT, RIGHT, TOP = 860, 70, 14, 44
BAR, LANE = 26, 66  # The height of a bar, and of a lane of two bars.
STYLE = """
    :root { color-scheme: light dark; --page: #fff; --text: #222; --faint: #5c5c5c; --line: #8885;
      --operation: #cfdcec; --step: #2f8f4e; --wait: #d9731a; --on: #fff; }
    @media (prefers-color-scheme: dark) { :root { --page: #16191d; --text: #e6e6e6; --faint: #a5a9ae;
      --operation: #2c3f55; --step: #63d089; --wait: #ff9f57; --on: #16191d; } }
    svg { background: var(--page); max-width: 100%; height: auto; }
    .faint { fill: var(--faint); }
    .operation { fill: var(--operation); }
    .step { fill: var(--step); }
    .wait { fill: var(--wait); }
    .on { fill: var(--on); }
    line { stroke: var(--line); }
"""


def events_of(trace, number):
    """Returns the events of lane 0 of each rank that belong to the dispatch `number`."""
    return [event for event in trace["traceEvents"]
            if event["ph"] == "X" and event["tid"] == 0 and event["args"].get("seqNumber") == number and
            (event["name"].startswith(("dispatch", "combine")) or
             event["args"].get("of") in ("dispatch", "combine"))]


def kind_of(event):
    if event["cat"] != "step":
        return "operation"
    return "wait" if event["name"].startswith("wait") else "step"


def label_of(event):
    name = event["name"].removeprefix("wait for ")
    late = event["args"].get("waited_for")
    return f"{name}: rank {late}" if kind_of(event) == "wait" and late is not None else name


def draw(events):
    begin = min(event["ts"] for event in events)
    end = max(event["ts"] + event["dur"] for event in events)
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    ranks = sorted({event["pid"] for event in events})
    height = TOP + LANE * len(ranks) + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'role="img" font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12" fill="var(--text)">',
           "  <title>The operations, steps and waits of each rank in one dispatch and its combine</title>",
           f"  <style>{STYLE}  </style>"]
    for place, (kind, text) in enumerate((("operation", "operation"), ("step", "step"), ("wait", "wait: for the rank that came last"))):
        x = LEFT + 110 * place
        out.append(f'  <rect x="{x}" y="12" width="12" height="12" class="{kind}"/><text x="{x + 18}" y="22">{text}</text>')
    for row, rank in enumerate(ranks):
        y = TOP + LANE * row
        out.append(f'  <text x="8" y="{y + 30}" font-weight="600">rank {rank}</text>')
        out.append(f'  <line x1="0" x2="{WIDTH}" y1="{y - 6}" y2="{y - 6}"/>')
        for event in sorted((event for event in events if event["pid"] == rank), key=lambda event: event["ts"]):
            kind = kind_of(event)
            x, width = LEFT + (event["ts"] - begin) * scale, max(1.0, event["dur"] * scale)
            top = y if kind == "operation" else y + BAR + 2
            label = html.escape(label_of(event))
            out.append(f'  <rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" class="{kind}">'
                       f'<title>{html.escape(event["name"])}, {event["dur"]:.1f} us {html.escape(json.dumps(event["args"]))}</title></rect>')
            if width > 6.5 * len(label) + 8:
                on = "" if kind == "operation" else ' class="on"'
                out.append(f'  <text x="{x + 5:.1f}" y="{top + 17}"{on}>{label}</text>')
    y = TOP + LANE * len(ranks)
    out.append(f'  <line x1="0" x2="{WIDTH}" y1="{y - 6}" y2="{y - 6}"/>')
    span = end - begin
    unit = next(unit for unit in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 10 ** 6) if span / unit <= 12)
    for tick in range(0, int(span) + 1, unit):
        x = LEFT + tick * scale
        out.append(f'  <text x="{x:.1f}" y="{y + 14}" class="faint" text-anchor="middle">{tick}{" us" if tick == 0 else ""}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        events = events_of(json.load(file), int(sys.argv[2]))
    if not events:
        sys.exit(f"{sys.argv[1]} has no events of dispatch {sys.argv[2]}")
    sys.stdout.write(draw(events))


if __name__ == "__main__":
    main()
