#!/usr/bin/env python3
"""Writes a network mirror of the Terraform provider: files that any web server with HTTPS serves.

    scripts/provider_mirror.py --program PROGRAM --version VERSION --platform linux_amd64 DIRECTORY

A directory that has other versions or platforms keeps them. The same program makes the same zip file. Prints the lines for
~/.terraformrc.
"""

import argparse
import base64
import hashlib
import json
import zipfile
from pathlib import Path

# The source address of the provider, which the configuration names.
SOURCE = "registry.example/fabric/svc"
# Without `direct`, Terraform would look for every provider in the mirror.
SETTINGS = """\
  provider_installation {
    network_mirror {
      url     = "https://mirror.example.org/"
      include = ["registry.example/*/*"]
    }
    direct {
      exclude = ["registry.example/*/*"]
    }
  }"""
# The first time that a zip file can state.
TIME = (1980, 1, 1, 0, 0, 0)


def pack(program, name, archive):
    """A zip file with the program alone."""
    entry = zipfile.ZipInfo(name, TIME)
    entry.create_system = 3  # Unix: the mode is read.
    entry.external_attr = 0o100755 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(entry, program.read_bytes())


def hashes(archive):
    """The two of Terraform: `h1` of the packed files, as in the lock file, and `zh` of the zip file."""
    with zipfile.ZipFile(archive) as packed:
        names = sorted(packed.namelist())
        lines = "".join(f"{hashlib.sha256(packed.read(name)).hexdigest()}  {name}\n" for name in names)
    summary = base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()
    return [f"h1:{summary}", f"zh:{hashlib.sha256(archive.read_bytes()).hexdigest()}"]


def merge(path, member, entries):
    """Adds entries to an object in a JSON file."""
    known = json.loads(path.read_text()) if path.exists() else {member: {}}
    known[member] |= entries
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--platform", required=True)
    parser.add_argument("directory", type=Path)
    order = parser.parse_args()
    place = order.directory / SOURCE
    place.mkdir(parents=True, exist_ok=True)
    archive = place / f"terraform-provider-svc_{order.version}_{order.platform}.zip"
    pack(order.program, f"terraform-provider-svc_v{order.version}", archive)
    described = {order.platform: {"url": archive.name, "hashes": hashes(archive)}}
    merge(place / f"{order.version}.json", "archives", described)
    merge(place / "index.json", "versions", {order.version: {}})
    print(f"The mirror is {order.directory}. Serve it over HTTPS, and in ~/.terraformrc or ~/.tofurc:\n\n{SETTINGS}")


if __name__ == "__main__":
    main()
