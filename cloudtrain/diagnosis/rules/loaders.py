"""Rules of DataLoader workers that died, stall, or have too many files open."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_DATA = "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading"

LOADERS = (
    Rule(
        name="loader-worker-killed",
        patterns=(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed",),
        cause=(
            "a worker of the DataLoader was killed by SIGKILL, most often since host memory was"
            " full"
        ),
        remedy=(
            "look at the host's memory (cloudtrain top): if it was full, use fewer workers or load"
            " less at once; if not, look for who sent the signal"
        ),
        restart="after a change",
        source="https://github.com/pytorch/pytorch/issues/8976",
        is_general=True,
    ),
    Rule(
        name="loader-worker-crashed",
        patterns=(
            (
                r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?!Killed|Bus"
                r" error|Terminated)"
            ),
        ),
        cause="a worker of the DataLoader crashed in native code",
        remedy=(
            "run once with num_workers=0 and PYTHONFAULTHANDLER=1: the crash then shows where in"
            " the data code it is"
        ),
        restart="after a change",
        source=_DATA,
    ),
    Rule(
        name="open-files",
        patterns=(r"Too many open files|received \d+ items of ancdata|EMFILE",),
        cause="a process had too many files open",
        remedy=(
            "torch.multiprocessing.set_sharing_strategy('file_system') in the script, fewer"
            " workers, or a higher limit (ulimit -n)"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
    ),
    Rule(
        name="too-many-processes",
        patterns=(
            r"can't start new thread|pthread_create failed|Thread creation failed|fork:"
            r" (retry|Resource)|"
            r"Resource temporarily unavailable",
        ),
        unless=r"NCCL|socket|lock file|\.lock",
        cause="the limit of processes or threads is reached",
        remedy=(
            "use fewer DataLoader workers and OMP_NUM_THREADS=1 in env, or a higher limit (ulimit"
            " -u, docker run --pids-limit)"
        ),
        restart="after a change",
        source="https://man7.org/linux/man-pages/man2/fork.2.html",
    ),
    Rule(
        name="loader-timeout",
        patterns=(r"DataLoader timed out after \d+",),
        cause="a worker of the DataLoader delivered no batch in time",
        remedy=(
            "look at what a sample waits for (a slow disk or network, a lock held at fork); run"
            " once with num_workers=0"
        ),
        restart="after a change",
        source=_DATA,
    ),
    Rule(
        name="loader-worker-exited",
        patterns=(
            r"DataLoader worker \(pid\(?s?\)? .{0,60}\) exited unexpectedly",
            r"Pin memory thread exited unexpectedly",
        ),
        cause="a worker of the DataLoader ended without a word",
        remedy=(
            "run once with num_workers=0: what the data code raises is then seen; look at host and"
            " shared memory too"
        ),
        restart="after a change",
        source=_DATA,
        is_general=True,
    ),
    Rule(
        name="cuda-in-forked-worker",
        patterns=(
            r"Cannot re-initialize CUDA in forked subprocess",
            (
                r"can't create new processes if CUDA is already initialized|CUDA error:"
                r" initialization error"
            ),
        ),
        cause="CUDA was used in a forked process, such as a worker of the DataLoader",
        remedy=(
            "keep tensors on the CPU in the data set, or start workers by"
            " multiprocessing_context='spawn'"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/notes/multiprocessing.html",
    ),
    Rule(
        name="spawn-without-guard",
        patterns=(
            r"An attempt has been made to start a new process before the",
            r"finished its bootstrapping phase",
        ),
        cause="processes are started by spawn while the script itself is being imported",
        remedy="put what the script does under if __name__ == '__main__':",
        restart="after a change",
        source="https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
    ),
    Rule(
        name="not-picklable",
        patterns=(
            (
                r"[Cc]an't pickle|cannot pickle|[Cc]an't get local object|Can't get attribute"
                r" .{0,80} on <module"
            ),
        ),
        cause="something was handed to another process that cannot be pickled",
        remedy=(
            "define functions and classes that workers or checkpoints use at the top of a module,"
            " not inside a function"
        ),
        restart="after a change",
        source="https://docs.python.org/3/library/pickle.html#what-can-be-pickled-and-unpickled",
    ),
    Rule(
        name="map-worker-died",
        patterns=(r"One of the subprocesses has abruptly died during map operation",),
        is_general=True,
        cause=(
            "a process of datasets.map died: most often memory is exhausted, or it crashed where it"
            " cannot be seen"
        ),
        remedy=(
            "use fewer processes (num_proc; LLaMA-Factory: preprocessing_num_workers), or none to"
            " see the error itself"
        ),
        restart="after a change",
        source="https://huggingface.co/docs/datasets/process#multiprocessing",
    ),
)
