//! A generated C program: many files, each with many headers.
//!
//! Module `n` defines `value_n`; the program prints the sum of all.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::corpus::last_changed;

/// Headers that a module includes itself; each includes two more.
const HEADERS_PER_MODULE: u32 = 8;

/// Functions in a module, to give the compiler something to do.
const FUNCTIONS: u32 = 10;

/// Makes `dir` with the sources of a program of `modules` modules.
pub(super) fn make(dir: &Path, modules: u32) -> io::Result<()> {
    let headers = modules / 2 + 1;
    for part in ["include", "src"] {
        fs::create_dir_all(dir.join(part))?;
    }
    for number in 0..headers {
        write(&dir.join(format!("include/part_{number}.h")), header(number, headers))?;
    }
    for number in 0..modules {
        write(&dir.join(format!("src/module_{number}.c")), module(number, headers))?;
    }
    write(&dir.join("src/main.c"), main(modules))?;
    write(&dir.join("Makefile"), makefile(modules))
}

fn write(path: &Path, text: String) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.set_modified(last_changed())
}

fn header(number: u32, headers: u32) -> String {
    let mut text = format!("#ifndef PART_{number}_H\n#define PART_{number}_H\n\n");
    // Only later ones, so that there is no circle.
    for next in [2 * number + 1, 2 * number + 2] {
        if next < headers {
            let _ = writeln!(text, "#include \"part_{next}.h\"");
        }
    }
    for field in 0..40 {
        let _ = writeln!(
            text,
            "struct part_{number}_{field} {{ int first; long second[{}]; struct part_{number}_{field} *next; }};\n\
             static inline long part_{number}_sum_{field}(const struct part_{number}_{field} *it)\n\
             {{\n\treturn it->first + it->second[0];\n}}\n",
            field + 1
        );
    }
    text + "#endif\n"
}

fn module(number: u32, headers: u32) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for include in 0..HEADERS_PER_MODULE {
        let _ = writeln!(text, "#include \"part_{}.h\"", (number + 7 * include) % headers);
    }
    let part = number % headers;
    for function in 0..FUNCTIONS {
        let (rounds, divisor) = (function + 3, function + 11);
        let _ = writeln!(
            text,
            "\nstatic long step_{function}(long value)\n{{\n\
             \tstruct part_{part}_{function} it = {{ .first = (int)value }};\n\
             \tfor (int i = 0; i < {rounds}; i++)\n\
             \t\tit.second[0] += (value ^ i) % {divisor};\n\
             \treturn part_{part}_sum_{function}(&it) % 1000;\n}}"
        );
    }
    // The compiler does not know what is added, so it has to keep the rest.
    let _ = writeln!(text, "\nlong value_{number}(long nothing)\n{{");
    let _ = writeln!(text, "\tlong value = {number} + nothing;");
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "\tvalue += step_{function}(value);");
    }
    text + "\treturn value;\n}\n"
}

fn main(modules: u32) -> String {
    let mut text = String::from("#include <stdio.h>\n\n");
    for number in 0..modules {
        let _ = writeln!(text, "long value_{number}(long nothing);");
    }
    text.push_str("\nint main(int count, char **arguments)\n{\n\tlong sum = 0;\n");
    text.push_str("\t(void)arguments;\n");
    for number in 0..modules {
        let _ = writeln!(text, "\tsum += value_{number}(count - 1);");
    }
    text + "\tprintf(\"%ld\\n\", sum);\n\treturn 0;\n}\n"
}

fn makefile(modules: u32) -> String {
    let objects: Vec<String> = (0..modules).map(|number| format!("module_{number}.o")).collect();
    format!(
        "CC = gcc\n\
         CFLAGS = -O2 -I$(SOURCE)/include\n\
         OBJECTS = main.o {}\n\
         \n\
         program: $(OBJECTS)\n\
         \t$(CC) -o $@ $(OBJECTS)\n\
         \n\
         %.o: $(SOURCE)/src/%.c\n\
         \t$(CC) $(CFLAGS) -c -o $@ $<\n",
        objects.join(" ")
    )
}
