"""The code cache: what is compiled when, what a second process does, and what damage and strangers cannot do."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kernel_reference import Sketch, run_native
from llvmlite import ir

from tracejit import config
from tracejit.config import Options
from tracejit.lower.kernel import Kernel
from tracejit.runtime import build

PACKAGE = Path(__file__).resolve().parent.parent


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """An empty cache directory, and nothing in memory."""
    saved, directory = config.debug.cache, tmp_path / "cache"
    config.debug.cache = str(directory)
    forget()
    yield directory
    config.debug.cache = saved


def forget() -> None:
    build._addresses.clear()


def sketch(number: float = 1.0) -> Sketch:
    s = Sketch((100,), 1)
    x = s.read("float32", (1,))
    s.point(s.write(x * number + 2.0, (1,)))
    return s


def kernel(number: float = 1.0) -> Kernel:
    return sketch(number).launch().kernel


def counts() -> tuple[int, int, int]:
    found = build.stats()
    return found.compiles, found.disk_hits, found.memory_hits


def since(before: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(counts(), before, strict=True))


def files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.iterdir())


def test_memory_then_disk_then_compiler(cache: Path) -> None:
    before = counts()
    first = build.build([kernel()], Options())
    assert since(before) == (1, 0, 0)
    assert build.build([kernel()], Options()) == first
    assert since(before) == (1, 0, 1)
    forget()
    build.build([kernel()], Options())
    assert since(before) == (1, 1, 1)
    assert build.stats().seconds > 0
    assert cache.stat().st_mode & 0o777 == 0o700


def test_all_kernels_of_a_program_are_one_unit(cache: Path) -> None:
    before = counts()
    kernels = [kernel(1.0), kernel(2.0), kernel(1.0), kernel(3.0)]
    addresses = build.build(kernels, Options())
    assert since(before)[0] == 1
    assert addresses[0] == addresses[2] and len(set(addresses)) == 3
    assert len(files(cache)) == 3 and len({f.stat().st_ino for f in files(cache)}) == 1
    forget()
    build.build([kernels[3]], Options())  # each is found by itself
    assert since(before)[:2] == (1, 1)
    build.build([kernel(4.0), kernels[0]], Options())
    assert since(before)[0] == 2
    for k in (1.0, 2.0, 3.0, 4.0):
        s = sketch(k)
        run_native(s.launch(), s.buffers)
        np.testing.assert_allclose(s.buffers[1], s.buffers[0] * np.float32(k) + 2, rtol=1e-6)


def test_keys_hold_text_options_target_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    build._key("a")
    keys = [build._key("a"), build._key("b"), build._key("a", "b")]
    assert len(set(keys)) == 3 and keys[0] == build._key("a")
    for part in (sys.prefix, os.sep + "lib", str(PACKAGE)):
        assert part not in build._machine()
    machine = build._machine()
    monkeypatch.setattr(build, "_machine", lambda: machine + "another CPU")
    assert build._key("a") != keys[0]


def test_fastmath_is_another_code(cache: Path) -> None:
    plain, fast = build.build([kernel()], Options()), build.build([kernel()], Options(fastmath=True))
    assert plain != fast and len(files(cache)) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text"])
def test_damaged_files_are_rebuilt(cache: Path, damage: str) -> None:
    build.build([kernel()], Options())
    (path,) = files(cache)
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": data[:-100],
            "flipped": data[:200] + bytes([data[200] ^ 1]) + data[201:],
            "text": b"hello",
        }[damage]
    )
    forget()
    before = counts()
    s = sketch()
    run_native(s.launch(), s.buffers)
    assert since(before)[:2] == (1, 0)
    np.testing.assert_allclose(s.buffers[1], s.buffers[0] + 2, rtol=1e-6)
    forget()
    build.build([kernel()], Options())
    assert since(before)[:2] == (1, 1)


def test_off_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.debug, "cache", "off")
    monkeypatch.chdir(tmp_path)
    forget()
    before = counts()
    build.build([kernel()], Options())
    forget()
    build.build([kernel()], Options())
    assert since(before)[:2] == (2, 0) and not files(tmp_path)


def test_the_default_is_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.debug, "cache", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert config.cache_directory() == "/somewhere/tracejit"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert config.cache_directory() == "/home/somebody/.cache/tracejit"


def test_code_is_not_taken_from_where_others_can_write(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build.build([kernel()], Options())
    cache.chmod(0o777)
    forget()
    before = counts()
    build.build([kernel()], Options())
    assert since(before)[:2] == (1, 0)
    assert "not private" in capfd.readouterr().err


def test_a_directory_that_cannot_be_made_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config.debug, "cache", str(tmp_path / "file" / "cache"))
    forget()
    build.build([kernel()], Options())
    assert "no machine code is kept" in capfd.readouterr().err


def test_the_least_recently_used_files_go_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        build.build([kernel(10.0 + n)], Options())
    before = files(cache)
    for age, path in enumerate(before):
        os.utime(path, (1e9 - age, 1e9 - age))
    (cache / "new-left-behind").write_text("x")
    os.utime(cache / "new-left-behind", (1e9, 1e9))
    monkeypatch.setattr(build, "_DISK_LIMIT", 2 * before[0].stat().st_size + 100)
    build._trim(str(cache))
    assert files(cache) == before[:2]


def test_two_threads_compile_once(cache: Path) -> None:
    before, found = counts(), []
    k = kernel(77.0)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        found.append(build.build([k], Options())[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert since(before) == (1, 0, 3) and len(set(found)) == 1


CHILD = """
    import sys, numpy as np
    sys.path[:0] = {paths!r}
    from kernel_reference import Sketch, run_native
    from tracejit.runtime import build
    s = Sketch((100,), 1)
    x = s.read("float32", (1,))
    s.point(s.write(x * {number} + 2.0, (1,)))
    run_native(s.launch(), s.buffers)
    assert np.allclose(s.buffers[1], s.buffers[0] * {number} + 2)
    print(build.stats().compiles, "numba" in sys.modules)
"""


def run_child(directory: Path, number: float) -> subprocess.Popen[str]:
    code = textwrap.dedent(CHILD).format(paths=[str(PACKAGE), str(PACKAGE / "tests")], number=number)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TRACEJIT_CACHE": str(directory)},
    )


def test_a_second_process_compiles_nothing_and_leaves_numba_alone(tmp_path: Path) -> None:
    # the support code of the runtime counts as well, hence "more than nothing" for the first
    first, _ = run_child(tmp_path / "c", 5.0).communicate()
    assert first.split()[1] == "True" and int(first.split()[0]) >= 1
    second, _ = run_child(tmp_path / "c", 5.0).communicate()
    assert second.split() == ["0", "False"]


def test_processes_may_write_at_once(tmp_path: Path) -> None:
    children = [run_child(tmp_path / "c", 6.0) for _ in range(4)]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert not [f for f in files(tmp_path / "c") if f.name.startswith("new-")]
    again = run_child(tmp_path / "c", 6.0)
    assert again.communicate()[0].split() == ["0", "False"]


def _build_in_child(number: float) -> int:
    s = sketch(number)
    run_native(s.launch(), s.buffers)
    return int(np.allclose(s.buffers[1], s.buffers[0] * number + 2))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_forked_child_compiles_even_if_the_lock_was_held(cache: Path) -> None:
    with build._lock:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if _build_in_child(8.0) else 1
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_numba_keeps_its_own_settings(cache: Path) -> None:
    from numba.core import config as numba_config

    before = numba_config.OPT
    build.build([kernel(9.0)], Options())
    assert numba_config.OPT == before and int(before) == 3


def test_the_private_interface_of_numba_gives_object_code() -> None:
    generator = build._generator()
    module = generator._create_empty_module("unit")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "nothing")
    ir.IRBuilder(function.append_basic_block()).ret_void()
    code = generator._tm.emit_object(build.llvm.parse_assembly(str(module)))
    assert b"nothing" in code
    assert code[:4] == b"\x7fELF" or sys.platform != "linux"


def test_native_modules(cache: Path) -> None:
    def emit(module: ir.Module) -> None:
        i64 = ir.IntType(64)
        helper = ir.Function(module, ir.FunctionType(i64, [i64]), "helper")
        outer = ir.Function(module, ir.FunctionType(i64, [i64]), "outer")
        pid = ir.Function(module, ir.FunctionType(ir.IntType(32), []), "getpid")
        b = ir.IRBuilder(outer.append_basic_block())
        b.ret(b.add(b.call(helper, [outer.args[0]]), b.sext(b.call(pid, []), i64)))
        b = ir.IRBuilder(helper.append_basic_block())
        b.ret(b.mul(helper.args[0], i64(3)))

    before = counts()
    found = build.native_module("test", emit, ["outer", "helper"])
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert call(found["outer"])(5) == 15 + os.getpid() and call(found["helper"])(7) == 21
    assert build.native_module("test", emit, ["outer"])["outer"] == found["outer"]
    forget()
    assert call(build.native_module("test", emit, ["outer", "helper"])["outer"])(1) == 3 + os.getpid()
    assert since(before) == (1, 1, 1)
    assert build.native_module("another", emit, ["outer"])["outer"] != found["outer"]


def test_stats_are_a_copy() -> None:
    build.stats().compiles = -5
    assert build.stats().compiles >= 0


def test_another_emitter_makes_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that turns kernels into code counts, so that no version runs the code of another."""
    for source in Path(build.emit_llvm.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build.emit_llvm, "__file__", str(tmp_path / "emit_llvm.py"))
    monkeypatch.setattr(build, "_source", build._source.__wrapped__)
    found = {build._lowering.__wrapped__()}
    for name in ("emit_llvm.py", "emit_nest_llvm.py", "emit_scalar_llvm.py", "rare.py", "kernel.py"):
        with open(tmp_path / name, "a") as f:
            f.write("# changed\n")
        found.add(build._lowering.__wrapped__())
    assert len(found) == 6
