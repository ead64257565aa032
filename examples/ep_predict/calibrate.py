#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a platform for ep_predict from results of ep_bench on this machine.

calibrate.py [--statistic min|p10|p50] RESULT.json... > PLATFORM.json

The results are those of `ep_bench --json` for 2 ranks over ub that differ in --tokens. Of several with equal
tokens the median counts. Costs come from every second number of tokens, from the least on, and the greatest.
`ep_predict PLATFORM.json --residuals` then compares all batches with what the simulation makes of them.
"""
import argparse
import itertools
import json
import statistics
import sys

SHAPE = ("ranks", "hidden", "top_k", "experts", "layout", "codec", "transport", "outputs")
OPERATIONS = ("dispatch", "combine")
EXPECTED = {"ranks": 2, "transport": "ub", "outputs": "expert"}


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        config, limit = result["config"], result["limit"]
        shape = {name: config[name] for name in SHAPE}
        for name, value in EXPECTED.items():
            if shape[name] != value:
                sys.exit(f"{path}: {name} is {shape[name]}, expected {value}")
        if limit["signal_one_way_ns"] is None or config["lanes"] != 1:
            sys.exit(f"{path}: lanes is {config['lanes']}, expected 1")
        return result, shape
    except (OSError, ValueError, KeyError, TypeError) as problem:
        sys.exit(f"{path}: no result of ep_bench --json: {problem!r}")


def line(points):
    """Returns start and slope of the line over (tokens, time) whose largest relative error is the least. Three points
    have this error, above, below and above the line or the other way round."""
    (t0, y0), (t1, y1) = points[0], points[-1]
    slope = (y1 - y0) / (t1 - t0)
    found, least = (y0 - slope * t0, slope), None
    for (t0, y0), (t1, y1), (t2, y2) in itertools.combinations(points, 3):
        # The chord's height above the middle point, as a part of their sum, is the error.
        part = (t1 - t0) / (t2 - t0)
        chord = y0 + part * (y2 - y0)
        error = (y1 - chord) / (y1 + chord)
        slope = (y2 - y0) * (1 + error) / (t2 - t0)
        start = y0 * (1 + error) - slope * t0
        worst = max(abs((start + slope * t) / y - 1) for t, y in points)
        if least is None or worst < least:
            found, least = (start, slope), worst
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statistic", choices=["min", "p10", "p50"], default="p50",
                        help="of the iterations; less than p50 where other programs take the cores [p50]")
    parser.add_argument("results", nargs="+", metavar="RESULT.json")
    chosen = parser.parse_args()
    by_tokens = {}
    first = None
    for path in chosen.results:
        result, shape = read(path)
        first = first or (path, result, shape)
        for name in SHAPE:
            if shape[name] != first[2][name]:
                sys.exit(f"{path}: {name} is {shape[name]}, expected {first[2][name]} as in {first[0]}")
        by_tokens.setdefault(result["config"]["tokens"], []).append(result)
    if len(by_tokens) < 2:
        sys.exit("expected results of at least 2 numbers of tokens")

    def median(tokens, *names):
        found = []
        for value in by_tokens[tokens]:
            for name in names:
                value = value[name]
            found.append(value)
        return statistics.median(found)

    shape = first[2]
    least, most = min(by_tokens), max(by_tokens)
    measured = {tokens: {which: median(tokens, f"{which}_us", chosen.statistic) for which in OPERATIONS}
                for tokens in by_tokens}
    latency = statistics.median(median(tokens, "limit", "signal_one_way_ns") for tokens in by_tokens)
    # A time is a start and a slope over tokens. The faster operation copies its bytes and does nothing else.
    fits = sorted({*sorted(by_tokens)[::2], most})
    start, slope = {}, {}
    for which in OPERATIONS:
        begin, slope[which] = line([(tokens, measured[tokens][which] * 1000) for tokens in fits])
        start[which] = begin - latency
    if min(slope.values()) <= 0:
        sys.exit(f"{most} tokens take no longer than {least}")
    moved = {which: median(most, "bytes", which) / most for which in OPERATIONS}
    rate = max(moved[which] / slope[which] for which in OPERATIONS)
    token_ns = slope["dispatch"] - moved["dispatch"] / rate
    sum_ns = (slope["combine"] - moved["combine"] / rate) / shape["top_k"]
    fitted = {tokens: {"dispatch_fitted": "dispatch_ns, token_ns", "combine_fitted": "combine_ns, copy_gb_per_s, sum_ns"}
              for tokens in fits}
    json.dump({
        "name": f"2 cores of {first[1]['machine']['cpu']}",
        "sources": [f"ep_bench over ub: {chosen.statistic} of the iterations, the median of up to "
                    f"{max(map(len, by_tokens.values()))} runs.",
                    "latency_ns: a cache line's way, measured beside.",
                    f"Chosen so that the largest relative error of {', '.join(map(str, fits))} tokens is the least: all costs."],
        "ports": [{"name": "memory", "ranks": 1}],
        "levels": [{"name": "host", "latency_ns": round(latency, 1), "gb_per_s": 1000000, "message_ns": 0,
                    "port": "memory"}],
        "near_levels": 1,
        "costs": {"dispatch_ns": round(max(start["dispatch"], 0)), "combine_ns": round(max(start["combine"], 0)),
                  "put_ns": 0, "signal_ns": 0, "poll_ns": 1, "token_ns": round(max(token_ns, 0), 1),
                  "sum_ns": round(max(sum_ns, 0), 1), "copy_gb_per_s": round(rate, 3)},
        "most_ranks": 2,
        "published": [{"ranks": 2, "tokens": tokens, "hidden": shape["hidden"], "top_k": shape["top_k"],
                       "experts": shape["experts"], "layout": shape["layout"], "codec": shape["codec"],
                       "dispatch_us": measured[tokens]["dispatch"], "combine_us": measured[tokens]["combine"],
                       **fitted.get(tokens, {})} for tokens in sorted(by_tokens)],
    }, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
