# SPDX-License-Identifier: Apache-2.0
"""Attention of sparse multi-head latent attention's prefill, exact and routed.

    import headrace

    device = headrace.Device(0)                  # leave it out for the processor
    plan = headrace.plan(query_len, seq_len, device=device, num_heads=16, kv_lora_rank=512, qk_nope_head_dim=256,
                         v_head_dim=256, scale=1 / 16, rule="kpool(2048, 4, tail)")
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    plan.upload(torch.empty(plan.table_bytes, dtype=torch.uint8, device="cuda"))  # on a GPU alone
    headrace.attend(plan, q=q, kv_b_proj=kv_b_proj, cache=cache, ..., out=out, workspace=workspace)

Tensors are those of any library that speaks DLPack. What the arguments mean is said in docs/engine-call.md and
docs/contract.md of the library.
"""

from ._library import DeviceError, Error, OutOfMemoryError, UnsupportedError, version
from ._plan import Attention, Device, Plan, Request, attend, device_count, plan, table_bound, workspace_bound

__all__ = [
    "Attention",
    "Device",
    "DeviceError",
    "Error",
    "OutOfMemoryError",
    "Plan",
    "Request",
    "UnsupportedError",
    "attend",
    "device_count",
    "plan",
    "table_bound",
    "version",
    "workspace_bound",
]
__version__ = version()
