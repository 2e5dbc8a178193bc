"""Calls routes with Python's requests, each with the client certificate and without it.

Reads one JSON object from stdin:
  base                https://host:port
  ca, cert, key       files in PEM
  routes              a list of {"method", "path", "body"}; body is JSON, or null for none

Prints a list in the same order of {"method", "path", "with", "without"}: the status of each answer,
or the name of the exception if there was none.
"""

import json
import sys

import requests

TIMEOUT_SECS = 20


def status(session: requests.Session, url: str, route: dict) -> int | str:
    try:
        # Only the head: an event stream has no end.
        with session.request(
            route["method"],
            url,
            json=route.get("body"),
            timeout=TIMEOUT_SECS,
            allow_redirects=False,
            stream=True,
        ) as answer:
            return answer.status_code
    except requests.RequestException as error:
        return type(error).__name__


def session(order: dict, with_certificate: bool) -> requests.Session:
    made = requests.Session()
    # Ignore proxies and CAs of the environment.
    made.trust_env = False
    made.verify = order["ca"]
    made.cert = (order["cert"], order["key"]) if with_certificate else None
    return made


def main() -> int:
    order = json.load(sys.stdin)
    known, unknown = session(order, True), session(order, False)
    answers = []
    for route in order["routes"]:
        url = order["base"] + route["path"]
        answers.append(
            {
                "method": route["method"],
                "path": route["path"],
                "with": status(known, url, route),
                "without": status(unknown, url, route),
            }
        )
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
