# SPDX-License-Identifier: MIT
"""site.py SITE: checks that every link of the site leads to a file and an anchor of it, and that the search has
symbols and pages. SITE is what Doxygen has written; search.py adds the headings of the pages first."""

import html
import os
import pathlib
import re
import sys
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake" / "site"))
import search

LINK = re.compile(r"""\b(?:href|src|url)\s*[=:]\s*["']([^"']*)|\[["'](\.\./[^"']*)""")
ANCHOR = re.compile(r"""\b(?:id|name)="([^"]*)\"""")
KNOWN = ["'../classpeerbus_1_1moe_1_1exchange.html',1,'peerbus::moe'", "'Using peerbus',['../guide.html'",
         '"../guide.html#guide_deadlines-and-errors"']


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    search.add_headings(site)
    texts = {file: file.read_text(encoding="utf-8") for file in site.rglob("*") if file.suffix in (".html", ".js")}
    anchors = {file: set(ANCHOR.findall(text)) for file, text in texts.items()}
    wrong, links = [], 0
    for file, text in texts.items():
        for link in {html.unescape(a or b) for a, b in LINK.findall(text)}:
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            links += 1
            target = pathlib.Path(os.path.normpath(file.parent / path)) if path else file
            if not target.exists():
                wrong.append(f"{file.relative_to(site)}: {link}: there is no such file")
            elif anchor and anchor not in anchors.get(target, ()):
                wrong.append(f"{file.relative_to(site)}: {link}: the file has no such anchor")
    found = "".join(text for file, text in texts.items() if file.parent.name == "search" and file.suffix == ".js")
    wrong += [f"the search has no {known}" for known in KNOWN if known not in found]
    print("\n".join(sorted(wrong)) or f"{links} links of {len(texts)} files lead somewhere")
    return 1 if wrong or links < 10000 else 0


if __name__ == "__main__":
    sys.exit(main())
