# SPDX-License-Identifier: MIT
"""Writes peerbus/_interface.py, the structures and functions of peerbus.h for ctypes.

    python3 generate_interface.py            # writes it anew, after a change of the headers
    python3 generate_interface.py --check    # fails if the file is not what the headers say

The result is a file of the project, so that the package runs from its folder and pip needs neither
headers nor a compiler. The test embed_python.interface checks it.
"""

import difflib
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = os.path.join(HERE, "..", "c", "include")
RESULT = os.path.join(HERE, "peerbus", "_interface.py")

NUMBERS = {"float": "c_float", "double": "c_double",
           **{f"{sign}int{bits}_t": f"c_{sign}int{bits}"
              for sign in ("", "u") for bits in (8, 16, 32, 64)}}


def read_headers():
    """Returns the text of all headers without comments, each behind those that it needs."""
    done, texts = set(), []

    def take(name):
        if name in done:
            return
        done.add(name)
        with open(os.path.join(HEADERS, name), encoding="utf-8") as file:
            text = file.read()
        for needed in re.findall(r"#include <(peerbus_c/\w+\.h)>", text):
            take(needed)
        texts.append(re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL))

    take("peerbus.h")
    return "\n".join(texts)


class Interface:
    """What the headers declare. Each list is in their order."""

    def __init__(self, text):
        self.numbers = dict(NUMBERS)  # C's names of types of numbers -> those of ctypes
        self.structures, self.callbacks = {}, {}  # C's names -> Python's
        self.constants = {}
        self.lines, self.functions = [], []
        text = re.sub(r"#ifdef __cplusplus\n.*?#endif", " ", text, flags=re.DOTALL)
        text = re.sub(r"^#.*$", " ", text, flags=re.MULTILINE)
        text = re.sub(r"static inline [^{]*\{.*?\n\}", " ", text, flags=re.DOTALL)
        for declaration in self._declarations(text):
            self._take(declaration)

    @staticmethod
    def _declarations(text):
        """Yields what ends with a semicolon outside braces."""
        depth, start = 0, 0
        for i, letter in enumerate(text):
            depth += (letter == "{") - (letter == "}")
            if letter == ";" and depth == 0:
                yield " ".join(text[start:i].split())
                start = i + 1
        if text[start:].strip():
            sys.exit(f"cannot read {text[start:].strip()[:200]!r}")

    def _take(self, declaration):
        if found := re.fullmatch(r"enum \{(.*)\}", declaration):
            self._enumerators(found[1])
        elif found := re.fullmatch(r"typedef struct (\w+) \{(.*)\} \1", declaration):
            self._structure(found[1], found[2])
        elif re.fullmatch(r"typedef struct (\w+) \1", declaration):
            pass  # An object, whose handle is an address.
        elif found := re.fullmatch(r"typedef (.*)\(\*(\w+)\)\((.*)\)", declaration):
            self._callback(found[2], found[1], found[3])
        elif found := re.fullmatch(r"typedef (\w+) (\w+)", declaration):
            self.numbers[found[2]] = self.numbers[found[1]]
        elif found := re.fullmatch(r"PEERBUS_API (.*?)peerbus_(\w+)\((.*)\)", declaration):
            self._function(found[2], found[1], found[3])
        else:
            sys.exit(f"cannot read {declaration!r}")

    def _enumerators(self, body):
        for each in filter(None, (part.strip() for part in body.split(","))):
            if found := re.fullmatch(r"(\w+) = (-?\d+)", each):
                self.constants[found[1]] = int(found[2])

    def _value(self, kind):
        """Returns the type of a number, a structure or a function that is held itself."""
        if kind in self.callbacks:
            return self.callbacks[kind]
        if kind in self.structures:
            return self.structures[kind]
        if kind not in self.numbers:
            sys.exit(f"no type {kind!r}")
        return self.numbers[kind]

    def _structure(self, name, body):
        python = "".join(word.capitalize() for word in name.split("_")[1:])
        members = []
        for member in filter(None, (part.strip() for part in body.split(";"))):
            if found := re.fullmatch(r".*\(\*(\w+)\)\(.*\)", member):
                members.append((found[1], "c_void_p"))
                continue
            found = re.fullmatch(r"(.*?)(\w+)(?:\[(\w+)\])?", member)
            kind, places = found[1].strip(), found[3]
            if kind.count("*") > 1:
                type_ = "c_void_p"
            else:
                type_ = self._argument(kind) if "*" in kind else self._value(kind)
            if places:
                type_ += f" * {int(places) if places.isdigit() else self.constants[places]}"
            members.append((found[2], type_))
        self.structures[name] = python
        base = "Struct" if members[0][0] == "struct_bytes" else "Structure"
        self.lines += ["", "", f"class {python}({base}):",
                       *listed("    _fields_ = [", [f'("{member}", {type_})'
                                                    for member, type_ in members], "]")]

    def _argument(self, kind, of_callback=False):
        """Returns the type of an argument or of a member that is an address, from C's type of it.
        An address costs less than a pointer object, so only addresses of numbers are such."""
        plain = kind.replace("const ", "").replace(" ", "")
        target = plain.rstrip("*")
        depth = len(plain) - len(target)
        if depth == 0:
            return self._value(target)
        if depth > 1:
            return "POINTER(c_void_p)" if not kind.startswith("const ") else "c_void_p"
        if target == "char":
            return "c_char_p"
        if of_callback and target in self.structures:
            return f"POINTER({self.structures[target]})"
        if not kind.startswith("const ") and target in self.numbers:
            return f"POINTER({self.numbers[target]})"
        return "c_void_p"

    def _arguments(self, text, of_callback=False):
        if text == "void":
            return []
        # The name follows the last space or asterisk.
        return [self._argument(re.sub(r"\w+$", "", part.strip()).strip(), of_callback)
                for part in text.split(",")]

    def _result(self, text):
        return "None" if text.strip() == "void" else self._argument(text.strip())

    def _callback(self, name, result, arguments):
        python = name.split("_", 1)[1]
        self.callbacks[name] = python
        types = ", ".join([self._result(result), *self._arguments(arguments, True)])
        self.lines += ["", "", f"{python} = CFUNCTYPE({types})"]

    def _function(self, name, result, arguments):
        self.functions += listed(f'    "{name}": ({self._result(result)}, [',
                                 self._arguments(arguments), "]),")


def listed(start, pieces, end):
    """Returns a list in lines of at most 100 letters, below each other behind `start`."""
    lines = [start]
    for i, piece in enumerate(pieces):
        piece += end if i == len(pieces) - 1 else ","
        if len(lines[-1]) + 1 + len(piece) > 100:
            lines.append(" " * len(start) + piece)
        else:
            lines[-1] += piece if i == 0 else " " + piece
    return lines if pieces else [start + end]


def generate(headers):
    """Returns the text of _interface.py for headers without comments."""
    interface = Interface(headers)
    body = [*interface.lines, "", "", "CONSTANTS = {"]
    for name, value in interface.constants.items():
        body.append(f'    "{name}": {value},')
    body += ["}", "",
             "# The functions without their peerbus_: the type of the result, and of each argument.",
             "FUNCTIONS = {"]
    body += [*interface.functions, "}"]
    text = "\n".join(body)
    kinds = sorted(kind for kind in ("CFUNCTYPE", "POINTER", "Structure", "c_char_p", "c_void_p",
                                     *set(NUMBERS.values())) if re.search(rf"\b{kind}\b", text))
    names = [*interface.structures.values(), *interface.callbacks.values(), "CONSTANTS",
             "FUNCTIONS"]
    return "\n".join([
        "# SPDX-License-Identifier: MIT",
        '"""The structures, functions and constants of peerbus.h for ctypes.',
        "",
        "generate_interface.py has written this file from the headers. Change those, and run it.",
        '"""',
        "",
        *listed("from ctypes import (", kinds, ")"),
        "",
        "from ._struct import Struct",
        "",
        *listed("__all__ = [", [f'"{name}"' for name in names], "]"),
        text, ""])


def main():
    text = generate(read_headers())
    if sys.argv[1:] == ["--check"]:
        with open(RESULT, encoding="utf-8") as file:
            written = file.read()
        changes = difflib.unified_diff(written.splitlines(), text.splitlines(), "_interface.py",
                                       "as the headers say", lineterm="")
        if written != text:
            sys.exit("\n".join([*changes, "_interface.py is not what peerbus.h says: run "
                                "examples/embed/python/generate_interface.py"]))
    elif sys.argv[1:]:
        sys.exit(f"generate_interface.py: {sys.argv[1:]} given, expected --check or nothing")
    else:
        with open(RESULT, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
