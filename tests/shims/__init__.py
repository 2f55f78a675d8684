"""Machines whose collectives fail, as an interpreter that the trainer is started with.

    python = shims.interpreter(tmp_path / "shim", {"fault": "hang", "ops": ["all_reduce"],
                                                   "unless": {"NCCL_P2P_DISABLE": "1"}})
    Job(python=python, ...)

The interpreter is a shell script that starts a real Python with tests/shims/site on its path, where
a sitecustomize.py puts itself before torch.distributed's functions. Ranks that accelerate starts
inherit it. Nothing in mirror or its trainer knows of it. DDP's own all-reduce is below Python and
is not reached.

A fault is a table:

    fault     raise    RuntimeError with `text`
              corrupt  one number of what came is 1 too large
              nan      one number of what came is NaN
              skip     returns at once, having done nothing
              hang     never returns
              slow     takes `bytes` / `bytes_per_second` seconds longer
              crash    kills its process by `signal` (11: segmentation fault)
              log      appends `text` to NCCL_DEBUG_FILE (%h and %p as NCCL has them), once
    unless    variables that cure it, all of them: {"NCCL_P2P_DISABLE": "1"}; or a list of such
              tables, any of which cures it
    ops       all_reduce, all_gather, reduce_scatter, broadcast, send, recv, barrier; default all
    above     only when the operation's buffer has at least so many bytes
    ranks     only on these ranks
    peers     only when sending to, or receiving from, these ranks
    world     only in a group of so many ranks
    after     lets so many calls pass first
    says      is written to standard error when it strikes

Several tables are several faults; the first that is due strikes, but for "log" and "slow", which
go on to the next.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent / "site"


def interpreter(folder: Path, *faults: dict[str, Any], python: Path = Path(sys.executable)) -> Path:
    """An executable to be used in place of `python`."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "python"
    variables = f"PYTHONPATH={shlex.quote(str(SITE))} SHIM={shlex.quote(json.dumps(faults))}"
    script.write_text(f'#!/bin/sh\n{variables} exec {shlex.quote(str(python))} "$@"\n', "utf-8")
    script.chmod(0o755)
    return script
