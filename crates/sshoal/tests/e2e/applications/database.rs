//! sqlite3 with its rollback journal, which lives on locks, fsync, truncation and unlinking.

use std::path::Path;
use std::process::Command;

use crate::mount::Mount;
use crate::process::{Process, shell, succeed};
use crate::world::World;

#[track_caller]
fn sqlite(database: &Path, sql: &str) -> String {
    succeed(Command::new("sqlite3").args(["-bail", "-batch"]).arg(database).arg(sql))
}

/// `count` transactions of one row each.
fn inserts(count: usize) -> String {
    let insert = |n| format!("insert into t (text) values (hex(zeroblob({})));\n", n * 37 % 5_000);
    (0..count).map(insert).collect()
}

#[track_caller]
fn assert_sound(database: &Path, rows: usize) {
    assert_eq!(
        sqlite(database, "pragma integrity_check; select count(*) from t;"),
        format!("ok\n{rows}\n")
    );
}

fn table(mount: &Mount, mode: &str) -> std::path::PathBuf {
    let database = mount.at(format!("{mode}.db"));
    let sql = "create table t (id integer primary key, text); create index i on t (text);";
    let told = sqlite(&database, &format!("pragma journal_mode={mode}; {sql}"));
    assert_eq!(told, format!("{mode}\n"));
    database
}

#[test]
fn transactions_in_each_journal_mode() {
    let world = World::new();
    let mount = world.mount(&[]);
    for (mode, count) in [("delete", 1_000), ("truncate", 200), ("persist", 200)] {
        let database = table(&mount, mode);
        let script = world.local("inserts.sql");
        let begin = format!("pragma journal_mode={mode};\n");
        std::fs::write(&script, begin + &inserts(count)).unwrap();
        shell("sqlite3 -bail -batch \"$1\" <\"$2\" >/dev/null", &[&database, &script]);
        assert_sound(&database, count);
        sqlite(&database, "begin; delete from t where id % 3 = 0; rollback;");
        sqlite(&database, "delete from t where id % 2 = 0; vacuum;");
        assert_sound(&database, count / 2);
        // On the server as well, without a journal that would have to be rolled back.
        assert_sound(&world.served(format!("{mode}.db")), count / 2);
    }
    mount.unmount();
}

/// Two processes of this machine exclude each other by the locks of the mount.
#[test]
fn two_writers_do_not_disturb_each_other() {
    let world = World::new();
    let mount = world.mount(&[]);
    let database = table(&mount, "delete");
    let script = world.local("inserts.sql");
    std::fs::write(&script, format!(".timeout 100000\n{}", inserts(150))).unwrap();
    let mut writers: Vec<_> = (0..3)
        .map(|_| {
            let mut command = Command::new("sqlite3");
            command.args(["-bail", "-batch"]).arg(&database);
            command.stdin(std::fs::File::open(&script).unwrap());
            Process::spawn(&mut command)
        })
        .collect();
    for writer in &mut writers {
        assert!(writer.wait(crate::process::LIMIT).success());
    }
    assert_sound(&database, 450);
    mount.unmount();
}

/// A journal that a crash has left is played back by the next who opens the database.
#[test]
fn a_transaction_that_was_cut_is_rolled_back() {
    let world = World::new();
    let mount = world.mount(&[]);
    let database = table(&mount, "delete");
    sqlite(&database, &inserts(100));
    // The pages do not fit into the cache, so that they are in the file before the commit.
    let sql = "pragma cache_size=5; begin; update t set text = hex(zeroblob(4000));
.shell kill -9 $PPID\n";
    let script = world.local("cut.sql");
    std::fs::write(&script, sql).unwrap();
    let script = "sqlite3 -batch \"$1\" <\"$2\" >/dev/null || echo \"ended: $?\"";
    let told = shell(script, &[&database, &world.local("cut.sql")]);
    assert_eq!(told, "ended: 137\n");
    assert!(mount.at("delete.db-journal").exists());
    assert_eq!(sqlite(&database, "select count(*) from t where length(text) = 8000;"), "0\n");
    assert_sound(&database, 100);
    mount.unmount();
}
