"""Whether vLLM works here: it loads one model with tensor parallelism and generates, twice.

vLLM is no dependency of the trainer's; it is the environment's or it is not there.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.metadata
import importlib.util
import math
import time
from pathlib import Path
from typing import Any

from trainer.results import Heartbeat, write_json

#: New tokens a prompt.
TOKENS = 8
#: Shorter than a block of vLLM's cache (16 tokens): the second run finds nothing of the first there
#: and computes the same.
_PROMPTS = ("An air-gapped server", "Two GPUs")
#: Where there is no tokenizer. Every vocabulary has these.
_NUMBERS = ((5, 6, 7, 8, 9), (10, 11, 12))
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt")


def main(arguments: list[str]) -> int:
    """Leave {"version", "first", "second", "finite", ...} in a file, {} without vLLM.

    first, second: the new tokens of each prompt, in two runs. finite: whether every token's
    probability is a number. seconds: to load, to generate both times. cpu: whether this vLLM is
    built for CPUs; on a machine without GPUs another one is not tried, and there are no tokens.
    """
    parser = argparse.ArgumentParser(prog="trainer vllm")
    parser.add_argument("--out", type=Path, required=True, help="file for the answer")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--parallel", type=int, required=True, help="tensor parallel size")
    parser.add_argument("--share", type=float, required=True, help="of each GPU's memory")
    parser.add_argument("--context", type=int, required=True, help="tokens")
    parser.add_argument("--cpu", action="store_true", help="this machine has no GPU")
    parser.add_argument("--limit", type=float, required=True, help="seconds until a stack is shown")
    options = parser.parse_args(arguments)
    enter = Heartbeat(options.out.parent, 0)
    faulthandler.dump_traceback_later(options.limit)
    enter("import")
    if importlib.util.find_spec("vllm") is None:
        write_json(options.out, {})
        return 0
    version = _version()
    answer: dict[str, Any] = {"version": version, "cpu": "cpu" in version.partition("+")[2]}
    if options.cpu and not answer["cpu"]:
        write_json(options.out, answer)
        return 0
    vllm: Any = importlib.import_module("vllm")
    begin = time.monotonic()
    enter("load", detail=f"vllm {version}, tensor parallel {options.parallel}")
    files = {path.name for path in options.model.iterdir()}
    reads_text = any(name in files for name in _TOKENIZERS)
    model = vllm.LLM(
        model=str(options.model),
        tensor_parallel_size=options.parallel,
        # Not Ray, where that is there, too: it has a check of its own.
        distributed_executor_backend="mp" if options.parallel > 1 else None,
        enforce_eager=True,
        max_model_len=options.context,
        max_num_seqs=4,
        gpu_memory_utilization=options.share,
        skip_tokenizer_init=not reads_text,
        # The bundle holds a repository's Python code only where its manifest trusts that code.
        trust_remote_code=any(name.endswith(".py") for name in files),
        seed=0,
    )
    loaded = time.monotonic() - begin
    wanted = vllm.SamplingParams(
        max_tokens=TOKENS, temperature=0, ignore_eos=True, logprobs=1, detokenize=reads_text
    )
    prompts = (
        list(_PROMPTS)
        if reads_text
        else [{"prompt_token_ids": list(numbers)} for numbers in _NUMBERS]
    )
    runs = []
    for number in (1, 2):
        enter("generate", number)
        runs.append([one.outputs[0] for one in model.generate(prompts, wanted)])
    sums = [one.cumulative_logprob for run in runs for one in run]
    answer |= {
        "first": [list(one.token_ids) for one in runs[0]],
        "second": [list(one.token_ids) for one in runs[1]],
        "finite": all(value is None or math.isfinite(value) for value in sums),
        "seconds": [loaded, time.monotonic() - begin - loaded],
    }
    write_json(options.out, answer)
    enter("stop")
    return 0


def _version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
