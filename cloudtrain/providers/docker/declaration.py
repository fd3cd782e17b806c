"""Declaration of the docker provider."""

from __future__ import annotations

from cloudtrain.declaration import Declaration, Setting
from cloudtrain.providers.local.declaration import DECLARATION as LOCAL

DECLARATION = Declaration(
    name="docker",
    label="Docker",
    is_remote=False,
    input_schemes=LOCAL.input_schemes,
    input_example=LOCAL.input_example,
    publishes=True,
    secret_stores=LOCAL.secret_stores,
    fallback_providers=(LOCAL.name,),
    settings={
        "memory": Setting(
            "the most memory that one container may use, such as 8 GiB",
            "size",
            beside_job="harmless",
        ),
    },
)
