"""HTML from templates: every value is escaped unless it is `markupsafe.Markup` already."""

from __future__ import annotations

import re
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters no HTML document may hold


def render(package: str, template: str, **values: Any) -> str:
    """Render a template of a package.

    Control characters become U+FFFD, and what UTF-8 cannot encode becomes a question mark.

    Args:
        package: the package whose folder `templates` holds the file.
        template: name of the file.
        values: what the template shows, by name.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template(template).render(values)
    html = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", html)
    return html.encode("utf-8", errors="replace").decode("utf-8")
