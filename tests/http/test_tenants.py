"""A token of one owner can't see or touch what belongs to another, by any route that the app has.

The routes are those of the app's own OpenAPI document, so a new one is tried without a word here; one with a parameter
that nothing is known of fails the test.
"""

import asyncio
import json
import os
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from pyrula.http import HttpApp, Role, Token, Tokens, create_app, hash_of, new_token
from pyrula.http.api import scoped
from pyrula.workflows import Every, RunStatus, WorkflowClient
from tests.http.conftest import Site
from tests.services.waiting import wait_until_async

SECRET = "s3cr3t-of-acme"
NAMES = ["http_echo", "http_asks", "http_cart", "http_fails", "http_counts", "http_nobody_serves"]
ROUNDS = 6


@dataclass
class World:
    """Two owners, who has which token, and what acme has."""

    app: HttpApp
    http: httpx.AsyncClient
    client: WorkflowClient
    tokens: dict[tuple[str, Role], str]
    runs: dict[str, str] = field(default_factory=dict)
    schedules: list[str] = field(default_factory=list)

    def headers(self, owner: str, role: Role) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[owner, role]}"}

    async def state(self) -> Any:
        """All that can be told of what acme has."""
        told = []
        for run_id, name in self.runs.items():
            told.append(await self.client.detail(name, run_id))
            told.append(await self.client.events(name, run_id))
        schedules = [each for each in await self.client.schedules.list() if each.owner == "acme"]
        return told, schedules, [each for each in await self.client.buffered("http_digest") if each.owner == "acme"]


@pytest.fixture
async def world(site: Site) -> World:
    owners: dict[str, str | None] = {"acme": "acme", "mallory": "mallory", "everybody": None}
    secrets = {(owner, role): new_token() for owner in owners for role in Role}
    tokens = Tokens(
        Token(hash=hash_of(secret), owner=owners[owner], role=role) for (owner, role), secret in secrets.items()
    )
    client = await site.client()
    app = create_app(await site.client(query_timeout=1), tokens=tokens)
    made = World(app, await site.http(await site.served(app)), client, secrets)
    await site.worker()
    for name in NAMES:
        params = {"left": 2} if name == "http_counts" else {}
        run = await client.submit(name, params, idempotency_key=f"key of {name}", owner="acme", metadata=SECRET)
        made.runs[str(run)] = name
        # the same key of acme's own, as its token has it
        key = scoped("key", "acme")
        made.runs[str(await client.submit(name, params, idempotency_key=key, owner="acme", metadata=SECRET))] = name
    for run_id, name in made.runs.items():
        await client.signal(name, run_id, SECRET, SECRET) if name == "http_asks" else None
    mine = scoped("nightly", "acme")
    for schedule_id in ("weekly", mine):
        await client.schedules.create(schedule_id, "http_echo", trigger=Every(86_400), owner="acme", metadata=SECRET)
    made.schedules = ["weekly", "nightly", mine]

    # a batch that became a run, and one that is open
    for event_id in ("e", "f", "g"):
        event = {"user_id": "u", "note": SECRET}
        completed = await client.trigger("http_digest", event, event_id=event_id, owner="acme")
        made.runs |= {} if completed is None else {completed.run_id: "http_digest"}

    async def still() -> bool:
        reports = [await client.detail(name, run_id) for run_id, name in made.runs.items()]
        return all(
            report.status not in (RunStatus.RUNNING, RunStatus.QUEUED) or report.name == "http_nobody_serves"
            for report in reports
        )

    await wait_until_async(still, description="acme's runs to stand still", timeout=20, interval=0.05)
    return made


def operations(app: HttpApp) -> list[tuple[str, str, dict[str, Any]]]:
    """Each method of each path, with what the document says of it; workflows' own paths are the general ones again."""
    found = [
        (path, method, said)
        for path, methods in app.openapi()["paths"].items()
        for method, said in methods.items()
        if "{" in path or not path.startswith("/http")
    ]
    assert len(found) >= 28
    return found


class Attack:
    """Fills in a request so that it means what acme has."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._schemas = world.app.openapi()["components"]["schemas"]

    def request(self, path: str, method: str, said: dict[str, Any]) -> dict[str, Any]:
        run_id = self._chance.choice([*self._world.runs])
        name = "http_digest" if path == "/{name}/events" else self._world.runs[run_id]
        meant = {"name": name, "run_id": self._link(run_id)}
        query: list[tuple[str, str]] = []
        headers = {}
        for parameter in said.get("parameters", ()):
            name, where = parameter["name"], parameter["in"]
            value = meant.get(name) or self._value(name, parameter["schema"])
            if where == "path":
                path = path.replace(f"{{{name}}}", quote(value, safe=""))
            elif where == "query" and self._chance.random() < 0.5:
                query.append((name, str(value)))
            elif where == "header" and self._chance.random() < 0.5:
                headers[name] = str(value)
        assert "{" not in path
        body = said.get("requestBody")
        return {
            "method": method.upper(),
            "url": path,
            "params": query,
            "headers": headers,
            "json": None if body is None else self._body(body["content"]["application/json"]["schema"]),
        }

    def _link(self, run_id: str) -> str:
        return f"{run_id}~2" if self._world.runs[run_id] == "http_counts" and self._chance.random() < 0.5 else run_id

    def _body(self, schema: dict[str, Any]) -> Any:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:
            return self._body(self._chance.choice(schema["anyOf"]))
        if schema.get("type") != "object":
            return None
        required = schema.get("required", ())
        return {
            name: self._body(inner) if _is_object(inner, self._schemas) else self._value(name, inner)
            for name, inner in schema.get("properties", {}).items()
            if name in required or self._chance.random() < 0.4
        }

    def _value(self, name: str, schema: dict[str, Any]) -> Any:
        world, chance = self._world, self._chance
        run_ids = [*world.runs]
        known: dict[str, list[Any]] = {
            "schedule_id": world.schedules,
            "idempotency_key": [
                "key",
                *(f"key of {each}" for each in NAMES),
                scoped("key", "acme"),
            ],
            "owner": ["acme", "mallory"],
            "cursor": run_ids,
            "last-event-id": ["1-0", "1-3", "1-99.end", "2-0"],
            "after": ["1-0", "1-2"],
            "since": ["2020-01-01T00:00:00Z"],
            "limit": [1, 1000],
            "link": [1, 2],
            "timeout": [0, 0.1],
            "status": ["queued", "finished", "unfinished", "failed"],
            "name": NAMES,
            "workflow": NAMES,
            "signal": ["go", "checkout", SECRET],
            "query": ["items", ""],
            "update": ["add"],
            "action": ["yes"],
            "cron": ["0 9 * * *"],
            "tz": ["UTC"],
            "every": [3600],
            "window": [60],
            "priority": [0, 100],
            "reason": [""],
            "catch_up": ["one"],
            "overlap": ["allow"],
            "paused": [True],
            "event_id": ["e", "f", "g"],
            "signal_id": ["s"],
            "update_id": ["u"],
            "wait_id": ["w"],
            "payload": ["A-1", None],
            "value": [1],
            "metadata": [None],
            "args": [[]],
            "kwargs": [{}],
            "params": [{}],
            "event": [{"user_id": "u"}],
            "topic": ["orders"],
            "backfill_id": ["b"],
            "new_id": ["c"],
            "group": ["g"],
            "cluster": ["default"],
            "partitions": [[0]],
            "start": ["earliest"],
            "end": ["latest"],
            "output": ["o"],
            "dead_letter_topic": ["d"],
            "max_concurrency": [1],
            "rate": [1],
        }
        name = name.lower().replace("idempotency-key", "idempotency_key")
        assert name in known, f"say here how {name!r} can mean what another owner has ({schema})"
        return chance.choice(known[name])


def _is_object(schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    refs = [schema, *schema.get("anyOf", ())]
    return any("$ref" in each and schemas[each["$ref"].rpartition("/")[2]].get("type") == "object" for each in refs)


async def answered(http: httpx.AsyncClient, request: dict[str, Any], headers: dict[str, str]) -> tuple[int, str]:
    """Status and text; of a stream what comes within a moment."""
    asked = http.build_request(**{**request, "headers": {**request["headers"], **headers}})
    answer = await http.send(asked, stream=True)
    said = json.dumps(dict(answer.headers))
    try:
        async with asyncio.timeout(0.3 if "event-stream" in said else 60):
            async for chunk in answer.aiter_text():
                said += chunk
    except TimeoutError:
        assert "event-stream" in said
    finally:
        await answer.aclose()
    return answer.status_code, said


async def test_no_route_reaches_what_another_owner_has(world: World) -> None:
    seed = int(os.environ.get("PYRULA_SEED", "0")) or random.randrange(1, 10**6)
    print(f"PYRULA_SEED={seed}")
    chance = random.Random(seed)
    attack = Attack(world, chance)
    before = await world.state()
    statuses: dict[str, set[int]] = defaultdict(set)
    run_ids = sorted(world.runs, key=len, reverse=True)
    for path, method, said in operations(world.app):
        for number in range(ROUNDS):
            role = [*Role][number % len(Role)]
            request = attack.request(path, method, said)
            status, text = await answered(world.http, request, world.headers("mallory", role))
            statuses[f"{method} {path}"].add(status)
            told = f"{role.name} {request} -> {status} {text}"
            sent = json.dumps(request)
            for run_id in run_ids:
                # an error may say again what was asked for
                assert run_id not in text or (run_id in sent and status >= 400), told
            assert SECRET not in text or SECRET in sent, told
            assert status < 500, told
            if said.get("x-pyrula-all-owners"):
                assert status == 403, told
            elif "{run_id}" in path:
                assert status in (403, 404, 422), told
            elif status < 300:
                assert '"owner": "acme"' not in text, told
                assert '"owner":"acme"' not in text, told
    assert await world.state() == before
    # it isn't for another reason that they are refused
    assert all(404 in found or max(found) == 403 for path, found in statuses.items() if "{run_id}" in path), statuses
    page = await world.client.list(limit=1000)
    assert {run.run_id.partition("~")[0] for run in page if run.owner == "acme"} == set(world.runs)
    assert {run.owner for run in page} <= {"acme", "mallory"}
    schedules = await world.client.schedules.list()
    assert {each.owner for each in schedules} <= {"acme", "mallory"}


async def test_the_same_requests_reach_it_for_its_owner(world: World) -> None:
    """What the attack asks for is there: its owner gets it, so the test above isn't passed by asking for nothing."""
    for run_id, name in world.runs.items():
        for owner in ("acme", "everybody"):
            answer = await world.http.get(f"/{name}/runs/{run_id}", headers=world.headers(owner, Role.READ))
            assert answer.status_code == 200
            assert SECRET in answer.text
    headers = world.headers("acme", Role.READ)
    listed = (await world.http.get("/runs", params={"limit": 1000}, headers=headers)).json()["runs"]
    assert {run["run_id"].partition("~")[0] for run in listed} == set(world.runs)
    schedules = (await world.http.get("/schedules", headers=headers)).json()
    assert sorted(each["id"] for each in schedules) == ["nightly", "weekly"]


async def test_a_key_is_its_owners(world: World) -> None:
    answers = {}
    for owner in ("acme", "mallory", "everybody"):
        headers = world.headers(owner, Role.OPERATE) | {"Idempotency-Key": "key"}
        first = await world.http.post("/http_echo/runs", json={}, headers=headers)
        again = await world.http.post("/http_echo/runs", json={}, headers=headers)
        assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])
        answers[owner] = first
    assert [answer.status_code for answer in answers.values()] == [200, 201, 201]
    assert len({answer.json()["run_id"] for answer in answers.values()}) == 3
    assert answers["acme"].json()["run_id"] in world.runs


async def test_a_key_is_that_of_the_owner_the_request_names(world: World) -> None:
    """One token starts runs for several owners: each has the keys that tokens of its own have, and no others."""

    async def started(token: str, owner: str) -> tuple[int, str]:
        said = {} if token == owner else {"owner": owner}
        headers = world.headers(token, Role.OPERATE) | {"Idempotency-Key": "key"}
        answer = await world.http.post("/http_echo/runs", json=said, headers=headers)
        return answer.status_code, answer.json()["run_id"]

    _, for_mallory = await started("mallory", "mallory")
    assert await started("everybody", "mallory") == (200, for_mallory)
    for_acme = await started("everybody", "acme")
    assert for_acme == await started("acme", "acme") == (200, for_acme[1])
    created, for_third = await started("everybody", "third")
    assert created == 201
    assert await started("everybody", "third") == (200, for_third)
    owners = {run_id: (await world.client.detail("http_echo", run_id)).owner for run_id in (for_acme[1], for_third)}
    assert owners == {for_acme[1]: "acme", for_third: "third"}


async def test_an_owner_is_given_by_the_token(world: World) -> None:
    headers = world.headers("mallory", Role.ADMIN)
    assert (await world.http.post("/http_echo/runs", json={"owner": "acme"}, headers=headers)).status_code == 403
    body = {"workflow": "http_echo", "trigger": {"every": 60}, "owner": "acme"}
    assert (await world.http.put("/schedules/x", json=body, headers=headers)).status_code == 403
    event = {"event": {"user_id": "u"}, "owner": "acme"}
    assert (await world.http.post("/http_digest/events", json=event, headers=headers)).status_code == 403
    assert (await world.http.get("/runs", params={"owner": "acme"}, headers=headers)).status_code == 403
    everybody = world.headers("everybody", Role.OPERATE)
    made = await world.http.post("/http_echo/runs", json={"owner": "acme"}, headers=everybody)
    assert (await world.client.detail("http_echo", made.json()["run_id"])).owner == "acme"


async def test_a_batch_is_its_owners(world: World) -> None:
    """Of one key and one event's id each owner has a batch of his own."""

    async def fed(token: str, event_id: str, **more: str) -> Any:
        body = {"event": {"user_id": "u"}, "event_id": event_id} | more
        answer = await world.http.post("/http_digest/events", json=body, headers=world.headers(token, Role.OPERATE))
        assert answer.status_code == 200
        return answer.json()

    (of_acme,) = [run_id for run_id, name in world.runs.items() if name == "http_digest"]
    # acme has one open, with "g"
    assert await fed("mallory", "f") is None
    mine = await fed("mallory", "g")
    assert (await world.client.detail("http_digest", mine["run_id"])).owner == "mallory"
    assert await fed("mallory", "g") == mine
    for path in ("", "/events", "/result"):
        for owner, status in (("mallory", 200), ("acme", 404)):
            url = f"/http_digest/runs/{mine['run_id']}{path}"
            assert (await world.http.get(url, headers=world.headers(owner, Role.READ))).status_code == status
    assert await fed("acme", "f") == {"run_id": of_acme}
    # for all owners: whose it says, else nobody's
    assert await fed("everybody", "f", owner="acme") == {"run_id": of_acme}
    assert await fed("everybody", "f") is None
    other = await fed("everybody", "h", owner="acme")
    assert (await world.client.detail("http_digest", other["run_id"])).owner == "acme"
    assert [(one.owner, one.events) for one in await world.client.buffered("http_digest")] == [("", 1)]


async def test_an_explanation_names_nobody_elses_runs(world: World) -> None:
    """Two runs of acme hold all slots of a gate that mallory's run waits at, and one that acme's third waits at."""
    held = [str(await world.client.submit("http_gated", {"account": "a"}, owner="acme")) for _ in range(2)]

    async def holding() -> bool:
        return all([await world.client.status("http_gated", run_id) == "running" for run_id in held])

    await wait_until_async(holding, description="both slots to be held", interval=0.05)
    for owner, named in (("acme", held), ("mallory", []), ("everybody", held)):
        headers = world.headers(owner, Role.OPERATE)
        body = {"params": {"account": "a"}}
        run_id = (await world.http.post("/http_gated/runs", json=body, headers=headers)).json()["run_id"]

        async def waiting(run_id: str = run_id, headers: dict[str, str] = headers) -> Any:
            told = (await world.http.get(f"/http_gated/runs/{run_id}/explain", headers=headers)).json()
            return told if told["waits_at"] == "Limit" else None

        told = await wait_until_async(waiting, description="the run to wait at the gate", interval=0.05)
        assert (told["status"], told["slots_used"], told["limit"]["max"]) == ("queued", 2, 2)
        assert sorted(told["slot_holders"]) == sorted(named)
        assert "Limit account=a 2/2" in told["text"]
        for holder in held:
            assert (holder in told["text"]) is bool(named)
        await world.client.cancel("http_gated", run_id, timeout=0)
    for run_id in held:
        await world.client.cancel("http_gated", run_id)


async def test_a_schedule_is_its_owners(world: World) -> None:
    body = {"workflow": "http_echo", "trigger": {"every": 86_400}, "params": {}}
    mallory, acme = world.headers("mallory", Role.ADMIN), world.headers("acme", Role.ADMIN)
    made = await world.http.put("/schedules/nightly", json=body | {"paused": True}, headers=mallory)
    assert (made.status_code, made.json()["id"], made.json()["owner"]) == (200, "nightly", "mallory")
    assert (await world.http.get("/schedules/nightly", headers=acme)).json()["owner"] == "acme"
    fired = await world.http.post("/schedules/nightly/trigger", headers=mallory)
    assert (await world.client.detail("http_echo", fired.json()["run_id"])).owner == "mallory"
    assert (await world.http.delete("/schedules/weekly", headers=mallory)).status_code == 404
    assert (await world.http.delete("/schedules/nightly", headers=mallory)).status_code == 204
    assert (await world.http.delete("/schedules/weekly", headers=acme)).status_code == 204
    left = (await world.http.get("/schedules", headers=world.headers("everybody", Role.READ))).json()
    assert [each["owner"] for each in left] == ["acme"]


async def test_what_a_role_may_not_do(world: World) -> None:
    for path, method, said in operations(world.app):
        needed = said["x-pyrula-role"]
        if needed == "none":
            continue
        request = Attack(world, random.Random(1)).request(path, method, said)
        for role in Role:
            if role < Role[needed.upper()]:
                status, _ = await answered(world.http, request, world.headers("everybody", role))
                assert status == 403, (path, method, role)
        status, _ = await answered(world.http, request, {})
        assert status == 401, (path, method)


async def test_hosts_and_traces_are_for_those_who_run_it(world: World) -> None:
    (run_id,) = [run_id for run_id, name in world.runs.items() if name == "http_fails"][:1]
    for owner, role, shown in (
        ("acme", Role.ADMIN, False),
        ("everybody", Role.READ, False),
        ("everybody", Role.ADMIN, True),
    ):
        headers = world.headers(owner, role)
        for path in ("", "/events"):
            text = (await world.http.get(f"/http_fails/runs/{run_id}{path}", headers=headers)).text
            assert ("Traceback" in text) is shown
            assert ("broken" in text) is True
        events = (await world.http.get(f"/http_fails/runs/{run_id}/events", headers=headers)).json()
        assert ("worker" in events[1]["data"]) is shown
