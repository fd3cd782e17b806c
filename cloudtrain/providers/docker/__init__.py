"""The docker provider: one container per node on this machine.

Only `engine` imports Docker's SDK.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types of a LazyPackage
    from cloudtrain.providers.docker import checks as checks
    from cloudtrain.providers.docker import emulator as emulator
