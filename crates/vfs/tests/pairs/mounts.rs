//! Two mounts of one server, with two programs in each. In any order of calls: data that is read
//! was in the file at some time since its open; names that existed all the time are listed, once; a
//! mount sees its own changes at once; and no call is stale unless its name changes meanwhile.

use std::sync::Arc;

use testkit::interleave::{Interleave, seeds};

use super::kernel::{Mount, Server};
use super::link;

async fn play(seed: u64) {
    let server =
        Arc::new(Server::new(!seed.is_multiple_of(3), seed.is_multiple_of(2), &[1, 2, 3], false));
    let mut play = Interleave::new(seed);
    for number in 0..2 {
        let link = link(&server);
        let mount = Mount::new(&server, &link, number);
        play.client(&format!("mount{number}"), [link], async move {
            mount.programs(seed * 4 + 2 * number as u64).await;
        });
    }
    let looked = server.clone();
    play.run(|_| looked.look()).await;
    assert_eq!(server.remote.open_handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn two_mounts_show_what_is_there() {
    for seed in seeds(150, 3000) {
        play(seed).await;
    }
}
