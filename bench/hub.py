"""A model hub of one model, on this machine: enough for `accelerate estimate-memory`.

usage: hub.py NAME CONFIG PORT_FILE
"""

import hashlib
import http.server
import json
import os
import sys


def main() -> None:
    name, config_path, port_file = sys.argv[1:4]
    with open(config_path, "rb") as file:
        config = file.read()
    commit = hashlib.sha1(config).hexdigest()
    information = json.dumps(
        {
            "id": name,
            "modelId": name,
            "sha": commit,
            "private": False,
            "gated": False,
            "tags": ["transformers"],
            "library_name": "transformers",
            "config": json.loads(config),
            "siblings": [{"rfilename": "config.json"}],
        }
    ).encode()

    class Hub(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, with_body: bool) -> None:
            path = self.path.split("?")[0]
            if path.startswith(f"/api/models/{name}") and not path.endswith("/tree/main"):
                self.send(200, information, "application/json", with_body)
            elif path.startswith(f"/{name}/resolve/") and path.endswith("/config.json"):
                self.send(200, config, "application/octet-stream", with_body)
            else:
                self.send(404, b"", "text/plain", with_body)

        def send(self, status: int, body: bytes, kind: str, with_body: bool) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{commit}"')
            self.send_header("X-Repo-Commit", commit)
            if status == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def do_GET(self) -> None:  # noqa: N802, the name is the base class's
            self.answer(True)

        def do_HEAD(self) -> None:  # noqa: N802
            self.answer(False)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    with open(port_file + ".new", "w", encoding="ascii") as file:
        file.write(str(server.server_address[1]))
    os.replace(port_file + ".new", port_file)
    server.serve_forever()


main()
