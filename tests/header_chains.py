#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sorts headers into chains, so that few translation units show that each header needs no other before it.

In a chain, each header includes the one before it, directly or not. A file that includes them in this order
puts before each header only what it asks for itself, and is parsed once for all of them. The chains of a hub
are of headers that include it, so that it can be precompiled for them; the first hub that a header includes
counts. A hub may be a header of the C++ library. Prints a line for each chain: its hub or `-`, and the
headers, separated by spaces.
"""

import argparse
import re
from pathlib import Path


def included_by(header, direct, known):
    """Returns everything that a header includes, directly or not."""
    if header not in known:
        known[header] = set(direct.get(header, []))
        for one in direct.get(header, []):
            known[header] |= included_by(one, direct, known)
    return known[header]


def chains_of(headers, included):
    """Returns the fewest chains that cover the headers: a maximum matching of each with the one before it.

    Of two headers that include each other, the one that comes first in `headers` comes last in a chain.
    """
    before = {}

    def match(header, tried):
        for one in headers[headers.index(header) + 1:]:
            if one in included[header] and one not in tried:
                tried.add(one)
                if one not in before or match(before[one], tried):
                    before[one] = header
                    return True
        return False

    for header in headers:
        match(header, set())
    after = {header: one for one, header in before.items()}
    for last in headers:
        if last not in before:
            chain = [last]
            while chain[0] in after:
                chain.insert(0, after[chain[0]])
            yield chain


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--root", type=Path, required=True, help="what the names of headers are relative to")
    arguments.add_argument("--hubs", nargs="*", default=[], help="headers that many others include")
    arguments.add_argument("headers", nargs="+")
    asked = arguments.parse_args()
    direct = {}
    for header in asked.headers:
        text = (asked.root / header).read_text(encoding="utf-8").split("\n#if")[0]  # What it always includes.
        direct[header] = re.findall(r"^#include <(.*)>", text, re.MULTILINE)
    known = {}
    included = {header: included_by(header, direct, known) for header in asked.headers}
    left = sorted(asked.headers, key=lambda header: -len(included[header]))
    for hub in [*asked.hubs, None]:
        group = [header for header in left if hub is None or hub in included[header]]
        left = [header for header in left if header not in group]
        for chain in chains_of(group, included):
            print(hub or "-", *chain)


main()
