"""The training script itself: what torch, accelerate and transformers refuse."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="pin-memory",
        name="A tensor that is on the GPU already was to be pinned",
        patterns=("only dense CPU tensors can be pinned",),
        cause="pin_memory=True takes batches in the machine's memory; the dataset, or the collate"
        " function, returns GPU tensors.",
        advice="Return CPU tensors from the dataset and move batches in the loop, or set"
        " pin_memory=False (dataloader_pin_memory=False in TrainingArguments).",
        source="torch's own words",
    ),
    Entry(
        key="set-epoch",
        name="set_epoch was called on a sampler that has no epochs",
        patterns=("Sampler' object has no attribute 'set_epoch'",),
        cause="set_epoch belongs to DistributedSampler; with one process, or shuffle=False, a"
        " DataLoader has another sampler.",
        advice="Call it only where hasattr(loader.sampler, 'set_epoch'). With accelerate:"
        " loader.set_epoch(epoch) on the prepared loader.",
        source="seen with torch 2.13",
    ),
    Entry(
        key="not-launched",
        name="The script was started without a launcher",
        patterns=("environment variable*expected, but not set",),
        cause="Each rank learns its number from variables (RANK, WORLD_SIZE, MASTER_ADDR), which"
        " accelerate launch or torchrun set.",
        advice="Start it with `mirror run --gpus N -- train.py`, or accelerate launch"
        " --num_processes N train.py.",
        source="seen with torch 2.13",
    ),
    Entry(
        key="no-process-group",
        name="A collective was called before the ranks had met",
        patterns=("Default process group has not been initialized",),
        cause="The script calls torch.distributed in a single process, or before"
        " init_process_group or Accelerator().",
        advice="Make the Accelerator first, and start it with `mirror run --gpus N -- train.py`;"
        " guard calls with torch.distributed.is_initialized().",
        source="seen with torch 2.13",
    ),
    Entry(
        key="unused-parameters",
        name="Some parameters got no gradient (DDP)",
        patterns=("Expected to have finished reduction in the prior iteration",),
        cause="DDP waits for a gradient of every parameter; some took no part in the loss: a"
        " frozen or skipped branch, or an output that is not used.",
        advice="Set requires_grad=False for what is not trained, or find_unused_parameters=True"
        " (DistributedDataParallelKwargs in accelerate). TORCH_DISTRIBUTED_DEBUG=DETAIL names"
        " them.",
        source="torch's own words",
    ),
    Entry(
        key="parameter-twice",
        name="A parameter was used twice in one step (DDP)",
        patterns=("Expected to mark a variable ready only once",),
        cause="Reentrant gradient checkpointing under DDP, or a second forward pass before the"
        " backward one.",
        advice="gradient_checkpointing_kwargs={'use_reentrant': False}, or _set_static_graph() for"
        " a graph that never changes.",
        source="torch's own words",
    ),
    Entry(
        key="fsdp-dtypes",
        name="FSDP was given parameters of several types",
        patterns=("Must flatten tensors with uniform dtype", "requires uniform dtype but got"),
        cause="FSDP joins the parameters of a block; some are bf16 and others float32: a LoRA"
        " adapter, a norm or a new head on a model that was loaded in bf16.",
        advice="Load all in one type (dtype=torch.float32 and mixed precision bf16), cast the new"
        " parts to the model's, or use FSDP 2 (fsdp_version: 2), which allows it.",
        source="trl 1723, peft 484",
    ),
    Entry(
        key="fsdp-shared",
        name="FSDP 2 was given one parameter in two groups",
        patterns=("shared with a parameter already managed by another FSDP group",),
        cause="Two modules share a parameter (an embedding and the head that is tied to it), and"
        " each was wrapped by itself. torch 2.13 refuses what older ones sharded twice.",
        advice="Leave the embedding and the head to the outermost module: take them off the"
        " wrapping policy (fsdp_transformer_layer_cls_to_wrap names the layers alone), or wrap both"
        " in one fully_shard([embedding, head]).",
        source="seen with torch 2.13",
    ),
    Entry(
        key="fp16-gradients",
        name="Gradients in fp16 cannot be scaled",
        patterns=("Attempting to unscale FP16 gradients",),
        cause="With mixed precision fp16 the parameters that are trained must be float32; the"
        " model was loaded in fp16.",
        advice="Load it with dtype=torch.float32 and keep mixed precision, or train in bf16.",
        source="torch's own words",
    ),
    Entry(
        key="precision-unsupported",
        name="This GPU does not compute in the precision that was asked for",
        patterns=(
            "Your setup doesn't support bf16",
            "bf16 mixed precision requires",
            "fp16 mixed precision requires a",
            "Bfloat16 is only supported on GPUs with compute capability",
        ),
        cause="bf16 wants a GPU from Ampere (sm_80) on, fp16 any GPU; or torch sees no GPU at all"
        " and trains on the CPU.",
        advice="Look at `mirror verify`: if it names the GPU, use fp16 on older ones; if it does"
        " not, torch and the driver come first.",
        source="transformers', accelerate's and vLLM's own words",
    ),
    Entry(
        key="devices-differ",
        name="Tensors are on different devices",
        patterns=("Expected all tensors to be on the same device",),
        cause="A tensor stayed on the CPU, or on cuda:0 in every rank.",
        advice="Make and move tensors with accelerator.device; no .cuda() or cuda:0 in the script."
        " With device_map='auto' do not launch several processes.",
        source="torch's own words",
    ),
    Entry(
        key="number-as-text",
        name="A number was read as text",
        patterns=(
            "not supported between instances of 'float' and 'str'",
            "not supported between instances of 'str' and 'float'",
        ),
        cause="YAML takes 1e-3 for text (1.0e-3 is a number), and a learning rate comes into the"
        " optimizer as a string.",
        advice="Write 1.0e-3 in the configuration, or float(config['lr']) in the script.",
        source="seen with PyYAML 6",
    ),
    Entry(
        key="tokenizers-forked",
        name="The tokenizer was used before the DataLoader forked",
        level="notice",
        patterns=("The current process just got forked, after parallelism has already been used",),
        cause="The tokenizer's threads do not survive a fork, so it goes on with one. It is a"
        " warning, and slow at worst.",
        advice="TOKENIZERS_PARALLELISM=false silences it.",
        source="text-generation-inference 1035",
    ),
)
