# SPDX-License-Identifier: MIT
"""Measures figures of docs/figures.json by the commands there, and reads them out of what these print or write.

`read` of a figure is one of
    STEP STEP...        in the JSON: a member, the index in a list, or NAME=VALUE[,NAME=VALUE] for the element that has these
                        members (or, of a string, what begins so before a `/`); several and numbers are joined by + - * /, from
                        left to right
    match REGEX         the group in the output; `* NUMBER` may follow. Three groups are value, least and most, of a command
                        that finds the spread itself
    {value, least, most}   one of these for each, likewise
and `over`, lists of values by their name in the command or in `read`, makes the least and greatest of all of them.
"""

import argparse
import datetime
import itertools
import json
import operator
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile

import machine
import pages
from record import Record

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOT_MAY_RUN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class Failure(Exception):
    pass


def step_into(found, step):
    if "=" in step:
        wanted = [condition.split("=", 1) for condition in step.split(",")]
        return next(each for each in found
                    if all(str(each.get(name)) == value or str(each.get(name)).startswith(value + "/") for name, value in wanted))
    return found[int(step) if isinstance(found, list) else step]


def matches_of(expression, output):
    """Returns the numbers that the groups of `match REGEX` find."""
    pattern, scale = re.fullmatch(r"match (.*?)(?: \* ([\d.]+))?", expression).groups()
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        raise Failure(f"the output has nothing like {pattern}")
    return [float(group) * float(scale or 1) for group in match.groups()]


def number_of(expression, output, found):
    """Returns the number that `read` describes."""
    if expression.startswith("match "):
        return matches_of(expression, output)[0]
    result, combine = None, None
    for term in re.split(r" ([-+*/]) ", expression):
        if term in OPERATORS:
            combine = OPERATORS[term]
            continue
        if re.fullmatch(r"\d+\.\d+|\d{2,}", term):
            value = float(term)
        else:
            try:
                value = found
                for step in term.split():
                    value = step_into(value, step)
                value = float(value)
            except (KeyError, IndexError, StopIteration, TypeError, ValueError) as problem:
                raise Failure(f"the results have no number at: {term}") from problem
        result = value if combine is None else combine(result, value)
    return result


class Programs:
    """Builds in a folder of its own, and runs commands there."""

    def __init__(self, build):
        self.build, self.made = build, set()

    def make(self, targets):
        if not (self.build / "CMakeCache.txt").exists():
            self.call(["cmake", "--preset", "release", "-B", str(self.build), "-DPEERBUS_BUILD_TESTS=OFF"])
        if wanted := [target for target in targets if target not in self.made]:
            self.call(["cmake", "--build", str(self.build), "--target", *wanted])
            self.made.update(wanted)

    @staticmethod
    def call(command):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(f"{' '.join(command)} fails: {(done.stdout + done.stderr)[-1500:]}")

    def compiler(self):
        found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", (self.build / "CMakeCache.txt").read_text(), re.MULTILINE)
        return found[1] if found else "c++"

    def run(self, command):
        """Returns what the command prints and the JSON that it writes, or prints."""
        folders = [folder for name in ("benchmarks", "examples") for folder in [self.build / name, *(self.build / name).glob("*/")]]
        path = ":".join([*map(str, folders), os.environ["PATH"]])
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            done = subprocess.run(["bash", "-c", command.replace("{json}", file.name)], cwd=ROOT,
                                  env={**os.environ, **ROOT_MAY_RUN_MPI, "PATH": path}, capture_output=True, text=True, check=False)
            written = pathlib.Path(file.name).read_text() or done.stdout
        if done.returncode:
            raise Failure(f"{command} fails: {(done.stdout + done.stderr)[-600:].strip()}")
        try:
            found = json.loads(written)
        except ValueError:
            found = None
        if isinstance(found, dict) and not found.get("check", {}).get("passed", True):
            raise Failure(f"{command}: its own check fails: {found['check'].get('what', '')}")
        return done.stdout, found


class Measurement:
    """What one figure needs: its commands, one for each combination of `over`, and where the number stands."""

    def __init__(self, record, key, build):
        self.key, self.runs = key, record.field(key, "runs", 1)
        over = record.field(key, "over", {})
        named = dict(zip(record.field(key, "parts", "").split(), key.split(".")[1:]))
        spelled = record.field(key, "spelled", {})
        self.cases = []
        for values in itertools.product(*over.values()):
            words = {name: spelled.get(name, {}).get(value, value) for name, value in {**named, **dict(zip(over, values))}.items()}
            words["build"] = str(build)
            self.cases.append((self.fill(record.field(key, "command"), words), self.reading(record.field(key, "read"), words)))
        targets = record.field(key, "targets")
        self.targets = [command.split()[0] for command, _ in self.cases] if targets is None else targets.split()

    @staticmethod
    def fill(text, words, quote=str):
        return re.sub(r"\{(\w+)\}", lambda name: quote(words[name[1]]) if name[1] in words else name[0], text)

    def reading(self, read, words):
        if isinstance(read, dict):
            return {name: self.reading(each, words) for name, each in read.items()}
        return self.fill(read, words, re.escape if read.startswith("match ") else str)

    def result(self, results):
        """Returns value, least and most, from what the commands printed and wrote in each run."""
        middles = []
        for command, read in self.cases:
            if command not in results:
                raise Failure("left as it was, because its command failed")
            if isinstance(read, dict):
                return {name: number_of(each, *results[command][-1]) for name, each in read.items()}
            if read.startswith("match ") and len(found := matches_of(read, results[command][-1][0])) == 3:
                return dict(zip(("value", "least", "most"), found))
            samples = [number_of(read, *each) for each in results[command]]
            middles.append(statistics.median(samples))
        if len(self.cases) == 1:
            middles = samples
        value = {"value": statistics.median(middles)}
        return value if len(middles) == 1 else {**value, "least": min(middles), "most": max(middles)}


def measure(record, keys, programs, given, date):
    """Replaces the figures of one group. Returns whether all are there."""
    measurements = [Measurement(record, key, programs.build) for key in keys]
    programs.make(dict.fromkeys(target for each in measurements for target in each.targets))
    runs = {}
    for each in measurements:
        for command, _ in each.cases:
            runs[command] = max(runs.get(command, 0), each.runs)
    results = {command: [] for command in runs}
    for number in range(max(runs.values())):
        for command, wanted in runs.items():
            if number < wanted and command in results:
                print(f"figures.sh: {command}", file=sys.stderr)
                try:
                    results[command].append(programs.run(command))
                except Failure as problem:
                    print(f"figures.sh: {problem}", file=sys.stderr)
                    del results[command]
    complete = True
    for each in measurements:
        try:
            found = each.result(results)
        except Failure as problem:
            print(f"figures.sh: {each.key}: {problem}", file=sys.stderr)
            complete = False
            continue
        where = machine.enter(record.machines, programs.compiler(), date, given)
        _, figure = record.find(each.key)
        before = record.texts(each.key)
        if record.field(each.key, "shows", "value") != "value":
            found = {"least": found["value"], "most": found["value"], **found}
        new = {name: float(f"{found[name]:.5g}") for name in ("value", "least", "most") if name in found}
        others = {name: value for name, value in figure.items() if name not in ("value", "least", "most")}
        figure.clear()
        figure.update(new | others, machine=where, date=date)
        print(f"{each.key}: {' '.join(before)} -> {' '.join(record.texts(each.key))} {record.field(each.key, 'unit')}")
    record.settle(each.key.partition(".")[0])
    record.write()
    return complete


def selected(record, names):
    """Returns the keys that `names` select, by their group."""
    keys = [key for key in record.keys() if not names or key in names or key.partition(".")[0] in names]
    for name in names:
        if not any(name in (key, key.partition(".")[0]) for key in keys):
            raise Failure(f"'{name}' given, expected a key or a table that --list lists")
    by_group = {}
    for key in keys:
        if "of" not in record.find(key)[1]:
            by_group.setdefault(key.partition(".")[0], []).append(key)
    return by_group


def main():
    parser = argparse.ArgumentParser(prog="figures.sh", description="Measures the figures that the pages quote, and writes them "
                                     "into docs/figures.json and the pages.")
    parser.add_argument("keys", nargs="*", metavar="KEY", help="a figure, or the first word of many [all]")
    parser.add_argument("--table", action="append", default=[], metavar="NAME", help="all figures of a table")
    parser.add_argument("--list", action="store_true", help="list keys, figures, machines, dates and commands")
    parser.add_argument("--write-pages", action="store_true", help="measure nothing, write the figures into the pages")
    parser.add_argument("--machine", metavar="NAME", help="this machine is that one of docs/performance.md [found by itself]")
    parser.add_argument("--build", default=ROOT / "build" / "figures", type=lambda name: pathlib.Path(name).resolve(), metavar="DIR")
    chosen = parser.parse_args()
    record = Record(ROOT / "docs" / "figures.json")
    if chosen.machine is not None and chosen.machine not in record.machines:
        raise Failure(f"--machine '{chosen.machine}' given, expected one of {', '.join(record.machines)}")
    complete = True
    if not chosen.write_pages:
        programs, date = Programs(chosen.build), datetime.date.today().isoformat()
        for keys in selected(record, chosen.keys + chosen.table).values():
            if chosen.list:
                for key in keys:
                    print(f"{key}: {' '.join(record.texts(key))} {record.field(key, 'unit')}, {record.machine(key)}, "
                          f"{record.field(key, 'date')}: {record.field(key, 'command') or 'by hand: ' + record.field(key, 'by_hand')}")
                continue
            for key in [key for key in keys if record.field(key, "by_hand")]:
                print(f"figures.sh: {key} is left out, by hand: {record.field(key, 'by_hand')}", file=sys.stderr)
                keys.remove(key)
            try:
                complete = not keys or measure(record, keys, programs, chosen.machine, date) and complete
            except Failure as problem:
                print(f"figures.sh: {problem}", file=sys.stderr)
                complete = False
    if not chosen.list:
        for path in pages.write(ROOT, record):
            print(f"{path.relative_to(ROOT)} is written")
    return 0 if complete else 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sys.exit(main())
    except Failure as problem:
        sys.exit(f"figures.sh: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
