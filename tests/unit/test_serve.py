"""The local page: what it shows, and what it refuses to read."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner

from sieve.cli.main import app as cli
from sieve.errors import InvalidInput
from sieve.serve import find_run, list_runs, make_app
from sieve.serve.comparison import compare

BAD = "<script>alert(1)</script>"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Client:
    """Sends requests as they are: an ordinary client would tidy up a path that climbs."""

    app: Starlette

    def get(self, path: str, *, host: str = "127.0.0.1", method: str = "GET") -> Answer:
        address, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": urllib.parse.unquote(address), "root_path": "",
            "raw_path": address.encode("utf-8"), "query_string": query.encode("ascii"),
            "headers": [(b"host", host.encode("ascii"))],
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # the client stays
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        asyncio.run(self.app(scope, receive, send))
        head = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], head, body.decode("utf-8"))


@pytest.fixture
def runs(small_run: Any, tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    shutil.copytree(small_run.folder, root / "one")
    shutil.copytree(small_run.folder, root / "batch" / "two")
    (root / "empty").mkdir()
    return root


@pytest.fixture
def client(runs: Path) -> Client:
    return Client(make_app(runs, ["127.0.0.1"], "0.0.0"))


def test_the_list_names_every_finished_run(client: Client, runs: Path) -> None:
    page = client.get("/")
    assert page.status == 200
    assert sorted(entry.name for entry in list_runs(runs)) == ["batch/two", "one"]
    assert 'href="/report/batch/two"' in page.text
    assert "clears every objective" in page.text


def test_a_report_is_made_from_the_data_and_runs_our_script_only(
    client: Client, runs: Path
) -> None:
    (runs / "one" / "report.html").write_text("planted by a stranger", encoding="utf-8")
    page = client.get("/report/one")
    assert page.status == 200
    assert "planted" not in page.text
    allowed = re.findall(r"script-src '(sha256-[^']+)'", page.headers["content-security-policy"])
    assert len(allowed) == 1
    assert f"script-src &#39;{allowed[0]}&#39;" in page.text or allowed[0] in page.text


@pytest.mark.parametrize("path", ["/", "/report/one", "/compare?a=one&b=one", "/result/one", "/x"])
def test_every_answer_forbids_what_it_does_not_need(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/report/one", "/compare", "/result/one"])
def test_nothing_can_be_written(client: Client, method: str, path: str) -> None:
    assert client.get(path, method=method).status == 405


@pytest.mark.parametrize(
    "name",
    [
        "..", "../secret", "one/../../secret", "/etc", "one/%2e%2e/%2e%2e/secret",
        "%2e%2e%2fsecret", "..%2fsecret", "one%00", "link", "one/plan", ".hidden",
        "one\\..\\..\\secret", "", "a/b/c/d/e",
    ],
)  # fmt: skip
def test_only_runs_below_the_folder_are_read(client: Client, runs: Path, name: str) -> None:
    secret = runs.parent / "secret"
    shutil.copytree(runs / "one", secret)
    (runs / "link").symlink_to(secret)
    shutil.copytree(runs / "one", runs / ".hidden")
    for kind in ("report", "result"):
        assert client.get(f"/{kind}/{name}").status in {404, 307}
    assert client.get(f"/compare?a={urllib.parse.quote(name)}&b=one").status == 404
    assert find_run(runs, name) is None
    assert "link" not in {entry.name for entry in list_runs(runs)}


@pytest.mark.parametrize(
    "file", ["candidates.parquet", "simulations.parquet", "timeline.parquet", "plan"]
)
def test_a_link_inside_a_run_is_refused(client: Client, runs: Path, file: str) -> None:
    path = runs / "one" / file
    moved = runs.parent / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    assert client.get("/report/one").status == 403


def test_a_linked_result_is_no_run(client: Client, runs: Path) -> None:
    (runs / "one" / "result.json").rename(runs.parent / "r.json")
    (runs / "one" / "result.json").symlink_to(runs.parent / "r.json")
    assert client.get("/result/one").status == 404


def test_another_host_name_is_refused(client: Client) -> None:
    assert client.get("/", host="evil.example").status == 400


def test_every_text_of_a_run_is_escaped(client: Client, runs: Path) -> None:
    path = runs / "one" / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    result["spec"] |= {"name": BAD, "model": BAD, "engine": BAD, BAD: BAD}
    result["sieve_version"] = BAD
    result["ranking"][0]["gpu"] = BAD
    path.write_text(json.dumps(result), encoding="utf-8")
    for address in ("/", "/report/one", "/compare?a=one&b=batch/two"):
        page = client.get(address)
        assert page.status == 200
        assert BAD not in page.text
        assert "&lt;script&gt;alert(1)" in page.text


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"schema_version": "9.0"}', '{"schema_version": "1.0", "ranking": 3}']
)
def test_a_broken_run_is_listed_as_such_and_breaks_nothing(
    client: Client, runs: Path, content: str
) -> None:
    (runs / "one" / "result.json").write_text(content, encoding="utf-8")
    assert client.get("/").status == 200
    problem = client.get("/report/one")
    assert problem.status == 422
    assert "result.json" in problem.text


def test_two_runs_side_by_side(client: Client, runs: Path) -> None:
    path = runs / "one" / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    result["spec"]["seed"] = 77
    path.write_text(json.dumps(result), encoding="utf-8")
    page = client.get("/compare?a=one&b=batch/two").text
    assert re.search(r'<th scope="row">seed</th><td>77</td><td><b>0</b></td>', page)
    same = client.get("/compare?a=one&b=one").text
    assert "The resolved specs are equal." in same
    assert "no change" in same


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"low": 0.9, "mid": 1.25, "high": 1.5}, "+25 %, intervals overlap"),
        ({"low": 0.4, "mid": 0.5, "high": 0.6}, "\N{MINUS SIGN}50 %, intervals part"),
        ({"mid": 0.5}, "\N{MINUS SIGN}50 %"),
        ({"mid": None}, "unknown"),
        ("x", "unknown"),
    ],
)
def test_a_difference_says_whether_the_intervals_part(second: Any, words: str) -> None:
    sides = [
        {"ranking": [{"ttft_p99_s": ends}], "stages": []}
        for ends in ({"low": 0.8, "mid": 1.0, "high": 1.2}, second)
    ]
    (row,) = (row for row in compare(*sides)["metrics"] if row[0] == "TTFT p99")
    assert row[3] == words


def test_pages_that_stand_alone_lead_back_and_browsers_find_no_fault(client: Client) -> None:
    assert '<a href="/">All runs</a>' in client.get("/report/one").text
    assert client.get("/favicon.ico").status == 204


@pytest.mark.parametrize("place", [".", "nights"])
def test_a_nightly_history_is_linked_and_may_run_nothing(
    client: Client, runs: Path, place: str
) -> None:
    (runs / place).mkdir(exist_ok=True)
    (runs / place / "history.html").write_text(f"<body><p>nights</p>{BAD}", encoding="utf-8")
    assert f'href="/history/{place}"' in client.get("/").text
    page = client.get(f"/history/{place}")
    assert "<p>nights</p>" in page.text
    assert '<a href="/">All runs</a>' in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    assert policy.endswith("sandbox")


@pytest.mark.parametrize("name", ["one", "..", "../nights", "link", "", "nights/history.html"])
def test_no_other_page_is_a_history(client: Client, runs: Path, name: str) -> None:
    outside = runs.parent / "nights"
    outside.mkdir()
    (outside / "history.html").write_text("secret", encoding="utf-8")
    (runs / "link").symlink_to(outside)
    (runs / "one" / "history.html").symlink_to(outside / "history.html")
    assert client.get(f"/history/{name}").status in {404, 307}


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    page = Client(make_app(tmp_path, ["*"], "0")).get("/")
    assert "sieve run SPEC --out FOLDER" in page.text


def test_the_command_serves_on_loopback_until_it_is_told_to_end(runs: Path) -> None:
    code = "from sieve.cli.main import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(runs), "--port", "0", "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(4)]
        url = urllib.parse.urlsplit(json.loads("".join(lines))["url"])
        assert url.hostname == "127.0.0.1"
        connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=600)
        connection.request("GET", "/report/one")
        assert b"Which knob matters" in connection.getresponse().read()
        connection.close()
        server.terminate()
        assert server.wait(timeout=300) in {0, -15}
    finally:
        server.kill()
        server.communicate()


@pytest.mark.skipif(BROWSER is None, reason="chromium is not on the PATH")
def test_a_browser_shows_the_list_and_runs_nothing_of_strangers(runs: Path, tmp_path: Path) -> None:
    result = json.loads((runs / "one" / "result.json").read_text())
    result["spec"]["name"] = "<img src=x onerror=\"document.title='taken'\">"
    (runs / "one" / "result.json").write_text(json.dumps(result))
    (runs / "nights").mkdir()
    script = "<p>nights</p><script>document.title='taken'</script>"
    (runs / "nights" / "history.html").write_text(script, encoding="utf-8")
    code = "from sieve.cli.main import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(runs), "--port", "0", "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        url = json.loads("".join(server.stdout.readline() for _ in range(4)))["url"].rstrip("/")
        pages = {}
        for path in ("", "/report/one", "/compare?a=one&b=batch/two", "/history/nights"):
            shown = subprocess.run(
                [
                    str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
                    f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000",
                    "--dump-dom", url + path,
                ],
                capture_output=True, text=True, check=True, timeout=240,
            )  # fmt: skip
            pages[path] = shown.stdout
    finally:
        server.kill()
        server.communicate()
    assert "batch/two" in pages[""]
    assert "Which knob matters" in pages["/report/one"]
    assert "nights" in pages["/history/nights"]
    assert not [path for path, page in pages.items() if "<title>taken" in page]


def test_a_port_that_is_taken_is_said(runs: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = CliRunner().invoke(cli, ["serve", str(runs), "--port", str(taken.getsockname()[1])])
    assert isinstance(done.exception, InvalidInput)
    assert "--port 0 for a free one" in str(done.exception)


def test_without_the_extra_it_says_what_to_install(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(cli, ["serve", str(runs)])
    assert isinstance(done.exception, InvalidInput)
    assert "pip install 'sieve-sizing[serve]'" in str(done.exception)
