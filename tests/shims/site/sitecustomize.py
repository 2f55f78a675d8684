"""Puts faults before torch.distributed's functions: see tests/shims/__init__.py.

It stands alone: Python imports it at its start in the processes under test.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

MODULE = "torch.distributed.distributed_c10d"
#: The operations, and torch's functions for each, old names and new.
OPERATIONS = {
    "all_reduce": ("all_reduce",),
    "all_gather": ("all_gather", "all_gather_into_tensor", "all_gather_single"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    "broadcast": ("broadcast",),
    "send": ("send",),
    "recv": ("recv",),
    "barrier": ("barrier",),
}


class Fault:
    """One of the tables."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.kind: str = table["fault"]
        self.table = table
        self.calls = 0

    def due(self, operation: str, call: Call) -> bool:
        """Whether it strikes in this call."""
        table = self.table
        wanted = {
            "ops": operation,
            "ranks": int(os.environ.get("RANK", "0")),
            "peers": call.peer,
        }
        if any(value not in table.get(key, [value]) for key, value in wanted.items()):
            return False
        if call.size < table.get("above", 0) or table.get("world", call.world) != call.world:
            return False
        cures = table.get("unless", [])
        for cure in [cures] if isinstance(cures, dict) else cures:
            if cure and all(os.environ.get(key) == value for key, value in cure.items()):
                return False
        self.calls += 1
        return bool(self.calls > table.get("after", 0))


class Call:
    """One call of a function of torch's."""

    def __init__(self, module: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        values = [*arguments, *options.values()]
        buffers = [tensors for value in values if (tensors := _tensors(value))]
        self.tensors = buffers[0] if buffers else []
        self.size = max((sum(t.nbytes for t in tensors) for tensors in buffers), default=0)
        peers = [value for value in values if type(value) is int]
        peers += [options[key] for key in ("src", "dst") if type(options.get(key)) is int]
        self.peer = peers[-1] if peers else None
        self.world = module.get_world_size(options.get("group"))

    def change(self, number: float | None) -> None:
        """One number of what came becomes `number`, or 1 larger."""
        flat = self.tensors[0].view(-1)
        place = flat.numel() // 2
        flat[place] = flat[place] + 1 if number is None else number


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return [value] if hasattr(value, "nbytes") and hasattr(value, "dtype") else []


FAULTS = [Fault(table) for table in json.loads(os.environ.get("SHIM", "[]"))]
_inside: list[str] = []


def _faulty(module: Any, operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if _inside:  # one of torch's own functions calls another
            return function(*arguments, **options)
        what = Call(module, arguments, options)
        after = None
        for fault in FAULTS:
            if not fault.due(operation, what):
                continue
            if says := fault.table.get("says"):
                print(says, file=sys.stderr, flush=True)
            if fault.kind == "log":
                _log(fault)
            elif fault.kind == "slow":
                time.sleep(what.size / fault.table["bytes_per_second"])
            elif fault.kind == "skip":
                return None
            else:
                after = _strike(fault)
                break
        _inside.append(operation)
        try:
            result = function(*arguments, **options)
        finally:
            _inside.pop()
        if after is not None and what.tensors:
            what.change(None if after == "corrupt" else float("nan"))
        return result

    return call


def _strike(fault: Fault) -> str:
    """Do what is done instead of the call; returns what is left to do after it."""
    if fault.kind == "raise":
        raise RuntimeError(fault.table.get("text", "NCCL error: unhandled cuda error"))
    if fault.kind == "crash":
        os.kill(os.getpid(), fault.table.get("signal", 11))
    while fault.kind == "hang":
        time.sleep(3600)
    return fault.kind


def _log(fault: Fault) -> None:
    """What NCCL would write to the file of this process."""
    name = os.environ.get("NCCL_DEBUG_FILE")
    if not name or fault.calls > fault.table.get("after", 0) + 1:
        return
    host = socket.gethostname().partition(".")[0]
    with open(name.replace("%h", host).replace("%p", str(os.getpid())), "a") as file:
        file.write(fault.table["text"])


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the functions as soon as torch has defined them, before anybody imports them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def execute(module: ModuleType) -> None:
            run(module)
            for operation, names in OPERATIONS.items():
                for function in names:
                    if hasattr(module, function):
                        wrapped = _faulty(module, operation, getattr(module, function))
                        setattr(module, function, wrapped)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


if FAULTS:
    sys.meta_path.insert(0, _Finder())
