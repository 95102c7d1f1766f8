"""A user signs in at a real authorization server with the Python SDK, then lists and calls.

Prints one line of JSON per check, as checks.mjs does.
"""

import json
import sys
import traceback
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit, urlunsplit

import anyio
import httpx2 as httpx
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

CALLBACK = "http://127.0.0.1:1/callback"
PATIENCE = 60.0

failed = False


def tell(user: str, name: str, ok: bool, detail: str | None = None) -> None:
    global failed
    failed = failed or not ok
    line = {"upstream": user, "check": name, "ok": ok}
    print(json.dumps(line | ({"detail": detail} if detail else {})), flush=True)


class Storage:
    """Keeps tokens and registration for one run."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


class Browser:
    """Follows the link to the authorization server, as the user it is made for."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.reached = ""

    async def open(self, link: str) -> None:
        parts = urlsplit(link)
        query = parts.query + "&" + urlencode({"login_hint": self.user})
        following = urlunsplit(parts._replace(query=query))
        async with httpx.AsyncClient() as browser:
            for _ in range(10):
                answer = await browser.get(following)
                following = urljoin(following, answer.headers["location"])
                if following.startswith(CALLBACK):
                    self.reached = following
                    return
        raise AssertionError("the sign-in did not come to its end")

    async def callback(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self.reached).query)
        found = {name: values[0] for name, values in query.items()}
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))


async def use(job: dict[str, Any], user: dict[str, Any]) -> None:
    browser = Browser(user["user"])
    metadata = OAuthClientMetadata(
        client_name="foreign python",
        redirect_uris=[CALLBACK],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
        application_type="native",
    )
    auth = OAuthClientProvider(job["url"], metadata, Storage(), browser.open, browser.callback)
    mode = "legacy" if job["era"] == "legacy" else "auto"
    async with httpx.AsyncClient(auth=auth, timeout=PATIENCE) as http:
        async with Client(streamable_http_client(job["url"], http_client=http), mode=mode) as client:
            tell(user["user"], "sign in", True)
            listed = sorted(tool.name for tool in (await client.list_tools()).tools)
            assert listed == sorted(user["tools"]), listed
            tell(user["user"], "list", True)
            for tool in user["tools"]:
                result = await client.call_tool(tool, {"text": "python"})
                assert result.structured_content == {"text": "python"}, result
            tell(user["user"], "call", True)


async def main() -> None:
    job = json.loads(sys.argv[1])
    for user in job["users"]:
        try:
            with anyio.fail_after(PATIENCE):
                await use(job, user)
        except BaseException:
            tell(user["user"], "sign in, list and call", False, traceback.format_exc())


anyio.run(main)
sys.exit(1 if failed else 0)
