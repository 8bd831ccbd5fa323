import logging

from pyrula.cli.damper import LINES, SECONDS, Damper


def line(text: str, *args: object, name: str = "aiokafka.cluster", number: int = 7) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "cluster.py", number, text, args, None)


def test_repeated_lines_of_the_client_are_held_back_and_counted() -> None:
    now = 100.0
    damper = Damper(lambda: now)
    passed = [damper.filter(line("Topic %s not found", f"t{number}")) for number in range(LINES + 20)]
    assert passed == [True] * LINES + [False] * 20
    assert damper.filter(line("another statement", number=8)) is True
    now += SECONDS
    again = line("Topic %s not found", "t0")
    assert damper.filter(again) is True
    assert again.getMessage() == f"Topic t0 not found (20 more like it in the last {SECONDS:.0f} s)"


def test_lines_of_others_pass() -> None:
    damper = Damper(lambda: 1.0)
    assert all(damper.filter(line("same", name="pyrula.kafka")) for _ in range(50))
