"""An object store of one folder, as much of S3 as reading takes: objects, parts of them, and their list."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit


@contextmanager
def bucket(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(address of the store, in which `folder` is the bucket of its name; what it was asked for)."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            asked.append(unquote(address.path))
            query = parse_qs(address.query)
            if "list-type" in query:
                self._answer(200, listed(folder, query.get("prefix", [""])[0]).encode())
                return
            path = folder.parent / unquote(address.path).lstrip("/")
            if not path.is_file():
                self._answer(404, b"")
                return
            content, part = path.read_bytes(), re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if part is None:
                self._answer(200, content)
                return
            size = len(content)
            first = int(part[1]) if part[1] else max(0, size - int(part[2]))
            last = min(int(part[2]), size - 1) if part[1] and part[2] else size - 1
            self._answer(206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{size}"})

        def _answer(self, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            headers = {"Content-Length": str(len(content)), "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
            for name, value in (headers | {"ETag": '"1"', **(more or {})}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listed(folder: Path, prefix: str) -> str:
    """ListObjectsV2's answer."""
    names = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    about = "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>1</ETag><StorageClass>STANDARD</StorageClass>"
    held = "".join(
        f"<Contents><Key>{name}</Key><Size>{size}</Size>{about}</Contents>"
        for name, size in names.items()
        if name.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{held}</ListBucketResult>"
