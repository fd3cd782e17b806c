"""Archives as nobody should send them."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Sequence
from typing import NamedTuple

from cloudtrain.source.extract import FREE_BYTES, MAX_HEADER_BYTES

# Archives as nobody should send them: what a fetch makes of each, as a table.

FILE = tarfile.REGTYPE
HARD = tarfile.LNKTYPE
LINK = tarfile.SYMTYPE
FOLDER = tarfile.DIRTYPE
FIFO = tarfile.FIFOTYPE
CHARACTER = tarfile.CHRTYPE


def entry(name: str, kind: bytes = FILE, text: str = "", **more: object) -> bytes:
    """One entry, header and content. `text`: a file's content, or a link's target."""
    info = tarfile.TarInfo(name)
    info.type = kind
    content = text.encode() if kind == FILE else b""
    info.size = len(content)
    info.linkname = text if kind in (HARD, LINK) else ""
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512)


def gnu_sparse(name: str, size: int, parts: Sequence[tuple[int, bytes]]) -> bytes:
    """A sparse file in GNU's old format: what it holds, and where."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.GNUTYPE_SPARSE
    info.size = sum(len(data) for _, data in parts)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for number, (start, data) in enumerate(parts):
        header[386 + 24 * number : 410 + 24 * number] = b"%011o\0%011o\0" % (start, len(data))
    header[483:495] = size.to_bytes(12, "big") if size >= 8**11 else b"%011o\0" % size
    if size >= 8**11:
        header[483] = 0x80
    content = b"".join(data for _, data in parts)
    return checked(header) + content + bytes(-len(content) % 512)


def checked(header: bytearray) -> bytes:
    """A header with its checksum put right."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax(name: str, text: str, **fields: str) -> bytes:
    """Return a file behind an extended header with these values."""
    records = b"".join(
        _record(f"{key.replace('__', '.')}={value}") for key, value in fields.items()
    )
    info = tarfile.TarInfo("pax")
    info.type = tarfile.XHDTYPE
    info.size = len(records)
    return (
        info.tobuf(tarfile.USTAR_FORMAT)
        + records
        + bytes(-len(records) % 512)
        + entry(name, text=text)
    )


def _record(text: str) -> bytes:
    length = len(text.encode()) + 3
    while len(f"{length} {text}\n".encode()) != length:
        length += 1
    return f"{length} {text}\n".encode()


def packed(*entries: bytes) -> bytes:
    """A whole .tar.gz of these."""
    return gzip.compress(b"".join(entries) + bytes(1024), mtime=0)


class Kept(NamedTuple):
    """An archive with one odd thing in it, beside a good file: what arrives besides, what is named."""

    name: str
    entries: tuple[bytes, ...]
    arrives: dict[str, str]
    """Path -> content, or `-> target`."""
    named: tuple[str, ...] = ()


OUT = "a link that leads out of "
LEFT_BUT_THE_REST_ARRIVES = [
    Kept("absolute link", (entry("link", LINK, "/etc/passwd"),), {}, (f"model/link was left out: {OUT}",)),
    Kept("absolute link inside", (entry("link", LINK, "/opt/ml/model/good"),), {"link": "-> good"}),
    Kept("link up", (entry("link", LINK, "../up"),), {}, (f"model/link was left out: {OUT}",)),
    Kept("link through a link", (entry("t", LINK, "."), entry("s", LINK, "t/../x")), {"t": "-> ."}, ("model/s was",)),
    Kept("circle", (entry("a", LINK, "b"), entry("b", LINK, "a")), {}, ("model/a was", "model/b was")),
    Kept("file below a link", (entry("l", LINK, "."), entry("l/x", text="1")), {"l": "-> ."}, ("model/l/x was",)),
    Kept("link, not folder", (entry("f/x", text="1"), entry("f", LINK, "/etc")), {"f/x": "1"}, ("model/f was",)),
    Kept("twice", (entry("f", text="1"), entry("f", text="22")), {"f": "22"}),
    Kept("hard link", (entry("hard", HARD, "./good"),), {"hard": "fine"}),
    Kept(
        "hard link to a link",
        (entry("a/l", LINK, "../good"), entry("h", HARD, "a/l")),
        {"a/l": "-> ../good", "h": "-> good"},
    ),
    Kept("hard link out", (entry("hard", HARD, "../../etc/passwd"),), {}, ("model/hard was left out: a hard link",)),
    Kept("FIFO", (entry("pipe", FIFO),), {}, ("model/pipe was left out: a FIFO, not a file",)),
    Kept("device", (entry("zero", CHARACTER, devmajor=1, devminor=5),), {}, ("model/zero was left out: a device",)),
    Kept("setuid", (entry("tool", text="x", mode=0o6777),), {"tool": "x"}),
    Kept("negative time", (pax("old", "x", mtime="-1e300"),), {"old": "x"}),
    Kept("absolute name", (entry("/opt/x", text="1"),), {"opt/x": "1"}),
    Kept("sparse", (gnu_sparse("sparse", 9, [(2, b"ab"), (6, b"c")]),), {"sparse": "\0\0ab\0\0c\0\0"}),
    Kept("unknown kind", (entry("odd", b"Z"),), {}, ("model/odd was left out: an entry of an unknown kind",)),
]  # fmt: skip


def _changed(data: bytes, at: int) -> bytes:
    plain = bytearray(gzip.decompress(data))
    plain[at] ^= 0x55
    return gzip.compress(bytes(plain), mtime=0)


WHOLE = packed(
    entry("good", text="fine"), entry("second", text="x" * 2000), entry("third", text="3")
)
DAMAGED: dict[str, bytes] = {
    "checksum of gzip": WHOLE[:-8] + bytes([WHOLE[-8] ^ 1]) + WHOLE[-7:],
    "end of gzip is missing": WHOLE[:-8],
    "half of it": WHOLE[: len(WHOLE) // 2],
    "first header": _changed(WHOLE, 3),
    "cut inside a file": gzip.compress(gzip.decompress(WHOLE)[:2000], mtime=0),
    "no gzip at all": b"<html>not found</html>",
    "nothing": b"",
    "something behind it": WHOLE + b"junk",
}

HOSTILE: dict[str, bytes] = {
    "name that leads out": packed(entry("good", text="x"), entry("a/../../outside", text="x")),
    "folder that leads out": packed(entry("../outside", FOLDER)),
    "link called so": packed(entry("../outside", LINK, "/etc")),
    "zero in a name": packed(pax("x", "1", path="a\0b")),
    "bomb of one file": packed(entry("good", text="fine"), entry("big", size=FREE_BYTES + 1)),
    "bomb of many files": packed(*(gnu_sparse(f"sparse-{n}", 8**11 - 1, []) for n in range(3))),
    "sparse bomb": packed(gnu_sparse("sparse", 1 << 60, [(0, b"x")])),
    "long extended header": packed(pax("x", "1", comment="c" * MAX_HEADER_BYTES)),
    "negative size": packed(pax("x", "1", size="-1024"), entry("y", text="2")),
    "size that is not a number": packed(pax("x", "1", GNU__sparse__map="a,b")),
    "sparse parts that overlap": packed(gnu_sparse("sparse", 20, [(5, b"ab"), (2, b"c")])),
    "sparse parts behind its end": packed(gnu_sparse("sparse", 3, [(2, b"abcdef")])),
    "headers in headers": packed(*([pax("x", "1", a="b")[:1024]] * 1500)),
}  # fmt: skip
