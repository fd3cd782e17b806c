"""Language model data from .txt, .jsonl and .parquet files, tokenized while they are read.

A file is opened when its turn comes and read from its beginning, so that an input with `mode:
stream` (SageMaker's FastFile, Azure ML's mount) need not be on the disk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cloudtrain_trainer.rules import Refused, RefusedData

SUFFIXES = (".txt", ".jsonl", ".parquet")


class Tokenizer(NamedTuple):
    """Turns text into tokens."""

    encode: Callable[[str], list[int]]
    end: int
    """The token after each document."""
    vocabulary: int
    """All tokens are below this."""


def tokenizer(name: str, end: str = "<|endoftext|>") -> Tokenizer:
    """Return a tokenizer: `bytes`, a path of a `tokenizer.json`, or an encoding of tiktoken.

    `end`: the text of the token after each document. Raise `Refused` if the tokenizer or the token
    does not exist.
    """
    if name == "bytes":
        return Tokenizer(lambda text: list(text.encode()), 0, 256)
    if name.endswith(".json"):
        try:
            loaded = _package("tokenizers", name).Tokenizer.from_file(name)
        except Exception as error:  # the package raises nothing narrower
            if isinstance(error, Refused):
                raise
            raise Refused(f"{name} cannot be read as a tokenizer: {error}") from None
        number = loaded.token_to_id(end)
        if number is None:
            raise Refused(
                f"{name} has no token {end!r}: name the one that ends a document with end="
            )
        return Tokenizer(
            lambda text: loaded.encode(text, add_special_tokens=False).ids,
            number,
            loaded.get_vocab_size(),
        )
    try:
        encoding = _package("tiktoken", name).get_encoding(name)
    except ValueError as error:
        raise Refused(
            f"{name} is neither `bytes`, a tokenizer.json nor an encoding of tiktoken: {error}"
        ) from None
    return Tokenizer(encoding.encode_ordinary, encoding.eot_token, encoding.n_vocab)


class TextStream:
    """An iterable of sequences of `context` tokens and their next tokens: (context,), int64.

    Documents are joined, each followed by the tokenizer's end token. `paths`: files, or folders of
    files; read in an order drawn from (seed, epoch), without a seed in the order of their names.
    `column`: of the text, in .jsonl and .parquet. It has a `state_dict` and can `shard` its files.
    Raise `Refused` if there are no files.
    """

    def __init__(
        self,
        paths: Path | str | Sequence[Path | str],
        tokenizer: Tokenizer,
        context: int,
        *,
        column: str = "text",
        seed: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self.column = column
        self.seed = seed
        self.epoch = 0
        self.files = _files([paths] if isinstance(paths, (str, Path)) else paths)
        self._file = self._document = 0
        self._left: list[int] = []

    @property
    def num_shards(self) -> int:
        """The number of files: each is read by one rank."""
        return len(self.files)

    def shard(self, num_shards: int, index: int) -> TextStream:
        """Return the part of one of `num_shards` readers.

        Together they read each file once.
        """
        part = TextStream(
            self.files[index::num_shards],
            self.tokenizer,
            self.context,
            column=self.column,
            seed=self.seed,
        )
        part.set_epoch(self.epoch)
        return part

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the files."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position: file, document, and tokens of the next sequence."""
        return {
            "file": self._file,
            "document": self._document,
            "left": torch.tensor(self._left, dtype=torch.int32),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same files and epoch."""
        self._file = state["file"]
        self._document = state["document"]
        self._left = state["left"].tolist()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield sequences from the position on; restart after the last file."""
        order = list(self.files)
        if self.seed is not None:
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        yield from self._drain()  # what a resume brought
        while self._file < len(order):
            for document in _documents(order[self._file], self.column, self._document):
                self._document += 1
                self._left += [*self.tokenizer.encode(document), self.tokenizer.end]
                yield from self._drain()
            self._file = self._file + 1
            self._document = 0
        self._file = 0
        self._left = []

    def _drain(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield complete sequences; the last token of one begins the next."""
        while len(self._left) > self.context:
            tokens = torch.tensor(self._left[: self.context + 1])
            del self._left[: self.context]
            yield tokens[:-1], tokens[1:]


def _files(paths: Sequence[Path | str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise Refused(
                f"{path} does not exist: expected text ({', '.join(SUFFIXES)}) or a folder of it"
            )
        inside = (
            sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
            if path.is_dir()
            else [path]
        )
        files += [file for file in inside if file.is_file()]
    if not files:
        raise Refused(f"{', '.join(map(str, paths))} has no text ({', '.join(SUFFIXES)})")
    return files


def _documents(path: Path, column: str, skip: int) -> Iterator[str]:
    """Yield the documents of a file after the first `skip`.

    A .txt file is one document, a .jsonl file has one per line.
    """
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, column, skip)
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if number > skip:
                        yield _text(path, number, line, column)
        elif not skip:
            yield path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedData(f"{path} cannot be read: {error}") from None


def _text(path: Path, number: int, line: str, column: str) -> str:
    try:
        text = json.loads(line)[column]
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedData(f"{path}:{number}: not a JSON object with {column!r}: {error}") from None
    if not isinstance(text, str):
        raise RefusedData(f"{path}:{number}: {column!r} is not text")
    return text


def _parquet(path: Path, column: str, skip: int) -> Iterator[str]:
    """Yield the rows of a column, one row group in memory at a time."""
    content = _package("pyarrow.parquet", str(path)).ParquetFile(path)
    if column not in content.schema_arrow.names:
        raise RefusedData(
            f"{path} has the columns {', '.join(content.schema_arrow.names)}, not {column!r}"
        )
    for group in range(content.num_row_groups):
        rows = content.metadata.row_group(group).num_rows
        if skip >= rows:
            skip -= rows
            continue
        yield from content.read_row_group(group, columns=[column]).column(column).to_pylist()[skip:]
        skip = 0


def _package(name: str, use: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise Refused(
            f"{use} needs the package {package}: pip install {package}, or cloudtrain[text]"
        ) from None
