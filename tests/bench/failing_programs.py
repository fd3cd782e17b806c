"""Programs that really fail, each with the rule that names its cause; `bench_failures.py` runs
them, a test a few.

They run in a folder of their own. `small_disk(folder, size, how)` mounts one, which only root may;
`ranks(count, function)` runs a function in as many processes that can form a group of
torch.distributed.
"""

from __future__ import annotations

PRELUDE = """
import ctypes, os, signal, socket, subprocess, sys, threading, time

def small_disk(folder, size="64k", how="rw"):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000):  # CLONE_NEWNS
        sys.exit("SKIPPED: only root may mount")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    os.makedirs(folder, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},{how}", "tmpfs", folder], check=True)

def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]

def ranks(count, function):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(count))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            try:
                function(rank)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    sys.exit(1)

def group(**options):
    import datetime, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.pop("seconds", 20)), **options)
    return dist
"""

PLAIN: dict[str, tuple[str, str]] = {
    "memory beyond a limit": (
        "host-allocation-failed",
        (
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); x ="
            " bytearray(1 << 33)"
        ),
    ),
    "disk full": ("disk-full", "small_disk('d'); open('d/x', 'wb').write(bytes(1 << 20))"),
    "read-only disk": ("read-only-disk", "small_disk('d', how='ro'); open('d/x', 'w')"),
    "another user's folder": (
        "permission-denied",
        (
            "os.mkdir('d', 0o700); os.setuid(65534) if os.getuid() == 0 else os.chmod('d', 0);"
            " open('d/x', 'w')"
        ),
    ),
    "too many open files": (
        "open-files",
        (
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); x ="
            " [open('/dev/null') for _ in range(99)]"
        ),
    ),
    "file that is not there": ("file-not-found", "open('data/train.csv')"),
    "folder instead of a program": (
        "file-not-found",
        "subprocess.run([sys.executable, 'nope.py'], check=True)",
    ),
    "module that is not installed": ("module-not-found", "import einops_that_nobody_has"),
    "name that a package lacks": ("name-not-in-package", "from json import read_all"),
    "attribute that a package lacks": ("attribute-not-in-package", "import json; json.read_all()"),
    "argument that a function lacks": ("argument-not-in-package", "sorted([1], backwards=True)"),
    "modules that import each other": (
        "circular-import",
        (
            "open('one.py', 'w').write('from two import b\\na = 1\\n'); open('two.py',"
            " 'w').write('from one import a\\nb = 1\\n')\nsys.path.insert(0, '.'); import one"
        ),
    ),
    "package that nobody has": (
        "package-not-found",
        (
            "subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', 'torch==99.99'],"
            " check=True)"
        ),
    ),
    "library that is not there": ("library-missing", "ctypes.CDLL('libnothing.so.1')"),
    "extension for another library": (
        "undefined-symbol",
        (
            "open('x.c', 'w').write('extern int nowhere(void); int f(void) { return nowhere();"
            " }')\nsubprocess.run(['gcc', '-shared', '-fPIC', '-o', 'x.so', 'x.c'],"
            " check=True)\nctypes.CDLL(os.path.abspath('x.so'), mode=os.RTLD_NOW)"
        ),
    ),
    "program for another processor": (
        "wrong-architecture",
        (
            "open('x', 'wb').write(b'\\x7fELF\\x02\\x01\\x01' + bytes(9) + b'\\x02\\x00\\xb7\\x00'"
            " + bytes(200))\nos.chmod('x', 0o755); os.execv('./x', ['x'])"
        ),
    ),
    "arguments that the script refuses": (
        "arguments",
        (
            "import argparse;"
            " argparse.ArgumentParser(prog='train.py').parse_args(['--learning-rate', '1'])"
        ),
    ),
    "no valid Python": (
        "syntax",
        "open('x.py', 'w').write('for in x\\n'); sys.path.insert(0, '.'); import x",
    ),
    "a function without end": ("recursion", "def f(x): return f(x)\nf(1)"),
    "damaged archive": (
        "damaged-sample",
        "import zipfile; open('x', 'w').write('no zip'); zipfile.ZipFile('x')",
    ),
    "broken JSON": ("damaged-sample", "import json; json.loads('{')"),
    "host that does not answer": (
        "download-failed",
        (
            "import urllib.request;"
            " urllib.request.urlopen(f'http://127.0.0.1:{free_port()}/model.bin', timeout=5)"
        ),
    ),
    "name without an address": ("name-not-resolved", "socket.getaddrinfo('node-7.invalid', 80)"),
    "killed by another process": (
        "killed",
        "subprocess.run(['bash', '-c', 'sh -c \"kill -9 $$\"; true'], check=True)",
    ),
    "crash in native code": (
        "segmentation-fault",
        "import faulthandler; faulthandler.enable(); ctypes.string_at(0)",
    ),
    "abort in native code": ("aborted", "import faulthandler; faulthandler.enable(); os.abort()"),
    "instruction that is not there": (
        "illegal-instruction",
        "import faulthandler; faulthandler.enable(); os.kill(os.getpid(), signal.SIGILL)",
    ),
    "spawn without a guard": (
        "spawn-without-guard",
        (
            "open('x.py', 'w').write('import multiprocessing as"
            ' m\\nm.get_context("spawn").Process(target=print).start()\\n\')\nsubprocess.run([sys.executable,'
            " 'x.py'], check=True)"
        ),
    ),
    "function that cannot be sent": (
        "not-picklable",
        "import multiprocessing as m; m.get_context('spawn').Process(target=lambda: 1).start()",
    ),
    "an exception of its own": ("none", "raise ValueError('the dog ate shard 3')"),
    "a script that only exits": ("none", "sys.exit(3)"),
}

_LOADER = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        {item}
        return torch.zeros(1)
for _ in torch.utils.data.DataLoader(Data(), num_workers=1{options}): pass
"""
_NET = "import torch; from torch import nn; from torch.nn import functional as F\n"

WITH_TORCH: dict[str, tuple[str, str]] = {
    "tensor larger than memory": ("host-allocation-failed", "import torch; torch.empty(1 << 50)"),
    "array larger than memory": ("host-allocation-failed", "import numpy; numpy.ones(1 << 50)"),
    "a GPU that is not there": ("no-gpu", "import torch; torch.ones(1).cuda()"),
    "checkpoint on a full disk": (
        "checkpoint-not-written",
        "import torch; small_disk('d'); torch.save(torch.zeros(1 << 20), 'd/x.pt')",
    ),
    "shared memory too small": (
        "shared-memory",
        "small_disk('/dev/shm')" + _LOADER.format(item="return torch.zeros(1 << 20)", options=""),
    ),
    "loader's worker killed": (
        "loader-worker-killed",
        _LOADER.format(item="os.kill(os.getpid(), signal.SIGKILL)", options=""),
    ),
    "loader's worker crashed": (
        "loader-worker-crashed",
        _LOADER.format(item="ctypes.string_at(0)", options=""),
    ),
    "loader's worker exits": (
        "loader-worker-exited",
        _LOADER.format(item="os._exit(1)", options=""),
    ),
    "loader that stalls": (
        "loader-timeout",
        _LOADER.format(item="time.sleep(60)", options=", timeout=1"),
    ),
    "loader's worker raises": (
        "file-not-found",
        _LOADER.format(item="open('data/7.jpg')", options=""),
    ),
    "no samples": (
        "no-samples",
        _NET + "torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(0, 1)),"
        " shuffle=True)",
    ),
    "samples of different shapes": (
        "samples-differ",
        _NET
        + "next(iter(torch.utils.data.DataLoader([torch.zeros(1), torch.zeros(2)], batch_size=2)))",
    ),
    "label beyond the classes": (
        "label-out-of-range",
        _NET + "F.cross_entropy(torch.zeros(1, 3), torch.tensor([7]))",
    ),
    "token beyond the vocabulary": (
        "label-out-of-range",
        _NET + "nn.Embedding(3, 2)(torch.tensor([7]))",
    ),
    "damaged image": (
        "damaged-sample",
        "from PIL import Image; open('x.jpg', 'w').write('no image'); Image.open('x.jpg')",
    ),
    "damaged checkpoint": (
        "checkpoint-damaged",
        _NET + "torch.save(torch.zeros(9999), 'x.pt'); d = open('x.pt', 'rb').read(); open('x.pt',"
        " 'wb').write(d[:-999])\ntorch.load('x.pt')",
    ),
    "half a checkpoint": (
        "checkpoint-damaged",
        _NET + "torch.save(torch.zeros(9999), 'x.pt'); d = open('x.pt', 'rb').read(); "
        "open('x.pt', 'wb').write(d[: len(d) // 2])\ntorch.load('x.pt')",
    ),
    "checkpoint of another model": (
        "checkpoint-does-not-fit",
        _NET + "nn.Linear(2, 3).load_state_dict(nn.Linear(2, 4).state_dict())",
    ),
    "checkpoint with code": (
        "weights-only",
        _NET + "import pathlib; torch.save(pathlib.PurePosixPath('x'), 'x.pt'); torch.load('x.pt')",
    ),
    "shapes that do not fit": ("shapes-differ", _NET + "nn.Linear(2, 3)(torch.zeros(1, 4))"),
    "tensors on two devices": (
        "devices-mixed",
        _NET + "nn.Linear(2, 3)(torch.zeros(1, 2, device='meta'))",
    ),
    "types that do not fit": (
        "dtypes-mixed",
        _NET + "nn.Linear(2, 3)(torch.zeros(1, 2, dtype=torch.float64))",
    ),
    "changed in place": (
        "changed-in-place",
        _NET + "x = torch.ones(2, requires_grad=True); y = x.exp(); y += 1; y.sum().backward()",
    ),
    "backward twice": (
        "changed-in-place",
        _NET + "x = torch.ones(2, requires_grad=True).exp().sum(); x.backward(); x.backward()",
    ),
    "nothing to train": ("no-gradient", _NET + "torch.ones(1).sum().backward()"),
    "optimizer without parameters": ("no-gradient", _NET + "torch.optim.SGD([], 0.1)"),
    "divergence found by autograd": (
        "diverged",
        _NET
        + "torch.autograd.set_detect_anomaly(True)\nx = torch.zeros(2, requires_grad=True); (x /"
        " x).sum().backward()",
    ),
    "divergence stopped by the script": (
        "diverged",
        _NET
        + "loss = torch.tensor(0.0) / 0\nif not loss.isfinite(): sys.exit(f'Loss is {loss.item()},"
        " stopping training')",
    ),
    "sampling from NaN": (
        "diverged",
        _NET + "torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)",
    ),
    "compiler that is not there": (
        "compiler-missing",
        _NET + "os.environ['PATH'] = os.environ['CXX'] = '/nope'\ntorch.compile(lambda x: x.sin() +"
        " 1)(torch.ones(9))",
    ),
    "interface that is not there": (
        "network-interface",
        "os.environ['GLOO_SOCKET_IFNAME'] = 'eth77'\nranks(2, lambda rank: group())",
    ),
    "port that is taken": (
        "port-in-use",
        (
            "from torch.distributed import TCPStore\nheld = socket.socket();"
            " held.bind(('127.0.0.1', 0)); held.listen()\nTCPStore('127.0.0.1',"
            " held.getsockname()[1], 2, True)"
        ),
    ),
    "first node without an address": (
        "name-not-resolved",
        (
            "os.environ.update(MASTER_ADDR='node-7.invalid', MASTER_PORT='29500', RANK='1',"
            " WORLD_SIZE='2'); group(seconds=2)"
        ),
    ),
    "node that never comes": (
        "peers-did-not-meet",
        (
            "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(free_port()), RANK='0',"
            " WORLD_SIZE='2')\ngroup(seconds=2)"
        ),
    ),
    "no process group": (
        "group-not-made",
        "import torch, torch.distributed as dist; dist.all_reduce(torch.ones(1))",
    ),
    "no launcher": (
        "group-not-made",
        "[os.environ.pop(n, 0) for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR')]; group()",
    ),
    "collectives that differ": (
        "collectives-differ",
        (
            "import torch\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'\ndef f(rank):\n   "
            " import torch.distributed as dist; dist.set_debug_level_from_env(); group()\n   "
            " dist.all_reduce(torch.ones(1)) if rank else dist.broadcast(torch.ones(1),"
            " 0)\nranks(2, f)"
        ),
    ),
    "parameters without a part in the loss": (
        "unused-parameters",
        _NET + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n       "
        " self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)\n    def forward(self, x): return"
        " self.a(x)\ndef f(rank):\n    group(); net ="
        " nn.parallel.DistributedDataParallel(Net())\n    for _ in range(2): net(torch.ones(1,"
        " 1)).sum().backward()\nranks(2, f)",
    ),
    "models that differ": (
        "models-differ",
        _NET + "def f(rank):\n    group(); nn.parallel.DistributedDataParallel(nn.Linear(1, 1 +"
        " rank))\nranks(2, f)",
    ),
    "rank that fails while others wait": (
        "none",
        (
            "import torch\ndef f(rank):\n    dist = group(); dist.barrier()\n    if rank: raise"
            " ValueError('the dog ate shard 3')\n    dist.all_reduce(torch.ones(1))\nranks(2, f)"
        ),
    ),
    "rank out of memory while others wait": (
        "host-allocation-failed",
        (
            "import torch\ndef f(rank):\n    dist = group(); dist.barrier()\n"
            "    torch.empty(1 << 50) if rank else dist.all_reduce(torch.ones(1))\nranks(2, f)"
        ),
    ),
    "peer that is gone without a word": (
        "peer-lost",
        (
            "import torch\ndef f(rank):\n    dist = group(); dist.barrier()\n"
            "    os._exit(1) if rank else dist.all_reduce(torch.ones(1))\nranks(2, f)"
        ),
    ),
    "rank that never comes to a barrier": (
        "collective-timeout",
        (
            "import datetime\ndef f(rank):\n    dist = group()\n    if rank: time.sleep(6)\n"
            "    else: dist.monitored_barrier(timeout=datetime.timedelta(seconds=2))\nranks(2, f)"
        ),
    ),
}
