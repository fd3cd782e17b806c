"""File locks, shared with the launcher (file_locks.py explains them)."""

from __future__ import annotations

from cloudtrain_launcher.file_locks import FileLock as FileLock
from cloudtrain_launcher.file_locks import acquire as acquire
from cloudtrain_launcher.file_locks import disk_time as disk_time
from cloudtrain_launcher.file_locks import is_locked as is_locked
from cloudtrain_launcher.file_locks import locked as locked
from cloudtrain_launcher.file_locks import stand_in as stand_in
