"""Renders templates: pages with one look, in which names from user code are only ever text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from torchnan.config.text import printable

Filters = Mapping[str, Callable[..., Any]]

_OWN = "torchnan.pages"
_NO_FILTERS: Filters = {}


def render_page(package: str, name: str, *, style: str = "", filters: Filters = _NO_FILTERS, **values: Any) -> str:
    """Returns a page. Its content security policy allows only its own style, by hash, so that names cannot inject any.

    Args:
        package: the one with the template and its style.
        name: of the template, which extends ``page.html.j2``.
        style: name of a CSS file of the package, which comes after the common ``page.css``. Default: none.
        filters: of the template, by name.
        values: the variables of the template, including ``headline``.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    css = _resource(_OWN, "page.css") + (_resource(package, style) if style else "")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    document = template(package, name, escape=True, filters=filters)
    page: str = document.render(style=css, style_hash=f"sha256-{digest}", **values)
    return page


def template(package: str, name: str, *, escape: bool, filters: Filters = _NO_FILTERS) -> Any:
    """Returns a Jinja template of a package. Text is escaped for HTML if ``escape``; the filter ``visible`` makes it
    printable.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise ImportError("this needs jinja2: pip install torchnan[diagnose]") from None
    environment = jinja2.Environment(
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda file: _resource(_OWN if file == "page.html.j2" else package, file)),
    )
    environment.filters.update(visible=lambda text: printable(str(text)), **filters)
    return environment.get_template(name)


def _resource(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")
