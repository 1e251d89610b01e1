"""HTML pages from templates: what is put into them is text, unless it was made as HTML."""

from typing import Any

from prism.errors import needs


def render_template(package: str, name: str, **values: Any) -> str:
    """The template `name` of a package's folder `templates`; a value that it does not have is an error."""
    needs("jinja2", extra="plots")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name).render(**values)
