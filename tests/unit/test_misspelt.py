"""A keyword that is misspelt is answered with the one that was meant, wherever a person writes keywords."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import (
    ConfigurationError,
    Context,
    MemoryStore,
    Retry,
    ValkeyStore,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    step,
    workflow,
)

STORE: Any = MemoryStore()


@workflow(name="misspelt")
async def body(ctx: Context) -> None: ...


MISSPELT: list[tuple[Callable[[], object], str]] = [
    (lambda: KafkaWorker([], stor=STORE), "KafkaWorker takes no stor=; did you mean store?"),
    (lambda: WorkflowWorker([body], store=STORE, option=1), "WorkflowWorker takes no option=; did you mean options?"),
    (lambda: WorkerOptions(max_concurency=3), "max_concurency: no such option; did you mean max_concurrency?"),
    (lambda: WorkerOptions(threads=3), "threads: no such option (there are: claim_poll_interval, "),
    (lambda: ValkeyStore(namespaces="x"), "ValkeyStore takes no namespaces=; did you mean namespace?"),
    (lambda: KafkaOptions(bootstrap_server="x"), "bootstrap_server is not an option; did you mean bootstrap_servers?"),
    (lambda: Binding(body, topic="t", groups="g"), "Binding takes no groups=; did you mean group?"),
    (lambda: WorkflowClient(STORE, poll=1), "WorkflowClient takes no poll= (it takes store, poll_interval, "),
    (lambda: workflow(nmae="x"), "@workflow takes no nmae=; did you mean name?"),
    (lambda: step(timout=5), "@step takes no timout=; did you mean timeout?"),
    (lambda: Retry(max_attempt=5), "did you mean max_attempts?"),
]


@pytest.mark.parametrize(("write", "said"), MISSPELT, ids=[said.split()[0] for _, said in MISSPELT])
def test_the_keyword_that_was_meant_is_named(write: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        write()
