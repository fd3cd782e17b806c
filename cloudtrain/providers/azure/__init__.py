"""The azure provider: Azure ML command and sweep jobs.

Only `arm`, `client`, `errors`, `sdk` and `storage` import an SDK.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types of a LazyPackage
    from cloudtrain.providers.azure import checkup as checkup
    from cloudtrain.providers.azure import discover as discover
    from cloudtrain.providers.azure import request as request
    from cloudtrain.providers.azure import results as results
    from cloudtrain.providers.azure import rules as rules
    from cloudtrain.providers.azure import sdk as sdk
    from cloudtrain.providers.azure import status as status
    from cloudtrain.providers.azure import stop as stop
    from cloudtrain.providers.azure import submit as submit
    from cloudtrain.providers.azure import sweep as sweep
    from cloudtrain.providers.azure import sweep_request as sweep_request
    from cloudtrain.providers.azure import target as target
