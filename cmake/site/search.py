# SPDX-License-Identifier: MIT
"""search.py SITE: adds the headings of the pages to the search of the site, under each of their words. Doxygen's
own search has symbols by name, and pages by the first word of their title."""

import html
import json
import pathlib
import re
import sys

import page


def key(text):
    """Returns a text as search.js compares it."""
    return re.sub(r"[^a-z0-9\u0080-\uffff]", lambda found: f"_{ord(found[0]):02x}", text.lower())


def entries(each):
    """Returns what the search shows for each word of the headings of a page, and the text that is typed to find it."""
    text = page.CODE.sub("", each.read_text(encoding="utf-8"))
    headings = page.HEADING.findall(text)
    file = "index" if page.name(each) == "readme" else page.name(each)
    for heading, anchor in zip(headings, page.anchors(text)):
        anchor = "" if heading == headings[0] else f"#{page.name(each)}_{anchor}"
        for word in re.finditer(r"\w+", heading):
            if (word.start() or anchor) and (len(word[0]) > 3 or word[0].isupper()):
                typed = heading[word.start():]
                yield typed, [html.escape(heading), [f"../{file}.html{anchor}", 1, html.escape(headings[0])]]


def add_headings(site):
    """Adds the headings to the search of the site."""
    folder = site / "search"
    # The file all_<n> has what begins with the letter of that place, in hexadecimal digits.
    letters = re.search(r'0: "([^"]*)"', (folder / "searchdata.js").read_text(encoding="utf-8"))[1]
    found = {}
    for typed, entry in (each for file in page.PAGES for each in entries(file)):
        if typed[0].lower() in letters:
            found.setdefault(letters.index(typed[0].lower()), []).append((typed, entry))
    for place, all_of_letter in found.items():
        file = folder / f"all_{place:x}.js"
        lines = [json.dumps([f"{key(typed)}_h{number}", entry], ensure_ascii=False)
                 for number, (typed, entry) in enumerate(all_of_letter)]
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("\n];", ",\n  " + ",\n  ".join(lines) + "\n];"), encoding="utf-8")


if __name__ == "__main__":
    add_headings(pathlib.Path(sys.argv[1]))
