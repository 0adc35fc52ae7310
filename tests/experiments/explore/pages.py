"""The live page asked without a server, as the page itself asks."""

from typing import Any

from starlette.testclient import TestClient

from experiments.explore.playground import Playground
from experiments.explore.server import served

TOKEN, PORT = "Jx7-secret", 8123
HOME = f"http://127.0.0.1:{PORT}"


class Page:
    """A page that asks; another `name` is another page of the same server."""

    def __init__(self, playground: Playground, **how: Any) -> None:
        self.client = TestClient(served(playground, TOKEN, PORT, **how), base_url=HOME)

    def get(self, path: str = f"/?token={TOKEN}", **headers: str) -> Any:
        return self.client.get(path, headers=headers)

    def post(self, name: str, body: Any = None, page: str = "a", **headers: str) -> Any:
        """JSON, or bytes as they are."""
        given = {"X-Token": TOKEN, "X-Page": page, "Content-Type": "application/json", **headers}
        how = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.client.post(f"/api/{name}", headers=given, **how)
