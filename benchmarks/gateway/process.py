"""The gateway's own process for a measurement: the real one but for its table, which is given instead of watched."""

from __future__ import annotations

import argparse
import asyncio

from pagemill_operator.gateway.gateway import Gateway, GatewayConfig
from pagemill_operator.gateway.route import Route, Routing, Target


async def main(port: int, replica: int, routing: Routing) -> None:
    async with Gateway(GatewayConfig(host="127.0.0.1")) as gateway:
        await gateway.apply({"bench": Target(Route("bench", port, routing), frozenset([f"127.0.0.1:{replica}"]))})
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--routing", choices=("leastLoad", "prefix"), default="leastLoad")
    flags = parser.parse_args()
    asyncio.run(main(flags.port, flags.replica, flags.routing))
