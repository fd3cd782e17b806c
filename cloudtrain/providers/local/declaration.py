"""Declaration of the local provider."""

from __future__ import annotations

from cloudtrain.declaration import Declaration

DECLARATION = Declaration(
    name="local",
    label="this machine",
    is_remote=False,
    input_schemes=("",),
    input_example="./data",
    publishes=True,
    has_keyboard=True,
    runs_on_lent_machines=True,
    secret_stores={"env": "NAME"},
)
