# SPDX-License-Identifier: MIT
"""Tests that peerbus/_interface.py has what peerbus.h declares."""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

import peerbus
from peerbus import _interface

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(peerbus.__file__)))
GENERATOR = os.path.join(FOLDER, "generate_interface.py")
_spec = importlib.util.spec_from_file_location("generate_interface", GENERATOR)
generator = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generator)


def structures():
    """Yields the structures with their names in C."""
    for name in generator.Interface(generator.read_headers()).structures.items():
        yield name[0], getattr(_interface, name[1])


class TestInterface(unittest.TestCase):
    def test_file_is_fresh(self):
        done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_changed_headers_are_noticed(self):
        """A member that is lost, added, moved or of another type gives another file."""
        headers = generator.read_headers()
        written = generator.generate(headers)
        changes = (("uint64_t in_flight;", ""), ("uint64_t in_flight;", "uint32_t in_flight;"),
                   ("uint64_t rank;", "uint64_t rank; uint64_t level;"),
                   ("const void *bias[2];", "const void *bias[3];"),
                   ("uint64_t experts;", "uint64_t experts_of_group;"),
                   ("PEERBUS_ATTACHMENTS = 4", "PEERBUS_ATTACHMENTS = 5"),
                   ("uint64_t id, uint64_t value, uint64_t", "uint64_t id, uint32_t value, uint64_t"))
        for before, after in changes:
            with self.subTest(change=(before, after)):
                pattern = r"\s+".join(map(re.escape, before.split()))
                changed, count = re.subn(pattern, after, headers, count=1)
                self.assertEqual(count, 1)
                self.assertNotEqual(generator.generate(changed), written)

    def test_unknown_declarations_are_refused(self):
        for extra in ("typedef union { int a; } peerbus_x;", "PEERBUS_API unknown peerbus_x(void);",
                      "typedef struct peerbus_x { unknown a; } peerbus_x;"):
            with self.subTest(extra=extra), self.assertRaises(SystemExit):
                generator.generate(generator.read_headers() + extra)

    def test_layouts_are_those_of_the_compiler(self):
        """A C compiler gives each structure the size, and each member the place, of ctypes."""
        lines = ["#include <peerbus.h>"]
        for name, kind in structures():
            lines.append(f"_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, \"size\");")
            for member, _ in kind._fields_:
                place = getattr(kind, member)
                lines.append(f"_Static_assert(offsetof({name}, {member}) == {place.offset} && "
                             f"sizeof((({name} *)0)->{member}) == {place.size}, \"{member}\");")
        self.assertGreater(len(lines), 200)
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "layouts.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
            done = subprocess.run(
                [os.environ.get("CC") or "cc", "-std=c11", "-fsyntax-only",
                 "-I", generator.HEADERS, source], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
