# SPDX-License-Identifier: MIT
"""DeepEP's module `deep_ep.utils.event`."""

from ..event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
