"""job.yaml becomes a frozen spec, with all mistakes at their places; flags add to it."""

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

# job.yaml becomes a frozen spec: values arrive exactly, and all mistakes are reported at once at
# their places.


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


def mistakes(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(folder, text, *overrides)
    return [m.render().replace(f"{folder}/", "") for m in caught.value.issues]


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
    assert resources.processes_on(resources.gpus or 0) == count


def test_an_input_may_lie_elsewhere_for_each_provider(folder: Path) -> None:
    inputs = spec(
        folder, "inputs: {a: ./x, b: {uri: ./all, aws: s3://b/x, mode: stream}, c: {aws: s3://c}}\n"
    ).inputs
    places = [(inputs[name].on("aws"), inputs[name].on("local")) for name in "abc"]
    assert (places, inputs["b"].mode) == (
        [("./x", "./x"), ("s3://b/x", "./all"), ("s3://c", None)],
        "stream",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "resources: {spot: true}\naws: {keep_alive: 5 min}",
            "aws.keep_alive: cannot go with spot",
        ),
        (
            "resources: {spot: true}\nlimits: {max_runtime: 2 h, max_wait: 1 h}",
            "limits.max_wait: is shorter than",
        ),
    ],
    ids=lambda text: text[:30],
)
def test_what_contradicts_itself_is_refused(folder: Path, text: str, message: str) -> None:
    assert [line for line in mistakes(folder, text) if message in line]


@pytest.mark.parametrize(
    "text",
    [
        "secrets: hunter2",
        "secrets: {A: hunter2}",
        "secrets: {A: {local: hunter2}}",
        "secrets: {A: [hunter2]}",
        "secrets: {A: {local: 271828, aws: hunter2}}",
    ],
)
def test_a_secret_written_in_clear_is_not_repeated(folder: Path, text: str) -> None:
    messages = "\n".join(mistakes(folder, text))
    assert "hunter2" not in messages
    assert "271828" not in messages


def test_a_secret_typed_into_a_flag_is_not_repeated_either(folder: Path) -> None:
    assert mistakes(folder, "{}", "secrets.A=hunter2")[0].startswith(
        "--set secrets.A=…: secrets.A: expected a mapping"
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, Path("x")], ids=["object", "set", "path"])
def test_python_values_that_no_file_can_say_are_refused(value: object) -> None:
    with pytest.raises(SpecError, match=r"spec: contains a value that job\.yaml cannot express"):
        spec_from_values({"args": {"x": value}}, Path("/"))


def test_a_place_in_an_argument_must_be_one_of_the_job(folder: Path) -> None:
    (folder / "data").mkdir()
    text = (
        "inputs: {train-set: ./data}\nargs: {data: '${inputs.train-sat}', out:"
        " '${outputs.models}/x', ok: '${inputs.train-set} ${outputs.model}'}\n"
    )
    assert mistakes(folder, text) == [
        "job.yaml:2:8: args.data: unknown input 'train-sat' (did you mean 'train-set'?)",
        "job.yaml:2:37: args.out: unknown output 'models' (did you mean 'model'?)",
    ]
    assert mistakes(folder, "args: ['--x', '${inputs.x}']\n") == [
        "job.yaml:1:15: args[1]: unknown input 'x'"
    ]
    assert spec(folder, "args: {home: '$HOME ${HOME} ${{x}}'}\n").args.argv == (
        "--home",
        "$HOME ${HOME} ${{x}}",
    )


def test_azures_own_way_to_name_a_place_means_the_same(folder: Path) -> None:
    (folder / "data").mkdir()
    inputs = "inputs: {train-set: ./data}\n"
    for word in ("${{inputs.train_set}}", "${{ inputs.train-set }}", "${{outputs.model}}"):
        assert spec(folder, f"{inputs}args: {{data: '{word}'}}\n").args.argv == ("--data", word)
    text = f"{inputs}args: ['${{{{inputs.x}}}}', '${{inputs.train_set}}']\n"
    assert [line.partition(" args[")[2].partition("\n")[0] for line in mistakes(folder, text)] == [
        "0]: unknown input 'x'",
        "1]: unknown input 'train_set' (did you mean 'train-set'?)",
    ]


def test_a_command_without_torchrun_is_a_line_or_words(folder: Path) -> None:
    line = spec(folder, "launcher: none\nentrypoint: mpirun -x 'a b' train\n")
    words = spec(folder, "launcher: none\nentrypoint: [mpirun, -x, a b, train]\n")
    assert command_words(line) == command_words(words) == ("mpirun", "-x", "a b", "train")
    built = spec(folder, "launcher: none\nentrypoint: ./train\nsetup: make\n")
    assert entrypoint_of(built) == ("command", "./train")
    assert entrypoint_of(spec(folder, "entrypoint: train.py\n")) == ("script", "train.py")


def test_all_that_contradicts_a_command_is_reported_at_once(folder: Path) -> None:
    text = (
        "launcher: none\n"
        "entrypoint: ./train.sh ${inputs.dta}\n"
        "resources: {processes: 2}\n"
        "limits: {restarts: 1, hang: 1 min}\n"
        "launch: {tf_config: true, require_group: true, warm: false}\n"
        "env: {TF_CONFIG: x}\n"
    )
    beside = "cannot go with launcher: none"
    messages = mistakes(folder, text)
    for field, message in {
        "entrypoint": "unknown input 'dta'",
        "resources.processes": f"{beside}, which starts one process per node",
        "limits.restarts": f"{beside}, which has no restarts in place",
        "limits.hang": f"{beside}, which cannot see that processes wait",
        "launch.require_group": f"{beside}, which knows no torch.distributed",
        "launch.warm": f"{beside}, which forks no ranks",
        "env.TF_CONFIG": "is also set by launch.tf_config",
    }.items():
        assert f" {field}: {message}" in "\n".join(messages)

    assert "no such file in the source folder: ./train.sh" in "\n".join(messages)
    assert len(messages) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("launcher: none", "launcher: none needs an entrypoint"),
        ("launcher: none\nentrypoint: make && ./train", "contains '&&', but no shell"),
        ("launcher: none\nentrypoint: |\n  make\n  ./train", r"contains '\n', but no shell"),
        ("launcher: none\nentrypoint: echo 'a", "is not a command line: no closing quotation"),
        ("launcher: none\nentrypoint: []", "entrypoint: is empty"),
        ("launcher: none\nentrypoint: -m train", "starts with an option"),
        ("launcher: none\nentrypoint: run.sh", "'run.sh' is not executable"),
        ("launcher: none\nentrypoint: bare.sh", "the first line of 'bare.sh' names no shell"),
        ("launcher: none\nentrypoint: ../x/run.py", "is outside the source folder"),
        ("entrypoint: [train.py, --x]", "is a list, but torchrun runs one program"),
        ("entrypoint: train.py\nlaunch: {tf_config: true}", "launch.tf_config: has no effect"),
        ("entrypoint: mpirun train", "or set launcher: none to run the command unchanged"),
    ],
)
def test_a_wrong_command_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "bare.sh").write_text("echo ready\n")
    (folder / "bare.sh").chmod(0o755)
    assert message in "\n".join(mistakes(folder, f"{text}\n"))


@pytest.mark.parametrize("entrypoint", ["train.py", "mpirun -np 2 ./train", "[mpirun, train]"])
def test_an_unknown_launcher_is_the_only_mistake(folder: Path, entrypoint: str) -> None:
    [message] = mistakes(folder, f"launcher: mpi\nentrypoint: {entrypoint}\n")
    assert "launcher: expected torchrun or none, got 'mpi'" in message


def test_a_variable_is_no_longer_than_linux_takes(folder: Path) -> None:
    longest = 131_072 - len("X=") - 1
    assert spec(folder, f"env: {{X: '{'y' * longest}'}}\n").env["X"] == "y" * longest
    [message] = mistakes(folder, f"env: {{X: '{'y' * (longest + 1)}'}}\n")
    assert (
        "env.X: is too large for an environment variable: 131,073 bytes, the limit is 131,072"
        in message
    )


def test_an_input_is_of_a_known_type(folder: Path) -> None:
    kinds = "file, folder, table, model, mlflow_model, triton_model"
    assert mistakes(
        folder, "inputs: {a: {uri: ./x, type: fil}, b: {uri: s3://b/x/, type: file}}\n"
    ) == [
        f"job.yaml:1:24: inputs.a.type: expected one of {kinds}, got 'fil' (did you mean 'file'?)",
        (
            "job.yaml:1:56: inputs.b.type: s3://b/x/ ends in a slash, but a file does not\n  hint:"
            " type: folder"
        ),
    ]


def test_what_is_kept_lies_in_the_working_folder_and_is_not_all_of_it(folder: Path) -> None:
    messages = mistakes(
        folder, "keep: [/tmp/x, ~/x, out/../../x, ./, $CLOUDTRAIN_OUTPUT_DIR/x, out/]\n"
    )
    assert [line.partition("\n")[0] for line in messages] == [
        "job.yaml:1:8: keep[0]: '/tmp/x' is an absolute path",
        "job.yaml:1:16: keep[1]: '~/x' is an absolute path",
        "job.yaml:1:21: keep[2]: 'out/../../x' leads out of the working folder",
        "job.yaml:1:34: keep[3]: './' is the whole working folder, including the source",
        (
            "job.yaml:1:38: keep[4]: '$CLOUDTRAIN_OUTPUT_DIR/x' contains a variable, which is not"
            " replaced here"
        ),
    ]


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
