"""The table of wrong SageMaker requests, its second part: inputs, environment, secrets, tags,
checkpoints.
"""

from __future__ import annotations

from tests.providers.wrong_rows import limit, many, row

ROWS = [
    # inputs
    row(
        "input on this machine",
        "1:10",
        "inputs.train: ./data cannot be read by the aws provider",
        job="inputs: {train: ./data}\n",
    ),
    row(
        "input of another cloud",
        "1:10",
        "inputs.train: azureml://x cannot be read",
        job="inputs: {train: 'azureml://x'}\n",
    ),
    row(
        "one object streamed",
        "1:10",
        "inputs.train: s3://b/x.csv is one object",
        job="inputs: {train: {uri: 's3://b/x.csv', mode: stream}}\n",
    ),
    limit(
        "nineteen inputs",
        "1:1",
        "inputs: has 21 items, at most 20, 2 of them set by cloudtrain",
        job="inputs:\n" + many(19, "n#: s3://b/n#/"),
    ),
    limit(
        "input at too long an address",
        "1:10",
        "inputs.train",
        "at most 1024",
        job=(
            "inputs: {train:"
            f" 's3://b/{'x' * 200}/{'x' * 200}/{'x' * 200}/{'x' * 200}/{'x' * 250}/'}}\n"
        ),
    ),
    # environment, secrets, tags, checkpoints
    limit(
        "value of 513 characters", "1:7", "env.X", "at most 512", job=f"env: {{X: '{'y' * 513}'}}\n"
    ),
    row("variable with a dash", "1:7", "env.MY-VAR", job="env: {MY-VAR: x}\n"),
    limit(
        "a hundred and one variables",
        "1:1",
        "env: has 101 entries, at most 100, 1 of them set by cloudtrain",
        job="env:\n" + many(100, "V#: x"),
    ),
    row(
        "SageMaker's own variable",
        "1:7",
        "env.SAGEMAKER_BASE_DIR: is reserved by SageMaker",
        job="env: {SAGEMAKER_BASE_DIR: /tmp}\n",
    ),
    row(
        "tag of AWS's own",
        "1:8",
        "tags.aws:team: names that begin with aws: are reserved",
        job="tags: {'aws:team': x}\n",
    ),
    row(
        "tag with a strange character",
        "1:8",
        "tags.team",
        "'€' is not allowed in a tag",
        job="tags: {team: 'a€b'}\n",
    ),
    limit(
        "tag value too long",
        "1:8",
        "tags.team",
        "at most 256",
        job=f"tags: {{team: '{'x' * 257}'}}\n",
    ),
    limit(
        "too many tags",
        "1:1",
        "tags: has 58 items, at most 50, 8 of them set by cloudtrain",
        job="tags:\n" + many(50, "t#: x"),
    ),
]
