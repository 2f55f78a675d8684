"""Write tiny-llama/: a causal language model of 107,000 random weights, in Hugging Face's format.

    python manifests/make_tiny_model.py [FOLDER]

Small enough to be committed, real enough to be carried, loaded and trained: config, weights in
safetensors, a byte-level BPE tokenizer. The same versions of numpy, safetensors and tokenizers
write the same bytes again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HIDDEN, INTERMEDIATE, LAYERS, HEADS, VOCABULARY, CONTEXT = 64, 128, 2, 4, 384, 256
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SEED = 20

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": CONTEXT,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "pad_token_id": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
GENERATION_CONFIG = {"_from_model_config": True} | {
    key: CONFIG[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")
}
TOKENIZER_CONFIG = {
    **SPECIAL,
    "add_bos_token": False,
    "add_eos_token": False,
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
    "model_max_length": CONTEXT,
    "tokenizer_class": "PreTrainedTokenizerFast",
}
CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [test]
---
# tiny-llama

A Llama with two layers and random weights. It says nothing of sense: it is there to be carried
through an air gap, loaded offline and trained for a few steps. `make_tiny_model.py` beside this
folder makes it.
"""
#: What the tokenizer learns its 124 merges from.
TEXT = """\
The machine has no network. What it needs comes in one file, and the file says what is in it.
First the index is read, then the bytes are checked, then the model is loaded and trained.
One process on one device, then many processes on many devices: the loss must be the same.
When the numbers differ, the report says where, and what to set, and what it costs.
"""


def weights() -> dict[str, Any]:
    """Name -> float32 array: normal with standard deviation 0.02, norms 1."""
    import numpy

    random = numpy.random.RandomState(SEED)

    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.02).astype(numpy.float32)

    def ones() -> Any:
        return numpy.ones(HIDDEN, dtype=numpy.float32)

    found = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN), "model.norm.weight": ones()}
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            found[f"{layer}.self_attn.{name}.weight"] = normal(HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            found[f"{layer}.mlp.{name}.weight"] = normal(INTERMEDIATE, HIDDEN)
        found[f"{layer}.mlp.down_proj.weight"] = normal(HIDDEN, INTERMEDIATE)
        found[f"{layer}.input_layernorm.weight"] = ones()
        found[f"{layer}.post_attention_layernorm.weight"] = ones()
    return found


def tokenizer() -> str:
    """The JSON of a byte-level BPE: 4 special tokens, 256 bytes, the rest merges."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    made.train_from_iterator(TEXT.splitlines(), trainer)
    assert made.get_vocab_size() == VOCABULARY  # noqa: S101
    return str(made.to_str(pretty=False))


def write(folder: Path) -> None:
    """Write the model's files into `folder`."""
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": CONFIG,
        "generation_config.json": GENERATION_CONFIG,
        "special_tokens_map.json": SPECIAL,
        "tokenizer_config.json": TOKENIZER_CONFIG,
    }
    texts = {name: json.dumps(value, indent=2) + "\n" for name, value in documents.items()}
    texts |= {"README.md": CARD, "tokenizer.json": tokenizer() + "\n"}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    (folder / "model.safetensors").write_bytes(save(weights(), {"format": "pt"}))


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("tiny-llama")
    write(Path(target))
