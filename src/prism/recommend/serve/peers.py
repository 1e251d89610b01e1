"""The other shards, as seen from one: kept-open connections, and a way to ask one of them or all."""

import asyncio
import hmac
import json

from prism.recommend.serve.client import Connection, Reply, connect, request_bytes
from prism.recommend.serve.problems import Refused

# Says that a request comes from another shard, which has done the sharing out.
HOP = "x-prism-shard"
# Proves it.
PROOF = "x-prism-secret"
KEY = "x-api-key"


class Peers:
    """Addresses of all shards, in order, and the secret that all of them know, if there is one."""

    def __init__(self, addresses: list[tuple[str, int]], own: int, secret: str = ""):
        self.addresses, self.own, self._secret = addresses, own, secret
        self._idle: list[list[Connection]] = [[] for _ in addresses]

    @property
    def others(self) -> list[int]:
        return [n for n in range(len(self.addresses)) if n != self.own]

    def sent(self, proof: str) -> bool:
        """Whether who says this is a shard."""
        return bool(self._secret) and hmac.compare_digest(proof.encode(), self._secret.encode())

    async def ask(self, shard: int, method: str, target: str, body: bytes = b"", key: str = "") -> Reply:
        """One shard's answer, whatever its status; 503 if it cannot be reached.

        A connection that was idle may have been closed meanwhile: then the request is sent once more. That is safe:
        every event that is passed on has an id.
        """
        headers = ((HOP, str(self.own)), (PROOF, self._secret), (KEY, key))
        whole = request_bytes(method, target, body, tuple(one for one in headers if one[1]))
        idle = self._idle[shard]
        while idle:
            connection = idle.pop()
            if connection.open:
                try:
                    return await self._on(connection, shard, whole)
                except ConnectionError:
                    break
        try:
            return await self._on(await connect(*self.addresses[shard]), shard, whole)
        except OSError as error:
            raise Refused(503, f"shard {shard} cannot be reached ({error}): try again in a moment") from None

    async def _on(self, connection: Connection, shard: int, whole: bytes) -> Reply:
        try:
            reply = await connection.request(whole)
        except BaseException:  # given up, perhaps: the answer may still come, and nobody must take it for another's
            connection.close()
            raise
        self._idle[shard].append(connection)
        return reply

    async def everyone(self, seconds: float, method: str, target: str, body: bytes = b"", key: str = "") -> None:
        """All others, at once; the first refusal is raised, and that of one that does not answer in time is 504."""

        async def within(shard: int) -> Reply:
            try:
                async with asyncio.timeout(seconds):
                    return await self.ask(shard, method, target, body, key)
            except TimeoutError:
                raise Refused(504, f"shard {shard} did not answer within {seconds:g} seconds") from None

        for reply in await asyncio.gather(*map(within, self.others)):
            accepted(reply)


def accepted(reply: Reply) -> bytes:
    """The body of an answer that is none of an error."""
    if reply.status != 200:
        try:
            detail = str(json.loads(reply.body)["detail"])
        except (ValueError, KeyError, TypeError):
            detail = "another shard refused"
        raise Refused(reply.status, detail)
    return reply.body
