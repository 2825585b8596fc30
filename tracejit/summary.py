"""`tj.summary`: numbers, histograms, images, text and graphs of a training run, in files that TensorBoard shows.

In: values, with a name and the number of a step. Out: event files, written by TensorBoard's own writer (the extra
`train` has it; TensorFlow is not needed). A writer becomes the default of its thread in a `with`; without one the
functions do nothing. Inside a compiled function they are effects: they happen at each call, in program order, with the
writer and the step of that call.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tracejit.errors import user_line
from tracejit.function import Function, Method, function
from tracejit.ir import Graph, Node, Type, subgraphs
from tracejit.ops.core import as_tensor
from tracejit.ops.effects import Template, py_function
from tracejit.tensor import Tensor, recording, state
from tracejit.variable import Variable

__all__ = ["SummaryWriter", "create_file_writer", "flush", "graph", "histogram", "image", "scalar", "text"]


class _Board(NamedTuple):
    """What we need of TensorBoard, loaded when it is first needed."""

    writer: Any
    event: Any
    graph: Any
    summary: Any
    scalar: Any
    histogram: Any
    text: Any
    image: Any  # metadata of images
    tensor: Any  # arrays as messages


@cache
def _board() -> _Board:
    try:
        from tensorboard.compat.proto import event_pb2, graph_pb2, summary_pb2
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.plugins.image import metadata
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise ImportError("tj.summary needs TensorBoard: pip install 'tracejit[train]'") from error
    return _Board(EventFileWriter, event_pb2, graph_pb2, summary_pb2, scalar_pb, histogram_pb, text_pb, metadata,
                  tensor_util)


# -- writers -----------------------------------------------------------------------------------------------------------
class SummaryWriter:
    """Writes to one event file. Use it in a `with` as the default: `with writer.as_default(step=k): ...`."""

    def __init__(self, logdir: str | os.PathLike[str], flush_seconds: float = 30.0):
        self.logdir = os.fspath(logdir)
        self._events = _board().writer(self.logdir, flush_secs=flush_seconds)
        self._end = weakref.finalize(self, self._events.close)  # at the latest when Python exits

    @contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """Inside, summaries of this thread go here. step: the step of those that give none: a number, or a Variable
        that is read each time."""
        _defaults.stack.append(_Default(self, step))
        try:
            yield self
        finally:
            _defaults.stack.pop()

    def flush(self) -> None:
        """Have everything written to the file."""
        self._check()
        self._events.flush()

    def close(self) -> None:
        """Write everything and end; also at the end of `with writer:`."""
        self._end()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if not self._end.alive:
            raise RuntimeError(f"the summary writer for {self.logdir} is closed")

    def _add(self, step: int, **event: Any) -> None:
        self._check()
        self._events.add_event(_board().event.Event(wall_time=time.time(), step=step, **event))

    def __repr__(self) -> str:
        return f"<tj.summary.SummaryWriter {self.logdir!r}{'' if self._end.alive else ', closed'}>"


def create_file_writer(logdir: str | os.PathLike[str], flush_seconds: float = 30.0) -> SummaryWriter:
    """A writer to a new event file in that folder. It writes at least every `flush_seconds`."""
    return SummaryWriter(logdir, flush_seconds)


class _Default(NamedTuple):
    writer: SummaryWriter
    step: Any


class _Defaults(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Default] = []


_defaults = _Defaults()


def flush() -> None:
    """Have the default writer write everything to its file."""
    if _defaults.stack:
        _defaults.stack[-1].writer.flush()


# -- when ----------------------------------------------------------------------------------------------------------
def _write(how: Callable[..., Any], name: str, values: Sequence[Any], step: Any) -> None:
    """Give `how(name, *arrays)`, a message, to the default writer: now, or at each call of a compiled function."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"a summary's name is text, got {name!r} (at {user_line()})")
    usual = _defaults.stack[-1].step if step is None and _defaults.stack else None
    seen = usual if isinstance(usual, Variable) else None  # read at this point of the program
    given = step if seen is None else seen

    def run(given: Any, *tensors: Tensor) -> None:
        if not _defaults.stack:
            return
        writer, default = _defaults.stack[-1]
        when = given if step is not None or (seen is not None and default is seen) else default
        if when is None:
            raise ValueError(f"summary {name!r} has no step: pass step=, or writer.as_default(step=...)")
        writer._add(int(when), summary=how(name, *[t.numpy() for t in tensors]))

    tensors = [as_tensor(v) for v in values]
    if state.trace is None:
        with recording(None):
            run(given, *tensors)
    else:
        py_function(run, [given, *tensors])


def scalar(name: str, data: Any, step: Any = None) -> None:
    """A number, for a curve over the steps. data: of one element."""
    if as_tensor(data).size != 1:
        raise ValueError(f"summary.scalar({name!r}): expected one number, got shape {as_tensor(data).shape} "
                         f"(at {user_line()})")
    _write(lambda tag, x: _board().scalar(tag, np.float32(x.reshape(()))), name, [data], step)


def histogram(name: str, data: Any, step: Any = None, buckets: int | None = None) -> None:
    """How the elements of `data` are distributed, in `buckets` (30) intervals of equal width."""
    _write(lambda tag, x: _board().histogram(tag, x.astype(np.float64), buckets), name, [data], step)


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3) -> None:
    """Images of shape (count, height, width, channels), of which the first `max_outputs` are kept.

    Floats from 0 to 1, or uint8; 1 channel, 3, or 4 with transparency.
    """
    x = as_tensor(data)
    if x.ndim != 4 or x.shape[3] not in (1, 3, 4):
        raise ValueError(f"summary.image({name!r}): expected shape (count, height, width, 1, 3 or 4), got {x.shape} "
                         f"(at {user_line()})")
    if x.dtype.kind != "f" and x.dtype != np.uint8:
        raise TypeError(f"summary.image({name!r}): expected floats or uint8, got {x.dtype} (at {user_line()})")
    _write(lambda tag, x: _image_pb(tag, x[:max_outputs]), name, [x], step)


def _image_pb(tag: str, images: np.ndarray) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("summary.image needs Pillow: pip install 'tracejit[train]'") from error
    if images.dtype.kind == "f":
        images = (np.nan_to_num(images.clip(0, 1)) * 255 + 0.5).astype(np.uint8)
    height, width = images.shape[1:3]
    encoded = [str(width).encode(), str(height).encode()]
    for pixels in images:
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)).save(file, "PNG")
        encoded.append(file.getvalue())
    b = _board()
    return b.summary.Summary(value=[b.summary.Summary.Value(
        tag=tag, metadata=b.image.create_summary_metadata(None, None),
        tensor=b.tensor.make_tensor_proto(np.array(encoded, object)))])


def text(name: str, data: str, step: Any = None) -> None:
    """A text, in Markdown. Traced values in it (f-strings) are filled in at each call."""
    if state.trace is None:
        _write(lambda tag: _board().text(tag, str(data)), name, [], step)
        return
    template = Template()
    form = template.text(str(data))
    kinds = template.kinds

    def filled(tag: str, *arrays: np.ndarray) -> Any:
        shown = [a.item() if k == "number" else a if k == "array" else Tensor(a) for k, a in zip(kinds, arrays)]
        return _board().text(tag, form.format(*shown))

    _write(filled, name, template.tensors, step)


# -- graphs ------------------------------------------------------------------------------------------------------------
def graph(f: Any, *args: Any, optimized: bool = False, **kwargs: Any) -> None:
    """The graph of a call of a function, for TensorBoard's tab of graphs: its ops, grouped by the lines they come from.

    optimized: as it is after all passes. The function is traced, not run.
    """
    if not _defaults.stack:
        return
    decorated = f if isinstance(f, (Function, Method)) else function(f)
    if optimized:
        found = list(decorated.lower(*args, **kwargs).stages.values())[-1]
    else:
        found, _ = decorated.recorded(*args, **kwargs)
    b = _board()
    message = b.graph.GraphDef()
    message.versions.producer = 22  # the version of the format
    _describe(found, "", message, {})
    _defaults.stack[-1].writer._add(0, graph_def=message.SerializeToString())


def _tidy(name: str) -> str:
    """A name with the signs that TensorBoard allows."""
    return re.sub(r"[^A-Za-z0-9_.\-]+", "_", name).strip("_-") or "graph"


_DTYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8, "int64": 9,
           "bool": 10, "uint16": 17, "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23}


def _describe(g: Graph, scope: str, message: Any, names: dict[Node, str]) -> None:
    """Add the nodes of a graph, and of the graphs inside them, under `scope` ("a/b/", or nothing)."""
    for k, node in enumerate(g.inputs):
        names[node] = f"{scope}inputs/{_tidy(node.name or f'x{k}')}_{k}"
        _node(message, node, names[node], [])
    for k, node in enumerate(g.nodes):
        where = _tidy(os.path.basename(node.where)) + "/" if node.where else ""
        names[node] = f"{scope}{where}{node.op.name}_{k}"
        _node(message, node, names[node], [names[i] for i in node.inputs])
        for m, inner in enumerate(subgraphs(node)):
            _describe(inner, f"{names[node]}_{m}_{_tidy(inner.name)}/", message, names)


def _node(message: Any, node: Node, name: str, inputs: Sequence[str]) -> None:
    made = message.node.add(name=name, op=node.op.name, input=inputs)
    types = node.type if isinstance(node.type, tuple) else (node.type,)
    for t in types:
        shape = made.attr["_output_shapes"].list.shape.add()
        for n in t.shape:
            shape.dim.add(size=n if isinstance(n, int) else -1)
    if isinstance(node.type, Type):
        made.attr["dtype"].type = _DTYPES[node.type.dtype.name]
    for key, value in node.attrs.items():
        parts = value if isinstance(value, tuple) else (value,)
        if all(isinstance(v, (bool, int, float, str, tuple)) for v in parts):
            made.attr[key].s = repr(value)[:200].encode()
