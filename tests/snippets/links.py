# SPDX-License-Identifier: MIT
"""links.py FOLDER: checks that every relative link of the pages of the project leads to a file, and to a heading of
it where it names one, by the rule by which GitHub makes anchors of headings."""

import pathlib
import re
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text):
    """Returns the anchors of the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
    return found


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md")),
             root / "benchmarks" / "README.md"]
    broken, links = [], 0
    for page in pages:
        for target in LINK.findall(CODE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            links += 1
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists():
                broken.append(f"{page.relative_to(root)}: {target}: there is no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                broken.append(f"{page.relative_to(root)}: {target}: the page has no such heading")
    print("\n".join(broken) or f"{links} links of {len(pages)} pages lead somewhere")
    return 1 if broken or links < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
