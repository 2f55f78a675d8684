"""Whether transformers loads one bundled model: its class, its weights, and a forward pass.

A small model is loaded as its users would, on the CPU, and computes once. Of a large one only the
shapes are looked at, on torch's "meta" device: whether this transformers knows the architecture and
whether every weight has its place needs no memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Bytes of weights up to which a model is loaded and computes: seconds on any server.
SMALL = 2**30
#: Tokens of the forward pass.
LENGTH = 8


def look(folder: Path, files: list[str]) -> Iterator[tuple[str, str]]:
    """(verdict, evidence) a finding; whatever transformers raises on a bad model goes through."""
    if "config.json" not in files or not _here("transformers", "torch"):
        yield "skip", "it has no config.json, or transformers or torch is not in this environment"
        return
    transformers = importlib.import_module("transformers")
    config, options = _config(transformers, folder, files)
    loader = _loader(transformers, config)
    if loader is None:
        yield "skip", f"its config names no class that transformers {transformers.__version__} has"
        return
    size = sum((folder / file).stat().st_size for file in files if _is_weights(file))
    if not size:
        yield "skip", "it has no weights of torch's"
        return
    small = size <= SMALL
    where = {} if small else {"device_map": "meta"}
    if not small and not _here("accelerate"):
        yield "skip", "it is large, and without accelerate it cannot be laid out without memory"
        return
    model, said = loader.from_pretrained(str(folder), **options, **where, output_loading_info=True)
    missing = sorted(said.get("missing_keys", ()))
    wrong = sorted(str(item) for item in said.get("mismatched_keys", ()))
    if missing or wrong:
        # A head that is not in the file is made anew: no error of the bundle, but to be known.
        yield "warn", f"{type(model).__name__} makes up {_some(missing + wrong)}"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    name = f"{type(model).__name__}, {parameters:,} parameters"
    if not small:
        yield "pass", f"{name}: every weight has its place (too large to compute here)"
        return
    yield _forward(model, name)


def _config(transformers: Any, folder: Path, files: list[str]) -> tuple[Any, dict[str, Any]]:
    """The config, and the options under which it loads.

    The bundle holds Python code only where its manifest trusts that code: in this repository, or in
    another one of the bundle which the config names.
    """
    trusted = any(file.endswith(".py") for file in files)
    options = {"local_files_only": True, "trust_remote_code": trusted}
    try:
        return transformers.AutoConfig.from_pretrained(str(folder), **options), options
    except ValueError as error:
        if trusted or "trust_remote_code" not in str(error):
            raise
    options["trust_remote_code"] = True
    return transformers.AutoConfig.from_pretrained(str(folder), **options), options


def _here(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


def _is_weights(file: str) -> bool:
    return file.endswith((".safetensors", ".bin")) and "/" not in file


def _loader(transformers: Any, config: Any) -> Any:
    """The class that the config names, or the automatic one for code that comes with the model."""
    automatic = getattr(config, "auto_map", None) or {}
    for name in ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModel"):
        if name in automatic:
            return getattr(transformers, name)
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    # A config without `architectures` is enough for the bare model of a type that is known.
    return transformers.AutoModel if type(config) in transformers.MODEL_MAPPING else None


def _forward(model: Any, name: str) -> tuple[str, str]:
    import torch

    given = _inputs(model)
    if given is None:
        return "pass", f"{name}: every weight has its place (what it computes on is not known here)"
    model.eval()
    with torch.no_grad():
        output = model(**given)
    values = next((value for value in output.values() if torch.is_tensor(value)), None)
    if values is None or not torch.isfinite(values).all():
        return "fail", f"{name}: a forward pass gives no finite numbers"
    return "pass", f"{name}: a forward pass gives {tuple(values.shape)} finite numbers"


def _inputs(model: Any) -> dict[str, Any] | None:
    """Something to compute on, by the name of the model's main input; None where it is no known."""
    import torch

    config, wanted = model.config, model.main_input_name
    taken = inspect.signature(model.forward).parameters.values()
    if not any(one.name == wanted or one.kind is one.VAR_KEYWORD for one in taken):
        return None  # code of its own, which wants something else
    if wanted == "input_ids":
        size = getattr(config.get_text_config(), "vocab_size", 0)
        ids = torch.arange(LENGTH).remainder(max(size, 1)).unsqueeze(0)
        both = getattr(config, "is_encoder_decoder", False)
        return {"input_ids": ids, **({"decoder_input_ids": ids} if both else {})}
    side = getattr(config, "image_size", None)
    if wanted == "pixel_values" and isinstance(side, int):
        return {"pixel_values": torch.zeros(1, getattr(config, "num_channels", 3), side, side)}
    return None


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
