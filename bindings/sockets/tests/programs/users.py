"""A server of root's and a client that has become another user; prints what the client got."""

import os
import socket

NOBODY = 65534

listener = socket.create_server(("127.0.0.1", 0))
client = os.fork()
if client == 0:
    os.setuid(NOBODY)
    connection = socket.socket()
    connection.connect(listener.getsockname())
    connection.sendall(b"hello")
    print(connection.recv(10), flush=True)
    os._exit(0)
connection, _ = listener.accept()
connection.sendall(connection.recv(10).upper())
os.waitpid(client, 0)
