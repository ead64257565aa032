# SPDX-License-Identifier: MIT
"""links.py: checks that every relative link of the pages of the project leads to a file, and to a heading of it where
it names one."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake" / "site"))
import page


def main():
    broken, links = [], 0
    for each in page.PAGES:
        for file, anchor in page.links(each):
            links += 1
            where = f"{each.relative_to(page.ROOT)}: {file.relative_to(page.ROOT)}#{anchor}"
            if not file.exists():
                broken.append(f"{where}: there is no such file")
            elif anchor and file.suffix == ".md" and anchor not in page.anchors(file.read_text(encoding="utf-8")):
                broken.append(f"{where}: the page has no such heading")
    print("\n".join(broken) or f"{links} links of {len(page.PAGES)} pages lead somewhere")
    return 1 if broken or links < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
