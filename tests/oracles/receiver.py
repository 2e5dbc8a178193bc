"""A push receiver (RFC 8935) that verifies every SET with joserfc.

Usage: receiver.py [PORT]. Reads one JSON object per line from stdin until its end:
  jwks     verification keys; retained
  iss, aud required claims; retained
  mode     answer from now on; initially "202"
             "202", "200", "204", "401", "403", "404", "429", "500", "503"   that status
             "400"         400 with {"err", "description"}; "bare 400" without
             "slow"        202, when another mode is set
             "redirect"    307 to /elsewhere
             "large"       202 with 10 MB
             "endless"     202, and a body that never ends
             "hang up"     closes the connection without an answer
  retry_after   seconds for the header of that name; only with this mode
  err, description   of mode "400"
  only     a path: the mode applies to it alone
Answers {"ready": true} when the order is in effect.

Prints {"port": n} when it listens, and then one line per push, after its verification and before its answer:
  {"path", "mode", "claims", "header"} or {"path", "mode", "refused": reason}
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

MEDIA = "application/secevent+jwt"
LARGE = 10 * 1024 * 1024


class Receiver:
    """Orders, shared by all connections."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.printing = threading.Lock()
        self.kept: dict = {}
        self.modes: dict = {None: {"mode": "202"}}

    def told(self, order: dict) -> None:
        with self.changed:
            self.kept.update({name: order[name] for name in ("jwks", "iss", "aud") if name in order})
            if "mode" in order:
                self.modes[order.get("only")] = order
            self.changed.notify_all()
        self.say({"ready": True})

    def mode(self, path: str) -> dict:
        with self.changed:
            return self.modes.get(path, self.modes[None])

    def until_other_mode(self, path: str, mode: dict) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.modes.get(path, self.modes[None]) is not mode)

    def say(self, line: dict) -> None:
        with self.printing:
            print(json.dumps(line), flush=True)

    def judge(self, headers, body: bytes) -> dict:
        if headers.get_content_type() != MEDIA:
            return {"refused": f"content type {headers.get('content-type')}"}
        if "application/json" not in headers.get("accept", ""):
            return {"refused": f"accept {headers.get('accept')}"}
        with self.changed:
            kept = dict(self.kept)
        rsa = [key for key in kept["jwks"]["keys"] if key["kty"] == "RSA"]
        try:
            token = jws.deserialize_compact(body, KeySet.import_key_set({"keys": rsa}), algorithms=["RS256"])
        except (JoseError, ValueError) as reason:
            return {"refused": f"{type(reason).__name__}: {reason}"}
        header, claims = token.headers(), json.loads(token.payload)
        wrong = [
            name
            for name, right in {
                "typ": header.get("typ") == "secevent+jwt",
                "kid": any(key.get("kid") == header.get("kid") and key.get("use") == "sig" for key in rsa),
                "iss": claims.get("iss") == kept["iss"],
                "aud": claims.get("aud") == kept["aud"],
                "jti": isinstance(claims.get("jti"), str) and claims["jti"] != "",
                "iat": isinstance(claims.get("iat"), int),
                "events": isinstance(claims.get("events"), dict) and len(claims["events"]) == 1,
                "sub_id": isinstance(claims.get("sub_id"), dict),
                "sub": "sub" not in claims,
                "exp": "exp" not in claims,
            }.items()
            if not right
        ]
        if wrong:
            return {"refused": f"wrong: {wrong} in {header} {claims}"}
        return {"header": header, "claims": claims}


def handler(receiver: Receiver):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", headers: dict | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            order = receiver.mode(self.path)
            mode = order["mode"]
            receiver.say({"path": self.path, "mode": mode, **receiver.judge(self.headers, body)})
            try:
                self.act(order, mode)
            except OSError:
                # The transmitter closed the connection.
                self.close_connection = True

        def act(self, order: dict, mode: str) -> None:
            if mode == "400":
                said = {name: order[name] for name in ("err", "description") if name in order}
                self.answer(400, json.dumps(said).encode(), {"content-type": "application/json"})
            elif mode == "bare 400":
                self.answer(400, b"<html>Bad Request</html>", {"content-type": "text/html"})
            elif mode == "slow":
                receiver.until_other_mode(self.path, order)
                self.answer(202)
            elif mode == "redirect":
                self.answer(307, headers={"location": "/elsewhere"})
            elif mode == "large":
                self.answer(202, b"x" * LARGE)
            elif mode == "endless":
                self.send_response(202)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                while receiver.mode(self.path) is order:
                    self.wfile.write(b"1\r\nx\r\n")
            elif mode == "hang up":
                self.close_connection = True
            else:
                wait = {"retry-after": str(order["retry_after"])} if "retry_after" in order else {}
                self.answer(int(mode), headers=wait)

    return Handler


def main() -> None:
    receiver = Receiver()
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = ThreadingHTTPServer(("127.0.0.1", port), handler(receiver))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.say({"port": server.server_address[1]})
    for line in sys.stdin:
        receiver.told(json.loads(line))


if __name__ == "__main__":
    main()
