"""Training with a part of the model on every rank: accelerate's FSDP, and proof that it shards."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

_WRAPPED = "_fsdp_wrapped_module."


def plugin(version: int | None) -> Any:
    """accelerate's plugin: everything sharded, checkpoints in shards, transformer layer by layer.

    version: 2 (fully_shard) where accelerate and torch have it, else 1; None for the newest.
    """
    from accelerate import FullyShardedDataParallelPlugin  # type: ignore[import-untyped]

    # What a model gives out is changed in place by nobody here, which torch warns of in advance.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    options: dict[str, Any] = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    if version != 1 and _has_version_2(FullyShardedDataParallelPlugin):
        return FullyShardedDataParallelPlugin(fsdp_version=2, **options)
    # The optimizer is made before the model is wrapped, so it must know the original parameters.
    return FullyShardedDataParallelPlugin(use_orig_params=True, **options)


def _has_version_2(kind: Any) -> bool:
    import torch.distributed.fsdp

    known = any(field.name == "fsdp_version" for field in fields(kind))
    return known and hasattr(torch.distributed.fsdp, "fully_shard")


def version(plugin: Any) -> int:
    """1 or 2."""
    return int(getattr(plugin, "fsdp_version", None) or 1)


def enter(accelerator: Any, plugin: Any) -> None:
    """Make sure that accelerate shards; on the CPU it would run DDP and say nothing.

    It takes FSDP for a matter of GPUs alone, while torch's works through gloo, too. So its state is
    told: from there on it goes the same way as on a GPU.
    """
    from accelerate import DistributedType
    from accelerate.state import PartialState  # type: ignore[import-untyped]

    if accelerator.distributed_type == DistributedType.FSDP:
        return
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.fsdp_plugin = plugin
    for state in (accelerator.state, PartialState()):
        state.distributed_type = DistributedType.FSDP
        if version(plugin) == 1:
            state.device = torch.device("cpu")  # "cpu:0" is another device to it


def fit(plugin: Any, module: nn.Module) -> None:
    """Have each of the model's layers gathered by itself, where it says which those are.

    Only a class of which there are several: embeddings may share their weights with the output.
    """
    counts = Counter(type(part).__name__ for part in module.modules())
    named = getattr(module, "_no_split_modules", None) or ()
    layers = sorted(name for name in named if counts[name] > 1)
    if layers:
        plugin.transformer_cls_names_to_wrap = layers
    else:
        plugin.auto_wrap_policy = None
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        # accelerate makes units of embeddings and output; torch then refuses a parameter (a bias,
        # in BERT) that is in one of them and elsewhere, too. Shared ones stay in the whole's unit.
        for name in ("get_input_embeddings", "get_output_embeddings"):
            if hasattr(module, name):
                setattr(module, name, _none)


def _none() -> None:
    return None


def held(wrapped: nn.Module) -> int:
    """How many of the model's parameters this rank holds itself."""
    return sum(_local(parameter).numel() for parameter in wrapped.parameters())


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@contextlib.contextmanager
def whole(module: nn.Module, wrapped: nn.Module) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Every parameter and buffer by its name, in full, on every rank, in the order of names.

    module: the model itself; wrapped: as accelerate has it. All ranks go through it together.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(wrapped, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            table = [*wrapped.named_parameters(), *wrapped.named_buffers()]
            # Copies: memory that was shown to numpy cannot be freed again, which FSDP does.
            copies = {name.replace(_WRAPPED, ""): tensor.clone() for name, tensor in table}
            yield iter(sorted(copies.items()))
        return
    table = [*module.named_parameters(), *module.named_buffers()]
    yield ((name, _full(tensor)) for name, tensor in sorted(table, key=lambda pair: pair[0]))


def _full(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()
