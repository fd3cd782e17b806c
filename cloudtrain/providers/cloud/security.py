"""What both clouds' requests may show to more people than they should: secrets in plain text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan

_LIKELY_SECRET = r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_KEY|CREDENTIALS?)"  # noqa: S105
"""The name of a variable that holds one; `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` are none."""


def plain_secrets(plan: Plan) -> Iterator[Issue]:
    """Variables of `env` that look like secrets: whoever may look at the job may read them."""
    for name, value in plan.spec.env.items():
        if value and re.fullmatch(_LIKELY_SECRET, name, re.IGNORECASE):
            stores = plan.target.declaration.secret_stores
            example = next((f"{store}:{form}" for store, form in stores.items()), "env:NAME")
            hint = f"secrets: {{{name}: {{{plan.target.provider}: '{example}'}}}}"
            yield Issue(("env", name), "looks like a secret, and whoever may look at the job reads it", hint)
