//! What an SSH server says before any encryption: its version, and the algorithms that it offers.
//! Pure: bytes in, value out.
//!
//! RFC 4253: lines of any text, one that begins with `SSH-` (4.2), then binary packets (6), the
//! first of which is `SSH_MSG_KEXINIT` (7.1).

/// Most that may come before and with the version line; OpenSSH's clients give up there too.
const GREETING_MOST_BYTES: usize = 8192;

/// Longest packet. RFC 4253 asks for 35,000 bytes; an offer is about 1,500.
const PACKET_MOST_BYTES: usize = 64 << 10;

/// Message number of the first packet.
const KEXINIT: u8 = 20;

/// Random bytes after the number.
const COOKIE_BYTES: usize = 16;

/// What a server offers, in its order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// `OpenSSH_9.2p1 Debian-2`: the version line without the protocol's. Printable.
    pub(super) version: String,
    /// From the server to the client, which the client may use in both directions.
    pub(super) ciphers: Vec<String>,
    /// Message authentication for ciphers that have none of their own.
    pub(super) macs: Vec<String>,
    /// `none`, `zlib@openssh.com`.
    pub(super) compression: Vec<String>,
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The beginning of something that may become an offer.
    More,
    /// The whole of it.
    Offer(Offer),
    /// Never an offer, whatever comes.
    Nonsense(&'static str),
}

/// Reads what a server has sent so far.
pub(super) fn hear(bytes: &[u8]) -> Heard {
    match read(bytes) {
        Ok(Some(offer)) => Heard::Offer(offer),
        Ok(None) => Heard::More,
        Err(why) => Heard::Nonsense(why),
    }
}

fn read(bytes: &[u8]) -> Result<Option<Offer>, &'static str> {
    let Some((version, rest)) = version_line(bytes)? else { return Ok(None) };
    let Some(payload) = packet(rest)? else { return Ok(None) };
    let [ciphers, macs, compression] = lists(payload)?;
    Ok(Some(Offer { version, ciphers, macs, compression }))
}

/// The version, and what follows its line.
fn version_line(bytes: &[u8]) -> Result<Option<(String, &[u8])>, &'static str> {
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        if bytes.len() - after.len() > GREETING_MOST_BYTES {
            break;
        }
        rest = after;
        let Some(line) = line.strip_prefix(b"SSH-") else { continue };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let version = line.strip_prefix(b"2.0-").or_else(|| line.strip_prefix(b"1.99-"));
        let version = version.ok_or("it speaks another version of SSH")?;
        return Ok(Some((String::from_utf8_lossy(version).escape_debug().to_string(), rest)));
    }
    if bytes.len() > GREETING_MOST_BYTES {
        return Err("it does not speak SSH");
    }
    Ok(None)
}

/// The payload of a first packet: `uint32 length`, `byte padding`, payload, padding.
fn packet(bytes: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if !(2..=PACKET_MOST_BYTES).contains(&length) {
        return Err("its first packet has no possible length");
    }
    let Some(packet) = rest.get(..length) else { return Ok(None) };
    let padding = usize::from(packet[0]);
    packet[1..].len().checked_sub(padding).map(|end| Some(&packet[1..=end])).ok_or("bad padding")
}

/// Ciphers, MACs and compression of the direction to the client. Ten lists stand in the message:
/// key exchange, host keys, then each of these for both directions, and languages.
fn lists(payload: &[u8]) -> Result<[Vec<String>; 3], &'static str> {
    let (&number, rest) = payload.split_first().ok_or("its first packet is empty")?;
    if number != KEXINIT {
        return Err("its first packet is no offer");
    }
    let mut rest = rest.get(COOKIE_BYTES..).ok_or("its offer is cut")?;
    let mut lists = Vec::with_capacity(10);
    for _ in 0..10 {
        let (length, after) = rest.split_first_chunk::<4>().ok_or("its offer is cut")?;
        let length = u32::from_be_bytes(*length) as usize;
        lists.push(names(after.get(..length).ok_or("its offer is cut")?)?);
        rest = &after[length..];
    }
    Ok([3, 5, 7].map(|at| std::mem::take(&mut lists[at])))
}

/// A name-list (RFC 4251, 5): printable US-ASCII, parted by commas.
fn names(list: &[u8]) -> Result<Vec<String>, &'static str> {
    if !list.iter().all(u8::is_ascii_graphic) {
        return Err("its offer has names that are none");
    }
    let list = list.split(|&byte| byte == b',').filter(|name| !name.is_empty());
    Ok(list.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer(lists: &[&str; 10], padding: u8) -> Vec<u8> {
        let mut payload = vec![KEXINIT];
        payload.extend([7; COOKIE_BYTES]);
        for list in lists {
            payload.extend(u32::try_from(list.len()).unwrap().to_be_bytes());
            payload.extend(list.as_bytes());
        }
        payload.extend([0; 5]);
        let length = u32::try_from(payload.len() + 1 + usize::from(padding)).unwrap();
        let mut packet = length.to_be_bytes().to_vec();
        packet.push(padding);
        packet.extend(payload);
        packet.extend(std::iter::repeat_n(0, padding.into()));
        packet
    }

    const LISTS: [&str; 10] =
        ["kex", "host", "up1,up2", "aes256-ctr,b", "m", "n@x,o", "zlib", "none,zlib", "", ""];

    #[test]
    fn an_offer_is_read_when_it_is_whole() {
        let mut bytes = b"Be welcome\r\nSSH-2.0-OpenSSH_9.2p1 Debian\x1b[m\r\n".to_vec();
        bytes.extend(offer(&LISTS, 4));
        let expected = Offer {
            version: "OpenSSH_9.2p1 Debian\\u{1b}[m".into(),
            ciphers: vec!["aes256-ctr".into(), "b".into()],
            macs: vec!["n@x".into(), "o".into()],
            compression: vec!["none".into(), "zlib".into()],
        };
        for length in 0..bytes.len() {
            assert_eq!(hear(&bytes[..length]), Heard::More, "{length}");
        }
        assert_eq!(hear(&bytes), Heard::Offer(expected.clone()));
        bytes.extend(b"what comes later");
        assert_eq!(hear(&bytes), Heard::Offer(expected));
    }

    #[test]
    fn what_is_no_offer_is_named() {
        let nonsense = |bytes: &[u8]| matches!(hear(bytes), Heard::Nonsense(_));
        assert!(nonsense(b"SSH-1.5-old\r\n"));
        assert!(nonsense(&[b'x'; GREETING_MOST_BYTES + 1]));
        assert!(nonsense(&b"lines\n".repeat(2000)));
        let after = |packet: &[u8]| [b"SSH-2.0-x\n", packet].concat();
        assert!(nonsense(&after(&[0xff; 4])));
        assert!(nonsense(&after(&[0; 4])));
        // More padding than packet; another message; a list that is longer than the packet.
        assert!(nonsense(&after(&[0, 0, 0, 2, 9, 20])));
        assert!(nonsense(&after(&[0, 0, 0, 2, 0, 21])));
        let mut cut = offer(&LISTS, 0);
        cut[4 + 1 + 1 + COOKIE_BYTES] = 1;
        assert!(nonsense(&after(&cut)));
        assert!(nonsense(&after(&offer(&["", "", "", "a\x07b", "", "", "", "", "", ""], 4))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            greeted: bool,
        ) {
            let greeting: &[u8] = if greeted { b"SSH-2.0-x\r\n" } else { b"" };
            hear(&[greeting, &bytes].concat());
        }

        #[test]
        fn a_changed_offer_is_survived(
            changes in proptest::collection::vec((0_usize..160, any::<u8>()), 1..6),
            length in 0_usize..160,
        ) {
            let mut bytes = [&b"SSH-2.0-x\r\n"[..], &offer(&LISTS, 8)].concat();
            for (at, byte) in changes {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            hear(&bytes[..length.min(bytes.len())]);
        }

        #[test]
        fn every_offer_comes_back(
            ciphers in proptest::collection::vec("[a-z0-9@.-]{1,20}", 0..8),
            padding: u8,
        ) {
            let list = ciphers.join(",");
            let lists = ["", "", "", &list, "", "", "", "", "", ""];
            let bytes = [&b"SSH-2.0-x\r\n"[..], &offer(&lists, padding)].concat();
            match hear(&bytes) {
                Heard::Offer(offer) => prop_assert_eq!(offer.ciphers, ciphers),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
