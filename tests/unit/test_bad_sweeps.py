"""A section `sweep` that cannot be right is refused at its line: all mistakes at once, each with
what to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.errors import SpecError
from cloudtrain.spec.load import load_spec

GOAL = "objective: {metric: val_loss, goal: minimize}"
FORMS = "loguniform(1e-4, 1e-1), uniform(0, 1), int(8, 512), logint(8, 512), choice(16, 32, 64)"

SPACES = {
    # space -> place of the mistake, message, hint
    "{}": ("", "is empty", "add a setting, for example lr: loguniform(1e-4, 1e-1)"),
    "{lr: loguniform(0, 1)}": (
        ".lr",
        "the lower bound must be above 0 for a log scale, got 0",
        None,
    ),
    "{n: logint(-4, 8)}": (
        ".n",
        "the lower bound must be above 0 for a log scale, got -4",
        None,
    ),
    "{lr: uniform(2, 1)}": (".lr", "2 is more than 1", "write the lower bound first"),
    "{n: int(3, 3)}": (".n", "has only one value, 3", "set it under args instead"),
    "{n: int(0.5, 3)}": (".n", "int takes whole numbers, got 0.5", None),
    "{lr: uniform(1)}": (
        ".lr",
        "uniform takes two numbers, the lowest and the highest, got 1",
        None,
    ),
    "{lr: uniform(0, .inf)}": (".lr", "uniform takes finite numbers, got .inf", None),
    f"{{n: int(1, {10**400})}}": (".n", f"int takes numbers up to 1e+18, got 1{'0' * 56}…0", None),
    f"{{n: logint(1, {10**18 + 1})}}": (
        ".n",
        f"logint takes numbers up to 1e+18, got {10**18 + 1}",
        None,
    ),
    f"{{lr: uniform(0, {10**400})}}": (
        ".lr",
        f"uniform takes numbers up to 1e+100, got 1{'0' * 56}…0",
        None,
    ),
    "{lr: lognormal(0, 1)}": (
        ".lr",
        "unknown form 'lognormal' (did you mean 'loguniform'?)",
        f"write for example {FORMS}",
    ),
    "{lr: 0.1}": (".lr", "expected a range or a list, got 0.1", f"write for example {FORMS}"),
    "{lr: fast}": (".lr", "'fast' is not a range", f"write for example {FORMS}"),
    "{args: {lr: [1, 2]}}": (
        ".args",
        "expected a range or a list, got a mapping",
        "write a dotted path, such as args.lr: …",
    ),
    "{b: [16, 32, 16]}": (".b", "has the same value twice", "keep one of them"),
    '{b: [1, "1"]}': (".b", "has the same value twice", "keep one of them"),
    "{b: []}": (".b", "is empty: add values to choose from", None),
    "{b: [16, [32]]}": (".b[1]", "expected text, a number, true or false, got a list", None),
    "{lr: [1, 2], args.lr: [3, 4]}": (".args.lr", "repeats the setting lr", "keep one of them"),
    "{inputs.data: [./a, ./b], inputs.data.uri: [./c, ./d]}": (
        ".inputs.data.uri",
        "overlaps with the setting inputs.data",
        "keep one of them",
    ),
    "{name: [a, b], name.x: [a, b]}": (
        ".name.x",
        "is the name of the sweep; trials have numbers",
        "vary an argument, or remove it",
    ),
    "{limits.max_runtime: [1 h, 2 h]}": (
        ".limits.max_runtime",
        "are the same for all trials, because the budget depends on them",
        "set them outside the sweep",
    ),
    "{secrets.TOKEN: [a, b]}": (
        ".secrets.TOKEN",
        "are the same for all trials, and a search must not read them",
        "vary another setting",
    ),
    "{checkpoints.uri: [a, b]}": (
        ".checkpoints.uri",
        "differs for each trial already",
        "remove it",
    ),
    "{aws.kms_key: [a, b]}": (
        ".aws.kms_key",
        "is the same for all trials",
        "set it in the section aws",
    ),
    "{resource.nodes: [1, 2]}": (
        ".resource.nodes",
        "unknown section 'resource' (did you mean 'resources'?)",
        "write an argument (lr) or a path (args.lr, env.SEED)",
    ),
    "{args.optimizer.lr: [1, 2]}": (
        ".args.optimizer.lr",
        "names a part of an argument, which does not exist",
        "write args.optimizer",
    ),
    "{env.: [1, 2]}": (
        ".env.",
        "'env.' has an empty part",
        "write an argument (lr) or a path (args.lr, env.SEED)",
    ),
    "{resources.node: [1, 2]}": (".resources.node", "unknown key (did you mean 'nodes'?)", None),
    "{resources.nodes: [0, 2]}": (
        ".resources.nodes[0]",
        "0 is not a valid value: must be at least 1, got 0",
        None,
    ),
    "{resources.nodes: 'int(0, 2)'}": (
        ".resources.nodes",
        "0 is not a valid value: must be at least 1, got 0",
        None,
    ),
    "{resources.spot: [true, maybe]}": (
        ".resources.spot[1]",
        "\"maybe\" is not a valid value: expected true or false, got 'maybe'",
        None,
    ),
    "{env.1A: [1, 2]}": (
        ".env.1A",
        "is not a valid variable name",
        "letters, digits and _, not starting with a digit",
    ),
    "{init: ['${inputs.none}', zeros]}": (
        ".init[0]",
        "\"${inputs.none}\" is not a valid value: unknown input 'none'",
        None,
    ),
}


def mistakes(folder: Path, text: str) -> list[tuple[str, str, str, str | None]]:
    """Return the mistakes of a job.yaml: lines, fields, messages, hints."""
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(folder / "job.yaml")
    return [
        (
            issue.origin.replace(f"{folder}/", "").rpartition(":")[0],
            issue.field,
            issue.message,
            issue.hint,
        )
        for issue in caught.value.issues
    ]


@pytest.mark.parametrize("space", SPACES)
def test_a_space_that_cannot_be_searched_is_refused_at_its_setting(
    space: str, tmp_path: Path
) -> None:
    field, message, hint = SPACES[space]
    text = f"entrypoint: train.py\nsweep:\n  {GOAL}\n  trials: 3\n  space: {space}\n"
    assert mistakes(tmp_path, text) == [("job.yaml:5", f"sweep.space{field}", message, hint)]


RULES = {
    # what the section has beside objective and space; after a | what the job has -> line, field,
    # message, hint
    "": (1, "trials", "is missing", "set the number of trials, such as trials: 20"),
    "trials: 0": (4, "trials", "must be at least 1, got 0", None),
    "trials: 3\n  parallel: 101": (5, "parallel", "must be at most 100, got 101", None),
    "trials: 3\n  method: baysian": (
        5,
        "method",
        (
            "expected grid, random, bayesian, asha or batch_size, got 'baysian' (did you mean"
            " 'bayesian'?)"
        ),
        None,
    ),
    "trials: 3\n  method: tpe": (
        5,
        "method",
        "unknown method 'tpe'",
        "method: bayesian, whose sampler is tpe",
    ),
    "trials: 3\n  sampler: tp": (
        5,
        "sampler",
        "expected tpe, gp or random, got 'tp' (did you mean 'tpe'?)",
        None,
    ),
    "trials: 3\n  method: random\n  sampler: qmc": (
        6,
        "sampler",
        "the sampler 'qmc' was removed",
        "use sampler: random, or tpe with bayesian and asha",
    ),
    "trials: 3\n  method: random\n  sampler: gp": (
        6,
        "sampler",
        "gp does not work with the method random",
        "use random",
    ),
    "method: grid\n  sampler: tpe": (
        5,
        "sampler",
        "tpe does not work with the method grid",
        "remove it",
    ),
    "trials: 3\n  engine: portabel": (
        5,
        "engine",
        "expected auto, portable, native or ray, got 'portabel' (did you mean 'portable'?)",
        None,
    ),
    "trials: 3\n  early_stoping: {grace: 1}": (
        5,
        "early_stoping",
        "unknown key (did you mean 'early_stopping'?)",
        None,
    ),
    "trials: 3\n  early_stopping: {eta: 1}": (
        5,
        "early_stopping.eta",
        "must be at least 2, got 1",
        None,
    ),
    "trials: 3\n  early_stopping: {grace: 9, max: 9}": (
        5,
        "early_stopping.grace",
        "the first comparison is at report 9, but a trial makes only 9",
        "set less than 9",
    ),
    "trials: 3\n  early_stopping: {max: 1}": (
        5,
        "early_stopping.max",
        "val_loss is reported only once, at the end, so no trial can end early",
        "train more epochs, or remove early stopping",
    ),
    "trials: 3\n  method: asha\n|args: {epochs: 1}": (
        5,
        "method",
        "val_loss is reported only once, at the end, so no trial can end early",
        "train more epochs, or remove early stopping",
    ),
    "trials: 3\n  method: asha\n|args: {epochs: 4, eval-every: 4}": (
        5,
        "method",
        "val_loss is reported only once, at the end, so no trial can end early",
        "train more epochs, or remove early stopping",
    ),
    "trials: 3\n  early_stopping: {grace: 5}\n|args: {epochs: 5}": (
        5,
        "early_stopping.grace",
        "the first comparison is at report 5, but a trial makes only 5",
        "set less than 5",
    ),
    "trials: 3\n  early_stopping: {promote: always}\n|entrypoint: train.py": (
        5,
        "early_stopping.promote",
        "needs the length of a complete trial, which is unknown",
        "set early_stopping.max to the reports of a complete trial, such as its epochs",
    ),
    "trials: 3\n  early_stopping: {promote: always}\n|args: {epochs: 9, no-resume: true}": (
        5,
        "early_stopping.promote",
        "needs checkpoints, but --no-resume starts every run anew",
        "remove args.no-resume",
    ),
    "trials: 3\n  engine: native\n  early_stopping: {promote: always, max: 9}": (
        6,
        "early_stopping.promote",
        "resumes trials, but the native engine can only end them",
        "use engine: portable",
    ),
    "trials: 3\n  budget: {max_cost: 5 USD}\n|limits: {max_cost: 6 USD}": (
        5,
        "budget.max_cost",
        "5.00 USD for all trials is less than limits.max_cost of one trial, 6.00 USD",
        "raise the budget, or lower limits.max_cost",
    ),
    "trials: 3\n  budget: {max_cost: 5}": (
        5,
        "budget.max_cost",
        "5 has no unit; write for example 50 USD",
        None,
    ),
    "trials: 3\n  budget: {max_time: 30 s}": (
        5,
        "budget.max_time",
        "must be at least 60 s",
        "raise it",
    ),
    "trials: 3\n|args: [--lr, '1']": (
        3,
        "space.lr",
        "sets an argument by name, but args is a list",
        "write args as a mapping (lr: 0.1)",
    ),
    "trials: 3\n|args: {--lr: 1}": (
        3,
        "space.lr",
        "is --lr under args, so the program would get it twice",
        "write lr under args",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_does_not_fit_together_is_refused_at_its_line(rule: str, tmp_path: Path) -> None:
    line, field, message, hint = RULES[rule]
    section, _, job = rule.partition("|")
    text = f"sweep:\n  {GOAL}\n  space: {{lr: [1, 2]}}\n  {section.rstrip()}\n{job}\n"
    assert mistakes(tmp_path, text) == [(f"job.yaml:{line}", f"sweep.{field}", message, hint)]


RANGE = "one range, such as batch-size: int(1, 4096)"
BATCH_SIZES = {
    # the section besides the method, and its mistake
    "space: {batch-size: [16, 32]}": (
        "space.batch-size",
        "must be a range of whole numbers for the method batch_size",
        RANGE,
    ),
    "space: {batch-size: int(0, 32)}": (
        "space.batch-size",
        "starts at 0, but a batch has at least 1 sample",
        RANGE,
    ),
    "space: {batch-size: int(1, 32), lr: [1, 2]}": (
        "space.lr",
        "is a second setting; the method batch_size varies only one",
        RANGE,
    ),
    "space: {batch-size: int(1, 32)}\n  trials: 9": (
        "trials",
        "does not apply to the method batch_size: the search ends by itself",
        "remove it",
    ),
    "space: {batch-size: int(1, 32)}\n  parallel: 2": (
        "parallel",
        "must be 1 for the method batch_size: each size depends on the previous one",
        "remove it",
    ),
    "space: {batch-size: int(1, 32)}\n  early_stopping: {grace: 2, max: 9}": (
        "early_stopping",
        "does not apply to the method batch_size: each trial ends after one measurement",
        "remove it",
    ),
    "space: {batch-size: int(1, 32)}\n  engine: native": (
        "engine",
        "cannot search for a batch size",
        "use engine: portable",
    ),
    "space: {batch-size: int(1, 32)}\n  sampler: tpe": (
        "sampler",
        "tpe does not work with the method batch_size",
        "remove it",
    ),
}


@pytest.mark.parametrize("section", BATCH_SIZES)
def test_a_search_for_a_batch_size_has_one_range_and_nothing_to_choose(
    section: str, tmp_path: Path
) -> None:
    field, message, hint = BATCH_SIZES[section]
    objective = "objective: {metric: samples_per_s, goal: maximize}"
    text = f"sweep:\n  method: batch_size\n  {objective}\n  {section}\n"
    entries = [
        (at.removeprefix("sweep."), message, do) for _, at, message, do in mistakes(tmp_path, text)
    ]
    assert entries == [(field, message, hint)]


def test_the_shared_trainer_reports_one_metric_in_a_search_for_a_batch_size(tmp_path: Path) -> None:
    text = f"sweep:\n  {GOAL}\n  method: batch_size\n  space: {{batch-size: int(1, 8)}}\n"
    assert [message for _, _, message, _ in mistakes(tmp_path, text)] == [
        "the shared trainer reports only samples_per_s in a search for a batch size"
    ]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("{goal: maximize}", "sweep.objective.metric: is missing"),
        ("{metric: loss}", "sweep.objective.goal: is missing"),
        (
            "{metric: loss, goal: max}",
            (
                "sweep.objective.goal: expected minimize or maximize, got 'max' (did you mean"
                " 'maximize'?)"
            ),
        ),
        ("val_loss", "sweep.objective: expected a mapping, got 'val_loss'"),
        (
            "{metric: val_acuracy, goal: maximize}",
            (
                "sweep.objective.metric: the shared trainer does not report 'val_acuracy' (did you mean"
                " 'val_accuracy'?)"
            ),
        ),
        # Reported with the progress, not a metric of an epoch.
        (
            "{metric: samples_per_s, goal: maximize}",
            "sweep.objective.metric: the shared trainer does not report 'samples_per_s'",
        ),
    ],
)
def test_an_objective_that_nobody_reports_is_refused(
    objective: str, expected: str, tmp_path: Path
) -> None:
    text = f"sweep:\n  objective: {objective}\n  trials: 3\n  space: {{lr: [1, 2]}}\n"
    assert [f"{field}: {message}" for _, field, message, _ in mistakes(tmp_path, text)] == [
        expected
    ]


def test_a_grid_takes_no_range_of_real_numbers_and_not_too_many_points(tmp_path: Path) -> None:
    text = (
        f"sweep:\n  {GOAL}\n  method: grid\n  space: {{lr: uniform(0, 1), steps: int(1, 20000)}}\n"
    )
    assert [(field, message) for _, field, message, _ in mistakes(tmp_path, text)] == [
        ("sweep.space", "is a grid of 20,000 points; the limit is 10,000"),
        ("sweep.space.lr", "is a continuous range, which a grid cannot enumerate"),
    ]


def test_the_clouds_own_engine_and_a_budget_in_money_keep_to_some_settings(tmp_path: Path) -> None:
    section = "trials: 3\n  engine: native\n  budget: {max_cost: 9 USD}"
    text = (
        f"sweep:\n  {GOAL}\n  {section}\n  space: {{lr: [1, 2], env.SEED: [1, 2], resources.nodes:"
        " [1, 2]}\n"
    )
    assert [(field, message) for _, field, message, _ in mistakes(tmp_path, text)] == [
        (
            "sweep.space.env.SEED",
            "is not an argument, and the native engine varies only arguments",
        ),
        (
            "sweep.space.resources.nodes",
            "changes the cost of a trial, so a budget in money cannot be kept",
        ),
        (
            "sweep.space.resources.nodes",
            "is not an argument, and the native engine varies only arguments",
        ),
    ]


def test_all_mistakes_of_a_section_and_of_the_job_around_it_are_told_at_once(
    tmp_path: Path,
) -> None:
    text = """\
name: digits
resources: {node: 2}
sweep:
  objective: {metric: val_loss, goal: less}
  method: asha
  sampler: gp
  trials: none
  space:
    lr: loguniform(0, 1)
    batch_size: []
    args.lr: [1]
  budget: {max_cost: 1}
"""
    assert [(place, field) for place, field, _, _ in mistakes(tmp_path, text)] == [
        ("job.yaml:2", "resources.node"),
        ("job.yaml:4", "sweep.objective.goal"),
        ("job.yaml:6", "sweep.sampler"),
        ("job.yaml:7", "sweep.trials"),
        ("job.yaml:9", "sweep.space.lr"),
        ("job.yaml:10", "sweep.space.batch_size"),
        ("job.yaml:11", "sweep.space.args.lr"),
        ("job.yaml:12", "sweep.budget.max_cost"),
    ]


def test_what_is_right_is_read_as_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"args: {{epochs: 9, lr: 0.1}}\nsweep:\n  {GOAL}\n  method: asha\n  trials: 20\n "
        " early_stopping: {promote: always}\n  space: {lr: loguniform(1e-4, 1e-1), env.SEED:"
        " [1, 2], resources.processes: 'choice(1, 2)', source: [a, b]}\n"
    )
    sweep = load_spec(tmp_path / "job.yaml")[0].sweep
    assert sweep is not None
    assert {key: dimension.text() for key, dimension in sweep.space.items()} == {
        "lr": "loguniform(0.0001, 0.1)",
        "env.SEED": "choice(1, 2)",
        "resources.processes": "choice(1, 2)",
        "source": 'choice("a", "b")',  # an argument of that name: a path begins with a section
    }
