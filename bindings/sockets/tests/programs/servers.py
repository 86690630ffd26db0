"""Servers and clients of Python's library in one process and in forked ones; prints what they have exchanged."""

import asyncio
import hashlib
import os
import socket
import socketserver
import threading


def pattern(count, seed):
    return hashlib.shake_128(str(seed).encode()).digest(count)


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def talk(port, seed):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    digest = hashlib.sha256()
    for size in (1, 1000, 70_000, 300_000):
        data = pattern(size, seed)
        writer.write(data)
        await writer.drain()
        digest.update(await reader.readexactly(size))
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    return digest.hexdigest()


async def with_asyncio():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for digest in await asyncio.gather(*(talk(port, seed) for seed in range(20))):
        print(digest)
    server.close()


class Upper(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


class Forking(socketserver.ForkingMixIn, socketserver.TCPServer):
    pass


class Threading(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


def with_server(kind):
    with kind(("127.0.0.1", 0), Upper) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for number in range(10):
            with socket.create_connection(server.server_address, timeout=10) as client:
                file = client.makefile("rw")
                for line in range(20):
                    file.write(f"line {line} of {number}\n")
                    file.flush()
                    print(file.readline(), end="")
                client.shutdown(socket.SHUT_WR)
                assert file.readline() == ""
        server.shutdown()


def with_sendfile():
    listener = socket.create_server(("127.0.0.1", 0))
    name = f"/tmp/tsumuji-sockets-{os.getpid()}"
    try:
        with open(name, "wb") as file:
            file.write(pattern(2_000_000, "file"))
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()

        def send():
            with open(name, "rb") as file:
                server.sendfile(file, 1000, 1_500_000)
            server.close()

        threading.Thread(target=send).start()
        digest = hashlib.sha256()
        while data := client.recv(100_000):
            digest.update(data)
        print(digest.hexdigest())
    finally:
        os.unlink(name)


asyncio.run(with_asyncio())
with_server(Threading)
with_server(Forking)
with_sendfile()
