"""Licences: what metadata state, as SPDX expressions where they are one beyond doubt.

What is ambiguous ("BSD", of which there are several) stays a name, and what nobody states stays
unknown. Nothing is guessed from the text of a licence but the title in its first line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mirror.core.paths import shown

#: What is recorded of a licence that is no SPDX expression is no longer than this.
_LONGEST = 100
#: What people write who mean that they say nothing.
_NOTHING = frozenset({"", "unknown", "none", "n/a", "na", "license", "licence", "see license"})
#: How people write licences of which there is one version, or name the version: by words in lower
#: case, without "the", "license" and punctuation.
_NAMES = {
    "apache 2": "Apache-2.0",
    "apache 2 0": "Apache-2.0",
    "apache software 2 0": "Apache-2.0",
    "apache software version 2 0": "Apache-2.0",
    "apache version 2 0": "Apache-2.0",
    "apache v2": "Apache-2.0",
    "apache v2 0": "Apache-2.0",
    "apachev2": "Apache-2.0",
    "apache2": "Apache-2.0",
    "apache2 0": "Apache-2.0",
    "2 clause bsd": "BSD-2-Clause",
    "bsd 2 clause": "BSD-2-Clause",
    "simplified bsd": "BSD-2-Clause",
    "3 clause bsd": "BSD-3-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "bsd3": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "expat": "MIT",
    "mit": "MIT",
    "mit expat": "MIT",
    "mit mit": "MIT",
    "isc iscl": "ISC",
    "mozilla public 2 0 mpl 2 0": "MPL-2.0",
    "mozilla public version 2 0": "MPL-2.0",
    "mpl 2": "MPL-2.0",
    "mplv2": "MPL-2.0",
    "psf": "PSF-2.0",
    "psfl": "PSF-2.0",
    "python software foundation": "PSF-2.0",
    "unlicense": "Unlicense",
    "unlicense unlicense": "Unlicense",
    "gnu general public v2 gplv2": "GPL-2.0-only",
    "gnu general public v2 or later gplv2+": "GPL-2.0-or-later",
    "gnu general public v3 gplv3": "GPL-3.0-only",
    "gnu general public v3 or later gplv3+": "GPL-3.0-or-later",
    "gnu lesser general public v2 or later lgplv2+": "LGPL-2.0-or-later",
    "gnu lesser general public v3 lgplv3": "LGPL-3.0-only",
    "gnu lesser general public v3 or later lgplv3+": "LGPL-3.0-or-later",
    "gnu affero general public v3": "AGPL-3.0-only",
    "gnu affero general public v3 or later agplv3+": "AGPL-3.0-or-later",
    "cc0 1 0 universal cc0 1 0 public domain dedication": "CC0-1.0",
    "boost software 1 0 bsl 1 0": "BSL-1.0",
}
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+)")


def spdx(text: str) -> str | None:
    """The SPDX expression that a text is, in SPDX's own spelling; None when it is none."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if len(text) > 10 * _LONGEST:
        return None
    try:
        return str(canonicalize_license_expression(text))
    except (InvalidLicenseExpression, RecursionError):
        return None


def known(stated: str) -> str:
    """What somebody states as the licence: an SPDX expression, a name, or empty for nothing.

    A name is one line that is fit to be shown, of at most 100 characters.
    """
    text = " ".join(stated.split())
    if text.casefold().strip(" .:") in _NOTHING:
        return ""
    return spdx(text) or _NAMES.get(_words(text)) or shown(text)[:_LONGEST]


def of_wheel(expression: str, text: str, classifiers: Sequence[str]) -> str:
    """The licence that a wheel's METADATA states, as `known` has it.

    expression: its License-Expression, which counts first. text: its License, which often is a
    whole licence; then only its title counts. classifiers: all of them; several that speak of
    licences do not say whether one may choose, so they are a name.
    """
    if stated := known(expression):
        return stated
    title = next((line for line in map(str.strip, text.splitlines()) if line), "")
    by_text = known(title) if "\n" in text.strip() else known(text)
    if by_text and spdx(by_text):
        return by_text
    names = [match[1] for item in classifiers if (match := _CLASSIFIER.fullmatch(item.strip()))]
    names = [name for name in names if name != "OSI Approved"]
    if len(names) == 1 and spdx(by_class := known(names[0])):
        return by_class
    if "\n" in text.strip():  # a licence's first line may be anybody's copyright
        by_text = ""
    return by_text or shown(", ".join(dict.fromkeys(names)))[:_LONGEST] or known(title)


def _words(text: str) -> str:
    """What tells names of licences apart."""
    words = re.sub(r"[^a-z0-9+]+", " ", text.casefold()).split()
    return " ".join(word for word in words if word not in ("the", "license", "licence", "licensed"))
