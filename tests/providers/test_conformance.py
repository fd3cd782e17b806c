"""Our providers pass the public conformance suite, and so does the guide's, installed from its
package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudtrain.testing.conformance import Platform, ProviderConformance
from examples.provider import test_ssh
from tests.providers import platforms
from tests.support.third_party import install

pytestmark = [pytest.mark.torchrun, pytest.mark.linux("the machine of these jobs")]


class TestLocal(ProviderConformance):
    """Processes of this machine."""

    platform = staticmethod(platforms.local)


@pytest.mark.docker
class TestDocker(ProviderConformance):
    """Containers of this machine."""

    platform = staticmethod(platforms.docker)


class TestSageMaker(ProviderConformance):
    """SageMaker, imitated on loopback."""

    platform = staticmethod(platforms.aws)


class TestAzureML(ProviderConformance):
    """Azure ML, imitated on loopback."""

    platform = staticmethod(platforms.azure)


class TestSsh(test_ssh.TestSsh):
    """The worked example."""

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:
        site = install(folder / "site")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(site))
            with super().platform(folder) as platform:
                yield platform
        sys.modules.pop("cloudtrain_ssh", None)
