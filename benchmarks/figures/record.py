# SPDX-License-Identifier: MIT
"""docs/figures.json: every measured figure that the pages quote.

`machines` says of each machine how pages may name it (`texts`), what it is, and when it measured last. Those of one letter
are in the table of docs/performance.md. `groups` has the figures of one measurement each:

    machine, date     where and when; a figure may have its own
    command           measures; {NAME} stands for the part NAME of a key, {json} for the file to write, {build} for the build
                      folder. In its place, `by_hand` says what a script lacks
    targets           what to build; by default the first word of the command
    parts             names the parts of keys
    spelled           by part: what stands for a value of it in commands and `read`
    runs              how many there are, in turns with the other commands of the group; the value is their median [1]
    read              where in the JSON, or with `match REGEX` in the output, the figure stands (measure.py)
    unit, rule        `rule` is how a page shows it: "3" three digits or all before the point, ".2" two after it. By
                      default .2 for `times` and 3 for others
    shows             `value` [default], `spread`: value, least and most, `range`: least and most
    table             for a table: `rows` and `columns`, or `cells`, of the keys in each cell (pages.py)
    picture           a drawing that shows `figures`, whole and with commas
    figures           by key: value, least, most, and what differs from the group; or `of`: ["range", KEY...] or
                      ["ratio", KEY, KEY...]: the first divided by the least of the others

Any other field of a group that is an object has its values by the last part of the keys; that of "" is for all others. A full
key is GROUP.KEY.
"""

import json
import math


def shown(number, rule):
    """Returns the number as pages show it."""
    if rule.startswith("."):
        decimals = int(rule[1:])
    else:
        digits = int(rule)
        exponent = math.floor(math.log10(abs(float(f"{number:.{digits - 1}e}")))) if number else 0
        decimals = max(digits - 1 - exponent, 0)
    text = f"{number:.{decimals}f}"
    return f"{number:,.{decimals}f}".replace(",", " ") if number >= 10000 else text


def text_of(value, indent=0):
    """Returns JSON with one line for each object or list that fits."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(line) + indent <= 150 and not (
            isinstance(value, dict) and any(isinstance(each, dict) for each in value.values())):
        return line
    within = " " * (indent + 2)
    if isinstance(value, dict):
        lines = [f"{within}{json.dumps(name, ensure_ascii=False)}: {text_of(each, indent + 2)}" for name, each in value.items()]
    else:
        lines = [within + text_of(each, indent + 2) for each in value]
    brackets = "{}" if isinstance(value, dict) else "[]"
    return brackets[0] + "\n" + ",\n".join(lines) + "\n" + " " * indent + brackets[1]


class Record:
    def __init__(self, path):
        self.path = path
        self.all = json.loads(path.read_text())
        self.machines, self.groups = self.all["machines"], self.all["groups"]

    def write(self):
        self.path.write_text(text_of(self.all) + "\n")

    def keys(self):
        return [f"{name}.{key}" for name, group in self.groups.items() for key in group["figures"]]

    def find(self, key):
        """Returns the group and the figure of a full key, or None without such a figure."""
        name, _, rest = key.partition(".")
        group = self.groups.get(name, {})
        figure = group.get("figures", {}).get(rest)
        return None if figure is None else (group, figure)

    def field(self, key, field, default=None):
        group, figure = self.find(key)
        if field in figure:
            return figure[field]
        value = group.get(field, default)
        if not isinstance(value, dict) or "value" in value or field == "spelled":
            return value
        return value.get(key.rpartition(".")[2], value.get("", default))

    def numbers(self, key):
        """Returns the numbers that pages show of a figure."""
        _, figure = self.find(key)
        if "of" in figure:
            what, *others = figure["of"]
            values = [self.numbers(other)[0] for other in others]
            return [values[0] / min(values[1:])] if what == "ratio" else [min(values), max(values)]
        names = {"value": ["value"], "spread": ["value", "least", "most"], "range": ["least", "most"]}
        return [figure[name] for name in names[self.field(key, "shows", "value")]]

    def texts(self, key):
        """Returns these numbers as texts. The first names the machine if it is not that of the group."""
        group, _ = self.find(key)
        rule = self.field(key, "rule") or (".2" if self.field(key, "unit") == "times" else "3")
        texts = [shown(number, rule) for number in self.numbers(key)]
        if (machine := self.machine(key)) != group["machine"]:
            texts[0] += f"<sup>{machine}</sup>"
        return texts

    def machine(self, key):
        group, figure = self.find(key)
        return self.machine(figure["of"][1]) if "of" in figure else figure.get("machine", group["machine"])

    def settle(self, name):
        """Says machine and date once where all figures of a group share them."""
        group = self.groups[name]
        for field in ("machine", "date"):
            figures = [figure for figure in group["figures"].values() if "of" not in figure]
            values = {figure.get(field, group[field]) for figure in figures}
            if len(values) == 1:
                group[field] = values.pop()
            for figure in figures:
                if figure.get(field) == group[field]:
                    del figure[field]

    def of_figures(self, name, field):
        """Returns the machines or dates of a group's figures, that of the group first."""
        group = self.groups[name]
        return list(dict.fromkeys([group[field], *(each[field] for each in group["figures"].values() if field in each)]))
