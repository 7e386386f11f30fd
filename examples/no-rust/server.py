"""A service that books shipments: jobs come by HTTP, the verdict is the status."""

import hashlib
import hmac
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ["SHIPMENTS_SECRET"].encode()
# The address in the mappings: refuse requests that were signed for another server.
ADDRESS = os.environ.get("ADDRESS")
# Refuse signatures older than this number of seconds.
MAX_AGE = 300

booked = set()
booking = threading.Lock()


def is_signed(header, url, body):
    """Whether `t=SECONDS,v1=HEX` is the HMAC-SHA256 of the seconds, the method, the URL and the body."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    seconds = parts.get("t", "")
    if not seconds.isdigit() or abs(time.time() - int(seconds)) > MAX_AGE:
        return False
    signed = f"{seconds}\nPOST\n{url}\n".encode() + body
    expected = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, parts.get("v1", ""))


class Shipments(BaseHTTPRequestHandler):
    # Keep connections open for the next job.
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/shipments":
            # 4xx: the job fails for good.
            return self.answer(404, "there is only /shipments")
        address = ADDRESS or f"http://127.0.0.1:{self.server.server_port}"
        if not is_signed(self.headers.get("X-Artisand-Signature", ""), address + self.path, body):
            return self.answer(401, "the signature is wrong")
        job = json.loads(body)
        if job["data"]["weight"] > 1000:
            return self.answer(422, "too heavy")
        # The key is the same for every attempt of a job: do a job only once.
        key = self.headers["Idempotency-Key"]
        with booking:
            if key not in booked:
                self.book(job["data"])
                booked.add(key)
        self.answer(200, "booked")

    def book(self, shipment):
        directory = os.environ.get("OUTPUT", "output")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, "shipments.jsonl"), "a") as file:
            file.write(json.dumps(shipment) + "\n")

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        print(format % args, file=sys.stderr)


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Shipments)
print(f"listening on port {server.server_port}", flush=True)
server.serve_forever()
