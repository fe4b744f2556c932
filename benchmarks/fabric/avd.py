"""Renders a leaf-spine fabric of EOS switches with pyavd, in the peer's environment: `avd.py LEAVES SPINES`."""

import sys

import pyavd  # type: ignore[import-not-found]

_NODES_PER_LEAF = 16


def inputs(leaves: int, spines: int) -> dict[str, dict[str, object]]:
    """Return the variables of each switch: BGP underlay with addresses on links, no overlay."""
    names = [f"spine{number}" for number in range(1, spines + 1)]
    nodes = [{"name": f"leaf{number}", "id": number, "bgp_as": 65100 + number} for number in range(1, leaves + 1)]
    for index, node in enumerate(nodes):
        node |= {
            "uplink_interfaces": [f"Ethernet{port + 33}" for port in range(spines)],
            "uplink_switches": names,
            "uplink_switch_interfaces": [f"Ethernet{index + 1}"] * spines,
        }
    shared: dict[str, object] = {
        "fabric_name": "RAILS",
        "underlay_routing_protocol": "ebgp",
        "overlay_routing_protocol": "none",
        "spine": {
            "defaults": {"platform": "7060X6-64PE", "bgp_as": "65001", "loopback_ipv4_pool": "10.255.0.0/20"},
            "nodes": [{"name": name, "id": number} for number, name in enumerate(names, 1)],
        },
        "l3leaf": {
            "defaults": {
                "platform": "7060X6-64PE",
                "loopback_ipv4_pool": "10.254.0.0/20",
                "uplink_ipv4_pool": "10.0.0.0/12",
                "vtep": False,
            },
            "nodes": nodes,
        },
    }
    types = {**dict.fromkeys(names, "spine"), **{str(node["name"]): "l3leaf" for node in nodes}}
    return {name: {**shared, "type": kind} for name, kind in types.items()}


def main(leaves: int, spines: int) -> None:
    """Render every switch, and print how many there are."""
    every = inputs(leaves, spines)
    facts = pyavd.get_avd_facts(every)
    length = 0
    for name, own in every.items():
        structured = pyavd.get_device_structured_config(name, own, facts)
        text = pyavd.get_device_config(structured)
        if f"hostname {name}" not in text or "router bgp" not in text:
            raise SystemExit(f"{name} has no BGP")
        length += len(text)
    print(f"{len(every)} switches rendered")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
