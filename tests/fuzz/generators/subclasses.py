"""Tensors of a class of the program's own, mixed with plain ones: by __torch_function__ and by __torch_dispatch__."""

from __future__ import annotations

from tests.fuzz.builder import Builder, filled, templates, tensor_expression

CLASSES = """
class Named(torch.Tensor):
    pass


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        unwrap = lambda x: x.inner if isinstance(x, cls) else x
        wrap = lambda x: cls(x) if isinstance(x, torch.Tensor) else x
        tree_map = torch.utils._pytree.tree_map
        result = function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        schema = function._schema
        if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
            return args[0]
        return tree_map(wrap, result)


"""


def generate(seed: int) -> str | None:
    builder = Builder(seed)
    choice = builder.choice
    exec(CLASSES, builder.scope)
    for i in range(choice.randint(2, 3)):
        plain = tensor_expression(choice, (72, 64), choice.choice(["F32", "F32", "BF", "F64"]))
        wrapping = choice.choice(["{}", "{}.as_subclass(Named)", "Wrapped({})"])
        builder.make(f"p{i}", wrapping.format(plain))
    for k in range(choice.randint(2, 8)):
        sort = choice.choice(["unary", "binary", "in_place"])
        line = filled(choice, choice.choice(templates(sort)), builder.recent())
        if sort == "in_place":
            builder.add(line)
        else:
            builder.add(f"v{k} = {line}", f"v{k}")
    for name in builder.names[-3:]:
        builder.add(f"{name}.float().sum().item()")
    builder.names.clear()
    source = builder.source()
    return None if source is None else CLASSES + source
