# SPDX-License-Identifier: MIT
"""Makes all ranks refuse a call in which one rank alone has found an error."""

import functools

from .. import _library as c


def refused_everywhere(low_latency):
    """Decorates a collective method of `Buffer`. If it raises before it has set `self._begun`, the
    other ranks raise `Refused` for that reason in the call that they make, instead of waiting."""
    def decorate(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            self._begun = False
            try:
                return method(self, *args, **kwargs)
            except Exception as why:
                if not self._begun and self._owner is not None:
                    self._begun = True
                    self._tell_refusal(low_latency, f"{method.__name__}: {why}")
                raise
        return call
    return decorate


def tell(buffer, low_latency, why):
    """Collective: refuses the call that the other ranks make."""
    code = c.lib.peerbus_buffer_refuse(buffer, int(low_latency), why.encode(errors="replace"), 0)
    if code == c.INTERRUPTED:
        c.check(code)  # Any other failure is less than the error that this rank is about to raise.
