"""Small changes of the source, one at a time: a fixed list of operators over the syntax tree.

| operator | change |
| --- | --- |
| arithmetic | `+` and `-`, `*` and `/`, `//` to `/`, `%` to `//`, `**` to `*`, `<<` and `>>`, `&` and `|`, `^` to `&` |
| comparison | `<` and `<=`, `>` and `>=`, `==` and `!=`, `is` and `is not`, `in` and `not in` |
| boolean | `and` and `or` |
| negate | the condition of `if`, `while`, `a if c else b` or a comprehension is turned round |
| unary | a `-`, `not` or `~` is left out, but for the sign of a number |
| number | k becomes k + 1 |
| flag | True and False |
| dim | `dim=0` and `dim=1`; `dim=-1` and others become 0 |
| where | the two branches of a `where` are exchanged |
| name | a call of one function becomes one of its counterpart, `min` and `max`, `mean` and `sum`, and so on (`SWAPS`) |
| drop call | `x.detach()`, `x.abs()`, `x.square()`, `x.sqrt()`, `x.exp()` or `x.log()` becomes `x` |
| drop keyword | a keyword argument of a call is left out |

Left out: strings, annotations, decorators, imports, `__all__`, `assert`, and the checks of what a user gives, which are
`raise`, calls of `check.*`, and an `if` that holds nothing but these. Also keywords that only check or that make no
difference on one CPU (`PLAIN`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose change is their negation already."""
PAIRS = (
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("clamp_min", "clamp_max"),
    ("mean", "sum"),
    ("any", "all"),
    ("sin", "cos"),
    ("floor", "ceil"),
    ("zeros_like", "ones_like"),
    ("zeros", "ones"),
    ("new_zeros", "new_ones"),
)
SWAPS = {a: b for x, y in PAIRS for a, b in ((x, y), (y, x))}
DROPPED = frozenset({"detach", "abs", "square", "sqrt", "exp", "log"})
DIMS = frozenset({"dim", "axis"})
PLAIN = frozenset({"device", "strict", "non_blocking", "pin_memory"})
SKIPPED_FIELDS = frozenset({"annotation", "returns", "decorator_list", "bases", "type_params"})
SKIPPED_NODES = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Global, ast.Nonlocal)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One change of one file. The first five fields are its identity; an edit elsewhere does not change them."""

    file: str
    function: str
    operator: str
    text: str
    occurrence: int
    new: str
    line: int
    first: int
    last: int
    """The lines of the statement around it: tests that run one of them may notice the change."""
    within: bool
    """Whether the change is inside a function; otherwise it takes effect when the module is imported."""

    @property
    def identity(self) -> str:
        return "::".join((self.file, self.function, self.operator, self.text, str(self.occurrence)))


@dataclass(frozen=True)
class Site:
    """A place where an operator applies; `apply` changes the tree that it was found in."""

    mutant: Mutant
    apply: Callable[[], None]


def mutants(source: str, file: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its source."""
    return [site.mutant for site in _sites(ast.parse(source), source, file)]


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The syntax tree of the file with this one change."""
    tree = ast.parse(source)
    for site in _sites(tree, source, mutant.file):
        if site.mutant.identity == mutant.identity:
            site.apply()
            return ast.fix_missing_locations(tree)
    raise KeyError(f"{mutant.identity}: the source has no such place")


def _sites(tree: ast.Module, source: str, file: str) -> list[Site]:
    seen: Counter[str] = Counter()
    out = []
    for site in list(_walk(tree, source.encode().split(b"\n"), Mutant(file, "", "", "", 0, "", 0, 0, 0, False))):
        number = seen[site.mutant.identity]
        seen[site.mutant.identity] += 1
        out.append(Site(replace(site.mutant, occurrence=number), site.apply))
    return out


def _walk(node: ast.AST, lines: list[bytes], at: Mutant) -> Iterator[Site]:
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _left_out(child):
                continue
            if isinstance(child, ast.If) and all(_checks(s) for s in child.body):
                child = ast.Module(child.orelse, [])  # the condition and what it guards are a check; `else` is not
            here = at
            if isinstance(child, ast.stmt):
                here = replace(at, first=child.lineno, last=_last(child))
            put = _putter(node, field, index if isinstance(value, list) else None)
            for operator, text, new in _changes(child, node, field, at.within):
                words, line = _text(lines, text), getattr(text, "lineno", 0)
                found = replace(here, operator=operator, text=words, new=ast.unparse(new), line=line)
                yield Site(found, partial(put, new))
            if not _closed(child, node):
                yield from _walk(child, lines, _inside(child, here))


def _inside(node: ast.AST, at: Mutant) -> Mutant:
    """Where the parts of a node are."""
    if isinstance(node, SCOPES):
        name = f"{at.function}.{node.name}" if at.function else node.name
        return replace(at, function=name, within=at.within or not isinstance(node, ast.ClassDef))
    return replace(at, within=True) if isinstance(node, ast.Lambda) else at


def _closed(node: ast.AST, parent: ast.AST) -> bool:
    """Whether the parts of a node are left alone: classes that are asked for, and a number that `dim` has changed."""
    if isinstance(node, ast.Call):
        return _name(node.func) == "isinstance"
    return isinstance(parent, ast.keyword) and parent.arg in DIMS and not isinstance(node, ast.Tuple)


def _last(statement: ast.stmt) -> int:
    """The last line of a statement, of its head where it has a body."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if body else end


def _changes(node: ast.AST, parent: ast.AST, field: str, within: bool) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Operator, the expression whose text names it, and what takes the place of `node`."""
    if isinstance(parent, ast.keyword) and parent.arg in DIMS and isinstance(node, ast.Constant | ast.UnaryOp):
        yield "dim", node, ast.Constant(1 if isinstance(node, ast.Constant) and node.value == 0 else 0)
        return
    if isinstance(node, ast.expr) and (field in ("test", "ifs")) and not _opposite(node):
        yield "negate", node, ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.BinOp) and _arithmetic(node, within):
        yield "arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.AugAssign):
        yield "arithmetic", node, ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], COMPARISON[type(op)](), *node.ops[i + 1 :]]
            yield "comparison", node, ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "boolean", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield "unary", node, node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "flag", node, ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield "number", node, ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    name = _name(node.func)
    if name == "where" and len(node.args) == 3:
        yield "where", node, ast.Call(node.func, [node.args[0], node.args[2], node.args[1]], node.keywords)
    if name in SWAPS and (isinstance(node.func, ast.Attribute) or name in ("min", "max", "any", "all")):
        other = SWAPS[name]
        func = (
            ast.Attribute(node.func.value, other, ast.Load())
            if isinstance(node.func, ast.Attribute)
            else ast.Name(other, ast.Load())
        )
        yield "name", node, ast.Call(func, node.args, node.keywords)
    if name in DROPPED and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
        yield "drop call", node, node.func.value
    if name == "field" or name.endswith(("Error", "ClassVar")):
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in PLAIN:
            rest = [k for k in node.keywords if k is not keyword]
            yield "drop keyword", keyword, ast.Call(node.func, node.args, rest)


def _left_out(node: ast.AST) -> bool:
    if isinstance(node, SKIPPED_NODES) or _checks(node):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in PLAIN
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    if isinstance(node, ast.If):
        return _name(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Call) and _of_check(node)


def _checks(node: ast.AST) -> bool:
    """Whether a statement does nothing but check what a user gave."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and _of_check(node.value)
    if isinstance(node, ast.If):
        return all(_checks(s) for s in (*node.body, *node.orelse))
    if isinstance(node, ast.For):
        return all(_checks(s) for s in node.body)
    return isinstance(node, ast.Raise)


def _of_check(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and _name(call.func.value) == "check"


def _opposite(node: ast.expr) -> bool:
    """Whether another operator negates this condition already."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], OPPOSITES)


def _arithmetic(node: ast.BinOp, within: bool) -> bool:
    """Whether it computes with numbers: strings and lists are joined by `+`, and types, outside functions, by `|`."""
    if type(node.op) not in ARITHMETIC or _sequence(node.left) or _sequence(node.right):
        return False
    return within or not isinstance(node.op, ast.BitOr)


def _sequence(node: ast.AST) -> bool:
    strings = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return strings or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(lines: list[bytes], node: ast.AST) -> str:
    """The node as it is written, on one line. (`ast.get_source_segment` splits the whole source at every call.)"""
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
    part = lines[first - 1 : last]
    part[-1] = part[-1][: getattr(node, "end_col_offset", None)]
    part[0] = part[0][getattr(node, "col_offset", 0) :]
    return " ".join(b" ".join(part).decode().split())


def _putter(node: ast.AST, field: str, index: int | None) -> Callable[[ast.AST], None]:
    def put(new: ast.AST) -> None:
        if index is None:
            setattr(node, field, new)
        else:
            getattr(node, field)[index] = new

    return put
