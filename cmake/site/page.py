# SPDX-License-Identifier: MIT
"""page.py PAGE: prints a page of the project for Doxygen. Headings get labels: the page's name and the anchor that
GitHub gives them. Relative links become references to pages, headings, headers and the sources that pages link."""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "benchmarks" / "README.md", ROOT / "examples" / "embed" / "README.md"]
CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)")


def anchors(text):
    """Returns the anchors of the headings of a page, in order, by the rule of GitHub."""
    found = []
    for heading in HEADING.findall(CODE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        number = 0
        while (numbered := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.append(numbered)
    return found


def links(page):
    """Returns the file and the anchor of each relative link of a page."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        yield target(page, match)


def target(page, match):
    """Returns the file and the anchor that a match of LINK leads to."""
    path, _, anchor = match[3].partition("#")
    return pathlib.Path(os.path.normpath(page.parent / path)) if path else page, anchor


def name(page):
    """Returns the name of a page in the site."""
    if page.name == "README.md":
        return "readme" if page.parent == ROOT else page.parent.name
    return page.stem.lower()


def is_source(file):
    """Returns whether the site shows the file as an example."""
    return file.suffix in (".c", ".cpp", ".py", ".rs")


def reference(page, match):
    """Returns what Doxygen makes a link from."""
    file, anchor = target(page, match)
    path = file.relative_to(ROOT)
    if match[1]:
        return f'<img src="{file.name}" alt="{match[2]}"/>'
    text = match[2].replace("\n", " ").replace("`", "")  # Doxygen shows it as it is.
    if file.suffix == ".md":
        return f'@ref {name(file)}{"_" + anchor if anchor else ""} "{text}"'
    if is_source(file) or file.suffix in (".h", ".hpp"):
        return f'@ref {str(path).removeprefix("include/")} "{text}"'
    return f"{text} (`{path}`)"


def main():
    page = pathlib.Path(sys.argv[1]).resolve()
    text = page.read_text(encoding="utf-8")
    labels = iter([name(page), *(f"{name(page)}_{anchor}" for anchor in anchors(text)[1:])])
    for part in CODE.split(text):
        if not part.startswith("```"):
            part = LINK.sub(lambda match: reference(page, match), part)
            part = HEADING.sub(lambda match: f"{match[0]} {{#{next(labels)}}}", part)
        sys.stdout.write(part)
    if name(page) == "readme":
        for file in sorted({file for each in PAGES for file, _ in links(each) if is_source(file)}):
            print(f"@example {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
