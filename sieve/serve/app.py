"""The pages of `sieve serve`, as a Starlette application; every route only reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from sieve.errors import ResultError
from sieve.report.html import render_page, script_hash, template_text
from sieve.report.rewrite import report_of
from sieve.results import read_result
from sieve.serve.comparison import compare
from sieve.serve.folders import find_history, find_run, has_links, list_histories, list_runs

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app(root: Path, hosts: list[str], version: str) -> Starlette:
    """Return the application over the runs below `root`.

    Args:
        root: folder that holds run folders.
        hosts: names under which requests may address it; others are refused, so that no foreign
            page can read it through a name of its own.
        version: of this package, for the foot of each page.
    """
    root = root.resolve()

    def page(template: str, status: int = 200, **variables: Any) -> Response:
        return _html(render_page(template, {**variables, "version": version}), _POLICY, status)

    def run_at(name: str) -> Path:
        found = find_run(root, name)
        if found is None:
            raise HTTPException(404, "no finished run of this name")
        if has_links(found):
            raise HTTPException(403, "a file of this run is a link; links are not followed")
        return found

    def index(request: Request) -> Response:  # noqa: ARG001 -- Starlette hands it over
        return page(
            "runs.html.j2", runs=list_runs(root), nights=list_histories(root), folder=root.name
        )

    def report(request: Request) -> Response:
        run = run_at(request.path_params["name"])
        script = f"script-src '{script_hash(template_text('report.js'))}'"
        return _html(_with_way_back(report_of(run)), f"{_POLICY}; {script}")

    def raw(request: Request) -> Response:
        path = run_at(request.path_params["name"]) / "result.json"
        return FileResponse(path, media_type="application/json", headers=_headers())

    def side_by_side(request: Request) -> Response:
        names = [request.query_params.get(key, "") for key in ("a", "b")]
        results = [read_result(run_at(name)) for name in names]
        return page("comparison.html.j2", names=names, **compare(results[0], results[1]))

    def history(request: Request) -> Response:
        found = find_history(root, request.path_params["name"])
        if found is None:
            raise HTTPException(404, "no nightly history of this name")
        text = found.read_text(encoding="utf-8", errors="replace")
        return _html(_with_way_back(text), f"{_POLICY}; sandbox")

    def icon(request: Request) -> Response:  # noqa: ARG001 -- as above
        return Response(status_code=204, headers=_headers())

    async def failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 -- as above
        if isinstance(error, HTTPException):
            words, code = error.detail, error.status_code
        else:
            words, code = str(error), 422
        return await run_in_threadpool(page, "problem.html.j2", status=code, words=words)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/favicon.ico", icon),
            Route("/compare", side_by_side),
            Route("/report/{name:path}", report),
            Route("/result/{name:path}", raw),
            Route("/history/{name:path}", history),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        exception_handlers={HTTPException: failed, ResultError: failed},
    )


def _with_way_back(page: str) -> str:
    """Return a page that was made to stand alone with a link to the list of runs."""
    link = '<body>\n<nav aria-label="Runs"><a href="/">All runs</a></nav>'
    return page.replace("<body>", link, 1)


def _html(page: str, policy: str, status: int = 200) -> Response:
    return HTMLResponse(page, status, headers=_headers(policy))


def _headers(policy: str = _POLICY) -> dict[str, str]:
    return {**HEADERS, "Content-Security-Policy": policy}
