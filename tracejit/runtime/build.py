"""Machine code: from a kernel's text to the address of its function, through a memory and a disk cache.

In: `Kernel` records and `Options` (`build`), or a whole LLVM module of runtime support code (`native_module`).
Out: addresses of functions that stay loaded for the life of the process.

Kernels are compiled by Numba, support code by llvmlite; both are kept as object code and loaded by llvmlite alone, so
that a process whose code is on disk never imports Numba. A cache key is the text and everything else that machine code
depends on; never a path, an address or an id. A file of the cache is one object with some functions in it,
linked under the key of each; it is written whole, then renamed, so writers never meet half a file.

Read next: `lower/emit_llvm.py` (what is compiled), `program.py` (who calls it).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from tracejit import config
from tracejit.config import Options
from tracejit.locks import fork_safe
from tracejit.lower import emit_llvm
from tracejit.lower.kernel import Kernel

_MAGIC = b"tracejit object 1\n"
_DISK_LIMIT = 256 << 20  # bytes; the least recently used files above it are removed


@dataclass(slots=True)
class Stats:
    """What this process has built: units compiled, functions found on disk and in memory, seconds spent compiling."""

    compiles: int = 0
    disk_hits: int = 0
    memory_hits: int = 0
    seconds: float = 0.0


_stats = Stats()
_lock = fork_safe(threading.RLock(), awaited=True)  # what compiles takes locks of its own
_addresses: dict[str, int] = {}  # function name (made from its key) -> address
_engines: list[Any] = []  # keeps loaded code alive
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_engines))  # to the very end: what outlives this module may call it


def stats() -> Stats:
    """A copy of the counters."""
    with _lock:
        return replace(_stats)


def native_module(key: str, emit: Callable[[ir.Module], None], names: Sequence[str],
                  sources: Sequence[str] = ()) -> dict[str, int]:
    """Addresses of the functions `names` of the module that `emit` fills in.

    `key` names the module; it, the source file of `emit` and other `sources` must determine the code. Symbols that the
    process knows (libc) may be declared and called.
    """
    digest = _key("module", key, *map(_source, (emit.__code__.co_filename, *sources)))
    wanted = {name: f"{name}.{digest}" for name in names}
    with _lock:
        if all(n in _addresses for n in wanted.values()):
            _stats.memory_hits += 1
        elif _load_file(digest):
            _stats.disk_hits += 1
        else:
            start = time.perf_counter()
            module = ir.Module(name=digest)
            module.triple = llvm.get_process_triple()
            emit(module)
            for name, unique in wanted.items():
                function = module.globals.pop(name)
                function.name = unique
                module.globals[unique] = function
            code = _compile_module(str(module))
            _stats.compiles += 1
            _stats.seconds += time.perf_counter() - start
            _publish(list(wanted.values()), code, [digest])
        return {name: _addresses[unique] for name, unique in wanted.items()}


def build(kernels: Sequence[Kernel], options: Options) -> list[int]:
    """Addresses of the functions of `kernels`, compiling those that neither memory nor disk has, in one unit."""
    flags = f"fastmath={options.fastmath}"
    keys = [_key("kernel", k.text, flags, _lowering()) for k in kernels]
    names = [f"tracejit_{key}" for key in keys]
    with _lock:
        missing: dict[str, tuple[str, Kernel]] = {}
        for key, name, kernel in zip(keys, names, kernels, strict=True):
            if name in _addresses:
                _stats.memory_hits += 1
            elif name in missing:
                pass
            elif _load_file(key):
                _stats.disk_hits += 1
            else:
                missing[name] = (key, kernel)
        if missing:
            start = time.perf_counter()
            code = _compile_kernels({name: kernel for name, (_, kernel) in missing.items()}, options)
            seconds = time.perf_counter() - start
            _stats.compiles += 1
            _stats.seconds += seconds
            if config.debug.log:
                print(f"tracejit: compiled {len(missing)} kernels in {seconds * 1e3:.1f} ms", file=sys.stderr)
            _publish(list(missing), code, [key for key, _ in missing.values()])
        return [_addresses[name] for name in names]


# ---- keys


@cache
def _source(path: str) -> str:
    """A digest of a source file: code made by another version of it is other code."""
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


@cache
def _lowering() -> str:
    """A digest of all that turns a kernel into code."""
    folder = os.path.dirname(emit_llvm.__file__)
    return "".join(_source(os.path.join(folder, f)) for f in sorted(os.listdir(folder)) if f.endswith(".py"))


@cache
def _machine() -> str:
    """Everything machine code depends on besides its source: target, and versions of what compiles it."""
    _initialize()
    versions = [llvmlite.__version__, np.__version__, ".".join(map(str, llvm.llvm_version_info)), _numba_version()]
    return "\n".join([llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(),
                      *versions])


def _numba_version() -> str:
    """Numba's version without importing Numba ("none" where it is not installed)."""
    spec = find_spec("numba")
    if spec is None or spec.origin is None:
        return "none"
    return _source(os.path.join(os.path.dirname(spec.origin), "_version.py"))


def _key(*parts: str) -> str:
    whole = "\0".join([_MAGIC.decode(), *parts, _machine()])
    return hashlib.sha256(whole.encode()).hexdigest()[:40]


# ---- compiling and loading


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _target_machine(level: int = 2) -> Any:
    _initialize()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=level, reloc="pic",
        codemodel="jitdefault", jit=True)


@cache
def _generator() -> Any:
    """Numba's code generator for this CPU (it has private names only: all of them are used here and just below)."""
    from numba.core.codegen import JITCPUCodegen  # heavy: only where something is compiled

    return JITCPUCodegen("tracejit")


def _compile_kernels(kernels: dict[str, Kernel], options: Options) -> bytes:
    """Object code with one function per name, by Numba's code generator.

    Kernels come as the vector code that they should become, so LLVM's optimisation passes, which would take most of
    the time, are left out: the code generator alone gives code as fast.
    """
    generator = _generator()
    width = emit_llvm.vector_bytes(llvm.get_host_cpu_features().flatten())
    module = generator._create_empty_module("tracejit")
    for name, kernel in kernels.items():
        emit_llvm.emit_kernel(module, name, kernel, width, options.fastmath)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return generator._tm.emit_object(parsed)


def _compile_module(text: str) -> bytes:
    """Optimised object code of an LLVM module, by llvmlite alone."""
    module = llvm.parse_assembly(text)
    module.verify()
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return machine.emit_object(module)


def _load(names: Sequence[str], code: bytes) -> None:
    """Put object code into the process and note the addresses of its functions. First loaded wins."""
    _initialize()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    for name in names:
        address = engine.get_function_address(name)
        if not address:
            raise OSError(f"object code lacks the function {name}")
        _addresses.setdefault(name, address)
    _engines.append(engine)


# ---- the disk cache


def _directory() -> str:
    """The cache's directory, made if missing; "" for no cache. Code is only taken from where no one else can write."""
    directory = config.cache_directory()
    if not directory:
        return ""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        stat = os.stat(directory)
    except OSError as error:
        _warn_once(f"tracejit: no machine code is kept between processes: {error}")
        return ""
    if hasattr(os, "getuid") and (stat.st_uid != os.getuid() or stat.st_mode & 0o022):
        _warn_once(f"tracejit: no machine code is kept between processes: {directory} is not private")
        return ""
    return directory


def _load_file(key: str) -> bool:
    """Load the object stored under `key`. A damaged file is removed, and is as good as missing."""
    directory = _directory()
    if not directory:
        return False
    path = os.path.join(directory, key)
    try:
        with open(path, "rb") as f:
            data = f.read()
        head = len(_MAGIC) + 32
        if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC): head]:
            raise ValueError("damaged")
        end = data.index(b"\n", head)
        _load(json.loads(data[head:end]), data[end + 1:])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RuntimeError):
        with contextlib.suppress(OSError):
            os.unlink(path)
        return False
    with contextlib.suppress(OSError):
        os.utime(path)  # most recently used
    return True


def _publish(names: Sequence[str], code: bytes, keys: Sequence[str]) -> None:
    """Load freshly made code, and store it for other processes under each of `keys`."""
    _load(names, code)
    directory = _directory()
    if not directory:
        return
    body = json.dumps(list(names)).encode() + b"\n" + code
    try:  # a cache that cannot be written is no reason to fail
        handle, temporary = tempfile.mkstemp(dir=directory, prefix="new-")
        with os.fdopen(handle, "wb") as f:
            f.write(_MAGIC + hashlib.sha256(body).digest() + body)
        for key in keys[1:]:
            _link(temporary, os.path.join(directory, key))
        os.replace(temporary, os.path.join(directory, keys[0]))
        if _stats.compiles % 16 == 1:
            _trim(directory)
    except OSError as error:
        _warn_once(f"tracejit: machine code is not kept in {directory}: {error}")


def _link(source: str, path: str) -> None:
    """Make `path` another name of `source`, replacing what was there at once."""
    temporary = f"{source}-{os.path.basename(path)[:12]}"
    try:
        os.link(source, temporary)
    except OSError:  # no hard links here
        with open(source, "rb") as f, open(temporary, "xb") as g:
            g.write(f.read())
    os.replace(temporary, path)


def _trim(directory: str) -> None:
    """Remove the least recently used files above the limit, and what crashed writers left."""
    entries = []
    now = time.time()
    for entry in os.scandir(directory):
        with contextlib.suppress(OSError):
            stat = entry.stat(follow_symlinks=False)
            if entry.name.startswith("new-") and now - stat.st_mtime > 3600:
                os.unlink(entry.path)
            elif not entry.name.startswith("new-"):
                entries.append((stat.st_mtime, stat.st_size // stat.st_nlink, entry.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= _DISK_LIMIT:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


@cache
def _warn_once(message: str) -> None:
    print(message, file=sys.stderr)
