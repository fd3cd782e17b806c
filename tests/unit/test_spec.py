"""job.yaml becomes a frozen spec; flags add to it. Its mistakes are among the golden messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import SpecError
from cloudtrain.planning.launch import command_words, entrypoint_of
from cloudtrain.spec.load import load_spec, name_from_folder, spec_from_values
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.yaml_document import Document
from tests.support.in_process import call

# Values arrive exactly.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder with a script in it."""
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "train.py").write_text("print(1)\n")
    return tmp_path / "digits"


def read(folder: Path, text: str, *overrides: str) -> tuple[JobSpec, Document]:
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    return load_spec(folder / "job.yaml", overrides)


def spec(folder: Path, text: str, *overrides: str) -> JobSpec:
    return read(folder, text, *overrides)[0]


def argv(**values: Any) -> tuple[str, ...]:
    return spec_from_values({"args": values}, Path("/"))[0].args.argv


@pytest.mark.parametrize(
    ("written", "arrives"),
    [
        ("1.10", "1.10"),
        ("1e-3", "1e-3"),
        ("007", "007"),
        ("0x1F", "0x1F"),
        ("it's", "it's"),
        ("a=b", "a=b"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("'  two  spaces  '", "  two  spaces  "),
        ("'true'", "true"),
        ("''", ""),
        ("größe 漢字 🚂", "größe 漢字 🚂"),
        ('"a\\nb"', "a\nb"),
        ("$HOME `id` ; rm *", "$HOME `id` ; rm *"),
        ("-1", "-1"),
        ("--flag", "--flag"),
    ],
)
def test_an_argument_arrives_as_it_was_written(folder: Path, written: str, arrives: str) -> None:
    assert spec(folder, f"args: {{x: {written}}}\n").args.argv == ("--x", arrives)


@pytest.mark.parametrize(
    "written", ["1.10", "007", "it's", "a=b", "a b", "größe", "#fff", "a #1", "x: [", "~/x"]
)
def test_an_argument_set_by_a_flag_arrives_as_it_was_typed(folder: Path, written: str) -> None:
    assert spec(folder, "{}", f"args.x={written}").args.argv == ("--x", written)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{verbose: true}", ("--verbose",)),
        ("{verbose: false}", ()),
        ("{layers: [64, 1.50, a b]}", ("--layers", "64", "1.50", "a b")),
        ("{layers: [true, false]}", ("--layers", "true", "false")),
        ("{layers: []}", ("--layers",)),
        ("{-x: 1, --long: 2, plain: 3}", ("-x", "1", "--long", "2", "--plain", "3")),
        ("{b: 1, a: 2}", ("--b", "1", "--a", "2")),
        ("[train, --lr, 1.10, true, '']", ("train", "--lr", "1.10", "true", "")),
        ("{}", ()),
        ("[]", ()),
    ],
)
def test_args_are_a_mapping_of_flags_or_a_list_verbatim(
    folder: Path, text: str, expected: tuple[str, ...]
) -> None:
    assert spec(folder, f"args: {text}\n").args.argv == expected


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_given_in_python_arrives_exactly(text: str) -> None:
    assert argv(x=text) == ("--x", text)


def test_the_values_of_args_keep_their_types(folder: Path) -> None:
    values = spec(folder, "args: {a: 007, b: 1.10, c: true, d: x, e: [1, y]}\n").args.values
    assert values == {"a": 7, "b": 1.1, "c": True, "d": "x", "e": [1, "y"]}


def test_a_flag_overrides_a_field_and_leaves_its_neighbours(folder: Path) -> None:
    job_spec = spec(folder, "resources: {nodes: 1, processes: 2}\n", "resources.nodes=4")
    assert (job_spec.resources.nodes, job_spec.resources.processes) == (4, 2)


def test_every_value_remembers_where_it_was_set(folder: Path) -> None:
    _, document = read(
        folder, "name: a\nresources:\n  nodes: 1\n", "resources.nodes=4", "limits.retries=1"
    )
    origins = [
        document.origin(("name",)),
        document.origin(("resources", "nodes")),
        document.origin(("limits", "retries")),
    ]
    assert origins == [
        f"{folder}/job.yaml:1:1",
        "--set resources.nodes=4",
        "--set limits.retries=1",
    ]


def test_a_flag_that_replaces_a_section_is_the_origin_of_all_of_it(folder: Path) -> None:
    _, document = read(folder, "resources: {nodes: 1}\n", "resources={nodes: 2}")
    assert document.origin(("resources", "nodes")) == "--set resources={nodes: 2}"


@pytest.mark.parametrize(
    ("name", "expected"), [("My data (2)", "My-data-2"), ("é", "job"), ("x" * 80, "x" * 50)]
)
def test_a_job_is_named_after_its_folder(name: str, expected: str) -> None:
    assert name_from_folder(Path("/") / name) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [("gpus: 8", 8), ("gpus: 0", 1), ("gpus: 8, processes: 2", 2), ("nodes: 1", 1)],
)
def test_processes_follow_the_gpus_unless_they_are_said(
    folder: Path, text: str, count: int
) -> None:
    resources = spec(folder, f"resources: {{{text}}}\n").resources
    assert resources.processes_on(int(resources.gpus or 0)) == count


def test_an_input_may_lie_elsewhere_for_each_provider(folder: Path) -> None:
    inputs = spec(
        folder, "inputs: {a: ./x, b: {uri: ./all, aws: s3://b/x, mode: stream}, c: {aws: s3://c}}\n"
    ).inputs
    places = [(inputs[name].on("aws"), inputs[name].on("local")) for name in "abc"]
    assert (places, inputs["b"].mode) == (
        [("./x", "./x"), ("s3://b/x", "./all"), ("s3://c", None)],
        "stream",
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, Path("x")], ids=["object", "set", "path"])
def test_python_values_that_no_file_can_say_are_refused(value: object) -> None:
    with pytest.raises(SpecError, match=r"spec: contains a value that job\.yaml cannot express"):
        spec_from_values({"args": {"x": value}}, Path("/"))


def test_a_dollar_that_names_no_place_arrives_as_it_was_written(folder: Path) -> None:
    assert spec(folder, "args: {home: '$HOME ${HOME} ${{x}}'}\n").args.argv == (
        "--home",
        "$HOME ${HOME} ${{x}}",
    )


def test_azures_own_way_to_name_a_place_means_the_same(folder: Path) -> None:
    (folder / "data").mkdir()
    inputs = "inputs: {train-set: ./data}\n"
    for word in ("${{inputs.train_set}}", "${{ inputs.train-set }}", "${{outputs.model}}"):
        assert spec(folder, f"{inputs}args: {{data: '{word}'}}\n").args.argv == ("--data", word)


def test_a_command_without_torchrun_is_a_line_or_words(folder: Path) -> None:
    line = spec(folder, "launcher: none\nentrypoint: mpirun -x 'a b' train\n")
    words = spec(folder, "launcher: none\nentrypoint: [mpirun, -x, a b, train]\n")
    assert command_words(line) == command_words(words) == ("mpirun", "-x", "a b", "train")
    built = spec(folder, "launcher: none\nentrypoint: ./train\nsetup: make\n")
    assert entrypoint_of(built) == ("command", "./train")
    assert entrypoint_of(spec(folder, "entrypoint: train.py\n")) == ("script", "train.py")


def test_a_variable_is_no_longer_than_linux_takes(folder: Path) -> None:
    longest = 131_072 - len("X=") - 1
    assert spec(folder, f"env: {{X: '{'y' * longest}'}}\n").env["X"] == "y" * longest


# A plan lists each field that a flag sets, once.


def test_a_field_that_a_flag_sets_is_named_and_the_sections_around_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("name: flags\nentrypoint: train.py\n")
    output = call(
        "plan", "--provider", "local", "--set", "resources.nodes=2", "--set", "env.A=b"
    ).out
    set_lines = [line for line in output.splitlines() if "← --set" in line]
    fields = [line.partition("  ←")[0].split()[-1] for line in set_lines]
    assert fields == ["resources.nodes", "env.A"]
