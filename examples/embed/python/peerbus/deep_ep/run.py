# SPDX-License-Identifier: MIT
"""Runs a program for GPUs that says `import deep_ep` on CPUs:
`python -m peerbus.deep_ep.run test_low_latency.py --num-processes 4`.

`deep_ep` is this package, `cuda` is the CPU and `nccl` is gloo. docs/python.md says what is skipped.
"""

import sys

from . import launch


def main(arguments=None):
    made = launch.parser("run", "Runs a program that says `import deep_ep` on CPUs.")
    words = sys.argv[1:] if arguments is None else arguments
    return launch.run(launch.parse(made, words))


if __name__ == "__main__":
    sys.exit(main())
