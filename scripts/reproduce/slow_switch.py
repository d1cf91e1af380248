#!/usr/bin/env python3
"""slow_switch.py [--drop SHARE] [--cut PORT:FROM:TO …] DELAY_MS PORT…: a switch in user space that
hands every frame over DELAY_MS later.

Not every kernel has netem. This works with any: it reads frames from the ports, waits, and writes
them to the port that leads to their receiver, or to all for ARP. Frames keep their order. hosts.py
starts it in the namespace of the switch; it ends with hosts.py.

--drop loses that share of the frames, always the same ones of a run. --cut loses all frames from and
to a port between two moments, in seconds since the switch began.
"""
import argparse
import ctypes
import fcntl
import heapq
import itertools
import random
import select
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SIOCETHTOOL = 0x8946
# Checksums and cutting into frames have to be done before the switch sees a frame: set rx and tx
# checksum, scatter-gather, TSO, GSO, GRO off.
OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)


def without_offloads(device):
    """Also called for the hosts' ends of the links, through `ip netns exec`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)
            except OSError:
                pass  # a device without it has nothing to turn off


def cut_of(text):
    port, begin, end = text.split(":")
    return port, float(begin), float(end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drop", type=float, default=0.0)
    parser.add_argument("--cut", type=cut_of, action="append", default=[])
    parser.add_argument("delay_ms", type=float)
    parser.add_argument("ports", nargs="+")
    options = parser.parse_args()
    delay, ports = options.delay_ms / 1e3, options.ports
    chance, began = random.Random(1), time.monotonic()
    sockets = []
    for port in ports:
        without_offloads(port)
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        one.bind((port, 0))
        one.setblocking(False)
        sockets.append(one)
    poll = select.poll()
    by_file = {}
    for one in sockets:
        poll.register(one, select.POLLIN)
        by_file[one.fileno()] = one
    place = {}  # the port behind which an address was seen
    waiting, number = [], itertools.count()
    name = dict(zip(sockets, ports))

    def lost(one):
        now = time.monotonic() - began
        return any(port == name[one] and begin <= now < end for port, begin, end in options.cut)

    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, frame, out = heapq.heappop(waiting)
            try:
                out.send(frame)
            except OSError:
                pass  # the port's queue is full: a switch drops the frame
        timeout = None if not waiting else max(0.0, (waiting[0][0] - time.monotonic()) * 1e3)
        for file, _ in poll.poll(timeout):
            source = by_file[file]
            for _ in range(64):
                try:
                    frame, address = source.recvfrom(65536)
                except BlockingIOError:
                    break
                except OSError:
                    return  # the port is gone: the hosts are being removed
                if address[2] == PACKET_OUTGOING:
                    continue  # our own
                place[frame[6:12]] = source
                known = place.get(frame[0:6])
                if (options.drop and chance.random() < options.drop) or lost(source):
                    continue
                for out in [known] if known is not None else [s for s in sockets if s is not source]:
                    if lost(out):
                        continue
                    heapq.heappush(waiting, (time.monotonic() + delay, next(number), frame, out))


if __name__ == "__main__":
    if sys.argv[1] == "--offloads-off":
        without_offloads(sys.argv[2])
    else:
        main()
