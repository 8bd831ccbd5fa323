"""Apache Kafka's jars on this machine: fetched once by Maven into a cache folder, then used from there.

The cache is $PYRULA_CACHE, else $XDG_CACHE_HOME/pyrula, else ~/.cache/pyrula. A fetch goes to a folder of its own
that is renamed when complete, under a file lock, so that two test runs at once, or one that is killed, leave no
half-filled cache.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services.child import ServiceUnavailable

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
JAVA_MINIMUM = 17
_POM = Path(__file__).with_name("kafka-pom.xml")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_TIMEOUT = 600


def cache_folder() -> Path:
    if own := os.environ.get("PYRULA_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyrula"


def find_java() -> str:
    """The java to run: JAVA_HOME's if it is new enough, else the PATH's. ServiceUnavailable if there is none."""
    candidates = [str(Path(home) / "bin" / "java")] if (home := os.environ.get("JAVA_HOME")) else []
    if on_path := shutil.which("java"):
        candidates.append(on_path)
    found = []
    for java in candidates:
        version = _java_version(java)
        if version is not None and version >= JAVA_MINIMUM:
            return java
        found.append(f"{java} is version {version}")
    raise ServiceUnavailable(
        f"Kafka {KAFKA_VERSION} needs Java {JAVA_MINIMUM} or later ({'; '.join(found) or 'no java on the PATH'}): "
        "install a JRE, or set PYRULA_KAFKA to a running broker"
    )


def _java_version(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match.group(1)) if match else None


def find_jars(version: str = KAFKA_VERSION) -> Path:
    """The folder of the broker's jars, fetched now if the cache lacks it."""
    folder = cache_folder() / f"kafka-{version}-{LOG4J_VERSION}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceUnavailable(
            "Kafka's jars are not in the cache and there is no mvn on the PATH to fetch them: "
            "install Maven, or set PYRULA_KAFKA to a running broker"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(maven, version, folder)
    return folder


def _fetch(maven: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
        command = [maven, "-B", "-q", "-f", str(_POM), f"-Dkafka.version={version}", f"-Dlog4j.version={LOG4J_VERSION}"]
        command += [_COPY, "-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise ServiceUnavailable(f"Maven did not fetch Kafka {version} within {_FETCH_TIMEOUT} s") from None
        if done.returncode != 0:
            raise ServiceUnavailable(f"Maven could not fetch Kafka {version}:\n{(done.stdout + done.stderr)[-2000:]}")
        Path(scratch, "jars").rename(folder)
