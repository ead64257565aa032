# SPDX-License-Identifier: MIT
"""Which machine this is, in the words of the table of machines in docs/performance.md."""

import os
import pathlib
import platform
import re
import string
import subprocess


def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""


def processor():
    found = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return re.sub(r"\((R|TM)\)", "", found[1]).strip() if found else platform.machine()


def caches():
    """Returns the second-level cache of a core and the third-level cache, as far as the kernel reports them."""
    found = []
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, size = read(index / "level"), read(index / "size").removesuffix("K")
        if level in ("2", "3") and size.isdigit():
            kib = int(size)
            found.append(f"L{level} {f'{kib // 1024} MiB' if kib % 1024 == 0 else f'{kib} KiB'}")
    return found


def describe(compiler):
    """Returns processor, cores that may be used, caches, huge pages of shared memory, kernel and compiler."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    numbers = re.findall(r"\d+\.\d+", version)
    huge = re.search(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    kernel = ".".join(platform.release().split(".")[:2])
    cores = len(os.sched_getaffinity(0))
    return ", ".join([f"{cores} core{'s' * (cores != 1)}", processor(), *caches(), f"shmem_enabled {huge[1] if huge else 'unknown'}",
                      f"Linux {kernel}", f"{'clang++' if 'clang' in version else 'g++'} {numbers[-1] if numbers else ''}".strip()])


def enter(machines, compiler, date, given=None):
    """Returns the key of this machine among `machines`: `given`, that of an entry with the same description, or a new one."""
    about = describe(compiler)
    key = given or next((key for key, each in machines.items() if each.get("about") == about), None)
    if key is None:
        key = next(letter for letter in string.ascii_uppercase if letter not in machines)
    entry = machines.setdefault(key, {"texts": [f"machine {key}"], "about": about})
    entry["date"] = date
    return key
