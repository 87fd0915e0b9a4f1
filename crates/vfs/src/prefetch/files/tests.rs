use super::*;

#[test]
fn kept_data_does_not_keep_its_receive_buffer() {
    let chunk = Bytes::from(vec![7; 256 << 10]);
    let within = |data: &Data| {
        let start = chunk.as_ptr() as usize;
        let inside =
            |piece: &Bytes| (start..start + chunk.len()).contains(&(piece.as_ptr() as usize));
        data.pieces().iter().any(inside)
    };
    let mut pieces = Data::from(chunk.slice(..OWN_PIECE_BYTES));
    pieces.push(chunk.slice(OWN_PIECE_BYTES..2 * OWN_PIECE_BYTES));
    for data in [Data::from(chunk.slice(1..2)), pieces] {
        let own = in_own_memory(data.clone());
        assert!(within(&data) && !within(&own) && own.to_vec() == data.to_vec());
    }
    assert!(within(&in_own_memory(Data::from(chunk.slice(..OWN_PIECE_BYTES)))), "not copied");
    assert!(in_own_memory(Data::new()).is_empty());
}

#[test]
fn a_slice_contains_the_bytes_of_its_range() {
    let mut data = Data::from(Bytes::from_static(b"abc"));
    data.push(Bytes::from_static(b"defg"));
    for (offset, len, expected) in
        [(0, 99, "abcdefg"), (2, 2, "cd"), (3, 4, "defg"), (6, 1, "g"), (7, 1, ""), (99, 9, "")]
    {
        assert_eq!(slice(&data, offset, len).to_vec(), expected.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn files_not_reached_yet_do_not_count_as_unused() {
    let lifetime = Duration::from_secs(1);
    for (opens, guessed_well) in [(5, true), (1000, false)] {
        let mut state = State { opens, ..State::default() };
        let at = Instant::now();
        for number in 0..64 {
            let path = RemotePath::parse(format!("f{number}").as_bytes()).unwrap();
            let (_, outcome) = watch::channel(Some(None));
            let stamp = RequestStamp { seq: 0, at };
            let fetched = Arc::new(PrefetchedFile { stamp, bytes: 1, outcome });
            let slot = Slot { fetched, number, due: 6 + number, used: false };
            state.order.insert(number, path.clone());
            state.bytes += 1;
            state.files.insert(path, slot);
        }
        state.evict_expired(at, lifetime);
        assert_eq!((state.files.len(), state.last_refill.incomplete), (64, false));
        state.evict_expired(at + lifetime, lifetime);
        assert_eq!((state.files.len(), state.bytes), (0, 0));
        assert_eq!(state.throttle.window(at + lifetime) > 0, guessed_well);
        assert_eq!(state.last_refill.incomplete, guessed_well, "they are wanted again");
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_is_recognized_after_three_files() {
    let mut state = State::default();
    let dir = RemotePath::parse(b"d").unwrap();
    let other = RemotePath::parse(b"e").unwrap();
    let now = Instant::now();
    let mut open = |dir: &RemotePath, positions: [usize; 3], now| {
        state.record_open(dir, positions.map(Some), now)
    };
    assert_eq!(open(&dir, [0, 90, 0], now), None);
    assert_eq!(open(&dir, [1, 30, 30], now), None);
    assert_eq!(open(&dir, [2, 50, 20], now), Some(Order::Listing));
    assert_eq!(open(&other, [0, 0, 0], now), Some(Order::Listing), "and so in the next one");
    assert_eq!(open(&other, [40, 30, 50], now), None, "at random");
    assert_eq!(open(&other, [20, 31, 70], now), None);
    assert_eq!(open(&other, [10, 33, 90], now), Some(Order::Name));
    assert_eq!(open(&other, [10, 33, 90], now), None, "the same again");
    assert_eq!(open(&other, [50, 34, 91], now), Some(Order::Name));
    assert_eq!(open(&other, [30, 10, 93], now), Some(Order::Number));
    assert_eq!(open(&other, [31, 11, 94], now + MAX_OPEN_GAP), None, "long after");
}
