"""The aws provider: SageMaker training jobs. Only `client` and `errors` import an SDK."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types of a LazyPackage
    from cloudtrain.providers.aws import account_checks as account_checks
    from cloudtrain.providers.aws import client as client
    from cloudtrain.providers.aws import phases as phases
    from cloudtrain.providers.aws import request as request
    from cloudtrain.providers.aws import results as results
    from cloudtrain.providers.aws import rules as rules
    from cloudtrain.providers.aws import status as status
    from cloudtrain.providers.aws import submit as submit
    from cloudtrain.providers.aws import target as target
    from cloudtrain.providers.aws import tuning as tuning
    from cloudtrain.providers.aws import tuning_request as tuning_request
    from cloudtrain.providers.aws import validate as validate
