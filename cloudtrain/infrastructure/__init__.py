"""What an account needs before jobs run there: the interface by which a provider sets it up, shows
it and removes it.

A provider that can implements `Infrastructure` and returns it from `Provider.infrastructure`.
`cloudtrain infra` does the rest: it shows the plan, asks, prints progress, and writes the settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from cloudtrain.infrastructure.changes import ChangePlan, Deployment, ResourceEvent
    from cloudtrain.infrastructure.parameters import Parameter

DEFAULT_NAME = "cloudtrain"
"""What a deployment is called unless `--name` says otherwise."""

Report = Callable[["ResourceEvent"], None]
"""Called for each resource as it is created, changed or deleted."""


class Infrastructure(ABC):
    """One deployment in one account: everything there that bears its name. Planning changes no
    resource.

    Every method but `template` asks the cloud and may raise CloudError; a UsageError says which
    setting is missing.
    """

    parameters: ClassVar[tuple[Parameter, ...]]
    """What can be chosen with `--set`, in the order in which people are told."""
    formats: ClassVar[tuple[str, ...]]
    """What `template` can print; the first is the usual one."""

    @abstractmethod
    def plan_up(self, values: Mapping[str, str]) -> ChangePlan:
        """What would be created and changed. `values`: the parameters that are given, checked.

        A parameter that is not given keeps the value of the deployment there is, else it has its
        default. Planning twice is harmless; if the cloud keeps something of a plan, such as a
        change set, `discard` removes it.
        """

    @abstractmethod
    def up(self, plan: ChangePlan, report: Report) -> Deployment:
        """Carry out a plan of `plan_up`, and wait until it is done. After a kill, planning and `up`
        go on from there.

        CloudError names the resource that failed, with the cloud's reason, and what to do next. A
        plan without changes does nothing; the deployment is returned all the same.
        """

    def discard(self, plan: ChangePlan) -> None:  # noqa: B027  (most clouds keep nothing of a plan)
        """Remove what the cloud keeps of a plan that will not be carried out."""

    @abstractmethod
    def show(self) -> Deployment:
        """The deployment as it is now; one that does not exist has the state `absent`."""

    @abstractmethod
    def plan_down(self, *, delete_data: bool) -> ChangePlan:
        """What would be deleted, and what is kept because it holds data. `delete_data`: that is
        deleted, too.
        """

    @abstractmethod
    def down(self, plan: ChangePlan, report: Report) -> None:
        """Carry out a plan of `plan_down`, and wait until it is done. What is already gone is
        passed over.
        """

    @abstractmethod
    def template(self, format_: str) -> str:
        """The template in one of `formats`, for those who deploy by a pipeline of their own. No
        network.
        """
