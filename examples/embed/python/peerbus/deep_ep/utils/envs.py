# SPDX-License-Identifier: MIT
"""Process groups as DeepEP's tests make them, their seeds, and what they ask of the machine."""

import os
import random

from .. import comm

_state = {"local_rank": 0, "seed": 0, "local_seed": 0}


def init_seed(global_seed):
    """Seeds this rank's generators of torch and Python with `global_seed` + rank."""
    import torch
    _state["seed"], _state["local_seed"] = global_seed, global_seed + torch.distributed.get_rank()
    torch.manual_seed(get_local_seed())
    random.seed(get_local_seed())


def get_local_seed():
    """Returns this rank's seed."""
    return _state["local_seed"]


def get_global_seed():
    """Returns the seed of all ranks."""
    return _state["seed"]


def dist_print(s="", once_in_node=False):
    """Collective: prints a text, on the first rank of each node only if `once_in_node`."""
    import torch.distributed as dist
    if not once_in_node or _state["local_rank"] == 0:
        print(s, flush=True)
    dist.barrier()


def init_dist(local_rank, num_local_ranks, seed=0):
    """Makes the default process group over gloo and returns (rank, number of ranks, a group of
    all). MASTER_ADDR, MASTER_PORT (8361), WORLD_SIZE and RANK have DeepEP's meaning: the last two
    are those of nodes."""
    import torch
    import torch.distributed as dist
    os.environ.setdefault("USE_LIBUV", "0")  # Not every build of torch has libuv.
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", "8361"))
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}",
                            world_size=nodes * num_local_ranks,
                            rank=node * num_local_ranks + local_rank)
    torch.set_default_dtype(torch.bfloat16)
    _state["local_rank"] = local_rank
    init_seed(seed)
    return (dist.get_rank(), dist.get_world_size(),
            dist.new_group(list(range(nodes * num_local_ranks))))


def get_physical_domain_size(group):
    """Returns (1, ranks): one domain, of one host or several, whose calls reach every rank."""
    return comm.get_physical_domain_size(group)


def get_logical_domain_size(group, allow_hybrid_mode=True):
    """Returns (1, ranks), as `get_physical_domain_size` does."""
    return comm.get_logical_domain_size(group, allow_hybrid_mode)


def check_nvlink_connections(group):
    """Does nothing: there are no links to check."""


def check_torch_deterministic():
    """Does nothing: no other stream is there to overtake torch's filling of new memory."""


def get_nvlink_gbs(factor=0.9):
    """Returns 450 * `factor`, the GB/s of an H100, for programs that plan with it. There are no links
    to ask."""
    return 450 * factor


def check_fast_rdma_atomic_support(nic_name="mlx5_0"):
    """Returns False: there is no such device."""
    return False


def get_rdma_gbs(nic_name="mlx5_0"):
    """Returns 50, the GB/s of a 400 Gb/s link, for programs that plan with it. There is no device to
    ask."""
    return 50.0
