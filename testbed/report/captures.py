"""The captured packets, one table for each interface."""

from __future__ import annotations

from testbed.capture.summary import File, Flow, Summary, headline, heaviest
from testbed.readable import number
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.tables import DASH, grid, shown
from testbed.rundir import RunDir

MOST_FLOWS = 20


def section(run: RunDir) -> Markup | None:
    """What pcap/summary.json of the run says; None for a run that captured nothing."""
    summary = Summary.read(run.pcap)
    if summary is None:
        return None
    note = element(
        "p",
        "Each interface in both directions, behind its queue. Sent again: bytes seen before at this point; "
        "late: first seen after younger ones. RTT: from data to its acknowledgement, here and back.",
        class_="soft",
    )
    return element(
        "section", element("h2", "Captures"), element("div", note, map(_file, summary.files), class_="card")
    )


def _file(file: File) -> Markup:
    rows = [_row(flow) for flow in heaviest(file.flows)[:MOST_FLOWS]]
    rest = len(file.flows) - len(rows)
    heads = [
        "flow", "from", "to", "packets", "bytes", "sent again", "late", "CE", "handshake", "RTT min", "P50",
        "P99",
    ]  # fmt: skip
    return joined(
        element("h3", f"pcap/{file.device}.pcap"),
        element("p", headline(file), class_=None if file.complete else "FAIL"),
        grid(heads, rows, left=1, empty="no TCP and no UDP"),
        element("p", f"and {rest} flows with fewer bytes", class_="soft") if rest > 0 else None,
    )


def _row(flow: Flow) -> list[Child]:
    return [
        f"{flow.protocol} {flow.source} → {flow.sink}",
        f"{number(flow.first_s, 5)} s",
        f"{number(flow.last_s, 5)} s",
        shown(flow.packets),
        shown(flow.bytes, "bytes"),
        shown(flow.retransmitted_bytes, "bytes"),
        shown(flow.late_bytes, "bytes"),
        shown(flow.ce_packets),
        *(DASH if time_s is None else shown(time_s, "s") for time_s in flow.times_s),
    ]
