"""Who may look: only the token's owner, by the viewer's own name, from the viewer's own pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hermes_rl.viewer.app import create_app
from hermes_rl.viewer.service import ViewerService
from hermes_rl.viewer.source_queries import SourceQueries
from hermes_rl.viewer.sources.source import no_runs
from tests.viewer.recording import HOSTS, PORT, TOKEN, group, write_lines

HOST = f"127.0.0.1:{PORT}"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
COOKIE = f"hermes_rl_view_{PORT}"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<!doctype html><title>the page</title>")
    (static / "assets" / "app-1234.js").write_text("export {}")
    (tmp_path / "secret.js").write_text("the secret")
    service = ViewerService([str(write_lines(tmp_path / "a.jsonl", group()))], no_runs())
    app = create_app(service, token=TOKEN, hosts=HOSTS, port=PORT, static=static)
    with TestClient(app, f"http://{HOST}", follow_redirects=False) as client:
        yield client
    service.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer another"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer t\xf6ken".encode("latin-1")},
        {"Cookie": f"{COOKIE}=another"},
        {"Cookie": f"hermes_rl_view_1={TOKEN}"},
    ],
)
def test_without_the_token_nothing_is_told(client: TestClient, headers: dict[str, str]) -> None:
    response = client.get("/api/home", headers=headers)
    assert response.status_code == 401
    assert TOKEN not in response.text


def test_a_token_in_the_address_of_the_api_does_not_count(client: TestClient) -> None:
    assert client.get(f"/api/home?token={TOKEN}").status_code == 401


def test_the_printed_link_becomes_a_cookie(client: TestClient) -> None:
    response = client.get(f"/?token={TOKEN}")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    assert client.get("/api/home").status_code == 200


def test_a_link_with_another_token_sets_no_cookie(client: TestClient) -> None:
    response = client.get("/?token=another")
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example"])
def test_the_link_leads_nowhere_else(client: TestClient, path: str) -> None:
    response = client.get(f"http://{HOST}{path}?token={TOKEN}")
    assert response.headers["location"].startswith("/") and not response.headers["location"].startswith("//")


def test_a_deep_link_keeps_its_path(client: TestClient) -> None:
    assert client.get(f"/s/abc/rollouts/1-2?token={TOKEN}").headers["location"] == "/s/abc/rollouts/1-2"


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "", "127.0.0.1.evil.example", "[::1]"])
@pytest.mark.parametrize("path", ["/", "/api/home", f"/?token={TOKEN}"])
def test_another_name_is_refused(client: TestClient, host: str, path: str) -> None:
    response = client.get(path, headers={**BEARER, "Host": host})
    assert response.status_code == 400
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("host", ["localhost", f"LOCALHOST:{PORT}", "127.0.0.1"])
def test_its_own_names_are_taken(client: TestClient, host: str) -> None:
    assert client.get("/api/home", headers={**BEARER, "Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_origin_is_refused_even_with_the_cookie(client: TestClient, headers: dict[str, str]) -> None:
    client.cookies.set(COOKIE, TOKEN)
    response = client.get("/api/home", headers=headers)
    assert response.status_code == 403


def test_its_own_page_may_ask(client: TestClient) -> None:
    headers = {**BEARER, "Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
    response = client.get("/api/home", headers=headers)
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_shows(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/home", headers=BEARER).status_code == 405


@pytest.mark.parametrize("path", ["/", "/s/deep/link", "/api/home", "/api/nothing", "/assets/app-1234.js", "/no.js"])
def test_each_answer_has_the_headers_that_keep_a_page_in(client: TestClient, path: str) -> None:
    headers = client.get(path, headers=BEARER).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_answers_of_the_api_are_not_kept_by_a_browser(client: TestClient) -> None:
    assert client.get("/api/home", headers=BEARER).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/s/abc/rollouts/1-2", "/anything"])
def test_every_other_path_is_the_page(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert "the page" in response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"


def test_built_files_have_their_types(client: TestClient) -> None:
    assert client.get("/assets/app-1234.js").headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    ["/../secret.js", "/%2e%2e/secret.js", "/assets/..%2f..%2fsecret.js", "/..%5csecret.js", "//etc/passwd", "/%00.js"],
)
def test_no_path_leads_out_of_the_static_files(client: TestClient, path: str) -> None:
    response = client.get(f"http://{HOST}{path}")
    assert "the secret" not in response.text and "root:" not in response.text
    assert response.status_code in {200, 404}


def test_a_bug_is_answered_with_the_same_headers(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceQueries, "home", lambda _: 1 / 0)
    careless = TestClient(client.app, f"http://{HOST}", raise_server_exceptions=False)
    response = careless.get("/api/home", headers=BEARER)
    assert (response.status_code, response.json()["error"]["message"]) == (500, "internal error in the viewer")
    assert response.headers["content-security-policy"].startswith("default-src 'self'")
    assert response.headers["cache-control"] == "no-store"
