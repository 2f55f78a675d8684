"""What vLLM is asked for, from a model's config and the GPUs' memory; and what it answered."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror.core.paths import shown
from mirror.core.text import counted, human_size, human_time
from mirror.verify.report import Check

#: Classes whose models generate text, by the end of their name.
_GENERATE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
#: Names in configs for one thing, the usual one first.
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
#: Tokens; no more are needed, and the cache stays small.
CONTEXT = 512
#: vLLM pads the vocabulary to a multiple of this before it splits it.
_PADDED = 64
#: Bytes a GPU beside the weights: CUDA, NCCL, activations and a cache.
_BESIDE = 3 * 2**30
#: Of a GPU's memory: what is taken at least, what where nothing is known, and what of the free
#: part may be taken, since other processes' part changes.
_LEAST, _UNKNOWN, _OF_FREE = 0.1, 0.3, 0.9
#: Bytes that may be missing after the run, and seconds that the driver takes to give them back.
_LOST, _PATIENCE = 2**30, 10.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one GPU, in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """Over how many GPUs each layer is split, and why so many."""

    ranks: int
    why: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides how it can be split. 0: the config does not tell.

    heads, kv_heads: of attention. width: of the inner layer. context: tokens. weights: bytes.
    """

    heads: int
    kv_heads: int
    width: int
    vocabulary: int
    context: int
    weights: int

    def parallel(self, gpus: int) -> Parallel:
        """The largest tensor parallel size up to `gpus` that vLLM takes for this model."""
        ranks = next(n for n in range(gpus, 0, -1) if not self._against(n))
        said = f"tensor parallel {ranks} for {counted(gpus, 'GPU')}"
        if ranks == gpus:
            return Parallel(ranks, said)
        why = "; ".join(f"not {n}: {self._against(n)}" for n in range(gpus, ranks, -1))
        return Parallel(ranks, f"{said}: the model is not split into more ({why})")

    def _against(self, ranks: int) -> str:
        """Why vLLM does not split it into so many parts."""
        if self.heads % ranks:
            return f"{self.heads} attention heads"
        if self.kv_heads % ranks and (self.kv_heads == 0 or ranks % self.kv_heads):
            return f"{self.kv_heads} key-value heads"
        if self.width % ranks:
            return f"{self.width} columns of the inner layer"
        if math.ceil(self.vocabulary / _PADDED) * _PADDED % ranks:
            return f"a vocabulary of {self.vocabulary}"
        return ""


def read(folder: Path) -> Shape:
    """The shape of the model there. Raises ValueError when it is none that generates text."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"its config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ValueError("its config.json is no table")
    named = config.get("architectures")
    classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if not any(name.endswith(_GENERATE) for name in classes):
        what = ", ".join(map(shown, classes)) or "a config that names no class"
        raise ValueError(f"it is {what}, which generates no text")
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    heads = _number(text, *_HEADS)
    return Shape(
        heads=heads,
        kv_heads=_number(text, "num_key_value_heads") or heads,
        width=_number(text, "intermediate_size", "n_inner"),
        vocabulary=_number(text, "vocab_size"),
        context=min(_number(text, *_CONTEXT) or CONTEXT, CONTEXT),
        weights=_weights(folder),
    )


def _number(table: Mapping[str, Any], *names: str) -> int:
    found = (table.get(name) for name in names)
    return next((value for value in found if type(value) is int and value > 0), 0)


def _weights(folder: Path) -> int:
    for pattern in ("*.safetensors", "*.bin", "*.pt"):
        if sizes := [file.stat().st_size for file in folder.glob(pattern)]:
            return sum(sizes)
    return 0


def share(memory: Sequence[Memory], weights: int) -> tuple[float, str]:
    """What part of each GPU's memory vLLM shall take, and why it cannot be; empty when it can.

    memory: of the GPUs that are used; none where nothing is known. weights: bytes a GPU.
    """
    if not memory:
        return _UNKNOWN, ""
    least = min(memory, key=lambda gpu: gpu.free)
    if weights > least.free * _OF_FREE:
        return 0.0, (
            f"{human_size(weights)} of weights go on each GPU; one has {human_size(least.free)} of"
            f" {human_size(least.total)} free"
        )
    wanted = max((weights * 1.2 + _BESIDE) / least.total, _LEAST)
    return max(math.floor(min(wanted, least.free / least.total * _OF_FREE) * 100) / 100, 0.01), ""


def judge(answer: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[Check]:
    """Whether tokens came, and twice the same. env: the settings under which it ran."""
    load, generate = answer["seconds"]
    first, second = answer["first"], answer["second"]
    count = sum(map(len, first))
    under = f" under {' '.join(f'{k}={v}' for k, v in env.items())}" if env else ""
    evidence = (
        f"vllm {answer['version']}{under}: loaded in {human_time(load)}; {counted(count, 'token')}"
        f" for {counted(len(first), 'prompt')}, twice, in {human_time(generate)}"
    )
    if not first or not all(first):
        yield Check("generate", "fail", f"{evidence}: a prompt got none", _REPORT)
        return
    if not answer["finite"]:
        yield Check("generate", "fail", f"{evidence}: probabilities are no numbers (NaN)", _WRONG)
        return
    yield Check("generate", "pass", evidence)
    if first == second:
        yield Check("twice the same", "pass", "at temperature 0 both runs gave the same tokens")
    else:
        differ = f"at temperature 0 one run gave {first}, the other {second}"
        yield Check("twice the same", "fail", differ, _WRONG)


_REPORT = "Try the model with another version of vLLM."
_WRONG = (
    "Numbers went wrong on the way between GPUs, or on one: look at the stage multi (collectives)"
    " and the peer matrix in the stage host, then try NCCL_P2P_DISABLE=1 with"
    " disable_custom_all_reduce=True; another dtype shows whether it is that."
)


def given_back(
    before: Sequence[Memory], look: Callable[[], Sequence[Memory]], share: float
) -> Check:
    """Free memory of each GPU before and after; `look` reads it anew."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        after = look()
        pairs = list(zip(before, after, strict=False))
        lost = [old.free - new.free for old, new in pairs if old.free - new.free > _LOST]
        if not lost or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    rows = ", ".join(f"{human_size(old.free)} / {human_size(new.free)}" for old, new in pairs)
    evidence = f"free before / after, a GPU: {rows}; vLLM was given {share:.0%} of each"
    if not lost:
        return Check("memory", "pass", evidence)
    advice = "nvidia-smi shows who holds it: another process has started, or one was not ended."
    return Check("memory", "warn", evidence, advice)
