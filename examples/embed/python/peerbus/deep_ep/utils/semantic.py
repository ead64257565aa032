# SPDX-License-Identifier: MIT
"""Small helpers of DeepEP that programs import."""

import functools
import weakref


def value_or(value, default):
    """Returns `value`, or `default` for None."""
    return default if value is None else value


def weak_lru(maxsize=128, typed=False):
    """Returns a decorator that caches a method's results as functools.lru_cache does, for each object
    apart and only as long as the object lives."""
    def decorate(method):
        caches = weakref.WeakKeyDictionary()

        @functools.wraps(method)
        def cached(self, *arguments, **options):
            if self not in caches:
                itself = weakref.ref(self)
                caches[self] = functools.lru_cache(maxsize, typed)(
                    lambda *given, **named: method(itself(), *given, **named))
            return caches[self](*arguments, **options)

        return cached

    return decorate
