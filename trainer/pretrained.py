"""A bundled language model through transformers, made fit for a run that can be repeated exactly.

Decoders (AutoModelForCausalLM) continue a walk; encoders (AutoModelForMaskedLM) fill gaps in it. An
encoder without a head for that, as sentence encoders are bundled, gets a seeded one.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.model import UnsupportedError
from trainer.task import LENGTH, SYMBOLS


class RefusedError(UnsupportedError):
    """transformers is there, and failed on this model; says how."""


def load(folder: Path, largest: int, trusted: bool, seed: int) -> dict[str, Any]:
    """What a Learner is made of: module, vocabulary, through, fresh, reserved, gap.

    The weights are float32, attention is "eager" (fused kernels have no deterministic backward pass
    on every GPU), nothing is dropped out.
    Raises UnsupportedError for what is no language model of at most `largest` parameters, and
    RefusedError when transformers fails.
    """
    transformers = _attempt("import", lambda: importlib.import_module("transformers"))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    options = {"local_files_only": True, "trust_remote_code": trusted}
    config = _attempt(
        "config", lambda: transformers.AutoConfig.from_pretrained(str(folder), **options)
    )
    loader, fills_gaps = _loader(transformers, config)
    if getattr(config, "quantization_config", None):
        raise UnsupportedError("its weights are quantized, which is not for training")
    _without_chance(config)
    count = _attempt("shapes", lambda: _count(loader, config, trusted))
    if count > largest:
        raise UnsupportedError(f"it has {count:,} parameters; at most {largest:,} are trained")
    torch.manual_seed(seed)  # of a head that the files lack: the same on every rank
    module, said = _attempt(
        "weights",
        lambda: loader.from_pretrained(
            str(folder),
            config=config,
            attn_implementation="eager",
            output_loading_info=True,
            **options,
        ),
    )
    module = module.float()
    reserved, vocabulary = _reserved(config), _vocabulary(config)
    ordinary = [token for token in range(vocabulary) if token not in reserved]
    if len(ordinary) <= SYMBOLS:
        raise UnsupportedError(f"its vocabulary of {vocabulary} leaves no {SYMBOLS} symbols")
    gap = _gap(folder, ordinary[-1]) if fills_gaps else None
    _attempt("forward pass", lambda: _forward(module, ordinary[0]))
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    return {
        "module": module,
        "vocabulary": vocabulary,
        "through": f"transformers {transformers.__version__}",
        "fresh": sum(sizes.get(name, 0) for name in said.get("missing_keys", ())),
        "reserved": reserved | (frozenset() if gap is None else frozenset({gap})),
        "gap": gap,
    }


def _attempt(what: str, go: Any) -> Any:
    try:
        return go()
    except UnsupportedError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever a library, or a model's own code, raises
        text = " ".join(str(error).split())[:300]
        raise RefusedError(
            f"transformers fails on it ({what}): {type(error).__name__}: {text}"
        ) from None


def _loader(transformers: Any, config: Any) -> tuple[Any, bool]:
    """The automatic class for this config, and whether its models fill gaps."""
    causal, masked = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM
    own = getattr(config, "auto_map", None) or {}
    if "AutoModelForCausalLM" in own:
        return causal, False
    if "AutoModelForMaskedLM" in own:
        return masked, True
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"it is an encoder and a decoder ({config.model_type})")
    names = " ".join(getattr(config, "architectures", None) or ())
    decodes = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    # Many encoders are listed as decoders, too: transformers can use them so.
    if decodes and ("CausalLM" in names or "LMHead" in names):
        return causal, False
    if type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        return masked, True
    if decodes:
        return causal, False
    raise UnsupportedError(f"its model_type {config.model_type!r} is no language model")


def _without_chance(config: Any) -> None:
    """Nothing is dropped at random, and nothing is kept for generating text."""
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    if hasattr(config, "use_cache"):
        config.use_cache = False


def _count(loader: Any, config: Any, trusted: bool) -> int:
    with torch.device("meta"):
        module: nn.Module = loader.from_config(config, trust_remote_code=trusted)
    return sum(parameter.numel() for parameter in module.parameters())


def _vocabulary(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


def _reserved(config: Any) -> frozenset[int]:
    """Tokens that a model treats in ways of its own: padding, begin, end."""
    found: set[int] = set()
    for name, value in vars(config.get_text_config()).items():
        if name.endswith("_token_id"):
            values = value if isinstance(value, (list, tuple)) else [value]
            found.update(number for number in values if type(number) is int)
    return frozenset(found)


def _gap(folder: Path, otherwise: int) -> int:
    """The mask token, where the folder's tokenizer names one, else a token that is in no walk."""
    try:
        tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )
        found = tokenizer.mask_token_id
    except Exception:  # noqa: BLE001 -- a tokenizer is looked at elsewhere; any token will do here
        found = None
    return found if type(found) is int else otherwise


def _forward(module: nn.Module, token: int) -> None:
    """Fails here, in words, rather than in the middle of the training."""
    tokens = torch.full((1, LENGTH), token)
    with torch.no_grad():
        logits = module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    if logits.shape[:2] != tokens.shape or not torch.isfinite(logits).all():
        raise RefusedError("a forward pass through it gives no finite logits")
