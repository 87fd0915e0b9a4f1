//! make and a C compiler, with sources and objects in the mount. make decides by times of last
//! change, so a wrong one builds too much or too little.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process::shell;
use crate::world::World;

/// Sources besides `main.c`, each with a header that the next one includes too.
const UNITS: usize = 30;

const MAKEFILE: &str = "\
CFLAGS = -O1 -Wall -Werror -MMD -MP
OBJECTS = $(patsubst %.c,%.o,$(wildcard src/*.c))
program: main.o libunits.a
\t$(CC) -o $@ main.o -L. -lunits
libunits.a: $(OBJECTS)
\t$(AR) rcs $@ $^
-include main.d $(OBJECTS:.o=.d)
clean:
\trm -f program libunits.a *.o *.d src/*.o src/*.d
";

/// A program that adds up what its units return: 0 + 1 + … .
fn write_sources(dir: &Path) {
    fs::create_dir_all(dir.join("src")).unwrap();
    fs::write(dir.join("Makefile"), MAKEFILE).unwrap();
    let mut main = String::from("#include <stdio.h>\n#include <stdlib.h>\n");
    let mut calls = String::new();
    for unit in 0..UNITS {
        let next = (unit + 1) % UNITS;
        let header = format!("#pragma once\n#define VALUE{unit} {unit}\nlong unit{unit}(void);\n");
        fs::write(dir.join(format!("src/unit{unit}.h")), header).unwrap();
        let source = format!(
            "#include <string.h>\n#include \"unit{unit}.h\"\n#include \"unit{next}.h\"\n\
             long unit{unit}(void) {{ return (long)strlen(\"\") + VALUE{unit} + 0 * VALUE{next}; }}\n"
        );
        fs::write(dir.join(format!("src/unit{unit}.c")), source).unwrap();
        writeln!(main, "#include \"src/unit{unit}.h\"").unwrap();
        write!(calls, " + unit{unit}()").unwrap();
    }
    writeln!(main, "int main(void) {{ printf(\"%ld\\n\", 0L{calls}); return 0; }}").unwrap();
    fs::write(dir.join("main.c"), main).unwrap();
}

/// How many sources this run of make compiled.
fn compiled(told: &str) -> usize {
    told.lines().filter(|line| line.contains(" -c ")).count()
}

#[test]
fn make_builds_what_has_changed_and_nothing_else() {
    let world = World::new();
    let mount = world.mount(&[]);
    let dir = mount.at("project");
    write_sources(&dir);
    let make = || shell("make -C \"$1\" -j4", &[&dir]);
    assert_eq!(compiled(&make()), UNITS + 1);
    // A program in the mount is run from there, through a mapping of its pages.
    assert_eq!(shell("\"$1\"/program", &[&dir]), format!("{}\n", UNITS * (UNITS - 1) / 2));
    assert_eq!(compiled(&make()), 0);

    // The change of a header reaches the three that include it.
    let header = dir.join("src/unit7.h");
    let changed = fs::read_to_string(&header).unwrap().replace("VALUE7 7", "VALUE7 1007");
    fs::write(&header, changed).unwrap();
    let told = make();
    assert_eq!(compiled(&told), 3, "{told}");
    assert_eq!(shell("\"$1\"/program", &[&dir]), format!("{}\n", UNITS * (UNITS - 1) / 2 + 1000));
    mount.unmount();

    // Another mount of the same tree finds it as up to date.
    let mount = world.mount(&[]);
    let dir = mount.at("project");
    assert_eq!(compiled(&shell("make -C \"$1\"", &[&dir])), 0);
    shell("make -C \"$1\" clean", &[&dir]);
    assert_eq!(compiled(&shell("make -C \"$1\" -j4", &[&dir])), UNITS + 1);
    mount.unmount();
    let told = shell("\"$1\"/program", &[&world.served("project")]);
    assert_eq!(told, format!("{}\n", UNITS * (UNITS - 1) / 2 + 1000));
}

/// The server has whole seconds, so that on the server alone no object would be older than a source
/// that was edited in the same second.
#[test]
fn make_sees_each_of_many_edits_in_a_second() {
    edit_and_make(&World::new());
}

/// The same over a server with exact times: those that this mount sets and those that the server
/// sets are in order.
#[test]
fn make_sees_each_of_many_edits_over_a_server_with_exact_times() {
    edit_and_make(&crate::helper::served_by_helper(""));
}

fn edit_and_make(world: &World) {
    let mount = world.mount(&[]);
    let dir = mount.at("project");
    fs::create_dir(&dir).unwrap();
    let makefile = "all: object stamp\nobject: source\n\tcp $< $@\nstamp: object\n\ttouch $@\n";
    fs::write(dir.join("Makefile"), makefile).unwrap();
    let make = || shell("make -C \"$1\"", &[&dir]);
    let mut within = 0;
    let mut last = 0;
    for edit in 0..24 {
        let text = format!("edit {edit:02}");
        if edit % 2 == 0 {
            fs::write(dir.join("source"), &text).unwrap();
        } else {
            // As editors save.
            fs::write(dir.join("source.new"), &text).unwrap();
            fs::rename(dir.join("source.new"), dir.join("source")).unwrap();
        }
        let told = make();
        assert_eq!(fs::read_to_string(dir.join("object")).unwrap(), text, "{told}");
        assert!(told.contains("touch stamp"), "{told}");
        assert!(make().contains("Nothing to be done"), "edit {edit}");
        let second = fs::metadata(world.served("project/object")).unwrap().mtime();
        within += usize::from(second == last);
        last = second;
    }
    assert!(within > 0, "no two edits fell into one second");
    mount.unmount();
}
