"""The local provider: launchers as processes, under a supervisor that outlives the client."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types of a LazyPackage
    from cloudtrain.providers.local import checks as checks
