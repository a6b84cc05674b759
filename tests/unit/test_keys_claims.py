"""docs/security.md promises nothing without a test, and nothing by a test that is gone."""

import re
from pathlib import Path

from gateway.routes import ROUTES
from topics import settings

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_test_named_in_the_security_page_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    existing = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert named - existing == set()
    claims = PAGE.split("## Claims, and their tests")[1].split("\n## ")[0]
    rows = [line for line in claims.splitlines() if line.startswith("|")][2:]
    assert [row for row in rows if "`test_" not in row] == []


def test_the_security_page_shows_every_route_beside_its_scope() -> None:
    rows = dict(re.findall(r"^\| `?([a-z+]+)`? \| (.*) \|$", PAGE, re.MULTILINE))
    for route in ROUTES:
        path = "/" + "/".join(route.pattern)
        if route.scope == "none":
            if path.startswith("/v0/"):
                assert f"`{path}`" in rows["none"]
        else:
            assert f"`{route.method} {path}`" in rows[route.scope]


def test_the_security_page_shows_the_real_defaults() -> None:
    rows = {row.name: row.default for row in settings.VARIABLES}
    for name, default in re.findall(r"^\| `(TOPICS_\w+)` \| `(.*?)` \|", PAGE, re.MULTILINE):
        assert rows[name] == default
