# SPDX-License-Identifier: MIT
"""Runs a program and reports what each platform would refuse of its calls of DeepEP:
`python -m peerbus.deep_ep.check -n 4 serve.py`.

The program runs on CPUs as under `peerbus.deep_ep.run`. Exit status: 0; 1 if a platform named by
--target refuses a call; 2 for wrong arguments; 3 if the program failed.
"""

import argparse
import json
import os
import sys
import tempfile

from . import launch, report
from .calls import TARGETS


def main(arguments=None):
    made = launch.parser("check", "Runs a program and reports what each platform would refuse of its "
                                  "calls of DeepEP, and how to change them.")
    made.add_argument("--target", action="append", choices=TARGETS, metavar="NAME",
                      help=f"{', '.join(TARGETS)}; may be repeated (default: all)")
    made.add_argument("--platform", action="append", choices=TARGETS, dest="target",
                      help=argparse.SUPPRESS)  # Its former name.
    made.add_argument("--target-ranks", type=launch.positive, metavar="N",
                      help="check the calls as on N ranks, which the program will have there")
    made.add_argument("--json", metavar="FILE", help="write the report to FILE too, as JSON")
    options = launch.parse(made, sys.argv[1:] if arguments is None else arguments)
    if options.json:
        try:
            open(options.json, "a").close()  # Fails now rather than after the program has run.
        except OSError as problem:
            made.error(f"argument --json: {problem}")
    platforms = options.target or list(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        status = launch.run(options, PEERBUS_WATCH=folder, PEERBUS_TARGET="")
        sites = report.read(folder)
    judged = report.examine(sites, platforms, options.target_ranks)
    program = " ".join(launch.words_of(options.program))
    heading = f"{program}: what each platform says of its calls of DeepEP"
    if options.target_ranks:
        heading += f", checked as on {options.target_ranks} ranks"
    if status != 0:
        heading += f"\nThe program failed (status {status}); these are the calls until then."
    print(report.as_text(judged, platforms, heading, os.getcwd()))
    if options.json:
        text = {"program": program, "arguments": options.arguments, "status": status,
                "target_ranks": options.target_ranks, "platforms": platforms, "sites": judged,
                "environment": {platform: dict(zip(("set", "unset"),
                                                   report.environment(judged, platform)))
                                for platform in platforms}}
        with open(options.json, "w") as file:
            json.dump(text, file, indent=2)
            file.write("\n")
    if status != 0:
        return 3
    refused = any(entry["shapes"] and not entry["platforms"][platform]["fits"]
                  for entry in judged for platform in platforms)
    return 1 if options.target and refused else 0


if __name__ == "__main__":
    sys.exit(main())
