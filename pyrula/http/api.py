"""What all routes share: the client, the run or the owner that a caller means, and what he may not see of others.

Rules: a run of another owner is answered like one that isn't there. An idempotency key is the run's owner's own, and a
schedule's id that of a caller who has an owner, so that they meet those of nobody else: they are kept with the owner in
front.
"""

from collections.abc import Sequence
from typing import Any, Final

from pyrula.http.problems import Refusal
from pyrula.http.tokens import Principal
from pyrula.http.waiting import Closing
from pyrula.workflows.client import RunHandle, ScheduleInfo, ScheduleNotFoundError, WorkflowClient
from pyrula.workflows.definition import WorkflowDefinition, registered_definitions
from pyrula.workflows.naming import meant
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["Api", "scoped", "unscoped"]

_MARK: Final = "owner:"


class Api:
    """The client and what calls of it over HTTP need besides."""

    def __init__(
        self, client: WorkflowClient, workflows: Sequence[WorkflowDefinition[Any, Any]] | None, closing: Closing
    ) -> None:
        self.client = client
        self.closing = closing
        self._workflows = None if workflows is None else {each.name: each for each in workflows}

    def definitions(self) -> dict[str, WorkflowDefinition[Any, Any]]:
        """The workflows whose params are known here."""
        return registered_definitions() if self._workflows is None else dict(self._workflows)

    def check_name(self, name: str) -> None:
        """Any workflow may be started, unless the API is for some only."""
        if self._workflows is not None and name not in self._workflows:
            raise Refusal("NotFound", f"this API has no workflow {name!r:.100}")

    def note_on(self, name: str) -> str | None:
        """What to tell of a workflow that is only known by name."""
        if name in self.definitions():
            return None
        hint = meant(name, self.definitions())
        return f"the server hasn't imported workflow {name!r:.100}: params unchecked, no version, no flow control{hint}"

    async def run(self, name: str, run_id: str, principal: Principal) -> RunHandle[Any]:
        """The run that a path names. RunNotFoundError, also for a run of another workflow or owner."""
        self.check_name(name)
        try:
            origin = await self.client.origin(name, run_id)
        except RunNotFoundError:
            origin = None
        if origin is None or origin.name != name or not principal.sees(origin.owner):
            # the same text for all three, or it would tell of others' runs
            raise RunNotFoundError(run_id, f"workflow {name!r:.100} has none of this id")
        return self.client.handle(name, run_id)

    def owner(self, wanted: str | None, principal: Principal) -> str:
        """The owner of what a caller makes."""
        if principal.owner is None:
            return wanted or ""
        if wanted is not None and wanted != principal.owner:
            raise Refusal("Forbidden", "owner: the token is for another owner")
        return principal.owner

    def owner_filter(self, wanted: str | None, principal: Principal) -> str | None:
        """The owner whose runs are listed; None: all."""
        if principal.owner is None:
            return wanted
        return self.owner(wanted, principal)

    async def schedule(self, schedule_id: str, principal: Principal) -> ScheduleInfo:
        """One that the caller may see: of those of one id, his own. ScheduleNotFoundError."""
        for stored_id in dict.fromkeys((scoped(schedule_id, principal.owner), schedule_id)):
            try:
                found = await self.client.schedules.get(stored_id)
            except ScheduleNotFoundError:
                continue
            if principal.sees(found.owner):
                return found
        raise ScheduleNotFoundError(f"no schedule has the id {schedule_id!r:.100}")


def scoped(text: str, owner: str | None) -> str:
    """A key or an id, apart from those of all other owners; as it is where it is nobody's."""
    return f"{_prefix(owner)}{text}" if owner else text


def unscoped(text: str, principal: Principal) -> str:
    """As its caller knows it."""
    return text if principal.owner is None else text.removeprefix(_prefix(principal.owner))


def _prefix(owner: str) -> str:
    # with its length, or the owner "a" with the key "b:c" would be the owner "a:b" with "c"
    return f"{_MARK}{len(owner)}:{owner}:"
