"""The endpoints of the OpenAPI document, one method each; those that come often are methods of `Answers`."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import Path as InPath
from fastapi.responses import Response

from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import is_model
from prism.recommend.serve import schema
from prism.recommend.serve.admission import JSON
from prism.recommend.serve.answers import Answers
from prism.recommend.serve.catalogue import Catalogue
from prism.recommend.serve.catalogues import Ready
from prism.recommend.serve.problems import MEDIA, Refused, problem
from prism.recommend.serve.service import Service
from prism.recommend.serve.stores.base import Item


class Endpoints:
    """Work on the store and the states is done by the engine's thread."""

    def __init__(self, service: Service, answers: Answers):
        self.service, self.engine, self.answers = service, service.engine, answers

    async def events(self, body: schema.EventsIn, tenant: str) -> schema.EventsOut:
        """Takes in events; answered when they are on the disk. A late event is put in its place in time."""
        return _json(await self.answers.events(body, tenant))

    async def recommendations(self, body: schema.RecommendationsIn, tenant: str) -> schema.RecommendationsOut:
        """The items most likely to come next, for many users."""
        return _json(await self.answers.recommendations(body, tenant))

    async def recommendation(
        self,
        tenant: str,
        user: schema.Id,
        k: schema.Count = 10,
        exclude_seen: bool | None = None,
        at: schema.Time | None = None,
    ) -> schema.RecommendationsOut:
        """The items most likely to come next, for one user; `allow` and `deny` go into the body of POST."""
        return await self.recommendations(
            schema.RecommendationsIn(users=[user], k=k, exclude_seen=exclude_seen, at=at), tenant
        )

    async def similar(self, tenant: str, item: schema.Id, k: schema.Count = 10) -> schema.SimilarOut:
        """The items nearest to one: taken near it by many users, or with a like row in the model's table."""
        catalogue = await self.answers.catalogue(tenant)
        found = await asyncio.to_thread(catalogue.similar, item, k)
        items = [schema.ItemOut(item=id_, score=score, name=name) for id_, name, score in found]
        return schema.SimilarOut(item=item, items=items)

    async def because(
        self, tenant: str, user: schema.Id, item: schema.Id, k: schema.Count = 5
    ) -> list[schema.ReasonOut]:
        """The events of a user's history that an item's score leans on: how far it falls without each."""
        who = self.answers.user(tenant, user)
        stored = (await self.answers.call(lambda: self.engine.store.events([who], [0])))[0]
        catalogue = await self.answers.catalogue(tenant)
        found = await asyncio.to_thread(catalogue.because, item, stored, k)
        return [schema.ReasonOut(item=one.item, name=one.name, effect=one.effect, age=one.age) for one in found]

    async def user(self, tenant: str, user: Annotated[schema.Id, InPath()]) -> schema.UserFacts:
        """What is kept of a user: number of events, first and latest time, size of the state, the latest items."""
        who = self.answers.user(tenant, user)
        found = await self.answers.call(lambda: self.engine.describe(who))
        if found is None:
            raise Refused(404, f"user {user!r} has no events")
        return schema.UserFacts(user=user, model=self.engine.recommender.key, **found)

    async def forget(self, tenant: str, user: Annotated[schema.Id, InPath()]) -> schema.Forgotten:
        """Removes everything that is kept of a user."""
        who = self.answers.user(tenant, user)
        return schema.Forgotten(user=user, removed_events=await self.answers.call(lambda: self.engine.forget(who)))

    async def items(self, tenant: str, search: str = "", limit: schema.Count = 20) -> list[schema.ItemFacts]:
        """Items whose name or id contains a text, and whether they may be recommended."""
        catalogue = await self.answers.catalogue(tenant)
        return await asyncio.to_thread(_search, catalogue, search.lower(), limit)

    async def set_items(self, body: schema.ItemsIn, tenant: str) -> list[schema.ItemSet]:
        """Takes in names and features of items, and whether they may be recommended: from now on, and on the disk.

        What an entry leaves out stays as it is.
        """
        before = await self.answers.catalogue(tenant)

        def checked() -> tuple[list[Item], Ready]:
            changes: dict[str, Item] = {}
            for one in body.items:
                nothing = one.name is None and one.features is None
                on = True if one.available is None and nothing else one.available
                features = None if one.features is None else before.shelf.checked(one.features)
                change = Item(one.item, on, one.name, features)
                changes[one.item] = changes[one.item].changed(change) if one.item in changes else change
            all_of_them = list(changes.values())
            return all_of_them, self.engine.catalogues.prepare(before, all_of_them)

        changes, ready = await asyncio.to_thread(checked)
        made: Catalogue = await self.answers.call(lambda: self.engine.change_items(tenant, changes, ready))
        return [schema.ItemSet(**made.facts(one.id)) for one in changes]

    async def model(self, tenant: str) -> schema.ModelFacts:
        """The model that answers."""
        made, engine = self.engine.recommender, self.engine
        return schema.ModelFacts(
            id=made.key,
            name=self.service.folder.name,
            items=made.model.items,
            mixer=made.config.mixer,
            baseline=None if made.baseline is None else made.baseline.name,
            # what a focus has trained ranks well, and is too sure
            probabilities=made.experts is not None and not made.config.objective.focus,
            since=engine.since,
            users_in_memory=len(engine.pool),
            # numbers of 4 bytes; or an item and a time of 8 each, of every event that counts
            state_bytes=4 * made.model.backbone.state_size() if made.context is None else 16 * made.context,
        )

    async def swap(self, body: schema.ModelIn, tenant: str) -> schema.ModelFacts:
        """Changes to another model, whose folder lies beside the one served, without a gap."""
        folder = self.service.folder.parent / body.name
        if not is_model(folder):
            raise Refused(404, f"there is no model named {body.name!r} beside the one that is served")

        def made() -> Any:
            states = self.engine.prepare(Recommender.load(folder, device=str(self.engine.recommender.device)))
            self.engine.catalogues.place(states.shelf)
            return states

        states = await asyncio.to_thread(made)
        await self.answers.call(lambda: self.engine.use(states))
        self.service.folder = folder
        return await self.model(tenant)

    async def health(self) -> schema.Health:
        """Whether the process runs."""
        return schema.Health(status="ok", time=int(time.time()))

    async def ready(self) -> Response:
        """Whether events can be stored now."""
        failure = self.engine.failure
        if failure:
            return Response(problem(503, f"the store does not take writes: {failure}"), 503, media_type=MEDIA)
        return _json('{"status":"ready"}')

    async def metrics(self) -> Response:
        """For Prometheus."""
        return Response(self.service.measures.text(self.engine), media_type="text/plain; version=0.0.4")


def _search(catalogue: Catalogue, wanted: str, limit: int) -> list[schema.ItemFacts]:
    """The model's items first, then those that only the tenant told of."""
    found = []
    for item, name in catalogue.all_items():
        id_, label = str(item), str(item) if name is None else name
        if wanted in label.lower() or wanted in id_.lower():
            found.append(schema.ItemFacts(name=label, **catalogue.facts(id_)))
            if len(found) == limit:
                break
    return found


def _json(content: str) -> Any:
    return Response(content, media_type=JSON)
