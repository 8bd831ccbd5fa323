"""A route of the API: its path as it was sent, who may call it, its body within limits, its errors as problem details.

Rules: who calls is asked before the body is read. A segment of a path is decoded after the path was taken apart, so a
name may hold any character, a slash included, and `..` is a name like any other. Every route says what it needs; one
that doesn't is a mistake that shows when it is made. Nothing of an exception goes out that `problems` doesn't let out.
What is read by GET is there for HEAD, too, streams excepted; a method that isn't there hears of all that are.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from pyrula.http.access import Access, Needs
from pyrula.http.api import Api
from pyrula.http.bodies import BoundedRequest
from pyrula.http.pieces import Pieces
from pyrula.http.problems import MEDIA_TYPE, SCHEMA, TABLE, problem_of
from pyrula.http.tokens import Role
from pyrula.http.waiting import CallerLeft

__all__ = ["Routes", "also", "errors", "make_router"]

_ROLE: Final = "x-pyrula-role"
_ALL_OWNERS: Final = "x-pyrula-all-owners"
_NOBODY: Final = "none"
_CALLER_LEFT: Final = 499
"""Nobody sees it but /metrics."""


class Routes:
    """Adds routes to a router, each of which says only what it doesn't share with the others. `all_owners`: none of
    them is for tenants."""

    def __init__(self, router: APIRouter, *, all_owners: bool = False) -> None:
        self._router = router
        self._all_owners = all_owners

    def add(
        self,
        route: str,
        function: Callable[..., Coroutine[Any, Any, Response]],
        summary: str,
        role: Role | None,
        answer: Any = None,
        *,
        status: int = 200,
        others: dict[int | str, dict[str, Any]] | None = None,
        response_class: type[Response] = JSONResponse,
        shown: bool = True,
        all_owners: bool = False,
    ) -> None:
        """`route` is a method and a path; `role` None asks nobody who he is. `answer` is the model of what a `status`
        has in its body, `others` are the other answers; `shown`: whether the OpenAPI document has it."""
        method, _, path = route.partition(" ")
        said: dict[str, Any] = {_ROLE: _NOBODY if role is None else role.name.lower()}
        if all_owners or self._all_owners:
            said[_ALL_OWNERS] = True
        self._router.add_api_route(
            path,
            function,
            methods=[method],
            summary=summary,
            status_code=status,
            response_model=answer,
            responses=others or {},
            response_class=response_class,
            include_in_schema=shown,
            openapi_extra=said,
        )


class Route(APIRoute):
    """Made by `make_router`, which sets what is the same for all routes of a router."""

    access: ClassVar[Access]
    api: ClassVar[Api]
    max_body: ClassVar[int]
    methods_of: ClassVar[dict[str, set[str]]]
    """By path: a path's methods are on routes of their own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own = set(self.methods or ())
        kind: Any = kwargs.get("response_class")
        self._tells_head = "GET" in self._own and not (isinstance(kind, type) and issubclass(kind, Pieces))
        self.methods_of.setdefault(self.path, set()).update(self._own | ({"HEAD"} if self._tells_head else set()))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        encoded = _encoded_path(scope)
        if encoded is None:
            return Match.NONE, {}
        match, child = super().matches({**scope, "path": encoded, "method": self._method(scope)})
        if "path_params" in child:
            child["path_params"] = {
                name: value.replace("%2F", "/").replace("%25", "%") if isinstance(value, str) else value
                for name, value in child["path_params"].items()
            }
        return match, child

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = self._method(scope)
        if method not in self._own:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self.methods_of[self.path]))})
        # the server leaves out what HEAD doesn't want
        await super().handle({**scope, "method": method}, receive, send)

    def _method(self, scope: Scope) -> str:
        method: str = scope["method"]
        return "GET" if method == "HEAD" and self._tells_head else method

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        wanted, shown = _needs_of(self), f"{'/'.join(sorted(self.methods or ()))} {self.path}"

        async def guarded(request: Request) -> Response:
            bounded = BoundedRequest(request.scope, request.receive, max_body=self.max_body)
            try:
                if wanted is None:
                    self.access.check_origin(bounded)
                else:
                    bounded.state.pyrula_principal = await self.access.admit(bounded, wanted)
                bounded.state.pyrula_api, bounded.state.pyrula_access = self.api, self.access
                return await handler(bounded)
            except CallerLeft:
                return Response(status_code=_CALLER_LEFT)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must become an answer
                return problem_of(error, route=shown)

        return guarded


def make_router(access: Access, api: Api, *, max_body: int, dependencies: Iterable[Any] = ()) -> APIRouter:
    kind = type("PyrulaRoute", (Route,), {"access": access, "api": api, "max_body": max_body, "methods_of": {}})
    return APIRouter(
        route_class=kind,
        redirect_slashes=False,
        dependencies=list(dependencies),
        responses=errors(400, 401, 403, 408, 413, 415, 421, 422, 500, 503),
    )


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: the problems it may answer with."""
    return {
        status: {
            "description": _DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": SCHEMA}},
        }
        for status in statuses
    }


def also(status: int, description: str, model: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: another answer that is no problem."""
    return {status: {"description": description, **({} if model is None else {"model": model})}}


def _needs_of(route: APIRoute) -> Needs | None:
    said = (route.openapi_extra or {}).get(_ROLE)
    if said is None:
        raise TypeError(f"the route {route.path} doesn't say which role it needs")
    if said == _NOBODY:
        return None
    return Needs(Role.named(said), bool((route.openapi_extra or {}).get(_ALL_OWNERS)))


def _encoded_path(scope: Scope) -> str | None:
    """The path with only "/" and "%" of its segments encoded; None if it is no text.

    A server that keeps no raw path has decoded it already: then a slash in a name can't be told from one beside it."""
    path: str = scope["path"]
    raw = scope.get("raw_path")
    if not raw:
        return path.replace("%", "%25")
    # the server puts its root path before both
    segments = raw.partition(b"?")[0].split(b"/")
    try:
        decoded = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError:
        return None
    return "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in decoded)


def _told(status: int) -> str:
    names = sorted(kind.__name__ for kind, row in TABLE.items() if row.status == status)
    return ", ".join(names)


_DESCRIPTIONS: Final = {
    202: f"Not yet: {_told(202)}",
    400: "The body is no JSON, or the query's handler raised (QueryError)",
    401: "No valid bearer token",
    403: "The token's role or owner doesn't allow this",
    404: f"{_told(404)}",
    408: "The body came too slowly",
    409: f"{_told(409)}",
    413: "The body is too large",
    415: "The body isn't declared as JSON",
    421: "The server isn't known under the name in the Host header",
    422: f"The request doesn't fit; {_told(422)}",
    429: f"{_told(429)}; see Retry-After",
    500: "The server failed",
    503: f"{_told(503)}; see Retry-After",
    504: f"{_told(504)}",
}
