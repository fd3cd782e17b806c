"""Emulators of the contracts: processes on this machine act as nodes. No SDK."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types of a LazyPackage
    from cloudtrain.providers.rehearsal import azureml as azureml
    from cloudtrain.providers.rehearsal import base as base
    from cloudtrain.providers.rehearsal import sagemaker as sagemaker
