"""Python source -> Python source in which control flow goes through `operators.py`, which decides at run time.

In: the syntax tree of a function. Out: a code object with the same parameters, closure variables, lines and columns.

    if p: A                      def body(): nonlocal ...; A
    else: B                      def orelse(): nonlocal ...; B
                                 ag__.if_(p, body, orelse, ...)

Branches and bodies become functions inside the function, sharing its variables as closure cells, so plain Python
values keep plain Python meaning. A `return`, `break` or `continue` in them becomes a result (an outcome); then the rest
of the block becomes a function too, which runs, or is traced, where the branch did not leave. `ag__` reaches the code
as one more closure variable. Generators, coroutines, class bodies, and functions that look at their own frame
(`locals()`, `eval`) stay as they are.

Read next: `operators.py`.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

RUNTIME = "ag__"
PREFIX = "ag__"  # of every name made here
_FRAME = frozenset(("locals", "vars", "dir", "eval", "exec"))  # calls that see the frame they stand in
_UNTOUCHED = _FRAME | {"super", "globals", "issubclass", "hasattr", "id", "getattr", "setattr"}
_REDUCERS = frozenset(("sum", "any", "all", "min", "max", "len"))
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTION_FLAGS = 0x0100_0000 | 0x0040_0000 | 0x0080_0000  # `from __future__ import annotations` and the like
# Methods that change a container in place.
_MUTATORS = frozenset(
    (
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "add",
        "discard",
        "update",
        "setdefault",
        "appendleft",
        "popleft",
        "popitem",
        "sort",
        "reverse",
    )
)


def rewrite(node: ast.FunctionDef | ast.Lambda, original: types.CodeType) -> types.CodeType:
    """The code of a function after the rewriting; its free variables are those of `original`, and `ag__`."""
    holder: ast.stmt
    class_name = _enclosing_class(original.co_qualname)
    if isinstance(node, ast.Lambda):
        new = _Rewriter(_Scope(node), class_name).lambda_(node)
        holder = ast.Expr(new)
    else:
        node.decorator_list = []
        node.returns = None
        for a in _parameters(node.args):
            a.annotation = None
        holder = _Rewriter(_Scope(node), class_name).function(node)
    defaults = holder.value.args if isinstance(holder, ast.Expr) else holder.args  # type: ignore[attr-defined]
    defaults.defaults = [ast.Constant(None) for _ in defaults.defaults]
    defaults.kw_defaults = [None if d is None else ast.Constant(None) for d in defaults.kw_defaults]
    body: list[ast.stmt] = [holder]
    if class_name:  # private names (`self.__x`) are spelled by the class they stand in
        body = [_with_type_params(ast.ClassDef(class_name, [], [], body, []))]
    free = sorted({*original.co_freevars, RUNTIME})
    start: ast.stmt = ast.Assign([ast.Name(n, ast.Store()) for n in free], ast.Constant(None))
    bound = {class_name or original.co_name} - set(free) - {"<lambda>"}  # a global of that name stays one
    declared: list[ast.stmt] = [ast.Global(sorted(bound))] if bound else []
    factory = _function_def("ag__factory", [], [*declared, start, *body])
    module = ast.Module([factory], [])
    ast.copy_location(factory, node)
    ast.fix_missing_locations(module)
    flags = original.co_flags & _FUNCTION_FLAGS
    code = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    path = ["ag__factory", *([class_name] if class_name else []), original.co_name]
    for name in path:
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return _renamed(code, code.co_qualname, original.co_qualname, original.co_name)


def _with_type_params(node: Any) -> Any:
    """Python 3.12 has one more field."""
    if "type_params" in node._fields:
        node.type_params = []
    return node


def _renamed(code: types.CodeType, old: str, new: str, name: str) -> types.CodeType:
    """Qualified names as in the original; what was made here goes by the name of the function it belongs to."""
    made = code.co_name.startswith(PREFIX)
    name = name if made else code.co_name
    qualname = new if made else new + code.co_qualname.removeprefix(old)
    consts = tuple(
        _renamed(c, code.co_qualname, qualname, name) if isinstance(c, types.CodeType) else c for c in code.co_consts
    )
    return code.replace(co_name=name, co_qualname=qualname, co_consts=consts)


def _enclosing_class(qualname: str) -> str:
    parts = qualname.split(".")
    for k in range(len(parts) - 2, -1, -1):
        if parts[k] != "<locals>" and parts[k + 1] != "<locals>":
            return parts[k]
    return ""


def _function_def(name: str, args: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    arguments = ast.arguments([], [ast.arg(a) for a in args], None, [], [], None, [])
    return _with_type_params(ast.FunctionDef(name, arguments, body, []))  # type: ignore[no-any-return]


def _parameters(args: ast.arguments) -> list[ast.arg]:
    more = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *more]


# -- what a piece of code does -----------------------------------------------------------------------------------------
def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes that run in the same frame as `nodes` (comprehensions count: they may assign with :=)."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, _SCOPES):
            if isinstance(node, ast.Lambda):
                stack += [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
            elif not isinstance(node, ast.ClassDef):
                stack += [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]
            continue
        stack += ast.iter_child_nodes(node)


def assigned(nodes: Iterable[ast.AST]) -> list[str]:
    """Names that `nodes` bind or unbind in their frame, in order of the alphabet."""
    found: set[str] = set()
    targets = set()  # of comprehensions: their own scope
    every = list(_own(nodes))
    for node in every:
        if isinstance(node, _COMPREHENSIONS):
            targets |= {id(n) for g in node.generators for n in ast.walk(g.target)}
    for node in every:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in targets:
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return sorted(found)


def _path(node: ast.expr) -> tuple[str, ...] | None:
    """`self.a.b` as ("self", "a", "b")."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None


def changed_places(nodes: Iterable[ast.AST]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Attributes that `nodes` assign, and containers that they may change in place."""
    attributes: set[tuple[str, ...]] = set()
    containers: set[tuple[str, ...]] = set()
    for node in _own(nodes):
        target = None
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and (path := _path(node)):
            attributes.add(path)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
            while isinstance(target, ast.Subscript):
                target = target.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            target = node.func.value
        elif isinstance(node, ast.AugAssign):
            target = node.target
        if target is not None and (path := _path(target)):
            containers.add(path)
    return sorted(attributes), sorted(containers)


def jumps(nodes: Iterable[ast.stmt], in_loop: bool = False) -> set[str]:
    """Which of return, break, continue leave `nodes` (a break inside an inner loop does not)."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Return):
            found.add("return")
        elif isinstance(node, ast.Break | ast.Continue):
            if not in_loop:
                found.add("break" if isinstance(node, ast.Break) else "continue")
        elif isinstance(node, ast.For | ast.While):
            found |= jumps(node.body, True) | jumps(node.orelse, in_loop)
        elif not isinstance(node, _SCOPES):
            for block in _blocks(node):
                found |= jumps(block, in_loop)
    return found


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """The statement lists inside a compound statement."""
    found = [
        getattr(node, name) for name in ("body", "orelse", "finalbody") if isinstance(getattr(node, name, 0), list)
    ]
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        found.append(part.body)
    return found


def _leaves_conditionally(node: ast.stmt) -> bool:
    """Whether a `with`, `try` or `match` holds an if or a loop that a jump may leave."""
    for block in _blocks(node):
        for inner in block:
            if isinstance(inner, ast.If | ast.For | ast.While) or (isinstance(inner, ast.Match) and _as_if(inner)):
                if jumps([inner]):
                    return True
            elif not isinstance(inner, _SCOPES) and _leaves_conditionally(inner):
                return True
    return False


def _as_if(node: ast.Match) -> list[ast.stmt] | None:
    """A match whose patterns are plain values (`case 0 | 1 if p:`) as an if statement; None if there are others."""
    subject = f"{PREFIX}subject_{node.lineno}_{node.col_offset}"

    def seen() -> ast.expr:
        return ast.Name(subject, ast.Load())

    def test(pattern: ast.pattern) -> ast.expr | None:
        found: ast.expr | None = None
        if isinstance(pattern, ast.MatchValue):
            found = ast.Compare(seen(), [ast.Eq()], [pattern.value])
        elif isinstance(pattern, ast.MatchSingleton):
            found = ast.Compare(seen(), [ast.Is()], [ast.Constant(pattern.value)])
        elif isinstance(pattern, ast.MatchOr):
            either = [t for t in map(test, pattern.patterns) if t is not None]
            found = ast.BoolOp(ast.Or(), either) if len(either) == len(pattern.patterns) else None
        return found and ast.copy_location(found, pattern)

    made: list[ast.stmt] = []
    for case in reversed(node.cases):
        pattern = case.pattern
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and not (pattern.name and case.guard):
            found, body = case.guard, case.body
            if pattern.name:
                take = ast.Assign([ast.Name(pattern.name, ast.Store())], seen())
                body = [ast.copy_location(take, pattern), *body]
        else:
            found, body = test(pattern), case.body
            if found is None:
                return None
            if case.guard is not None:
                found = ast.copy_location(ast.BoolOp(ast.And(), [found, case.guard]), pattern)
        made = [ast.copy_location(ast.If(found, body, made), pattern)] if found is not None else body
    value = ast.Call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), "subject", ast.Load()), [node.subject], [])
    first: ast.stmt = ast.copy_location(ast.Assign([ast.Name(subject, ast.Store())], value), node.subject)
    return [ast.fix_missing_locations(s) for s in (first, *made)]


def _always_leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether a block cannot run to its end."""
    last = block[-1] if block else None
    if isinstance(last, ast.If):
        return _always_leaves(last.body) and _always_leaves(last.orelse)
    return isinstance(last, ast.Return | ast.Raise | ast.Break | ast.Continue)


def _looks_at_frame(node: ast.FunctionDef | ast.Lambda) -> bool:
    body = node.body if isinstance(node.body, list) else [node.body]
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in _FRAME for n in _own(body))


def _is_generator(node: ast.FunctionDef | ast.Lambda) -> bool:
    body = node.body if isinstance(node.body, list) else [node.body]
    return any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in _own(body))


def _walrus(node: ast.AST) -> bool:
    return any(isinstance(n, ast.NamedExpr) for n in _own([node]))


def _nested(node: Any) -> Any:
    """An if, or a conditional expression, whose later operands assign with :=, as nested ones: where the assignment has
    run, what follows may use it."""
    test = node.test
    if not isinstance(test, ast.BoolOp) or not any(map(_walrus, test.values[1:])):
        return node
    rest = test.values[1:]
    inner = copy.copy(node)
    inner.test = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(test.op, rest), rest[0])
    outer = copy.copy(node)
    outer.test = test.values[0]
    held = [inner] if isinstance(node, ast.If) else inner
    if isinstance(test.op, ast.And):
        outer.body, outer.orelse = held, copy.deepcopy(node.orelse)
    else:
        outer.body, outer.orelse = copy.deepcopy(node.body), held
    return _nested(outer)


# -- the rewriting -----------------------------------------------------------------------------------------------------
@dataclass
class _Scope:
    """One function of the user's."""

    node: ast.FunctionDef | ast.Lambda
    names: set[str] = field(default_factory=set)  # bound here
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    in_body: bool = False  # inside a function made here
    shared: set[str] = field(default_factory=set)  # names that functions made here assign
    set_by: set[str] = field(default_factory=set)  # names that := assigns in operands that may not run

    def __post_init__(self) -> None:
        body = self.node.body if isinstance(self.node.body, list) else [self.node.body]
        for n in _own(body):
            if isinstance(n, ast.Global):
                self.globals |= set(n.names)
            elif isinstance(n, ast.Nonlocal):
                self.nonlocals |= set(n.names)
        self.parameters = [a.arg for a in _parameters(self.node.args)]

    @property
    def first(self) -> str:
        args = [*self.node.args.posonlyargs, *self.node.args.args]
        return args[0].arg if args else ""


class _Rewriter(ast.NodeTransformer):
    """Rewrites the body of one function; nested functions get a rewriter of their own."""

    def __init__(self, scope: _Scope, class_name: str = ""):
        self.scope = scope
        self.class_name = class_name  # the class that private names belong to
        self.in_lambda = isinstance(scope.node, ast.Lambda)
        self.apart = False  # in an operand that may not run: a lambda stands for it

    def _spelled(self, name: str) -> str:
        """A name as the compiler spells it: private ones carry the class."""
        private = self.class_name and name.startswith("__") and not name.endswith("__")
        return f"_{self.class_name.lstrip('_')}{name}" if private else name

    # -- functions
    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with a rewritten body. Decorators and defaults belong to the scope around it."""
        if _is_generator(node) or _looks_at_frame(node):
            return node
        scope = self.scope
        body = list(node.body)
        docstring = []
        if (
            isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            docstring = [body.pop(0)]
        new = self.block(body)
        head: list[ast.stmt] = []
        if scope.globals:
            head.append(ast.Global(sorted(scope.globals)))
        if scope.nonlocals:
            head.append(ast.Nonlocal(sorted(scope.nonlocals)))
        made_local = scope.shared - scope.globals - scope.nonlocals - set(scope.parameters)
        if made_local:  # bound by functions inside only: this makes them variables of this one, and runs nothing
            store: ast.stmt = ast.Assign([ast.Name(n, ast.Store()) for n in sorted(made_local)], ast.Constant(None))
            head.append(ast.If(ast.Constant(False), [store], []))
        head += [self._setter(name) for name in sorted(scope.set_by)]
        for statement in head:
            ast.copy_location(statement, node)
            statement.lineno = statement.end_lineno = node.body[0].lineno
            ast.fix_missing_locations(statement)
        node.body = [*docstring, *head, *(new or [ast.copy_location(ast.Pass(), node)])]
        return node

    def _setter(self, name: str) -> ast.stmt:
        """The function that does `name := value` where a lambda stands for an operand."""
        kind = ast.Global if name in self.scope.globals else ast.Nonlocal
        value = ast.Name("ag__value", ast.Load())
        body: list[ast.stmt] = [kind([name]), ast.Assign([ast.Name(name, ast.Store())], value), ast.Return(value)]
        return _function_def(f"ag__set_{name}", ["ag__value"], body)

    def lambda_(self, node: ast.Lambda) -> ast.Lambda:
        if not (_is_generator(node) or _looks_at_frame(node)):
            node.body = self.visit(node.body)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.args = self.generic_visit(node.args)  # type: ignore[assignment]
        return _Rewriter(_Scope(node), self.class_name).lambda_(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.args.defaults = [self.visit(d) for d in node.args.defaults]
        node.args.kw_defaults = [None if d is None else self.visit(d) for d in node.args.kw_defaults]
        return _Rewriter(_Scope(node), self.class_name).function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        saved, self.class_name = self.class_name, node.name
        node.body = [self.visit(s) if isinstance(s, ast.FunctionDef | ast.ClassDef) else s for s in node.body]
        self.class_name = saved
        return node

    # -- blocks
    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """A list of statements. After one that may leave it by a jump, the rest becomes a function."""
        out: list[ast.stmt] = []
        statements = [n for s in statements for n in (isinstance(s, ast.Match) and _as_if(s)) or [s]]
        statements = [_nested(s) if isinstance(s, ast.If) else s for s in statements]
        for k, node in enumerate(statements):
            rest = statements[k + 1 :]
            control = isinstance(node, ast.If | ast.For | ast.While)
            held = isinstance(node, ast.With | ast.Try | ast.Match | getattr(ast, "TryStar", ast.Try))
            leaves = bool(jumps([node])) if control else held and bool(rest) and _leaves_conditionally(node)
            if control or (held and leaves):
                out += self.site(node, rest if leaves else (), leaves)
                if leaves:
                    return out
            else:
                new = self.visit(node)
                out += new if isinstance(new, list) else [] if new is None else [new]
        return out

    def site(self, node: Any, rest: Sequence[ast.stmt], leaves: bool) -> list[ast.stmt]:
        """A statement that `operators.py` runs, and what follows it in its block."""
        made: list[ast.stmt] = []
        parts: list[ast.stmt] = [node, *rest]
        absorbs = isinstance(node, ast.If) and (_always_leaves(node.body) or _always_leaves(node.orelse))
        facts = self.facts(parts, absorbs)
        if isinstance(node, ast.If):
            first = [self.visit(node.test)]
            first += [self.made(made, "ag__body", node.body, node), self.made(made, "ag__else", node.orelse, node)]
            form = "if_"
        elif isinstance(node, ast.While):
            test = ast.copy_location(ast.Return(node.test), node.test)
            first = [
                self.made(made, "ag__test", [test], node, plain=True),
                self.made(made, "ag__body", node.body, node),
            ]
            first += [self.made(made, "ag__else", node.orelse, node)]
            form = "while_"
        elif isinstance(node, ast.For):
            item = ast.copy_location(ast.Name("ag__item", ast.Load()), node.target)
            take = ast.copy_location(ast.Assign([node.target], item), node.target)
            first = [self.visit(node.iter), self.made(made, "ag__body", [take, *node.body], node, ["ag__item"])]
            first += [self.made(made, "ag__else", node.orelse, node)]
            form = "for_"
        else:
            first = [self.made(made, "ag__body", [node], node, raw=True)]
            form = "block"
        first.append(self.made(made, "ag__rest", rest, rest[0] if rest else node))
        call: ast.expr = self.runtime(node, form, *first, facts)
        if not leaves:
            return [*made, ast.copy_location(ast.Expr(call), node)]
        outcome = ast.Name("ag__outcome", ast.Store())
        value: ast.expr = ast.Name("ag__outcome", ast.Load())
        if not self.scope.in_body:
            value = self.runtime(node, "result", value)
        there = ast.Compare(ast.Name("ag__outcome", ast.Load()), [ast.IsNot()], [ast.Constant(None)])
        keep: list[ast.stmt] = [ast.Assign([outcome], call), ast.If(there, [ast.Return(value)], [])]
        return [*made, *(ast.fix_missing_locations(ast.copy_location(s, node)) for s in keep)]

    def facts(self, parts: Sequence[ast.stmt], absorbs: bool = False) -> ast.expr:
        """What `Facts` holds of statements that may change places."""
        spelled = self._spelled
        names = tuple(spelled(n) for n in assigned(parts) if not n.startswith(PREFIX))
        attributes, containers = (tuple(tuple(map(spelled, p)) for p in places) for places in changed_places(parts))
        shared = tuple(sorted(self.scope.nonlocals & set(names)))
        return _literal((names, attributes, containers, parts[0].lineno, absorbs, shared))

    def made(
        self,
        out: list[ast.stmt],
        name: str,
        body: Sequence[ast.stmt],
        at: ast.stmt,
        args: Sequence[str] = (),
        plain: bool = False,
        raw: bool = False,
    ) -> ast.expr:
        """Append the function that holds `body`; gives its name, or None if there is nothing in it.

        plain: a `return` is what the function gives. raw: the statement itself is not a site again.
        """
        if not body:
            return ast.copy_location(ast.Constant(None), at)
        scope = self.scope
        names = set(assigned(body))
        names = {n for n in names if not n.startswith(PREFIX)}
        scope.shared |= names
        saved, scope.in_body = scope.in_body, True
        new: list[ast.stmt]
        if plain:
            new = [ast.copy_location(ast.Return(self.visit(body[0].value)), body[0])]  # type: ignore[attr-defined]
        elif raw:
            found = self.visit(body[0])
            new = found if isinstance(found, list) else [found]
        else:
            new = self.block(body)
        scope.in_body = saved
        head: list[ast.stmt] = []
        if names & scope.globals:
            head.append(ast.Global(sorted(names & scope.globals)))
        if names - scope.globals:
            head.append(ast.Nonlocal(sorted(names - scope.globals)))
        function = _function_def(name, args, [*head, *(new or [ast.Pass()])])
        ast.copy_location(function, at)
        for s in head:
            ast.copy_location(s, at)
        out.append(ast.fix_missing_locations(function))
        return ast.copy_location(ast.Name(name, ast.Load()), at)

    def runtime(self, at: ast.AST, name: str, *args: ast.expr) -> ast.Call:
        """A call of an operator."""
        function = ast.copy_location(ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load()), at)
        call = ast.copy_location(ast.Call(function, list(args), []), at)
        first = [function, call] if isinstance(at, ast.stmt | ast.excepthandler) else [function]
        for node in first:  # a traceback shows the first line: the header of a statement
            node.end_lineno, node.end_col_offset = node.lineno, node.col_offset
        return ast.fix_missing_locations(call)

    # -- statements
    def visit_If(self, node: ast.If) -> Any:
        return self.block([node])

    visit_While = visit_For = visit_If  # type: ignore[assignment]

    def visit_With(self, node: ast.With) -> ast.AST:
        node.items = [self.visit(i) for i in node.items]
        for i in node.items:
            call = ast.Attribute(ast.Name(RUNTIME, ast.Load()), "call", ast.Load())
            i.context_expr = self.runtime(i.context_expr, "manager", i.context_expr, call)
        node.body = self.block(node.body)
        return node

    def visit_Try(self, node: ast.Try) -> Any:
        if not node.finalbody:
            return self._handled(node)
        # what is raised inside under a traced condition runs the finally there, before it leaves: so a function has it
        final = copy.deepcopy(node.finalbody)
        out: list[ast.stmt] = []
        facts = self.facts(final)
        name = self.made(out, "ag__final", final, final[0])
        inner: list[ast.stmt] = [self._handled(node)] if node.handlers else self.block(node.body)
        watched = ast.With([ast.withitem(self.runtime(node.body[0], "finishing", name, facts), None)], inner)
        body: list[ast.stmt] = [ast.fix_missing_locations(ast.copy_location(watched, node.body[0]))]
        first = node.finalbody[0]
        look: ast.stmt = ast.copy_location(ast.Expr(self.runtime(first, "dropped")), first)
        ends = [look] if jumps(node.finalbody) else []
        return [*out, ast.copy_location(ast.Try(body, [], [], [*ends, *self.block(node.finalbody)]), node)]

    def _handled(self, node: ast.Try) -> ast.Try:
        """A try statement without its finally."""
        body = self.block(node.body)
        if node.handlers:  # what is raised inside under a traced condition could not be caught
            kinds = [copy.deepcopy(h.type) or ast.Name("BaseException", ast.Load()) for h in node.handlers]
            caught = self.thunk(ast.copy_location(ast.Tuple(kinds, ast.Load()), node.body[0]))  # type: ignore[arg-type]
            guard = ast.With([ast.withitem(self.runtime(node.body[0], "guarding", caught), None)], body)
            body = [ast.fix_missing_locations(ast.copy_location(guard, node.body[0]))]
        node.body = body
        for h in node.handlers:
            named: ast.expr = ast.copy_location(ast.Constant(None), h)
            if h.type is not None:
                named = copy.deepcopy(h.type)
                h.type = self.visit(h.type)
            look = ast.copy_location(ast.Expr(self.runtime(h, "caught", named)), h)
            h.body = [look, *self.block(h.body)]
        return ast.copy_location(type(node)(body, node.handlers, self.block(node.orelse), []), node)

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def visit_Match(self, node: ast.Match) -> ast.AST:
        node.subject = self.runtime(node.subject, "subject", self.visit(node.subject))
        for case in node.cases:
            if case.guard is not None:
                case.guard = self.visit(case.guard)
            case.body = self.block(case.body)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = self.visit(node.value) if node.value is not None else None
        if self.scope.in_body:
            value = self.runtime(node, "Return", value or ast.copy_location(ast.Constant(None), node))
        node.value = value
        return node

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return self._jump(node, "BREAK")

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return self._jump(node, "CONTINUE")

    def _jump(self, node: ast.stmt, name: str) -> ast.AST:
        value = ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load())
        return ast.fix_missing_locations(ast.copy_location(ast.Return(value), node))

    def visit_Global(self, node: ast.Global) -> ast.AST:  # declared at the top of the function
        return ast.copy_location(ast.Pass(), node)

    visit_Nonlocal = visit_Global  # type: ignore[assignment]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not isinstance(node.target, ast.Name) or not node.simple:
            return self.generic_visit(node)
        if node.value is None:
            if not self.scope.in_body:
                return node
            return ast.copy_location(ast.Pass(), node)
        # a variable that functions inside share cannot be annotated there; the annotation is not evaluated anyway
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = self.visit(node.test)
        message = self.text(self.visit(node.msg)) if node.msg is not None else None
        if node.msg is not None and _walrus(node.msg):
            node.test, node.msg = test, message
            return node
        node.test = self.runtime(node.test, "assert_", test, self.thunk(message) if message else ast.Constant(None))
        node.msg = message
        return ast.fix_missing_locations(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if node.exc is not None:
            error = self.visit(node.exc)
            if isinstance(error, ast.Call):
                error.args = [self.text(a) for a in error.args]
            node.exc = self.runtime(node.exc, "raised", error)
        if node.cause is not None:
            node.cause = self.visit(node.cause)
        return node

    def text(self, node: ast.expr) -> ast.expr:
        """Text that may be written at run time: in its f-strings numbers need not be known."""
        if isinstance(node, ast.JoinedStr):
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    part.value = self.runtime(part.value, "shown", part.value)
        elif isinstance(node, ast.BinOp):
            node.left, node.right = self.text(node.left), self.text(node.right)
        return node

    # -- expressions
    def known(self, value: ast.expr, later: Sequence[ast.expr]) -> ast.expr:
        """A condition that decides whether assignment expressions run: it must be known while tracing."""
        names = ", ".join(sorted({n.target.id for n in _own(later) if isinstance(n, ast.NamedExpr)}))
        return self.runtime(value, "known", value, ast.Constant(f"'{names} := ...'")) if names else value

    def thunk(self, value: ast.expr) -> ast.expr:
        arguments = ast.arguments([], [], None, [], [], None, [])
        return ast.copy_location(ast.Lambda(arguments, value), value)

    def operands(self, values: Sequence[ast.expr]) -> tuple[list[ast.expr], list[ast.expr]]:
        """Operands that may not run, as functions; and what `:=` in them assigns: names, and functions that do it."""
        names = sorted({n.target.id for n in _own(values) if isinstance(n, ast.NamedExpr)})
        self.scope.set_by |= set(names)
        self.scope.shared |= set(names)
        saved, self.apart = self.apart, True
        thunks: list[ast.expr] = [self.thunk(self.visit(v)) for v in values]
        self.apart = saved
        if not names:
            return thunks, []
        setters: list[ast.expr] = [ast.Name(f"ag__set_{n}", ast.Load()) for n in names]
        return thunks, [_literal(tuple(map(self._spelled, names))), ast.Tuple(setters, ast.Load())]

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        value = self.visit(node.value)
        if self.apart:
            return ast.copy_location(ast.Call(ast.Name(f"ag__set_{node.target.id}", ast.Load()), [value], []), node)
        node.value = value
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        nested = _nested(node)
        if nested is not node:
            return self.visit(nested)
        test = node.test
        if self.in_lambda and (_walrus(node.body) or _walrus(node.orelse)):
            node.test = self.known(node.test, (node.body, node.orelse))
            return self.generic_visit(node)
        thunks, bound = self.operands((node.body, node.orelse))
        return self.runtime(node, "if_exp", self.visit(test), *thunks, *bound)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self.in_lambda and any(_walrus(v) for v in node.values[1:]):
            last = max(k for k, v in enumerate(node.values) if _walrus(v))
            node.values = [self.known(v, node.values[k + 1:]) if k < last else v for k, v in enumerate(node.values)]
            return self.generic_visit(node)
        first = self.visit(node.values[0])
        thunks, bound = self.operands(node.values[1:])
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        if bound:
            return self.runtime(node, "binding", ast.Constant(name == "and_"), *bound, first, *thunks)
        return self.runtime(node, name, first, *thunks)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self.runtime(node, "not_", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        walrus = any(_walrus(c) for c in node.comparators[1:])
        self.generic_visit(node)
        if walrus or (len(node.ops) == 1 and not isinstance(node.ops[0], ast.In | ast.NotIn)):
            return node
        ops = ast.Constant(" ".join(type(op).__name__ for op in node.ops))
        first, *more = node.comparators
        return self.runtime(node, "compare", ops, node.left, first, *map(self.thunk, more))

    def _comprehension(self, node: Any) -> ast.AST:
        """Its conditions must be known, since they decide how many elements there are."""
        for g in node.generators:
            g.ifs = [self.runtime(test, "condition", test) for test in g.ifs]
        return self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def reduced(self, node: ast.Call) -> None:
        """`sum(e for x in y if p)` and the like: where p is known only at run time, the elements say so themselves."""
        inner = node.args[0]
        assert isinstance(inner, ast.GeneratorExp | ast.ListComp)
        plain = self.visit(copy.deepcopy(inner))
        generators: list[ast.comprehension] = []
        conditions: list[str] = []
        for g in inner.generators:
            generators.append(ast.comprehension(g.target, self.visit(g.iter), [], g.is_async))
            for test in g.ifs:
                name = f"{PREFIX}c{len(conditions)}"
                conditions.append(name)
                kept = self.runtime(test, "kept", self.visit(test))
                generators.append(ast.comprehension(ast.Name(name, ast.Store()), kept, [], 0))
        given = [ast.Name(c, ast.Load()) for c in conditions]
        element = self.runtime(inner.elt, "maybe", self.thunk(self.visit(inner.elt)), *given)
        form = ast.copy_location(type(inner)(element, generators), inner)
        node.args[0] = self.runtime(inner, "elements", node.func, self.thunk(form), self.thunk(plain))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        inner = node.args[0] if node.args else None
        conditional = isinstance(inner, ast.GeneratorExp | ast.ListComp) and any(g.ifs for g in inner.generators)
        if conditional and isinstance(node.func, ast.Name) and node.func.id in _REDUCERS and not _walrus(node):
            self.reduced(node)
            node.args[1:] = [self.visit(a) for a in node.args[1:]]
            node.keywords = [self.visit(k) for k in node.keywords]
            node.func = self.runtime(node.func, "call", node.func)
            return ast.fix_missing_locations(node)
        self.generic_visit(node)
        f = node.func
        if isinstance(f, ast.Name) and f.id == "super" and not node.args and self.scope.first:
            # a function made here has no first argument, which super() would look for
            node.args = [ast.Name("__class__", ast.Load()), ast.Name(self.scope.first, ast.Load())]
            return ast.fix_missing_locations(node)
        if (f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else "") == "print":
            node.args = [self.text(a) for a in node.args]
        if not (isinstance(f, ast.Name) and f.id in _UNTOUCHED):
            node.func = self.runtime(f, "call", f)
        return node


def _literal(value: Any) -> ast.expr:
    """A tuple of constants as an expression."""
    if isinstance(value, tuple):
        return ast.Tuple([_literal(v) for v in value], ast.Load())
    return ast.Constant(value)
