# SPDX-License-Identifier: MIT
"""DeepEP's module `deep_ep.utils.comm`. There are no communicators of NCCL here, so that what returns
one does not exist."""

from ..comm import destroy_all_managed_nccl_comm

__all__ = ["destroy_all_managed_nccl_comm"]
