"""`sieve serve`: a local page over run folders."""

from __future__ import annotations

import ipaddress
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.output import JsonFlag
from sieve.errors import InvalidInput, ResultError


def serve(
    folder: Annotated[Path, typer.Argument(help="Folder that holds run folders.", metavar="DIR")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8765,
    as_json: JsonFlag = False,
) -> None:
    """Show the runs below a folder in the browser: list, compare, open reports. It only reads.

    Listens on this machine alone unless --host says otherwise; Ctrl-C ends it.

    Examples: `sieve serve reports/runs` | `sieve serve reports/runs --port 0`
    """
    try:
        import starlette  # noqa: F401 -- only whether it is there
        import uvicorn
    except ImportError as error:
        raise InvalidInput(
            f"`sieve serve` needs {error.name}, which is not installed; "
            "run `pip install 'sieve-sizing[serve]'` (in a checkout: '.[serve]'), or open "
            "report.html of a run folder"
        ) from None
    from sieve import __version__
    from sieve.serve import make_app

    if not folder.is_dir():
        raise ResultError(f"{folder}: no such folder; name one that holds run folders")
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}/"
    hosts = [shown, "localhost"] if _is_loopback(host) else ["*"]
    if hosts == ["*"]:
        print(f"warning: whoever reaches {host} can read the runs in {folder}", file=sys.stderr)
    if as_json:
        from sieve.cli.output import print_json

        print_json({"url": url, "folder": str(folder)})
    else:
        print(f"Serving {folder} at {url} (Ctrl-C ends it)")
    sys.stdout.flush()
    config = uvicorn.Config(
        make_app(folder, hosts, __version__), log_level="warning", access_log=False
    )
    uvicorn.Server(config).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket.

    Raises:
        InvalidInput: the address is not this machine's, or the port is taken.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()  # whoever reads the address may connect at once
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on --host {host} --port {port}: {error.strerror}; "
            "choose another port, or --port 0 for a free one"
        ) from None
    return listener
