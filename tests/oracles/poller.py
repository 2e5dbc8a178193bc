"""A polling SSF receiver (RFC 8936) that verifies every SET with joserfc.

Reads one JSON object from stdin:
  base        http://host:port
  stream_id   the stream, which is polled
  iss, aud    required claims of every SET
  mode        behaviour of the receiver:
                all      acknowledges each answer with its next poll
                half     acknowledges only every second SET of an answer
                wrong    acknowledges unknown jtis for some rounds and must receive the same SETs again; then all
                errors   rejects every second SET with setErrs and acknowledges the others
                two      two concurrent receivers that acknowledge what they receive
  page        maxEvents

Polls until the stream is empty and prints {"received": [claims in the order of their first receipt],
"times": {jti: number of receipts}, "faults": [violations by a SET or an answer]}.
"""

import json
import sys
import threading

import requests
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

TIMEOUT_SECS = 20
WRONG_ROUNDS = 5


class Receiver:
    def __init__(self, order: dict) -> None:
        self.order = order
        self.http = requests.Session()
        # No proxy from the environment.
        self.http.trust_env = False
        self.received: list[dict] = []
        self.texts: dict[str, str] = {}
        self.times: dict[str, int] = {}
        self.faults: list[str] = []

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    def poll(self, **members: object) -> dict[str, str]:
        """SETs of one poll by jti, in order."""
        url = f"{self.order['base']}/v1/signals/poll/{self.order['stream_id']}"
        asked = {"returnImmediately": True, "maxEvents": self.order["page"], **members}
        answer = self.http.post(url, json=asked, timeout=TIMEOUT_SECS, allow_redirects=False)
        self.expect(answer.status_code == 200, f"status {answer.status_code}: {answer.text}")
        self.expect(answer.headers.get("Content-Type") == "application/json", "Content-Type")
        if answer.status_code != 200:
            return {}
        body = answer.json()
        self.expect(set(body) == {"sets", "moreAvailable"}, f"members {sorted(body)}")
        sets = body["sets"]
        self.expect(len(sets) <= self.order["page"], f"{len(sets)} tokens")
        for jti, text in sets.items():
            self.receive(jti, text)
        return sets

    def receive(self, jti: str, text: str) -> None:
        self.times[jti] = self.times.get(jti, 0) + 1
        if jti in self.texts:
            self.expect(self.texts[jti] == text, f"{jti}: another text than before")
            return
        self.texts[jti] = text
        jwks = self.http.get(f"{self.order['base']}/v1/identity/jwks", timeout=TIMEOUT_SECS).json()
        try:
            token = jws.deserialize_compact(text, KeySet.import_key_set(jwks), algorithms=["RS256"])
        except (JoseError, ValueError) as reason:
            self.faults.append(f"{jti}: {type(reason).__name__}: {reason}")
            return
        claims = json.loads(token.payload)
        header = token.headers()
        (key,) = [key for key in jwks["keys"] if key["kid"] == header["kid"]]
        self.expect((key["kty"], key["alg"], key["use"]) == ("RSA", "RS256", "sig"), f"{jti}: key {key}")
        self.expect(header.get("typ") == "secevent+jwt", f"{jti}: typ {header.get('typ')}")
        self.expect(claims["iss"] == self.order["iss"], f"{jti}: iss {claims['iss']}")
        self.expect(claims["aud"] == self.order["aud"], f"{jti}: aud {claims['aud']}")
        self.expect(claims["jti"] == jti, f"{jti}: jti {claims['jti']}")
        self.expect(type(claims["iat"]) is int, f"{jti}: iat {claims['iat']}")
        self.expect(len(claims["events"]) == 1, f"{jti}: {len(claims['events'])} events")
        self.expect("format" in claims["sub_id"], f"{jti}: sub_id {claims['sub_id']}")
        allowed = {"iss", "aud", "jti", "iat", "events", "sub_id", "txn", "svc_via"}
        self.expect(set(claims) <= allowed, f"{jti}: claims {sorted(claims)}")
        self.received.append(claims)


def all_of_it(receiver: Receiver) -> None:
    given = receiver.poll()
    while given:
        given = receiver.poll(ack=list(given))


def half(receiver: Receiver) -> None:
    given = receiver.poll()
    while given:
        acknowledged = list(given)[::2]
        left = [jti for jti in given if jti not in acknowledged]
        given = receiver.poll(ack=acknowledged)
        receiver.expect(list(given)[: len(left)] == left, "what was not acknowledged comes first, in its order")


def wrong(receiver: Receiver) -> None:
    first = receiver.poll()
    for _ in range(WRONG_ROUNDS):
        mangled = [jti.replace("-", "_") for jti in first]
        mangled += [jti[:-1] for jti in first] + [jti.upper() for jti in first] + [f"{jti}0" for jti in first]
        mangled += ["", "-", "0-0-0-0", receiver.order["stream_id"], receiver.texts[next(iter(first))][:100]]
        receiver.expect(receiver.poll(ack=mangled) == first, "the same again")
    all_of_it(receiver)


def errors(receiver: Receiver) -> None:
    said = {"err": "invalid_request", "description": "not understood"}
    given = receiver.poll()
    while given:
        names = list(given)
        given = receiver.poll(ack=names[::2], setErrs={jti: said for jti in names[1::2]})
        receiver.expect(not set(names) & set(given), "what was refused is not given again")


def two(receiver: Receiver) -> None:
    other = Receiver(receiver.order)
    at_once = [threading.Thread(target=all_of_it, args=[one]) for one in (receiver, other)]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    receiver.faults += other.faults
    for claims in other.received:
        jti = claims["jti"]
        if jti not in receiver.texts:
            receiver.received.append(claims)
        receiver.expect(receiver.texts.get(jti, other.texts[jti]) == other.texts[jti], f"{jti}: two texts")
        receiver.times[jti] = receiver.times.get(jti, 0) + other.times[jti]


MODES = {"all": all_of_it, "half": half, "wrong": wrong, "errors": errors, "two": two}


def main() -> None:
    receiver = Receiver(json.load(sys.stdin))
    MODES[receiver.order["mode"]](receiver)
    print(json.dumps({name: getattr(receiver, name) for name in ("received", "times", "faults")}))


if __name__ == "__main__":
    main()
