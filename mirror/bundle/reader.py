"""Bundles, read without trust.

Promise: what a reader hands out is exactly what `writer.pack` writes for this index and signature,
or it raises BundleError. Nothing in a bundle is parsed but the index (by core.index) and two sizes
in front of it, each checked by computing its header again; every other byte is computed from these
and compared. Memory is bounded whatever a bundle says.

Who made the bundle is for a judge to say, who is asked before the index is parsed: until then no
byte of the bundle means anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mirror.bundle import flow, layout, sources
from mirror.bundle.intake import Intake
from mirror.bundle.sources import Source
from mirror.bundle.timing import Times
from mirror.core import index as indexes
from mirror.core.artifact import Artifact
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.errors import BundleError, TrustError
from mirror.store.blobs import Blobs

if TYPE_CHECKING:
    from mirror.trust.judging import Judge

#: Takes an artifact, an offset in it and its bytes from there; and whether they are the last ones,
#: in which case its hash has been found right.
Sink: TypeAlias = Callable[[Artifact, int, memoryview, bool], None]

_BUFFERS = 6
_STREAM_HINT = "See whether its sender says why, and send it again."
_HINT = "Copy the bundle again; if it is no better then, build it again."


class Reader:
    """A bundle that is read once, from its beginning to its end: `open`, then `admit` or `check`.

    index_bytes: the index exactly as it stands there, what a signature is over.
    signature: exactly as it stands there; empty when the bundle is unsigned.
    signatures: those and the ones beside the bundle, one after the other.
    standing: what its signatures are worth here; None when no judge was asked.
    index: the parsed index.
    """

    def __init__(
        self,
        source: Source,
        judge: Judge | None = None,
        beside: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Read the head from a source, which is the reader's from here on."""
        self._source = source
        self._judge = judge
        self.name = source.name
        self._at = 0  # in the tar: what comes next
        self._crc = 0  # of the gzip member so far
        fronts: list[tuple[layout.Chunk, bytes]] = []
        self.index_bytes = self._member(indexes.INDEX_NAME, indexes.MAX_INDEX_BYTES, fronts)
        self.signature = self._member(indexes.SIGNATURE_NAME, indexes.MAX_SIGNATURE_BYTES, fronts)
        signatures = [(f"its {indexes.SIGNATURE_NAME}", self.signature), *beside]
        self.signatures = b"".join(text.rstrip() + b"\n" for _, text in signatures if text.strip())
        self.standing = judge(self.name, self.index_bytes, signatures) if judge else None
        try:
            self.index = indexes.parse(self.index_bytes)
        except BundleError as error:
            raise BundleError(
                f"{self.name}: {error.message}", problems=error.problems, hint=error.hint or _HINT
            ) from None
        self._compare_digest()
        self._head = self._at
        self._total = self._at + layout.payload_size(self.index.shipped)
        for chunk, found in fronts:
            self._compare_front(chunk, found)
        self._compare_size()

    @classmethod
    def open(
        cls,
        source: Source | Path | int,
        judge: Judge | None = None,
        beside: Sequence[tuple[str, bytes]] = (),
    ) -> Reader:
        """Read and check the head of a bundle: in a file, from a file descriptor, or any source.

        judge: is asked about the index's exact bytes, before anything in them is looked at. beside:
        where other signatures over them are, and what is there. The length is checked too where it
        is known, so a file that was cut is named at once.
        Raises BundleError; TrustError as the judge does; TargetError for a format of the future;
        UsageError and MachineError where there is no file, or none that may be read.
        """
        found = sources.open_file(source) if isinstance(source, Path | int) else source
        try:
            return cls(found, judge, beside)
        except BaseException:
            found.close()
            raise

    @property
    def size(self) -> int:
        """Length of the bundle in bytes, as the index has it."""
        return layout.file_size(self._total)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def admit(self, blobs: Blobs, progress: Progress) -> None:
        """Check every byte of the bundle, and put every artifact that it ships into a store.

        Returns when all are there, durably. Raises BundleError for anything but the bundle that
        the index implies, MachineError where the store cannot be written; nothing half-written
        stays behind, artifacts that arrived whole may.
        """
        times = Times()
        with Intake(blobs) as intake:
            intake.expect(self.index.shipped)
            self._read_all("unpacking", intake.write, progress, times)
            with times.main("waiting for the disk"):
                intake.finish()
        progress.detail(f"unpacking: {times.summary(self.size)}")

    def check(self, progress: Progress) -> None:
        """Check every byte of the bundle, writing nothing. Raises BundleError."""
        times = Times()
        self._read_all("checking", None, progress, times)
        progress.detail(f"checking: {times.summary(self.size)}")

    def copy(self, sink: Sink, progress: Progress, *, ahead: int = _BUFFERS) -> None:
        """Check every byte of the bundle, handing on those of artifacts. Raises BundleError.

        ahead: chunks that are read before the first is handed on; a sink that raises ends it all.
        """
        self._read_all("copying", sink, progress, Times(), ahead)

    # -- the head ------------------------------------------------------------------------------

    def _member(self, name: str, limit: int, fronts: list[tuple[layout.Chunk, bytes]]) -> bytes:
        """The bytes of the next member, which has this name and whose size is still unknown."""
        at = self._at
        header = self._take(layout.TAR_BLOCK, fronts)
        if at == 0:
            _require_gzip(self.name, fronts[0][1] + header)
        digits = re.fullmatch(rb"([0-7]{11})\0", header[124:136])
        size = int(digits[1], 8) if digits else 0
        if header != layout.member_header(name, size, 0o644):
            if at == 0 and self._judge and self._judge.strict and header[257:262] == b"ustar":
                what = "does not begin with an index, so nothing in it is signed"
                raise TrustError(f"{self.name} {what}", hint=_HINT)
            raise self._damaged(f"no member {name} is at byte {layout.file_offset(at):,}")
        if size > limit:
            raise self._damaged(f"its {name} is {size:,} bytes long; at most {limit:,} are read")
        data = self._take(size, fronts)
        if any(self._take(layout.padding(size), fronts)):
            raise self._damaged(f"what fills up the block after {name} is not zeros")
        return data

    def _take(self, size: int, fronts: list[tuple[layout.Chunk, bytes]]) -> bytes:
        """The next bytes of the tar; the framing met is kept until it can be compared."""
        taken = bytearray()
        for chunk in layout.chunks(self._at, self._at + size):
            load = _Load(memoryview(bytearray(chunk.size)), chunk)
            fronts.append((chunk, self._read(load, layout.UNBOUNDED)))
            self._sum(load)
            self._compare_sum(load)
            taken += load.data
        return bytes(taken)

    def _compare_digest(self) -> None:
        if self._source.digest not in (None, self.index.digest):
            raise BundleError(
                f"{self.name} begins as another bundle than its list of volumes is of",
                problems=[
                    f"the list:  {self._source.digest}",
                    f"it begins: {self.index.digest} ({self.index.name} {self.index.version})",
                ],
                hint="One of the two is left from another build: send that one again.",
            )

    def _compare_size(self) -> None:
        if self._source.size is None:
            return
        short = self.size - self._source.size
        if short < 0:
            raise self._damaged(f"it has {-short:,} bytes after its end")
        if short:
            raise self._damaged(
                f"it is {short:,} bytes short: {self._source.size:,} of {self.size:,} are there"
            )

    # -- the rest ------------------------------------------------------------------------------

    def _read_all(
        self,
        label: str,
        sink: Sink | None,
        progress: Progress,
        times: Times,
        ahead: int = _BUFFERS,
    ) -> None:
        try:
            self._stream(label, sink, progress, times, ahead)
        except BundleError as error:
            raise blamed(error, self._source, progress) from None

    def _stream(
        self, label: str, sink: Sink | None, progress: Progress, times: Times, ahead: int
    ) -> None:
        if self._at != self._head:
            raise RuntimeError("a reader reads its bundle once")
        shipped, total = self.index.shipped, self._total
        parts = layout.spans(layout.payload(shipped), layout.chunks(self._at, total))
        loads = [_Load(memoryview(bytearray(layout.CHUNK))) for _ in range(ahead)]
        with (
            progress.bar(label, total - self._at) as advance,
            flow.Ring(loads, _Compare(self._damaged, times)) as ring,
        ):
            for chunk, spans in parts:
                with times.main("waiting for hashes"):
                    load = ring.take()
                with times.main("writing"):
                    self._hand_on(load, sink)
                load.chunk, load.spans = chunk, spans
                with times.main("reading"):
                    self._compare_front(chunk, self._read(load, total))
                with times.main("checksums"):
                    self._sum(load)
                ring.put(load)
                advance(chunk.size)
            for load in ring.drain():
                with times.main("writing"):
                    self._hand_on(load, sink)
        if self._read_into([memoryview(bytearray(1))]):
            raise self._damaged(f"it goes on after its end, byte {layout.file_size(total):,}")

    def _read(self, load: _Load, total: int) -> bytes:
        """Read the load's chunk; returns the framing found in front of its blocks."""
        chunk = load.chunk
        fronts = chunk.frame(total)
        found = memoryview(bytearray(sum(map(len, fronts))))
        load.expected = b""
        load.trailer = bytearray(layout.TRAILER_SIZE if chunk.ends_member(total) else 0)
        views: list[memoryview] = []
        at = 0
        for front, cut in zip(fronts, chunk.cuts(), strict=True):
            views += [found[at : at + len(front)], load.data[cut]]
            at += len(front)
        views.append(memoryview(load.trailer))
        done = self._read_into(views)
        if done < sum(map(len, views)):
            there = layout.file_offset(chunk.start) - len(fronts[0]) + done
            of = f" of {layout.file_size(total):,}" if total < layout.UNBOUNDED else ""
            raise self._damaged(f"it ends after {there:,} bytes{of}" if there else "it is empty")
        self._at = chunk.stop
        return bytes(found)

    def _read_into(self, views: list[memoryview]) -> int:
        try:
            return self._source.read_into(views)
        except OSError as error:
            raise self._damaged(f"it cannot be read: {error.strerror}") from None

    def _compare_front(self, chunk: layout.Chunk, found: bytes) -> None:
        fronts = chunk.frame(self._total)
        if found == b"".join(fronts):
            return
        at = 0
        for front, cut in zip(fronts, chunk.cuts(), strict=True):
            differs = _difference(found[at : at + len(front)], front)
            if differs is not None:
                offset = layout.file_offset(chunk.start + cut.start) - len(front) + differs
                raise self._damaged(f"the gzip framing is wrong at byte {offset:,}")
            at += len(front)

    def _sum(self, load: _Load) -> None:
        """Take the load into the CRC32 of its gzip member."""
        chunk = load.chunk
        self._crc = layout.crc32(load.data[: chunk.size], self._crc, chunk.start)
        if load.trailer:
            load.expected = layout.trailer(self._crc, chunk.stop)

    def _compare_sum(self, load: _Load) -> None:
        if load.trailer != load.expected:
            end = layout.file_offset(load.chunk.stop - 1) + 1 + layout.TRAILER_SIZE
            raise self._damaged(
                f"the checksum of the gzip member that ends at byte {end:,} is wrong"
            )

    def _hand_on(self, load: _Load, sink: Sink | None) -> None:
        """Give away the artifacts' bytes in a load that has been compared.

        Only now is the CRC32 compared as well: of bytes that are both, the wrong sha256 says more.
        """
        self._compare_sum(load)
        for span in load.spans:
            if sink is not None and isinstance(span.piece, Artifact):
                sink(span.piece, span.at, load.data[span.place], span.last)

    def _damaged(self, what: str) -> BundleError:
        hint = _HINT if self._source.size is not None else _STREAM_HINT
        return BundleError(f"{self.name} is damaged: {what}", hint=hint)


@dataclass(slots=True)
class _Load:
    """One chunk on its way: its tar bytes, what they should be, and the gzip trailer behind them.

    trailer: as it was found; empty in the middle of a gzip member. expected: as it should be.
    """

    data: memoryview
    chunk: layout.Chunk = layout.NOTHING
    spans: list[layout.Span] = field(default_factory=list)
    trailer: bytearray = field(default_factory=bytearray)
    expected: bytes = b""


class _Compare:
    """Hashes the artifacts, and compares all between them; runs beside what reads."""

    def __init__(self, damaged: Callable[[str], BundleError], times: Times) -> None:
        self._damaged = damaged
        self._times = times
        self._digest = hashlib.sha256()
        self._after = "the signature"

    def __call__(self, load: _Load) -> None:
        with self._times.beside("hashing"):
            self._compare(load)

    def _compare(self, load: _Load) -> None:
        for span in load.spans:
            data = load.data[span.place]
            at = load.chunk.start + span.place.start
            if isinstance(span.piece, bytes):
                differs = _difference(data, span.piece[span.at : span.at + len(data)])
                if differs is not None:
                    raise self._damaged(
                        f"the tar after {self._after} is not what the index implies, at byte"
                        f" {layout.file_offset(at + differs):,}"
                    )
                continue
            if span.at == 0:
                self._digest = hashlib.sha256()
                self._after = shown(span.piece.path)
            self._digest.update(data)
            if span.last and self._digest.hexdigest() != span.piece.sha256:
                start = layout.file_offset(at - span.at)
                raise self._damaged(
                    f"{self._after} ({span.piece.size:,} bytes, from byte {start:,}) has not the"
                    " sha256 that the index names"
                )


def blamed(error: BundleError, source: Source, progress: Progress) -> BundleError:
    """The error, with the parts of the source that are to blame, where it has parts."""
    if not (suspects := source.suspects(progress)):
        return error
    hint = "Send these again; the others are whole."
    return BundleError(error.message, problems=[*error.problems, *suspects], hint=hint)


def _require_gzip(name: str, found: bytes) -> None:
    """Name what was given instead of a bundle; `found`: the file's first bytes."""
    stored = found[len(layout.GZIP_HEADER)] <= 1
    if found.startswith(layout.GZIP_HEADER) and stored:
        return
    if found.startswith(layout.GZIP_HEADER[:3]):
        reason = "another program has compressed it"
    elif found[257:262] == b"ustar":
        reason = "it is a plain tar: something on its way has decompressed it"
    else:
        reason = "it is no gzip file"
    raise BundleError(
        f"{name} is not a bundle: {reason}", hint="Copy it again, and have it left as it is."
    )


def _difference(found: bytes | memoryview, expected: bytes | memoryview) -> int | None:
    """Where two equally long runs of bytes first differ."""
    if bytes(found) == expected:  # memoryviews are compared byte by byte
        return None
    return next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
