"""Sparse, nested and quantized layouts: made of dense tensors, computed with, and made dense again."""

from __future__ import annotations

from tests.fuzz.builder import Builder, filled, tensor_expression

LAYOUTS = [
    *("{a}.to_sparse()", "{a}.to_sparse_csr()", "{a}.to_sparse_csc()", "{a}.to_sparse(1)", "{a}.relu().to_sparse()"),
    "torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], {a}.flatten()[:3].float(), (72, 64))",
    "torch.nested.nested_tensor([{a}, {b}])",
]
OPERATIONS = [
    *("{l}*{s}", "{l}+{l}", "{l}*{l}", "{l}/{s}", "{l}.neg()", "{l}.sqrt()", "{l}.tanh()", "{l}.abs()", "{l}.clone()"),
    *("{l}.sum()", "{l}.coalesce()", "{l}@{b}.t()", "torch.sparse.mm({l},{b}.t())", "{l}.to_dense()", "{l}.float()"),
    *("torch.sparse.softmax({l},1)", "torch.sparse.sum({l},0)", "{l}.pow(2)", "{l}.mul_({s})", "{l}.relu()"),
    *("{l}.values()*{s}", "{l}.detach()", "{l}.to_padded_tensor(0.0)", "{l}.log1p()", "{l}.div_({s})"),
]


def generate(seed: int) -> str | None:
    builder = Builder(seed)
    choice = builder.choice
    for i in range(2):
        builder.make(f"p{i}", tensor_expression(choice, (72, 64), choice.choice(["F32", "F32", "F64"])))
    layouts: list[str] = []
    for k in range(choice.randint(2, 9)):
        names = ["p0", "p1"]
        if not layouts or choice.random() < 0.3:
            line = filled(choice, choice.choice(LAYOUTS), names)
        else:
            line = filled(choice, choice.choice(OPERATIONS).replace("{l}", choice.choice(layouts)), names)
        if builder.add(f"s{k} = {line}"):
            layouts.append(f"s{k}")
    for name in layouts[-3:]:
        builder.add(f"d_{name} = {name} if {name}.layout == torch.strided else {name}.to_dense()")
        builder.add(f"d_{name}.float().sum().item()")
    return builder.source()
