"""Lost packets on loopback: a network of this test's own, from which iptables drops what a rule names. Needs root."""

import ctypes
import subprocess

from nodes import run

CLONE_NEWNET = 0x4000_0000


def own_network():
    """Whether this process and its children have a network of their own from here on, in which packets can be dropped."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        return False
    run("ip", "link", "set", "lo", "up")
    try:
        heal()
    except (OSError, subprocess.SubprocessError, SystemExit):
        return False
    return True


def drop(*rule):
    """Drops the TCP packets that a rule of iptables names, without an answer, in both directions of a connection."""
    run("iptables", "-A", "INPUT", "-p", "tcp", *rule, "-j", "DROP")


def drop_output_of(group, *rule):
    """The same of the packets that processes of a group send."""
    run("iptables", "-A", "OUTPUT", "-p", "tcp", "-m", "owner", "--gid-owner", group, *rule, "-j", "DROP")


def heal():
    run("iptables", "-F")
