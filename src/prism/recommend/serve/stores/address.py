"""Which store an address names."""

from pathlib import Path

from prism.errors import InputError
from prism.recommend.serve.stores.base import Store, hidden


def open_store(address: str) -> Store:
    """A file's path, redis://… or postgresql://…"""
    scheme = address.partition("://")[0] if "://" in address else ""
    try:
        if scheme in ("redis", "rediss", "unix"):
            from prism.recommend.serve.stores.redis import RedisStore

            return RedisStore(address)
        if scheme in ("postgresql", "postgres"):
            from prism.recommend.serve.stores.postgres import PostgresStore

            return PostgresStore(address)
    except ImportError as error:
        raise InputError(f"{scheme}:// needs {error.name}: pip install 'prism-sequence[{scheme}]'") from None
    if scheme:
        raise InputError(f"store {hidden(address)}: give a file, redis://… or postgresql://…, not {scheme}://")
    from prism.recommend.serve.stores.sqlite import SqliteStore

    return SqliteStore(Path(address))
