"""Models, tokenizers, datasets: not here, not whole, not understood."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="gated-model",
        name="The Hub refuses a gated or private repository",
        patterns=(
            "GatedRepoError",
            "You are trying to access a gated repo",
            "you are not in the authorized list",
            "401 Client Error",
            "403 Client Error",
            "RepositoryNotFoundError",
        ),
        cause="The repository's owner grants access by person; listing its files works without,"
        " downloading does not. Or the name is wrong, which the Hub answers in the same way.",
        advice="Accept the terms on the repository's page, set HF_TOKEN on the builder and carry"
        " it in `models:`; `mirror build` tries the access before it starts. On this server load"
        " it by path from $MIRROR_MODELS.",
        hides=("model-not-here", "model-files-missing", "network-wanted"),
        source="huggingface_hub's own words",
    ),
    Entry(
        key="remote-code",
        name="The model brings Python code that was not allowed",
        patterns=(
            "contains custom code which must be executed",
            "requires you to execute custom code",
            "requires you to execute the * file in that repo",
        ),
        cause="The repository defines its own classes, and code from elsewhere runs only when that"
        " is asked for.",
        advice="Read the code; then trust_remote_code=True where it is loaded, and"
        " `trust_remote_code: true` beside the model in the manifest, so that the bundle carries"
        " the code.",
        source="transformers' own words",
    ),
    Entry(
        key="dataset-not-here",
        name="A dataset or a metric is not in the bundle",
        patterns=(
            "Couldn't reach '*' on the Hub",
            "Couldn't find any data file at",
            "Couldn't find a dataset script at",
            "Couldn't find a module script at",
            "Couldn't find cache for",
        ),
        cause="The script loads it by its name on the Hub, and no copy was carried.",
        advice="Add it to `datasets:` (a metric's script to `files:`) and build again, or load"
        " local files: load_dataset('json', data_files=...). What is here: $MIRROR_DATASETS, and"
        " `mirror list --models`.",
        hides=("model-not-here", "network-wanted"),
        source="datasets' own words",
    ),
    Entry(
        key="model-path-wrong",
        name="A model's folder does not exist",
        patterns=("Repo id must be in the form", "Repo id must use alphanumeric chars"),
        cause="What is not a folder is taken for a name on the Hub, and this is neither: a path"
        " with a mistake, or relative to another folder than the ranks start in.",
        advice="`mirror list --models` prints the paths; write $MIRROR_MODELS/ORG/NAME, and"
        " absolute paths in configurations.",
        source="seen with transformers 5.24",
    ),
    Entry(
        key="model-files-missing",
        name="A model's folder lacks a file",
        patterns=(
            "Can't load tokenizer for",
            "Can't load the configuration of",
            "Can't load the model for",
            "Can't load feature extractor for",
            "Can't load image processor for",
            "does not appear to have a file named",
            "Error no file named",
            "is not a local folder and is not a valid model identifier",
        ),
        cause="The model was copied or carried without its tokenizer, configuration or weights in"
        " the format that is asked for; or a path is wrong, and was taken for a name on the Hub.",
        advice="`mirror list --models` shows the paths and revisions that are here, and `mirror"
        " verify` whether each loads. On the builder: without `include` in the model's item"
        " everything needed is carried; `weights: all` adds formats beside safetensors.",
        source="transformers' own words",
    ),
    Entry(
        key="model-not-here",
        name="A model is not in the bundle, and the Hub cannot be reached",
        patterns=(
            "We couldn't connect to '*' to load",
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "offline mode is enabled",
            "outgoing traffic has been disabled",
        ),
        cause="The script asks for a repository, or a revision of one, that is not in the cache"
        " which HF_HUB_CACHE names. A setting such as HF_HUB_OFFLINE=0 brings it no nearer.",
        advice="`mirror list --models` shows what is here. If it is: start the job with `mirror"
        " run`, which sets HF_HUB_CACHE, or load it from $MIRROR_MODELS/ORG/NAME. If not: add it,"
        " with its `revision`, to `models:` and build again.",
        hides=("network-wanted",),
        source="seen with transformers 5.24 and huggingface_hub 2.4",
    ),
    Entry(
        key="architecture-unknown",
        name="transformers is older than the model",
        patterns=(
            "does not recognize this architecture",
            "Unrecognized model in",
            "does not exist or is not currently imported",
        ),
        cause="The model's configuration names a class that this version of transformers does not"
        " have yet.",
        advice="The model's config.json says with which `transformers_version` it was saved: ask"
        " for that or newer in `wheels.requirements`, and build again.",
        source="transformers' own words",
    ),
    Entry(
        key="lfs-pointer",
        name="A file holds a Git LFS pointer instead of weights",
        patterns=(
            "version https://git-lfs",
            "deserializing header: header too large",
            "HeaderTooLarge",
            "invalid load key, 'v'",
        ),
        cause="The repository was cloned without git-lfs: instead of gigabytes each file has three"
        " lines of text. (A damaged file looks the same.)",
        advice="ls -l shows files of 130 bytes. Fetch with git lfs pull, or let `mirror build`"
        " fetch the repository: it checks every file's sha256.",
        source="transformers 27923, seen with safetensors 0.8",
    ),
    Entry(
        key="weights-truncated",
        name="A file of weights is not whole",
        patterns=(
            "MetadataIncompleteBuffer",
            "file not fully covered",
            "deserializing header: InvalidHeader",
            "deserializing header: invalid header",
            "HeaderTooSmall",
            "deserializing header: header too small",
            "PytorchStreamReader failed",
            "unexpected EOF, expected",
        ),
        cause="The file ends too early: a copy was broken off, the disk was full, or a job was"
        " killed while it saved.",
        advice="A model of the bundle: `mirror verify` (stage `store`) names every file that"
        " differs; install again. A checkpoint: take the one before, and df -h.",
        source="seen with safetensors 0.8 and torch 2.13",
    ),
    Entry(
        key="weights-only",
        name="A checkpoint holds more than tensors",
        patterns=("Weights only load failed",),
        cause="Since 2.6 torch.load refuses files that would run code: it holds objects of your"
        " own, of NumPy or of argparse.",
        advice="If it is your own: torch.load(path, weights_only=False), or"
        " torch.serialization.add_safe_globals([...]) with the class that the message names. Save"
        " state_dict() only.",
        source="seen with torch 2.13",
    ),
    Entry(
        key="torch-load-refused",
        name="This torch may not open .bin weights",
        patterns=("serious vulnerability issue in `torch.load`",),
        cause="transformers opens pickled weights with torch 2.6 or newer only.",
        advice="Take the safetensors of the same model (`weights: safetensors`), or torch 2.6 or"
        " newer, and build again.",
        source="transformers' own words",
    ),
    Entry(
        key="checkpoint-of-another-model",
        name="A checkpoint does not fit the model",
        patterns=("Error(s) in loading state_dict for", "size mismatch for *copying a param"),
        cause="The file was saved from a model of another size or structure: another revision, an"
        " enlarged vocabulary, or the names that a wrapper gave (module., _orig_mod.).",
        advice="Compare the names and shapes in the message. Save"
        " accelerator.unwrap_model(model)'s state; resize_token_embeddings before loading where"
        " the tokenizer grew.",
        source="torch's own words",
    ),
    Entry(
        key="data-download",
        name="A library wants to download its data",
        patterns=(
            "use the NLTK Downloader to obtain the resource",
            "[E050] Can't find model",
            ".tiktoken (Caused by",
            "/encodings/*.tiktoken",
            'Downloading: "*/torch/hub/checkpoints/',
        ),
        cause="NLTK, spaCy, tiktoken and torch.hub fetch data when they are first used, past the"
        " Hub.",
        advice="Fetch it on the builder, carry it in `files:` and say where it lies: NLTK_DATA,"
        " TIKTOKEN_CACHE_DIR, TORCH_HOME. A spaCy model is a wheel: `wheels.requirements`.",
        hides=("network-wanted",),
        source="the libraries' own words",
    ),
)
