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
    # what stands in the space -> where it is wrong, what is said, and the hint
    "{}": ("", "is empty: there is nothing to vary", "for example lr: loguniform(1e-4, 1e-1)"),
    "{lr: loguniform(0, 1)}": (
        ".lr",
        "loguniform begins at 0, and there is no logarithm of that",
        "begin above 0",
    ),
    "{n: logint(-4, 8)}": (
        ".n",
        "logint begins at -4, and there is no logarithm of that",
        "begin above 0",
    ),
    "{lr: uniform(2, 1)}": (".lr", "2 is more than 1", "write the least first"),
    "{n: int(3, 3)}": (".n", "has only one value, 3", "set it under args, and leave it out here"),
    "{n: int(0.5, 3)}": (".n", "int takes whole numbers, got 0.5", None),
    "{lr: uniform(1)}": (".lr", "uniform takes two numbers, the least and the most, got 1", None),
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
        "there is no 'lognormal' (did you mean 'loguniform'?)",
        f"write for example {FORMS}",
    ),
    "{lr: 0.1}": (".lr", "expected what it may be, got 0.1", f"write for example {FORMS}"),
    "{lr: fast}": (".lr", "'fast' says no range", f"write for example {FORMS}"),
    "{args: {lr: [1, 2]}}": (
        ".args",
        "expected what it may be, got a mapping",
        "write a path in one line, such as args.lr: …",
    ),
    "{b: [16, 32, 16]}": (".b", "has the same value twice", "keep one of them"),
    '{b: [1, "1"]}': (".b", "has the same value twice", "keep one of them"),
    "{b: []}": (".b", "has no value to choose from", None),
    "{b: [16, [32]]}": (".b[1]", "expected text, a number, true or false, got a list", None),
    "{lr: [1, 2], args.lr: [3, 4]}": (".args.lr", "is the same setting as lr", "keep one of them"),
    "{inputs.data: [./a, ./b], inputs.data.uri: [./c, ./d]}": (
        ".inputs.data.uri",
        "is a part of the same setting as inputs.data",
        "keep one of them",
    ),
    "{name: [a, b], name.x: [a, b]}": (
        ".name.x",
        "is the name of the sweep, and trials are numbered",
        "vary an argument, or leave it out",
    ),
    "{limits.max_runtime: [1 h, 2 h]}": (
        ".limits.max_runtime",
        "are what one trial may take, and the budget counts on them",
        "set them outside of the sweep",
    ),
    "{secrets.TOKEN: [a, b]}": (
        ".secrets.TOKEN",
        "are the same for all trials, and no search may read them",
        "vary a setting that is none",
    ),
    "{checkpoints.uri: [a, b]}": (
        ".checkpoints.uri",
        "is a folder of its own for each trial",
        "leave it out",
    ),
    "{aws.kms_key: [a, b]}": (
        ".aws.kms_key",
        "is how the account is used, the same for all trials",
        "set it in the section aws",
    ),
    "{resource.nodes: [1, 2]}": (
        ".resource.nodes",
        "there is no section 'resource' (did you mean 'resources'?)",
        "an argument (lr), or a path (args.lr, env.SEED)",
    ),
    "{args.optimizer.lr: [1, 2]}": (
        ".args.optimizer.lr",
        "names a part of an argument, and arguments have none",
        "args.optimizer is one",
    ),
    "{env.: [1, 2]}": (
        ".env.",
        "'env.' has an empty part",
        "an argument (lr), or a path (args.lr, env.SEED)",
    ),
    "{resources.node: [1, 2]}": (".resources.node", "unknown key (did you mean 'nodes'?)", None),
    "{resources.nodes: [0, 2]}": (
        ".resources.nodes[0]",
        "0 is no value of it: must be at least 1, got 0",
        None,
    ),
    "{resources.nodes: 'int(0, 2)'}": (
        ".resources.nodes",
        "0 is no value of it: must be at least 1, got 0",
        None,
    ),
    "{resources.spot: [true, maybe]}": (
        ".resources.spot[1]",
        "\"maybe\" is no value of it: expected true or false, got 'maybe'",
        None,
    ),
    "{env.1A: [1, 2]}": (
        ".env.1A",
        "is not a valid variable name",
        "letters, digits and _, not starting with a digit",
    ),
    "{init: ['${inputs.none}', zeros]}": (
        ".init[0]",
        "\"${inputs.none}\" is no value of it: there is no input 'none'",
        None,
    ),
}


def mistakes(folder: Path, text: str) -> list[tuple[str, str, str, str | None]]:
    """Where the mistakes of a job.yaml are, as lines and fields, what is said of them, and the
    hints.
    """
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
    "": (1, "trials", "is missing: how many trials are wanted", "trials: 20"),
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
        "there is no method 'tpe'",
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
        "there is no sampler 'qmc'",
        "sampler: random; bayesian and asha have tpe",
    ),
    "trials: 3\n  method: random\n  sampler: gp": (
        6,
        "sampler",
        "is not for the method random: gp",
        "random takes random",
    ),
    "method: grid\n  sampler: tpe": (
        5,
        "sampler",
        "is not for the method grid: tpe",
        "it has no choice of them: leave it out",
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
        "no trial is compared before report 9, and a whole one makes 9",
        "less than 9",
    ),
    "trials: 3\n  early_stopping: {max: 1}": (
        5,
        "early_stopping.max",
        "val_loss is reported once, at the end: nothing is left to stop",
        "more epochs, or no early stopping",
    ),
    "trials: 3\n  method: asha\n|args: {epochs: 1}": (
        5,
        "method",
        "val_loss is reported once, at the end: nothing is left to stop",
        "more epochs, or no early stopping",
    ),
    "trials: 3\n  method: asha\n|args: {epochs: 4, eval-every: 4}": (
        5,
        "method",
        "val_loss is reported once, at the end: nothing is left to stop",
        "more epochs, or no early stopping",
    ),
    "trials: 3\n  early_stopping: {grace: 5}\n|args: {epochs: 5}": (
        5,
        "early_stopping.grace",
        "no trial is compared before report 5, and a whole one makes 5",
        "less than 5",
    ),
    "trials: 3\n  early_stopping: {promote: always}\n|entrypoint: train.py": (
        5,
        "early_stopping.promote",
        "brings trials back until they are whole, and it is not known when they are",
        "early_stopping.max: the reports of a trial that trains to its end, such as its epochs",
    ),
    "trials: 3\n  early_stopping: {promote: always}\n|args: {epochs: 9, no-resume: true}": (
        5,
        "early_stopping.promote",
        "goes on from checkpoints, and --no-resume makes each run begin anew",
        "leave out args.no-resume",
    ),
    "trials: 3\n  engine: native\n  early_stopping: {promote: always, max: 9}": (
        6,
        "early_stopping.promote",
        "brings trials back, and the cloud's own engine only ends them",
        "engine: portable does both",
    ),
    "trials: 3\n  budget: {max_cost: 5 USD}\n|limits: {max_cost: 6 USD}": (
        5,
        "budget.max_cost",
        "5.00 USD for all trials are less than limits.max_cost allows one: 6.00 USD",
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
        "no trial is started for less than 60 s",
        "raise it",
    ),
    "trials: 3\n|args: [--lr, '1']": (
        3,
        "space.lr",
        "sets an argument by its name, and args is a list, verbatim",
        "write args as a mapping (lr: 0.1)",
    ),
    "trials: 3\n|args: {--lr: 1}": (
        3,
        "space.lr",
        "is written --lr under args, and would be given twice",
        "args: lr",
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
    # what the section has beside the method, and what is wrong with it
    "space: {batch-size: [16, 32]}": (
        "space.batch-size",
        "is no range of whole numbers, which the method batch_size needs",
        RANGE,
    ),
    "space: {batch-size: int(0, 32)}": (
        "space.batch-size",
        "begins at 0, and a batch has at least 1 sample",
        RANGE,
    ),
    "space: {batch-size: int(1, 32), lr: [1, 2]}": (
        "space.lr",
        "is a second setting, and the method batch_size varies one",
        RANGE,
    ),
    "space: {batch-size: int(1, 32)}\n  trials: 9": (
        "trials",
        "is not for the method batch_size: it ends by itself",
        "leave it out",
    ),
    "space: {batch-size: int(1, 32)}\n  parallel: 2": (
        "parallel",
        "is 1 with the method batch_size: each size follows from those before",
        "leave it out",
    ),
    "space: {batch-size: int(1, 32)}\n  early_stopping: {grace: 2, max: 9}": (
        "early_stopping",
        "is not for the method batch_size: each trial ends once it has measured",
        "leave it out",
    ),
    "space: {batch-size: int(1, 32)}\n  engine: native": (
        "engine",
        "has no search for a batch size",
        "engine: portable runs trials wherever jobs run",
    ),
    "space: {batch-size: int(1, 32)}\n  sampler: tpe": (
        "sampler",
        "is not for the method batch_size: tpe",
        "it has no choice of them: leave it out",
    ),
}


@pytest.mark.parametrize("section", BATCH_SIZES)
def test_a_search_for_a_batch_size_has_one_range_and_nothing_to_choose(
    section: str, tmp_path: Path
) -> None:
    field, message, hint = BATCH_SIZES[section]
    objective = "objective: {metric: samples_per_s, goal: maximize}"
    text = f"sweep:\n  method: batch_size\n  {objective}\n  {section}\n"
    found = [(at.removeprefix("sweep."), said, do) for _, at, said, do in mistakes(tmp_path, text)]
    assert found == [(field, message, hint)]


def test_the_shared_trainer_reports_one_metric_in_a_search_for_a_batch_size(tmp_path: Path) -> None:
    text = f"sweep:\n  {GOAL}\n  method: batch_size\n  space: {{batch-size: int(1, 8)}}\n"
    assert [message for _, _, message, _ in mistakes(tmp_path, text)] == [
        "the shared trainer reports only samples_per_s in a search for a batch size"
    ]


@pytest.mark.parametrize(
    ("objective", "said"),
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
                "sweep.objective.metric: the shared trainer reports no 'val_acuracy' (did you mean"
                " 'val_accuracy'?)"
            ),
        ),
        # It is told with the progress, and no metric of an epoch.
        (
            "{metric: samples_per_s, goal: maximize}",
            "sweep.objective.metric: the shared trainer reports no 'samples_per_s'",
        ),
    ],
)
def test_an_objective_that_nobody_reports_is_refused(
    objective: str, said: str, tmp_path: Path
) -> None:
    text = f"sweep:\n  objective: {objective}\n  trials: 3\n  space: {{lr: [1, 2]}}\n"
    assert [f"{field}: {message}" for _, field, message, _ in mistakes(tmp_path, text)] == [said]


def test_a_grid_takes_no_range_of_real_numbers_and_not_too_many_points(tmp_path: Path) -> None:
    text = (
        f"sweep:\n  {GOAL}\n  method: grid\n  space: {{lr: uniform(0, 1), steps: int(1, 20000)}}\n"
    )
    assert [(field, message) for _, field, message, _ in mistakes(tmp_path, text)] == [
        ("sweep.space", "is a grid of 20,000 points, and at most 10,000 are tried"),
        ("sweep.space.lr", "has no end of values, and a grid takes each of them"),
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
            "is no argument, and the cloud's own engine varies arguments alone",
        ),
        (
            "sweep.space.resources.nodes",
            "changes what a trial may cost, so that a budget in money cannot be held",
        ),
        (
            "sweep.space.resources.nodes",
            "is no argument, and the cloud's own engine varies arguments alone",
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
