"""A scan names a folder by its content; inputs are whole folders."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from cloudtrain.errors import SourceError
from cloudtrain.source.inputs import SentFile, digest_input, input_problem, is_empty, list_input
from cloudtrain.source.scan import scan
from cloudtrain.source.tree import SourceEntry, SourceTree, check_size
from tests.support.samples import write

# A scan names the folder by its content, and refuses what cannot be archived.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(
        tmp_path / "source",
        {"train.py": "print(1)\n", "pkg/model.py": "x = 1\n", "pkg/data.txt": "1 2 3"},
    )


def refusal(root: Path) -> str:
    with pytest.raises(SourceError) as caught:
        scan(root, None, None)
    assert caught.value.exit_code == 2
    return caught.value.message


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_file_that_our_own_output_is_redirected_to_stays_out(root: Path, stream: str) -> None:
    program = (
        "import sys; from pathlib import Path; from cloudtrain.source.scan import scan\nfor _ in"
        " range(2): print(scan(Path(sys.argv[1])).digest, flush=True); print('x', file=sys.stderr)"
    )
    before = scan(root, None, None).digest
    with (root / "log.txt").open("w") as log:
        second_stream = "stderr" if stream == "stdout" else "stdout"
        streams: dict[str, object] = {stream: log, second_stream: subprocess.PIPE}
        process = subprocess.run(
            [sys.executable, "-c", program, str(root)], text=True, check=True, **streams
        )  # type: ignore[call-overload]
    output = (root / "log.txt").read_text() if stream == "stdout" else process.stdout
    assert output.split() == [before, before]


@pytest.mark.parametrize("change", ["content", "name", "mode", "link", "extra"])
def test_the_digest_changes_with(root: Path, change: str) -> None:
    before = scan(root, None, None).digest
    file = root / "pkg/data.txt"
    if change == "content":
        file.write_text("1 2 4")
    elif change == "name":
        file.rename(root / "pkg/data2.txt")
    elif change == "mode":
        file.chmod(0o755)
    elif change == "link":
        file.unlink()
        file.symlink_to("model.py")
    else:
        (root / "empty").touch()
    assert scan(root, None, None).digest != before


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "a//b", "."])
def test_payload_names_are_plain(root: Path, name: str) -> None:
    with pytest.raises(SourceError, match="plain relative path"):
        scan(root, {name: root / "train.py"}, None)


@pytest.mark.linux("file names that are not UTF-8")
def test_everything_that_cannot_be_archived_is_refused_at_once(root: Path, tmp_path: Path) -> None:
    write(tmp_path, {"outside.txt": ""})
    (root / "broken").symlink_to("nowhere")
    (root / "absolute").symlink_to("/etc/passwd")
    (root / "pkg/up").symlink_to("../../outside.txt")
    (root / "around").symlink_to("../source/train.py")
    (root / "circle").symlink_to("circle2")
    (root / "circle2").symlink_to("circle")
    os.mkfifo(root / "fifo")
    (root / "new\nline").touch()
    Path(os.fsdecode(os.fsencode(root) + b"/latin\xe9")).touch()
    (root / "tab\tfolder").mkdir()
    message = refusal(root)
    lines = message.splitlines()
    assert lines[0] == f"10 things in the source folder {root} cannot be archived:"
    assert len(lines) == 11
    reasons = dict(line.strip().split(": ", 1) for line in lines[1:])
    assert "a FIFO" in reasons["fifo"]
    assert "not valid UTF-8" in reasons["'latin\\udce9'"]


SECRETS = (
    ".env", ".env.production", ".aws/credentials", ".kube/config", ".ssh/id_rsa", "deep/id_ed25519", "certs/server.pem",
    "server.key", ".netrc", ".git-credentials", "infra/terraform.tfstate", ".docker/config.json", "prod.tfvars",
)  # fmt: skip
HARMLESS = (
    ".env.example", "env", "train.env.py", "id_rsa.pub", "pem.py", ".docker/Dockerfile", "terraform.tf", "monkey",
)  # fmt: skip


def test_likely_secrets_stay_out_and_are_named(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys((*SECRETS, *HARMLESS), "x"))
    tree = scan(tmp_path, None, None)
    assert {entry.path for entry in tree.files} == set(HARMLESS)
    folders = {".aws/", ".kube/", ".ssh/"}
    assert set(tree.secrets) == folders | {
        path for path in SECRETS if path.partition("/")[0] + "/" not in folders
    }


@pytest.mark.parametrize(
    ("rules", "brought"),
    [
        ("!.env\n", [".env"]),
        ("!.aws/\n", [".aws/config", ".aws/credentials"]),
        ("!.aws/config\n", [".aws/config"]),
        ("!certs/\n", []),
        ("!*.pem\n", ["certs/ca.pem"]),
    ],
    ids=["a file", "a folder", "a file of a folder", "a folder around it", "a pattern"],
)
def test_a_likely_secret_is_archived_when_it_is_asked_for(
    tmp_path: Path, rules: str, brought: list[str]
) -> None:
    write(tmp_path, dict.fromkeys((".env", ".aws/config", ".aws/credentials", "certs/ca.pem"), "x"))
    write(tmp_path, {".cloudtrainignore": rules})
    assert [
        entry.path
        for entry in scan(tmp_path, None, None).files
        if entry.path != ".cloudtrainignore"
    ] == brought


def test_what_cannot_be_archived_is_no_problem_once_it_is_ignored(root: Path) -> None:
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    (root / "new\nline").touch()
    write(root, {".cloudtrainignore": "broken\nfifo\nnew?line\n"})
    assert scan(root, None, None).files_count == 4


def test_unreadable_files_are_refused_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def locked(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith(".py"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", locked)
    message = refusal(root)
    assert "pkg/model.py: cannot be read (Permission denied); change its permissions" in message
    assert "train.py: cannot be read" in message


def test_a_file_that_changes_while_it_is_scanned_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def growing(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith("train.py"):
            Path(path).write_text("much longer than before")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", growing)
    assert "train.py: changed while it was read; run again" in refusal(root)


def test_links_inside_the_tree_stay_links(root: Path) -> None:
    (root / "model").symlink_to("pkg/model.py")
    (root / "pkg/again").symlink_to("../model")
    (root / "folder").symlink_to("pkg")
    (root / "through").symlink_to("folder/../train.py")
    (root / "whole").symlink_to(".")
    (root / "pkg/absolute").symlink_to(root / "train.py")
    tree = scan(root, None, None)
    assert {entry.path: entry.link for entry in tree.files if entry.link is not None} == {
        "folder": "pkg",
        "model": "pkg/model.py",
        "pkg/absolute": "../train.py",
        "pkg/again": "../model",
        "through": "folder/../train.py",
        "whole": ".",
    }


def tree_of(sizes: Mapping[str, int]) -> SourceTree:
    entries = tuple(
        SourceEntry(path=p, size=n, executable=False, sha256="") for p, n in sizes.items()
    )
    return SourceTree(root=Path("/job"), files=entries, payload={}, digest="")


def test_large_source_warns_with_its_three_largest_files_and_a_remedy() -> None:
    warning = check_size(
        tree_of({"a.bin": 60_000_000, "b": 5, "c.bin": 70_000_000, "d.bin": 9_000_000})
    )
    assert warning is not None
    assert "c.bin (70 MB), a.bin (60 MB), d.bin (9.0 MB)" in warning
    assert check_size(tree_of({"a": 100_000_000})) is None


@pytest.mark.parametrize(("size", "limit"), [(1_000_000_001, 1_000_000_000), (11, 10)])
def test_a_source_above_the_limit_is_refused(size: int, limit: int) -> None:
    with pytest.raises(SourceError, match=r"more than the limit of .*; the largest: big") as caught:
        check_size(tree_of({"big": size}), limit_bytes=limit)
    assert caught.value.hint
    assert ".cloudtrainignore" in caught.value.hint


# A local input is all of its folder, whatever ignore files say; what cannot be brought along is
# told before.


def digest(folder: Path, cache: Path) -> str:
    return digest_input(list_input(str(folder)).files, str(folder), cache)[0]


def test_every_file_is_found_and_links_inside_are_followed(tmp_path: Path) -> None:
    write(tmp_path, {"data/.gitignore": "*", "data/a": "1", "data/b/.hidden": "", "data/c/x": "2"})
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "data" / "c")
    (tmp_path / "data" / "file").symlink_to("c/x")
    assert sorted(file.path for file in list_input(str(tmp_path / "data")).files) == [
        ".gitignore", "a", "b/.hidden", "c/x", "file", "folder/x",
    ]  # fmt: skip
    assert input_problem(str(tmp_path / "data")) is None
    assert [file.path for file in list_input(str(tmp_path / "data" / "a")).files] == ["a"]


def test_what_cannot_be_brought_along_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"data/good": "1", "data/.ssh/id": "1", "other/x": "2"})
    (tmp_path / "data" / "broken").symlink_to("gone")
    (tmp_path / "data" / "circle").symlink_to(".")
    (tmp_path / "data" / "out").symlink_to(tmp_path / "other")
    (tmp_path / "data" / "out.bin").symlink_to("../other/x")
    (tmp_path / "data" / "itself").symlink_to("itself")
    os.mkfifo(tmp_path / "data" / "pipe")
    message = str(input_problem(str(tmp_path / "data")))
    assert message.endswith(", and 4 more")
    assert list_input(str(tmp_path / "data")).problems == [
        ".ssh is likely to hold secrets",
        "broken is a broken link (gone)",
        "circle is a link to a folder around it",
        "itself cannot be read (Too many levels of symbolic links)",
        "out is a link that leaves the folder",
        "out.bin is a link that leaves the folder",
        "pipe is neither a file nor a folder",
    ]


@pytest.mark.parametrize(
    "place", ["/", "home", "home/me", "home/me/.ssh", "home/me/.aws/cli", "project/.env"]
)
def test_folders_that_hold_more_than_data_are_no_inputs(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"home/me/.ssh/id": "", "home/me/.aws/cli/x": "", "project/.env": ""})
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    (tmp_path / "link").symlink_to(tmp_path / place)
    for name in (place, "link"):
        problem = str(input_problem(str(tmp_path / name)))
        assert "holds your home folder" in problem or "is likely to hold secrets" in problem
    assert input_problem(str(tmp_path / "home" / "me" / "data")) is not None
    write(tmp_path, {"home/me/data/x": ""})
    assert input_problem(str(tmp_path / "home" / "me" / "data")) is None


@pytest.mark.parametrize("listed", [0, 2**63], ids=["new", "settled"])
def test_a_file_is_never_sent_with_another_content(tmp_path: Path, listed: int) -> None:
    write(tmp_path, {"data": "0123456789"})
    files = list_input(str(tmp_path / "data")).files
    _, digests = digest_input(files, str(tmp_path / "data"), tmp_path / "cache")
    counts: list[int] = []
    with closing(SentFile(files[0], digests["data"], listed, counts.append)) as sent:
        assert [sent.read(4), sent.read(4), sent.read(4), sent.read(4)] == [
            *(b"0123", b"4567", b"89", b"")
        ]
        assert sent.rewound().read() == b"0123456789"
    assert sum(counts) == 20
    for content in ("01234x6789", "012345678", ""):
        (tmp_path / "data").write_text(content)
        with (
            closing(SentFile(files[0], digests["data"], listed, counts.append)) as sent,
            pytest.raises(SourceError, match="data changed while it was uploaded"),
        ):
            assert [sent.read(4), sent.read()]


def test_only_new_content_counts_against_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"data/a": "12345", "data/b": "678"})
    later = time.time_ns() + 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    place = str(tmp_path / "data")
    files = list_input(place).files
    assert digest_input(files, place, tmp_path / "cache", 7) == ("", {})
    whole = digest_input(files, place, tmp_path / "cache", 8)
    assert digest_input(files, place, tmp_path / "cache", 0) == whole


def test_an_empty_folder_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    assert str(input_problem(str(tmp_path / "data"))).endswith(
        "data is empty: the job would run on nothing"
    )
    assert is_empty(str(tmp_path / "data"))
    (tmp_path / "data" / "link").symlink_to(tmp_path)
    assert not is_empty(str(tmp_path / "data"))
    (tmp_path / "data" / "link").unlink()
    write(tmp_path, {"data/deep/empty": ""})
    assert input_problem(str(tmp_path / "data")) is None
    assert not is_empty(str(tmp_path / "data"))


def test_the_name_is_of_content_and_paths_alone(tmp_path: Path) -> None:
    write(tmp_path, {"one/a": "bc", "two/a": "bc", "three/ab": "c", "four/d/a": "bc"})
    names = [
        digest(tmp_path / folder, tmp_path / "cache") for folder in ("one", "two", "three", "four")
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_file_that_changes_while_it_is_read_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"data/a": "1"})
    files = list_input(str(tmp_path / "data")).files
    (tmp_path / "data" / "a").write_text("longer")
    with pytest.raises(SourceError, match="data/a changed while it was read"):
        digest_input(files, str(tmp_path / "data"), tmp_path / "cache")
