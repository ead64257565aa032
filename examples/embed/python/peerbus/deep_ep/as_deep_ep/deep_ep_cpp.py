# SPDX-License-Identifier: MIT
"""`import deep_ep_cpp` for programs that name it before `deep_ep`."""

import sys

import deep_ep._C

sys.modules[__name__] = deep_ep._C
