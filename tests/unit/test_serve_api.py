"""The API: what it gives, what it refuses, and that nothing leads out of a run directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed import tables
from testbed.serve import application, guard
from testbed.serve.parts import Parts
from tests.unit.serve_client import client_of
from tests.unit.serve_runs import write_small, write_verdict
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef"
TEXT = (ROOT / "scenarios/full_rate.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and scenarios, and a secret beside them."""
    top = tmp_path_factory.mktemp("served")
    (top / "secret.yaml").write_text("name: secret\nlink: {}\nquestion: who may know?\n")
    (top / "scenarios/below").mkdir(parents=True)
    (top / "scenarios/full_rate.yaml").write_text(TEXT)
    (top / "scenarios/below/broken.yaml").write_text("name: broken\nlink: {}\nquestion: [\n")
    (top / "scenarios/link.yaml").symlink_to(top / "secret.yaml")
    (top / "scenarios/own.py").write_text("# a scheduler")
    for seed in (1, 2):
        run = write_run(top / f"runs/congestion-{seed}", make_plan(seed=seed, requests=40), tcp_lines=64)
        tables.build(run, make_plan(seed=seed, requests=40))
        write_verdict(run, "PASS", measured=0.4 * seed)
    run.report.write_text("<!doctype html><script>1</script>")
    (run.record / "out.parquet").symlink_to(top / "secret.yaml")
    run.junit.symlink_to(top / "secret.yaml")
    (top / "runs/latest").symlink_to("congestion-2")
    (top / "runs/away").symlink_to(top / "scenarios")
    return top


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[tuple[httpx.Client, Parts]]:
    app, parts = application.make(place / "runs", place / "scenarios")
    with client_of(app) as client:
        yield client, parts


@pytest.fixture
def client(served: tuple[httpx.Client, Parts]) -> httpx.Client:
    return served[0]


def problem(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["problems"][0]
    assert set(found) >= {"where", "found", "allowed", "next_step"}
    return found


def test_the_history_can_be_searched_and_read_in_pages(client: httpx.Client) -> None:
    """Newest first, with the number of all."""
    found = client.get("/api/v1/runs", params={"query": "congestion", "limit": 1, "offset": 1}).json()
    assert (found["total"], len(found["runs"]), found["limit"], found["offset"]) == (2, 1, 1, 1)
    assert problem(client.get("/api/v1/runs", params={"limit": 0}), 422)["where"] == "query.limit"


def test_a_run_is_shown_with_its_results_and_files(client: httpx.Client) -> None:
    """Files are those of the allow-list that are plain files within: no link is among them."""
    found = client.get("/api/v1/runs/congestion-2").json()
    assert found["run"]["state"] == "PASS"
    assert found["results"][0]["measured"] == 0.8
    files = [file["name"] for file in found["files"]]
    assert {"report.html", "verdict.json", "plan.json", "record/requests.parquet"} <= set(files)
    assert not {"junit.xml", "record/out.parquet"} & set(files)
    assert not any(name.startswith("journal") for name in files)


@pytest.mark.parametrize(
    "path",
    [
        "congestion-2/files/journal/bench.jsonl",
        "congestion-2/files/junit.xml",
        "congestion-2/files/record/out.parquet",
        "congestion-2/files/record/../plan.json",
        "congestion-2/files/..%2f..%2fsecret.yaml",
        "congestion-2/files/%2e%2e/%2e%2e/secret.yaml",
        "congestion-2/files//etc/passwd",
        "congestion-2/files/record/%00.parquet",
        "latest/files/plan.json",
        "away/files/full_rate.yaml",
        "..%2fscenarios/files/full_rate.yaml",
        "%2e%2e",
        "latest",
        "away",
        ".",
        "nothing",
    ],
)
def test_no_path_leads_out_of_a_run_directory(client: httpx.Client, path: str) -> None:
    """Dots, links, absolute paths and what is not on the list: none of it is there."""
    # As it stands: a client library would take the dots out first.
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    connection.putrequest("GET", f"/api/v1/runs/{path}")
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status in (404, 422), text
    assert "who may know" not in text


def test_files_come_as_what_they_are(client: httpx.Client) -> None:
    """The report may run its scripts, and is no page of this server; all else is to be kept."""
    report = client.get("/api/v1/runs/congestion-2/files/report.html")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in report.headers["content-security-policy"]
    table = client.get("/api/v1/runs/congestion-2/files/record/requests.parquet")
    assert table.content[:4] == b"PAR1"
    assert 'filename="congestion-2-requests.parquet"' in table.headers["content-disposition"]


def test_scenarios_are_listed_with_their_last_verdict(client: httpx.Client) -> None:
    """A broken file is there to be mended; what a link points to is not."""
    found = {one["path"]: one for one in client.get("/api/v1/scenarios").json()}
    assert set(found) == {"below/broken.yaml", "full_rate.yaml"}
    assert found["full_rate.yaml"]["name"] == "full_rate"
    assert found["full_rate.yaml"]["last"] is None
    assert client.get("/api/v1/scenarios/full_rate.yaml").json()["text"] == TEXT
    for path in ("link.yaml", "../secret.yaml", "..%2fsecret.yaml", "%2fetc%2fpasswd", "full_rate.yaml/"):
        problem(client.get(f"/api/v1/scenarios/{path}"), 404)


def test_a_text_is_checked_with_the_line_of_every_problem(client: httpx.Client) -> None:
    """Nothing is run and nothing written."""
    text = TEXT.replace("100gbit", "100gbits", 1).replace("drain: 5s", "drain: 5")
    asked = {"scenario": "full_rate.yaml", "text": text}
    found = client.post("/api/v1/check", json=asked).json()
    lines = [one["line"] for one in found["problems"]]
    assert lines == [1 + text[: text.index(part)].count("\n") for part in ("drain: 5\n", "100gbits")]
    assert found["plan"] is None
    good = client.post("/api/v1/check", json={"text": TEXT, "overrides": ["duration=7s"]}).json()
    assert good["problems"] == []
    assert good["plan"]["duration_s"] == 7


def test_what_cannot_be_run_is_refused_before_a_process_starts(
    client: httpx.Client, served: tuple[httpx.Client, Parts]
) -> None:
    """By the same problems as when it is checked."""
    for asked in ({"scenario": "below/broken.yaml"}, {"text": "name: ["}, {}, {"text": TEXT, "scale": 7}):
        problem(client.post("/api/v1/runs", json=asked), 422)
    problem(client.post("/api/v1/runs", json={"scenario": "../secret.yaml"}), 404)
    assert served[1].processes._starts == {}


def test_an_edited_text_is_run_from_a_draft_beside_the_same_files(
    client: httpx.Client, served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """The scenario itself is never written; what it names beside it is found."""
    started: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(
        served[1].processes, "start", lambda file, options: started.append((file, options)) or 5
    )
    text = TEXT.replace("duration: 5s", "duration: 6s")
    # As the page sends it: JavaScript's numbers are exact up to 2^53 only.
    seed, scale = str(2**53 + 1), 0.00123456789
    asked = {"scenario": "full_rate.yaml", "text": text, "seed": seed, "overrides": ["drain=6s"]}
    answer = client.post("/api/v1/runs", json={**asked, "scale": scale})
    assert (answer.status_code, answer.json()) == (202, {"start": 5})
    ((file, options),) = started
    assert options == ["--set=drain=6s", f"--seed={seed}", f"--scale={scale}"]
    assert file.is_relative_to(place / "runs/drafts")
    assert file.read_text() == text
    assert (file.parent / "below").resolve() == place / "scenarios/below"
    assert not (file.parent / "own.py").is_symlink()
    assert (file.parent / "own.py").read_text() == "# a scheduler"
    assert (place / "scenarios/full_rate.yaml").read_text() == TEXT


def test_two_runs_are_compared_on_one_grid_of_time(client: httpx.Client) -> None:
    """Curves have a value, or none, for each moment; rows say what differs."""
    found = client.get(
        "/api/v1/comparison", params={"first": "congestion-1", "second": "congestion-2"}
    ).json()
    assert {"ttft_s.p90", "requests.failed"} <= {row["name"] for row in found["rows"]}
    assert {"Threshold", "P90 of the last 15 s"} <= {chart["title"] for chart in found["charts"]}
    for chart in found["charts"]:
        for curve in chart["curves"]:
            assert len(curve["values"]) == len(found["times_s"])


def test_runs_that_cannot_be_compared_say_why(client: httpx.Client, place: Path) -> None:
    """A run without a record has nothing to compare."""
    write_run(place / "runs/bare-3", make_plan(name="bare", requests=5), tcp_lines=0)
    asked = {"first": "congestion-1", "second": "bare-3"}
    assert "testbed.report" in json.dumps(problem(client.get("/api/v1/comparison", params=asked), 409))


def test_a_watcher_of_a_run_that_is_over_gets_all_of_it(client: httpx.Client) -> None:
    """And the end, so that it does not come back."""
    text = client.get("/api/v1/runs/congestion-1/events").text
    assert [line for line in text.splitlines() if line.startswith("event")][0::2][-1] == "event: end"
    signals = client.get("/api/v1/runs/congestion-1/signals").json()
    assert max(filter(None, signals["signals"]["capacity_bps"])) == 100e9
    assert min(filter(None, signals["signals"]["capacity_bps"])) == 8e9
    assert [mark["text"] for mark in signals["marks"]] == ["trouble", "tenants", "healed"]


def test_a_run_that_is_over_cannot_be_stopped(client: httpx.Client) -> None:
    """It says so, and nobody gets a signal."""
    answer = client.post("/api/v1/runs/congestion-1/stop", json={})
    assert problem(answer, 409)["found"] == "is not under way"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "192.0.2.1:8070"}, 421),
        ({"host": "[::1].evil.example"}, 421),
        ({"host": "localhost:80:evil"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_what_another_site_can_send_is_refused(
    client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    """By name, by origin, by kind of body; nothing is looked at first."""
    sent = {"content-type": "application/json", **headers}
    problem(client.post("/api/v1/check", content=b'{"text": "x"}', headers=sent), status)


def test_another_site_cannot_read_either_but_can_link_here(client: httpx.Client) -> None:
    """A link that somebody follows is a navigation of the browser's."""
    cross = {"sec-fetch-site": "cross-site"}
    problem(client.get("/api/v1/runs", headers={**cross, "sec-fetch-mode": "no-cors"}), 403)
    followed = {**cross, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=followed).status_code == 200


def test_bodies_end_whether_they_say_how_long_they_are_or_not(client: httpx.Client) -> None:
    """In one piece with a length, or in many without."""

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 65536

    for content in (pieces(), b" " * (guard.MOST_BYTES + 1)):
        answer = client.post("/api/v1/check", content=content, headers={"content-type": "application/json"})
        problem(answer, 413)


def test_every_answer_tells_the_browser_what_it_may_do(client: httpx.Client) -> None:
    """Scripts and styles of this server only; never inside another page; nothing kept."""
    for path in ("/", "/api/v1/runs", "/api/v1/nothing"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert "unsafe" not in guard.POLICY


@pytest.fixture
def locked(place: Path) -> Iterator[httpx.Client]:
    """A server with a token."""
    app, _ = application.make(place / "runs", place / "scenarios", token=TOKEN)
    with client_of(app) as client:
        yield client


def test_nothing_is_given_without_the_token(locked: httpx.Client) -> None:
    """But the page's own files, which ask for it."""
    for path in ("/api/v1/runs", "/api/v1/openapi.json", "/metrics"):
        assert locked.get(path).status_code == 401
    for wrong in (TOKEN[:-1], TOKEN + "x", "\xe9"):
        headers = {"authorization": f"Bearer {wrong}".encode("latin-1")}
        assert locked.get("/api/v1/runs", headers=headers).status_code == 401
    assert locked.get("/api/v1/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert locked.get("/").status_code == 200


def test_the_token_buys_a_cookie_that_does_not_tell_it(locked: httpx.Client) -> None:
    """For a page, which cannot send headers with everything."""
    for wrong in ("wrong", "\ud800"):
        content = json.dumps({"token": wrong})
        sent = {"content-type": "application/json"}
        assert locked.post("/api/v1/session", content=content, headers=sent).status_code in (401, 422)
    answer = locked.post("/api/v1/session", json={"token": TOKEN})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert locked.get("/api/v1/runs").status_code == 200
    good = cookie.partition(";")[0]
    locked.cookies.clear()
    for other in ('prefs={"theme":"dark","a":1}', "a=b c", "flag", "a[b]=1", 'a="x', "a=\xe9"):
        sent = {"cookie": f"{other}; {good}".encode("latin-1")}
        assert locked.get("/api/v1/runs", headers=sent).status_code == 200, other
    forged = {"cookie": f"{guard.COOKIE}={'0' * 64}"}
    assert locked.get("/api/v1/runs", headers=forged).status_code == 401


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hmac.compare_digest, whatever is compared: the token and the cookie."""
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert not guard.same("a", TOKEN)
    assert guard.same(TOKEN, TOKEN)
    assert compared == [(b"a", TOKEN.encode()), (TOKEN.encode(), TOKEN.encode())]


def test_a_server_on_all_addresses_is_called_by_address_or_its_name(place: Path) -> None:
    """Never by a name that somebody else can point at it."""
    app, _ = application.make(
        place / "runs", place / "scenarios", token=TOKEN, names={"box"}, any_address=True
    )
    with client_of(app) as client:
        for host, status in (
            ("192.0.2.1:80", 401),
            ("[2001:db8::1]:80", 401),
            ("BOX", 401),
            ("evil.example", 421),
        ):
            assert client.get("/api/v1/runs", headers={"host": host}).status_code == status


def test_the_openapi_document_has_every_endpoint_and_one_form_of_error(client: httpx.Client) -> None:
    """Each error is a list of problems."""
    document = client.get("/api/v1/openapi.json").json()
    assert {"/api/v1/runs", "/api/v1/check", "/api/v1/runs/{run}/events"} <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                if status >= "400":
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problems"}, (path, method, status)


def test_a_run_that_vanishes_meanwhile_is_not_there(client: httpx.Client, place: Path) -> None:
    """Between the list and the look."""
    run = write_small(place / "runs", "fleeting", 1)
    client.get("/api/v1/runs")
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()
    problem(client.get("/api/v1/runs/fleeting-1"), 404)


def test_the_page_needs_nothing_but_this_server(client: httpx.Client) -> None:
    """Every file that it names is there, and none is on another machine; nothing in it runs unasked."""
    index = client.get("/").text
    named = re.findall(r'(?:href|src)="([^"#]+)"', index)
    assert {f"/page/{path.name}" for path in application.PAGE.glob("*.js")} <= set(named)
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "no-cache"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", answer.text), (
            path
        )
    assert "<script>" not in index
    assert "style=" not in index
