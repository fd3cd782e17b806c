"""Makes Azure's genuine clients cheap to call hundreds of times in one process, with unchanged
requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def cheap_clients() -> Iterator[None]:
    """Inside, all clients share their connections, and ask once what cloud this is; there is no
    proxy.
    """
    from azure.ai.ml import _azure_environments
    from requests.adapters import HTTPAdapter
    from urllib3 import PoolManager

    connections = PoolManager()

    def share(adapter: HTTPAdapter, *_: object, **__: object) -> None:
        adapter.poolmanager = connections

    def no_proxies(*_: object, **__: object) -> dict[str, str]:
        return {}

    clouds: Any = _azure_environments._get_clouds_by_metadata_url
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HTTPAdapter, "init_poolmanager", share)
        patch.setattr(HTTPAdapter, "close", lambda _: None)
        patch.setattr("requests.sessions.get_environ_proxies", no_proxies)
        patch.setattr(_azure_environments, "_get_clouds_by_metadata_url", cache(clouds))
        yield
    connections.clear()
