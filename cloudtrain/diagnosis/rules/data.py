"""Rules of data that is missing, damaged or unexpected, and of its loaders."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_S3 = "https://docs.aws.amazon.com/sagemaker/latest/dg/model-access-training-data.html"
_AZURE = "https://learn.microsoft.com/azure/machine-learning/how-to-troubleshoot-data-access"

DATA = (
    Rule(
        name="input-empty",
        patterns=(
            r"NoSuchBucket|(bucket|S3).{0,120}(different|another|wrong|same) region",
            r"PermanentRedirect|must be in region",
            r"No S3 objects found|S3 (prefix|key|object).{0,200}not (found|exist)|NoSuchKey",
            r"An error occurred \(404\)",
            r"([Oo]bject|[Kk]ey) \"?s3://\S{1,300} (not found|does not exist)",
            r"[Kk]ey \"[^\"]{1,200}\" does not exist",
        ),
        cause="there is nothing at the address of an input, or its bucket is in another region",
        remedy=(
            "there is nothing at an input's address: look at inputs in job.yaml (aws s3 ls ADDRESS)"
        ),
        remedies=(
            (
                r"NoSuchBucket|region|PermanentRedirect",
                "bucket, inputs and image must be in the job's own region: see aws.bucket and"
                " aws.region",
            ),
        ),
        source=_S3,
    ),
    Rule(
        name="input-unreadable",
        patterns=(
            r"StreamAccess|DataAccess|data asset .{0,200} not found|BlobNotFound",
            r"ContainerNotFound|AZFMountError|DatasetMount",
            r"([Cc]ould not|[Uu]nable to|[Cc]annot|[Ff]ailed to) mount",
            r"ResourceNotFound.{0,80}blob|Data download failed:",
        ),
        cause="an input cannot be read or mounted",
        remedy=(
            "an input cannot be read: look at its address in job.yaml, and whether the job's"
            " identity may read it and its network reaches it"
        ),
        source=_AZURE,
        is_symptom=True,
    ),
    Rule(
        name="no-samples",
        patterns=(
            r"num_samples should be a positive integer value, but got num_samples=0",
            (
                r"(has no images in class folders|Found no valid file for the classes|found 0 (i"
                r"mages|files|samples))"
            ),
            r"contain(s|ing)? no (training )?(data|samples|examples)\b",
            r"Couldn't find any class folder|EmptyDatasetError|DataFilesNotFoundError",
            r"Found array with 0 sample|[Nn]o (images|samples) found in",
            r"expects a non-empty TensorList|expected a non-empty list of Tensors",
            r"[Nn]o samples? found|No labels .{0,80}can ?not (start )?train",
        ),
        cause="the data set, or a batch of it, is empty",
        remedy=(
            "look at the folder that the script reads (CLOUDTRAIN_INPUT_<NAME>) and at its pattern"
            " of file names"
        ),
        source="https://docs.pytorch.org/docs/stable/data.html",
    ),
    Rule(
        name="damaged-sample",
        patterns=(
            r"cannot identify image file|image file is truncated|UnidentifiedImageError",
            r"broken data stream|BadZipFile|File is not a zip file|zlib\.error",
            r"Not a gzipped file",
            (
                r"ArrowInvalid: (?!Could not convert|Column|cannot mix|Schema|offset|JSON parse "
                r"error: Column)"
            ),
            r"tarfile\.ReadError|Compressed file ended before|unexpected end of data",
            r"JSONDecodeError|cannot be read as an image|UnicodeDecodeError",
            r"ParserError: Error tokenizing|EmptyDataError|file signature not found",
            r"_src\.empty\(\)|Object arrays cannot be loaded when allow_pickle=False",
            r"Failed to interpret file .{0,200} as a pickle|DECORDError|LibsndfileError",
            r"moov atom not found|unrecognized data stream|\b[Ee]rror (loading|decoding) image\b",
        ),
        cause="a file of the data is damaged or of another format than its name says",
        remedy=(
            "find it by the traceback or by reading all files once, and copy it again or leave"
            " it out"
        ),
        source="https://pillow.readthedocs.io/en/stable/reference/ImageFile.html",
    ),
    Rule(
        name="label-out-of-range",
        patterns=(
            r"IndexError: Target -?\d+ is out of bounds|index out of range in self",
            r"has the label \d+: expected 0 to|Class values must be smaller than num_classes",
            r"Assertion `cur_target >= 0",
        ),
        suggests=(
            r"index (?P<size>[2-9]|\d\d+) is out of bounds for \w+ \d+ with size (?P=size)\b",
        ),
        cause="a label or token is outside the range that the model knows",
        remedy=(
            "compare the largest label with the number of classes, and the largest token with the"
            " size of the vocabulary"
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
    ),
    Rule(
        name="samples-differ",
        patterns=(
            r"stack expects each tensor to be equal size|equal size, but got \[",
            r"expected sequence of length \d+ at dim",
            r"each element in list of batch should be of equal",
        ),
        places=(r"^RuntimeError: Trying to resize storage[^<]*<[^<]*/_utils/collate\.py:",),
        cause="samples of one batch have different shapes and cannot be stacked",
        remedy="bring all samples to one shape (resize, pad), or give the DataLoader a collate_fn",
        source="https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",
    ),
    Rule(
        name="download-failed",
        patterns=(
            r"Max retries exceeded with url|We couldn't connect to 'https?://|urlopen error",
            r"ConnectTimeout(Error)?\b|[Nn]etwork is unreachable",
            r"Failed to establish a new connection|offline mode is enabled",
            r"Temporary failure in name resolution.{0,80}url|HTTPError: HTTP Error \d+",
            r"LocalEntryNotFoundError|\b50[0234] Server Error|ProxyError|RemoteDisconnected",
            r"Gateway Time-?out|CERTIFICATE_VERIFY_FAILED|Connection error, and we cannot find",
            r"(requests|urllib3)\.exceptions\.(?!\w*Warning)\w|ReadTimeout(Error)?\b",
            r"IncompleteRead|ConnectionError: (\(|HTTP|Couldn't reach)|httpx\.\w+(Error|Timeout)",
            r"SSLError|Cannot reach .{0,120}offline",
        ),
        cause="the program wanted to download something and could not",
        remedy=(
            "give it as an input instead, or see that the job's network reaches that host (a"
            " private subnet needs a NAT or an endpoint)"
        ),
        restart="retry",
        source="https://huggingface.co/docs/huggingface_hub/guides/download",
    ),
    Rule(
        name="columns-differ",
        patterns=(
            r"No columns in the dataset match|Column name .{0,80}not in the dataset",
            r"DatasetGenerationCastError|CastError|Couldn't cast|features can't be aligned",
            r"column names don't match|Unknown split |BuilderConfig .{0,80}not found",
            r"Unable to create tensor, you should probably|NonMatchingSplitsSizesError",
            r"Provided `function` which is applied",
            r"ArrowInvalid: (Could not convert|Column|cannot mix|Schema|JSON parse error: Column)",
            r"ArrowTypeError|did not return a loss from the inputs",
            r"method that includes input_ids",
        ),
        cause="the data set has other columns, types or splits than the program expects",
        remedy=(
            "print the data set's columns and one entry, and compare them with those that the"
            " program names; cached data of an earlier try may be the reason, too"
        ),
        source="https://huggingface.co/docs/datasets/loading",
    ),
    Rule(
        name="column-too-large",
        patterns=(
            r"offset overflow while concatenating|ArrowCapacityError",
            r"array cannot contain more than \d+ bytes",
        ),
        cause="one piece of a column holds more than Arrow takes (2 GiB)",
        remedy=(
            "use smaller pieces: batch_size and writer_batch_size of datasets.map, or split entries"
            " that are very large"
        ),
        source="https://huggingface.co/docs/datasets/process#map",
    ),
)

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
        source="https://github.com/pytorch/pytorch/issues/8976",
        is_symptom=True,
    ),
    Rule(
        name="loader-worker-crashed",
        patterns=(
            (
                r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?!Killed|Bus e"
                r"rror|Terminated)"
            ),
        ),
        cause="a worker of the DataLoader crashed in native code",
        remedy=(
            "run once with num_workers=0 and PYTHONFAULTHANDLER=1: the crash then shows where in"
            " the data code it is"
        ),
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
        source="https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
    ),
    Rule(
        name="too-many-processes",
        patterns=(
            r"can't start new thread|pthread_create failed|Thread creation failed",
            r"fork: (retry|Resource)|Resource temporarily unavailable",
        ),
        unless=r"NCCL|socket|lock file|\.lock",
        cause="the limit of processes or threads is reached",
        remedy=(
            "use fewer DataLoader workers and OMP_NUM_THREADS=1 in env, or a higher limit (ulimit"
            " -u, docker run --pids-limit)"
        ),
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
        source=_DATA,
        is_symptom=True,
    ),
    Rule(
        name="cuda-in-forked-worker",
        patterns=(
            r"Cannot re-initialize CUDA in forked subprocess",
            r"can't create new processes if CUDA is already initialized",
            r"CUDA error: initialization error",
        ),
        cause="CUDA was used in a forked process, such as a worker of the DataLoader",
        remedy=(
            "start processes by spawn (multiprocessing_context='spawn' of the DataLoader,"
            " torch.multiprocessing.spawn), or keep CUDA out of them: tensors of a data set on the"
            " CPU"
        ),
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
        source="https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
    ),
    Rule(
        name="not-picklable",
        patterns=(
            r"[Cc]an't pickle|cannot pickle|[Cc]an't get local object",
            r"Can't get attribute .{0,80} on <module",
        ),
        cause="something was handed to another process that cannot be pickled",
        remedy=(
            "define functions and classes that workers or checkpoints use at the top of a module,"
            " not inside a function"
        ),
        source="https://docs.python.org/3/library/pickle.html#what-can-be-pickled-and-unpickled",
    ),
    Rule(
        name="map-worker-died",
        patterns=(r"One of the subprocesses has abruptly died during map operation",),
        is_symptom=True,
        cause=(
            "a process of datasets.map died: most often memory is exhausted, or it crashed where it"
            " cannot be seen"
        ),
        remedy=(
            "use fewer processes (num_proc; LLaMA-Factory: preprocessing_num_workers), or none to"
            " see the error itself"
        ),
        source="https://huggingface.co/docs/datasets/process#multiprocessing",
    ),
)
