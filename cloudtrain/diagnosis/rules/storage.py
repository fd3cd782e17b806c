"""Rules of disks that are full, read-only, broken or gone, and of missing permissions."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"

STORAGE = (
    Rule(
        name="disk-full",
        patterns=(
            r"No space left|ENOSPC|([Nn]ot enough|[Ii]nsufficient) (free |local )?(disk )?space",
            r"disk is full|StorageFull|low on resource: ephemeral-storage",
            r"exceeds? .{0,60}ephemeral|DiskPressure|\d+ requested and \d+ written",
            r"Disk quota exceeded|EDQUOT",
        ),
        unless=r"/torch_\d|/dev/shm|shared memory|NCCL WARN",
        cause="a disk, or your share of it, was full",
        remedy="free some disk space, write elsewhere, or ask for more: resources.disk",
        source=_ERRNO,
    ),
    Rule(
        name="read-only-disk",
        patterns=(r"Read-only file system|EROFS",),
        cause="the program wrote to a place that is mounted for reading only",
        remedy=(
            "write to CLOUDTRAIN_OUTPUT_DIR, CLOUDTRAIN_MODEL_DIR or CLOUDTRAIN_CHECKPOINT_DIR:"
            " inputs are read-only"
        ),
        source="docs/concepts/contract.md",
    ),
    Rule(
        name="stale-file-handle",
        patterns=(
            r"Stale (NFS )?file handle|ESTALE|Transport endpoint is not connected",
            r"Device or resource busy: .{0,200}\.nfs",
        ),
        cause="a network disk went away while it was in use",
        remedy=(
            "start again; if it comes back, look at the file server, or copy the data to the"
            " machine first"
        ),
        restart="retry",
        source=_ERRNO,
    ),
    Rule(
        name="disk-error",
        patterns=(r"Input/output error|\[Errno 5\]|Remote I/O error",),
        unless=r"NCCL|tcgetattr|stdin",
        cause="a disk or a network file system failed to read or write",
        remedy=(
            "start again on another machine; if it comes back, look at the disk (dmesg) or the file"
            " server"
        ),
        restart="retry",
        source=_ERRNO,
    ),
    Rule(
        name="permission-denied",
        patterns=(
            r"PermissionError|Permission denied|\[Errno 13\]|EACCES|Operation not permitted",
            r"kind: PermissionDenied",
        ),
        unless=r"[Pp]ublickey|ptrace|perf_event|set_mempolicy|numa|wandb|W&B|upsertBucket",
        cause="the process may not read, write or run a file",
        remedy=(
            "write to the job's own folders (CLOUDTRAIN_OUTPUT_DIR and the like), and see which"
            " user the container runs as and who owns the file"
        ),
        source="docs/concepts/contract.md",
    ),
    Rule(
        name="file-not-found",
        patterns=(
            r"FileNotFoundError|No such file|can't open file '|NotADirectoryError",
            r"is not a directory: |Dataset .{0,80}not found|missing paths ?\[",
        ),
        unless=r"lib\w[\w.+-]*\.so|fatal error: |shared library|\bld(\.\w+)?: ",
        cause="a file or folder that the program opens is not there",
        remedy=(
            "correct the path that the message names; of a job only files inside the source folder"
            " are in the archive, and data is an input (CLOUDTRAIN_INPUT_<NAME>)"
        ),
        source="docs/guides/data.md",
    ),
    Rule(
        name="file-exists",
        patterns=(r"FileExistsError|\[Errno 17\]",),
        cause="a file or folder that the program makes is there already",
        remedy=(
            "where ranks make the same one at the same time: os.makedirs(…, exist_ok=True), or only"
            " on rank 0; else it is of an earlier run"
        ),
        source=_ERRNO,
    ),
    Rule(
        name="file-locked",
        patterns=(
            r"unable to lock file|database is locked|Timeout: .{0,200}\.lock",
            r"could not be acquired",
        ),
        cause="a file is locked by another process",
        remedy=(
            "let each rank open another file, or read only; HDF5_USE_FILE_LOCKING=FALSE in env"
            " for HDF5 on a network disk; remove a lock that a killed process left"
        ),
        source="https://docs.h5py.org/en/stable/high/file.html",
    ),
)
