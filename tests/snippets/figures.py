# SPDX-License-Identifier: MIT
"""figures.py FOLDER: checks that the measured figures of the pages are those of docs/figures.json, that a page quotes
each of these, and that no time or ratio stands in a page without a mark that says where it comes from."""

import pathlib
import sys

root = pathlib.Path(sys.argv[1]).resolve()
sys.dont_write_bytecode = True
sys.path.insert(0, str(root / "benchmarks" / "figures"))
import pages
from record import Record


def main():
    record = Record(root / "docs" / "figures.json")
    wrong = pages.check(root, record)
    print("\n".join(wrong) or f"{len(record.keys())} figures stand in the pages as in {record.path.name}")
    if wrong:
        print("`bash benchmarks/figures.sh --write-pages` writes figures into pages; benchmarks/figures/pages.py explains marks")
    return 1 if wrong or len(record.keys()) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
