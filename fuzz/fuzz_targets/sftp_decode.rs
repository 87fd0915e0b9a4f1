//! Any bytes as any SFTP packet: no panic, and what is decoded is encoded to something that is
//! decoded to the same.
#![no_main]

use base::StatVfs;
use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use sftp::codec::{
    Body, decode_init, DirectAddress, FileContent, FileDigest, HEADER_BYTES, Limits, LockFound, MAX_PACKET_BYTES, pack, packet_length, Reply, Request, SeekOffset, unpack, Version, WatchEvents, XattrNames, XattrValue,
};

fn unframed(packet: &[u8]) -> Bytes {
    // A request may be longer than what a client accepts for a reply, but not than its input.
    let len = packet_length(packet, usize::MAX).expect("encoded").expect("encoded");
    assert_eq!(packet.len(), HEADER_BYTES + len);
    Bytes::copy_from_slice(&packet[HEADER_BYTES..])
}

fuzz_target!(|data: &[u8]| {
    let packet = Bytes::copy_from_slice(data);
    let _ = packet_length(&packet, MAX_PACKET_BYTES);
    let _ = decode_init(&packet);
    let _ = StatVfs::decode(&packet);
    let _ = Limits::decode(&packet);
    if let Ok(found) = LockFound::decode(&packet) {
        assert_eq!(LockFound::decode(&found.encode()), Ok(found));
    }
    let _ = XattrValue::decode(&packet);
    let _ = FileContent::decode(&packet);
    if let Ok(address) = DirectAddress::decode(&packet) {
        assert_eq!(DirectAddress::decode(&address.encode()), Ok(address));
    }
    let _ = FileDigest::decode(&packet);
    let _ = XattrNames::decode(&packet);
    let _ = SeekOffset::decode(&packet);
    if let Ok(events) = WatchEvents::decode(&packet) {
        assert_eq!(WatchEvents::decode(&events.encode()), Ok(events));
    }
    if let Ok(version) = Version::decode(&packet) {
        let mut out = BytesMut::new();
        version.encode(&mut out);
        assert_eq!(Version::decode(&unframed(&out)), Ok(version));
    }
    if let Ok(Some(unpacked)) = unpack(&packet, MAX_PACKET_BYTES) {
        assert!(unpacked.len() <= MAX_PACKET_BYTES);
        let _ = Request::decode(&unpacked);
        let _ = Reply::decode(&unpacked);
    }
    if let Ok((id, request)) = Request::decode(&packet) {
        let mut out = BytesMut::new();
        request.encode(id, &mut out);
        if let Some(packed) = pack(&out, &[]) {
            assert_eq!(unpack(&unframed(&packed), out.len()), Ok(Some(unframed(&out))));
        }
        assert_eq!(Request::decode(&unframed(&out)), Ok((id, request)));
    }
    if let Ok((id, reply)) = Reply::decode(&packet) {
        let mut out = BytesMut::new();
        reply.encode(id, &mut out);
        let again = Reply::decode(&unframed(&out));
        // Text that was no UTF-8 has grown, and may have been cut a second time.
        match (again, reply) {
            (Ok((id_again, Reply::Status { code: again, .. })), Reply::Status { code, .. }) => {
                assert_eq!((id_again, again), (id, code));
            }
            (again, reply) => assert_eq!(again, Ok((id, reply))),
        }
    }
});
