//! Figures from papers about other systems, on the machines of their authors. They show the order of magnitude and are
//! never compared with measured rows.

use super::escape::escape;

/// Measured quantity, figure, source.
const PUBLISHED: [(&str, &str, &str); 11] = [
    (
        "PF_RING null monitor, Linux 2.6, one core, bare metal, 64 B",
        "391 Mbit/s; PF_PACKET 330, kernel module 1056",
        PNA,
    ),
    (
        "PF_RING in a VM with vPF_RING, 1 GbE, 64 B",
        "1.488 Mpps, no loss; with VirtIO-Net only medium and large packets are captured without loss",
        VPF_RING,
    ),
    ("PF_RING, 10 GbE, 64 B, bare metal and passthrough", "100 % of 14.88 Mpps", HPCAPVF),
    ("DPDK, 10 GbE, 64 B, bare metal and passthrough", "100 % of 14.88 Mpps", HPCAPVF),
    ("HPCAP, 10 GbE, 64 B, bare metal, every packet stamped", "97.9 % of 14.88 Mpps", HPCAPVF),
    (
        "HPCAP40, 40 GbE, 64 B, bare metal / passthrough, every packet stamped",
        "75.1 / 51.5 % of 59.5 Mpps; DPDK 100 / 100 %",
        VNP,
    ),
    ("HPCAP40vf to disk, 40 GbE, CAIDA trace", "100 % of 39.8 Gbit/s; DPDK 99.5 %", VNP),
    (
        "nProbe 6.9, flows as NetFlow v5 or v9, PF_RING DNA, one core of a Xeon E31230",
        "over 3 Mpps; 1 Mpps with GTP and plug-ins",
        "ntop, 10 Gbit (line rate) NetFlow traffic analysis using nProbe and DNA: the maker's own figure",
    ),
    (
        "nProbe Cento, 1 million flows, 60 B, 16 cores of a Xeon Gold 6526Y, Napatech adapter without flow offload",
        "89 Mpps, no loss: 5.6 Mpps a core",
        CENTO,
    ),
    (
        "FlowScope, 1 million flows, 10 GbE, one thread, Xeon E5-2620 v3, tracks flows and looks at nothing else",
        "2.40 Mpps (X540), 2.30 (XL710); in another version of the file 2.83 and 2.66",
        "github.com/emmericp/FlowScope, benchmarks/noop.txt at c7b22db and b876f67, 2018",
    ),
    (
        "n2disk with index, 100 GbE, 60 B on average, FPGA adapter, 12 cores, 8 disks",
        "148 Mpps, no loss",
        "ntop, n2disk user's guide, tuning examples: the maker's own figure",
    ),
];
const PNA: &str = "Schultz, Crowley: Performance Analysis of Packet Capture Methods in a 10 Gbps Virtualized \
                   Environment, 2012, Fig. 5";
const VPF_RING: &str = "Cardigliano, Deri, Gasparakis, Fusco: vPF_RING, IMC 2011, Fig. 11";
const HPCAPVF: &str = "Moreno, Leira, Gonzalez, Gomez-Arribas: Towards high-performance network processing in \
                       virtualized environments, HPCC 2015, Table I";
const VNP: &str = "Leira, Julián-Moreno, González, Gómez-Arribas, López de Vergara: Performance assessment of \
                   40 Gbit/s off-the-shelf network cards for virtual network probes in 5G networks, Computer \
                   Networks, 2019, Tables 2 and 4";
const CENTO: &str = "Deri, Cardigliano, Fusco: Advancements in Traffic Processing Using Programmable Hardware Flow \
                     Offload, HPSR 2024, and its data (github.com/ntop/flow-hw-offload-paper): the maker's own \
                     figure; a core's by division";

pub(super) fn published() -> String {
    let mut html = "<h2 id=published>Published, not run here</h2>\n<p class=note>Other machines, other years, \
                    other methods: for the order of magnitude, not to be compared with the rows above. None of \
                    these systems ran on this machine.</p>\n<table>\n<tr><th>system and conditions\
                    <th>published figure<th>source</tr>\n"
        .to_owned();
    for (what, figure, source) in PUBLISHED {
        html += &format!(
            "<tr><td>{}<td>{}<td class=note>{}</tr>\n",
            escape(what),
            escape(figure),
            escape(source)
        );
    }
    html + "</table>\n"
}
