"""The configurations that are searched: the small ones each time the tests run, the large ones with PYRULA_SOAK=1."""

from tests.model.world import Faults, Setup

SMALL = {
    "two records, the first parks; nothing goes wrong": Setup("aa", ("p", "d"), again=1),
    "three records that may park; nothing goes wrong": Setup("aaa", ("dp", "dp", "d")),
    "two keys; nothing goes wrong": Setup("aba", ("p", "dp", "d")),
    "two records, the first parks; a crash": Setup("aa", ("p", "d"), faults=Faults(crash=1)),
    "two records, the second parks; a crash, and the map is lost": Setup(
        "aa", ("d", "p"), faults=Faults(crash=1, no_map=1)
    ),
    "two records, the first parks; an owner that doesn't know": Setup("aa", ("p", "d"), faults=Faults(reassign=1)),
    "two records that may park; a lost answer and a late copy": Setup(
        "aa", ("dp", "dp"), faults=Faults(lost=1, copy=1)
    ),
    "two records that may park; a lease is lost, by one who goes on": Setup(
        "aa", ("dp", "p"), faults=Faults(lease=1), executors=2
    ),
    "two records; an executor crashes": Setup("aa", ("p", "dp"), faults=Faults(executor_crash=1), executors=2),
    "two records; a cancel, and a crash": Setup("aa", ("p", "d"), faults=Faults(cancel=1, crash=1)),
    "a signal before the store has the run, and a crash": Setup("aa", ("p", "d"), faults=Faults(early=1, crash=1)),
    "null keys; a crash": Setup("--", ("p", "d"), faults=Faults(crash=1)),
    "two records; the store restarts": Setup("aa", ("p", "p"), faults=Faults(restart=1, crash=1)),
    "a queue of one; nothing goes wrong": Setup("aaa", ("p", "d", "d"), 1),
    "a queue of two, three records that may park; nothing goes wrong": Setup("aaa", ("dp", "dp", "d"), 2),
    "a queue of one; a crash": Setup("aa", ("p", "d"), 1, faults=Faults(crash=1)),
    "a queue of one; an owner that doesn't know": Setup("aa", ("p", "d"), 1, faults=Faults(reassign=1)),
    "a queue of one; a lost answer and a late copy": Setup("aa", ("p", "d"), 1, faults=Faults(lost=1, copy=1)),
    "a queue of two; a cancel": Setup("aaa", ("p", "d", "d"), 2, faults=Faults(cancel=1)),
    "one that fails blocks its lane, and is retried or cancelled": Setup(
        "aa", ("f", "d"), 1, again=1, faults=Faults(cancel=1)
    ),
}

LARGE = {
    "two records, the first parks; a crash and an owner that doesn't know": Setup(
        "aa", ("p", "d"), faults=Faults(crash=1, reassign=1)
    ),
    "two records, the second parks; the same, and the map is lost": Setup(
        "aa", ("d", "p"), faults=Faults(crash=1, reassign=1, no_map=1)
    ),
    "two records that may park; a crash and an owner that doesn't know": Setup(
        "aa", ("dp", "dp"), faults=Faults(crash=1, reassign=1)
    ),
    "two records, the second parks; two crashes": Setup("aa", ("d", "p"), faults=Faults(crash=2)),
    "two records, the first parks; an owner that doesn't know, a lost answer": Setup(
        "aa", ("p", "d"), faults=Faults(reassign=1, lost=1)
    ),
    "two records, the first parks; an owner that doesn't know, a late copy": Setup(
        "aa", ("p", "d"), faults=Faults(reassign=1, copy=1)
    ),
    "three records, two park; a crash": Setup("aaa", ("p", "p", "d"), faults=Faults(crash=1)),
    "three records that may park, two of them; an owner that doesn't know": Setup(
        "aaa", ("dp", "dp", "d"), faults=Faults(reassign=1)
    ),
    "three records, two park; a lease is lost, a late copy": Setup(
        "aaa", ("p", "p", "d"), faults=Faults(lease=1, copy=1), executors=2
    ),
    "two keys, three records; a crash": Setup("aba", ("p", "d", "d"), faults=Faults(crash=1)),
    "two keys, three records; an owner that doesn't know": Setup("aba", ("p", "dp", "d"), faults=Faults(reassign=1)),
    "two keys, four records; a crash": Setup("abab", ("p", "d", "d", "d"), faults=Faults(crash=1)),
    "two records; two cancels, a crash, a run that parks again": Setup(
        "aa", ("p", "p"), again=1, faults=Faults(cancel=2, crash=1)
    ),
    "null keys; a crash and a late copy": Setup("--", ("p", "d"), faults=Faults(crash=1, copy=1)),
    "a signal before the store has the run, an owner that doesn't know": Setup(
        "aa", ("p", "dp"), faults=Faults(early=1, reassign=1)
    ),
    "a queue of one; a crash and an owner that doesn't know": Setup(
        "aa", ("p", "d"), 1, faults=Faults(crash=1, reassign=1)
    ),
    "a queue of one, two of three park; a crash": Setup("aaa", ("p", "p", "d"), 1, faults=Faults(crash=1)),
    "a queue of two, three records; a crash": Setup("aaa", ("p", "d", "d"), 2, faults=Faults(crash=1)),
    "a queue of two, three records; an owner that doesn't know": Setup(
        "aaa", ("p", "d", "d"), 2, faults=Faults(reassign=1)
    ),
    "a queue of one; an owner that doesn't know, a lost answer": Setup(
        "aa", ("p", "d"), 1, faults=Faults(reassign=1, lost=1)
    ),
    "a queue of one; an owner that doesn't know, a late copy": Setup(
        "aa", ("p", "d"), 1, faults=Faults(reassign=1, copy=1)
    ),
    "a queue of one; a crash, and the store restarts": Setup("aa", ("p", "d"), 1, faults=Faults(crash=1, restart=1)),
    "a queue of one; a lease is lost, by one who goes on": Setup(
        "aaa", ("p", "d", "d"), 1, again=1, faults=Faults(lease=1), executors=2
    ),
    "a queue of one, two keys; a crash": Setup("aba", ("p", "d", "d"), 1, faults=Faults(crash=1)),
    "one that fails blocks its lane, and is retried or cancelled; a crash": Setup(
        "aa", ("f", "d"), 1, again=1, faults=Faults(cancel=1, crash=1)
    ),
    "the same; an owner that doesn't know": Setup("aa", ("f", "d"), 1, faults=Faults(cancel=1, reassign=1)),
    "two records that may park; a lease is lost, a run parks again": Setup(
        "aa", ("dp", "p"), again=1, faults=Faults(lease=1), executors=2
    ),
    "two records; an executor crashes, and a copy of its last call comes late": Setup(
        "aa", ("p", "dp"), faults=Faults(executor_crash=1, copy=1), executors=2
    ),
    "a queue of two; two cancels": Setup("aaa", ("p", "d", "d"), 2, faults=Faults(cancel=2)),
    "three records, the first and the last park; a crash": Setup("aaa", ("p", "d", "p"), faults=Faults(crash=1)),
}
