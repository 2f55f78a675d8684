"""A small Llama in plain torch, with the parameter names of Hugging Face's.

So a bundled model's own config.json and model.safetensors load into it without transformers.
Attention is written out (matmul, softmax, matmul): every kernel in it has a deterministic backward
pass, which fused attention has not on every GPU.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

#: Bundled models with more parameters than this are not trained, unless more are asked for.
MAX_PARAMETERS = 50_000_000


class UnsupportedError(Exception):
    """The model in this folder is none that this module can hold; says why."""


@dataclass(frozen=True)
class Config:
    """The shape of a Llama; names as in its config.json."""

    vocab_size: int = 256
    hidden_size: int = 64
    intermediate_size: int = 176
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        width, heads = self.hidden_size, self.num_attention_heads + self.num_key_value_heads
        layer = 2 * width * self.head_dim * heads + 3 * width * self.intermediate_size + 2 * width
        embeddings = self.vocab_size * width * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings + width


class Attention(nn.Module):
    """Causal self-attention with rotary positions; several query heads share a key head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.shared = config.num_attention_heads // config.num_key_value_heads
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, hidden) -> the same shape; cos, sin: (length, head_dim)."""
        batch, length, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, -1, self.head_dim).transpose(1, 2)

        query = _rotated(heads(self.q_proj(x)), cos, sin)
        key = _rotated(heads(self.k_proj(x)), cos, sin).repeat_interleave(self.shared, dim=1)
        value = heads(self.v_proj(x)).repeat_interleave(self.shared, dim=1)
        scores = (query @ key.transpose(2, 3) / math.sqrt(self.head_dim)).float() + mask
        mixed = torch.softmax(scores, dim=-1).to(value.dtype) @ value
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class RMSNorm(nn.Module):
    """Scale each vector to root mean square 1, then by learnt weights."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape (..., size) -> the same, computed in float32."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class MLP(nn.Module):
    """SiLU-gated feed-forward layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One block: attention, then MLP, each after a norm and beside a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, hidden) -> the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Everything but the output layer; named `model` in checkpoints."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class TinyLM(nn.Module):
    """A causal language model."""

    #: What FSDP gathers and frees as one; the name is transformers'.
    _no_split_modules = ("Layer",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) -> logits (batch, length, vocabulary)."""
        length = tokens.shape[1]
        cos, sin = _rotary(length, self.config, tokens.device)
        mask = torch.full((length, length), float("-inf"), device=tokens.device).triu(1)
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        logits: Tensor = self.lm_head(self.model.norm(x))
        return logits


def _rotary(length: int, config: Config, device: torch.device) -> tuple[Tensor, Tensor]:
    steps = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    frequencies = config.rope_theta ** (-steps / config.head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def built_in(seed: int = 0) -> TinyLM:
    """The trainer's own model, with seeded weights: the same on every machine and rank."""
    generator = torch.Generator().manual_seed(seed)
    lm = TinyLM(Config())
    with torch.no_grad():
        for name, weight in lm.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0.0, 0.02, generator=generator)
    return lm


def read_config(folder: Path, largest: int = MAX_PARAMETERS) -> Config:
    """The shape that this folder's config.json states.

    Raises UnsupportedError for another architecture, a feature this module lacks, or more than
    `largest` parameters.
    """
    try:
        table: Any = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"its config.json cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise UnsupportedError("its config.json holds no table")
    if table.get("model_type") != "llama":
        raise UnsupportedError(f"its model_type is {table.get('model_type')!r}, not 'llama'")
    rope = table.get("rope_parameters") or table.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    foreign = {
        "hidden_act": table.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(table.get("attention_bias")),
        "mlp_bias": bool(table.get("mlp_bias")),
        "rope_type": kind != "default",
        "quantization_config": bool(table.get("quantization_config")),
    }
    if any(foreign.values()):
        names = ", ".join(key for key, found in foreign.items() if found)
        raise UnsupportedError(f"its config.json sets {names} to what the trainer does not have")
    try:
        heads = int(table["num_attention_heads"])
        config = Config(
            vocab_size=int(table["vocab_size"]),
            hidden_size=int(table["hidden_size"]),
            intermediate_size=int(table["intermediate_size"]),
            num_hidden_layers=int(table["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(table.get("num_key_value_heads") or heads),
            head_dim=int(table.get("head_dim") or int(table["hidden_size"]) // heads),
            rms_norm_eps=float(table.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or table.get("rope_theta") or 10_000.0),
            tie_word_embeddings=bool(table.get("tie_word_embeddings")),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UnsupportedError(f"its config.json is incomplete: {error!r}") from None
    if config.parameters > largest:
        raise UnsupportedError(
            f"it has {config.parameters:,} parameters; at most {largest:,} are trained"
        )
    return config


def bundled(folder: Path, largest: int = MAX_PARAMETERS) -> TinyLM:
    """The model in this folder, its weights in float32.

    Raises UnsupportedError as `read_config`, and ValueError when the weights are not exactly those
    that its config.json calls for: every name and every shape must match.
    """
    from safetensors.torch import load_file

    config = read_config(folder, largest)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    else:
        shards = ["model.safetensors"]
    weights: dict[str, Tensor] = {}
    for shard in shards:
        if not (folder / shard).is_file():
            raise UnsupportedError(f"it has no {shard}")
        weights.update(load_file(folder / shard))
    lm = TinyLM(config)
    wanted = dict(lm.named_parameters())  # a tied output layer is listed once
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    problems = [f"{name} is missing" for name in sorted(wanted.keys() - weights.keys())]
    problems += [f"{name} is unknown" for name in sorted(weights.keys() - wanted.keys())]
    problems += [
        f"{name} has shape {list(weights[name].shape)}, not {list(parameter.shape)}"
        for name, parameter in wanted.items()
        if name in weights and weights[name].shape != parameter.shape
    ]
    if problems:
        raise ValueError("the weights do not fit config.json: " + "; ".join(problems[:10]))
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(weights[name])
    return lm
