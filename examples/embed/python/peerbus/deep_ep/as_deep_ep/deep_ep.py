# SPDX-License-Identifier: MIT
"""`import deep_ep` for programs that `peerbus.deep_ep.run` or `.check` has started: this folder is on
their PYTHONPATH, and on that of the processes that they start themselves."""

import os

import peerbus.deep_ep

if os.environ.get("PEERBUS_CUDA_ON_CPU") == "1":
    from peerbus.deep_ep import cuda_on_cpu
    cuda_on_cpu.install()
peerbus.deep_ep.install()
