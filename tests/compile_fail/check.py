#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the numbered cases of a source do not compile, each for the reason that it names.

CMakeLists.txt says how such a source is written. All cases are compiled at one go, each in a namespace of
its own, which parses the headers once. A case without the expected error there is compiled alone, because
it may not be possible in a namespace, or another case may have had the same error first.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

SECTION = re.compile(r"^#if PEERBUS_CASE == (\d+)$")
EXPECTED = re.compile(r'^// case (\d+): expect "(.*)"$')


def parse(text):
    """Returns the lines of each case, as a range of numbers from 1 up to its #endif, and the expected errors."""
    lines, expected, begin = {}, {}, None
    for number, line in enumerate(text.splitlines(), start=1):
        if found := SECTION.match(line):
            begin = (int(found[1]), number)
        elif found := EXPECTED.match(line):
            expected[int(found[1])] = found[2]
        elif line == "#endif" and begin:
            lines[begin[0]] = range(begin[1], number)
            begin = None
    if lines.keys() - {0} != expected.keys() or not expected:
        sys.exit(f"has sections '#if PEERBUS_CASE == N' for {sorted(lines)} and lines "
                 f"'// case N: expect \"regex\"' for {sorted(expected)}; expected one line per section but 0")
    return lines, expected


def joined(text, lines):
    """Returns the text with each case but 0 in a namespace, on the same lines."""
    result = text.splitlines()
    for case, its_lines in lines.items():
        if case != 0:
            result[its_lines.start - 1] = f"namespace case_{case} {{"
            result[its_lines.stop - 1] = "}"
    return "\n".join(result) + "\n"


def errors(output):
    """Splits what a compiler says into its errors, each with what it says before and after of the places."""
    found, before = [], []
    for line in output.splitlines():
        if re.search(r"\berror: ", line):
            found.append([*before, line])
            before = []
        elif before or re.search(r": In | from |: required ", line):
            before.append(line)  # g++ names the places that lead to an error first, clang++ after it.
        elif found:
            found[-1].append(line)
    return ["\n".join(one) for one in found]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("source", type=Path)
    arguments.add_argument("--include", required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("compiler", nargs="+", help="after --, with the option that makes it tell all errors")
    asked = arguments.parse_args()
    source = asked.source
    text = source.read_text(encoding="utf-8")
    lines, expected = parse(text)
    everything = asked.work / source.name
    everything.write_text(joined(text, lines), encoding="utf-8")

    def compile_case(case, path=source):
        """Returns whether the case compiles, and what the compiler said: plain quotes and English."""
        done = subprocess.run([*asked.compiler, "-std=c++20", "-fsyntax-only", "-DPEERBUS_COMPILED", "-I", asked.include,
                               f"-DPEERBUS_CASE={case}", str(path)], env={**os.environ, "LC_ALL": "C"},
                              stderr=subprocess.PIPE, text=True, check=False)
        return done.returncode == 0, done.stderr

    compiles, output = compile_case(0)
    if not compiles:
        sys.exit(f"the positive control, case 0, does not compile:\n{output}")

    def is_shown(case, error):
        places = re.findall(rf"{re.escape(source.name)}:(\d+):", error)
        return any(int(place) in lines[case] for place in places) and re.search(expected[case], error)

    _, output = compile_case(-1, everything)
    found = errors(output)
    alone = [case for case in expected if not any(is_shown(case, error) for error in found)]
    failures = 0
    for case in alone:
        compiles, output = compile_case(case)
        if compiles:
            print(f'case {case} compiles; expected an error that matches "{expected[case]}"')
        elif not re.search(expected[case], output):
            print(f'case {case} fails, but for another reason; expected "{expected[case]}":\n{output}')
        else:
            continue
        failures += 1
    print(f"{len(expected)} cases, {len(alone)} of them compiled alone, {failures} failed")
    sys.exit(failures != 0)


main()
