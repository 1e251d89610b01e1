"""The paths of the service as patterns: all that measures, the log and a refusal say of where a request went."""

from typing import Any

from starlette.routing import Route

OTHER = "other"


class Paths:
    """Of an application's routes."""

    def __init__(self, routes: list[Any]):
        self._routes = [one for one in routes if isinstance(one, Route)]
        self._methods: dict[str, set[str]] = {}
        for one in self._routes:
            self._methods.setdefault(one.path_format, set()).update(one.methods or ())

    def pattern(self, path: str) -> str:
        """Of the route; never the path itself: it has users' ids, and anyone can make up more of them."""
        return next((str(one.path_format) for one in self._routes if one.path_regex.match(path)), OTHER)

    def methods(self, pattern: str) -> list[str]:
        """What a known path takes."""
        return sorted(self._methods[pattern])
