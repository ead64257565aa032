# SPDX-License-Identifier: MIT
"""links.py: checks that every relative link of the pages of the project leads to a file, and to a heading of it where
it names one, and that functions that a page names behind their header, as `moe/x.hpp` (`f`, `g`), are declared or called in it."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake" / "site"))
import page


NAMED = re.compile(r"`([\w/]+\.[hi]pp)`\*{0,2} \(([^)]*)\)")


def missing_functions(each):
    """Returns what the page names behind a header that does not have it, and the number of functions it names."""
    missing, named = [], 0
    for header, inside in NAMED.findall(re.sub(r"\s+", " ", each.read_text(encoding="utf-8"))):
        file = page.ROOT / "include" / "peerbus" / header
        text = re.sub(r"//.*", "", file.read_text(encoding="utf-8")) if file.exists() else ""
        for function in re.findall(r"`(\w+)`", inside):
            named += 1
            if not re.search(rf"\b{function}\(", text):
                missing.append(f"{each.relative_to(page.ROOT)}: {header} has no {function}")
    return missing, named


def main():
    broken, links, functions = [], 0, 0
    for each in page.PAGES:
        for file, anchor in page.links(each):
            links += 1
            where = f"{each.relative_to(page.ROOT)}: {file.relative_to(page.ROOT)}#{anchor}"
            if not file.exists():
                broken.append(f"{where}: there is no such file")
            elif anchor and file.suffix == ".md" and anchor not in page.anchors(file.read_text(encoding="utf-8")):
                broken.append(f"{where}: the page has no such heading")
        missing, named = missing_functions(each)
        broken += missing
        functions += named
    print("\n".join(broken) or f"{links} links of {len(page.PAGES)} pages lead somewhere, and {functions} functions are there")
    return 1 if broken or links < 100 or functions < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
