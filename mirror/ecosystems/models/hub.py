"""A Hugging Face Hub, through its own client: names, revisions, listings, tokens.

The client reads HF_TOKEN, the token file, HF_ENDPOINT and the proxy variables. Its downloads are
not used: they check sizes only, and do not resume.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from mirror.errors import DownloadError, ResolutionError, UsageError
from mirror.fetch.http import Request

# The client reads this when it is imported: a Hub is asked for the manifest's models, and is told
# nothing about the builder.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 30.0
HINT = (
    "HF_TOKEN holds the token for gated and private models; HF_ENDPOINT names another Hub or a"
    " mirror of it."
)


@dataclass(frozen=True, slots=True)
class File:
    """A file of a repository at one commit.

    blob_id: git's object id, for LFS files that of the pointer.
    sha256: of the bytes, for LFS files; None for the others.
    """

    path: str
    size: int
    blob_id: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files of a repository at one commit (40 hexadecimal digits)."""

    repo: str
    commit: str
    files: tuple[File, ...]


def snapshot(repo: str, revision: str) -> Snapshot:
    """What a branch, a tag or a commit of a model names now, and that it may be downloaded.

    Raises ResolutionError when it does not exist or is closed to this user, DownloadError when the
    Hub cannot be asked, UsageError when no Hub can have such a name.
    """
    from huggingface_hub.hf_api import HfApi, RepoFile

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(endpoint=endpoint())
    with _in_words(repo, revision):
        info = api.model_info(repo, revision=revision, timeout=_SECONDS)
        commit = info.sha or ""
        if not _COMMIT.fullmatch(commit):
            raise ValueError("no commit")
        files = tuple(
            File(entry.path, entry.size, entry.blob_id, entry.lfs.sha256 if entry.lfs else None)
            for entry in api.list_repo_tree(repo, recursive=True, revision=commit)
            if isinstance(entry, RepoFile)
        )
        if info.gated and files:
            # A gated repository can be listed by all; only a file shows who may download.
            api.get_hf_file_metadata(url=_url(repo, commit, files[0].path), timeout=_SECONDS)
    return Snapshot(repo, commit, files)


def request(repo: str, commit: str, path: str, digest: str, size: int) -> Request:
    """Where the bytes of a file are, with the user's token if there is one."""
    from huggingface_hub import get_token

    token = get_token()
    return Request(
        url=_url(repo, commit, path),
        label=f"{repo}/{path}",
        digest=digest,
        size=size,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        hint=HINT,
    )


def endpoint() -> str:
    """The Hub's address: HF_ENDPOINT, else the client's own."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def _url(repo: str, commit: str, path: str) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repo, path, revision=commit, endpoint=endpoint())


@contextmanager
def _in_words(repo: str, revision: str) -> Iterator[None]:
    """The client's errors as ours: what a person can act on, and no address that holds a secret."""
    from huggingface_hub import errors

    host = urlsplit(endpoint()).netloc.rpartition("@")[2] or endpoint()
    try:
        yield
    except errors.GatedRepoError:
        raise ResolutionError(
            f"{repo} is gated, and this user may not download it",
            hint=f"Accept its terms on its page at {host}, then let HF_TOKEN hold a token of the"
            " same account that may read gated repositories.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ResolutionError(
            f"{repo}: {host} has no such model, or shows it to others only",
            hint=f"Check the spelling. {HINT}",
        ) from None
    except errors.RevisionNotFoundError:
        raise ResolutionError(
            f"{repo} has no revision {revision!r}",
            hint="A revision is a branch, a tag or a commit; left out, it is main.",
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        kind = ResolutionError if status in (401, 403) else DownloadError
        raise kind(f"{repo}: {host} answers HTTP {status}", hint=HINT) from None
    except errors.HFValidationError:
        raise UsageError(f"{repo!r} cannot be the name of a model on a Hub") from None
    except errors.OfflineModeIsEnabled:
        raise DownloadError(
            f"{repo}: HF_HUB_OFFLINE forbids to ask {host}", hint="Unset HF_HUB_OFFLINE."
        ) from None
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined] # httpx's base class
        raise DownloadError(
            f"{repo}: the Hub {host} cannot be reached ({type(error).__name__})",
            hint=f"Behind a proxy? HTTPS_PROXY and NO_PROXY name it. {HINT}",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DownloadError(
            f"{repo}: {host} does not answer as a Hub does",
            hint=f"A proxy or a login page may have answered. {HINT}",
        ) from None
