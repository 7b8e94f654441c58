//! The filter language: the primitives of pcap-filter(7) for Ethernet, and combinations. Left out
//! are `inbound`, `outbound` and `ifindex`, which need more than the frame, and `protochain`, whose
//! code loops.

/// Primitives.
const PRIMITIVES: &str = "
ether proto 0x800
ether proto \\ip
ether host 02:00:00:00:00:01
ether src 02:00:00:00:00:02
ether dst 02:00:00:00:00:01
ether broadcast
ether multicast
broadcast
multicast
ip
ip6
arp
rarp
atalk
aarp
decnet
iso
stp
ipx
netbeui
lat
moprc
mopdl
llc
llc i
llc s
llc u
llc ui
ip multicast
ip6 multicast
tcp
udp
sctp
icmp
icmp6
igmp
igrp
pim
ah
esp
vrrp
carp
proto 6
ip proto 17
ip proto \\tcp
ip6 proto 58
ip6 proto \\udp
host 10.0.0.1
src host 10.0.0.1
dst host 192.168.1.2
ip host 192.168.1.2
arp host 10.0.0.1
rarp host 10.0.0.1
host 2001:db8::1
src host 2001:db8::1
dst host fe80::2
ip6 host fe80::2
src or dst host 10.0.0.1
src and dst host 10.0.0.1
net 10.0.0.0/8
src net 192.168.0.0/16
dst net 192.168
net 10
net 10.0.0.0 mask 255.0.0.0
net 2001:db8::/32
src net 2001:db8::/33
dst net fe80::/10
ip net 192.168.1
port 80
src port 80
dst port 80
tcp port 80
tcp src port 80
tcp dst port 22
udp port 53
udp src port 53
udp dst port 5353
sctp port 80
portrange 50-100
src portrange 1-1023
dst portrange 1024-65535
tcp portrange 80-80
udp portrange 5000-6000
ip6 and port 53
less 60
greater 100
len <= 128
len > 1000
len == 64
len != 64
len & 1 = 1
vlan
vlan 100
vlan 100 and tcp
vlan and ip6
vlan and vlan 100
vlan 200 and vlan 100 and port 80
vlan 100 and arp
vlan or tcp
not vlan
tcp or vlan
vlan 300 and vlan 100 and udp port 53
mpls
mpls 100
mpls and ip
mpls 100 and tcp port 80
pppoed
pppoes
pppoes 0x1234
pppoes and ip
pppoes and udp port 53
geneve
geneve 7
geneve and tcp port 80
ether[0] & 1 != 0
ether[0] & 1 = 0
ether[12:2] = 0x800
ether[12:2] > 0x600
ether[14:4] != 0
ether[6:4] = 0x02000000
ip[0] & 0xf != 5
ip[6:2] & 0x1fff = 0
ip[6] & 0x20 != 0
ip[8] < 65
ip[8] > 64
ip[2:2] > 576
ip[16] >= 224
ip6[6] = 6
ip6[40] = 0
tcp[13] & 2 != 0
tcp[tcpflags] & (tcp-syn|tcp-fin) != 0
tcp[tcpflags] & tcp-push != 0
tcp[tcpflags] == tcp-ack
tcp[0:2] > 1023
tcp[4:4] = 1
tcp[((tcp[12] & 0xf0) >> 2):4] = 0x00010203
udp[4:2] > 40
udp[8] = 0
icmp[icmptype] = icmp-echo
icmp[icmptype] != icmp-echoreply
icmp[icmpcode] = 0
icmp6[icmp6type] = icmp6-neighborsolicit
arp[6:2] = 1
arp[7] = 2
rarp[0] = 0
igmp[0] = 0x16
sctp[0:2] = 80
ether[100] = 7
ether[1000:4] = 0
ether[4000] = 1
ether[8900] > 0
ether[40000] = 1
ether[60000:4] != 3
ip[ip[0] & 0xf] = 1
ether[ether[13]] = 2
ether[ip[8]:4] > 1000
ether[len - 4:4] = 0x60616263
ether[len - 1] = 0x63
ip[tcp[13] + 4:2] > 7
tcp[tcp[1] * 3 - 5] = 9
ether[0 - 1] = 1
len - 60 > 100
len * 2 = 120
len / 3 = 20
len % 7 = 4
len | 1 = 65
len ^ 64 = 0
len << 2 > 400
len >> 4 = 9
ip[2:2] - ((ip[0] & 0xf) << 2) > 100
ip[2:2] / ip[8] > 1
ip[2:2] % ip[8] = 0
1 << ip[8] = 1
ip[8] << ip[9] > 0
ip[12:4] >> ip[9] > 0
-ip[8] < 0
ip[0] * ip[1] = 0
(ip[8] + ip[9]) ^ 70 = 0
(ip[4:2] | 0xff) & 0xf00 = 0x200
ip[10:2] + tcp[16:2] = 0
";

/// Common combinations.
const COMBINATIONS: &str = "
tcp port 80 or tcp port 443
tcp and not port 22
tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)
host 10.0.0.1 and not (port 80 or port 53)
src net 10.0.0.0/8 and dst net 192.168.0.0/16 and tcp[tcpflags] & tcp-syn != 0
not ip and not ip6 and not arp
(tcp or udp) and portrange 1-1023
ip and ip[6:2] & 0x3fff != 0
udp and (port 53 or port 67 or port 68 or port 123 or port 4789)
ether src 02:00:00:00:00:02 and (ip or ip6)
ip6 and (tcp port 80 or udp port 53 or icmp6)
vlan and (tcp port 80 or vlan 100)
(vlan 100 and ip) or (arp and host 10.0.0.1)
not (tcp port 80 and host 10.0.0.1) and len < 1000
icmp or icmp6 or arp or (udp port 53) or (tcp port 443 and greater 1000)
tcp[0:2] = 80 or tcp[2:2] = 80 or udp[0:2] = 53
host 10.0.0.1 or host 10.0.0.2 or host 10.0.0.3 or net 192.168.1.0/24 or host 2001:db8::1
dst host 192.168.1.2 and (tcp[13] = 2 or tcp[13] = 18) and not src port 22
";

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty())
}

/// All of these, an empty expression, and combinations of two primitives: about 350.
pub fn all() -> Vec<String> {
    let primitives: Vec<_> = lines(PRIMITIVES).collect();
    // After vlan, mpls, pppoes and geneve, the following words apply to the inner headers, and
    // libpcap refuses some orders.
    let plain: Vec<_> = primitives
        .iter()
        .filter(|line| {
            !["vlan", "mpls", "pppoe", "geneve", "llc", "rarp"].iter().any(|w| line.contains(w))
        })
        .collect();
    let pairs = plain.iter().zip(plain.iter().cycle().skip(37)).enumerate().map(|(n, (a, b))| {
        match n % 3 {
            0 => format!("({a}) or ({b})"),
            1 => format!("({a}) or not ({b})"),
            _ => format!("not ({a}) and not ({b})"),
        }
    });
    let singles = primitives.iter().copied().chain(lines(COMBINATIONS)).map(str::to_owned);
    singles.chain([String::new()]).chain(pairs).collect()
}
