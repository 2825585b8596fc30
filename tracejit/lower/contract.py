"""Products that only sums read, put into the sums: one operation with one rounding each (fma).

In: the statements of a loop's body. Out: the same, renumbered, where sums and differences that may contract (see
`scalar.py`) have taken in a product, if that makes the product itself needless. A code generator does so by itself for
a product that one sum reads; here one goes into all sums that read it.

Read next: `emit_loop_llvm.py` (who asks).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tracejit.lower.scalar import F32, F64, Region, Stmt


def contracted(region: Region, fixed: Collection[int]) -> Region:
    """The region with products in sums; `fixed`: statements that are computed once, before the loop."""
    within = _products(region, fixed)
    if not within:
        return region
    stmts: list[Stmt] = []
    new: list[int] = []  # by old number

    def add(s: Stmt) -> int:
        stmts.append(s)
        return len(stmts) - 1

    for i, s in enumerate(region.stmts):
        args = tuple(new[a] for a in s.args)
        if i in within:
            product = region.stmts[within[i]]
            x, y = (new[a] for a in product.args)
            at = s.args.index(within[i])
            rest = args[1 - at]
            if s.op == "sub" and at == 0:
                rest = add(Stmt("neg", s.dtype, (rest,)))
            elif s.op == "sub":
                x = add(Stmt("neg", s.dtype, (x,)))
            new.append(add(Stmt("fma", s.dtype, (x, y, rest), ("contract",))))
        else:
            new.append(add(s._replace(args=args)))
    test = None if region.test is None else new[region.test]
    return replace(region, stmts=tuple(stmts), nexts=tuple(new[i] for i in region.nexts), test=test)


def _products(region: Region, fixed: Collection[int]) -> dict[int, int]:
    """By sum, the product that it takes in."""
    needed = region.needed(region.ends)
    readers: dict[int, list[int]] = {i: [] for i in needed}
    for i in needed:
        for a in region.stmts[i].args:
            readers[a].append(i)
    found: dict[int, int] = {}
    for i in needed:
        s, sums = region.stmts[i], readers[i]
        if s.op != "mul" or not _contracts(s) or i in fixed or i in region.ends or not sums:
            continue
        fits = all(region.stmts[k].op in ("add", "sub") and _contracts(region.stmts[k]) for k in sums)
        if fits and len(set(sums)) == len(sums) and not any(k in found for k in sums):
            found.update(dict.fromkeys(sums, i))
    return found


def _contracts(s: Stmt) -> bool:
    return "contract" in s.attrs and s.dtype in (F32, F64)
