# SPDX-License-Identifier: MIT
"""DeepEP's modules `deep_ep.buffers.legacy`, `.elastic`, `.ep` and so on, by which programs import
its classes."""

import importlib
import sys

_modules = {"allocator": "allocator", "base": "buffer_base", "bucket": "bucket", "elastic": "elastic",
            "engram": "engram", "ep": "ep_buffer", "legacy": "buffer", "pp": "pp"}

for _name, _module in _modules.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(
        "." + _module, __package__.rpartition(".")[0])
