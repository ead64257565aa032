# SPDX-License-Identifier: MIT
"""Process groups as DeepEP's tests make them."""

import os


def init_dist(local_rank, num_local_ranks):
    """Makes the default process group over gloo and returns (rank, number of ranks, a group of
    all). MASTER_ADDR, MASTER_PORT (8361), WORLD_SIZE and RANK have DeepEP's meaning: the nodes, of
    which there is one."""
    import torch
    import torch.distributed as dist
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if nodes != 1:
        raise ValueError(f"WORLD_SIZE is {nodes} nodes, expected 1: the ranks are on one host")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", "8361"))
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}",
                            world_size=num_local_ranks, rank=node * num_local_ranks + local_rank)
    torch.set_default_dtype(torch.bfloat16)
    return (dist.get_rank(), dist.get_world_size(),
            dist.new_group(list(range(num_local_ranks))))
