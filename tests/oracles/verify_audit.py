"""Verifies an exported audit with hashlib and json alone: the format needs no code of ours.

Usage: verify_audit.py FILE   output of `trust-fabric audit export`

A line is a block (oldest first) or an entry (newest first). `hash` of an entry is base64url SHA-256 of its
RFC 8785 form without that field; `hash` of a block the same without its entries, whose hashes `content` covers.
Fields are strings and whole numbers, so that Python's own encoder with sorted names produces this form. A block
has entries of one bucket of callers; without `entries`, it is one whose content was dropped.

Prints a JSON object with the counts, or with the first faulty line and its fault; exits with 0 if there is none.
"""

import base64
import hashlib
import json
import sys


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(value):
    return base64.urlsafe_b64encode(hashlib.sha256(canonical(value)).digest()).rstrip(b"=").decode()


def without_hash(value):
    return {name: member for name, member in value.items() if name != "hash"}


def bucket(entry):
    return hashlib.sha256(entry.get("caller", "").encode()).digest()[0] % 64


def check_content(block):
    entries = block["entries"]
    assert block["content"] == digest([entry["hash"] for entry in entries]), "the entries are not those of the header"
    assert block["count"] == len(entries), "the header has another count"
    times = [entry["timestamp"] for entry in entries]
    assert (times[0], times[-1]) == (block["first"], block["last"]), "the header has other times"
    assert all(bucket(entry) == block["bucket"] for entry in entries), "an entry of another bucket"


def check_block(block, nodes, links):
    hashed = without_hash(block)
    hashed.pop("entries", None)
    assert block["hash"] == digest(hashed), "the block's hash is not that of its header"
    before = nodes.get(block["node_id"])
    if before is None:
        assert (block["sequence"] == 1) == (block["prev_hash"] == ""), "the first block has no other before it"
    else:
        assert before == (block["sequence"] - 1, block["prev_hash"]), "the block does not follow"
    nodes[block["node_id"]] = (block["sequence"], block["hash"])
    if "entries" not in block:
        for chain in [chain for chain in links if chain[:2] == (block["node_id"], block["bucket"])]:
            del links[chain]
        return 0
    check_content(block)
    for entry in block["entries"]:
        assert entry["hash"] == digest(without_hash(entry)), f"entry {entry['id']} was changed"
        chain = (block["node_id"], block["bucket"], entry["tool_id"])
        # A chain begins anew after its last entry lost its content.
        known = [links.get(chain, entry["prev_hash"]), ""]
        assert entry["prev_hash"] in known, f"entry {entry['id']} does not follow"
        links[chain] = entry["hash"]
    return len(block["entries"])


def check_entry(entry, links):
    assert all(isinstance(member, str) for name, member in entry.items() if name != "count"), "a field is no text"
    assert entry["hash"] == digest(without_hash(entry)), f"entry {entry['id']} was changed"
    chain = (entry["node"], bucket(entry), entry["tool_id"])
    assert links.get(chain, entry["hash"]) == entry["hash"], f"entry {entry['id']} is not linked"
    links[chain] = entry["prev_hash"]
    return 1


def main(path):
    entries, blocks, nodes, links = 0, 0, {}, {}
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                assert line.endswith(b"\n"), "the line has no end"
                value = json.loads(line)
                assert canonical(value) + b"\n" == line, "the line is not in canonical form"
                if "sequence" in value:
                    assert blocks or not entries, "a block among entries"
                    blocks += 1
                    entries += check_block(value, nodes, links)
                else:
                    assert not blocks, "an entry among blocks"
                    entries += check_entry(value, links)
            except (AssertionError, KeyError, TypeError, ValueError) as error:
                print(json.dumps({"line": number, "error": str(error)}))
                return 1
    print(json.dumps({"entries": entries, "blocks": blocks, "tools": len({tool for _, _, tool in links})}))
    return 0 if entries else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
