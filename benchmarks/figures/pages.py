# SPDX-License-Identifier: MIT
"""Marks in pages, which say where a number comes from. They are comments, so readers do not see them:

    <!--=put.signal put.flag-->   the next numbers outside of code are those of these keys of docs/figures.json, in that
                                  order; put:machine and put:date: the next machine or date is that of the group, or of
                                  the figure in its place
    <!--=slots-->                 on a line of its own: the table that follows has the figures of that group. `rows` and
                                  `columns` there have an entry for each row and column. A `*` in one of them stands for the
                                  other, and what results are the keys of the numbers in that cell
    <!--=machines-->              before the table of machines
    <!--limit-->                  the next time or ratio is not measured, but one of REASONS; on a line of its own: all of
                                  the paragraph or table that follows

A line that begins with a comment is HTML to GitHub, and not Markdown: marks stand within lines, or on lines of their own.
Doxygen shows comments between quotation marks, so they stand before these.
"""

import datetime
import re

REASONS = {
    "limit": "a time limit, a default or a constant of the code",
    "example": "an example",
    "rule": "computed, not measured",
    "published": "a figure of somebody else",
}
NUMBER = r"(?<![\w.])(?<!\^-)(?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?(?![\d]|\.\d)"
FIGURE = re.compile(NUMBER + r"(?:<sup>\w+</sup>)?")
UNIT = r"(?:[num]s|[µμ]s|s|seconds?|minutes?|(?:milli|micro|nano)seconds?|[GMk]B/s|[GM]b/s|[GMK]iB/s|x|times|%)(?![\w/])"
TIME = re.compile(f"({NUMBER})[ \n]?{UNIT}")
DATE = r"\d{1,2}\s+(?:%s)\s+20\d\d" % "|".join(datetime.date(2000, month, 1).strftime("%B") for month in range(1, 13))
CODE = re.compile(r"^```.*?^```|(`+)(?!`).+?(?<!`)\1(?!`)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MARK = re.compile(r"<!--=([\w.:~ -]+?)-->")
REASON = re.compile(r"<!--(\w+)-->")
FIRST = re.compile(r"^[ >]*(?:[-*+] +|\d+\. +)?(?=<!--[=\w][^\n]*?-->[^\n])", re.MULTILINE)
HEADER = re.compile(r"(?:^|\n)[^|\n]*\n(\|[^\n]*?\b(us|µs|ms|ns|GB/s|times|ratio)\b[^\n]*\n)\| ?-")
MACHINES = "machines"


def blank(match):
    return re.sub(r"[^\n]", "\0", match[0])


def date_text(date):
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"


class Page:
    """A page, the marks of which are compared with a record: `problems` as (line, text), the `quoted` keys, and in `edits`
    what differs, as (begin, end, text). `to_docs` leads from the page to docs/, and is None for performance.md itself."""

    def __init__(self, text, record, to_docs=""):
        self.text, self.record, self.to_docs = text, record, to_docs
        self.without_code = CODE.sub(blank, text)
        self.plain = COMMENT.sub(blank, self.without_code)
        self.problems, self.quoted, self.edits, self.covered = [], set(), [], []
        for mark in MARK.finditer(self.without_code):
            at = mark.end()
            for key in mark[1].split():
                if at is not None:
                    at = self.table(key, at) if not re.search("[.:]", key) else self.entry(key, at)
        for mark in REASON.finditer(self.without_code):
            self.reason(mark)
        for line in FIRST.finditer(self.without_code):
            self.problem(line.end(), "a mark begins this line, which GitHub then shows as it is; expected a word before the mark")
        for header in HEADER.finditer(self.plain):
            if not any(header.start(1) <= begin < self.end_of_block(header.start(1)) for begin, _ in self.covered):
                self.problem(header.start(1), f"the table of '{header[2]}' has no mark; expected one of its figures, or a reason")
        for time in TIME.finditer(self.plain):
            if not any(begin <= time.start(1) < end for begin, end in self.covered):
                self.problem(time.start(), f"'{' '.join(time[0].split())}' stands behind no mark; expected one that names its key, or a "
                             f"reason: {', '.join(f'<!--{name}-->' for name in REASONS)}")

    def filled(self):
        """Returns the text with the figures of the record."""
        text = self.text
        for begin, end, replacement in sorted(self.edits, reverse=True):
            text = text[:begin] + replacement + text[end:]
        return text

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def problem(self, at, what):
        self.problems.append((self.line(at), what))

    def set(self, begin, end, expected):
        """Notes that `expected` stands there. Line breaks count as spaces."""
        self.covered.append((begin, end))
        if self.text[begin:end].split() != expected.split():
            self.edits.append((begin, end, expected))

    def end_of_block(self, at):
        """Returns where the paragraph or table ends."""
        end = self.text.find("\n\n", at)
        return len(self.text) if end < 0 else end

    def reason(self, mark):
        """Notes what is not measured."""
        if mark[1] not in REASONS:
            self.problem(mark.start(), f"<!--{mark[1]}--> given, expected one of {', '.join(REASONS)}")
            return
        end = self.end_of_block(mark.end())
        if self.text[mark.end():mark.end() + 1] != "\n":
            time = TIME.search(self.plain, mark.end(), end)
            end = time.end() if time else mark.end()
        if not TIME.search(self.plain, mark.end(), end):
            self.problem(mark.start(), f"<!--{mark[1]}--> stands before no time or ratio")
        self.covered.append((mark.end(), end))

    def entry(self, key, at):
        """Compares what stands behind a mark; returns where it ends, or None."""
        name, colon, field = key.partition(":")
        if field not in ("", "machine", "date") or not self.record.find(name) and not (colon and name in self.record.groups):
            self.problem(at, f"{key}: there is no such key")
            return None
        self.quoted.add(key)
        return self.words(key, name, field, at) if colon else self.figures([key], at, self.end_of_block(at))

    def words(self, key, name, field, at):
        """Compares the next machine or date with that of a group or figure."""
        if "." in name:
            values = [self.record.machine(name) if field == "machine" else self.record.field(name, field)]
        else:
            values = self.record.of_figures(name, field)
        if field == "date":
            expected, pattern = [date_text(value) for value in values], DATE
        else:
            texts = sorted({text for each in self.record.machines.values() for text in each["texts"]}, key=len, reverse=True)
            texts = [re.escape(text).replace("\\ ", r"\s+") for text in texts]
            expected = [self.machine_text(value) for value in values]
            pattern = r"(?:\[machine \w\]\([^)]*\)|%s)" % "|".join(texts)
        found = re.compile(f"{pattern}(?: and {pattern})*").search(self.plain, at, self.end_of_block(at))
        if found is None:
            self.problem(at, f"{key}: no {field} stands behind the mark")
            return None
        now = " ".join(found[0].split())
        if field == "machine" and len(values) == 1 and now in self.record.machines[values[0]]["texts"]:
            expected = [now]
        self.set(*found.span(), " and ".join(expected))
        return found.end()

    def machine_text(self, name):
        """Returns the words for a machine: those of the table of machines, with a link to it, or its own."""
        text = self.record.machines[name]["texts"][0]
        return text if self.to_docs is None or len(name) > 1 else f"[{text}]({self.to_docs}performance.md#how-to-measure)"

    def figures(self, keys, at, end):
        """Compares the next numbers with those of the keys."""
        for key in keys:
            for number in self.record.texts(key):
                found = FIGURE.search(self.plain, at, end)
                if found is None:
                    self.problem(at, f"{key}: no number stands where {number} is expected")
                    return None
                self.set(*found.span(), number)
                at = found.end()
        return at

    def table(self, name, at):
        """Compares the table behind a mark."""
        found = re.compile(r"\n((?:\|[^\n]*\n)+)").match(self.text, at)
        if found is None or name != MACHINES and "table" not in self.record.groups.get(name, {}):
            self.problem(at, f"{name}: " + ("no table stands behind the mark" if found is None else "there is no such table"))
            return
        begin, lines = found.start(1), found[1].splitlines(keepends=True)
        first = begin + len(lines[0]) + len(lines[1])
        if name == MACHINES:
            rows = [f"| {key} | {each['about']} | {date_text(each['date']).rpartition(' ')[0]} |\n"
                    for key, each in self.record.machines.items() if len(key) == 1]
            self.set(first, found.end(), "".join(rows))
            return
        table, at = self.record.groups[name]["table"], first
        grid = table.get("cells") or [[self.expand(row, column) for column in table["columns"]] for row in table["rows"]]
        if len(grid) != len(lines) - 2:
            self.problem(begin, f"{name}: {len(lines) - 2} rows, expected {len(grid)}")
            return
        for keys_of_row, line in zip(grid, lines[2:]):
            cells = re.findall(r"\|[^|\n]*(?=\|)", line)
            if len(cells) != len(keys_of_row):
                self.problem(at, f"{name}: {len(cells)} cells, expected {len(keys_of_row)}")
                return
            begin = at
            for keys, cell in zip(keys_of_row, cells):
                self.cell([f"{name}.{key}" for key in keys.split()], begin, begin + len(cell))
                begin += len(cell)
            at += len(line)

    @staticmethod
    def expand(row, column):
        """Returns the keys of the cell in that row and column, without their group."""
        return column.replace("*", row) if "*" in column else row.replace("*", column) if column else ""

    def cell(self, keys, begin, end):
        """Compares the numbers of a cell, which has those keys of `keys` that the record has."""
        known = [key for key in keys if self.record.find(key)]
        self.quoted.update(known)
        at = self.figures(known, begin, end)
        if keys and at is not None and (more := FIGURE.search(self.plain, at, end)):
            self.problem(begin, f"{more[0]} stands behind the figures of the cell, which are: {' '.join(known) or 'none'}; expected a "
                         f"key of {' '.join(keys)}")


def pages_of(root, record):
    """Returns the pages that quote figures, by their path."""
    paths = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return {path: Page(path.read_text(), record, "docs/" if path.parent == root else None if path.name == "performance.md" else "")
            for path in paths}


def check(root, record):
    """Returns what is wrong with the pages and the record, a line each."""
    wrong, quoted = [], set()
    for path, page in pages_of(root, record).items():
        where = path.relative_to(root)
        wrong += [f"{where}:{line}: {what}" for line, what in page.problems]
        wrong += [f"{where}:{page.line(begin)}: '{page.text[begin:end]}' given, expected '{text}'" for begin, end, text in page.edits]
        quoted |= page.quoted
    for name, group in record.groups.items():
        keys = [f"{name}:machine", *(f"{name}.{key}" for key in group["figures"])]
        if missing := [key for key in keys if key not in quoted]:
            wrong.append(f"{record.path.name}: no page quotes {', '.join(missing)}")
        wrong += [f"{record.path.name}: {name}.{key}: {figure['value']} is not from {figure['least']} to {figure['most']}"
                  for key, figure in group["figures"].items()
                  if "value" in figure and not figure.get("least", figure["value"]) <= figure["value"] <= figure.get("most", figure["value"])]
        if picture := group.get("picture"):
            drawn = (root / picture["file"]).read_text()
            wrong += [f"{picture['file']} shows no {number:,.0f}, which is {name}.{key}; draw it anew (benchmarks/README.md)"
                      for key in picture["figures"] for number in record.numbers(f"{name}.{key}") if f">{number:,.0f}<" not in drawn]
    return wrong


def write(root, record):
    """Writes the figures of the record into the pages that have no other problem; returns those that changed."""
    changed = []
    for path, page in pages_of(root, record).items():
        if not page.problems and (text := page.filled()) != page.text:
            path.write_text(text)
            changed.append(path)
    return changed
