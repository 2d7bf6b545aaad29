"""Forwards a TCP port on the loopback address to a Unix socket.

usage: api_bridge.py SOCKET FILE    the port's number is written to FILE
"""

import asyncio
import sys


async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def bridge(reader, writer):
    try:
        theirs = await asyncio.open_unix_connection(sys.argv[1])
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, theirs[1]), copy(theirs[0], writer))


async def main():
    server = await asyncio.start_server(bridge, "127.0.0.1", 0)
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


asyncio.run(main())
