#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes headers of peerbus, with all headers of peerbus that they include, as one header."""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r"#include <(peerbus/[^>]+)>")


def version():
    text = (ROOT / "include/peerbus/version.hpp").read_text()
    return ".".join(re.findall(r"#define PEERBUS_VERSION_\w+ (\d+)", text))


def without_compiled_form(lines):
    """Yields the lines that remain without PEERBUS_COMPILED: there is no library to take bodies from."""
    keeps, in_condition = True, False
    for line in lines:
        if line in ("#ifdef PEERBUS_COMPILED", "#ifndef PEERBUS_COMPILED"):
            keeps, in_condition = line.startswith("#ifn"), True
        elif in_condition and line == "#else":
            keeps = not keeps
        elif in_condition and line == "#endif":
            keeps, in_condition = True, False
        elif in_condition and line.startswith("#if"):
            sys.exit(f"single_header.py: '{line}' lies below a condition of PEERBUS_COMPILED; expected none there")
        elif keeps:
            yield line


def expand(header, seen):
    """Returns the lines of `header` with, where they are included first, those of its includes. An include below a
    condition, such as that of an instruction set, comes before it: others rely on it where the condition is false."""
    seen.add(header)
    out = [f"\n// <{header}>"]
    depth, condition = 0, 0
    for line in without_compiled_form((ROOT / "include" / header).read_text().splitlines()):
        include = INCLUDE.match(line)
        if line.startswith("#if"):
            condition = condition if depth else len(out)
            depth += 1
        elif line.startswith("#endif"):
            depth -= 1
        if include is None:
            if line != "#pragma once" and not line.startswith("// SPDX-License-Identifier:"):
                out.append(line)
        elif include[1] not in seen:
            place = condition if depth else len(out)
            lines = expand(include[1], seen)
            out[place:place] = lines
            condition += len(lines)
    return out


def single_header(entries):
    out = ["// SPDX-License-Identifier: MIT"]
    out += [f"// peerbus {version()}: <{'>, <'.join(entries)}> and all that they include.", "//"]
    out += [f"// {line}".rstrip() for line in (ROOT / "LICENSE").read_text().splitlines()]
    out += ["#pragma once", "", "#ifdef PEERBUS_COMPILED"]
    out += ['#error "the single header of peerbus has all bodies itself; expected no PEERBUS_COMPILED"', "#endif"]
    seen = set()
    for entry in entries:
        if entry not in seen:
            out += expand(entry, seen)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("entries", nargs="*", default=["peerbus/peerbus.hpp"], metavar="HEADER",
                        help="a header, such as peerbus/bootstrap/tcp.hpp (default: peerbus/peerbus.hpp)")
    parser.add_argument("--output", type=pathlib.Path, help="the file to write (default: standard output)")
    arguments = parser.parse_args()
    for entry in arguments.entries:
        if not (ROOT / "include" / entry).is_file():
            parser.error(f"there is no header <{entry}>; expected a file below {ROOT / 'include'}")
    text = single_header(arguments.entries)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
