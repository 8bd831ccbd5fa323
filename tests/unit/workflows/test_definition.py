import functools
import gc
import inspect
import sys
import types
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from datetime import timedelta
from typing import Annotated, Any, Protocol
from unittest.mock import AsyncMock

import pytest
from pydantic import BaseModel

from pyrula.workflows.context import Context
from pyrula.workflows.definition import (
    Parameter,
    StepDefinition,
    WorkflowDefinition,
    find_definition,
    registered_definitions,
    step,
    step_of,
    workflow,
)
from pyrula.workflows.errors import ConfigurationError, PolicyKeyWarning
from pyrula.workflows.policies import Collect, Debounce, Limit, Rate, Retry
from tests.unit.workflows import later


class Receipt(BaseModel):
    id: str


async def charge(cents: int) -> Receipt:
    return Receipt(id=f"ch_{cents}")


def refund(receipt: Receipt) -> str:
    return receipt.id


class Till:
    def __init__(self, name: str) -> None:
        self.name = name

    @step(timeout=3)
    async def charge(self, cents: int) -> str:
        return f"{self.name}{cents}"

    async def close(self) -> int:
        return 1

    @staticmethod
    async def count() -> int:
        return 0


class Caller:
    async def __call__(self, cents: int) -> Receipt:
        return Receipt(id=str(cents))


@workflow(name="module_level")
async def module_level(ctx: Any, cents: int) -> Receipt:
    """Charges."""
    return await charge(cents)


def declare(source: str, module: str, file: str) -> None:
    """Runs a module's text as if it had been imported from a file."""
    sys.modules.setdefault(module, types.ModuleType(module))
    code = compile(f"from pyrula.workflows.definition import workflow\n{source}", file, "exec")
    exec(code, {"__name__": module})


class Ctx(Protocol):
    async def sleep(self, seconds: float) -> None: ...


class OwnContext(Context):
    pass


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, Context, OwnContext, Ctx, Context | None, Annotated[Context, "it"], inspect.Parameter.empty,
        "Any", "Context", "workflows.Context", "Later", "Ctx", "'Context'",
    ],
)  # fmt: skip
def test_the_first_parameter_may_be_ctx(annotation: Any) -> None:
    async def body(ctx, order): ...  # type: ignore[no-untyped-def]

    if annotation is not inspect.Parameter.empty:
        body.__annotations__["ctx"] = annotation
    assert [parameter.name for parameter in WorkflowDefinition(body).parameters] == ["order"]


@pytest.mark.parametrize(
    "annotation", [Receipt, dict, dict[str, Any], str | None, list[Receipt], "Receipt", "dict[str, int]", "int"]
)
def test_a_first_parameter_that_is_no_ctx_is_refused(annotation: Any) -> None:
    async def body(order: Any) -> None: ...

    body.__annotations__["order"] = annotation
    with pytest.raises(ConfigurationError, match=r"workflow 'body': ctx must be the first parameter, and `order: "):
        WorkflowDefinition(body)


@pytest.mark.parametrize("annotation", [Context, "Context", "workflows.Context"])
def test_ctx_as_a_later_parameter_is_refused(annotation: Any) -> None:
    async def body(order: Any, ctx: Any) -> None: ...

    body.__annotations__["ctx"] = annotation
    with pytest.raises(ConfigurationError, match=r"ctx must be the first parameter, and `ctx: .* is a later one"):
        WorkflowDefinition(body)


def test_a_param_may_have_a_type_that_is_called_context() -> None:
    class Context(BaseModel):
        pass

    async def body(ctx: Any, context: Context) -> None: ...

    assert len(WorkflowDefinition(body).parameters) == 1


def test_an_unknown_option_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"^@workflow takes no timout=; did you mean timeout?"):
        workflow(timout=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"^@step takes no tries= \(it takes retry, timeout, total_timeout, "):
        step(tries=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("decorator", [workflow, step])
def test_options_by_position_are_refused(decorator: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"takes its options by name: @\w+\(name='charge'\)"):
        decorator("charge")
    with pytest.raises(ConfigurationError, match="takes its options by name"):
        decorator(Retry())


async def test_a_definition_is_called_like_its_function() -> None:
    assert await module_level(None, 5) == Receipt(id="ch_5")
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Charges."
    assert list(inspect.signature(module_level).parameters) == ["ctx", "cents"]
    assert repr(module_level) == "<workflow 'module_level' version '1'>"


def test_defaults_and_options() -> None:
    definition = module_level
    assert (definition.version, definition.retry, definition.timeout) == ("1", None, None)
    assert (definition.concurrency, definition.rate_limit, definition.trigger) == (None, None, None)
    limit, rate, collect, retry = Limit("key", 2), Rate("key", 5, 10), Collect("user", 50, 60), Retry(max_attempts=2)

    @workflow(
        name="sync",
        version="7",
        concurrency=limit,
        rate_limit=rate,
        trigger=collect,
        retry=retry,
        timeout=timedelta(minutes=1),
    )
    async def sync(ctx: Any, key: str, events: list[dict[str, Any]], count: int) -> None:
        pass

    assert (sync.name, sync.version, sync.timeout) == ("sync", "7", 60.0)
    assert (sync.concurrency, sync.rate_limit, sync.trigger, sync.retry) == (limit, rate, collect, retry)


def test_the_decorator_works_bare_and_the_name_defaults_to_the_functions() -> None:
    @workflow
    async def digest(ctx: Any) -> None:
        pass

    assert isinstance(digest, WorkflowDefinition)
    assert digest.name == "digest"


def test_parameters_keep_their_annotations_as_written() -> None:
    @workflow(name="parameters")
    async def body(
        ctx: Any, order: "Receipt", *, count: Annotated[int, "n"] = 3, rest=None, **others: Any
    ) -> "Receipt":
        return order

    assert body.parameters == (
        Parameter("order", "Receipt", has_default=False),
        Parameter("count", Annotated[int, "n"], has_default=True, keyword_only=True),
        Parameter("rest", Any, has_default=True, keyword_only=True),
    )
    assert body.returns == "Receipt"
    assert body.accepts_extra
    assert body.hints() == {
        "ctx": Any,
        "order": Receipt,
        "count": Annotated[int, "n"],
        "others": Any,
        "return": Receipt,
    }
    assert not module_level.accepts_extra


def test_annotations_may_name_what_comes_later() -> None:
    assert later.later.returns == "Receipt"
    assert later.later.hints()["order"] is later.Order
    assert later.later.return_codec.encode(later.Receipt(id="a"), "x") == (b'{"id":"a"}', later.Receipt(id="a"))
    for fn in (later.receipt, later.plain_receipt, later.Till().charge):
        assert step_of(fn).return_codec.decode(b'{"id":"a"}') == later.Receipt(id="a")


def test_annotations_may_name_locals_of_the_function_around() -> None:
    body, work = later.local_definitions()
    local = body.hints()["item"]
    assert body.return_codec.decode(b'[{"id":"a"}]') == [local(id="a")]
    assert type(work.return_codec.decode(b'{"id":"a"}')).__name__ == "Local"


def test_what_cannot_be_resolved_is_named() -> None:
    with pytest.raises(ConfigurationError, match="workflow 'never_resolved': an annotation names 'Typing'"):
        later.never_resolved.hints()
    with pytest.raises(ConfigurationError, match="step `never_returned`: an annotation names 'Typing'"):
        _ = step_of(later.never_returned).return_codec


def test_a_return_annotation_without_a_form_in_json_is_named() -> None:
    class Opaque:
        pass

    async def work() -> Opaque:
        return Opaque()

    @workflow(name="opaque")
    async def body(ctx: Any) -> Opaque:
        return Opaque()

    with pytest.raises(
        ConfigurationError, match=r"work`: its return annotation: values of .*Opaque have no form in JSON"
    ):
        _ = step_of(work).return_codec
    with pytest.raises(ConfigurationError, match="workflow 'opaque': its return annotation"):
        _ = body.return_codec


def no_ctx() -> None: ...


async def no_parameters() -> None: ...


async def only_keywords(*, ctx: Any) -> None: ...


async def generator(ctx: Any) -> AsyncIterator[int]:
    yield 1


async def variable(ctx: Any, *items: int) -> None: ...


async def positional(ctx: Any, item: int, /) -> None: ...


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (no_ctx, "async def"),
        (no_parameters, "take ctx"),
        (only_keywords, "take ctx"),
        (generator, "async generator"),
        (variable, r"`\*items: int` doesn't allow"),
        (positional, "`item: int` doesn't allow"),
        (5, "async def"),
    ],
)
def test_a_function_that_cannot_be_a_body_is_refused(fn: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"workflow 'w'.*{told}"):
        workflow(name="w")(fn)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": 5},
        {"version": ""},
        {"version": 2},
        {"concurrency": Rate("k", 1)},
        {"rate_limit": Limit("k", 1)},
        {"trigger": Limit("k", 1)},
        {"retry": 3},
        {"timeout": 0},
        {"timeout": "1"},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    async def body(ctx: Any, k: str) -> None:
        pass

    with pytest.raises(ConfigurationError):
        workflow(**{"name": "w", **options})(body)


def test_definitions_are_found_by_name() -> None:
    assert find_definition("module_level") is module_level
    assert registered_definitions()["module_level"] is module_level
    assert find_definition("nobody's") is None


def test_a_reloaded_module_replaces_its_definitions() -> None:
    source = "@workflow(name='reloaded')\nasync def body(ctx): pass"
    declare(source, "app_one", "/app/one.py")
    first = find_definition("reloaded")
    declare(source, "app_one", "/app/one.py")
    assert find_definition("reloaded") is not first
    # `python -m app_one` runs the same file under another name
    declare(source, "__main__", "/app/one.py")
    with pytest.raises(ConfigurationError, match="'reloaded' is defined in app_two and in __main__"):
        declare(source, "app_two", "/app/two.py")


def test_a_definition_made_in_a_function_is_registered_while_it_lives() -> None:
    def make() -> WorkflowDefinition[[], None]:
        @workflow(name="short_lived")
        async def body(ctx: Any) -> None:
            pass

        return body

    first, second = make(), make()
    assert find_definition("short_lived") is second
    del first, second
    gc.collect()
    assert find_definition("short_lived") is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"concurrency": Limit("tenant", 2)}, r"Limit\(key='tenant'\) names no parameter"),
        ({"rate_limit": Rate("tenant", 2)}, r"Rate\(key='tenant'\) names no parameter"),
        ({"trigger": Collect("x", 5, 5), "concurrency": Limit("item", 2)}, "key, events and count"),
        ({"trigger": Debounce("x", 5), "rate_limit": Rate("x", 2)}, "key, events and count"),
    ],
)
def test_a_policy_key_that_names_no_parameter_is_warned_of(options: dict[str, Any], told: str) -> None:
    async def body(ctx: Any, item: str) -> None:
        pass

    with pytest.warns(PolicyKeyWarning, match=told) as caught:
        workflow(name="warned", **options)(body)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": Limit("item", 2)},
        {"concurrency": Limit(lambda params: "x", 2)},
        {"trigger": Collect("anything", 5, 5), "concurrency": Limit("key", 2), "rate_limit": Rate("count", 1)},
    ],
)
def test_a_good_policy_key_is_not_warned_of(options: dict[str, Any]) -> None:
    async def body(ctx: Any, item: str) -> None:
        pass

    async def open_body(ctx: Any, **params: Any) -> None:
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workflow(name="not_warned", **options)(body)
        workflow(name="not_warned", concurrency=Limit("tenant", 2))(open_body)


async def test_a_step_is_called_like_its_function() -> None:
    @step
    async def work(cents: int) -> str:
        return f"w{cents}"

    assert await work(3) == "w3"
    assert work.__name__ == "work"
    assert step(refund)(Receipt(id="r")) == "r"
    assert repr(work).endswith("work`>")


def test_step_options() -> None:
    retry = Retry(max_attempts=5)
    definition = step(retry=retry, timeout=10, total_timeout=timedelta(minutes=2), name="pay", inline=True)(refund)
    assert (definition.retry, definition.timeout, definition.total_timeout) == (retry, 10.0, 120.0)
    assert (definition.name, definition.inline, definition.is_async) == ("pay", True, False)
    plain = step_of(charge)
    assert (plain.name, plain.retry, plain.timeout, plain.total_timeout) == ("charge", Retry(), None, None)
    assert (plain.inline, plain.is_async) == (False, True)


def test_options_change_a_copy() -> None:
    definition = step(timeout=10, name="pay")(charge)
    changed = definition.options(timeout=None, retry=Retry(max_attempts=1), name="pay2", inline=True, total_timeout=9)
    assert (changed.timeout, changed.retry.max_attempts, changed.name) == (None, 1, "pay2")
    assert (changed.inline, changed.total_timeout) == (True, 9.0)
    assert (definition.timeout, definition.retry, definition.name) == (10.0, Retry(), "pay")
    assert changed.fn is charge
    assert definition.options().timeout == 10.0
    for bad in ({"timeout": 0}, {"retry": 5}, {"name": ""}, {"total_timeout": -1}):
        with pytest.raises(ConfigurationError, match="step"):
            definition.options(**bad)


@pytest.mark.parametrize(
    ("fn", "name", "is_async"),
    [
        (charge, "charge", True),
        (refund, "refund", False),
        (Till("t").close, "Till.close", True),
        (Till.count, "Till.count", True),
        (functools.partial(charge, 5), "charge", True),
        (functools.partial(functools.partial(refund), Receipt(id="a")), "refund", False),
        (Caller(), "Caller", True),
        (len, "len", False),
        (Receipt, "Receipt", False),
        (AsyncMock(), "AsyncMock", True),
    ],
)
def test_anything_that_can_be_called_is_a_step(fn: Any, name: str, is_async: bool) -> None:
    definition = step_of(fn)
    assert (definition.name, definition.is_async) == (name, is_async)
    assert definition.fn is fn or definition.fn == fn
    assert definition.return_codec is not None


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (charge, Receipt(id="a")),
        (functools.partial(charge, 5), Receipt(id="a")),
        (Caller(), Receipt(id="a")),
        (Receipt, Receipt(id="a")),
        (Till("t").close, 5),
        (lambda: 1, [1]),
        (len, 3),
    ],
)
def test_the_return_codec_is_that_of_the_annotation(fn: Any, value: Any) -> None:
    assert step_of(fn).return_codec.encode(value, "x")[1] == value


def test_a_function_that_declares_an_awaitable_gives_what_awaiting_gives() -> None:
    def later_on() -> Awaitable[Receipt]:
        return charge(1)

    def coroutine() -> Coroutine[Any, Any, Receipt]:
        return charge(1)

    for fn in (later_on, coroutine, step(later_on)):
        assert step_of(fn).return_codec.annotation is Receipt


def test_a_wrapped_function_declares_what_the_wrapped_one_does() -> None:
    @functools.wraps(charge)
    async def logged(*args: Any, **kwargs: Any) -> Any:
        return await charge(*args, **kwargs)

    assert step_of(logged).return_codec.annotation is Receipt
    assert step_of(logged).fn is logged


async def test_a_step_declared_on_a_method_is_bound() -> None:
    one, two = Till("a"), Till("b")
    assert await one.charge(1) == "a1"
    assert await two.charge(1) == "b1"
    definition = step_of(one.charge)
    assert isinstance(definition, StepDefinition)
    assert (definition.name, definition.timeout, definition.is_async) == ("Till.charge", 3.0, True)
    assert definition.return_codec.annotation is str
    assert isinstance(Till.charge, StepDefinition)


@pytest.mark.parametrize("fn", [5, None, "charge"])
def test_what_cannot_be_called_is_no_step(fn: Any) -> None:
    with pytest.raises(ConfigurationError, match="something to call"):
        step_of(fn)


def test_generators_and_workflows_are_no_steps() -> None:
    def lines() -> Iterator[str]:
        yield "a"

    for fn in (lines, generator):
        with pytest.raises(ConfigurationError, match="is a generator"):
            step_of(fn)
    with pytest.raises(ConfigurationError, match="is a workflow"):
        step_of(module_level)


def test_a_module_functions_definition_is_kept_and_a_local_ones_is_not() -> None:
    assert step_of(charge) is step_of(charge)
    definition = step(charge)
    assert step_of(definition) is definition

    def make() -> Any:
        receipt = Receipt(id="a")

        async def local() -> Receipt:
            return receipt

        return local

    local, till = make(), Till("a")
    assert step_of(local).return_codec.annotation is Receipt
    assert step_of(till.close).return_codec.annotation is int
    gone = [weakref.ref(local), weakref.ref(till)]
    del local, till
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
