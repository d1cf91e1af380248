#!/usr/bin/env python3
"""slow_switch.py DELAY_MS PORT…: a switch in user space that hands every frame over DELAY_MS later.

Not every kernel has netem. This works with any: it reads frames from the ports, waits, and writes
them to the port that leads to their receiver, or to all for ARP. Frames keep their order. hosts.py
starts it in the namespace of the switch; it ends with hosts.py.
"""
import ctypes
import fcntl
import heapq
import itertools
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


def main():
    delay, ports = float(sys.argv[1]) / 1e3, sys.argv[2:]
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
                for out in [known] if known is not None else [s for s in sockets if s is not source]:
                    heapq.heappush(waiting, (time.monotonic() + delay, next(number), frame, out))


if __name__ == "__main__":
    if sys.argv[1] == "--offloads-off":
        without_offloads(sys.argv[2])
    else:
        main()
