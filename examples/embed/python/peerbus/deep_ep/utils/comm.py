# SPDX-License-Identifier: MIT
"""DeepEP's module `deep_ep.utils.comm`."""

from ..comm import destroy_all_managed_nccl_comm, get_nccl_comm_handle

__all__ = ["destroy_all_managed_nccl_comm", "get_nccl_comm_handle"]
