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


def tell(function, *arguments, why):
    """Collective: refuses the call that the other ranks make, by a function of the library."""
    c.check_refusal(function(*arguments, why.encode(errors="replace"), 0))


def told_to_all(method):
    """Decorates a collective method of `EPBuffer`, whose first argument is the name of the call. If it
    raises while `self._refusing` is the kind of the library's buffer whose call the other ranks make,
    they raise `Refused` for that reason."""
    @functools.wraps(method)
    def call(self, name, *args, **kwargs):
        self._alive()
        self._refusing = None
        try:
            return method(self, name, *args, **kwargs)
        except Exception as why:
            kind, self._refusing = self._refusing, None
            if kind is not None:
                refuse = (c.lib.peerbus_ep_buffer_refuse, self._buffer(kind)) \
                    if kind == "ep_buffer" else \
                    (c.lib.peerbus_buffer_refuse, self._buffer(kind), 0)
                tell(*refuse, why=f"{name}: {why}")
            raise
    return call
